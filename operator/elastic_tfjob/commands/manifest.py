"""Files with TFJobs, read as `kubectl create -f` reads them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from elastic_tfjob.api.manifests import Manifest, manifests
from elastic_tfjob.api.reading import cut, describe
from elastic_tfjob.api.tfjob import GROUP, KIND, VERSION
from elastic_tfjob.commands.cluster import Failed
from elastic_tfjob.commands.show import plain

__all__ = ["items", "read", "read_job", "read_jobs"]

_LARGEST: Final = 192 * 1024
"""Characters of a file. The query API takes 256 KiB of JSON, which is longer than YAML."""


def read(file: str) -> list[Manifest]:
    """The documents of a file (`-`: standard input). Raises Failed, which says what is wrong and where."""
    try:
        with sys.stdin if file == "-" else Path(file).open(encoding="utf-8", newline="") as opened:
            text = opened.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError(f"the file is too large; at most {_LARGEST} characters are allowed")
        return manifests(text)
    except (OSError, ValueError) as error:
        raise Failed(f"{file}: {plain(cut(str(error)))}") from None


def items(value: object) -> Iterator[Any]:
    """The objects of a document: the items of a Kubernetes list, or the document itself."""
    if isinstance(value, dict) and str(value.get("kind")).endswith("List") and isinstance(value.get("items"), list):
        for each in value["items"]:
            yield from items(each)
    else:
        yield value


def read_jobs(file: str, namespace: str) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """The TFJobs of a file with the notes on their documents; a job without a namespace gets this one. Raises Failed if
    there is none, or one is not a v1 TFJob."""
    found = [
        (_job(each, file, namespace), document.notes)
        for document in read(file)
        for each in items(document.value)
        if isinstance(each, dict) and str(each.get("kind")).lower() == KIND.lower()
    ]
    if not found:
        raise Failed(f"{file}: contains no object of kind {KIND}")
    return found


def read_job(file: str, namespace: str) -> dict[str, Any]:
    """The only TFJob of a file. Raises Failed as `read_jobs` does, and if there are several."""
    found = read_jobs(file, namespace)
    if len(found) > 1:
        raise Failed(f"{file}: contains {len(found)} objects of kind {KIND}; exactly one is allowed")
    return found[0][0]


def _job(raw: dict[str, Any], file: str, namespace: str) -> dict[str, Any]:
    version, metadata, said = raw.get("apiVersion"), raw.get("metadata"), ""
    if version != f"{GROUP}/{VERSION}":
        said = f"apiVersion is {describe(version)}; allowed: {GROUP}/{VERSION}"
        if str(version).startswith((f"{GROUP}/", "tensorflow.org/")):
            said += f" (`elastic-tfjob convert -f {file}` converts the job)"
    elif raw.get("kind") != KIND:
        said = f"kind is {describe(raw.get('kind'))}; allowed: {KIND}"
    elif not isinstance(metadata, dict) or not isinstance(raw.get("spec"), dict):
        said = "metadata or spec is missing or not an object"
    if said or not isinstance(metadata, dict):
        raise Failed(f"{file}: {plain(cut(said))}")
    metadata = {**metadata, "namespace": metadata.get("namespace") or namespace}
    if not metadata.get("name") and isinstance(prefix := metadata.get("generateName"), str):
        # The API server appends five characters; use placeholders.
        metadata["name"] = f"{prefix}xxxxx"
    return {**raw, "metadata": metadata}

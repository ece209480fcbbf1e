"""A file with a TFJob, as `kubectl create -f` takes it."""

import sys
from pathlib import Path
from typing import Any, Final

from elastic_tfjob.api.fields import cut, describe
from elastic_tfjob.api.tfjob import GROUP, KIND, VERSION
from elastic_tfjob.api.yaml import as_json, documents
from elastic_tfjob.commands.cluster import Failed
from elastic_tfjob.commands.show import plain

__all__ = ["read_job"]

_LARGEST: Final = 192 * 1024
"""Characters, which leaves room for what JSON adds: the query API takes 256 KiB."""


def read_job(file: str, namespace: str) -> dict[str, Any]:
    """The one TFJob in a file (`-`: standard input), in its own namespace, else in this one. Raises Failed that says
    what is wrong, and where."""
    try:
        with sys.stdin if file == "-" else Path(file).open(encoding="utf-8") as opened:
            text = opened.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError(f"more than {_LARGEST} characters; a TFJob has some thousand")
        found = [each for each in documents(text) if isinstance(each, dict) and each.get("kind") == KIND]
        if len(found) != 1:
            raise ValueError(f"{len(found)} objects of kind {KIND}, where one is expected")
        job: dict[str, Any] = as_json(found[0])
        if job.get("apiVersion") != f"{GROUP}/{VERSION}":
            raise ValueError(f"apiVersion is {describe(job.get('apiVersion'))}; allowed is {GROUP}/{VERSION}")
        metadata = job.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(job.get("spec"), dict):
            raise ValueError("metadata or spec is missing, or no object")
    except (OSError, ValueError) as error:
        raise Failed(f"{file}: {plain(cut(str(error)))}") from None
    metadata = {**metadata, "namespace": metadata.get("namespace") or namespace}
    if "name" not in metadata and isinstance(prefix := metadata.get("generateName"), str):
        metadata["name"] = f"{prefix}x"
    return {**job, "metadata": metadata}

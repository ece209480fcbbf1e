"""`convert`: TFJobs of older API versions become TFJobs of v1."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from elastic_tfjob.api.manifests import Manifest, as_text
from elastic_tfjob.api.older import CannotConvert, converted
from elastic_tfjob.api.tfjob import KIND
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import EXIT_FAILED, Failed
from elastic_tfjob.commands.job_findings import about_job, schema_of_v1
from elastic_tfjob.commands.manifest import read

__all__ = ["convert"]

_FILES: Final = (".yaml", ".yml", ".json")


def convert(*, files: tuple[str, ...], output: Path | None) -> None:
    """Write the converted documents to `output` (None: standard output), and list the changes on standard error."""
    said: list[str] = []
    problems: list[str] = []
    written = [
        text
        for name in files
        for file in _files(name)
        for document in read(file)
        if (text := _document(file, document, said, problems))
    ]
    for line in problems if problems else said:
        click.echo(show.plain(line), err=True)
    if problems:
        raise SystemExit(EXIT_FAILED)
    text = "---\n".join(each if each.endswith("\n") else f"{each}\n" for each in written)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failed(f"{output}: {error.strerror}") from None


def _files(name: str) -> Iterator[str]:
    """The files in a directory, as kubectl chooses them; or the file itself."""
    path = Path(name)
    if name == "-" or not path.is_dir():
        yield name
        return
    found = sorted(str(each) for each in path.iterdir() if each.suffix in _FILES and each.is_file())
    if not found:
        raise Failed(f"{name}: no file in this directory ends in {', '.join(_FILES)}")
    yield from found


def _document(file: str, document: Manifest, said: list[str], problems: list[str]) -> str:
    """A document's text with its TFJobs converted; `said` and `problems` get a line for each change and problem."""
    before = len(said)
    value = _value(file, document.value, said, problems)
    if len(said) == before:
        return document.text
    said += [f"{file}: {note}" for note in document.notes]
    if re.search(r"(^|\s)#", document.text):
        said.append(f"{file}: the document loses its comments")
    return as_text(value)


def _value(file: str, value: Any, said: list[str], problems: list[str]) -> Any:
    if not isinstance(value, dict):
        return value
    kind = str(value.get("kind"))
    if kind.endswith("List") and isinstance(value.get("items"), list):
        items = value["items"]
        if kind.lower() == f"{KIND}List".lower():
            items = [
                {"apiVersion": value.get("apiVersion"), "kind": KIND, **each} if isinstance(each, dict) else each
                for each in items
            ]
        return {**value, "items": [_value(file, each, said, problems) for each in items]}
    if kind.lower() != KIND.lower():
        return value
    metadata = value.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    where = f"{file}: {name or 'a TFJob without a name'}"
    try:
        job, changes = converted(value, schema_of_v1())
    except CannotConvert as error:
        problems += [f"{where}: cannot be converted: {problem}" for problem in error.problems]
        return value
    said += [f"{where}: {change}" for change in changes]
    problems += [f"{where}: cannot be converted: {problem}" for problem in _errors(job)]
    return job


def _errors(job: dict[str, Any]) -> list[str]:
    """The errors that `check --offline` finds."""
    metadata = job.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        return ["metadata has no name"]
    named = {**metadata, "namespace": metadata.get("namespace") or "default"}
    named["name"] = named.get("name") or f"{named['generateName']}xxxxx"
    findings = about_job({**job, "metadata": named}, datetime.now(UTC))
    return [f"{each.text}{f' ({each.do})' if each.do else ''}" for each in findings if each.level == "error"]

"""Files with TFJobs: reading them as `kubectl create -f` does, `convert`, and `export-trace`."""

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from elastic_tfjob.api.manifests import Manifest, as_text, manifests
from elastic_tfjob.api.older import CannotConvert, converted
from elastic_tfjob.api.reading import cut, describe
from elastic_tfjob.api.tfjob import GROUP, KIND, VERSION
from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import EXIT_FAILED, Cluster, Failed, path_of, read_all, run
from elastic_tfjob.commands.job_findings import about_job, schema_of_v1
from elastic_tfjob.commands.show import plain
from elastic_tfjob.controller.kube.errors import ApiError
from elastic_tfjob.controller.kube.informer import jobs_path
from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.query.rows.jobs import see
from elastic_tfjob.controller.query.rows.trace import COLUMNS, TraceRow, trace_rows
from elastic_tfjob.simulation.formats import GIB

__all__ = ["convert", "export_trace", "items", "read", "read_job", "read_jobs", "read_to_check"]

# -- Reading -----------------------------------------------------------------------------------------------------------

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


JobOfFile = tuple[dict[str, Any], tuple[str, ...]]
"""A TFJob, and the notes on its document."""


def read_jobs(file: str, namespace: str) -> list[JobOfFile]:
    """The TFJobs of a file with the notes on their documents; a job without a namespace gets this one. Raises Failed if
    there is none, or one is not a v1 TFJob."""
    if not (found := _jobs(read(file), file, namespace)):
        raise Failed(f"{file}: contains no object of kind {KIND}")
    return found


def read_to_check(file: str, namespace: str, config_map: str) -> tuple[list[JobOfFile], list[dict[str, Any]]]:
    """The TFJobs of a file as `read_jobs` gives them, and the ConfigMaps of this name. Raises Failed if there is
    neither."""
    documents = read(file)
    found = [
        each
        for document in documents
        for each in items(document.value)
        if isinstance(each, dict) and each.get("kind") == "ConfigMap" and _name(each) == config_map
    ]
    jobs = _jobs(documents, file, namespace)
    if not (jobs or found):
        raise Failed(f"{file}: contains no object of kind {KIND}, and no ConfigMap {config_map}")
    return jobs, found


def _name(raw: dict[str, Any]) -> object:
    metadata = raw.get("metadata")
    return metadata.get("name") if isinstance(metadata, dict) else None


def _jobs(documents: list[Manifest], file: str, namespace: str) -> list[JobOfFile]:
    return [
        (_job(each, file, namespace), document.notes)
        for document in documents
        for each in items(document.value)
        if isinstance(each, dict) and str(each.get("kind")).lower() == KIND.lower()
    ]


def read_job(file: str, namespace: str) -> dict[str, Any]:
    """The only TFJob of a file. Raises Failed as `read_jobs` does, and if there are several."""
    found = read_jobs(file, namespace)
    if len(found) > 1:
        raise Failed(f"{file}: contains {len(found)} objects of kind {KIND}; exactly one is allowed")
    return found[0][0]


def _job(raw: dict[str, Any], file: str, namespace: str) -> dict[str, Any]:
    version, metadata, problem = raw.get("apiVersion"), raw.get("metadata"), ""
    if version != f"{GROUP}/{VERSION}":
        problem = f"apiVersion is {describe(version)}; allowed: {GROUP}/{VERSION}"
        if str(version).startswith((f"{GROUP}/", "tensorflow.org/")):
            problem += f" (`elastic-tfjob convert -f {file}` converts the job)"
    elif raw.get("kind") != KIND:
        problem = f"kind is {describe(raw.get('kind'))}; allowed: {KIND}"
    elif not isinstance(metadata, dict) or not isinstance(raw.get("spec"), dict):
        problem = "metadata or spec is missing or not an object"
    if problem or not isinstance(metadata, dict):
        raise Failed(f"{file}: {plain(cut(problem))}")
    metadata = {**metadata, "namespace": metadata.get("namespace") or namespace}
    if not metadata.get("name") and isinstance(prefix := metadata.get("generateName"), str):
        # The API server appends five characters; use placeholders.
        metadata["name"] = f"{prefix}xxxxx"
    return {**raw, "metadata": metadata}


# -- convert -----------------------------------------------------------------------------------------------------------

_FILES: Final = (".yaml", ".yml", ".json")


def convert(*, files: tuple[str, ...], output: Path | None) -> None:
    """Write the converted documents to `output` (None: standard output), and list the changes on standard error."""
    changes: list[str] = []
    problems: list[str] = []
    written = [
        text
        for name in files
        for file in _files(name)
        for document in read(file)
        if (text := _document(file, document, changes, problems))
    ]
    for line in problems if problems else changes:
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


def _document(file: str, document: Manifest, changes: list[str], problems: list[str]) -> str:
    """A document's text with its TFJobs converted; `changes` and `problems` get a line for each change and problem."""
    before = len(changes)
    value = _value(file, document.value, changes, problems)
    if len(changes) == before:
        return document.text
    changes += [f"{file}: {note}" for note in document.notes]
    if re.search(r"(^|\s)#", document.text):
        changes.append(f"{file}: the document loses its comments")
    return as_text(value)


def _value(file: str, value: Any, changes: list[str], problems: list[str]) -> Any:
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
        return {**value, "items": [_value(file, each, changes, problems) for each in items]}
    if kind.lower() != KIND.lower():
        return value
    metadata = value.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    where = f"{file}: {name or 'a TFJob without a name'}"
    try:
        job, converted_fields = converted(value, schema_of_v1())
    except CannotConvert as error:
        problems += [f"{where}: cannot be converted: {problem}" for problem in error.problems]
        return value
    changes += [f"{where}: {change}" for change in converted_fields]
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


# -- export-trace ------------------------------------------------------------------------------------------------------

_NAMED: Final = 5


def export_trace(*, output: Path, all_namespaces: bool, **cluster: Any) -> None:
    """Export the TFJobs of a cluster to OUTPUT (CSV), a workload file for `simulate`."""

    async def do(at: Cluster) -> tuple[list[TraceRow], dict[str, str], str]:
        found = read_all(TFJob.parse, await at.items(jobs_path("" if all_namespaces else at.namespace)))
        return *trace_rows(map(see, found)), await _nodes(at)

    rows, left_out, nodes = run(do, **cluster)
    for name, why in list(left_out.items())[:_NAMED]:
        click.echo(plain(f"{name} is skipped: {why}"), err=True)
    if len(left_out) > _NAMED:
        click.echo(f"{len(left_out) - _NAMED} more are skipped", err=True)
    if not rows:
        raise Failed(f"no TFJob can be exported; {output} is unchanged")
    output.write_text(as_csv(rows))
    click.echo(f"{len(rows)} jobs written to {output}")
    click.echo(f"elastic-tfjob simulate {output} {nodes} --profile elastic --tune --speed-model linear")


def as_csv(rows: list[TraceRow]) -> str:
    """The text of the CSV file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row.cells() for row in rows)
    return file.getvalue()


async def _nodes(at: Cluster) -> str:
    """Options of `simulate` for a cluster of as many nodes, each of the most common size; placeholders if the user may
    not list nodes."""
    try:
        found = read_all(KubeNode.parse, await at.items(path_of("", "nodes")))
    except ApiError:
        found = []
    sizes = Counter(node.allocatable for node in found if node.usable)
    if not sizes:
        return "--nodes NUMBER --cpus-per-node CPUS --memory-per-node GIB --gpus-per-node GPUS"
    size, _ = sizes.most_common(1)[0]
    return (
        f"--nodes {sizes.total()} --cpus-per-node {size.cpu_millicores / 1000:g} "
        f"--memory-per-node {size.memory_bytes // GIB} --gpus-per-node {size.accelerators}"
    )

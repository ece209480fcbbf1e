"""Reading workload files: public trace formats, recognised by their header.

A bad row is named by file, line, column and value. By default nothing is simulated until it is mended.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import CHIEF, PS, WORKER, ReplicaGroup, fixed_group
from elastic_tfjob.simulation.speed_models.ps import MODELS
from elastic_tfjob.simulation.workload import BadValue, LossCurve, Row, Workload, WorkloadJob, bounds

__all__ = ["parse_chronus"]


# -- Jobs as Chronus (SoCC'21) writes them: of Philly, with deadlines that its authors generated -----------------------


def parse_chronus(row: Row) -> WorkloadJob:
    """Times are in minutes, deadlines after the submission. Of a soft one, which loses its value in steps, the first:
    until then it has all of it."""
    submit_s, gpus = 60 * row.number("submit_time"), row.whole("num_gpu", least=1)
    deadline_s = None
    if not row.flag("best_effort"):
        first = row.text("expect_time_list").partition("-")[0]
        deadline_s = submit_s + 60 * replace(row, values={"expect_time_list": first}).number(
            "expect_time_list", above=0
        )
    return WorkloadJob(
        key=row.text("job_id"),
        submit_s=submit_s,
        groups=row.groups(fixed_group(WORKER, Resources(accelerators=1), gpus)),
        duration_s=60 * row.number("duration", above=0),
        deadline_s=deadline_s,
        model=row.text("model_name"),
        line=row.line,
    )


GIB = 1024**3
T = TypeVar("T")

MOST_ACCELERATORS = 64
"""The largest size in ElasticFlow's tables."""
DL2_SLOT_S = 1200.0
"""DL2's scheduling interval."""
DL2_MOST = 16
"""DL2's largest number of workers, and of PSs, per job."""


class WorkloadError(Exception):
    """A workload that cannot be simulated; the message is for the user."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """One thing wrong with one row."""

    file: str
    line: int
    column: str
    value: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: column {self.column!r}: {self.value!r} {self.wrong}"


@dataclass(frozen=True, slots=True)
class Format:
    """A CSV format: its header must have all `required` columns."""

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    parse: Callable[[Row], WorkloadJob]


def parse_jobs(row: Row) -> WorkloadJob:
    gpus_column = "num_gpus" if "num_gpus" in row.values else "num_gpu"
    gpus = row.whole(gpus_column)
    workers = row.maybe("num_workers", lambda c: row.whole(c, least=1), gpus)
    if workers < 1:
        raise BadValue(gpus_column, str(gpus), "must be at least 1 where num_workers is not given")
    if gpus % workers:
        raise BadValue(gpus_column, str(gpus), f"is not a multiple of num_workers, {workers}")

    def request(prefix: str, accelerators: int) -> Resources:
        cpus = row.maybe(f"{prefix}cpus", lambda c: row.number(c, least=0), 0.0)
        memory = row.maybe(f"{prefix}memory_gib", lambda c: row.number(c, least=0), 0.0)
        return Resources(round(cpus * 1000), round(memory * GIB), accelerators)

    groups = [ReplicaGroup(WORKER, request("", gpus // workers), workers, *bounds(row, "workers", workers))]
    ps = row.maybe("num_ps", row.whole, 0)
    if ps:
        groups.append(ReplicaGroup(PS, request("ps_", 0), ps, *bounds(row, "ps", ps)))
    fixed = row.maybe("num_fixed", row.whole, 0)
    if fixed:
        groups.append(fixed_group(CHIEF, request("fixed_", 0), fixed))
    loss = None
    if row.has("loss_b0"):
        loss = LossCurve(
            row.number("loss_b0", above=0), row.number("loss_b1", above=0), row.maybe("loss_b2", row.number, 0.0)
        )
    model = "model" if row.has("model") else "model_name"
    steps = "steps" if row.has("steps") else "num_iteration"
    return WorkloadJob(
        key=row.text("job_id"),
        submit_s=row.number("submit_s"),
        groups=row.groups(*groups),
        duration_s=row.number("duration_s", above=0),
        total_steps=row.maybe(steps, lambda c: row.number(c, above=0), None),
        estimated_s=row.maybe("estimated_s", lambda c: row.number(c, above=0), None),
        deadline_s=row.maybe("deadline_s", row.number, None),
        priority=row.maybe("priority", lambda c: int(row.number(c)), 0),
        model=row.maybe(model, row.text, ""),
        batch_size=row.maybe("batch_size", row.whole, 0),
        loanable=row.maybe("loanable", row.flag, False),
        loss=loss,
        cpu_demand=row.maybe("cpu_demand", lambda c: row.number(c, above=0), None),
        line=row.line,
    )


def parse_elasticflow(row: Row) -> WorkloadJob:
    gpus = row.whole("num_gpu", least=1)
    group = ReplicaGroup(WORKER, Resources(accelerators=1), gpus, 1, max(gpus, MOST_ACCELERATORS))
    return WorkloadJob(
        key=row.text("job_id"),
        submit_s=row.number(row.either("submit_time", "submission_time")),
        groups=row.groups(group),
        duration_s=row.maybe("duration", lambda c: row.number(c, above=0), None),
        total_steps=row.number(row.either("iteration", "num_iteration"), above=0),
        deadline_s=row.number(row.either("ddl", "deadline")),
        model=row.text("model_name"),
        batch_size=row.whole("batch_size", least=1),
        line=row.line,
    )


def made_elastic(job: WorkloadJob) -> WorkloadJob:
    """A job of one worker per accelerator, or of workers with several, as ElasticFlow runs it: workers of one
    accelerator each, one to as many as its tables have."""
    accelerators = sum(group.count * group.request.accelerators for group in job.groups)
    if not accelerators or not job.batch_size or any(g.minimum < g.maximum for g in job.groups):
        return job
    group = ReplicaGroup(WORKER, Resources(accelerators=1), accelerators, 1, max(accelerators, MOST_ACCELERATORS))
    return replace(job, groups=(group,))


def parse_pollux(row: Row) -> WorkloadJob:
    replicas = row.whole("num_replicas", least=1)
    group = ReplicaGroup(WORKER, Resources(accelerators=1), replicas, 1, MOST_ACCELERATORS)
    return WorkloadJob(
        key=row.text("name"),
        submit_s=row.number("time", least=0),
        groups=row.groups(group),
        model=row.text("application"),
        batch_size=row.whole("batch_size", least=1),
        line=row.line,
    )


@cache
def gavel_throughputs() -> dict[tuple[str, int], float]:
    """Steps per second on V100s by (job type, scale factor)."""
    source = files("elastic_tfjob.simulation") / "data" / "gavel_isolated_throughputs.csv.gz"
    with source.open("rb") as packed, gzip.open(packed, "rt") as lines:
        return {
            (row["job_type"], int(row["scale_factor"])): float(row["steps_per_s"])
            for row in csv.DictReader(lines)
            if row["gpu_type"] == "v100"
        }


def parse_gavel(row: Row) -> WorkloadJob:
    scale, kind = row.whole("scale_factor", least=1), row.text("job_type")
    steps = row.number("total_steps", above=0)
    rate = gavel_throughputs().get((kind, scale))
    if not rate:
        raise BadValue("job_type", kind, f"has no measured speed on {scale} V100")
    return WorkloadJob(
        key=f"job-{row.line - 2:05}",
        submit_s=row.number("arrival_s", least=0),
        groups=row.groups(fixed_group(WORKER, Resources(accelerators=1), scale)),
        duration_s=steps / rate,
        total_steps=steps,
        model=kind,
        line=row.line,
    )


def parse_dl2(row: Row) -> WorkloadJob:
    name = row.text("model")
    model = MODELS.get(name)
    if model is None:
        raise BadValue("model", name, f"is none of {', '.join(MODELS)}")
    most_workers = row.maybe("max_workers", lambda c: row.whole(c, least=1), DL2_MOST)
    most_ps = row.maybe("max_ps", lambda c: row.whole(c, least=1), DL2_MOST)
    return WorkloadJob(
        key=row.text("job_id"),
        submit_s=row.number("arrival_slot", least=0) * DL2_SLOT_S,
        groups=row.groups(
            ReplicaGroup(PS, Resources(cpu=2000), 1, 1, most_ps),
            ReplicaGroup(WORKER, Resources(cpu=2000, accelerators=int(model.accelerator)), 1, 1, most_workers),
        ),
        total_steps=row.number("epochs", above=0) * model.epoch,
        model=name,
        line=row.line,
    )


FORMATS: dict[str, Format] = {
    format_.name: format_
    for format_ in (
        Format(
            "jobs",
            ("job_id", "submit_s", "duration_s", "num_gpus|num_gpu"),
            (
                *("num_workers", "num_ps", "min_workers", "max_workers", "min_ps", "max_ps"),
                *("cpus", "memory_gib", "ps_cpus", "ps_memory_gib", "cpu_demand"),
                *("num_fixed", "fixed_cpus", "fixed_memory_gib"),
                *("deadline_s", "estimated_s", "priority", "model|model_name", "batch_size", "steps|num_iteration"),
                *("loanable", "loss_b0", "loss_b1", "loss_b2"),
            ),
            parse_jobs,
        ),
        Format(
            "elasticflow",
            (
                *("job_id", "submit_time|submission_time", "iteration|num_iteration", "model_name", "ddl|deadline"),
                *("batch_size", "num_gpu"),
            ),
            ("duration",),
            parse_elasticflow,
        ),
        Format(
            "chronus",
            ("job_id", "num_gpu", "submit_time", "duration", "expect_time_list", "best_effort", "model_name"),
            (),
            parse_chronus,
        ),
        Format("pollux", ("name", "time", "application", "num_replicas", "batch_size"), (), parse_pollux),
        Format("gavel", ("job_type", "total_steps", "scale_factor", "arrival_s"), (), parse_gavel),
        Format("dl2", ("job_id", "arrival_slot", "model", "epochs"), ("max_workers", "max_ps"), parse_dl2),
    )
}


def matches(format_: Format, header: list[str]) -> bool:
    return all(any(name in header for name in column.split("|")) for column in format_.required)


def read_csv(path: Path, format_name: str = "auto", *, skip_bad: bool = False) -> tuple[Workload, list[BadRow]]:
    """The workload in a CSV file (gzip if it ends in .gz), and the rows left out.

    Raises WorkloadError when the file cannot be read or its format is not known, and for bad rows unless `skip_bad`.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as e:
        raise WorkloadError(f"{path}: cannot be read: {e}") from e
    return parse_csv(text, str(path), format_name, skip_bad=skip_bad)


def parse_csv(
    text: str, file: str, format_name: str = "auto", *, skip_bad: bool = False
) -> tuple[Workload, list[BadRow]]:
    reader = csv.DictReader(io.StringIO(text), restkey="(more)")
    header = [name.strip() for name in reader.fieldnames or []]
    reader.fieldnames = header
    format_ = _format(header, format_name, file)
    jobs: list[WorkloadJob] = []
    bad: list[BadRow] = []
    seen: dict[str, int] = {}
    for job_or_bad in _rows(reader, format_, file):
        if isinstance(job_or_bad, BadRow):
            bad.append(job_or_bad)
        elif job_or_bad.key in seen:
            first = seen[job_or_bad.key]
            bad.append(
                BadRow(file, job_or_bad.line, format_.required[0], job_or_bad.key, f"is already in line {first}")
            )
        else:
            seen[job_or_bad.key] = job_or_bad.line
            jobs.append(job_or_bad)
    if bad and not skip_bad:
        shown = "\n".join(f"  {row}" for row in bad[:20])
        more = f"\n  ... and {len(bad) - 20} more" if len(bad) > 20 else ""
        raise WorkloadError(
            f"{len(bad)} bad row(s), nothing was simulated (mend them, or leave them out with --skip-bad):\n"
            + shown
            + more
        )
    if not jobs:
        raise WorkloadError(f"{file}: no jobs in it")
    return Workload(Path(file).name, format_.name, tuple(jobs)), bad


def _rows(reader: "csv.DictReader[str]", format_: Format, file: str) -> Iterator[WorkloadJob | BadRow]:
    shared: dict[object, tuple[ReplicaGroup, ...]] = {}
    columns = len(reader.fieldnames or [])
    for values in reader:
        line = reader.line_num
        if "(more)" in values:
            extra: object = values.pop("(more)")
            yield BadRow(
                file, line, "(beyond the last)", str(extra), f"comes after the {columns} columns of the header"
            )
            continue
        try:
            yield format_.parse(Row(values, line, shared))
        except BadValue as e:
            yield BadRow(file, line, e.column, e.value, e.wrong)


def _format(header: list[str], name: str, file: str) -> Format:
    if name != "auto":
        format_ = FORMATS[name]
        missing = [c for c in format_.required if not any(n in header for n in c.split("|"))]
        if missing:
            raise WorkloadError(
                f"{file}:1: format {name} needs column(s) {', '.join(missing)}; the header has {', '.join(header)}"
            )
        return format_
    for format_ in FORMATS.values():
        if matches(format_, header):
            return format_
    known = "\n".join(f"  {f.name}: {', '.join(f.required)}" for f in FORMATS.values())
    raise WorkloadError(
        f"{file}:1: no known format has this header: {', '.join(header)}\nFormats and their columns:\n{known}"
    )

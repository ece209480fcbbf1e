"""A TFJob as a row of a workload file that `simulate` reads (format `jobs`). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from elastic_tfjob.api.reading import cut
from elastic_tfjob.controller.model.deadline_status import deadline_of
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.planning.request import JobRequest
from elastic_tfjob.controller.query.rows.jobs import ReadJob, total_steps
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER
from elastic_tfjob.simulation.formats import GIB
from elastic_tfjob.speed.history import ALIKE, Conditions

__all__ = ["COLUMNS", "TraceRow", "trace_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One job; the fields are the columns. Times are seconds after the first job's creation. `duration_s` is the
    duration at the declared size, or the job's actual running time. `fixed_` columns are the mean of replicas that are
    neither workers nor PS. None: an empty cell."""

    job_id: str
    submit_s: float
    duration_s: float
    num_gpus: int
    num_workers: int
    min_workers: int
    max_workers: int
    cpus: float
    memory_gib: float
    num_ps: int = 0
    min_ps: int | None = None
    max_ps: int | None = None
    ps_cpus: float | None = None
    ps_memory_gib: float | None = None
    num_fixed: int = 0
    fixed_cpus: float | None = None
    fixed_memory_gib: float | None = None
    deadline_s: float | None = None
    estimated_s: float | None = None
    model: str = ""
    loanable: bool = False

    def cells(self) -> Sequence[str]:
        """The cells in the order of COLUMNS."""
        return ["" if (value := getattr(self, name)) is None else _cell(value) for name in COLUMNS]


COLUMNS: Final = tuple(each.name for each in fields(TraceRow))


def trace_rows(jobs: Iterable[ReadJob]) -> tuple[list[TraceRow], dict[str, str]]:
    """The rows, ordered by creation, and by name the reason for each skipped job."""
    rows: list[TraceRow] = []
    left_out: dict[str, str] = {}
    for seen in jobs:
        found = _row(seen)
        if isinstance(found, str):
            left_out["/".join(seen.job.key)] = found
        else:
            rows.append(found)
    rows.sort(key=lambda row: (row.submit_s, row.job_id))
    begin = rows[0].submit_s if rows else 0.0
    return [_after(begin, row) for row in rows], left_out


def _row(seen: ReadJob) -> TraceRow | str:
    """The row with absolute times, or why the job is skipped."""
    created, request = moment_of(seen.job.created), seen.request
    if created is None:
        return "it has no creation time"
    if request is None:
        return cut(seen.problems[0]) if seen.problems else "its spec cannot be read"
    declared = request.declared
    if not declared.get(WORKER):
        return "it has no workers"
    if request.requests.get(PS, NOTHING).accelerators:
        return "its parameter servers use accelerators, and the format has no column for that"
    took = _duration(seen, request)
    if isinstance(took, str):
        return took
    worker, workers = request.requests[WORKER], declared[WORKER]
    least, most = _around(request, WORKER)
    elasticity = request.elasticity
    row = TraceRow(
        job_id="/".join(seen.job.key),
        submit_s=created.timestamp(),
        duration_s=took,
        num_gpus=worker.accelerators * workers,
        num_workers=workers,
        min_workers=least,
        max_workers=most,
        cpus=worker.cpu_millicores / 1000,
        memory_gib=worker.memory_bytes / GIB,
        deadline_s=deadline_of(seen.job),
        estimated_s=elasticity.estimated_duration.total_seconds()
        if elasticity.estimated_duration is not None
        else None,
        model=elasticity.model or "",
        loanable=elasticity.loanable,
    )
    if ps := declared.get(PS):
        least, most = _around(request, PS)
        each = request.requests[PS]
        row = replace(
            row,
            num_ps=ps,
            min_ps=least,
            max_ps=most,
            ps_cpus=each.cpu_millicores / 1000,
            ps_memory_gib=each.memory_bytes / GIB,
        )
    others = {name: count for name, count in declared.items() if name not in (WORKER, PS) and count}
    if others:
        mean = _mean(request.requests, others)
        row = replace(
            row,
            num_fixed=sum(others.values()),
            fixed_cpus=mean.cpu_millicores / 1000,
            fixed_memory_gib=mean.memory_bytes / GIB,
        )
    return row


def _duration(seen: ReadJob, request: JobRequest) -> float | str:
    """Seconds that the job takes at its declared size, or why that is unknown."""
    state, status, declared = seen.state, seen.status, request.declared
    elasticity, steps = request.elasticity, total_steps(seen)
    if steps and state is not None:
        rate, under = state.measured.get((declared.get(PS, 0), declared[WORKER]), (0.0, Conditions()))
        # A speed with more CPU than the declared replicas request, if they share it, does not apply to them.
        requested = sum(n * request.requests[type_].cpu_millicores for type_, n in declared.items())
        if rate > 0 and under.worker_millicores * declared[WORKER] <= requested / ALIKE:
            return steps / rate
    started, ended = moment_of(status.start_time), moment_of(status.completion_time)
    if status.is_true("Failed"):
        return "it failed"
    if status.is_true("Succeeded") and started is not None and ended is not None:
        held = seen.record.executed_s or (ended - started).total_seconds()
        return held if held > 0 else "its running time is 0"
    if steps and state is not None and state.steps_per_s:
        return steps / state.steps_per_s
    if elasticity.estimated_duration is not None and elasticity.estimated_duration.total_seconds() > 0:
        return elasticity.estimated_duration.total_seconds()
    return "it has not ended, and its duration is unknown"


def _around(request: JobRequest, name: str) -> tuple[int, int]:
    """The bounds, extended to include the declared size."""
    count = request.declared[name]
    least, most = request.bounds(name)
    return max(1, min(least, count)), max(most, count)


def _mean(requests: Mapping[str, Resources], counts: Mapping[str, int]) -> Resources:
    number = sum(counts.values())
    return Resources(
        sum(requests[name].cpu_millicores * count for name, count in counts.items()) // number,
        sum(requests[name].memory_bytes * count for name, count in counts.items()) // number,
    )


def _after(begin_s: float, row: TraceRow) -> TraceRow:
    due = row.deadline_s - begin_s if row.deadline_s is not None else None
    return replace(row, submit_s=row.submit_s - begin_s, deadline_s=due)


def _cell(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.6g}" if abs(value) < 1e5 else f"{value:.0f}"
        case _:
            return str(value)

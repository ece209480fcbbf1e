"""Forecast rows: of stored forecasts, and of what-if answers, with a total for hidden jobs. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

from elastic_tfjob.api.reading import after
from elastic_tfjob.controller.model.status import format_time, moment_of
from elastic_tfjob.controller.query.rows.jobs import JobRow, ReadJob
from elastic_tfjob.scheduling.snapshot import Job as CoreJob
from elastic_tfjob.simulation.foresee import Fate, ForecastRun

__all__ = [
    "ROWS",
    "ForecastRow",
    "WhatIfOthers",
    "WhatIfRow",
    "at_time",
    "forecast_row",
    "notes",
    "others_in_sum",
    "sorted_rows",
    "what_if_row",
]

ROWS: Final = 200
"""Most rows of an answer; jobs whose end changes most come first."""
# Ends that differ by less count as equal, because times in an answer are in seconds.
_SAME_S: Final = 1.0
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """The forecasts of one job: now (without the change) and then (with it)."""

    namespace: Annotated[str, "namespace of the TFJob"]
    name: Annotated[str, "name of the TFJob"]
    state: Annotated[str, "New, Waiting or Running"]
    starts_now: Annotated[str | None, "start without the change; null: it has started, or never starts"]
    starts_then: Annotated[str | None, "start with the change"]
    ends_now: Annotated[str | None, "end without the change; null: unknown or never (see note)"]
    ends_then: Annotated[str | None, "end with the change"]
    later_s: Annotated[float | None, "seconds by which it ends later with the change; negative: earlier"]
    deadline: Annotated[str | None, "deadline of the job"]
    meets_now: Annotated[bool | None, "whether it meets its deadline without the change; null: no deadline, or unknown"]
    meets_then: Annotated[bool | None, "whether it meets its deadline with the change"]
    source: Annotated[str | None, "source of the forecast; null: its duration is unknown"]
    note: Annotated[str, "why the end is unknown, and which information is missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOthers:
    """The total for jobs of namespaces that the user may not list."""

    jobs: Annotated[int, "number of jobs"]
    earlier: Annotated[int, "number of jobs that end earlier"]
    later: Annotated[int, "number of jobs that end later"]
    later_s: Annotated[float, "total seconds by which they end later; negative: earlier"]


def what_if_row(job: CoreJob, now: ForecastRun, then: ForecastRun) -> WhatIfRow:
    """The row of a job. A job that is only in `then` is new."""
    namespace, _, name = job.key.partition("/")
    before, with_it = now.fates.get(job.key), then.fates[job.key]
    ends = [fate.finish_s if fate is not None else None for fate in (before, with_it)]
    later_s = None
    if ends[0] is not None and ends[1] is not None:
        later_s = 0.0 if abs(ends[1] - ends[0]) < _SAME_S else round(ends[1] - ends[0], 3)
    due_s = job.spec.deadline_s
    return WhatIfRow(
        namespace=namespace,
        name=name,
        state="New" if before is None else "Running" if job.placement else "Waiting",
        starts_now=at_time(before.start_s) if before is not None else None,
        starts_then=at_time(with_it.start_s),
        ends_now=at_time(ends[0]),
        ends_then=at_time(ends[1]),
        later_s=later_s,
        deadline=at_time(due_s),
        meets_now=_meets_deadline(before, due_s, now.until_s) if before is not None else None,
        meets_then=_meets_deadline(with_it, due_s, then.until_s),
        source=with_it.source,
        note=_note(job, with_it, then.until_s),
    )


def sorted_rows(rows: Iterable[WhatIfRow]) -> list[WhatIfRow]:
    """The new job first, then jobs whose end changes most, then by name."""
    return sorted(rows, key=lambda row: (row.state != "New", -abs(row.later_s or 0.0), row.namespace, row.name))


def others_in_sum(rows: Iterable[WhatIfRow], allowed: Collection[str]) -> WhatIfOthers:
    """The total for the jobs of namespaces that are not in `allowed`."""
    hidden = [row for row in rows if row.namespace not in allowed]
    later = [row.later_s for row in hidden if row.later_s]
    return WhatIfOthers(
        jobs=len(hidden),
        earlier=sum(seconds < 0 for seconds in later),
        later=sum(seconds > 0 for seconds in later),
        later_s=round(sum(later), 3),
    )


def notes(unforeseen: int, unmanaged: int, profiles: Sequence[str]) -> list[str]:
    """Notes on jobs with an unknown end, and jobs that the profile does not schedule."""
    found = []
    if unforeseen:
        found.append(
            f"the end of {unforeseen} TFJobs is unknown; the forecast assumes that they run forever (see their notes)"
        )
    if unmanaged:
        found.append(
            f"{unmanaged} TFJobs are not scheduled by the profile; the forecast assumes that their pods run forever"
        )
    if "fixed" in profiles:
        found.append(
            "profile fixed leaves placement to kube-scheduler; the forecast starts jobs in order of arrival, once "
            "they fit"
        )
    return found


def _meets_deadline(fate: Fate, due_s: float | None, until_s: float | None) -> bool | None:
    if due_s is None or fate.source is None:
        return None
    if fate.finish_s is not None:
        return fate.finish_s <= due_s
    return False if until_s is None or until_s > due_s else None


def _note(job: CoreJob, fate: Fate, until_s: float | None) -> str:
    if fate.finish_s is not None:
        return ""
    if fate.source is None:
        needs = "the annotation estimated-duration, or finished jobs of the same model in its namespace"
        if job.spec.total_steps is None:
            return f"its remaining work is unknown; it needs the annotation total-steps, {needs}"
        hint = "" if job.spec.reports else " and has no reporting sidecar (annotation inject: sidecar)"
        return f"its speed is unknown: it has not reported one{hint}; alternatives: {needs}"
    if until_s is not None:
        return f"it has not ended by {at_time(until_s)}, where the forecast was cut short"
    return (
        "it does not get the resources that it needs on the present nodes"
        if not job.placement
        else "it is stopped and never resumed"
    )


def at_time(at_s: float | None) -> str | None:
    """Unix seconds in RFC 3339 format."""
    return None if at_s is None else format_time(after(_EPOCH, at_s))


# -- Stored forecasts of a job's end and its deadline ------------------------------------------------------------------
# Nothing is computed here. The operator stores the expected end (controller/job/progress.py), slack and verdict, so
# that kubectl's columns, this API and all replicas agree.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """The forecast of a job's end, as stored last. The interval is a 90 % interval."""

    namespace: Annotated[str, "namespace of the TFJob"]
    name: Annotated[str, "name of the TFJob"]
    state: Annotated[str, "state of the job"]
    expected: Annotated[str | None, "expected end; null: unknown, or the job does not run"]
    earliest: Annotated[str | None, "start of the 90 % interval"]
    latest: Annotated[str | None, "end of the 90 % interval; null: open-ended"]
    deadline: Annotated[str | None, "deadline of the job"]
    slack_s: Annotated[float | None, "seconds from the expected end to the deadline; negative: late"]
    meets: Annotated[bool | None, "whether the expected end is before the deadline"]
    at_risk: Annotated[bool, "whether the expected end is before the deadline, but the end of the interval is not"]
    source: Annotated[str | None, "source of the speed"]


def forecast_row(seen: ReadJob, row: JobRow) -> ForecastRow:
    """The forecast, as stored last."""
    state = seen.state if row.state in ("Running", "Rescaling") and row.eta is not None else None
    meets = _meets(row) if state is not None else None
    latest, due = moment_of(state.eta_latest) if state is not None else None, moment_of(row.deadline)
    return ForecastRow(
        namespace=row.namespace,
        name=row.name,
        state=row.state,
        expected=row.eta if state is not None else None,
        earliest=state.eta_earliest if state is not None else None,
        latest=state.eta_latest if state is not None else None,
        deadline=row.deadline,
        slack_s=row.slack_s if state is not None else None,
        meets=meets,
        at_risk=bool(meets) and latest is not None and due is not None and latest > due,
        source=state.eta_source if state is not None else None,
    )


def _meets(row: JobRow) -> bool | None:
    """Whether the job meets its deadline: from the verdict, or from the slack while there is no verdict; None:
    unknown."""
    if row.verdict is not None and row.verdict != "unknown":
        return row.verdict in ("on-time", "met")
    return None if row.slack_s is None else row.slack_s >= 0

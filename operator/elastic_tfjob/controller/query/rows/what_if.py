"""What would become of jobs, without and with a change: one row each, and others in sum. Pure."""

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
"""Rows of an answer: those that change most come first."""
# Ends that differ by less are the same to people: the clock of an answer has seconds.
_SAME_S: Final = 1.0
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """One job, as things are now and then, with the change."""

    namespace: Annotated[str, "namespace of the TFJob"]
    name: Annotated[str, "name of the TFJob"]
    state: Annotated[str, "New, Waiting or Running"]
    starts_now: Annotated[str | None, "when it starts as things are; null: it has started, or does not"]
    starts_then: Annotated[str | None, "when it starts with the change"]
    ends_now: Annotated[str | None, "when it ends as things are; null: not known, or it does not (see note)"]
    ends_then: Annotated[str | None, "when it ends with the change"]
    later_s: Annotated[float | None, "seconds by which it ends later with the change; below 0: earlier"]
    deadline: Annotated[str | None, "when it shall have ended"]
    meets_now: Annotated[bool | None, "whether it meets its deadline as things are; null: no deadline, or not known"]
    meets_then: Annotated[bool | None, "whether it meets its deadline with the change"]
    source: Annotated[str | None, "what its end is known from; null: nobody knows how long it takes"]
    note: Annotated[str, "why an end is missing, and what would make it known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOthers:
    """Jobs of namespaces that the asker may not list, in sum."""

    jobs: Annotated[int, "how many there are"]
    earlier: Annotated[int, "how many of them end earlier"]
    later: Annotated[int, "how many of them end later"]
    later_s: Annotated[float, "seconds by which all of them together end later; below 0: earlier"]


def what_if_row(job: CoreJob, now: ForecastRun, then: ForecastRun) -> WhatIfRow:
    """The row of a job, which is new where it is in `then` alone."""
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
    """New first, then those whose end changes most, then by name."""
    return sorted(rows, key=lambda row: (row.state != "New", -abs(row.later_s or 0.0), row.namespace, row.name))


def others_in_sum(rows: Iterable[WhatIfRow], allowed: Collection[str]) -> WhatIfOthers:
    """The jobs of all namespaces but these."""
    hidden = [row for row in rows if row.namespace not in allowed]
    later = [row.later_s for row in hidden if row.later_s]
    return WhatIfOthers(
        jobs=len(hidden),
        earlier=sum(seconds < 0 for seconds in later),
        later=sum(seconds > 0 for seconds in later),
        later_s=round(sum(later), 3),
    )


def notes(unforeseen: int, unmanaged: int, profiles: Sequence[str]) -> list[str]:
    """What the whole answer leaves out: jobs whose end nobody knows, and jobs that the profile does not decide for."""
    found = []
    if unforeseen:
        found.append(
            f"{unforeseen} TFJobs end nobody knows when, and hold here for ever what they hold (see their notes)"
        )
    if unmanaged:
        found.append(
            f"{unmanaged} TFJobs are not decided for by the profile: they hold here for ever what their pods take now"
        )
    if "fixed" in profiles:
        found.append("profile fixed leaves nodes to kube-scheduler: here jobs start by arrival, as soon as they fit")
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
        needs = "a duration (annotation estimated-duration), or finished jobs of the same model in its namespace"
        if job.spec.total_steps is None:
            return f"how much is left of it is not known: it needs the annotation total-steps, {needs}"
        hint = "" if job.spec.reports else ", and nothing in its pods does (annotation inject: sidecar)"
        return f"how fast it is is not known: it has not reported a speed{hint}; else it needs {needs}"
    if until_s is not None:
        return f"it has not ended by {at_time(until_s)}, beyond which there was no time to look"
    return "it is never given what it needs" if not job.placement else "it is stopped, and never resumed"


def at_time(at_s: float | None) -> str | None:
    """Unix seconds as people read them."""
    return None if at_s is None else format_time(after(_EPOCH, at_s))


# -- When a job is expected to finish, and whether that is by its deadline ---------------------------------------------
# Nothing is computed here: the expected end is what the operator stored (controller/job/progress.py), slack and verdict
# are what it judged, so that columns of kubectl, this API and any replica that answers say the same.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """What was expected of a job when that was stored last. The interval holds nine of ten finishes."""

    namespace: Annotated[str, "namespace of the TFJob"]
    name: Annotated[str, "name of the TFJob"]
    state: Annotated[str, "what it does, in one word"]
    expected: Annotated[str | None, "expected end; null: not known, or it does not run"]
    earliest: Annotated[str | None, "begin of the interval"]
    latest: Annotated[str | None, "end of the interval; null: there is none"]
    deadline: Annotated[str | None, "when it shall have ended"]
    slack_s: Annotated[float | None, "seconds from the expected end to the deadline, as judged last; below 0: too late"]
    meets: Annotated[bool | None, "whether it is expected to end by the deadline"]
    at_risk: Annotated[bool, "whether it is, and the end of the interval is not"]
    source: Annotated[str | None, "what the speed is known from"]


def forecast_row(seen: ReadJob, row: JobRow) -> ForecastRow:
    """The forecast, as it was stored last."""
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
    """As the verdict says; before there is one, as the slack does."""
    if row.verdict is not None and row.verdict != "unknown":
        return row.verdict in ("on-time", "met")
    return None if row.slack_s is None else row.slack_s >= 0

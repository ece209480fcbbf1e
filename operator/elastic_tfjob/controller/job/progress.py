"""Training figures in a job's state: step, speed by size, and expected end. Pure."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from math import isfinite
from typing import Final, NamedTuple

from elastic_tfjob.api.reading import MAX_STEPS, after
from elastic_tfjob.controller.job.decision import Count
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.state import Outcome, StoredState
from elastic_tfjob.controller.model.status import format_time, moment_of
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.scheduling.forecasts import UNKNOWN, Forecast, forecast
from elastic_tfjob.scheduling.plan import Cause
from elastic_tfjob.scheduling.snapshot import Job, JobSpec
from elastic_tfjob.speed.history import Conditions, sighted
from elastic_tfjob.speed.model import SETTLED_S
from elastic_tfjob.speed.optimus import believe

__all__ = ["NOT_KNOWN", "Ends", "ends", "with_outcome"]


# -- When a job's training is expected to end, as it is shown to users -------------------------------------------------
# Shown by `kubectl get`, the query API and `explain`. The end is that of the last plan, which also decides about the
# job's deadline. If no plan knows the job (the profile is `fixed`, or decides for other jobs), or the plan has no end
# for it yet, the same forecast is made for the job alone.


class Ends(NamedTuple):
    """The expected end and its 90 % interval, in RFC 3339, and the source of the speed; None: unknown."""

    eta: str | None = None
    earliest: str | None = None
    latest: str | None = None
    source: str | None = None


NOT_KNOWN: Final = Ends()


def ends(
    state: StoredState, report: Report | None, total_steps: int | None, now: datetime, planned: Forecast | None
) -> Ends:
    """Returns the expected end. `planned` is the last plan's forecast for the job."""
    forecast = planned
    if forecast is None or forecast.finish is None or not isfinite(forecast.finish.expected_s):
        forecast = _unplanned_forecast(state, report, total_steps, now)
    finish = forecast.finish
    if finish is None:
        return NOT_KNOWN
    latest = _time(now, finish.latest_s) if isfinite(finish.latest_s) else None
    return Ends(_time(now, finish.expected_s), _time(now, finish.earliest_s), latest, forecast.source)


def _unplanned_forecast(state: StoredState, report: Report | None, total_steps: int | None, now: datetime) -> Forecast:
    """Returns the forecast from the job's own report. During a resize it uses the speed that is expected at the coming
    size."""
    if total_steps is None or report is None or report.step is None:
        return UNKNOWN
    now_s = now.timestamp()
    spec = JobSpec("", 0.0, (), total_steps=float(min(total_steps, MAX_STEPS)))
    job = Job(
        spec,
        {type_: ("",) * count for type_, count in state.replicas.items()},
        steps=float(report.step),
        observed_s=now_s,
        steps_per_s=report.steps_per_s or 0.0,
        speed=believe({size: rate for size, (rate, _) in state.measured.items()}),
    )
    return forecast(job, now_s, counts=state.next.replicas if state.next is not None else None)


def _time(now: datetime, at_s: float) -> str:
    return format_time(after(now, at_s - now.timestamp()))


# Seconds between updates of the figures in a job's state.
NUMBERS_S: Final = 60.0


def with_numbers(
    before: StoredState,
    state: StoredState,
    report: Report | None,
    total_steps: int | None,
    now: datetime,
    *,
    planned: Callable[[], Forecast | None],
    under: Callable[[], Conditions],
) -> StoredState:
    """Returns the state with the chief's newest figures, if an update is due or the phase differs from that of
    `before`.

    `total_steps` is the user's figure, else the program's. `planned` returns the last plan's forecast for the job,
    `under` the conditions of its speed. A size's speed is measured in phase Stable: while the programs of a coming size
    start and use CPU, the running one is slower.
    """
    if state.phase == "Waiting" != before.phase:
        return with_end(state, NOT_KNOWN)  # it is unknown when the job resumes
    if report is None or report.step is None:
        if state.phase == before.phase:
            return state
        end = ends(state, report, total_steps, now, planned())
        return with_end(state, end) if end.eta is not None else state
    refreshed = moment_of(state.metrics_at)
    due = refreshed is None or (now - refreshed).total_seconds() >= NUMBERS_S
    if tells_numbers(state, report) or not (due or before.phase != state.phase):
        return state
    total = total_steps or report.total_steps
    state = with_speed(before, state, report, under)
    state = with_end(state, ends(state, report, total, now, planned()))
    return replace(
        state,
        step=report.step,
        total_steps=total,
        steps_per_s=report.steps_per_s,
        starts=report.starts,
        metrics_at=format_time(now),
    )


def with_speed(before: StoredState, state: StoredState, report: Report, under: Callable[[], Conditions]) -> StoredState:
    """Returns the state with the speed of its size, if the report has one."""
    of_size = report.speed_of(state.generation) if before.phase == "Stable" else None
    if not of_size:
        return state
    ps, workers = state.replicas.get("PS", 0), state.replicas.get("Worker", 0)
    size, found = f"{ps}/{workers}", sighted(state.measured.get((ps, workers)), of_size, under())
    return replace(
        state,
        speeds={**state.speeds, size: round(of_size, 3)},
        speed_conditions={**state.speed_conditions, size: found},
    )


def with_end(state: StoredState, end: Ends) -> StoredState:
    """Returns the state with this expected end."""
    return replace(state, eta=end.eta, eta_earliest=end.earliest, eta_latest=end.latest, eta_source=end.source)


def tells_numbers(state: StoredState, report: Report | None) -> bool:
    """Whether the state has the chief's newest figures."""
    if report is None or report.step is None:
        return True
    return (state.step, state.steps_per_s) == (report.step, report.steps_per_s)


# -- The outcome of a change: the speed that its target expected, and the measured one ---------------------------------

MOST_RATIO = 10.0
"""Larger ratios are counted as this one, so that a single wrong expectation does not dominate the sum of a metric."""


def with_outcome(
    state: StoredState, target: Target | None, report: Report | None, now: datetime
) -> tuple[StoredState, tuple[Count, ...]]:
    """Returns the state with the outcome of its size, and what to count for it. This happens once, when a Stable job
    has trained at that size for SETTLED_S. Later changes of CPU are not compared, as they have no generation of their
    own."""
    if target is None or target.expects is None or report is None or target.generation != state.generation:
        return state, ()
    since = moment_of(state.since)
    if state.phase != "Stable" or not state.replicas or state.generation in state.outcomes or since is None:
        return state, ()
    measured = report.speed_of(state.generation)
    if not measured or (now - since).total_seconds() < SETTLED_S:
        return state, ()
    outcome = Outcome(target.expects, measured)
    updated = replace(state, outcomes={**state.outcomes, state.generation: outcome})
    return updated, (Count("speed_ratio", min(outcome.ratio, MOST_RATIO), _cause(state)),)


def _cause(state: StoredState) -> Cause:
    """Returns the cause of the job's present size."""
    for done in reversed(state.history):
        if done.generation == state.generation:
            return state.cause(done)
    return "resume" if state.generation else "start"

"""The figures of a job's training in its state: step, speed by size, and when it is expected to end. Pure."""

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
from elastic_tfjob.speed.model import SETTLED_S
from elastic_tfjob.speed.optimus import believe

__all__ = ["NOT_KNOWN", "Ends", "ends", "with_outcome"]


# -- When a job's training is expected to end, as everybody is told it -------------------------------------------------
# `kubectl get`, the query API, `explain`.
#
# It is what the last plan expects, by which the job's deadline is judged, too. Of a job that no plan knows (the profile
# is `fixed`, or decides for other jobs), or whose end the plan cannot tell yet, it is the same forecast of it alone.


class Ends(NamedTuple):
    """The expected end and its 90 % interval, in RFC 3339, and what the speed is known from; None: not known."""

    eta: str | None = None
    earliest: str | None = None
    latest: str | None = None
    source: str | None = None


NOT_KNOWN: Final = Ends()


def ends(
    state: StoredState, report: Report | None, total_steps: int | None, now: datetime, planned: Forecast | None
) -> Ends:
    """`planned` is what the last plan expects of the job."""
    forecast = planned
    if forecast is None or forecast.finish is None or not isfinite(forecast.finish.expected_s):
        forecast = _alone(state, report, total_steps, now)
    finish = forecast.finish
    if finish is None:
        return NOT_KNOWN
    latest = _time(now, finish.latest_s) if isfinite(finish.latest_s) else None
    return Ends(_time(now, finish.expected_s), _time(now, finish.earliest_s), latest, forecast.source)


def _alone(state: StoredState, report: Report | None, total_steps: int | None, now: datetime) -> Forecast:
    """By what the job says of itself. On its way to another size: at the speed that it is expected to have there."""
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


# How often the figures in a job's state are refreshed.
NUMBERS_S: Final = 60.0


def with_numbers(
    before: StoredState,
    state: StoredState,
    report: Report | None,
    total_steps: int | None,
    now: datetime,
    *,
    planned: Callable[[], Forecast | None],
) -> StoredState:
    """The state with the chief's newest figures, if it is time for them or it has another phase than `before`.

    `total_steps`: what the user said; else what the program reports. `planned`: what the last plan expects of the job.
    A size's speed is that of a Stable job: beside the programs of a coming size, which take CPU to start, the running
    one is slower.
    """
    if state.phase == "Waiting" != before.phase:
        return with_end(state, NOT_KNOWN)  # when it goes on is not known
    if report is None or report.step is None:
        if state.phase == before.phase:
            return state
        end = ends(state, report, total_steps, now, planned())
        return with_end(state, end) if end.eta is not None else state
    refreshed = moment_of(state.numbers_at)
    due = refreshed is None or (now - refreshed).total_seconds() >= NUMBERS_S
    if tells_numbers(state, report) or not (due or before.phase != state.phase):
        return state
    total = total_steps or report.total_steps
    state = with_speed(before, state, report)
    state = with_end(state, ends(state, report, total, now, planned()))
    return replace(
        state,
        step=report.step,
        total_steps=total,
        steps_per_s=report.steps_per_s,
        starts=report.starts,
        numbers_at=format_time(now),
    )


def with_speed(before: StoredState, state: StoredState, report: Report) -> StoredState:
    """The state with the speed of its size, where the report tells one."""
    of_size = report.speed_of(state.generation) if before.phase == "Stable" else None
    if not of_size:
        return state
    speeds, speed_cpu = dict(state.speeds), dict(state.speed_cpu)
    size = f"{state.replicas.get('PS', 0)}/{state.replicas.get('Worker', 0)}"
    speeds[size] = round(of_size, 3)
    speed_cpu.pop(size, None)
    if lent := before.cpu.get("Worker"):
        speed_cpu[size] = sum(lent) // len(lent)
    return replace(state, speeds=speeds, speed_cpu=speed_cpu)


def with_end(state: StoredState, end: Ends) -> StoredState:
    """The state with this expected end."""
    return replace(state, eta=end.eta, eta_earliest=end.earliest, eta_latest=end.latest, eta_source=end.source)


def tells_numbers(state: StoredState, report: Report | None) -> bool:
    """Whether the state has the chief's newest figures."""
    if report is None or report.step is None:
        return True
    return (state.step, state.steps_per_s) == (report.step, report.steps_per_s)


# -- What came of a change: the speed that its target expected beside the one that the job has -------------------------

MOST_RATIO = 10.0
"""What is counted of larger ones, so that one odd expectation is not the whole sum of a metric."""


def with_outcome(
    state: StoredState, target: Target | None, report: Report | None, now: datetime
) -> tuple[StoredState, tuple[Count, ...]]:
    """The state with what came of its size, once: when a Stable job has trained there for SETTLED_S; and what to count
    of it. CPU that changes after that is not compared: it has no generation of its own."""
    if target is None or target.expects is None or report is None or target.generation != state.generation:
        return state, ()
    since = moment_of(state.since)
    if state.phase != "Stable" or not state.replicas or state.generation in state.outcomes or since is None:
        return state, ()
    measured = report.speed_of(state.generation)
    if not measured or (now - since).total_seconds() < SETTLED_S:
        return state, ()
    outcome = Outcome(target.expects, measured)
    told = replace(state, outcomes={**state.outcomes, state.generation: outcome})
    return told, (Count("speed_ratio", min(outcome.ratio, MOST_RATIO), _cause(state)),)


def _cause(state: StoredState) -> Cause:
    """Why the job has its size."""
    for done in reversed(state.history):
        if done.generation == state.generation:
            return state.cause(done)
    return "resume" if state.generation else "start"

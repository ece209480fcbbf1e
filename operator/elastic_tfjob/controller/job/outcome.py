"""What came of a change: the speed that its target expected beside the one that the job has. Pure."""

from dataclasses import replace
from datetime import datetime

from elastic_tfjob.controller.job.decision import Count
from elastic_tfjob.controller.objects.outcomes import Outcome
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.state import State
from elastic_tfjob.controller.objects.status import moment_of
from elastic_tfjob.controller.objects.target import Target
from elastic_tfjob.scheduling.causes import Cause
from elastic_tfjob.speed.calibration import SETTLED_S

__all__ = ["with_outcome"]

MOST_RATIO = 10.0
"""What is counted of larger ones, so that one odd expectation is not the whole sum of a metric."""


def with_outcome(
    state: State, target: Target | None, report: Report | None, now: datetime
) -> tuple[State, tuple[Count, ...]]:
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


def _cause(state: State) -> Cause:
    """Why the job has its size."""
    for done in reversed(state.history):
        if done.generation == state.generation:
            return state.cause(done)
    return "resume" if state.generation else "start"

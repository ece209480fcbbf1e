"""When a job's training is expected to end, as everybody is told it: `kubectl get`, the query API, `explain`. Pure.

It is what the last plan expects, by which the job's deadline is judged, too. Of a job that no plan knows (the profile
is `fixed`, or decides for other jobs), or whose end the plan cannot tell yet, it is the same forecast of it alone.
"""

from datetime import datetime
from math import isfinite
from typing import Final, NamedTuple

from elastic_tfjob.api.limits import MAX_STEPS, after
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.state import State
from elastic_tfjob.controller.objects.status import format_time
from elastic_tfjob.scheduling.forecasts import UNKNOWN, Forecast, forecast
from elastic_tfjob.scheduling.snapshot import Job, JobSpec
from elastic_tfjob.speed.optimus import believe

__all__ = ["NOT_KNOWN", "Ends", "ends"]


class Ends(NamedTuple):
    """The expected end and its 90 % interval, in RFC 3339, and what the speed is known from; None: not known."""

    eta: str | None = None
    earliest: str | None = None
    latest: str | None = None
    source: str | None = None


NOT_KNOWN: Final = Ends()


def ends(state: State, report: Report | None, total_steps: int | None, now: datetime, planned: Forecast | None) -> Ends:
    """`planned` is what the last plan expects of the job."""
    forecast = planned
    if forecast is None or forecast.finish is None or not isfinite(forecast.finish.expected_s):
        forecast = _alone(state, report, total_steps, now)
    finish = forecast.finish
    if finish is None:
        return NOT_KNOWN
    latest = _time(now, finish.latest_s) if isfinite(finish.latest_s) else None
    return Ends(_time(now, finish.expected_s), _time(now, finish.earliest_s), latest, forecast.source)


def _alone(state: State, report: Report | None, total_steps: int | None, now: datetime) -> Forecast:
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

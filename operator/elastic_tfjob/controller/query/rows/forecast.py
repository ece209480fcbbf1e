"""When a job is expected to finish, and whether that is by its deadline. Pure."""

from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Annotated

from elastic_tfjob.api.limits import after
from elastic_tfjob.controller.objects.status import format_time
from elastic_tfjob.controller.query.rows.job import JobRow, Seen
from elastic_tfjob.controller.schedule.core_job import progress, seconds, speed
from elastic_tfjob.scheduling.forecasts import forecast
from elastic_tfjob.scheduling.snapshot import Job, JobSpec

__all__ = ["ForecastRow", "forecast_row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """What is expected of a job at the size that it has, or goes to. The interval holds nine of ten finishes."""

    namespace: Annotated[str, "namespace of the TFJob"]
    name: Annotated[str, "name of the TFJob"]
    state: Annotated[str, "what it does, in one word"]
    expected: Annotated[str | None, "expected end; null: its steps or its speed are not known, or it waits"]
    earliest: Annotated[str | None, "begin of the interval"]
    latest: Annotated[str | None, "end of the interval; null: there is none"]
    deadline: Annotated[str | None, "when it shall have ended"]
    slack_s: Annotated[float | None, "seconds from the expected end to the deadline; below 0: too late"]
    meets: Annotated[bool | None, "whether the expected end is by the deadline"]
    at_risk: Annotated[bool, "whether it is, and the end of the interval is not"]
    source: Annotated[str | None, "what the speed is known from"]


def forecast_row(seen: Seen, row: JobRow, now: datetime) -> ForecastRow:
    """The forecast at this moment."""
    now_s, state, request = now.timestamp(), seen.state, seen.request
    nothing = ForecastRow(
        namespace=row.namespace,
        name=row.name,
        state=row.state,
        expected=None,
        earliest=None,
        latest=None,
        deadline=row.deadline,
        slack_s=None,
        meets=None,
        at_risk=False,
        source=None,
    )
    if state is None or request is None or row.state not in ("Running", "Rescaling"):
        return nothing
    steps, observed_s, rate = progress(state, None, now_s)
    job = Job(
        JobSpec(
            "",
            0.0,
            (),
            deadline_s=seconds(row.deadline),
            total_steps=float(row.total_steps) if row.total_steps is not None else None,
        ),
        {name: ("",) * count for name, count in state.replicas.items() if count},
        steps=steps,
        observed_s=observed_s,
        steps_per_s=rate,
        speed=speed(request, state, None, state.replicas, {}),
    )
    found = forecast(job, now_s, counts=state.next.replicas if state.next is not None else None)
    if found.finish is None or not isfinite(found.finish.expected_s):
        return nothing
    latest = found.finish.latest_s
    return ForecastRow(
        namespace=row.namespace,
        name=row.name,
        state=row.state,
        expected=_time(now, found.finish.expected_s),
        earliest=_time(now, found.finish.earliest_s),
        latest=_time(now, latest) if isfinite(latest) else None,
        deadline=row.deadline,
        slack_s=found.slack_s,
        meets=found.meets,
        at_risk=found.at_risk,
        source=found.source,
    )


def _time(now: datetime, at_s: float) -> str:
    return format_time(after(now, at_s - now.timestamp()))

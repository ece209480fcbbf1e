"""When a job's training is expected to end, for `kubectl get tfjob`: the forecast of scheduling, of one job. Pure."""

from datetime import datetime

from elastic_tfjob.api.limits import MAX_STEPS, after
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.state import State
from elastic_tfjob.controller.objects.status import format_time
from elastic_tfjob.scheduling.forecasts import forecast
from elastic_tfjob.scheduling.snapshot import Job, JobSpec
from elastic_tfjob.speed.optimus import believe

__all__ = ["eta"]


def eta(state: State, report: Report, total_steps: int | None, now: datetime) -> str | None:
    """The time in RFC 3339; None where the work or the speed is not known. On its way to another size: at the speed
    that the job is expected to have there."""
    if total_steps is None or report.step is None:
        return None
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
    coming = state.next.replicas if state.next is not None else None
    finish = forecast(job, now_s, counts=coming).finish
    return None if finish is None else format_time(after(now, finish.expected_s - now_s))

"""Least attained service, discretised."""

from bisect import bisect_right
from dataclasses import dataclass

from elastic_tfjob.scheduling.profile import OrderKey
from elastic_tfjob.scheduling.snapshot import Job


@dataclass(frozen=True, slots=True)
class LeastAttainedService:
    """Tiresias' discretised 2D-LAS (Gu et al., NSDI'19, section 3.2): a job sinks one queue at each threshold of
    attained service (accelerator-seconds; replica-seconds without accelerators); queues are first in, first out.

    `running_first` puts the running jobs of a queue before its waiting ones, as Tiresias' simulator does.
    `promote_knob` k > 0 brings a waiting job back to the first queue once it has waited k times as long as it ran
    (PROMOTEKNOB); 0 turns that off.
    """

    thresholds: tuple[float, ...] = (3250.0, 7200.0)
    running_first: bool = False
    promote_knob: float = 0.0

    @property
    def steady(self) -> bool:
        return self.promote_knob == 0

    def promotes(self, job: Job, now: float) -> bool:
        """Whether this waiting job has starved long enough to start again in the first queue."""
        return (
            self.promote_knob > 0
            and not job.placement
            and job.service > self.thresholds[0]
            and now - job.since_s >= self.promote_knob * job.executed_s
        )

    def key(self, job: Job, now: float) -> OrderKey:
        level = 0 if self.promotes(job, now) else bisect_right(self.thresholds, job.service_at(now))
        return (level, 0.0 if self.running_first and job.placement else 1.0)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        if not job.placement:
            if self.promote_knob > 0 and job.service > self.thresholds[0] and not self.promotes(job, now):
                return job.since_s + self.promote_knob * job.executed_s
            return None
        service, held = job.service_at(now), job.held
        level = bisect_right(self.thresholds, service)
        if level >= len(self.thresholds) or not held:
            return None
        # From `since_s`, not `now`: the sum must land on the threshold, not a rounding error before it.
        return job.since_s + (self.thresholds[level] - job.service) / held

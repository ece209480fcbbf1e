"""Shortest job first."""

from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.profile import OrderKey
from elastic_tfjob.scheduling.snapshot import Job

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class ShortestJobFirst:
    """By expected run time at the declared size; jobs of unknown length come last, by arrival."""

    drift: float = 0.0

    def key(self, job: Job, now: float) -> OrderKey:
        duration = job.spec.duration_s
        if duration is None and job.spec.total_steps is not None and job.speed is not None:
            rate = job.speed.steps_per_s(job.spec.declared)
            duration = job.spec.total_steps / rate if rate else None
        return (inf if duration is None else duration,)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class AgedShortestFirst(ShortestJobFirst):
    """By what is left of the run time at the declared size, longest last; but a job that has come `patience` times its
    own run time ago, and at least a day, goes before all that have not, the first come first: nobody starves.
    """

    patience: float = 10.0

    def key(self, job: Job, now: float) -> OrderKey:
        if not job.placement and now >= self.aged_s(job):
            return (-1.0, job.spec.arrival_s)
        return (self.left_s(job), job.spec.arrival_s)

    def left_s(self, job: Job) -> float:
        """Of its run time, as its checkpoint stands; unknown: longest of all."""
        (duration,) = ShortestJobFirst.key(self, job, 0.0)
        total = job.spec.total_steps
        return max(0.0, duration * (1 - job.steps / total)) if total and duration < inf else duration

    def aged_s(self, job: Job) -> float:
        """When the job goes before those that are younger."""
        (duration,) = ShortestJobFirst.key(self, job, 0.0)
        return job.spec.arrival_s + max(DAY_S, self.patience * (duration if duration < inf else DAY_S))

    def next_jump_s(self, job: Job, now: float) -> float | None:
        at = self.aged_s(job)
        return at if at > now and not job.placement else None

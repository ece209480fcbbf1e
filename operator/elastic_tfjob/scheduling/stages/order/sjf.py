"""Shortest job first."""

from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.profile import OrderKey
from elastic_tfjob.scheduling.snapshot import Job


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

"""Earliest deadline first."""

from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.profile import OrderKey
from elastic_tfjob.scheduling.snapshot import Job


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst:
    """By absolute deadline (Liu and Layland, JACM 1973); jobs without one come last."""

    drift: float = 0.0

    def key(self, job: Job, now: float) -> OrderKey:
        return (inf if job.spec.deadline_s is None else job.spec.deadline_s,)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        return None

"""Which waiting job first."""

from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.profile import OrderKey
from elastic_tfjob.scheduling.profiles.deadline import EarliestDeadline
from elastic_tfjob.scheduling.snapshot import Job

__all__ = ["EarliestDeadlineToCome"]


@dataclass(frozen=True, slots=True)
class EarliestDeadlineToCome:
    """By deadline; one that has passed counts no more, or whoever sets a deadline of a second would be first for ever.
    A round is due when a first start has settled."""

    settle_s: float
    drift: float = 0.0

    def key(self, job: Job, now: float) -> OrderKey:
        by = job.spec.deadline_s
        return (by if by is not None and by > now else inf,)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        settled, by = EarliestDeadline(self.settle_s).next_jump_s(job, now), job.spec.deadline_s
        times = [at for at in (settled, by) if at is not None and now < at < inf]
        return min(times, default=None)

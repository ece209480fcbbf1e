"""Sizes whose speed nobody knows are tried, so that a policy which goes by speed has something to go by."""

from dataclasses import dataclass
from typing import Final

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job
from elastic_tfjob.speed.optimus import OnlineSpeed
from elastic_tfjob.speed.prediction import size_of

__all__ = ["LEAST_COOLDOWN_S", "TrySizes"]

LEAST_COOLDOWN_S: Final = 60.0
"""So long a job has to keep a size for its speed to be measured, and for what the start of a replica costs to be of no
weight; a profile that takes it away sooner tries nothing. With 20 s, twelve jobs of some 120 s took half as long again
(docs/benchmarks.md)."""
PAYS: Final = 5.0
"""A job tries a size if, as fast as it is now, it takes so many cooldowns more: what it finds out has to be of use."""
AT_ONCE: Final = 8
"""Sizes that are looked for room for in one round: of many jobs, the others are for the rounds that follow."""
TRIES: Final = "tries"


@dataclass(frozen=True, slots=True)
class TrySizes:
    """A last step of a round in which no job waits: a running job whose speed was measured where it is, and at fewer
    than `sizes` sizes, gets one worker or PS more, to a size that was not measured. The profile's cooldown keeps it
    there; then the policy decides by what was measured. A job tries at most `sizes` times, whatever comes of it. In a
    simulation jobs are measured before they start (`sample_points`), or the policy is told, and nothing is tried.
    """

    sizes: int

    def __call__(self, round_: Round) -> None:
        if not self.sizes or round_.profile.cooldown_s < LEAST_COOLDOWN_S or next(iter(round_.waiting()), None):
            return
        looked = 0
        for job in round_.running_in_order():
            size = self._next(job, round_)
            if size is None or not round_.room.fits_total(job.spec.demand(size).minus(job.spec.demand(job.counts))):
                continue
            if round_.resize(job, size, Reason("tries-size")):
                round_.remember(job, TRIES, job.memory.get(TRIES, 0.0) + 1)
            looked += 1
            if looked == AT_ONCE:
                return

    def _next(self, job: Job, round_: Round) -> Counts | None:
        """The size that it tries; None where it tries none."""
        profile, now, speed = round_.profile, round_.now, job.speed
        if job.spec.key in round_.changes or not job.spec.elastic or not isinstance(speed, OnlineSpeed):
            return None
        fitted = speed.fit is not None and speed.fit.confident
        at = size_of(job.counts)
        if fitted or at not in speed.measured or len(speed.measured) >= self.sizes:
            return None
        left_s = job.remaining_s(now)
        settled = now - max(job.rescaled_s, job.since_s) >= profile.cooldown_s
        if not settled or job.memory.get(TRIES, 0.0) >= self.sizes:
            return None
        if left_s is None or left_s < PAYS * profile.cooldown_s:
            return None
        more = (_one_more(job, type_) for type_ in (WORKER, PS))
        return next((size for size in more if size is not None and size_of(size) not in speed.measured), None)


def _one_more(job: Job, type_: str) -> Counts | None:
    group, counts = job.spec.group(type_), job.counts
    held = counts.get(type_, 0)
    return None if group is None or held >= group.maximum else {**counts, type_: held + 1}

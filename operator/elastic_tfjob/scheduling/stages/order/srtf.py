"""Shortest remaining time first."""

from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.profile import OrderKey
from elastic_tfjob.scheduling.snapshot import Job


@dataclass(frozen=True, slots=True)
class ShortestRemainingTimeFirst:
    """By expected seconds left, the pause of a running start or rescale included; unknown ones come last.

    At equal time left a running job goes first, so that two equal jobs do not evict each other in turn.
    """

    drift: float = 1.0

    def key(self, job: Job, now: float) -> OrderKey:
        left = job.remaining_s(now)
        if left is None:
            left = inf
        return (now + left, 0.0) if job.placement else (left, 1.0)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        return None

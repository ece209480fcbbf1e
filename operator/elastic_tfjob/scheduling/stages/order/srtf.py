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
        # A running job's is the time of its end, as its last observation foretells it: the clock does not move it.
        at = job.observed_s if job.placement else now
        left = job.remaining_s(at)
        if left is None:
            left = inf
        return (at + left, 0.0) if job.placement else (left, 1.0)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        return None

"""First in, first out."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.profile import OrderKey
from elastic_tfjob.scheduling.snapshot import Job


@dataclass(frozen=True, slots=True)
class Fifo:
    """By arrival; ties by submit order. Nothing needs to be known of a job."""

    drift: float = 0.0

    def key(self, job: Job, now: float) -> OrderKey:
        return ()

    def next_jump_s(self, job: Job, now: float) -> float | None:
        return None

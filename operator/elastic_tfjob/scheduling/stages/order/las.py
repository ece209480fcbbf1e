"""Least attained service, discretised."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from elastic_tfjob.scheduling.profile import OrderKey
from elastic_tfjob.scheduling.snapshot import Job

Within = Literal["arrival", "turn"]

FORGIVEN = "las.forgiven"
"""The service that a promoted job had when it started again."""

EPSILON = 1e-6
"""Service that a rounding error may hide, in accelerator-seconds."""


@dataclass(frozen=True, slots=True)
class LeastAttainedService:
    """Tiresias' discretised 2D-LAS (Gu et al., NSDI'19, section 3.2): a job sinks one queue at each threshold of
    attained service (accelerator-seconds; replica-seconds without accelerators).

    `within` a queue: by `arrival` (as Lucid's simulator), or by `turn` (as Tiresias' own): first those that run, in
    the order they began; then those preempted in this queue, the last one first; then those that entered it, new or
    just sunk, in order of entering. So a job that sinks goes behind those that wait there.
    `promote_knob` k > 0 brings a waiting job back to the first queue once it has waited k times as long as it ran
    (PROMOTEKNOB); 0 turns that off. What it has had by then is forgiven: once it starts again that much is
    remembered of it (FORGIVEN), and only what came later counts.
    """

    thresholds: tuple[float, ...] = (3250.0, 7200.0)
    within: Within = "turn"
    promote_knob: float = 0.0
    drift: float = 0.0

    def attained(self, job: Job) -> float:
        """The service that counts, up to the job's last placement."""
        return job.service - min(max(0.0, job.memory.get(FORGIVEN, 0.0)), job.service)

    def attained_at(self, job: Job, now: float) -> float:
        """The service that counts by now."""
        attained = self.attained(job)
        return attained + job.held * max(0.0, now - job.since_s) if job.placement else attained

    def promotes(self, job: Job, now: float) -> bool:
        """Whether this waiting job has starved long enough to start again in the first queue."""
        return (
            self.promote_knob > 0
            and not job.placement
            and self.attained(job) > self.thresholds[0]
            and now - job.since_s >= self.promote_knob * job.executed_s
        )

    def key(self, job: Job, now: float) -> OrderKey:
        service = self.attained_at(job, now) + EPSILON
        level = 0 if self.promotes(job, now) else bisect_right(self.thresholds, service)
        if self.within == "arrival":
            return (level,)
        entered_with = self.thresholds[level - 1] if level else 0.0
        since_entry = service - EPSILON - entered_with
        if not job.placement:
            return (level, 2.0, job.since_s) if since_entry <= EPSILON else (level, 1.0, -job.since_s)
        if level and since_entry <= EPSILON:
            return (level, 2.0, now)
        return (level, 0.0, job.since_s + max(0.0, entered_with - self.attained(job)) / job.held)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        if not job.placement:
            if self.promote_knob > 0 and self.attained(job) > self.thresholds[0] and not self.promotes(job, now):
                return job.since_s + self.promote_knob * job.executed_s
            return None
        level = bisect_right(self.thresholds, self.attained_at(job, now) + EPSILON)
        if level >= len(self.thresholds):
            return None
        return job.since_s + (self.thresholds[level] - self.attained(job)) / job.held

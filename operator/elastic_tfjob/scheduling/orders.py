"""First in, first out."""

from bisect import bisect_right
from dataclasses import dataclass
from math import inf
from typing import Literal

from elastic_tfjob.scheduling.rules import OrderKey
from elastic_tfjob.scheduling.snapshot import Job


@dataclass(frozen=True, slots=True)
class Fifo:
    """By arrival; ties by submit order. Nothing needs to be known of a job."""

    drift: float = 0.0

    def key(self, job: Job, now: float) -> OrderKey:
        return ()

    def next_jump_s(self, job: Job, now: float) -> float | None:
        return None


# -- Shortest job first ------------------------------------------------------------------------------------------------

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


# -- Shortest remaining time first -------------------------------------------------------------------------------------


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


# -- Least attained service, discretised -------------------------------------------------------------------------------

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


# -- Earliest deadline first -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst:
    """By absolute deadline (Liu and Layland, JACM 1973); jobs without one come last."""

    drift: float = 0.0

    def key(self, job: Job, now: float) -> OrderKey:
        return (inf if job.spec.deadline_s is None else job.spec.deadline_s,)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        return None

"""Orders: which job comes first."""

from bisect import bisect_right
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

from elastic_tfjob.scheduling.rules import Order, OrderKey
from elastic_tfjob.scheduling.snapshot import Job


@dataclass(frozen=True, slots=True)
class Fifo(Order):
    """First in, first out: by arrival. Works without any information about a job."""

    def key(self, job: Job, now: float) -> OrderKey:
        return ()


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst(Order):
    """By absolute deadline (Liu and Layland, JACM 1973); jobs without one come last."""

    def key(self, job: Job, now: float) -> OrderKey:
        return (inf if job.spec.deadline_s is None else job.spec.deadline_s,)


# -- By run time -------------------------------------------------------------------------------------------------------

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class ShortestJobFirst(Order):
    """By expected run time at the declared size; jobs of unknown length come last, by arrival."""

    def key(self, job: Job, now: float) -> OrderKey:
        duration_s = job.spec.duration_s
        if duration_s is None and job.spec.total_steps is not None and job.speed is not None:
            steps_per_s = job.speed.steps_per_s(job.spec.declared)
            duration_s = job.spec.total_steps / steps_per_s if steps_per_s else None
        return (inf if duration_s is None else duration_s,)


@dataclass(frozen=True, slots=True)
class AgedShortestFirst(ShortestJobFirst):
    """By remaining run time at the declared size. A job that has waited `patience` times its own run time, and at least
    a day, goes before all that have not, by arrival: no job starves.
    """

    patience: float = 10.0

    def key(self, job: Job, now: float) -> OrderKey:
        if not job.placement and now >= self.aged_s(job):
            return (-1.0, job.spec.arrival_s)
        return (self.left_s(job), job.spec.arrival_s)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        at = self.aged_s(job)
        return at if at > now and not job.placement else None

    def left_s(self, job: Job) -> float:
        """Remaining run time from its last checkpoint; infinite where the run time is unknown."""
        (duration_s,) = ShortestJobFirst.key(self, job, 0.0)
        total = job.spec.total_steps
        return max(0.0, duration_s * (1 - job.steps / total)) if total and duration_s < inf else duration_s

    def aged_s(self, job: Job) -> float:
        """The time from which the job goes before all jobs that have not waited as long for their run time."""
        (duration_s,) = ShortestJobFirst.key(self, job, 0.0)
        return job.spec.arrival_s + max(DAY_S, self.patience * (duration_s if duration_s < inf else DAY_S))


@dataclass(frozen=True, slots=True)
class ShortestRemainingTimeFirst(Order):
    """By expected seconds left, including the pause of a start or rescale under way; jobs of unknown length come last.

    At equal time left a running job goes first, so that two equal jobs do not preempt each other in turn.
    """

    drift: ClassVar[float] = 1.0

    def key(self, job: Job, now: float) -> OrderKey:
        # The key of a running job is its expected end, from its last observation: it does not change with the clock.
        at = job.observed_s if job.placement else now
        left_s = job.remaining_s(at)
        if left_s is None:
            left_s = inf
        return (at + left_s, 0.0) if job.placement else (left_s, 1.0)


# -- By attained service -----------------------------------------------------------------------------------------------

Within = Literal["arrival", "turn"]

FORGIVEN = "las.forgiven"
"""The service that a promoted job had when it started again."""

EPSILON = 1e-6
"""Service that a rounding error may hide, in accelerator-seconds."""


@dataclass(frozen=True, slots=True)
class LeastAttainedService(Order):
    """Tiresias' discretised 2D-LAS (Gu et al., NSDI'19, section 3.2): a job sinks one queue at each threshold of
    attained service (accelerator-seconds; replica-seconds without accelerators).

    `within` a queue: by `arrival` (as Lucid's simulator), or by `turn` (as Tiresias itself): running jobs first, in the
    order in which they started; then jobs preempted in this queue, the last one first; then jobs that entered it, new
    or just sunk, in order of entering. So a job that sinks comes after the jobs that wait there.
    `promote_knob` k > 0 brings a waiting job back to the first queue once it has waited k times as long as it ran
    (PROMOTEKNOB); 0 turns that off. Its service until then is forgiven: once it starts again, that amount is stored in
    its memory (FORGIVEN), and only later service counts.
    """

    thresholds: tuple[float, ...] = (3250.0, 7200.0)
    within: Within = "turn"
    promote_knob: float = 0.0

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

    def promotes(self, job: Job, now: float) -> bool:
        """Whether this waiting job has starved long enough to start again in the first queue."""
        return (
            self.promote_knob > 0
            and not job.placement
            and self.attained(job) > self.thresholds[0]
            and now - job.since_s >= self.promote_knob * job.executed_s
        )

    def attained(self, job: Job) -> float:
        """The service that counts, up to the job's last placement."""
        return job.service - min(max(0.0, job.memory.get(FORGIVEN, 0.0)), job.service)

    def attained_at(self, job: Job, now: float) -> float:
        """The service that counts at this moment."""
        attained = self.attained(job)
        return attained + job.held * max(0.0, now - job.since_s) if job.placement else attained

"""Well-known policies, for comparison and as a basis for other profiles. Each is an order with a few steps.

Fixed sizes: fixed, fifo, sjf, srtf, las, rebalance. Elastic sizes: edf, hull, optimus, drf."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from elastic_tfjob.api.reading import MAX_ENTRIES
from elastic_tfjob.scheduling.core import ElasticParameters, ProfileParameters, Seconds, Stages, TryingParameters, needs
from elastic_tfjob.scheduling.orders import (
    FORGIVEN,
    EarliestDeadlineFirst,
    Fifo,
    LeastAttainedService,
    ShortestJobFirst,
    ShortestRemainingTimeFirst,
)
from elastic_tfjob.scheduling.places import PlaceName
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec, ReplicaGroup
from elastic_tfjob.scheduling.steps.crowding import Balance
from elastic_tfjob.scheduling.steps.declared_size import FixedSize, preemptive
from elastic_tfjob.scheduling.steps.hull import HullRule, TrySizes
from elastic_tfjob.scheduling.steps.open_jobs import OpenJobs
from elastic_tfjob.scheduling.steps.sizes import (
    Increments,
    OnFull,
    OpenIncrements,
    apply_rows,
    bundle_more,
    candidates,
    fill,
)

__all__ = ["RebalanceParameters"]


class FifoParameters(ProfileParameters):
    """First in, first out. The first job that does not fit blocks all later jobs."""

    def stages(self) -> Stages:
        return Stages(Fifo(), (FixedSize(),), needs())


class FifoBackfillParameters(ProfileParameters):
    """First in, first out. A later job that fits may start first."""

    def stages(self) -> Stages:
        return Stages(Fifo(), (FixedSize(backfill=True),), needs())


# -- What the Go training-operator does --------------------------------------------------------------------------------


class FixedParameters(ProfileParameters):
    """Like the training-operator: jobs have their declared sizes, and kube-scheduler places the pods."""

    place: PlaceName = Field("spread", description="rule that places replicas on nodes; count: totals only")

    def stages(self) -> Stages:
        return Stages(Fifo(), (FixedSize(backfill=True),), needs())


# -- Shortest job first, with and without backfill ---------------------------------------------------------------------


class SjfParameters(ProfileParameters):
    """Shortest job first, without preemption. The first job that does not fit blocks all later jobs."""

    oracle: bool = Field(True, description="the policy gets true durations and speeds (simulation only)")

    def stages(self) -> Stages:
        return Stages(ShortestJobFirst(), (FixedSize(),), needs("duration", "speed"))


class SjfBackfillParameters(SjfParameters):
    """Shortest job first, without preemption. A later job that fits may start first."""

    def stages(self) -> Stages:
        return Stages(ShortestJobFirst(), (FixedSize(backfill=True),), needs("duration", "speed"))


# -- Shortest remaining time first -------------------------------------------------------------------------------------


class SrtfParameters(ProfileParameters):
    """Shortest remaining time first, with preemption."""

    oracle: bool = Field(True, description="the policy gets true durations and speeds (simulation only)")

    def stages(self) -> Stages:
        return Stages(ShortestRemainingTimeFirst(), (preemptive,), needs("duration", "speed", "stop"))


# -- Least attained service --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forgive:
    """Stores the service of each promoted job that starts: from then on it no longer counts."""

    order: LeastAttainedService

    def __call__(self, round_: Round) -> None:
        if not self.order.promote_knob:
            return
        for key, target in round_.changes.items():
            job = round_.job(key)
            if target.nodes and self.order.promotes(job, round_.now):
                round_.remember(job, FORGIVEN, job.service)


class LasParameters(ProfileParameters):
    """Least attained service (Tiresias), with preemption."""

    thresholds: tuple[float, ...] = Field(
        (3250.0, 7200.0),
        max_length=MAX_ENTRIES,
        description="accelerator-seconds at which a job drops to the next queue, ascending",
    )
    within: Literal["arrival", "turn"] = Field(
        "turn", description="order in a queue: by arrival (Lucid), or running, preempted, entered (Tiresias)"
    )
    promote_knob: float = Field(
        0.0, ge=0, description="a job returns to the first queue after waiting this times its run time; 0: off"
    )

    @field_validator("thresholds", mode="before")
    @classmethod
    def commas(cls, value: object) -> object:
        """Numbers in the form in which a command line gives them, such as `3250,7200`."""
        return value.split(",") if isinstance(value, str) else value

    @field_validator("thresholds")
    @classmethod
    def rising(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or list(value) != sorted(set(value)) or value[0] <= 0:
            raise ValueError("one or more rising numbers above 0, such as 3250,7200")
        return value

    def stages(self) -> Stages:
        order = LeastAttainedService(self.thresholds, self.within, self.promote_knob)
        return Stages(order, (preemptive, Forgive(order)), needs("service", "stop"))


# -- Earliest deadline first, elastic ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizeChoices:
    """A job's sizes, the largest first; the resources that each size requests; and the minimum of each resource over
    all sizes."""

    sizes: Sequence[Counts]
    wants: Sequence[Resources]
    least: Resources


@dataclass(frozen=True, slots=True)
class GreedyInOrder:
    """In the profile's order each job gets the largest size that fits the totals; a job with no room for its minimum
    waits, and later jobs continue. With EDF this is the baseline of ElasticFlow (Gu et al., ASPLOS'23): elastic,
    deadline-ordered, preemptive, without admission control. `size`: `useful` sizes only, each faster than all below
    it; or the `largest` whose speed is known even if it is slower, as in ElasticFlow's simulator.
    """

    size: Literal["useful", "largest"] = "useful"

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenJobs, self.sizes_of, self)
        apply_rows(round_, jobs, [*first_that_fit(jobs.known, free)], Reason("earliest-deadline"))

    def sizes_of(self, job: Job, total: Resources) -> SizeChoices:
        sizes = sizes_of(job, self.size == "useful")
        wants = [job.spec.demand(counts) for counts in sizes]
        return SizeChoices(sizes, wants, Resources(*map(min, zip(*wants, strict=True))))


def first_that_fit(choices: Iterable[SizeChoices], free: Resources) -> Iterator[int]:
    """For each job in turn, the row of its first choice that fits in addition to the earlier jobs; 0 if none fits."""
    cpu, memory, accelerators, pods, storage = free
    for choice in choices:
        least = choice.least
        chosen = 0
        if least[0] <= cpu and least[1] <= memory and least[2] <= accelerators and least[3] <= pods:
            for k, want in enumerate(choice.wants):
                if (
                    want[0] <= cpu
                    and want[1] <= memory
                    and want[2] <= accelerators
                    and want[3] <= pods
                    and want[4] <= storage
                ):
                    cpu, memory, accelerators = cpu - want[0], memory - want[1], accelerators - want[2]
                    pods, storage = pods - want[3], storage - want[4]
                    chosen = k + 1
                    break
        yield chosen


def sizes_of(job: Job, useful: bool) -> list[Counts]:
    """The sizes at which a job may run, the largest first; `useful`: only sizes that train faster than every smaller
    one. A size whose speed is None (a table does not have it) is skipped. Without any known speed, the sizes are the
    declared one and the minimum."""
    spec = job.spec
    group = spec.group(WORKER)
    if not spec.elastic or group is None or job.speed is None:
        return [spec.declared] if spec.declared == spec.minimum else [spec.declared, spec.minimum]
    sizes: list[Counts] = []
    fastest = 0.0
    for n in range(group.minimum, group.maximum + 1):
        counts = {**spec.minimum, WORKER: n}
        rate = job.speed.steps_per_s(counts)
        if rate is not None and (rate > fastest or not useful):
            fastest = rate
            sizes.append(counts)
    return sizes[::-1] or [spec.minimum]


class EdfParameters(ProfileParameters):
    """Earliest deadline first. An elastic job gets all free replicas that make it faster."""

    oracle: bool = Field(True, description="the policy gets true durations and speeds (simulation only)")
    size: Literal["useful", "largest"] = Field(
        "useful", description="largest size that is faster than all below it, or largest known (ElasticFlow)"
    )

    def stages(self) -> Stages:
        return Stages(
            EarliestDeadlineFirst(), (GreedyInOrder(self.size),), needs("deadline", "speed", "stop", "resize")
        )


# -- Rebalance: only the moves of `specon`, without weights and without the loss ---------------------------------------


class RebalanceParameters(ProfileParameters):
    """Jobs start in order of arrival, with their declared sizes. Replicas move from crowded nodes to idle CPU."""

    place: PlaceName = Field("spread", description="rule that places replicas on nodes; count: totals only")
    interval_s: Seconds = Field(10.0, description="most seconds between two rounds; 0: a round only after a change")
    moves: int = Field(2, ge=0, le=100, description="most moves of one job")
    times: float = Field(
        4.0, ge=0, le=1000, description="a move must save this times its cost, and leave as much training to do"
    )
    move_s: Seconds = Field(15.0, description="expected cost of a move, in seconds of training")
    idle: float = Field(0.25, gt=0, le=1, description="least idle part of the CPU of a move's target node")

    def stages(self) -> Stages:
        steps = (FixedSize(backfill=True), Balance(self.moves, self.times, self.move_s, self.idle))
        return Stages(Fifo(), steps, needs("use", "service", "move"), drifts=True)


# -- Hull --------------------------------------------------------------------------------------------------------------


class HullParameters(TryingParameters):
    """Hull: replicas go to the job that gains most speed, even if it gains only by several at once."""

    place: PlaceName = Field("even", description="rule that places replicas on nodes; count: totals only")
    per_resource: bool = Field(False, description="gain per dominant share instead of per replica")
    on_full: Literal["next", "stop"] = Field("next", description="when a size does not fit: try other jobs, or stop")

    def stages(self) -> Stages:
        return Stages(
            Fifo(),
            (HullRule(self.per_resource, self.on_full), TrySizes(self.try_sizes, self.try_part)),
            needs("speed", "stop"),
        )


# -- Optimus: marginal gain of one more PS or worker -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MarginalGain:
    """Optimus' allocation (Peng et al., EuroSys'18, section 4.1). Every job gets its minimum in the profile's order;
    then the PS or worker goes, one at a time, to the job whose finish it brings nearest: (Q/f(p,w) - Q/f(p',w')) with
    Q remaining steps and f steps per second, `per_resource` divided by the unit's dominant share. A job stops where
    its gain is not above 0. Where a table has no speed for one more, the unit is as many as the next size that it has.
    When a unit does not fit, the job leaves (`next`) or all ends (`stop`, DL2's simulator). A job of unknown speed or
    work stays at its minimum.
    """

    per_resource: bool = True
    on_full: OnFull = "next"

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenIncrements, self.sizes_of, self)
        lengths = jobs.lengths
        keys = jobs.keys * np.repeat(jobs.steps_left(round_.now), lengths)
        # Minima come first, whatever work is left.
        keys[np.cumsum(lengths) - lengths] = -np.inf
        apply_rows(round_, jobs, fill(jobs, keys, free, self.on_full), Reason("marginal-gain"))

    def sizes_of(self, job: Job, total: Resources) -> Increments:
        """Increments of one PS or worker each, or of as many as the next size with a known speed has more. The key is
        minus the gain per remaining step, but never below the previous key: an increment with a larger gain behind one
        with a smaller gain is taken directly after it."""
        spec, size = job.spec, job.spec.minimum
        sizes, keys, demand = [size], [0.0], [spec.demand(size)]
        while (unit := self.best_unit(job, size, total)) is not None:
            gain, size = unit
            sizes.append(size)
            keys.append(-gain if len(keys) == 1 else max(-gain, keys[-1]))
            demand.append(spec.demand(size).minus(spec.demand(sizes[-2])))
        return Increments(sizes, np.array(keys), np.array(demand, dtype=np.int64))

    def best_unit(self, job: Job, counts: Counts, total: Resources) -> tuple[float, Counts] | None:
        """(gain per remaining step, size) with the better of one more PS or worker, if above 0."""
        spec, speed = job.spec, job.speed
        if speed is None or spec.total_steps is None or not spec.elastic:
            return None
        rate = speed.steps_per_s(counts)
        if not rate:
            return None
        best: tuple[float, Counts] | None = None
        for type_ in (WORKER, PS):
            group = spec.group(type_)
            if group is None:
                continue
            n = counts.get(type_, 0)
            for count in range(1, group.maximum - n + 1):
                size = {**counts, type_: n + count}
                more = speed.steps_per_s(size)
                if more is None:
                    continue
                gain = (1 / rate - 1 / more) / count if more else 0.0
                if self.per_resource:
                    share = group.request.dominant_share(total)
                    gain = gain / share if share else gain
                if gain > 0 and (best is None or gain > best[0]):
                    best = gain, size
                break
        return best


class OptimusParameters(TryingParameters):
    """Optimus: adds one PS or worker at a time, to the job whose remaining time it shortens most."""

    place: PlaceName = Field("even", description="rule that places replicas on nodes; count: totals only")
    per_resource: bool = Field(True, description="gain per amount of the unit's dominant resource (the paper)")
    on_full: Literal["next", "stop"] = Field("next", description="when the best unit does not fit: try others, or stop")
    repack: bool = Field(True, description="a resize places all replicas of the job again (simulation only)")

    def stages(self) -> Stages:
        steps = (MarginalGain(self.per_resource, self.on_full), TrySizes(self.try_sizes, self.try_part))
        return Stages(Fifo(), steps, needs("speed", "stop"), drifts=True)


# -- Dominant resource fairness ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DominantResourceFairness:
    """Progressive filling (Ghodsi et al., NSDI'11, algorithm 1): the next unit goes to the job with the smallest
    dominant share, ties in the profile's order. The first unit is the job's minimum, each next one a worker and a PS
    (of which the job has both and neither is at its maximum). A job leaves at its maximum; when a unit does not fit,
    the job leaves (`next`) or all filling ends (`stop`, as in DL2's simulator).
    """

    on_full: OnFull = "next"

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenIncrements, shares, self)
        apply_rows(round_, jobs, fill(jobs, jobs.keys, free, self.on_full), Reason("dominant-share"))


def shares(job: Job, total: Resources) -> Increments:
    """One increment per bundle; its key is the dominant share of the job before the bundle."""
    spec = job.spec
    if spec.elastic:
        return _shares(spec.groups, total)
    return Increments([spec.minimum], np.zeros(1), np.array([spec.demand(spec.minimum)], dtype=np.int64))


@lru_cache(maxsize=4096)
def _shares(groups: tuple[ReplicaGroup, ...], total: Resources) -> Increments:
    """Cached by replica groups: jobs with equal groups share the result."""
    spec = JobSpec("", 0.0, groups)
    sizes: list[Counts] = []
    keys: list[float] = []
    demand: list[Resources] = []
    held = Resources()
    following: Counts | None = spec.minimum
    while following is not None:
        now = spec.demand(following)
        keys.append(held.dominant_share(total) if sizes else 0.0)
        demand.append(now.minus(held))
        sizes.append(following)
        held = now
        following = bundle_more(spec, following)
    return Increments(sizes, np.array(keys), np.array(demand, dtype=np.int64))


class DrfParameters(ElasticParameters):
    """Dominant resource fairness by progressive filling."""

    on_full: Literal["next", "stop"] = Field("next", description="when a job's unit does not fit: try others, or stop")

    def stages(self) -> Stages:
        return Stages(Fifo(), (DominantResourceFairness(self.on_full),), needs("stop"))

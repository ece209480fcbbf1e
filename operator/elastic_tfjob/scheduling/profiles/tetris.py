"""Tetris: the job with the best score of packing and shortness gets the next replicas."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from pydantic import Field

from elastic_tfjob.scheduling.core import ElasticParameters, Stages, needs
from elastic_tfjob.scheduling.orders import ShortestRemainingTimeFirst
from elastic_tfjob.scheduling.plan import BEHIND
from elastic_tfjob.scheduling.queue import Entry, JobQueue
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import Order
from elastic_tfjob.scheduling.snapshot import Counts, Job, JobSpec, PlacementKey, ReplicaGroup
from elastic_tfjob.scheduling.steps.declared_size import lacks
from elastic_tfjob.scheduling.steps.open_jobs import OpenJobs, Terms, open_jobs, unsized
from elastic_tfjob.scheduling.steps.sizes import bundle_more, movable


@dataclass(frozen=True, slots=True)
class Tetris:
    """Grandl et al., SIGCOMM'14: what is free goes, one unit after the other, to the job with the highest alignment
    (dot product of the unit's demand and what is free, both as shares of the cluster) plus `shortness_weight` times
    shortness, 1 / (remaining work), scaled by the ratio of their means as in section 3.3. A waiting job's unit is its
    minimum, a running one's a worker and a PS. Nothing is taken from a running job: Tetris does not preempt.
    (DL2's simulator has shortness the other way round: it prefers the job with more left.)

    Units with the same demand have the same alignment, so only the one with the least remaining work can be next. With
    the order by remaining time that is the first one of each placement key.
    """

    shortness_weight: float = 1.0

    def __call__(self, round_: Round) -> None:
        room, total, now = round_.room, round_.room.total, round_.now
        queues = {**self._starts(round_), **self._growth(round_)}
        short = [shortness(units.head, now) for units in queues.values()]
        aligned = [alignment(units.demand, room.free_total, total) for units in queues.values()]
        weight = self.shortness_weight * sum(aligned) / sum(short) if sum(short) > 0 else 0.0
        while queues:
            free = room.free_total
            best, best_score = None, -1.0
            for key, units in queues.items():
                score = alignment(units.demand, free, total) + weight * shortness(units.head, now)
                if score > best_score:
                    best, best_score = key, score
            units = queues[best]
            job, following = units.head, units.following
            given = units.demand.within(free) and self._give(round_, job, following)
            # If a job finds no nodes to start on, no other job with its placement key does; a running job may.
            if not (given or round_.placement(job)) or not units.advance():
                del queues[best]
            if given and job.spec.elastic and round_.rules.cooldown_s == 0:
                kind = growth_kind(job.spec, following)
                bundle = next_bundle(job.spec.groups, tuple(following.items()))
                if bundle is not None and bundle[1].within(room.free_total):
                    if kind in queues:
                        queues[kind].put_first(job)
                    else:
                        queues[kind] = Units(*bundle, iter((job,)))

    def _starts(self, round_: Round) -> dict[Hashable, "Units"]:
        """Waiting jobs by placement key."""
        queues: dict[Hashable, Units] = {}
        for placement_key, entries in sorted(round_.waiting_queue.lists.items(), key=lambda each: each[1][0]):
            first = round_.job(entries[0][4])
            least = first.spec.minimum
            if (demand := first.spec.demand(least)).within(round_.room.free_total):
                jobs = (job for e in entries if not round_.in_cooldown(job := round_.job(e[4])))
                queues[placement_key] = Units(least, demand, jobs)
            else:
                round_.refuse(first, lacks(first, round_))
        rules = round_.rules
        terms = Terms(rules.stop_cooldown_s, rules.cooldown_s)
        for job in open_jobs(round_, OpenJobs, terms, unsized).later.values():
            if not job.placement and job.spec.placement_key in queues:
                round_.refuse(job, BEHIND)
        return {key: units for key, units in queues.items() if units}

    def _growth(self, round_: Round) -> dict[Hashable, "Units"]:
        """Running jobs by the kind of their next bundle. Kinds are sorted in descending order of their last movable
        job, so the kind whose last job comes last in the order is first."""
        order = round_.rules.order
        growing = round_.snapshot.index(("growing", order), lambda snapshot: Growing(order).fill(snapshot))
        groups: list[tuple[Entry, Hashable, Units]] = []
        for kind, entries in growing.at(round_.now).lists.items():
            first = round_.job(entries[0][4])
            bundle = next_bundle(first.spec.groups, tuple(first.counts.items()))
            if bundle is None or not bundle[1].within(round_.room.free_total):
                continue
            last = next((e for e in reversed(entries) if movable(round_.job(e[4]), round_)), None)
            if last is not None:
                jobs = map(round_.job, (e[4] for e in entries))
                groups.append((last, kind, Units(*bundle, (job for job in jobs if movable(job, round_)))))
        return {kind: units for _, kind, units in sorted(groups, key=lambda each: each[0], reverse=True)}

    def _give(self, round_: Round, job: Job, counts: Counts) -> bool:
        if round_.placement(job):
            return round_.resize(job, counts, Reason("packing"))
        return round_.start(job, counts, Reason("packing"))


class Units:
    """The queue of jobs for one kind of unit: the size that a job reaches with the unit, and the resources that it
    adds."""

    def __init__(self, following: Counts, demand: Resources, jobs: Iterator[Job]) -> None:
        self.following = following
        self.demand = demand
        self._later: list[Job] = []
        self._jobs = jobs
        self._head = next(jobs, None)

    def __bool__(self) -> bool:
        return self._head is not None

    @property
    def head(self) -> Job:
        assert self._head is not None
        return self._head

    def put_first(self, job: Job) -> None:
        self._later.append(self.head)
        self._head = job

    def advance(self) -> bool:
        """Go to the next job; False if there is none."""
        self._head = self._later.pop() if self._later else next(self._jobs, None)
        return self._head is not None


class Growing(JobQueue):
    """The running jobs whose size may change, by the kind of their next bundle."""

    def __init__(self, order: Order) -> None:
        super().__init__(order, running=True)

    def _belongs(self, job: Job, now: float) -> bool:
        return job.spec.elastic and super()._belongs(job, now)

    def _kind(self, job: Job) -> Hashable:
        return growth_kind(job.spec, job.counts)


def growth_kind(spec: JobSpec, counts: Counts) -> PlacementKey:
    """A value that is equal for jobs whose next bundle is the same and may go to the same nodes."""
    return PlacementKey(spec.groups, tuple(counts.items()), spec.constraints)


@lru_cache(maxsize=4096)
def next_bundle(groups: tuple[ReplicaGroup, ...], held: tuple[tuple[str, int], ...]) -> tuple[Counts, Resources] | None:
    """The next larger size, and the resources that it adds; None at the maximum."""
    spec, counts = JobSpec("", 0.0, groups), dict(held)
    following = bundle_more(spec, counts)
    return None if following is None else (following, spec.demand(following).minus(spec.demand(counts)))


def alignment(demand: Resources, free: Resources, total: Resources) -> float:
    return sum((d / t) * (f / t) for d, f, t in zip(demand[:3], free[:3], total[:3], strict=True) if t > 0)


def shortness(job: Job, now: float) -> float:
    left = job.remaining_s(now, job.spec.declared)
    return 0.0 if left is None else 1 / max(left, 1.0)


class TetrisParameters(ElasticParameters):
    """Tetris: starts the job with the best sum of packing score and shortness."""

    shortness_weight: float = Field(1.0, ge=0, description="weight of short remaining work beside packing")

    def stages(self) -> Stages:
        return Stages(ShortestRemainingTimeFirst(), (Tetris(self.shortness_weight),), needs("duration", "speed"))

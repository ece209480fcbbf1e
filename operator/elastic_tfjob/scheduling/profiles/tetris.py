"""Tetris: packing and shortness in one score."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache

from pydantic import Field

from elastic_tfjob.scheduling.parameters import ElasticParameters, Stages, needs
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, JobSpec, ReplicaGroup
from elastic_tfjob.scheduling.stages.order.srtf import ShortestRemainingTimeFirst
from elastic_tfjob.scheduling.toolkit.refusal import lacks
from elastic_tfjob.scheduling.toolkit.sizes import bundle_more, movable


@dataclass(frozen=True, slots=True)
class Tetris:
    """Grandl et al., SIGCOMM'14: what is free goes, one unit after the other, to the job with the highest alignment
    (dot product of the unit's demand and what is free, both as shares of the cluster) plus `shortness_weight` times
    shortness, 1 / (remaining work), scaled by the ratio of their means as in section 3.3. A waiting job's unit is its
    minimum, a running one's a worker and a PS. Nothing is taken from a running job: Tetris does not preempt.
    (DL2's simulator has shortness the other way round: it prefers the job with more left.)

    Units of one demand are aligned alike, so of each only the job with the least work left can be next: with the
    order by remaining time that is the first of its shape.
    """

    shortness_weight: float = 1.0

    def __call__(self, round_: Round) -> None:
        room, total, jobs, now = round_.room, round_.room.total, round_.snapshot.jobs, round_.now
        queues: dict[Hashable, list[Unit]] = {}
        for key, entries in round_.waiting_queue.lists.items():
            first = jobs[entries[0][4]]
            demand = first.spec.demand(first.spec.minimum)
            if demand.within(room.free_total):
                waiting = [jobs[e[4]] for e in reversed(entries)]
                if units := [(job, first.spec.minimum, demand) for job in waiting if not round_.cools(job)]:
                    queues[key] = units
                for job in waiting if len(units) < len(waiting) else ():
                    if round_.cools(job):
                        round_.refuse(job, "")
            else:
                round_.refuse(first, lacks(first, round_))
        for e in reversed(round_.running_in_order()):
            job = jobs[e[4]]
            if job.spec.elastic and movable(job, round_):
                enqueue_growth(queues, job, job.counts, room.free_total)
        short = [shortness(units[-1][0], now) for units in queues.values()]
        aligned = [alignment(units[-1][2], room.free_total, total) for units in queues.values()]
        weight = self.shortness_weight * sum(aligned) / sum(short) if sum(short) > 0 else 0.0
        while queues:
            free = room.free_total
            best, best_score = None, -1.0
            for key, units in queues.items():
                job, _, demand = units[-1]
                score = alignment(demand, free, total) + weight * shortness(job, now)
                if score > best_score:
                    best, best_score = key, score
            units = queues[best]
            job, following, demand = units[-1]
            given = demand.within(free) and self._give(round_, job, following)
            if given:
                units.pop()
            elif not round_.placement(job):
                units.clear()  # none of this shape fits any more
            else:
                units.pop()  # beside what it holds this one has no room; another may
            if not units:
                del queues[best]
            if given and job.spec.elastic and round_.profile.cooldown_s == 0:
                enqueue_growth(queues, job, following, room.free_total)

    def _give(self, round_: Round, job: Job, counts: Counts) -> bool:
        if round_.placement(job):
            return round_.resize(job, counts, "packing and shortness: what was free suits it best")
        return round_.start(job, counts, "packing and shortness: it suits what was free best")


Unit = tuple[Job, Counts, Resources]
"""A job, the size it would reach, and what that adds to what it holds."""


def enqueue_growth(queues: dict[Hashable, list[Unit]], job: Job, counts: Counts, free: Resources) -> None:
    """Add the job's next bundle to the units of its kind, if it may have one and it fits the totals."""
    kind = (job.spec.groups, tuple(counts.items()))
    bundle = next_bundle(*kind)
    if bundle is not None and bundle[1].within(free):
        queues.setdefault((kind, job.spec.constraints), []).append((job, *bundle))


@lru_cache(maxsize=4096)
def next_bundle(groups: tuple[ReplicaGroup, ...], held: tuple[tuple[str, int], ...]) -> tuple[Counts, Resources] | None:
    """The size after this one, and what it adds; None at the maximum."""
    spec, counts = JobSpec("", 0.0, groups), dict(held)
    following = bundle_more(spec, counts)
    return None if following is None else (following, spec.demand(following).minus(spec.demand(counts)))


def alignment(demand: Resources, free: Resources, total: Resources) -> float:
    return sum((d / t) * (f / t) for d, f, t in zip(demand[:3], free[:3], total[:3], strict=True) if t > 0)


def shortness(job: Job, now: float) -> float:
    left = job.remaining_s(now, job.spec.declared)
    return 0.0 if left is None else 1 / max(left, 1.0)


class TetrisParameters(ElasticParameters):
    """Tetris: packing score plus shortness."""

    shortness_weight: float = Field(1.0, ge=0, description="weight of short remaining work beside packing")

    def stages(self) -> Stages:
        return Stages(ShortestRemainingTimeFirst(), (Tetris(self.shortness_weight),), needs("duration"))

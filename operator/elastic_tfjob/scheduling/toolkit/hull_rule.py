"""Replicas go where they add most speed, looking past sizes that help little to larger ones that help much."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import numpy as np

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec
from elastic_tfjob.scheduling.toolkit.apply_sizes import apply_rows, candidates
from elastic_tfjob.scheduling.toolkit.progressive_filling import Floats, Increments, Ints, OnFull, OpenIncrements, fill
from elastic_tfjob.speed.sizes import known_sizes

NOTICEABLE = 1e-6
"""The relative gain in speed from which on a size counts as faster."""

Point = tuple[float, float, Counts]
"""What a size costs more than the minimum, its speed, and the size."""


@dataclass(frozen=True, slots=True)
class HullRule:
    """Every job gets its minimum in the profile's order. Then increments go to jobs by the gain in sqrt(speed) per
    cost, where speed is relative to one PS and one worker, and cost is the number of replicas (`per_resource`: the
    dominant share). A job's increments lead along the corners of the concave hull of its best speed by cost: between
    two corners the gain is the same for all, so that a size which is worth it only as a whole is reached through those
    that are not. Sizes below the best of their cost, and larger ones that are not faster, are never given. How much
    work remains is not used, nor needed. A job of unknown speed stays at its minimum. `instead_of`: why a learned
    policy, in whose place this rule stands, cannot be used.
    """

    per_resource: bool = False
    on_full: OnFull = "next"
    instead_of: str = ""

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenIncrements, self.sizes_of, self)
        apply_rows(round_, jobs, fill(jobs, jobs.keys, free, self.on_full), self.why)

    @property
    def why(self) -> Reason:
        return Reason("gain-per-replica", {"instead_of": self.instead_of} if self.instead_of else {})

    def sizes_of(self, job: Job, total: Resources) -> Increments:
        """Increments from size to size of the front; the key of each is minus the gain on its edge of the hull. The
        minima of all jobs come first."""
        spec = job.spec
        points = self.front(job, total)
        sizes, keys = [spec.minimum], [float("-inf")]
        if len(points) > 1:
            one = relative_to(job, points[0][1])
            edges = corners(points)
            for a, b in pairwise(edges):
                (cost, rate, _), (more, faster, _) = points[a], points[b]
                gain = (sqrt(faster / one) - sqrt(rate / one)) / (more - cost)
                sizes += [size for _, _, size in points[a + 1 : b + 1]]
                keys += [max(-gain, keys[-1])] * (b - a)
        demand = np.array([spec.demand(size) for size in sizes], dtype=np.int64)
        demand[1:] = np.diff(demand, axis=0)
        return Increments(sizes, np.array(keys), demand)

    def front(self, job: Job, total: Resources) -> list[Point]:
        """The minimum, then the best sizes: none of them has one that costs as little or less and is as fast. Only the
        minimum where its speed is not known."""
        spec, minimum, speed = job.spec, job.spec.minimum, job.speed
        start = speed.steps_per_s(minimum) if speed is not None and spec.elastic else None
        points: list[Point] = [(0.0, start or 0.0, minimum)]
        if speed is None or not start:
            return points
        known = known_sizes(speed, bounds(spec, PS), bounds(spec, WORKER))
        cost = (known.ps - minimum.get(PS, 0) + known.workers - minimum.get(WORKER, 0)).astype(np.float64)
        if self.per_resource:
            cost = shares(spec, known.ps, known.workers, total) - spec.demand(minimum).dominant_share(total)
        order = np.lexsort((known.workers, -known.steps_per_s, cost))
        costs, rates = cost[order].tolist(), known.steps_per_s[order].tolist()
        # Only those that are faster than all that cost less need be looked at.
        faster = np.flatnonzero(np.diff(np.maximum.accumulate(known.steps_per_s[order]), prepend=0.0) > 0)
        for k in faster.tolist():
            if costs[k] > points[-1][0] and rates[k] > points[-1][1] * (1 + NOTICEABLE):
                size = dict(minimum)
                for type_, n in ((PS, known.ps[order[k]]), (WORKER, known.workers[order[k]])):
                    if spec.group(type_) is not None:
                        size[type_] = int(n)
                points.append((costs[k], rates[k], size))
        return points


def relative_to(job: Job, otherwise: float) -> float:
    """Steps per second with one PS and one worker, or what stands for it where that is not known."""
    assert job.speed is not None
    one = {**job.spec.minimum, **{type_: 1 for type_ in (PS, WORKER) if job.spec.group(type_) is not None}}
    return job.speed.steps_per_s(one) or otherwise


def bounds(spec: JobSpec, type_: str) -> tuple[int, int]:
    group = spec.group(type_)
    return (group.minimum, group.maximum) if group is not None else (0, 0)


def shares(spec: JobSpec, ps: Ints, workers: Ints, total: Resources) -> Floats:
    """The dominant share of each of these sizes."""
    each = {type_: group.request if (group := spec.group(type_)) else Resources() for type_ in (PS, WORKER)}
    others = spec.demand({type_: n for type_, n in spec.minimum.items() if type_ not in (PS, WORKER)})
    held = np.outer(ps, each[PS]) + np.outer(workers, each[WORKER]) + np.array(others)
    there = np.array(total, dtype=np.float64)
    share: Floats = np.divide(held, there, out=np.zeros(held.shape), where=there > 0).max(axis=1)
    return share


def corners(points: Sequence[Point]) -> list[int]:
    """Which of these points, whose cost and speed both rise, are corners of the least concave line above all."""
    kept: list[int] = []
    for k, (cost, rate, _) in enumerate(points):
        while len(kept) > 1:
            (a_cost, a_rate, _), (b_cost, b_rate, _) = points[kept[-2]], points[kept[-1]]
            if (rate - b_rate) * (b_cost - a_cost) < (b_rate - a_rate) * (cost - b_cost):
                break
            kept.pop()
        kept.append(k)
    return kept

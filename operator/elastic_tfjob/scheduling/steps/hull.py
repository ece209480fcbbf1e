"""Hull: replicas go where they add most speed per cost, looking past sizes that help little to larger ones.

TrySizes measures the speeds that this needs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Final

import numpy as np

from elastic_tfjob.scheduling.profile import LIVE_INTERVAL_S
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec
from elastic_tfjob.scheduling.steps.sizes import (
    Floats,
    Increments,
    Ints,
    OnFull,
    OpenIncrements,
    apply_rows,
    candidates,
    fill,
)
from elastic_tfjob.speed.model import known_sizes
from elastic_tfjob.speed.optimus import OnlineSpeed
from elastic_tfjob.speed.prediction import size_of

__all__ = ["LEAST_COOLDOWN_S", "TrySizes"]

NOTICEABLE = 1e-6
"""The relative gain in speed from which a size counts as faster."""

Point = tuple[float, float, Counts]
"""What a size costs beyond the minimum, its speed, and the size."""


@dataclass(frozen=True, slots=True)
class HullRule:
    """Every job gets its minimum in the profile's order. Then increments go to jobs by the gain in sqrt(speed) per
    cost, where speed is relative to one PS and one worker, and cost is the number of replicas (`per_resource`: the
    dominant share). A job's increments follow the concave hull of its best speed by cost. All increments between two
    corners of the hull have the same gain, so a size that pays only as a whole is reached through smaller ones that do
    not pay alone. A size is never chosen if another one is as fast for the same or lower cost. Remaining work does not
    matter. A job of unknown speed stays at its minimum. `instead_of`: why the learned policy that this rule replaces
    cannot be used.
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
        """Increments along the front; the key of each is minus the gain on its edge of the hull. The minima of all jobs
        come first."""
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
        """The minimum, then each size that no other one matches in speed at the same or lower cost. Only the minimum
        where its speed is unknown."""
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
        # Only sizes that are faster than all cheaper ones matter.
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
    """Steps per second with one PS and one worker; `otherwise` where that is unknown."""
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
    """The indices of the corners of the concave hull. Cost and speed of the points both rise."""
    kept: list[int] = []
    for k, (cost, rate, _) in enumerate(points):
        while len(kept) > 1:
            (a_cost, a_rate, _), (b_cost, b_rate, _) = points[kept[-2]], points[kept[-1]]
            if (rate - b_rate) * (b_cost - a_cost) < (b_rate - a_rate) * (cost - b_cost):
                break
            kept.pop()
        kept.append(k)
    return kept


# -- Trying sizes of unknown speed -------------------------------------------------------------------------------------

LEAST_COOLDOWN_S: Final = 60.0
"""How long a job must keep a size so that its speed can be measured and the start of a replica costs little in
comparison. A profile with a shorter cooldown tries nothing. With 20 s, twelve jobs of some 120 s took half as long
again (docs/designs/dl2.md)."""
AT_ONCE: Final = 8
"""Most sizes tried in one round; other jobs follow in later rounds."""
TRIES: Final = "tries"


@dataclass(frozen=True, slots=True)
class TrySizes:
    """The last step of a round in which no job waits: a running job with a measured speed at its present size, and at
    fewer than `sizes` sizes in all, gets a size that was not measured, with twice the PSs or workers of its fastest
    measured size. The profile's cooldown keeps it there; then the policy decides with the measured speed.

    A job tries at most `sizes` times, and together its tries take at most `part` of its time: even if it stood still
    meanwhile, it would lose no more. In a simulation speeds are measured before jobs start (`sample_points`) or given,
    and nothing is tried.
    """

    sizes: int
    part: float = 0.1

    def __call__(self, round_: Round) -> None:
        if not self.sizes or round_.rules.cooldown_s < LEAST_COOLDOWN_S or next(iter(round_.waiting()), None):
            return
        looked = 0
        for job in round_.running_in_order():
            if not self._may(job, round_):
                continue
            held = job.spec.demand(job.counts)
            for size in _untried(job):
                if round_.room.fits_total(job.spec.demand(size).minus(held)):
                    if round_.resize(job, size, Reason("tries-size")):
                        round_.remember(job, TRIES, job.memory.get(TRIES, 0.0) + 1)
                    looked += 1
                    break
            if looked == AT_ONCE:
                return

    def _may(self, job: Job, round_: Round) -> bool:
        """Whether the job may try a size now."""
        rules, now, speed = round_.rules, round_.now, job.speed
        if job.spec.key in round_.changes or not job.spec.elastic or not isinstance(speed, OnlineSpeed):
            return False
        fitted = speed.fit is not None and speed.fit.confident
        if fitted or size_of(job.counts) not in speed.measured or len(speed.measured) >= self.sizes:
            return False
        left_s, tries = job.remaining_s(now), job.memory.get(TRIES, 0.0)
        if now - max(job.rescaled_s, job.since_s) < rules.cooldown_s or tries >= self.sizes or left_s is None:
            return False
        # The round after a try may be as late as this.
        try_s = rules.cooldown_s + (rules.interval_s or LIVE_INTERVAL_S)
        return (tries + 1) * try_s <= self.part * (job.executed_s + now - job.since_s + left_s)


def _untried(job: Job) -> Iterator[Counts]:
    """Sizes that were not measured, with twice the PSs, the workers or both of the fastest measured one. PSs and
    workers come first in turn."""
    assert isinstance(job.speed, OnlineSpeed)
    measured = job.speed.measured
    ps, workers = max(measured, key=lambda size: (measured[size], size))
    more = {type_: min(2 * n, bounds(job.spec, type_)[1]) for type_, n in ((PS, ps), (WORKER, workers))}
    sizes = [(more[PS], workers), (ps, more[WORKER]), (more[PS], more[WORKER])]
    if len(measured) % 2 == 0:
        sizes[:2] = sizes[1::-1]
    for p, w in sizes:
        if (p, w) not in measured:
            yield {**job.counts, **({PS: p} if job.spec.group(PS) is not None else {}), WORKER: w}

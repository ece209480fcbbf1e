"""Curves: a job's useful sizes with the speed and the cost of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from propcache.api import cached_property

from elastic_tfjob.scheduling.forecasts import prediction_of
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.shared_cpu import slowest_usable, usable_at
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec, Node, Snapshot
from elastic_tfjob.scheduling.steps.hull import HullRule
from elastic_tfjob.speed.history import Past
from elastic_tfjob.speed.optimus import OnlineSpeed
from elastic_tfjob.speed.prediction import PRIOR_EXPONENT, Prediction

__all__ = [
    "DEMAND",
    "GAIN",
    "HAD",
    "NO_INCREMENTS",
    "ROW",
    "Curve",
    "CurveCache",
    "CurveIncrements",
    "Floats",
    "Increments",
    "Sizes",
    "Way",
    "curve_cache",
]


# -- The increments by which a job grows while no resource is short ----------------------------------------------------
# Each increment leads to the size with the largest gain per share of the cluster.

MOST_KEPT: Final = 64
"""The number of (row, way) pairs per job whose increments are cached. Few pairs occur, as they depend only on the job's
size and on the capacity reserved for it."""


@dataclass(frozen=True, slots=True)
class Way:
    """The rows of its curve that a job may get. `current`: the row that it has now (0: none); above it, the job may get
    the rows from `first` to `last`; up to it, any row."""

    current: int
    first: int
    last: int

    def beyond(self, row: int) -> tuple[int, int]:
        """The smallest and the largest row that the job may get from this row."""
        if row < self.current:
            return row + 1, min(self.last, self.current)
        return max(row + 1, self.first), self.last


Increments = NDArray[np.float64]
"""One row per increment: the row of the curve, the gain in steps per second per share of the cluster, whether the job
already has the increment, and its demand by resource (columns as in Resources)."""
ROW: Final = 0
GAIN: Final = 1
HAD: Final = 2
DEMAND: Final = slice(3, None)
NO_INCREMENTS: Final[Increments] = np.zeros((0, 3 + len(NOTHING)))


class CurveIncrements:
    """The increments of a curve, computed once per row. As in Curve, row 0 stands for no replicas."""

    def __init__(self, rates: Sequence[float], share: Sequence[float], demand: Sequence[Sequence[float]]) -> None:
        self._rates, self._share, self._demand = rates, share, demand
        self._better: dict[tuple[int, int], list[tuple[int, float]]] = {}
        self._made: dict[tuple[int, Way], Increments] = {}

    def better(self, row: int, start: int) -> list[tuple[int, float]]:
        """The rows from `start` on whose gain per share, starting from `row`, is larger than that of all rows between;
        with that gain."""
        rows = self._better.get((row, start))
        if rows is None:
            rows, best = [], 0.0
            rate, held = self._rates[row], self._share[row]
            for k in range(start, len(self._rates)):
                gain = (self._rates[k] - rate) / (self._share[k] - held + 1e-12 or 1e-300)
                if gain > best:
                    best = gain
                    rows.append((k, gain))
            self._better[row, start] = rows
        return rows

    def of(self, row: int, way: Way) -> Increments:
        """The increments from this row upwards."""
        increments = self._made.get((row, way))
        if increments is None:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            increments = self._made[row, way] = self._find(row, way)
        return increments

    def _find(self, row: int, way: Way) -> Increments:
        increments: list[list[float]] = []
        while True:
            start, last = way.beyond(row)
            best = next((larger for larger in reversed(self.better(row, start)) if larger[0] <= last), None)
            if best is None:
                return np.array(increments, dtype=np.float64).reshape(-1, NO_INCREMENTS.shape[1])
            taken = [want - has for want, has in zip(self._demand[best[0]], self._demand[row], strict=True)]
            increments.append([*best, row < way.current, *taken])
            row = best[0]


Floats = NDArray[np.float64]
Sizes = Literal["all", "front", "doublings"]

EACH_UP_TO: Final = 16
"""Up to this count every worker count is considered; larger ones in steps of about a quarter."""
STRIDE: Final = 1.25
MOST_ROOTS: Final = 512
"""With more worker counts than this, only doublings are considered."""
DIGITS: Final = "9g"
"""Speeds are compared to nine digits, since two ways to compute the same speed differ in the last ones."""


class Plain(NamedTuple):
    """The arrays of a curve as lists, where loops over a few numbers are faster."""

    rates: list[float]
    share: list[float]
    demand: list[list[float]]


@dataclass(frozen=True)
class Curve:
    """The sizes of a job that are each faster than all smaller ones. The arrays have the steps per second, the demand
    per resource (columns as in Resources) and the dominant share of the cluster; row 0 stands for no replicas, row k
    for `sizes[k - 1]`. `known`: whether the speed is known; otherwise it is 1 at the smallest size and rises by the
    prior."""

    sizes: tuple[Counts, ...]
    rates: Floats
    demand: Floats
    share: Floats
    columns: tuple[int, ...]
    known: bool

    @cached_property
    def plain(self) -> Plain:
        return Plain(self.rates.tolist(), self.share.tolist(), self.demand.tolist())

    def increments(self, power: float) -> CurveIncrements:
        """The increments if speed is raised to this power."""
        increments = self._increments.get(power)
        if increments is None:
            rates, share, demand = self.plain
            worth = rates if power == 1 else [rate**power for rate in rates]
            increments = self._increments[power] = CurveIncrements(worth, share, demand)
        return increments

    @cached_property
    def _increments(self) -> dict[float, CurveIncrements]:
        return {}

    @cached_property
    def _rows(self) -> Mapping[frozenset[tuple[str, int]], int]:
        return {_held(size): k for k, size in reversed([*enumerate(self.sizes, 1)])}

    def index(self, counts: Counts) -> int:
        """The row of this size; 0 if the curve does not have the size."""
        return self._rows.get(_held(counts), 0)


def _held(counts: Counts) -> frozenset[tuple[str, int]]:
    return frozenset((type_, n) for type_, n in counts.items() if n)


def curve_of(job: Job, total: Resources, how: Sizes, past: Past | None) -> Curve | None:
    """The curve of a job in a cluster with these totals. None: no size of the job fits the cluster."""
    known = prediction_of(job, past)
    useful = list(_useful(job, known, total, how))
    if useful:
        return _curve(job.spec, useful, total, True)
    unknown = replace(known, speed=None, past=None, steps_per_s=0.0, estimate=(job.spec.minimum, 1.0))
    useful = list(_useful(replace(job, speed=None), unknown, total, how))
    return prior(_curve(job.spec, useful, total, False)) if useful else None


def _curve(spec: JobSpec, useful: list[tuple[Counts, float]], total: Resources, known: bool) -> Curve:
    demands = [spec.demand(counts) for counts, _ in useful]
    demand = np.array([Resources(), *demands], dtype=np.float64)
    share = _shares(demands, total)
    columns = tuple(int(c) for c in np.flatnonzero(demand.any(axis=0)))
    return Curve(tuple(c for c, _ in useful), np.array([0.0, *(r for _, r in useful)]), demand, share, columns, known)


def _shares(demands: Iterable[Resources], total: Resources) -> Floats:
    return np.array([0.0, *(max(each.dominant_share(total), 1e-12) for each in demands)])


def scaled(curve: Curve, spec: JobSpec, total: Resources) -> Curve:
    """The curve with the same sizes, and with shares of a cluster with these totals."""
    share = _shares((spec.demand(counts) for counts in curve.sizes), total)
    if np.array_equal(share, curve.share):
        return curve
    there = replace(curve, share=share)
    return there if curve.known else prior(there)


def scales(spec: JobSpec, *totals: Resources) -> bool:
    """Whether the job has the same sizes in clusters with either of these totals: all its sizes fit, and which of them
    are useful does not depend on shares."""
    most = {g.type: g.maximum if g.type == WORKER else g.count for g in spec.groups}
    return not _adds_servers(spec) and all(spec.demand(most).within(total) for total in totals)


def _adds_servers(spec: JobSpec) -> bool:
    servers = spec.group(PS)
    return spec.elastic and servers is not None and servers.minimum < servers.maximum


def _useful(job: Job, known: Prediction, total: Resources, how: Sizes) -> Iterator[tuple[Counts, float]]:
    """Sizes and their speeds, smallest first, each faster than all before it."""
    spec, fastest, rates = job.spec, 0.0, _Rates(job, known)
    sizes: Iterable[Counts] = _by_workers(job, how)
    if _adds_servers(spec):
        oracle = job.speed is not None and not isinstance(job.speed, OnlineSpeed)
        sizes = _front(job, total) if how == "front" and oracle else _with_servers(job, rates, total)
        if how != "front" and (measured := list(_measured(job))):
            each = {_held(size): size for size in (*sizes, *measured)}.values()
            sizes = sorted(each, key=lambda size: spec.demand(size).dominant_share(total))
    for counts in sizes:
        if not spec.demand(counts).within(total):
            continue
        rate = rates.at(counts)
        if rate is not None and rate > fastest:
            fastest = rate
            yield counts, rate


class _Rates:
    """The job's speed at each size. Speeds are cached, as the search reaches a size several times."""

    def __init__(self, job: Job, known: Prediction) -> None:
        self._known = known
        self._job, self._size = job, job.counts
        # Only the present size is sure to keep CPU that was lent to it.
        self._requested = slowest_usable(job.spec.groups, job.placement, {}, shared=job.cpu_shared)
        self._table = None if job.speed is None or isinstance(job.speed, OnlineSpeed) else job.speed
        self._found: dict[tuple[tuple[str, int], ...], float | None] = {}

    def at(self, counts: Counts) -> float | None:
        """Steps per second; None where unknown."""
        key = tuple(counts.items())
        if key not in self._found:
            self._found[key] = self._find(counts)
        return self._found[key]

    def _find(self, counts: Counts) -> float | None:
        if self._table is not None and self._table.steps_per_s(counts) is None:
            return None  # the table of speeds does not have this size
        usable = None if counts == self._size else usable_at(self._job, counts, self._requested)
        rate = self._known.at(counts, usable)
        if rate is None or not isfinite(rate.steps_per_s) or rate.steps_per_s <= 0:
            return None
        return float(f"{rate.steps_per_s:.{DIGITS}}")


def _by_workers(job: Job, how: Sizes) -> Iterator[Counts]:
    """Worker counts within the bounds, with the least number of PSs."""
    spec = job.spec
    group = spec.group(WORKER)
    if not spec.elastic or group is None or group.minimum == group.maximum:
        yield spec.declared if group is None or not spec.elastic else spec.minimum
        return
    low, high = max(group.minimum, 0), group.maximum
    has = {job.counts.get(WORKER, 0), spec.declared.get(WORKER, 0)}
    if how == "doublings" or high - low > MOST_ROOTS:
        numbers = {high, *(n for n in has if low <= n <= high)} if how != "doublings" else set[int]()
        n = max(low, 1)
        while n <= high:
            numbers.add(n)
            n *= 2
        chosen = sorted(numbers)
    else:
        chosen = list(range(low, high + 1))
        known_speed = job.speed
        if known_speed is not None and not isinstance(known_speed, OnlineSpeed):
            chosen = [n for n in chosen if known_speed.steps_per_s({**spec.minimum, WORKER: n}) is not None]
        if len(chosen) > EACH_UP_TO:
            chosen = list(_thinned(chosen, has))
    for n in chosen:
        yield {**spec.minimum, WORKER: n}


def _thinned(numbers: list[int], kept: set[int]) -> Iterator[int]:
    last = 0.0
    for k, n in enumerate(numbers):
        if k < EACH_UP_TO // 2 or n >= last * STRIDE or n in kept or k == len(numbers) - 1:
            last = n
            yield n


def _front(job: Job, total: Resources) -> Iterator[Counts]:
    """All sizes that are faster than every cheaper one, and the job's present size."""
    points = HullRule(per_resource=True).front(job, total)
    sizes = [(cost, size) for cost, _, size in points]
    if job.placement and job.spec.within_bounds(job.counts) == job.counts:
        demand = job.spec.demand(job.counts).dominant_share(total) - job.spec.demand(job.spec.minimum).dominant_share(
            total
        )
        sizes.append((demand, job.counts))
    return (size for _, size in sorted(sizes, key=lambda each: each[0]))


def _with_servers(job: Job, rates: _Rates, total: Resources) -> Iterator[Counts]:
    """Sizes from the smallest one upwards: each adds the worker, the PS, or one of each with the largest gain per
    share. The job's current size is included."""
    spec, size = job.spec, dict(job.spec.minimum)
    most = {group.type: group.maximum for group in spec.groups}
    counts = job.counts
    stops = [counts] if job.placement and spec.within_bounds(counts) == counts else []
    yield size
    for bounds in (*stops, most):
        for _ in range(EACH_UP_TO):
            if size == bounds:
                break
            larger = _best_more(job.spec, rates, total, (size, bounds), harm=bounds is not most)
            if larger is None:
                break
            size = larger
            yield size


def _measured(job: Job) -> Iterator[Counts]:
    """The sizes that the job has run at. Adding the best next replica does not always reach the best of them."""
    if isinstance(job.speed, OnlineSpeed):
        for servers, workers in job.speed.measured:
            size = {**job.spec.minimum, PS: servers, WORKER: workers}
            if job.spec.within_bounds(size) == size:
                yield size


def _best_more(
    spec: JobSpec, rates: _Rates, total: Resources, between: tuple[Counts, Counts], *, harm: bool
) -> dict[str, int] | None:
    """The best size one increment above the first size and within the second. `harm`: even if it is slower."""
    size, bounds = between
    best: tuple[float, dict[str, int]] | None = None
    rate, held = rates.at(size) or 0.0, spec.demand(size).dominant_share(total)
    for more in ((WORKER,), (PS,), (WORKER, PS)):
        then = {**size, **{t: size.get(t, 0) + 1 for t in more}}
        if any(then[t] > bounds.get(t, 0) for t in more):
            continue
        there = rates.at(then)
        if there is None or (there <= rate and not harm):
            continue
        gain = (there - rate) / max(spec.demand(then).dominant_share(total) - held, 1e-12)
        if best is None or gain > best[0]:
            best = gain, then
    return best[1] if best is not None else None


def prior(curve: Curve) -> Curve:
    """Speeds proportional to the share to the power of the prior, 1 at the least size."""
    share = curve.share
    return replace(curve, rates=np.concatenate([[0.0], (share[1:] / share[1]) ** PRIOR_EXPONENT]), known=False)


def known_speed(job: Job) -> bool:
    """Whether the job's speed at its sizes is known without finished jobs of the same model."""
    speed = job.speed
    if speed is None or isinstance(speed, OnlineSpeed):
        return False
    return all(speed.steps_per_s(counts) for counts in (job.spec.minimum, job.counts) if any(counts.values()))


@dataclass(frozen=True, slots=True)
class Kept:
    """A cached curve (None: no size fits), its inputs, and the job's row in it. `known_speed`: whether the curve is
    independent of finished jobs."""

    total: Resources
    past: Past | None
    known_speed: bool
    settled: bool
    curve: Curve | None
    current: int


class CurveCache:
    """An index that caches each job's curve until one of its inputs changes. If only the totals of the cluster change
    (nodes are borrowed or returned), for most curves only the shares are recomputed."""

    def __init__(self, how: Sizes) -> None:
        self._how = how
        self._kept: dict[str, Kept] = {}

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is None:
            return
        if (
            after is None
            or before.spec is not after.spec
            or before.speed is not after.speed
            or before.steps_per_s != after.steps_per_s
            or before.placement != after.placement
            or before.cpu != after.cpu
        ):
            self._kept.pop(before.spec.key, None)

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True

    def of(self, job: Job, total: Resources, past: Past | None, settled: bool) -> tuple[Curve | None, int]:
        """The curve of a job in a cluster with these totals, and the job's row in it (0 if the job has none of the
        sizes). `settled`: whether the job's current speed counts."""
        kept = self._kept.get(job.spec.key)
        if kept is not None and (kept.settled != settled or not (kept.known_speed or kept.past is past)):
            kept = None
        if kept is None or kept.total != total:
            kept = self._kept[job.spec.key] = self._found(job, total, past, settled, kept)
        return kept.curve, kept.current

    def _found(self, job: Job, total: Resources, past: Past | None, settled: bool, other: Kept | None) -> Kept:
        """Compute the curve, or reuse `other`, the curve for different totals."""
        if other is not None and other.curve is not None and scales(job.spec, total, other.total):
            return replace(other, total=total, curve=scaled(other.curve, job.spec, total))
        seen = job if settled else replace(job, steps_per_s=0.0)
        curve = curve_of(seen, total, self._how, past)
        current = 0 if curve is None or not job.placement else curve.index(job.counts)
        return Kept(total, past, known_speed(job), settled, curve, current)


def curve_cache(how: Sizes) -> Callable[[Snapshot], CurveCache]:
    return lambda snapshot: CurveCache(how)

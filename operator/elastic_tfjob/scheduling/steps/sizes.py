"""Sizes: those above and below one, from sizes to nodes, the best sizes for all jobs together, and what a change
costs."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.scheduling.plan import BEHIND
from elastic_tfjob.scheduling.queue import Entry
from elastic_tfjob.scheduling.reasons import Why, added
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import Order
from elastic_tfjob.scheduling.snapshot import AS_REQUESTED, PS, WORKER, Counts, Cpu, Job, JobSpec, counts_of
from elastic_tfjob.scheduling.steps.declared_size import lacks
from elastic_tfjob.scheduling.steps.open_jobs import OpenJobs, Sized, SizesOf, Terms, open_jobs, usable_total

__all__ = ["LIVE_PAUSE_S", "ChangeCosts", "changes_live", "time_left_s"]

EACH_OF: Final = 8
"""How many sizes, from the wanted one downward, are each tried."""

LIVE_PAUSE_S: Final = 0.1
"""Seconds without a step when workers join or leave a running program (docs/benchmarks.md, bench-rescale)."""

MANY: Final = 64
"""A job with this many spare replicas gives more than one at a time."""


class Sizes(Protocol):
    """Sizes of a job, the largest first; an implementation may compute them on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, k: int, /) -> Counts: ...


def movable(job: Job, round_: Round) -> bool:
    """Whether the job's size may change now. A waiting job may always start."""
    if job.phase == "rescaling":
        return False
    if not job.placement:
        return True
    return job.spec.resizable and round_.now - job.rescaled_s >= round_.rules.cooldown_s


class Downward:
    """This size, then ever smaller ones down to the minimum."""

    def __init__(self, job: Job, counts: Counts) -> None:
        minimum = job.spec.minimum
        self._counts = counts
        self._least: dict[str, int] = {}
        self._number = 1
        for type_ in (WORKER, PS):
            n = counts.get(type_, 0)
            least = self._least[type_] = min(n, minimum.get(type_, 0))
            self._number = max(self._number, 1 + n - least)

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, k: int, /) -> Counts:
        if not 0 <= k < self._number:
            raise IndexError(f"size {k} of {self._number}")
        if not k:
            return self._counts
        least = self._least
        return {type_: max(least[type_], n - k) if type_ in least else n for type_, n in self._counts.items()}


def largest(round_: Round, job: Job, sizes: Sizes, attempt: Callable[[Counts], bool], number: int | None = None) -> int:
    """Give the job the largest of the first `number` sizes (None: of all) that finds nodes. Returns its index, or -1
    where no size does. `attempt` gives the job a size on the Round; where there are no nodes it returns False and
    leaves the Round unchanged.

    The first sizes are tried one by one; the others by bisection, which assumes that every size smaller than a fitting
    one fits. So a job with thousands of replicas takes only a few attempts.
    """
    number = len(sizes) if number is None else number
    for k in range(min(EACH_OF, number)):
        if attempt(sizes[k]):
            return k
    mark, had = round_.room.mark(), round_.changes.get(job.key)
    too_large, found = EACH_OF - 1, number - 1
    if found <= too_large or not attempt(sizes[found]):
        return -1
    stands = True
    while found - too_large > 1:
        if stands:
            round_.undo(mark, {job.key: had})
        middle = (too_large + found) // 2
        stands = attempt(sizes[middle])
        if stands:
            found = middle
        else:
            too_large = middle
    if not stands:
        attempt(sizes[found])  # it fitted before, and nothing has changed since
    return found


def bundle_more(spec: JobSpec, counts: Counts) -> Counts | None:
    """One worker and one PS more, as far as their maxima allow; None at the maximum."""
    grown = dict(counts)
    for type_ in (PS, WORKER):
        group = spec.group(type_)
        if group is not None and grown.get(type_, 0) < group.maximum:
            grown[type_] = grown.get(type_, 0) + 1
    return None if grown == counts else grown


def some_fewer(counts: Counts, floor: Counts) -> Counts | None:
    """One worker less, or one PS if no worker is spare; None at the floor. With very many spare replicas, a small
    fraction of them at once, so that giving all takes a few steps instead of thousands."""
    for type_ in (WORKER, PS):
        spare = counts.get(type_, 0) - floor.get(type_, 0)
        if spare > 0:
            return {**counts, type_: counts[type_] - 1 - spare // MANY}
    return None


# -- From sizes to nodes -----------------------------------------------------------------------------------------------

K = TypeVar("K", bound=Sized)
V = TypeVar("V", bound=OpenJobs[Any])


def candidates(
    round_: Round,
    kind: Callable[[Order, Terms, SizesOf[K], Resources], V],
    sizes_of: SizesOf[K],
    owner: Hashable,
    *,
    fixed: bool = False,
) -> tuple[V, Resources]:
    """The open jobs in the profile's order, with the result of `sizes_of` for each; and the totals that they share.
    `kind`, `owner`: as for `open_jobs`. `fixed`: whether jobs that cannot be resized may be stopped. Raises ValueError
    for an order in which waiting jobs pass running ones as time passes."""
    rules = round_.rules
    if rules.order.drift:
        raise ValueError(f"{rules.name}: waiting and running jobs have no common order that could be kept")
    jobs = open_jobs(round_, kind, Terms(rules.stop_cooldown_s, rules.cooldown_s, fixed=fixed), sizes_of, owner)
    for job in jobs.later.values():
        if not job.placement:
            round_.refuse(job, BEHIND)
    return jobs, usable_total(round_).minus(jobs.others)


def apply_rows(round_: Round, jobs: OpenJobs[K], rows: Sequence[int], why: Why) -> None:
    """Give each open job the size of its row (1: the first of its known sizes; 0: nothing). Jobs that already have this
    size are skipped."""
    differ = [k for k, (had, has) in enumerate(zip(jobs.rows, rows, strict=True)) if had != has]
    sizes = [jobs.known[k].sizes[rows[k] - 1] if rows[k] else None for k in differ]
    apply_sizes(round_, [jobs.jobs[k] for k in differ], sizes, why)


Below = Callable[[Job, Counts], Sizes]
"""From a size of a job: this size, then smaller ones that it may get instead."""


def apply_sizes(
    round_: Round,
    jobs: Sequence[Job],
    sizes: Sequence[Counts | None],
    why: Why | Mapping[str, Why],
    *,
    below: Below = Downward,
    last: Set[str] = frozenset(),
) -> None:
    """Give each of `jobs` its size, or nothing where that is None. `why` is the reason of the change, for all jobs or
    by the job's key. `below` gives the sizes that are tried where one finds no nodes. Jobs in `last` are placed last.

    First jobs shrink and stop; then jobs start and grow, small ones first (they fit anywhere, as in Optimus). A job
    that finds no nodes for its size gets the largest smaller size that fits; a running job at worst keeps its size.
    Jobs that got less are then tried again, as in the next round: others may have given up room, and single replicas
    may find nodes where the whole job does not."""
    repack = round_.rules.repack
    reasons = why if isinstance(why, Mapping) else dict.fromkeys((job.spec.key for job in jobs), why)
    placing: list[tuple[bool, int, int, Job, Counts]] = []
    for k, (job, counts) in enumerate(zip(jobs, sizes, strict=True)):
        said = reasons[job.spec.key]
        if counts is None:
            if job.placement:
                round_.stop(job, added(said, minimum=True))
        elif not job.placement:
            placing.append((job.spec.key in last, sum(counts.values()), k, job, counts))
        elif counts != (held := job.counts):
            if repack:
                round_.stop(job, added(said, no_nodes=counts))
                placing.append((job.spec.key in last, sum(counts.values()), k, job, counts))
            elif all(n <= held.get(type_, 0) for type_, n in counts.items()):
                round_.resize(job, counts, said)
            elif gains(job, counts, round_.rules.min_gain):
                placing.append((job.spec.key in last, sum(counts.values()), k, job, counts))
    wanting = [(job, counts) for _, _, _, job, counts in sorted(placing, key=lambda p: p[:3])]
    _place_all(round_, wanting, reasons, below)
    if not isinstance(why, Mapping):
        round_.held_back = added(why, minimum=True)


def _place_all(round_: Round, wanting: list[tuple[Job, Counts]], reasons: Mapping[str, Why], below: Below) -> None:
    """Give each job its size, or one of `below`; repeat until no job gets more."""
    failed: dict[str, int] = {}
    progress = True
    while progress:
        progress, lacking = False, []
        for job, counts in wanting:
            key = job.spec.key
            if failed.get(key) == round_.gave_back:
                lacking.append((job, counts))  # nothing became free since its last attempt
                continue
            got = _place(round_, job, counts, reasons[key], below)
            if got is None:
                failed[key] = round_.gave_back
            progress |= bool(got)
            if counts_of(round_.placement(job)) != counts:
                lacking.append((job, counts))
        wanting = lacking
    for job, _ in wanting:
        if job.spec.key in failed and not job.placement and not round_.placement(job):
            round_.refuse(job, lacks(job, round_))


def _place(round_: Round, job: Job, counts: Counts, why: Why, below: Below) -> bool | None:
    """Whether the job got this size, or a smaller one above its present size. None: it has nothing, and no size
    fits."""
    held = round_.placement(job)
    sizes = below(job, counts)

    def keeps(k: int) -> bool:
        return all(n <= len(held.get(type_, ())) for type_, n in sizes[k].items())

    def place(smaller: Counts) -> bool:
        return (round_.resize if held else round_.start)(job, smaller, why)

    if held:  # where no larger size fits, the job keeps its size
        number = bisect_left(range(len(sizes)), True, key=keeps)
    else:
        number = len(sizes) if _may_fit(round_, job, counts) else 0
    placed = largest(round_, job, sizes, place, number)
    if placed >= 0:
        return round_.placement(job) != held  # a start without replicas, or an unchanged size, is no progress
    return False if held else None


def _may_fit(round_: Round, job: Job, counts: Counts) -> bool:
    """Whether the totals hold the least size that a waiting job may get instead of this one: a quick check before
    nodes are searched."""
    spec, minimum = job.spec, job.spec.minimum
    if all(counts.get(type_, 0) >= n for type_, n in minimum.items()):
        return round_.room.fits_total(spec.minimum_demand)
    return round_.room.fits_total(spec.demand({t: min(n, minimum.get(t, 0)) for t, n in counts.items()}))


def gains(job: Job, counts: Counts, least: float) -> bool:
    """Whether growing to `counts` is worth a rescale: predicted speed-up of at least `least`, or speed unknown."""
    if least <= 0 or job.speed is None:
        return True
    now, then = job.speed.steps_per_s(job.counts), job.speed.steps_per_s(counts)
    return now is None or then is None or then >= now * (1 + least)


# -- Greedy filling over all jobs at once ------------------------------------------------------------------------------
# DRF, Optimus and hull give one unit after the other to the job with the smallest key, where a job's next key depends
# on its own size only. So the increments by which a job grows are known beforehand, each with its key, and the whole
# filling is one merge on arrays: take increments by key, and grant them until one does not fit.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OnFull = Literal["next", "stop"]

BATCH: Final = 1024
"""The least number of increments that are sorted at a time."""
MOST: Final = 2**61
"""The cap of each amount of an increment; free amounts are capped just below, so a capped increment fits nowhere.
Cumulative sums overflow at 2^63, but before they do one exceeds all that is free, so the first increment that does not
fit is found correctly."""


@dataclass(frozen=True, slots=True)
class Increments:
    """The increments of one job: its `sizes` from the minimum up, the non-decreasing `keys`, and the resources that
    each adds (`demand`)."""

    sizes: Sequence[Counts]
    keys: Floats
    demand: NDArray[np.int64]


class OpenIncrements(OpenJobs[Increments]):
    """The open jobs with their increments, these also as flat arrays over all jobs."""

    def __init__(self, order: Order, terms: Terms, sizes_of: SizesOf[Increments], total: Resources) -> None:
        super().__init__(order, terms, sizes_of, total)
        self._know()

    @property
    def lengths(self) -> Ints:
        """The number of increments per job."""
        return np.array(self._lengths, dtype=np.int64)

    @property
    def keys(self) -> Floats:
        """Per increment."""
        return np.array(self._keys, dtype=np.float64)

    @property
    def demand(self) -> Ints:
        """Per increment, by resource."""
        return np.array(self._demand, dtype=np.int64).reshape(-1, len(NOTHING))

    def steps_left(self, now: float) -> Floats:
        """Per job; 1 where the total is unknown."""
        total, steps, per_s, at = np.array(self._work, dtype=np.float64).reshape(-1, 4).T
        since = now - at
        left = total - (steps + per_s * np.where(since > 0, since, 0.0))
        return np.where(total == 0, 1.0, np.where(left > 0, left, 0.0))

    def _know(self) -> None:
        super()._know()
        self._lengths = array("q", (len(increments.sizes) for increments in self.known))
        self._keys, self._demand, self._work = array("d"), array("q"), array("d")
        for increments, job in zip(self.known, self.jobs, strict=True):
            self._keys.frombytes(increments.keys.tobytes())
            self._demand.frombytes(increments.demand.tobytes())
            self._work.extend(work(job))

    def _removed(self, k: int) -> None:
        super()._removed(k)
        first = sum(self._lengths[:k])
        its, width = slice(first, first + self._lengths.pop(k)), len(NOTHING)
        del self._keys[its], self._work[4 * k : 4 * k + 4]
        del self._demand[width * its.start : width * its.stop]

    def _inserted(self, k: int, job: Job) -> None:
        super()._inserted(k, job)
        increments, first = self.known[k], sum(self._lengths[:k])
        at, width = slice(first, first), len(NOTHING)
        self._lengths.insert(k, len(increments.sizes))
        self._keys[at] = array("d", increments.keys.tobytes())
        self._demand[width * first : width * first] = array("q", increments.demand.tobytes())
        self._work[4 * k : 4 * k] = array("d", work(job))

    def _replaced(self, entry: Entry, job: Job) -> None:
        k = bisect_left(self.entries, entry)
        if self._of(job) is not self.known[k]:
            super()._replaced(entry, job)
            return
        OpenJobs._removed(self, k)
        OpenJobs._inserted(self, k, job)
        self._work[4 * k : 4 * k + 4] = array("d", work(job))


def work(job: Job) -> tuple[float, float, float, float]:
    """Total steps (0: unknown); steps done at a time; steps per second from then on; and that time."""
    return job.spec.total_steps or 0.0, job.steps, job.steps_per_s, job.observed_s


def fill(jobs: OpenIncrements, keys: Floats, free: Resources, on_full: OnFull) -> list[int]:
    """How many increments each job gets. `keys` has one key per increment, job after job; equal keys go by job, then by
    increment.

    An increment that does not fit ends its job's growth (`next`), or all filling (`stop`).
    """
    lengths, demand = jobs.lengths, np.minimum(jobs.demand, MOST)
    granted = np.zeros(len(lengths), dtype=np.int64)
    job = np.repeat(np.arange(len(lengths)), lengths)
    nth = np.arange(len(job)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    left = np.array([min(part, MOST - 1) for part in free], dtype=np.int64)
    batch, later = np.arange(0), np.arange(len(job))
    while len(batch) or len(later):
        if not len(batch):
            batch, later = lowest(keys, later, max(BATCH, len(lengths)))
        over = np.any(np.cumsum(demand[batch], axis=0) > left, axis=1)
        stuck = int(np.argmax(over)) if over.any() else len(batch)
        fits, batch = batch[:stuck], batch[stuck:]
        granted += np.bincount(job[fits], minlength=len(lengths))
        left = left - demand[fits].sum(axis=0)
        if not len(batch):
            continue
        if on_full == "stop":
            break
        # An increment that does not fit alone never will, nor will later ones of its job.
        first = np.full(len(lengths), np.iinfo(np.int64).max)
        for some in (batch, later):
            too_much = some[np.any(demand[some] > left, axis=1)]
            np.minimum.at(first, job[too_much], nth[too_much])
        batch, later = (some[nth[some] < first[job[some]]] for some in (batch, later))
    per_job: list[int] = granted.tolist()
    return per_job


def lowest(keys: Floats, increments: Ints, n: int) -> tuple[Ints, Ints]:
    """About `n` increments with the lowest keys, sorted, and the others, most of which are never reached."""
    if len(increments) > n:
        candidates = keys[increments]
        among = candidates <= np.partition(candidates, n)[n]
        if among.any():  # NaN sorts last
            increments, others = increments[among], increments[~among]
            return increments[np.argsort(keys[increments], kind="stable")], others
    return increments[np.argsort(keys[increments], kind="stable")], increments[:0]


# -- What a change costs a job, in seconds of lost training, and whether it pays ---------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeCosts:
    """`pause_s`: how long a change of size or nodes stops training. `start_cpu_s`: CPU time of starting one process of
    the training program; `start_kept_cpu_s`: the same in a replica that stays, for a job with a warm start. `lost_s`:
    training since the last checkpoint that a stop loses; 0 where the stop waits for a checkpoint. `live_pause_s`: the
    pause where only workers change, and join and leave the running program."""

    pause_s: float = 1.0
    start_cpu_s: float = 12.0
    lost_s: float = 0.0
    start_kept_cpu_s: float = 12.0
    live_pause_s: float = LIVE_PAUSE_S

    def starting_s(self, job: Job) -> float:
        """Seconds until the slowest replica's program has started, with the CPU that it holds."""
        return _takes_s(job, self.start_cpu_s, job.cpu)

    def starting_as_requested_s(self, job: Job) -> float:
        """Seconds until the slowest replica's program has started with the CPU that it requests: CPU beyond that is
        only lent."""
        return _takes_s(job, self.start_cpu_s, AS_REQUESTED)

    def rescale_s(self, job: Job, saved: float = 0.0, counts: Counts | None = None) -> float:
        """What a change to `counts` (None: to some size) costs, in seconds of training.

        The pause, plus the cost of starting the new program beside the running one. That start takes its CPU time at
        the pace of the slowest replica. It costs half of the training meanwhile, and the part `saved` of the other
        half, since the new size is late. A job without a first step loses all of its start so far.

        With a warm start, replicas that stay lose this only for their own short start. New replicas start on CPU of
        their own; until then the new size saves nothing. Where only workers change, and can while the program runs, no
        replica that stays starts anything."""
        starting_s = self.starting_s(job)
        if counts is not None and changes_live(job, counts):
            return self.live_pause_s + (starting_s * saved if counts[WORKER] > job.counts.get(WORKER, 0) else 0.0)
        beside_s = (
            _takes_s(job, min(self.start_cpu_s, self.start_kept_cpu_s), job.cpu) if job.warm_start else starting_s
        )
        part = (1 + saved) / 2 if job.steps_per_s > 0 else 1.0
        return self.pause_s + beside_s * part + (starting_s - beside_s) * saved

    def move_s(self, job: Job) -> float:
        """A move of replicas costs as much as a rescale that saves nothing by itself."""
        return self.rescale_s(job)

    def stop_s(self, job: Job) -> float:
        """A stop and a later start, without the wait between: no training while programs start, and training since the
        last checkpoint is repeated."""
        return self.pause_s + self.starting_s(job) + self.lost_s

    def worth(self, job: Job, saved: float, now: float, counts: Counts | None = None) -> bool:
        """Whether a change to `counts` costs less than the part `saved` of the time left; with 0: than all of it."""
        return time_left_s(job, now) * (saved or 1.0) > self.rescale_s(job, saved, counts)


def changes_live(job: Job, counts: Counts) -> bool:
    """Whether the job can change to these counts while its program runs: by workers alone."""
    held = job.counts
    others = all(held.get(type_, 0) == counts.get(type_, 0) for type_ in {*held, *counts} - {WORKER})
    return job.live_workers and others and min(held.get(WORKER, 0), counts.get(WORKER, 0)) > 0


def _takes_s(job: Job, cpu_s: float, held: Cpu) -> float:
    """Seconds that the slowest replica takes for this CPU time, with the CPU that it holds, else requests."""
    spec = job.spec
    types = job.placement or spec.minimum
    slowest = min((min(held.get(t, ()), default=0) or spec.requested_cpu(t) for t in types), default=0)
    return 1000 * cpu_s / slowest if slowest else 0.0


def time_left_s(job: Job, now: float) -> float:
    """Seconds left; a job of unknown length is expected to run as long again as it has run."""
    ran = job.executed_s + max(0.0, now - job.since_s)
    left: float | None = None
    if job.spec.total_steps is not None:
        left = job.remaining_s(now)
    elif job.spec.duration_s is not None:
        left = max(0.0, job.spec.duration_s - ran)
    return ran if left is None else left

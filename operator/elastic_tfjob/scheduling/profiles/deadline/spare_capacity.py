"""SpareCapacity, which distributes the capacity not needed for deadlines to the jobs that gain most speed; and CPU in
place for jobs that would miss their deadlines."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf, isfinite
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.scheduling.forecasts import prediction_of, work_left
from elastic_tfjob.scheduling.profiles.deadline.curves import (
    DEMAND,
    GAIN,
    HAD,
    NO_INCREMENTS,
    ROW,
    Curve,
    Floats,
    Increments,
    Way,
)
from elastic_tfjob.scheduling.profiles.deadline.deadline_round import DeadlineRound, JobCase, settled
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.shared_cpu import slowest_usable
from elastic_tfjob.scheduling.snapshot import EVALUATOR, Cpu, Job
from elastic_tfjob.scheduling.steps.cpu_in_place import Claim, CpuInPlace, adjusts, millicores
from elastic_tfjob.scheduling.steps.sizes import time_left_s

__all__ = ["CpuRaises", "SpareCapacity", "cpu_for_late_jobs"]

LEAST_S: Final = 1.0
"""The minimum number of seconds that a job is assumed to have left."""

Entry = tuple[float, int, int]
"""(-gain, case, row): the best larger size of a case, as last computed."""


class SpareCapacity:
    """Distributes capacity in increments. Each one goes to the job with the largest gain in speed, relative to its
    remaining work, per share of the cluster.

    So short jobs come before long ones, and a second worker before a tenth. The gain grows with the age of the job
    relative to the time that it needs (highest response ratio next, Brinch Hansen, 1971), so no job waits forever.

    While all requested increments fit, their order does not depend on the free capacity, and all turns are computed at
    once on arrays. From the first shortage on, turns are computed one at a time.
    """

    def __init__(self, deadline_round: DeadlineRound) -> None:
        self._deadline_round, self._cases = deadline_round, deadline_round.cases
        self._power = deadline_round.settings.speed_power
        self._bonus = 1 + deadline_round.settings.keep
        """The factor by which capacity that a job already has is worth more than the same capacity for another job."""
        self._kept = -1
        self._values: Floats = np.zeros(len(self._cases))
        self._untold: Sequence[int] = range(len(self._cases))
        """The cases whose value is computed from the usual remaining time; initially all."""
        self._ways = [_way(job_case, deadline_round.settings.min_gain) for job_case in self._cases]
        self._increments = [NO_INCREMENTS] * len(self._cases)

    def share(self, lowered: Iterable[int] | None = None) -> None:
        """Distribute all free capacity by setting the rows of the cases. `lowered`: the indices of the cases whose row
        or `most` has changed since the last call; None: all."""
        self._look(lowered)
        self._one_by_one(*self._while_room(self._free()))

    def _free(self) -> list[float]:
        return [float(part) for part in self._deadline_round.room_now()]

    def _look(self, lowered: Iterable[int] | None) -> None:
        self._value()
        for k in range(len(self._cases)) if lowered is None else lowered:
            self._increments[k] = self._increments_of(k)

    def _value(self) -> None:
        """The value of a step per second per share of the cluster, for each case, until more cases are kept as they
        are."""
        kept = sum(job_case.kept for job_case in self._cases)
        if kept == self._kept:
            return
        self._kept, now = kept, self._deadline_round.round.now
        if not self._untold:
            return
        usual, settings = _usual_s(self._cases), self._deadline_round.settings
        for k in self._untold:
            job_case = self._cases[k]
            left_s = max(LEAST_S, _left_s(job_case, now, usual))
            age_s = max(0.0, now - job_case.job.spec.arrival_s) if settings.ageing else 0.0
            slow = left_s**settings.left_power * job_case.curve.plain.rates[1] ** self._power
            self._values[k] = (1 + age_s / left_s) / slow
        self._untold = [k for k in self._untold if not _told(self._cases[k])]

    def _increments_of(self, k: int) -> Increments:
        job_case, way = self._cases[k], self._ways[k]
        if job_case.kept or (job_case.probe and job_case.row):
            return NO_INCREMENTS
        most = max(1, job_case.current) if job_case.probe and job_case.most is None else job_case.most
        if most is not None and most < way.last:
            way = self._ways[k] = Way(way.current, way.first, most)
        return job_case.curve.increments(self._power).of(job_case.row, way)

    def _while_room(self, free: list[float]) -> tuple[list[Entry], list[float]]:
        """Take all turns before the first one that lacks a resource. Returns the next increments and what is free
        then."""
        by_case = self._increments
        lengths = np.array([len(increments) for increments in by_case])
        asking = np.flatnonzero(lengths)
        if not len(asking):
            return [], free
        increments = np.concatenate(by_case)
        demand = increments[:, DEMAND]
        case_of, firsts = np.arange(len(by_case)).repeat(lengths), lengths.cumsum() - lengths
        gains = increments[:, GAIN] * self._values[case_of] * np.where(increments[:, HAD], self._bonus, 1.0)
        keys = -_falling(gains, case_of)
        # A case whose first increment does not fit asks for a smaller one, and is not among those that grow here.
        small = asking[(demand[firsts[asking]] > free).any(axis=1)]
        heap = [entry for k in small.tolist() if (entry := self._next(k, free)) is not None]
        rises = np.ones(len(by_case), dtype=np.bool_)
        rises[small] = False
        order = np.flatnonzero(rises[case_of])
        order = order[keys[order].argsort(kind="stable")]
        left = np.array(free) - demand[order].cumsum(axis=0)
        # A case's next increment is chosen when the case gets the previous one: it must fit then, and again at its
        # turn.
        then = np.minimum(order + 1, len(case_of) - 1)
        same_case = (then > order) & (case_of[then] == case_of[order])
        short = (left < 0).any(axis=1) | (same_case & (demand[then] > left).any(axis=1))
        turns = int(short.argmax()) if short.any() else len(order)
        if heap:
            turns = min(turns, int(np.searchsorted(keys[order], min(heap)[0])))
        got = np.bincount(case_of[order[:turns]], minlength=len(by_case))
        for k in np.flatnonzero(got).tolist():
            self._cases[k].row = int(increments[firsts[k] + got[k] - 1, ROW])
        following = np.flatnonzero(rises & (got < lengths))
        at = (firsts + got)[following]
        heap += zip(
            (-gains[at]).tolist(), following.tolist(), increments[at, ROW].astype(np.int64).tolist(), strict=True
        )
        return heap, left[turns - 1].tolist() if turns else free

    def _one_by_one(self, heap: list[Entry], free: list[float]) -> None:
        cases = self._cases
        heapify(heap)
        while heap:
            _, k, row = heappop(heap)
            job_case = cases[k]
            want, has = job_case.curve.plain.demand[row], job_case.curve.plain.demand[job_case.row]
            left = [
                free[0] - (want[0] - has[0]),
                free[1] - (want[1] - has[1]),
                free[2] - (want[2] - has[2]),
                free[3] - (want[3] - has[3]),
                free[4] - (want[4] - has[4]),
            ]
            if min(left) >= 0:
                free = left
                job_case.row = row
            then = self._next(k, free)
            if then is not None:
                heappush(heap, then)

    def _next(self, k: int, free: list[float]) -> Entry | None:
        """The best larger size of a case that fits; None if no size is worth its cost."""
        job_case, way = self._cases[k], self._ways[k]
        demand, row = job_case.curve.plain.demand, job_case.row
        start, last = way.beyond(row)
        held = demand[row]
        cpu, memory, accelerators, pods, storage = free
        for larger, gain in reversed(job_case.curve.increments(self._power).better(row, start)):
            want = demand[larger]
            if (
                larger <= last
                and want[0] - held[0] <= cpu
                and want[1] - held[1] <= memory
                and want[2] - held[2] <= accelerators
                and want[3] - held[3] <= pods
                and want[4] - held[4] <= storage
            ):
                return -gain * float(self._values[k]) * (self._bonus if row < way.current else 1.0), k, larger
        return None


def _way(job_case: JobCase, min_gain: float) -> Way:
    """The rows to which a case may go: above its present row only where that pays for the pause; and where a larger
    size must start first, only if the job then ends correspondingly earlier."""
    curve, need, current = job_case.curve, job_case.need, job_case.current
    rates = curve.plain.rates
    last = len(rates) - 1
    if not current:
        return Way(0, 0, last)
    least, now_s = rates[current] * (1 + min_gain), need.lasts_s(curve, current)
    most_s = now_s / (1 + min_gain) if need.start_s else now_s
    first = current + 1
    # Rates rise from row to row.
    while first <= last and (rates[first] < least or (isfinite(now_s) and need.lasts_s(curve, first) >= most_s)):
        first += 1
    return Way(current, first, last)


def _falling(gains: Floats, case_of: NDArray[np.int64]) -> Floats:
    """The turn of each increment: one that gains more than the one below it comes right after that."""
    rises = np.flatnonzero((gains[1:] > gains[:-1]) & (case_of[1:] == case_of[:-1]))
    if not len(rises):
        return gains
    falling = gains.copy()
    for k in np.unique(case_of[rises]).tolist():
        first, end = np.searchsorted(case_of, (k, k + 1)).tolist()
        falling[first:end] = np.minimum.accumulate(gains[first:end])
    return falling


def _left_s(job_case: JobCase, now: float, usual: float) -> float:
    """Seconds that the job has left at its least size; where unknown, the usual time, but at least as long as it has
    run."""
    if _told(job_case):
        return job_case.need.steps_left / job_case.curve.plain.rates[1]
    lasts = time_left_s(job_case.job, now)
    return (
        lasts
        if job_case.job.spec.duration_s is not None and job_case.job.spec.total_steps is None
        else max(usual, lasts)
    )


def _told(job_case: JobCase) -> bool:
    """Whether the job's remaining time is known."""
    return job_case.curve.known and job_case.need.steps_left < inf


def _usual_s(cases: list[JobCase]) -> float:
    """The mean remaining time of jobs for which it is known."""
    known = [
        job_case.need.steps_left / job_case.curve.plain.rates[1]
        for job_case in cases
        if not job_case.kept and _told(job_case)
    ]
    return sum(known) / len(known) if known else LEAST_S


# -- CPU in place for jobs that meet their deadlines only with more CPU than they request ------------------------------
# More CPU needs no new start, so it is preferred over a resize: `CpuRaises` gives it while sizes are chosen. Jobs whose
# size is not chosen in this round get it afterwards, from `cpu_for_late_jobs`.

TIMES: Final = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0)
"""The factors on the request of a job's busiest replicas that are tried. The replicas get the smallest sufficient
factor, or keep their CPU if none is sufficient. The expected speed comes from the law of utilisation, which is no more
precise than these steps."""
MARGIN: Final = 0.1
"""The fraction of the remaining time that is kept as a margin for the law's error."""


class Want(NamedTuple):
    """Millicores per replica that suffice for a deadline, and the steps per second expected with them."""

    cpu: Cpu
    steps_per_s: float


class CpuRaises:
    """Running jobs that keep their size and get more CPU. Their curves end at that size, with the higher speed and the
    additional CPU. Jobs whose size is not chosen in this round take part, too."""

    def __init__(self, lending: CpuInPlace, deadline_round: DeadlineRound) -> None:
        self._lending, self._deadline_round = lending, deadline_round
        chosen = {job_case.job.key for job_case in deadline_round.cases}
        self._unchosen = _late(lending, chosen)[::-1]
        self._before: dict[str, Curve] = {}

    def take(self, job_case: JobCase) -> bool:
        """Whether the job's nodes have enough CPU for the job to meet its deadline at its current size. If so, this CPU
        is reserved."""
        job, curve, row, deadline_round = job_case.job, job_case.curve, job_case.current, self._deadline_round
        believed = row and settled(job, deadline_round.round.now, deadline_round.settings.settle_s)
        want = _want(self._lending, job, spare=0.0) if believed else None
        if want is None or not _granted(self._lending, job, want):
            return False
        self._before[job.key] = curve
        job_case.curve = _ending(
            curve, row, want.steps_per_s, Resources(job.spec.extra_cpu(want.cpu)), deadline_round.total
        )
        return True

    @property
    def raised(self) -> Set[str]:
        """The keys of jobs whose size was chosen because of this CPU."""
        return self._before.keys()

    def withdraw(self, job_case: JobCase) -> None:
        """Allow the job another size again."""
        curve = self._before.pop(job_case.job.key, None)
        if curve is not None:
            job_case.curve = curve
            self._lending.grants.withdraw(job_case.job)

    def withdraw_all(self) -> None:
        """Take back all CPU; the curves do not change."""
        for job in [*self._lending.grants.jobs.values()]:
            self._lending.grants.withdraw(job)

    def came_before(self, job_case: JobCase) -> bool:
        """Whether a job with a later deadline got CPU. If this job must first show its speed, any job counts."""
        raised = [_deadline(job) for job in self._lending.grants.jobs.values()]
        return bool(raised) and (job_case.probe or _deadline(job_case.job) < max(raised))

    def take_before(self, job_case: JobCase) -> None:
        """Let jobs with earlier deadlines whose size is not chosen take their CPU."""
        while self._unchosen and self._unchosen[-1][0] < _deadline(job_case.job):
            by_s, key, want = self._unchosen.pop()
            job = self._lending.round.job(key)
            if _granted(self._lending, job, want):
                more = Resources(job.spec.extra_cpu(want.cpu))
                self._deadline_round.timeline.hold(more, by_s - self._deadline_round.round.now)


def cpu_for_late_jobs(lending: CpuInPlace) -> None:
    """Give CPU in the order of deadlines, before it is lent to busy jobs. Jobs that would be late even with more CPU,
    or whose nodes have too little CPU left, get none here."""
    for _, key, want in _late(lending):
        _granted(lending, lending.round.job(key), want)


def _deadline(job: Job) -> float:
    return inf if job.spec.deadline_s is None else job.spec.deadline_s


def _late(lending: CpuInPlace, without: Set[str] = frozenset()) -> list[tuple[float, str, Want]]:
    """Deadlines and keys of the jobs that need more CPU than they request, earliest first, with the CPU that
    suffices."""
    jobs = {job.key: job for job in lending.lent if job.key not in without}
    jobs |= {key: lending.round.job(key) for key in lending.busy if key not in without}
    late = [(_deadline(job), key, want) for key, job in jobs.items() if (want := _want(lending, job))]
    return sorted(late, key=lambda each: each[:2])


def _ending(curve: Curve, row: int, steps_per_s: float, more: Resources, total: Resources) -> Curve:
    """The curve up to this row, whose speed is `steps_per_s` with `more` resources."""
    rates, demand, share = (part[: row + 1].copy() for part in (curve.rates, curve.demand, curve.share))
    rates[row] = max(steps_per_s, rates[row])
    demand[row] += more
    share[row] = max(share[row], Resources(*demand[row].tolist()).dominant_share(total))
    return replace(curve, sizes=curve.sizes[:row], rates=rates, demand=demand, share=share)


def _granted(lending: CpuInPlace, job: Job, want: Want) -> bool:
    """Whether the job's nodes have all of the wanted CPU. A part of it would not suffice for the deadline."""
    claims = list(_claims(lending, job, want.cpu))
    lending.grants.water_fill(claims)
    if any(lending.grants.held(job, claim.type, claim.replica) < claim.want_millicores for claim in claims):
        lending.grants.withdraw(job)
        return False
    return True


def _want(lending: CpuInPlace, job: Job, spare: float = MARGIN) -> Want | None:
    """The CPU that suffices for the job's deadline, with a margin. None: the requested CPU suffices and leaves the
    fraction `spare` of the remaining time; or no amount of CPU suffices; or CPU has no effect."""
    round_, spec = lending.round, job.spec
    measured = job.key in lending.busy and adjusts(lending, job)
    # CPU use is measured again after each change. Until then the job is assumed to need the CPU that it was given.
    raised = bool(job.cpu) and not job.cpu_use and job.phase == "running" and round_.placement(job) == job.placement
    if spec.deadline_s is None or spec.fixed_cpu or not job.cpu_limited or not (measured or raised):
        return None
    left_s = spec.deadline_s - round_.now
    left = work_left(job, round_.now, round_.snapshot.past(spec))
    if left is None or left_s <= 0:
        return None
    needed_per_s, aimed_per_s = (left[0] / (left_s * (1 - part)) for part in (spare, MARGIN))
    return (_still if raised else _least)(lending, job, needed_per_s, aimed_per_s)


def _still(lending: CpuInPlace, job: Job, needed_per_s: float, aimed_per_s: float) -> Want | None:
    """The CPU that the job holds, if it may reach `aimed_per_s` with it and certainly does not reach
    `needed_per_s` with its request. Its measured speed may be from before the last change."""
    requested = job.spec.requested_cpu
    parts = [min(1.0, requested(type_) / held) for type_, each in job.cpu.items() for held in each if held]
    least = min(parts, default=1.0)
    if job.steps_per_s * least >= needed_per_s or aimed_per_s > job.steps_per_s / (least or 1.0):
        return None
    return Want(job.cpu, max(job.steps_per_s, aimed_per_s))


def _least(lending: CpuInPlace, job: Job, needed_per_s: float, aimed_per_s: float) -> Want | None:
    """The least CPU with which the job reaches `aimed_per_s`, if it is slower than `needed_per_s` with its
    request."""
    spec, snapshot = job.spec, lending.round.snapshot
    if not job.cpu and job.steps_per_s >= needed_per_s:
        return None
    known = prediction_of(job, snapshot.past(spec), snapshot.nodes)
    for times in TIMES:
        each = _balanced(job, times)
        cpu = {t: (each[t],) * n for t, n in job.counts.items()}
        rate = known.at(job.counts, slowest_usable(spec.groups, job.placement, cpu, shared=job.cpu_shared))
        if rate is None:
            continue
        if times == 1 and rate.steps_per_s >= needed_per_s:
            return None
        if times > 1 and rate.steps_per_s >= aimed_per_s:
            return Want(cpu, rate.steps_per_s)
    return Want(job.cpu, job.steps_per_s) if job.cpu and job.steps_per_s >= aimed_per_s else None


def _balanced(job: Job, times: float) -> dict[str, int]:
    """Millicores of a replica by type if the types that limit the speed get `times` their request. The remaining types
    get what the law of utilisation then requires, and at least their request. If the types work at once, their CPU is
    proportional to their work; if they take turns, to the square root of their work, which gives the shortest step for
    a given total of CPU."""
    requested = {type_: job.spec.requested_cpu(type_) for type_, n in job.counts.items() if n}
    use = {type_: u for type_, u in job.cpu_use.items() if type_ in requested and type_ != EVALUATOR}
    work = {type_: u * job.held_cpu(type_) / job.counts[type_] for type_, u in use.items()}
    pace = max(use, key=lambda type_: (use[type_], type_), default="")
    if not work.get(pace):
        return {type_: millicores(each) for type_, each in requested.items()}
    power = 1.0 if sum(use.values()) > 1 else 0.5
    top = times * requested[pace]
    return {
        type_: millicores(max(each, top * (work[type_] / work[pace]) ** power if type_ in work else 0.0))
        for type_, each in requested.items()
    }


def _claims(lending: CpuInPlace, job: Job, wants: Cpu) -> Iterator[Claim]:
    for type_, names in lending.round.placement(job).items():
        yield from (Claim(job, type_, k, want) for k, want in enumerate(wants.get(type_, ())[: len(names)]))

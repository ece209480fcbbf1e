"""What deadlines leave over goes where it brings most."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf, isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.scheduling.profiles.deadline.curves import Floats
from elastic_tfjob.scheduling.profiles.deadline.increments import DEMAND, GAIN, HAD, NO_INCREMENTS, ROW, Increments, Way
from elastic_tfjob.scheduling.profiles.deadline.outlook import Case, Outlook
from elastic_tfjob.scheduling.toolkit.cost import time_left_s

__all__ = ["Rest"]

LEAST_S: Final = 1.0
"""A job that is about to end counts as if it had this left."""

Entry = tuple[float, int, int]
"""(-gain, case, row): the best larger size of a case when it was looked at."""


class Rest:
    """To the job whose speed, relative to what it has left, gains most for the share of the cluster, size by size.

    So short jobs come before long ones, and a second worker before a tenth. The gain grows with the age of the job
    over the time that it needs (highest response ratio next, Brinch Hansen, 1971), so that nobody waits for ever.

    While there is room for all that is asked for, who comes next does not depend on it, and all turns are found at
    once, on arrays; from where something is short on, one after the other.
    """

    def __init__(self, outlook: Outlook) -> None:
        self._outlook, self._cases = outlook, outlook.cases
        self._power = outlook.settings.speed_power
        self._bonus = 1 + outlook.settings.keep
        """By this much more what a job has is worth to it than the same to another."""
        self._kept = -1
        self._values: Floats = np.zeros(len(self._cases))
        self._untold: Sequence[int] = range(len(self._cases))
        """Those whose worth goes by what is usual; at first all."""
        self._ways = [_way(case, outlook.settings.min_gain) for case in self._cases]
        self._increments = [NO_INCREMENTS] * len(self._cases)

    def share(self, lowered: Iterable[int] | None = None) -> None:
        """Share all that is free: the rows of the cases become what each gets beside the row that it has. `lowered`:
        the places of the cases whose row or `most` is not as it was when it was shared last; None: all."""
        self._look(lowered)
        self._one_by_one(*self._while_room(self._free()))

    def _free(self) -> list[float]:
        return [float(part) for part in self._outlook.room_now()]

    def _look(self, lowered: Iterable[int] | None) -> None:
        self._value()
        for k in range(len(self._cases)) if lowered is None else lowered:
            self._increments[k] = self._increments_of(k)

    def _value(self) -> None:
        """What a step per second, for the share of the cluster, is worth to each case: as long as no more of them stay
        as they are."""
        kept = sum(case.kept for case in self._cases)
        if kept == self._kept:
            return
        self._kept, now = kept, self._outlook.round.now
        if not self._untold:
            return
        usual, settings = _usual_s(self._cases), self._outlook.settings
        for k in self._untold:
            case = self._cases[k]
            left_s = max(LEAST_S, _left_s(case, now, usual))
            age_s = max(0.0, now - case.job.spec.arrival_s) if settings.ageing else 0.0
            slow = left_s**settings.left_power * case.curve.plain.rates[1] ** self._power
            self._values[k] = (1 + age_s / left_s) / slow
        self._untold = [k for k in self._untold if not _told(self._cases[k])]

    def _increments_of(self, k: int) -> Increments:
        case, way = self._cases[k], self._ways[k]
        if case.kept or (case.probe and case.row):
            return NO_INCREMENTS
        most = max(1, case.current) if case.probe and case.most is None else case.most
        if most is not None and most < way.last:
            way = self._ways[k] = Way(way.current, way.first, most)
        return case.curve.increments(self._power).of(case.row, way)

    def _while_room(self, free: list[float]) -> tuple[list[Entry], list[float]]:
        """Take the turns that come before all in which something is short: what is asked for next, and what is free
        then."""
        by_case = self._increments
        lengths = np.array([len(increments) for increments in by_case])
        asking = np.flatnonzero(lengths)
        if not len(asking):
            return [], free
        increments = np.concatenate(by_case)
        demand = increments[:, DEMAND]
        whose, firsts = np.arange(len(by_case)).repeat(lengths), lengths.cumsum() - lengths
        gains = increments[:, GAIN] * self._values[whose] * np.where(increments[:, HAD], self._bonus, 1.0)
        keys = -_falling(gains, whose)
        # Who does not find room for its first increment asks for a smaller one, and is not among those that rise.
        small = asking[(demand[firsts[asking]] > free).any(axis=1)]
        heap = [entry for k in small.tolist() if (entry := self._next(k, free)) is not None]
        rises = np.ones(len(by_case), dtype=np.bool_)
        rises[small] = False
        order = np.flatnonzero(rises[whose])
        order = order[keys[order].argsort(kind="stable")]
        left = np.array(free) - demand[order].cumsum(axis=0)
        # What a case asks for next is chosen when it has got the last: it has to fit then, and when its turn comes.
        then = np.minimum(order + 1, len(whose) - 1)
        goes_on = (then > order) & (whose[then] == whose[order])
        short = (left < 0).any(axis=1) | (goes_on & (demand[then] > left).any(axis=1))
        turns = int(short.argmax()) if short.any() else len(order)
        if heap:
            turns = min(turns, int(np.searchsorted(keys[order], min(heap)[0])))
        got = np.bincount(whose[order[:turns]], minlength=len(by_case))
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
            case = cases[k]
            want, has = case.curve.plain.demand[row], case.curve.plain.demand[case.row]
            left = [
                free[0] - (want[0] - has[0]),
                free[1] - (want[1] - has[1]),
                free[2] - (want[2] - has[2]),
                free[3] - (want[3] - has[3]),
                free[4] - (want[4] - has[4]),
            ]
            if min(left) >= 0:
                free = left
                case.row = row
            then = self._next(k, free)
            if then is not None:
                heappush(heap, then)

    def _next(self, k: int, free: list[float]) -> Entry | None:
        """The best larger size of a case that fits; None where there is none that pays."""
        case, way = self._cases[k], self._ways[k]
        demand, row = case.curve.plain.demand, case.row
        start, last = way.beyond(row)
        held = demand[row]
        cpu, memory, accelerators, pods, storage = free
        for larger, gain in reversed(case.curve.increments(self._power).better(row, start)):
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


def _way(case: Case, min_gain: float) -> Way:
    """Where a case may go: beyond what it has only where that pays, and is worth the pause; where a larger size has to
    start first, only if the job ends so much earlier with that."""
    curve, need, current = case.curve, case.need, case.current
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


def _falling(gains: Floats, whose: NDArray[np.int64]) -> Floats:
    """By when each increment has its turn: one that gains more than the one below it comes right after that."""
    rises = np.flatnonzero((gains[1:] > gains[:-1]) & (whose[1:] == whose[:-1]))
    if not len(rises):
        return gains
    falling = gains.copy()
    for k in np.unique(whose[rises]).tolist():
        first, end = np.searchsorted(whose, (k, k + 1)).tolist()
        falling[first:end] = np.minimum.accumulate(gains[first:end])
    return falling


def _left_s(case: Case, now: float, usual: float) -> float:
    """Seconds that the job has left at its least size; where nothing tells that, what is usual, but no less than it has
    run so far."""
    if _told(case):
        return case.need.left / case.curve.plain.rates[1]
    lasts = time_left_s(case.job, now)
    return lasts if case.job.spec.duration_s is not None and case.job.spec.total_steps is None else max(usual, lasts)


def _told(case: Case) -> bool:
    """Whether it is known how long the job has left."""
    return case.curve.known and case.need.left < inf


def _usual_s(cases: list[Case]) -> float:
    """What jobs that are known have left, in the mean."""
    known = [case.need.left / case.curve.plain.rates[1] for case in cases if not case.kept and _told(case)]
    return sum(known) / len(known) if known else LEAST_S

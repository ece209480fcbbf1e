"""Speeds as a profile sees them: tables of measured speeds, the law of utilisation, finish times, the calibration of
expected speeds, and the sizes with known speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log
from statistics import median
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = ["SETTLED_S", "Calibration", "SizeTable", "calibration", "counts_between", "known_sizes"]


class Speed(Protocol):
    """The training speed of a job by size."""

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        """Training steps per second with these replicas per type ("PS", "Worker", ...), or None when unknown."""
        ...


# -- Tables of measured speeds -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """Steps per second by (PSs, workers). A size that was not measured has no speed."""

    rates: Mapping[tuple[int, int], float]

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return self.rates.get((counts.get("PS", 0), counts.get("Worker", 0)))


# -- The speedup of a job with more CPU, computed from the CPU utilisation of its replicas -----------------------------
# It is used for sizes that were never measured.
#
# The law of utilisation: let u_t be the fraction of its CPU that replica type t uses. A type that gets k_t times as
# much CPU would use the fraction u_t / k_t of it at the same speed. The consequence depends on whether the types work
# in turns or at once (Lazowska et al., Quantitative System Performance, 1984, chapters 3 and 5):
#
#     sum of u <= 1   in turns, one step is the sum of its parts:   1 / (1 - sum u + sum u_t / k_t)    (Amdahl)
#     sum of u > 1    at once, the busiest one sets the pace:       max u / max (u_t / k_t)


def speedup(use: Mapping[str, float], more: Mapping[str, float]) -> float:
    """The factor on steps per second if types get `more` times their CPU (missing: the same); 1 if unknown.

    `use` is the fraction of its CPU that each type uses now, 0 to 1. If a type would get no CPU, the speed is unknown.
    """
    if not any(use.values()) or any(more.get(type_, 1.0) <= 0 for type_ in use):
        return 1.0
    then = {type_: u / more.get(type_, 1.0) for type_, u in use.items()}
    together = sum(use.values())
    if together <= 1:
        return 1 / (1 - together + sum(then.values()))
    return max(use.values()) / max(then.values())


# -- The finish time of a job, with a 90 % interval --------------------------------------------------------------------

Z90 = 1.645
Z80 = 1.2816
"""Half widths, in standard deviations, of two-sided 90 and 80 % intervals of a normal distribution."""


@dataclass(frozen=True, slots=True)
class FinishTime:
    """The expected finish time and the ends of its 90 % interval, in seconds on the clock of `now`."""

    expected_s: float
    earliest_s: float
    latest_s: float


def predict(now: float, steps_left: float, steps_per_s: float, relative_error: float = 0.0) -> FinishTime:
    """The finish time at this speed. `relative_error` is the relative error of the speed model (its residual)."""
    if steps_left <= 0:
        return FinishTime(now, now, now)
    if steps_per_s <= 0:
        return FinishTime(inf, inf, inf)
    expected = steps_left / steps_per_s
    spread = Z90 * relative_error
    latest = now + expected / (1 - spread) if spread < 1 else inf
    return FinishTime(now + expected, now + expected / (1 + spread), latest)


# -- Calibration: how measured speeds compare with expected ones -------------------------------------------------------

SETTLED_S: Final = 60.0
"""The seconds that a job must train after a change before its speed is compared with the expected one."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """`error` is the median of |measured / expected - 1|, `ratio` that of measured / expected, of `count` changes.
    `within`: the share of them in the 80 % interval of the expected speed; a good belief has 0.8."""

    error: float
    ratio: float
    count: int
    within: float


def calibration(found: Sequence[tuple[float, float]]) -> Calibration:
    """The calibration from at least one pair: the ratio of measured / expected speed, and the relative error that was
    expected (one standard deviation)."""
    ratios = [ratio for ratio, _ in found]
    inside = sum(abs(log(ratio)) <= Z80 * error for ratio, error in found if ratio > 0)
    return Calibration(median(abs(each - 1) for each in ratios), median(ratios), len(found), inside / len(found))


# -- Known sizes: the sizes with their speeds among which a profile searches for the fastest ---------------------------

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

EACH_UP_TO: Final = 24
"""The number of smallest counts that are all tried; above them the counts become sparser."""
STRIDE: Final = 1.2


@dataclass(frozen=True, slots=True)
class SizeTable:
    """PSs, workers and steps per second of each size. All speeds are above 0."""

    ps: Ints
    workers: Ints
    steps_per_s: Floats


def counts_between(least: int, most: int) -> list[int]:
    """The replica counts that are tried, including both ends. For large ranges their number grows logarithmically."""
    counts = list(range(least, min(most, least + EACH_UP_TO) + 1))
    while counts[-1] < most:
        counts.append(min(most, int(counts[-1] * STRIDE) + 1))
    return counts


@lru_cache(maxsize=256)
def grid(ps: tuple[int, int], workers: tuple[int, int]) -> tuple[Ints, Ints]:
    """PSs and workers of every size that is tried. Jobs with equal bounds share these arrays."""
    p, w = (np.array(counts_between(*bounds), dtype=np.int64) for bounds in (ps, workers))
    found = np.repeat(p, len(w)), np.tile(w, len(p))
    for axis in found:
        axis.setflags(write=False)
    return found


def known_sizes(speed: Speed, ps: tuple[int, int], workers: tuple[int, int]) -> SizeTable:
    """The sizes within these bounds (least, most) whose speed is known.

    Without a trusted fit these are the measured sizes. Any other size is believed to have the speed of the nearest
    measured one, so a search over all sizes would take the cheapest one to be as fast as the fastest.
    """
    if isinstance(speed, OnlineSpeed) and (speed.fit is None or not speed.fit.confident):
        return _measured(speed, ps, workers)
    p, w = grid(ps, workers)
    if not isinstance(speed, OnlineSpeed) or speed.fit is None:
        found = [speed.steps_per_s({"PS": a, "Worker": b}) for a, b in zip(p.tolist(), w.tolist(), strict=True)]
        return _positive(p, w, np.array([rate or 0.0 for rate in found]))
    rates = speed.fit.predict_all(p, w)
    for (a, b), rate in speed.measured.items():
        rates[(p == a) & (w == b)] = rate
    return _positive(p, w, rates)


def _measured(speed: OnlineSpeed, ps: tuple[int, int], workers: tuple[int, int]) -> SizeTable:
    within: Sequence[tuple[int, int, float]] = sorted(
        (a, b, rate) for (a, b), rate in speed.measured.items() if ps[0] <= a <= ps[1] and workers[0] <= b <= workers[1]
    )
    return _positive(
        np.array([a for a, _, _ in within], dtype=np.int64),
        np.array([b for _, b, _ in within], dtype=np.int64),
        np.array([rate for _, _, rate in within], dtype=np.float64),
    )


def _positive(ps: Ints, workers: Ints, rates: Floats) -> SizeTable:
    known = np.isfinite(rates) & (rates > 0)
    return SizeTable(ps[known], workers[known], rates[known])

"""The sizes of a job among which a policy looks for the fastest, each with the speed that is believed of it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.speed.model import Speed
from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = ["Sizes", "counts_between", "known_sizes"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

EACH_UP_TO: Final = 24
"""So many counts from the least are each tried, then ever fewer."""
STRIDE: Final = 1.2


@dataclass(frozen=True, slots=True)
class Sizes:
    """PSs, workers and steps per second of each size; the speed is above 0."""

    ps: Ints
    workers: Ints
    steps_per_s: Floats


def counts_between(least: int, most: int) -> list[int]:
    """The counts of replicas that are tried, both ends among them: of many their number grows with the logarithm."""
    counts = list(range(least, min(most, least + EACH_UP_TO) + 1))
    while counts[-1] < most:
        counts.append(min(most, int(counts[-1] * STRIDE) + 1))
    return counts


@lru_cache(maxsize=256)
def grid(ps: tuple[int, int], workers: tuple[int, int]) -> tuple[Ints, Ints]:
    """PSs and workers of every size that is tried; jobs of equal bounds share them."""
    p, w = (np.array(counts_between(*bounds), dtype=np.int64) for bounds in (ps, workers))
    found = np.repeat(p, len(w)), np.tile(w, len(p))
    for axis in found:
        axis.setflags(write=False)
    return found


def known_sizes(speed: Speed, ps: tuple[int, int], workers: tuple[int, int]) -> Sizes:
    """The sizes within these bounds (least, most) whose speed is known.

    Where no fit is trusted these are the measured ones: the belief at any other is the speed of the nearest, with which
    a search among all of them would take the cheapest for as fast as the fastest.
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


def _measured(speed: OnlineSpeed, ps: tuple[int, int], workers: tuple[int, int]) -> Sizes:
    within: Sequence[tuple[int, int, float]] = sorted(
        (a, b, rate) for (a, b), rate in speed.measured.items() if ps[0] <= a <= ps[1] and workers[0] <= b <= workers[1]
    )
    return _positive(
        np.array([a for a, _, _ in within], dtype=np.int64),
        np.array([b for _, b, _ in within], dtype=np.int64),
        np.array([rate for _, _, rate in within], dtype=np.float64),
    )


def _positive(ps: Ints, workers: Ints, rates: Floats) -> Sizes:
    known = np.isfinite(rates) & (rates > 0)
    return Sizes(ps[known], workers[known], rates[known])

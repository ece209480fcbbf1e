"""The increments by which a job grows where nothing else is short: from each size to the one that gains most for its
share of the cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.scheduling.resources import NOTHING

__all__ = ["DEMAND", "GAIN", "HAD", "NO_INCREMENTS", "ROW", "CurveIncrements", "Increments", "Way"]

MOST_KEPT: Final = 64
"""Of one job increments are kept for so many rows and ways. Few are asked for: they differ by what it has and what is
set aside for it."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where a job may go on its curve: `current` is the row that it has (0: none of them), from which it goes to row
    `first` at least, and `last` is the largest row that it may get. Below `current` it may have any row up to that."""

    current: int
    first: int
    last: int

    def beyond(self, row: int) -> tuple[int, int]:
        """The least and the largest row to which it may go from this one."""
        if row < self.current:
            return row + 1, min(self.last, self.current)
        return max(row + 1, self.first), self.last


Increments = NDArray[np.float64]
"""By increment: the row of the curve, the speed gained for the share of the cluster (steps per second), whether the job
has that already, and what the increment takes by resource (as in Resources)."""
ROW: Final = 0
GAIN: Final = 1
HAD: Final = 2
DEMAND: Final = slice(3, None)
NO_INCREMENTS: Final[Increments] = np.zeros((0, 3 + len(NOTHING)))


class CurveIncrements:
    """The increments of a curve, from each row found once. Arguments are as in Curve: row 0 stands for nothing."""

    def __init__(self, rates: Sequence[float], share: Sequence[float], demand: Sequence[Sequence[float]]) -> None:
        self._rates, self._share, self._demand = rates, share, demand
        self._better: dict[tuple[int, int], list[tuple[int, float]]] = {}
        self._made: dict[tuple[int, Way], Increments] = {}

    def better(self, row: int, start: int) -> list[tuple[int, float]]:
        """The rows from `start` on that gain more for their share, coming from `row`, than all between: with that."""
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
        """From this row up."""
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

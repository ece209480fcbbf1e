"""Optimus' speed model of parameter-server (PS) training, fitted to measured speeds.

f(p, w) in steps per second with p parameter servers and w workers (Peng et al., EuroSys'18, section 3.2):

    synchronous   1/f = a/w + b + c w/p + d w + e p     (a holds the total batch, which is the same at every size)
    asynchronous  w/f = a + b w/p + c w + d p

All coefficients are at least 0. In this inverted form both formulas are linear in the coefficients, so they are fitted
by non-negative least squares of relative errors. For jobs without PSs the terms in p are omitted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.speed.history import Conditions, Size

Mode = Literal["sync", "async"]
Array = NDArray[np.float64]

POINTS_NEEDED: dict[Mode, int] = {"sync": 5, "async": 4}
"""The number of different measured sizes that a trusted fit needs: the number of coefficients."""
RESIDUAL_TRUSTED = 0.25
"""The largest root mean square relative error of a trusted fit. Good fits have 0.05 to 0.2."""


@dataclass(frozen=True, slots=True)
class OptimusFit:
    """A fit: its coefficients, the number of different measured sizes, and the root mean square relative error
    there."""

    mode: Mode
    coefficients: tuple[float, ...]
    points: int
    residual: float

    @property
    def confident(self) -> bool:
        return self.points >= POINTS_NEEDED[self.mode] and self.residual <= RESIDUAL_TRUSTED

    def predict(self, ps: int, workers: int) -> float:
        """Steps per second. 0 without workers, or if all terms of the size are 0."""
        if workers <= 0:
            return 0.0
        cost = float(np.dot(basis(self.mode, ps, workers), self.coefficients))
        if cost <= 0:
            return 0.0
        return (1 if self.mode == "sync" else workers) / cost

    def predict_all(self, ps: NDArray[np.int64], workers: NDArray[np.int64]) -> Array:
        """`predict` for many sizes at once."""
        per_ps = np.divide(workers, ps, out=np.zeros(len(ps)), where=ps > 0)
        some, whole = np.maximum(workers, 1), np.ones(len(ps))
        parts = [whole, per_ps, workers, ps] if self.mode == "async" else [1 / some, whole, per_ps, workers, ps]
        cost = np.array(self.coefficients) @ np.array(parts, dtype=np.float64)
        rates = np.divide(workers if self.mode == "async" else whole, cost, out=np.zeros(len(ps)), where=cost > 0)
        return np.where(workers > 0, rates, 0.0)


@dataclass(frozen=True, slots=True)
class OnlineSpeed:
    """The speed as a policy believes it. A measured size overrides the fit. Without a trusted fit, a size has the speed
    of the nearest measured size, so no gain is expected without knowledge. None before any measurement.
    `conditions`: those under which a size was measured, if known.
    """

    measured: Mapping[Size, float]
    fit: OptimusFit | None = None
    conditions: Mapping[Size, Conditions] = field(default_factory=dict)

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        size = (counts.get("PS", 0), counts.get("Worker", 0))
        if size in self.measured:
            return self.measured[size]
        if self.fit is not None and self.fit.confident:
            return self.fit.predict(*size)
        if not self.measured:
            return None
        nearest = min(self.measured, key=lambda s: (abs(s[0] - size[0]) + abs(s[1] - size[1]), s))
        return self.measured[nearest]


def believe(
    seen: Mapping[Size, float],
    mode: Mode = "sync",
    conditions: Mapping[Size, Conditions] | None = None,
) -> OnlineSpeed:
    """The belief from these steps per second by (PSs, workers) and the conditions at each size.

    Sizes without workers or without speed are ignored.
    """
    measured = {size: rate for size, rate in seen.items() if rate > 0 and size[1] > 0}
    enough = len(measured) >= POINTS_NEEDED[mode]
    return OnlineSpeed(measured, fit(measured, mode) if enough else None, dict(conditions or {}))


def fit(measured: Mapping[Size, float], mode: Mode = "sync") -> OptimusFit:
    """Least squares of relative errors over sizes (PSs, workers) and their steps per second, coefficients >= 0."""
    cost = np.array([(1 if mode == "sync" else w) / rate for (_, w), rate in measured.items()])
    rows = np.array([basis(mode, p, w) for p, w in measured]) / cost[:, None]
    coefficients = nnls(rows, np.ones(len(cost)))
    residual = float(np.sqrt(np.mean((rows @ coefficients - 1) ** 2)))
    return OptimusFit(mode, tuple(float(c) for c in coefficients), len(measured), residual)


def basis(mode: Mode, ps: int, workers: int) -> Array:
    per_ps = workers / ps if ps else 0.0
    if mode == "sync":
        return np.array([1 / workers, 1.0, per_ps, workers, ps], dtype=np.float64)
    return np.array([1.0, per_ps, workers, ps], dtype=np.float64)


def nnls(a: Array, b: Array) -> Array:
    """Minimises |a x - b| over x >= 0. The result is exact for the few columns here: it is the best of the non-negative
    least squares solutions over all subsets of columns (the optimum is one of them).
    """
    columns = a.shape[1]
    best, best_error = np.zeros(columns), float(np.sum(b**2))
    for size in range(1, columns + 1):
        for subset in combinations(range(columns), size):
            part = a[:, subset]
            x, _, rank, _ = np.linalg.lstsq(part, b, rcond=None)
            if rank < size or np.any(x < 0):
                continue
            error = float(np.sum((part @ x - b) ** 2))
            if error < best_error - 1e-12:
                best, best_error = np.zeros(columns), error
                best[list(subset)] = x
    return best

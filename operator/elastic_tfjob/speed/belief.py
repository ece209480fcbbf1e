"""Belief: a Gaussian process over the logarithm of a job's speed, by size and by usable CPU.

A mean function says what is expected before anything is measured (prediction.py has three: the fit of Optimus' formula,
the law of utilisation, the prior). The process describes how the true speed deviates from it. The deviation between
two sizes grows with their distance, by `shape` per doubling of each coordinate, as a fractional Brownian motion
(Mandelbrot and Van Ness, 1968): sizes near each other deviate alike, so a measurement corrects the mean between and
beyond the measured sizes, and less with distance. The level of the speed is unknown before the first measurement.

Jobs of the same model have the same shape, and each its own level (`level` is the standard deviation between jobs).
If the measurements deviate more, or less, from the mean than `shape` says, all uncertainty grows, or shrinks, by the
same factor (an estimate with the weight of PRIOR_WEIGHT measurements).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Belief", "Evidence", "Floats", "Scales", "belief_of"]

Floats = NDArray[np.float64]
Mean = Callable[[Floats], Floats]
"""From points (one per row) to the expected logarithm of speed, up to a constant."""

UNKNOWN_LEVEL: Final = 25.0
"""Variance of the logarithm of a speed before any measurement."""
PRIOR_WEIGHT: Final = 4.0
LEAST_SCALE, MOST_SCALE = 0.4, 3.0
"""Bounds of the factor on the uncertainty."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Standard deviations of the logarithm of speed: `shape` for one doubling of each coordinate, `level` between jobs
    of the same model."""

    shape: tuple[float, ...]
    level: float

    def times(self, factor: float) -> "Scales":
        """The same, with all deviations of the shape multiplied."""
        return Scales(tuple(each * factor for each in self.shape), self.level)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measured speeds. `points`: n x d, the logarithms to base 2 of each coordinate; `log_rates`: n natural logarithms
    of steps per second; `noise`: n relative errors (one standard deviation); `jobs`: n numbers of the jobs measured,
    0 for the job itself."""

    points: Floats
    log_rates: Floats
    noise: Floats
    jobs: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed after the evidence. `scale`: the factor on the uncertainty that the evidence showed; `level`
    is added to the mean."""

    evidence: Evidence
    mean: Mean
    scales: Scales
    scale: float
    level: float
    weights: Floats
    inverse: Floats

    def at(self, points: Floats) -> tuple[Floats, Floats]:
        """The logarithms of the speeds at m points (m x d), and their covariance (m x m)."""
        own = np.repeat(self.evidence.jobs[:, None] == 0, len(points), axis=1)
        cross = _covariance(self.evidence.points, points, own, self.scales)
        expected: Floats = self.mean(points) + self.level + cross.T @ self.weights
        prior = _covariance(points, points, np.ones((len(points), len(points)), dtype=np.bool_), self.scales)
        return expected, (prior - cross.T @ self.inverse @ cross) * self.scale**2


def belief_of(evidence: Evidence, mean: Mean, scales: Scales) -> Belief:
    """The belief from at least one measurement."""
    known, jobs = evidence.points, evidence.jobs
    covariance = _covariance(known, known, jobs[:, None] == jobs[None, :], scales)
    covariance[np.diag_indices_from(covariance)] += evidence.noise**2
    inverse: Floats = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    raw: Floats = evidence.log_rates - mean(known)
    level = float(np.average(raw, weights=evidence.noise**-2))
    residual: Floats = raw - level
    weights: Floats = inverse @ residual
    # One degree of freedom goes to the unknown level.
    free = len(known) - 1
    surprise = float(residual @ weights)
    scale = ((PRIOR_WEIGHT + surprise) / (PRIOR_WEIGHT + free)) ** 0.5
    return Belief(evidence, mean, scales, min(max(scale, LEAST_SCALE), MOST_SCALE), level, weights, inverse)


def _covariance(a: Floats, b: Floats, same_job: NDArray[np.bool_], scales: Scales) -> Floats:
    """The prior covariance between points, n x d and m x d. Seen from the origin, the variance of the motion at x is
    |x|^1.5, and so is that of a difference at the distance x. `same_job`: whether points are of one job, n x m."""
    shape = np.array(scales.shape) ** 2 / 2
    apart = _variance(a[:, None, :] - b[None, :, :]) @ shape
    found: Floats = (_variance(a) @ shape)[:, None] + (_variance(b) @ shape)[None, :] - apart
    found += UNKNOWN_LEVEL + scales.level**2 * same_job
    return found


def _variance(distance: Floats) -> Floats:
    """|x|^1.5: twice the Hurst exponent is 1.5. With 1 a deviation would not continue beyond the measured sizes; with 2
    it would do so in full."""
    x = np.abs(distance)
    return x * np.sqrt(x)

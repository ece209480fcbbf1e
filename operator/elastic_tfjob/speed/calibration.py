"""What came of an expected speed: measured over expected, and how far off they are in the median. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

__all__ = ["SETTLED_S", "Calibration", "calibration"]

SETTLED_S: Final = 60.0
"""For how long a job has to train after a change before its speed is compared with the one expected."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """`error` is the median of |measured / expected - 1|, `ratio` that of measured / expected, of `count` changes."""

    error: float
    ratio: float
    count: int


def calibration(ratios: Sequence[float]) -> Calibration:
    """Of speeds measured over those expected, at least one."""
    return Calibration(median(abs(each - 1) for each in ratios), median(ratios), len(ratios))

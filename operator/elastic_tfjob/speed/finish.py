"""When a job will finish, and between which times."""

from dataclasses import dataclass
from math import inf

Z90 = 1.645
"""Half width, in standard deviations, of a two-sided 90 % interval of a normal distribution."""


@dataclass(frozen=True, slots=True)
class FinishTime:
    """Points on the clock of `now`, in seconds: expected, and the ends of a 90 % interval."""

    expected_s: float
    earliest_s: float
    latest_s: float


def predict(now: float, steps_left: float, steps_per_s: float, relative_error: float = 0.0) -> FinishTime:
    """The finish at this speed; `relative_error` is the speed model's (its residual)."""
    if steps_left <= 0:
        return FinishTime(now, now, now)
    if steps_per_s <= 0:
        return FinishTime(inf, inf, inf)
    expected = steps_left / steps_per_s
    spread = Z90 * relative_error
    latest = now + expected / (1 - spread) if spread < 1 else inf
    return FinishTime(now + expected, now + expected / (1 + spread), latest)

"""When the memory of a replica is raised, and how far. Pure; the operator and the simulator decide by it.

A use that will exceed the limit is forecast from its highest value and its growth over the last minutes, and of late. A
limit is never lowered: it came from a peak, or from a kill.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final, Protocol

__all__ = [
    "AGAIN_S",
    "GIVE_UP_S",
    "NO_ROOM_S",
    "MemoryFigures",
    "MemoryRule",
    "after_kill",
    "even",
    "fits",
    "forecast",
    "raised",
    "short",
]

NO_ROOM_S: Final = 20.0
"""Seconds for which a node may have no room for a raise before the replica leaves it."""
GIVE_UP_S: Final = 120.0
AGAIN_S: Final = 300.0
"""Seconds until a raise must be in force: a replica on a full node moves meanwhile. Else the replicas keep what they
have, as pods with more memory could not be created either; and seconds until it is tried again."""
_UNIT: Final = 64 << 20
"""Limits are multiples of this many bytes."""
_EVEN: Final = 1.3
"""The highest use of a replica by their mean, up to which replicas count as even."""


class MemoryFigures(Protocol):
    """The use of a replica: bytes, and bytes per second. None: unknown."""

    @property
    def highest_bytes(self) -> int | None:
        """The highest use of the last minutes."""
        ...

    @property
    def growth_bytes_per_s(self) -> float | None:
        """The growth over the last minutes."""
        ...

    @property
    def growth_of_late_bytes_per_s(self) -> float | None:
        """The growth over the last seconds."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """`headroom`: the part of a limit that stays free, at least `least_headroom` bytes, which a burst needs until a
    raise is in force. `horizon_s`: for how many seconds the growth of the last minutes goes on, and `burst_s` that of
    late. `step`: a new limit by the forecast, and `least_step` by the old limit. `after_kill`: by the limit at a
    kill."""

    headroom: float = 0.1
    least_headroom: int = 192 << 20
    horizon_s: float = 60.0
    burst_s: float = 10.0
    step: float = 1.25
    least_step: float = 1.2
    after_kill: float = 1.5


def forecast(rule: MemoryRule, use: MemoryFigures) -> int:
    """The bytes that a replica will use soon; 0: unknown."""
    if use.highest_bytes is None:
        return 0
    steady, late = use.growth_bytes_per_s or 0.0, use.growth_of_late_bytes_per_s or 0.0
    return round(use.highest_bytes + max(steady * rule.horizon_s, late * rule.burst_s))


def fits(rule: MemoryRule, limit: int, use: MemoryFigures) -> bool:
    """Whether a replica will stay within its limit, with headroom."""
    return forecast(rule, use) <= limit - max(rule.headroom * limit, rule.least_headroom) or not use.highest_bytes


def short(rule: MemoryRule, limit: int, use: MemoryFigures) -> bool:
    """Whether a replica will soon be killed at its limit."""
    return forecast(rule, use) > limit


def even(uses: Sequence[MemoryFigures]) -> bool:
    """Whether replicas use about as much, so that with one more of them each will use less. Optimus (EuroSys'18,
    section 5.3) and DLRover's Brain, too, take one parameter server that holds far more for a matter of the division.
    """
    found = [use.highest_bytes for use in uses if use.highest_bytes]
    return bool(found) and max(found) < _EVEN * mean(found)


def raised(rule: MemoryRule, limit: int, use: MemoryFigures, most: int) -> int:
    """The limit of a replica that will not fit its present one, at most `most` bytes."""
    need = forecast(rule, use)
    wanted = max(rule.step * need, need + rule.least_headroom, rule.least_step * limit)
    return max(limit, min(_rounded(wanted), most))


def after_kill(rule: MemoryRule, limit: int, most: int) -> int:
    """The limit of a replica that was killed at `limit`; at most `most`, and never lower than it was."""
    return max(limit, min(_rounded(rule.after_kill * limit), most))


def _rounded(amount: float) -> int:
    return -(-round(amount) // _UNIT) * _UNIT

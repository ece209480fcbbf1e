"""A profile: the rules that a round goes by, and the steps of which it consists."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import Rules

LIVE_INTERVAL_S: Final = 15.0
"""The longest time between two live rounds of a profile that names none: not all that changes there is told at once."""

Step = Callable[[Round], None]
"""One step of a round: starts, stops, resizes or moves jobs, lends CPU, or refuses with a reason. It acts on the Round
only, and leaves the Round in order: whatever is placed has room."""


@runtime_checkable
class Reads(Protocol):
    """A step that goes by a file, as its first round reads it."""

    def later(self) -> None:
        """No round reads it: it is for `read`, which may be called at any time and from any thread."""

    def read(self) -> None: ...


class Lend(Protocol):
    """Which nodes of another pool to borrow or give back: `Snapshot.pools` says how many, which ones is chosen here.

    Acts on a Round: it may shrink or move jobs before nodes go back, since who is still there then is moved or stopped.
    """

    def lend(self, round_: Round) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Rules):
    """`interval_s` is the longest time between two rounds (0: only when something changes); with `on_change` false a
    change waits for the next multiple of it. `drifts`: what it decides moves with the clock alone, so that a round is
    due at every interval. `oracle` tells that the policy is given the true duration and speed; without it a simulated
    job's speed is measured at `sample_points` sizes before it starts, as Optimus does on a test slot. `learns`: whether
    it uses the speeds that jobs show wherever they run. `shares_cpu`: as in Stages.
    """

    lend: Lend
    steps: tuple[Step, ...]
    drifts: bool = False
    shares_cpu: bool = False
    interval_s: float = 0.0
    on_change: bool = True
    oracle: bool = False
    sample_points: int = 0
    learns: bool = False

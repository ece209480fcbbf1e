"""A profile: the rules that a round follows, and the steps of the round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import Rules

LIVE_INTERVAL_S: Final = 15.0
"""The longest time between two live rounds of a profile that sets no interval: some changes have no notification."""

Step = Callable[[Round], None]
"""One step of a round: starts, stops, resizes or moves jobs, lends CPU, or refuses with a reason. It acts on the Round
only, and leaves it in order: whatever is placed has room."""


@runtime_checkable
class Reads(Protocol):
    """A step that needs a file. By default its first round reads the file."""

    def later(self) -> None:
        """Let no round read the file: `read` will, at any time and from any thread."""

    def read(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Rules):
    """`lend` borrows nodes of other pools and gives them back, before the other steps; None: no node is borrowed.
    `drifts`: decisions change with the clock alone, so a round is due at every interval. `oracle`: the policy gets
    true durations and speeds; without it a simulated job's speed is measured at `sample_points` sizes before it
    starts, as Optimus does on a test slot. `learns`: it uses the speeds that jobs show while they run.
    `shares_cpu`: as in Stages. `begin`: called before all steps; None: nothing is.
    """

    steps: tuple[Step, ...]
    begin: Step | None = None
    lend: Step | None = None
    drifts: bool = False
    shares_cpu: bool = False
    oracle: bool = False
    sample_points: int = 0
    learns: bool = False

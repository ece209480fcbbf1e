"""A profile composes stages, each a small protocol with one deciding method, and the steps of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

from elastic_tfjob.scheduling.room import FreeCapacity, Rank
from elastic_tfjob.scheduling.snapshot import Counts, Job, JobSpec, Placement

if TYPE_CHECKING:
    from elastic_tfjob.scheduling.round import Round

LIVE_INTERVAL_S: Final = 15.0
"""The longest time between two live rounds of a profile that names none: not all that changes there is told at once."""

OrderKey = tuple[float, ...]
Step = Callable[["Round"], None]
"""One step of a round: starts, stops, resizes or moves jobs, lends CPU, or refuses with a reason. It acts on the Round
only, and leaves the Round in order: whatever is placed has room."""

Need = Literal[
    "oracle",
    "samples",
    "totals",
    "loans",
    "stop",
    "move",
    "repack",
    "resize",
    "cpu",
    "service",
    "duration",
    "speed",
    "deadline",
    "loss",
    "use",
    "history",
]
"""What a profile needs of the world that carries out its plans.

To be told: `oracle` true durations and speeds; `samples` of a job's speed before it starts; `duration` how long jobs
take; `speed` how fast they are at other sizes; `deadline`; `loss` how fast the training loss falls; `service` what jobs
have held so far, and for how long; `use` how much of the CPU that they hold replicas use; `history` what finished jobs
taught.
To be done: `stop` running jobs; `move` replicas that run to other nodes; `resize` running jobs; `repack`: place a job
whose size changes anew; `cpu` change what replicas hold in place; `loans` of nodes of another pool. `totals`: no node
is chosen, which only a simulation can carry out.
"""


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


class Order(Protocol):
    """Which job first. Implementations are frozen dataclasses: a queue is kept per equal Order."""

    @property
    def drift(self) -> float:
        """What a second adds to the first part of a waiting job's key, beside those of running jobs.

        1 for keys that count from now when a job waits and are points in time when it runs; else 0.
        """
        ...

    def key(self, job: Job, now: float) -> OrderKey:
        """Smallest first. Priority goes before it; arrival, sequence and name break ties after it.

        It may change with the job and at `next_jump_s`, not otherwise with the clock.
        """
        ...

    def next_jump_s(self, job: Job, now: float) -> float | None:
        """When this job's place in the order jumps although nothing happens (LAS's thresholds); None: never."""
        ...


class Place(Protocol):
    """Which nodes. Takes the replicas from what is free and returns where they are, or None and leaves it unchanged."""

    @property
    def rank(self) -> Rank: ...

    @property
    def totals_only(self) -> bool:
        """Whether the FreeCapacity is one node with the sum of all."""
        ...

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        """Place `add` replicas per type; `beside` are the replicas of the job that stay where they are."""
        ...


@dataclass(frozen=True, slots=True)
class Profile:
    """`needs` is what the world must have. `interval_s` is the longest time between two rounds (0: only when something
    changes); with `on_change` false a change waits for the next multiple of it. `drifts`: what it decides moves with
    the clock alone, so that a round is due at every interval. `oracle` tells that the policy is given the true duration
    and speed; without it a simulated job's speed is measured at `sample_points` sizes before it starts, as Optimus does
    on a test slot. A job is rescaled at most every `cooldown_s`, and grows only if its speed is predicted to gain
    `min_gain`. `repack`: a job whose size changes is placed anew as a whole. `learns`: whether it uses the speeds that
    jobs show wherever they run. For `stop_cooldown_s` a job that was stopped is not resumed, and one that was resumed
    is not stopped, unless its node goes back to another pool. `shares_cpu`: as in Stages.
    """

    name: str
    lend: Lend
    order: Order
    steps: tuple[Step, ...]
    place: Place
    needs: frozenset[Need]
    drifts: bool = False
    shares_cpu: bool = False
    interval_s: float = 0.0
    on_change: bool = True
    oracle: bool = False
    cooldown_s: float = 0.0
    min_gain: float = 0.0
    repack: bool = False
    sample_points: int = 0
    learns: bool = False
    stop_cooldown_s: float = 0.0

    @property
    def adjusts_cpu(self) -> bool:
        """Whether it gives replicas more CPU than they request."""
        return "cpu" in self.needs

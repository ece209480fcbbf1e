"""A profile composes five stages; each stage is a small protocol with one deciding method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from elastic_tfjob.scheduling.plan import Loan
from elastic_tfjob.scheduling.room import Rank, Room
from elastic_tfjob.scheduling.snapshot import Counts, Job, JobSpec, Placement, Snapshot

if TYPE_CHECKING:
    from elastic_tfjob.scheduling.round import Round

OrderKey = tuple[float, ...]


class Lend(Protocol):
    """Which nodes of the other pool to borrow or give back."""

    def lend(self, snapshot: Snapshot) -> tuple[Loan, ...]: ...


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


class Allocate(Protocol):
    """How many replicas each job gets. Acts on a Round: starts, stops and resizes jobs, or refuses with a reason."""

    @property
    def drifts(self) -> bool:
        """Whether what it decides moves with the clock alone, so that a round is due at every interval."""
        ...

    def allocate(self, round_: Round) -> None: ...


class Place(Protocol):
    """Which nodes. Takes the replicas from the Room and returns where they are, or None and leaves it unchanged."""

    @property
    def rank(self) -> Rank: ...

    @property
    def totals_only(self) -> bool:
        """Whether the Room is one node with the sum of all."""
        ...

    def place(self, spec: JobSpec, add: Counts, room: Room, beside: Placement) -> Placement | None:
        """Place `add` replicas per type; `beside` are the replicas of the job that stay where they are."""
        ...


class Migrate(Protocol):
    """What to move although its size stays."""

    def migrate(self, round_: Round) -> None: ...


@dataclass(frozen=True, slots=True)
class Profile:
    """`interval_s` is the longest time between two rounds (0: only when something changes); with `on_change` false a
    change waits for the next multiple of it. `oracle` tells that the policy is given the true duration and speed;
    without it a simulated job's speed is measured at `sample_points` sizes before it starts, as Optimus does on a test
    slot. A job is rescaled at most every `cooldown_s`, and grows only if its speed is predicted to gain `min_gain`.
    `repack`: a job whose size changes is placed anew as a whole. `adjusts_cpu`: whether it gives replicas more CPU than
    they request. `learns`: whether it uses the speeds that jobs show wherever they run.
    """

    name: str
    lend: Lend
    order: Order
    allocate: Allocate
    place: Place
    migrate: Migrate
    interval_s: float = 0.0
    on_change: bool = True
    oracle: bool = False
    cooldown_s: float = 0.0
    min_gain: float = 0.0
    repack: bool = False
    sample_points: int = 0
    adjusts_cpu: bool = False
    learns: bool = False

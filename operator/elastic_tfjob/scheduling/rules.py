"""What a round goes by: in which order jobs come, on which nodes they may be, and when their size may change again. The
protocols that a profile's order and place have."""

from dataclasses import dataclass
from typing import Literal, Protocol

from elastic_tfjob.scheduling.room import FreeCapacity, Rank
from elastic_tfjob.scheduling.snapshot import Counts, Job, JobSpec, Placement

OrderKey = tuple[float, ...]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What of a profile a round goes by. `needs` is what the world must have. A job is rescaled at most every
    `cooldown_s`, and grows only if its speed is predicted to gain `min_gain`. `repack`: a job whose size changes is
    placed anew as a whole. For `stop_cooldown_s` a job that was stopped is not resumed, and one that was resumed is not
    stopped, unless its node goes back to another pool."""

    name: str
    order: Order
    place: Place
    needs: frozenset[Need]
    cooldown_s: float = 0.0
    min_gain: float = 0.0
    repack: bool = False
    stop_cooldown_s: float = 0.0

    @property
    def adjusts_cpu(self) -> bool:
        """Whether it gives replicas more CPU than they request."""
        return "cpu" in self.needs

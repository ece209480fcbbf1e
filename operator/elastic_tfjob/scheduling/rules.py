"""What a round takes from a profile: the order of jobs, the choice of nodes, and how often a job may change."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

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
"""What a profile needs from the environment (operator or simulator) that carries out its plans.

Information: `oracle` true durations and speeds; `samples` of a job's speed before it starts; `duration` of jobs;
`speed` at other sizes; `deadline`; `loss` how fast the training loss falls; `service` what jobs have held so far, and
for how long; `use` how much of their CPU replicas use; `history` what finished jobs taught.
Actions: `stop` running jobs; `move` running replicas to other nodes; `resize` running jobs; `repack`: place a resized
job as a whole; `cpu` change the CPU of running replicas; `loans` of nodes of another pool. `totals`: no node is chosen,
which only a simulation can carry out.
"""


class Order(ABC):
    """Which job comes first. `key` is all that an order needs. Implementations are frozen dataclasses: the queue of
    waiting jobs is kept from round to round for equal orders."""

    __slots__ = ()

    drift: ClassVar[float] = 0.0
    """What each second adds to the first part of a waiting job's key, compared with the keys of running jobs. 1 where
    the key of a waiting job counts from now and the key of a running job is a point in time; else 0."""

    @abstractmethod
    def key(self, job: Job, now: float) -> OrderKey:
        """The smallest key comes first. Priority goes before the key; arrival, sequence and name break ties.

        The key may change with the job and at `next_jump_s`, but not otherwise with the clock.
        """

    def next_jump_s(self, job: Job, now: float) -> float | None:
        """When the job's key changes although nothing happens to the job (LAS's thresholds). None: never."""
        return None


class Place(ABC):
    """Which nodes replicas go to. `place` is all that a placement needs. Implementations are frozen dataclasses."""

    __slots__ = ()

    rank: ClassVar[Rank] = "least-free"
    """The order of nodes in the FreeCapacity."""
    totals_only: ClassVar[bool] = False
    """Whether the FreeCapacity is one node with the sum of all."""

    @abstractmethod
    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
        """Place `add` replicas per type beside `kept`, the job's replicas that stay where they are. Takes them from
        what is free and returns their nodes; where they do not fit, returns None and leaves `room` unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a round takes from a profile. `needs`: what the environment must provide. `cooldown_s`: minimum time between
    two rescales of one job. `min_gain`: predicted relative gain in speed from which a running job grows. `repack`: a
    resized job is placed again as a whole. `stop_cooldown_s`: minimum time from a stop of a job to its resumption, and
    from that to its next stop, unless its node is returned to another pool. `interval_s`: the longest time between two
    rounds (0: only when something changes); with `on_change` false a change waits for the next multiple of it."""

    name: str
    order: Order
    place: Place
    needs: frozenset[Need]
    cooldown_s: float = 0.0
    min_gain: float = 0.0
    repack: bool = False
    stop_cooldown_s: float = 0.0
    interval_s: float = 0.0
    on_change: bool = True

    @property
    def slot_s(self) -> float:
        """How long sizes stay, and capacity that a finished job leaves stays unused; 0: until the next change."""
        return 0.0 if self.on_change else self.interval_s

    @property
    def adjusts_cpu(self) -> bool:
        """Whether replicas may get more CPU than they request."""
        return "cpu" in self.needs

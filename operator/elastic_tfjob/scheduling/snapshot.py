"""The input of a decision: the cluster and its jobs at one moment.

The controller builds a Snapshot from its caches, the simulator from its own state. A Snapshot never changes; `evolve`
gives the next one. Indexes (ordered queues, free capacity per node) are derived from the content. They pass from a
Snapshot to the one evolved from it, so that a round in which one job changed does not pay for all the others; a missing
index is built again. A plan never depends on whether an index was there.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeVar

from propcache.api import cached_property

from elastic_tfjob.api.reading import MAX_MEMORY_NAME, MAX_MEMORY_NUMBERS
from elastic_tfjob.scheduling.resources import ANYWHERE, Constraints, Resources, Taint
from elastic_tfjob.speed.growth import NOT_REPORTED, Growth
from elastic_tfjob.speed.history import History, Past
from elastic_tfjob.speed.model import Speed

__all__ = ["NO_MEMORY", "Memory", "readable", "with_number"]

PS = "PS"
WORKER = "Worker"
CHIEF = "Chief"
EVALUATOR = "Evaluator"

Counts = Mapping[str, int]
"""Replicas per type."""
Placement = Mapping[str, tuple[str, ...]]
"""Node names per replica type, in the order of the replicas' indices. Empty: the job holds nothing."""
UNPLACED: Placement = {}
OUTGROWN: Final = " without memory"
"""Ends the name of a node in a placement that has no memory for the growth of the replica there: it leaves, if another
node has room."""
Cpu = Mapping[str, tuple[int, ...]]
"""Millicores of each replica, for the types where any differs from the template's request."""
AS_REQUESTED: Cpu = {}

Memory = Mapping[str, float]
"""Finite numbers by name: at most MAX_MEMORY_NUMBERS, each name of at most MAX_MEMORY_NAME characters."""
NO_MEMORY: Memory = {}

NOTHING_LEARNED = History()
NONE_LEAVING: Mapping[str, float] = {}

Phase = Literal["waiting", "running", "rescaling"]
"""`rescaling`: between two targets; a plan leaves such a job alone."""
LoanState = Literal["own", "busy", "offered", "loaned", "reclaiming"]
"""Own nodes; or nodes of another pool: in use there, offered, borrowed, or borrowed and recalled."""


def counts_of(placement: Placement) -> dict[str, int]:
    """The number of replicas per type."""
    return {type_: len(names) for type_, names in placement.items()}


@dataclass(frozen=True, slots=True)
class Node:
    """`free` is what other pods leave of `capacity`; replicas of our jobs are not deducted from it. `autoscaled`: an
    autoscaler removes it soon after the last replica has left. `price` per hour; 0: not known. `given_up`: its replicas
    leave, and no others come, so that it is removed. `spot`: its owner may take it away at any time. `avoid`: it may be
    removed soon, so it gets no replica that another node has room for."""

    name: str
    capacity: Resources
    free: Resources
    pool: str = "training"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    accelerator_speed: float = 1.0
    loan: LoanState = "own"
    autoscaled: bool = False
    price: float = 0.0
    given_up: bool = False
    spot: bool = False
    avoid: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """Another pool's demand: how many of its lent nodes it wants back, and how many more it can spare."""

    wanted: int = 0
    spare: int = 0


LEAD_S: Final = 120.0
"""Seconds until an order is filled, before any was."""


@dataclass(frozen=True, slots=True)
class OrderRules:
    """For which jobs an autoscaler is asked for nodes. `size`: what a job orders that has less, its declared size or
    its smallest one. `jobs`, `pods`, `cpu_millicores`: the most that all orders are for; 0: no limit. `failed`: jobs
    whose order was not filled in time, and is not tried again yet. `since_s`: since when a job waits for nodes, and
    `lead_s`: how many seconds that usually takes."""

    size: Literal["declared", "smallest"] = "declared"
    jobs: int = 0
    pods: int = 0
    cpu_millicores: int = 0
    failed: frozenset[str] = frozenset()
    since_s: Mapping[str, float] = field(default_factory=dict)
    lead_s: float = LEAD_S


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """How nodes are emptied for an autoscaler. `due`: one may be given up in this round. `headroom`: the number of
    autoscaled nodes that are never given up."""

    due: bool = False
    headroom: int = 0


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """What the configuration allows jobs to do on this cluster, under each profile. `orders`: how jobs order nodes from
    an autoscaler; None: they do not. `compaction`: how they leave nodes to it; None: they do not."""

    orders: OrderRules | None = None
    compaction: CompactionRules | None = None


NO_RULES: Final = ClusterRules()


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """One replica type of a job: the request of one replica, the declared count, and the bounds of the count."""

    type: str
    request: Resources
    count: int
    minimum: int
    maximum: int


class PlacementKey:
    """A value with a cached hash: it is looked up far more often than it is created. Equal for jobs that fit alike."""

    __slots__ = ("_hash", "_of")

    def __init__(self, *of: Hashable) -> None:
        self._of = of
        self._hash = hash(of)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, PlacementKey) and self._hash == other._hash and self._of == other._of
        )


def fixed_group(type_: str, request: Resources, count: int) -> ReplicaGroup:
    return ReplicaGroup(type_, request, count, count, count)


@dataclass(frozen=True)
class JobSpec:
    """What the user asked for. Times are seconds on the Snapshot's clock.

    `asked`: who requested the present bounds, if a person did; it becomes the reason of a change to reach them.

    What is possible: `resizable`, its size may change within the bounds; `stoppable`, it may be stopped while it runs,
    and resumes later from a checkpoint; `movable`, a running replica may go to another node; `reports`, its progress is
    known. `fixed_cpu`: no CPU is lent to it.

    `sequence` breaks ties of arrival. `total_steps` is the work, in the program's own steps. `duration_s` is the
    expected run time at the declared size: from an annotation, or in a simulation the truth if the profile needs the
    oracle. Jobs with the same `model` teach each other: what they train, else the stem of their name.
    """

    key: str
    arrival_s: float
    groups: tuple[ReplicaGroup, ...]
    sequence: int = 0
    priority: int = 0
    deadline_s: float | None = None
    total_steps: float | None = None
    duration_s: float | None = None
    loanable: bool = False
    resizable: bool = True
    stoppable: bool = True
    movable: bool = True
    reports: bool = True
    fixed_cpu: bool = False
    constraints: Constraints = ANYWHERE
    constraints_by_type: tuple[tuple[str, Constraints], ...] = ()
    model: str = ""
    asked: str = ""

    @cached_property
    def declared(self) -> Counts:
        """The declared size, or the nearest one within the bounds."""
        return {g.type: min(max(g.count, g.minimum), g.maximum) for g in self.groups}

    @cached_property
    def leader(self) -> str:
        """The type whose first replica leads the training: it saves checkpoints and decides about a switch."""
        return next((type_ for type_ in (CHIEF, "Master") if type_ in self._by_type), WORKER)

    @property
    def scope(self) -> str:
        """The namespace, or empty in a simulation. Lessons from jobs of one scope are used only in this scope."""
        return self.key.rpartition("/")[0]

    @cached_property
    def minimum(self) -> Counts:
        """The smallest size with which it may start. A job that cannot be resized has only its declared size."""
        if not self.resizable:
            return self.declared
        return {group.type: group.minimum for group in self.groups}

    @cached_property
    def declared_demand(self) -> Resources:
        return self.demand(self.declared)

    @cached_property
    def minimum_demand(self) -> Resources:
        return self.demand(self.minimum)

    @cached_property
    def _by_type(self) -> Mapping[str, ReplicaGroup]:
        return {group.type: group for group in self.groups}

    def group(self, type_: str) -> ReplicaGroup | None:
        return self._by_type.get(type_)

    def requested_cpu(self, type_: str) -> int:
        """Millicores requested by one replica of the type."""
        group = self.group(type_)
        return group.request.cpu_millicores if group is not None else 0

    def demand(self, counts: Counts) -> Resources:
        """The sum over replicas."""
        if len(self.groups) == 1:
            group = self.groups[0]
            return group.request.times(counts.get(group.type, 0))
        cpu = memory = accelerators = pods = storage = 0
        for group in self.groups:
            n, request = counts.get(group.type, 0), group.request
            cpu += n * request[0]
            memory += n * request[1]
            accelerators += n * request[2]
            pods += n * request[3]
            storage += n * request[4]
        return Resources(cpu, memory, accelerators, pods, storage)

    def extra_cpu(self, cpu: Cpu) -> int:
        """Millicores that replicas hold beyond their requests."""
        extra = 0
        for type_, each in cpu.items():
            group = self.group(type_)
            extra += sum(each) - len(each) * group.request.cpu_millicores if group else 0
        return extra

    def within_bounds(self, counts: Counts) -> dict[str, int]:
        """The nearest size within the bounds."""
        nearest = {g.type: min(max(counts.get(g.type, 0), g.minimum), g.maximum) for g in self.groups}
        return {type_: n for type_, n in nearest.items() if n}

    def constraints_of(self, type_: str) -> Constraints:
        return next((c for t, c in self.constraints_by_type if t == type_), self.constraints)

    @cached_property
    def placement_key(self) -> "PlacementKey":
        """Equal for jobs that fit the same nodes alike."""
        return PlacementKey(self.groups, self.constraints, self.constraints_by_type, self.loanable)

    @cached_property
    def elastic(self) -> bool:
        return self.resizable and any(group.minimum < group.maximum for group in self.groups)


@dataclass(frozen=True, slots=True)
class Job:
    """A job at this moment. Progress is linear between observations: `steps` were done at `observed_s`, which is in the
    future while a start or rescale pauses the job; after that it makes `steps_per_s`. `service`: what the job held of
    its dominant resource (accelerators, else replicas) times seconds, up to `since_s`, the time of its last placement.

    `cpu`: what replicas hold now. `cpu_limited`: it is a limit, else a weight. `cpu_shared`: each replica may use all
    that the job holds on its node. `cpu_use`: by type the mean of CPU used / held, over a window in which `cpu` and
    `placement` did not change; missing: not known (yet). `cpu_settled`: weights did not change in that window. `loss`:
    how the training loss falls. `stops`: how often the job was stopped while it ran; `stopped_s`, `resumed_s`: when it
    was last stopped and resumed. `memory`: what the last plan stored. `warm_start`: a replica that stays forks its next
    program. `live_workers`: workers join and leave its running program. `step_cpu_s`: CPU seconds per step over the
    last minutes; 0: derived from `steps_per_s`."""

    spec: JobSpec
    placement: Placement = field(default_factory=dict)
    phase: Phase = "waiting"
    steps: float = 0.0
    observed_s: float = 0.0
    steps_per_s: float = 0.0
    since_s: float = 0.0
    service: float = 0.0
    executed_s: float = 0.0
    rescaled_s: float = float("-inf")
    migrations: int = 0
    speed: Speed | None = None
    loss: Growth = NOT_REPORTED
    cpu: Cpu = field(default_factory=dict)
    cpu_use: Mapping[str, float] = field(default_factory=dict)
    stops: int = 0
    stopped_s: float = float("-inf")
    resumed_s: float = float("-inf")
    memory: Memory = field(default_factory=dict)
    warm_start: bool = False
    live_workers: bool = False
    step_cpu_s: float = 0.0
    cpu_settled: bool = True
    cpu_limited: bool = True
    cpu_shared: bool = False
    prepare_s: float | None = None

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def running(self) -> bool:
        return bool(self.placement)

    @property
    def counts(self) -> dict[str, int]:
        return counts_of(self.placement)

    @property
    def booked(self) -> tuple[tuple[ReplicaGroup, ...], Placement, Cpu]:
        """All that says what its replicas take of which nodes. Their requests change where memory is raised."""
        return self.spec.groups, self.placement, self.cpu

    @property
    def holds(self) -> Resources:
        """The resources of all its replicas."""
        demand = self.spec.demand(self.counts)
        return demand.plus(Resources(self.spec.extra_cpu(self.cpu))) if self.cpu else demand

    def held_cpu(self, type_: str) -> int:
        """Millicores that all replicas of a type hold together while their use is measured."""
        names = self.placement.get(type_, ())
        return sum(self.cpu.get(type_, ())) or self.spec.requested_cpu(type_) * len(names)

    @property
    def held(self) -> int:
        """How much `service` grows per second: accelerators, or replicas of a job without accelerators."""
        counts = self.counts
        return self.spec.demand(counts).accelerators or sum(counts.values())

    def steps_at(self, now: float) -> float:
        return self.steps + self.steps_per_s * max(0.0, now - self.observed_s)

    def service_at(self, now: float) -> float:
        return self.service + self.held * max(0.0, now - self.since_s) if self.placement else self.service

    def remaining_s(self, now: float, counts: Counts | None = None) -> float | None:
        """Seconds left at `counts`; without it at the present speed, else at the declared size. None: unknown."""
        spec = self.spec
        total = spec.total_steps
        if total is not None:
            left = total - self.steps_at(now)
            if counts is None and self.placement and self.steps_per_s > 0:
                return left / self.steps_per_s + max(0.0, self.observed_s - now)
            if self.speed is not None:
                rate = self.speed.steps_per_s(counts or self.counts or spec.declared)
                if rate is not None and rate > 0:
                    return left / rate
            if spec.duration_s is not None:
                return spec.duration_s * left / total
            return None
        return spec.duration_s


class SnapshotIndex(Protocol):
    """Derived from a Snapshot, and updated when jobs or nodes change instead of being built again."""

    def change(self, before: Job | None, after: Job | None, now: float) -> None: ...

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        """Update to these nodes; False where the index must be built again instead."""
        ...


V = TypeVar("V", bound=SnapshotIndex)


class Snapshot:
    """The cluster at `now`. `seed` is the only randomness a policy may use. `cluster_rules`: what jobs may do here.

    `leaving`: nodes that no longer take replicas, those on them run on, by the time when the node is gone. They are not
    in `nodes`, as those that are gone already.

    `pools`: the demand of other pools by name; by default it is derived from the states of their nodes. `history`: what
    finished jobs taught. It changes independently of jobs: an index that keeps results from it must keep the `Past`,
    too, and compare it."""

    __slots__ = ("_indexes", "cluster_rules", "history", "jobs", "leaving", "nodes", "now", "pools", "seed")

    def __init__(
        self,
        now: float,
        nodes: Mapping[str, Node],
        jobs: Mapping[str, Job],
        seed: int = 0,
        pools: Mapping[str, Pool] | None = None,
        *,
        history: History = NOTHING_LEARNED,
        cluster_rules: ClusterRules = NO_RULES,
        leaving: Mapping[str, float] = NONE_LEAVING,
    ) -> None:
        self.now = now
        self.nodes = nodes
        self.jobs = jobs
        self.seed = seed
        self.pools: Mapping[str, Pool] = demand_of(nodes) if pools is None else pools
        self.history = history
        self.cluster_rules = cluster_rules
        self.leaving = leaving
        self._indexes: dict[Hashable, SnapshotIndex] = {}

    def evolve(
        self,
        now: float,
        *,
        changed: Iterable[Job] = (),
        removed: Iterable[str] = (),
        nodes: Mapping[str, Node] | None = None,
        pools: Mapping[str, Pool] | None = None,
        history: History | None = None,
        cluster_rules: ClusterRules | None = None,
        leaving: Mapping[str, float] | None = None,
    ) -> "Snapshot":
        """The next Snapshot: `changed` jobs are new or changed, `removed` ones no longer exist; `nodes`, `pools`,
        `history`, `cluster_rules` and `leaving`, if given, replace the present ones. With `nodes` but without `pools`,
        the nodes' states determine the pools' demand."""
        jobs = dict(self.jobs)
        deltas: list[tuple[Job | None, Job | None]] = []
        for key in removed:
            deltas.append((jobs.pop(key), None))
        for job in changed:
            key = job.spec.key
            deltas.append((jobs.get(key), job))
            jobs[key] = job
        learned = self.history if history is None else history
        rules = self.cluster_rules if cluster_rules is None else cluster_rules
        demand = self.pools if pools is None and nodes is None else pools
        after = Snapshot(
            now,
            self.nodes if nodes is None else nodes,
            jobs,
            self.seed,
            demand,
            history=learned,
            cluster_rules=rules,
            leaving=self.leaving if leaving is None else leaving,
        )
        indexes, self._indexes = self._indexes, {}
        for key_, index in indexes.items():
            for before, job_after in deltas:
                index.change(before, job_after, now)
            if nodes is None or index.change_nodes(nodes):
                after._indexes[key_] = index
        return after

    def past(self, spec: JobSpec) -> Past | None:
        """What finished jobs of the same model taught."""
        return self.history.past(spec.scope, spec.model)

    def index(self, key: Hashable, build: Callable[["Snapshot"], V]) -> V:
        """The index under `key`, built on first use. The same key must always mean the same `build`."""
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = build(self)
        return index  # type: ignore[return-value]  # a call of `cast` costs a simulation 1 %


def demand_of(nodes: Mapping[str, Node]) -> dict[str, Pool]:
    """The demand of other pools, derived from the states of their nodes."""
    wanted: dict[str, int] = {}
    spare: dict[str, int] = {}
    for node in nodes.values():
        if node.loan == "reclaiming":
            wanted[node.pool] = wanted.get(node.pool, 0) + 1
        elif node.loan == "offered":
            spare[node.pool] = spare.get(node.pool, 0) + 1
    return {name: Pool(wanted.get(name, 0), spare.get(name, 0)) for name in {**wanted, **spare}}


# -- Memory: what a profile remembers of a job from one plan to the next -----------------------------------------------
# The operator and the simulator store it for the profile: `Plan.memory` has it, and the next Snapshot's `Job.memory`,
# so that equal input gives an equal plan. A name begins with the profile's, as in `las.forgiven`: numbers outlive a
# change of the profile.

_NAME: Final = re.compile(r"[a-z][-a-z0-9_.]*")


def with_number(memory: Memory, name: str, value: float | None) -> Memory:
    """The memory with this number; None deletes it. Where there are too many numbers, the first other ones by name are
    deleted. Raises ValueError for an invalid name or number."""
    if not _is_name(name):
        raise ValueError(f"{name!r} is not a name of 1 to {MAX_MEMORY_NAME} characters, such as las.forgiven")
    if value is None:
        return {known: number for known, number in memory.items() if known != name}
    if not math.isfinite(value):
        raise ValueError(f"{name}: {value} is not finite")
    numbers = {**memory, name: float(value)}
    for other in sorted(numbers.keys() - {name})[: max(0, len(numbers) - MAX_MEMORY_NUMBERS)]:
        del numbers[other]
    return numbers


def readable(raw: object) -> dict[str, float]:
    """The memory in untrusted JSON. Invalid parts are skipped: the profile then decides as for a new job."""
    if not isinstance(raw, dict):
        return {}
    names = sorted(name for name, value in raw.items() if _is_name(name) and _is_number(value))
    return {name: float(raw[name]) for name in names[:MAX_MEMORY_NUMBERS]}


def _is_name(name: str) -> bool:
    return len(name) <= MAX_MEMORY_NAME and _NAME.fullmatch(name) is not None


def _is_number(value: object) -> bool:
    """A JSON number as orjson reads it: integers have at most 64 bits."""
    return (type(value) is int and value.bit_length() <= 64) or (type(value) is float and math.isfinite(value))

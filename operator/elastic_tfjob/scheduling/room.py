"""FreeCapacity: free resources per node while a plan is made, with nodes in order and undo.

It is an index of a Snapshot: it follows the jobs' placements from one Snapshot to the next. A round takes from it and
gives back to it, and rolls all of that back at its end.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

from elastic_tfjob.scheduling.resources import ANYWHERE, NOTHING, Constraints, Resources, maximal, total_of
from elastic_tfjob.scheduling.snapshot import (
    AS_REQUESTED,
    PS,
    Counts,
    Cpu,
    Job,
    JobSpec,
    Node,
    Placement,
    ReplicaGroup,
    Snapshot,
)

__all__ = ["Admission", "in_all"]

ANY_NODE = "*"
"""The name of the one node of a placement by totals only."""


def lost_nodes(placement: Placement, nodes: Mapping[str, Node]) -> list[str]:
    """A placement's nodes that the cluster no longer has, or that are not ready or cordoned."""
    return sorted({name for names in placement.values() for name in names if name not in nodes and name != ANY_NODE})


Rank = Literal["least-free", "least-allocated", "fewest-ps"]
"""The order of nodes, ascending: by free accelerators, CPU, memory; by mean allocated share, which is kube-scheduler's
LeastAllocated score; or by the number of parameter servers on them, the freest first among equals."""

UNREQUESTED_CPU = 100
"""Millicores that kube-scheduler counts for a replica without a CPU request when it scores nodes, but not when it
checks whether a pod fits (DefaultMilliCPURequest in pkg/scheduler/util/pod_resources.go). Without this all such
replicas would go to one node, which stays the least allocated. The default for memory is not counted here."""

MANY = 1 << 30
Key = tuple[float, float, float, int]


class FreeCapacity:
    """What is free on each node, by node number, and in total."""

    def __init__(self, nodes: list[Node], rank: Rank, *, totals_only: bool = False) -> None:
        self.totals_only = totals_only
        self.rank = rank
        self._log: list[tuple[int | str, Resources, int] | list[Node]] = []
        """For undo: what was taken from which node with how many `counted`; and the nodes before a change of nodes."""
        self._elsewhere: dict[str, tuple[Resources, int]] = {}
        """By name of a node that is not here, what jobs hold there and how many are `counted`: the node may return."""
        self._set_up(nodes, {})

    def _set_up(self, nodes: list[Node], held: dict[str, tuple[Resources, int]]) -> None:
        """Start with these nodes; `held` is what jobs hold, by name of node."""
        self.nodes = nodes
        self.index = {node.name: i for i, node in enumerate(nodes)}
        self.capacity = [node.capacity for node in nodes]
        self.usable = [node.free for node in nodes]
        self.cpu_millicores = [node.free.cpu_millicores for node in nodes]
        self.memory_bytes = [node.free.memory_bytes for node in nodes]
        self.accelerators = [node.free.accelerators for node in nodes]
        self.pods = [node.free.pods for node in nodes]
        self.storage_bytes = [node.free.storage_bytes for node in nodes]
        total = self.total = total_of(self.usable)
        self.counted = [0] * len(nodes)
        """Per node, the replicas that the rank counts: under `least-allocated` those without a CPU request, else
        parameter servers, for placements that keep them apart."""
        for name in held.keys() & self.index.keys():
            i, (taken, counted) = self.index[name], held.pop(name)
            self.cpu_millicores[i] -= taken.cpu_millicores
            self.memory_bytes[i] -= taken.memory_bytes
            self.accelerators[i] -= taken.accelerators
            self.pods[i] -= taken.pods
            self.storage_bytes[i] -= taken.storage_bytes
            self.counted[i] += counted
            total = total.minus(taken)
        self.free_cpu, self.free_memory, self.free_accelerators, self.free_pods, self.free_storage = total
        self._elsewhere = held
        self._keys: list[Key] = [self._key(i) for i in range(len(nodes))]
        self._order: list[Key] = sorted(self._keys)
        self._free_index = (
            FreeIndex(self.cpu_millicores, self.memory_bytes, self.accelerators) if self.rank == "fewest-ps" else None
        )
        self._largest = maximal(self.usable)
        self.admission = Admission(nodes)

    @property
    def holds_elsewhere(self) -> bool:
        """Whether jobs hold resources on nodes that are not here."""
        return bool(self._elsewhere)

    # ---- following the Snapshot

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before and after and before.booked == after.booked:
            return
        if before and before.placement:
            self.give(before.spec, before.placement, before.cpu)
        if after and after.placement:
            self.take(after.spec, after.placement, after.cpu)
        self._log.clear()

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        self.set_nodes(nodes)
        self._log.clear()
        return True

    def set_nodes(self, nodes: Mapping[str, Node]) -> None:
        """Change to these nodes; what jobs hold there stays taken."""
        usable = usable_nodes(nodes)
        if self.totals_only:
            usable = [merged(usable)]
        if usable == self.nodes:
            return
        before = self.nodes
        self._move_to(usable)
        self._log.append(before)

    def _move_to(self, nodes: list[Node]) -> None:
        held = self._elsewhere
        for i, node in enumerate(self.nodes):
            taken = self.usable[i].minus(self.free(i)), self.counted[i]
            if taken != (NOTHING, 0):
                held[node.name] = taken
        self._set_up(nodes, held)

    # ---- taking, giving back, undoing

    def take(self, spec: JobSpec, placement: Placement, cpu: Cpu = AS_REQUESTED) -> None:
        self._book(spec, placement, cpu, 1)

    def give(self, spec: JobSpec, placement: Placement, cpu: Cpu = AS_REQUESTED) -> None:
        self._book(spec, placement, cpu, -1)

    def _book(self, spec: JobSpec, placement: Placement, cpu: Cpu, sign: int) -> None:
        for type_, name, n in replicas_per_node(placement):
            group = spec.group(type_)
            assert group is not None
            self.take_replicas(self.index.get(name, name), group, sign * n)
        if cpu:
            self.book_cpu(spec, placement, cpu, sign)

    def book_cpu(self, spec: JobSpec, placement: Placement, cpu: Cpu, sign: int) -> None:
        """Take (1) or give back (-1) what replicas hold beyond their requests."""
        per_node: dict[int | str, int] = {}
        for type_, each in cpu.items():
            group = spec.group(type_)
            assert group is not None
            for name, held in zip(placement.get(type_, ()), each, strict=False):
                at = self.index.get(name, name)
                per_node[at] = per_node.get(at, 0) + sign * (held - group.request.cpu_millicores)
        for at, millicores in per_node.items():
            self.take_cpu(at, millicores)

    def take_replicas(self, i: int | str, group: ReplicaGroup, n: int) -> None:
        """Take what `n` replicas request from node `i` (a name: a node that is not here); a negative `n` gives back."""
        counts = not group.request.cpu_millicores if self.rank == "least-allocated" else group.type == PS
        self.take_from(i, group.request if n == 1 else group.request.times(n), n if counts else 0)

    def take_from(self, i: int | str, taken: Resources, counted: int) -> None:
        """Take this from node `i`, for replicas of which `counted` are counted by the rank."""
        self._shift(i, taken, counted)
        self._log.append((i, taken, counted))

    def take_cpu(self, i: int | str, millicores: int) -> None:
        """Take only CPU from node `i`, for replicas that are there; a negative amount gives back."""
        if millicores:
            self.take_from(i, Resources(millicores), 0)

    def _shift(self, i: int | str, taken: Resources, counted: int) -> None:
        if isinstance(i, str):
            before, counted_before = self._elsewhere.get(i, (NOTHING, 0))
            self._elsewhere[i] = held = before.plus(taken), counted_before + counted
            if held == (NOTHING, 0):
                del self._elsewhere[i]
            return
        cpu, memory, accelerators, pods, storage = taken
        if self._free_index:
            self._free_index.take(i, (self.cpu_millicores[i], self.memory_bytes[i], self.accelerators[i]), taken)
        self.cpu_millicores[i] -= cpu
        self.memory_bytes[i] -= memory
        self.accelerators[i] -= accelerators
        self.counted[i] += counted
        self.free_cpu -= cpu
        self.free_memory -= memory
        self.free_accelerators -= accelerators
        if pods or storage:
            self.pods[i] -= pods
            self.storage_bytes[i] -= storage
            self.free_pods -= pods
            self.free_storage -= storage
        order, key = self._order, self._key(i)
        del order[bisect_left(order, self._keys[i])]
        insort(order, key)
        self._keys[i] = key

    def mark(self) -> int:
        return len(self._log)

    def rollback(self, mark: int) -> None:
        """Undo everything since `mark`, once per node, since a long round changes each node many times."""
        log = self._log
        back: dict[int | str, tuple[Resources, int]] = {}
        while len(log) > mark:
            entry = log.pop()
            if isinstance(entry, list):
                self._shift_all(back)
                back = {}
                self._move_to(entry)
            else:
                i, taken, counted = entry
                known = back.get(i)
                back[i] = (taken, counted) if known is None else (known[0].plus(taken), known[1] + counted)
        self._shift_all(back)

    def _shift_all(self, taken: Mapping[int | str, tuple[Resources, int]]) -> None:
        """Give back everything that was taken."""
        for i, amounts in taken.items():
            if amounts != (NOTHING, 0):
                self._shift(i, amounts[0].times(-1), -amounts[1])

    # ---- looking

    def _key(self, i: int) -> Key:
        if self.rank == "least-free":
            return (self.accelerators[i], self.cpu_millicores[i], self.memory_bytes[i], i)
        if self.rank == "fewest-ps":
            return (self.counted[i], -self.accelerators[i], -self.cpu_millicores[i], i)
        cpu = self.cpu_millicores[i] - UNREQUESTED_CPU * self.counted[i]
        return (mean_allocated(self.capacity[i], (cpu, self.memory_bytes[i], self.accelerators[i])), 0, 0, i)

    @property
    def free_total(self) -> Resources:
        return Resources(self.free_cpu, self.free_memory, self.free_accelerators, self.free_pods, self.free_storage)

    def free_cpu_for(self, spec: JobSpec) -> int:
        """Millicores that are free where all types of a job may run."""
        allowed = self.allowed(spec)
        return self.free_cpu if allowed is None else sum(self.cpu_millicores[i] for i in allowed)

    def fits_total(self, demand: Resources) -> bool:
        return (
            demand.accelerators <= self.free_accelerators
            and demand.cpu_millicores <= self.free_cpu
            and demand.memory_bytes <= self.free_memory
            and demand.pods <= self.free_pods
            and demand.storage_bytes <= self.free_storage
        )

    def free(self, i: int) -> Resources:
        return Resources(
            self.cpu_millicores[i], self.memory_bytes[i], self.accelerators[i], self.pods[i], self.storage_bytes[i]
        )

    def overbooked(self, i: int) -> bool:
        """Whether more is taken from node `i` than it has."""
        return (
            self.cpu_millicores[i] < 0
            or self.memory_bytes[i] < 0
            or self.accelerators[i] < 0
            or self.pods[i] < 0
            or self.storage_bytes[i] < 0
        )

    def fit(self, i: int, request: Resources, planned: Resources = NOTHING) -> int:
        """How many such requests still fit node `i` beside what is planned for it."""
        n = MANY
        if request.accelerators:
            n = (self.accelerators[i] - planned.accelerators) // request.accelerators
        if request.cpu_millicores:
            n = min(n, (self.cpu_millicores[i] - planned.cpu_millicores) // request.cpu_millicores)
        if request.memory_bytes:
            n = min(n, (self.memory_bytes[i] - planned.memory_bytes) // request.memory_bytes)
        if request.pods:
            n = min(n, (self.pods[i] - planned.pods) // request.pods)
        if request.storage_bytes:
            n = min(n, (self.storage_bytes[i] - planned.storage_bytes) // request.storage_bytes)
        return max(n, 0)

    def fit_empty(self, i: int, request: Resources) -> int:
        """How many such requests would fit node `i` without any of our jobs."""
        usable = self.usable[i]
        return min((have // want for have, want in zip(usable, request, strict=True) if want), default=MANY)

    def holds(self, i: int, demand: Resources) -> bool:
        return (
            demand.accelerators <= self.accelerators[i]
            and demand.cpu_millicores <= self.cpu_millicores[i]
            and demand.memory_bytes <= self.memory_bytes[i]
            and demand.pods <= self.pods[i]
            and demand.storage_bytes <= self.storage_bytes[i]
        )

    def allowed(self, spec: JobSpec, type_: str | None = None) -> frozenset[int] | None:
        """Indices of the nodes where replicas of this type may run, or all types; None: all nodes."""
        return self.admission.nodes_for(spec, type_)

    def best_fit(self, demand: Resources, allowed: frozenset[int] | None) -> int | None:
        """The fullest node that holds `demand`; ties go to the first node. Needs rank `least-free`."""
        cpu, memory, accelerators, pods, storage = demand
        start = bisect_left(self._order, (accelerators, cpu, memory, -1))
        for _, free_cpu, free_memory, i in islice(self._order, start, None):  # each has the accelerators
            if (
                free_cpu >= cpu
                and free_memory >= memory
                and self.pods[i] >= pods
                and self.storage_bytes[i] >= storage
                and (allowed is None or i in allowed)
            ):
                return i
        return None

    def first(self, demand: Resources, allowed: frozenset[int] | None) -> int | None:
        """The first node in the order of `rank` that holds `demand`."""
        few = self._free_index.few(demand) if self._free_index else None
        cpu, memory, accelerators = self.cpu_millicores, self.memory_bytes, self.accelerators
        want_cpu, want_memory, want_accelerators, want_pods, want_storage = demand
        if few is not None:
            holding = [
                i
                for i in few
                if accelerators[i] >= want_accelerators
                and cpu[i] >= want_cpu
                and memory[i] >= want_memory
                and self.pods[i] >= want_pods
                and self.storage_bytes[i] >= want_storage
                and (allowed is None or i in allowed)
            ]
            return min(holding, key=self._key, default=None)
        for key in self._order:
            i = key[3]
            if (
                accelerators[i] >= want_accelerators
                and cpu[i] >= want_cpu
                and memory[i] >= want_memory
                and self.pods[i] >= want_pods
                and self.storage_bytes[i] >= want_storage
                and (allowed is None or i in allowed)
            ):
                return i
        return None

    def holding(self, demand: Resources) -> Iterator[int]:
        """The nodes that hold `demand`, in the order of `rank`. Taking while iterating moves nodes."""
        few = self._free_index.few(demand) if self._free_index else None
        if few is not None:
            return iter(sorted((i for i in few if self.holds(i, demand)), key=self._key))
        return (key[3] for key in self._order if self.holds(key[3], demand))

    def none_holds(self, request: Resources) -> bool:
        """Whether it is certain without a search that no node holds the request; it can be certain only with the rank
        `fewest-ps`."""
        return self._free_index is not None and self._free_index.none_holds(request)

    def largest_empty_fit(self, demand: Resources) -> bool:
        """Whether some node without any of our jobs would hold `demand`."""
        return any(demand.within(usable) for usable in self._largest)

    def descending(self) -> Iterator[int]:
        """In the reverse order of `rank` (freest first under `least-free`); ties still go to the first node."""
        order = self._order
        k = len(order)
        while k:
            head = order[k - 1][:3]
            start = bisect_left(order, (*head, -1))
            for j in range(start, k):
                yield order[j][3]
            k = start


def room_index(rank: Rank, totals_only: bool) -> Callable[[Snapshot], FreeCapacity]:
    """The builder of a FreeCapacity with the free resources that the jobs' placements leave."""

    def build(snapshot: Snapshot) -> FreeCapacity:
        nodes = usable_nodes(snapshot.nodes)
        room = FreeCapacity([merged(nodes)] if totals_only else nodes, rank, totals_only=totals_only)
        for job in snapshot.jobs.values():
            if job.placement:
                room.take(job.spec, job.placement, job.cpu)
        room._log.clear()
        return room

    return build


# -- Usable nodes, and all of them as one ------------------------------------------------------------------------------


def usable_nodes(nodes: Mapping[str, Node]) -> list[Node]:
    """Own and borrowed nodes that are not given up, in the Snapshot's order; spot nodes first: ties go to the first."""
    usable = [node for node in nodes.values() if node.loan in ("own", "loaned") and not node.given_up]
    return sorted(usable, key=lambda node: not node.spot) if any(node.spot for node in usable) else usable


def admitting(nodes: Sequence[Node], constraints: Constraints, loanable: bool) -> frozenset[int]:
    """The numbers of the nodes that admit these constraints; borrowed nodes admit loanable jobs only."""
    return frozenset(
        i
        for i, node in enumerate(nodes)
        if (node.loan == "own" or (node.loan == "loaned" and loanable)) and constraints.admit(node.labels, node.taints)
    )


def mean_allocated(capacity: Resources, free: tuple[int, int, int]) -> float:
    """The mean allocated share of CPU, memory and accelerators, of those that the node has."""
    shares = [1 - left / all_ for left, all_ in zip(free, capacity[:3], strict=True) if all_ > 0]
    return round(sum(shares) / len(shares), 9) if shares else 0.0


def merged(nodes: Sequence[Node]) -> Node:
    """All nodes as one, for placements that look at totals only."""
    capacity = free = NOTHING
    for node in nodes:
        capacity, free = capacity.plus(node.capacity), free.plus(node.free)
    return Node(ANY_NODE, capacity, free)


# -- Admission: which nodes may run which jobs -------------------------------------------------------------------------


def in_all(sets: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    """The nodes that are in each of these sets; None stands for all nodes."""
    restricted = [nodes for nodes in sets if nodes is not None]
    if not restricted:
        return None
    first = restricted[0]
    # Jobs share their sets: often all are the same object.
    return first if all(nodes is first for nodes in restricted) else frozenset.intersection(*restricted)


class Admission:
    """Which of these nodes admit a job, by number; None stands for all. Jobs with equal constraints share one
    answer."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._admitting: dict[tuple[Constraints, bool], frozenset[int] | None] = {}
        self._lent: dict[Constraints, frozenset[int]] = {}
        self.keep_to: frozenset[int] | None = None
        """The nodes to which a placement keeps while it is tried there; None: all."""
        self.spot = frozenset(i for i, node in enumerate(nodes) if node.spot)
        self.avoided = frozenset(i for i, node in enumerate(nodes) if node.avoid)
        self.tainted = any(node.taints for node in nodes)
        self.plain = not self.tainted and all(node.loan == "own" for node in nodes)
        """Whether no node is tainted or of another pool."""

    def nodes_for(self, spec: JobSpec, type_: str | None = None) -> frozenset[int] | None:
        """The nodes where replicas of this type may run; with no type, those where every type may run."""
        if self.plain and spec.constraints is ANYWHERE and not spec.constraints_by_type:
            return self.keep_to
        if type_ is None and spec.constraints_by_type:
            return in_all(self.nodes_for(spec, group.type) for group in spec.groups)
        constraints = spec.constraints if type_ is None else spec.constraints_of(type_)
        if self.plain and constraints is ANYWHERE:
            return self.keep_to
        return self._kept(self._of(constraints, spec.loanable))

    def own(self, spec: JobSpec, type_: str) -> frozenset[int] | None:
        """Like `nodes_for`, but own nodes only."""
        return self._kept(self._of(spec.constraints_of(type_), False))

    def lent(self, spec: JobSpec, type_: str) -> frozenset[int]:
        """Like `nodes_for`, but borrowed nodes only."""
        if self.plain or not spec.loanable:
            return frozenset()
        constraints = spec.constraints_of(type_)
        if constraints not in self._lent:
            own, both = self._of(constraints, False), self._of(constraints, True)
            everywhere = frozenset(range(len(self._nodes)))
            self._lent[constraints] = (everywhere if both is None else both) - (everywhere if own is None else own)
        return self._lent[constraints] & (self._lent[constraints] if self.keep_to is None else self.keep_to)

    def _kept(self, nodes: frozenset[int] | None) -> frozenset[int] | None:
        """Those of these nodes that are in `keep_to`; None stands for all."""
        if self.keep_to is None:
            return nodes
        return self.keep_to if nodes is None else nodes & self.keep_to

    def _of(self, constraints: Constraints, loanable: bool) -> frozenset[int] | None:
        key = (constraints, loanable)
        if key not in self._admitting:
            chosen = admitting(self._nodes, constraints, loanable)
            self._admitting[key] = None if len(chosen) == len(self._nodes) else chosen
        return self._admitting[key]


# -- FreeIndex: nodes sorted by each of their free resources -----------------------------------------------------------

FEW = 8
"""With at most one in this many nodes, sorting them is faster than a pass over all nodes in order."""


class FreeIndex:
    """Nodes by number, one sorted list per resource: free CPU, memory and accelerators.

    A list holds `free * nodes + i`, since numbers compare faster than pairs.
    """

    def __init__(self, cpu: Sequence[int], memory: Sequence[int], accelerators: Sequence[int]) -> None:
        self._count = count = len(cpu)
        self._lists = tuple(
            sorted(free * count + i for i, free in enumerate(each)) for each in (cpu, memory, accelerators)
        )

    def take(self, i: int, free: Sequence[int], taken: Sequence[int]) -> None:
        """Node `i` had `free` of each resource, and now has `taken` less."""
        count = self._count
        for nodes, before, less in zip(self._lists, free, taken, strict=False):
            if less:
                del nodes[bisect_left(nodes, before * count + i)]
                insort(nodes, (before - less) * count + i)

    def few(self, demand: Sequence[int]) -> list[int] | None:
        """Unordered superset of the nodes that hold `demand` (CPU, memory, accelerators, ...); None if there are
        many."""
        count = self._count
        least, fewest, start = count // FEW, None, 0
        for nodes, want in zip(self._lists, demand, strict=False):
            if not want:
                continue
            at = bisect_left(nodes, want * count)
            if len(nodes) - at <= least:
                least, fewest, start = len(nodes) - at, nodes, at
                if not least:
                    return []
        return None if fewest is None else [each % count for each in fewest[start:]]

    def none_holds(self, demand: Sequence[int]) -> bool:
        """Whether no node has enough of some resource."""
        cpu, memory, accelerators = self._lists
        count = self._count
        return (
            not count
            or cpu[-1] < demand[0] * count
            or memory[-1] < demand[1] * count
            or accelerators[-1] < demand[2] * count
        )


# -- Placements: replicas per node, and which replicas come or go with a change of size --------------------------------


def replicas_per_node(placement: Placement) -> Iterator[tuple[str, str, int]]:
    """(type, node, replicas of that type there), in the order of types and of their first replica."""
    for type_, names in placement.items():
        if not names:
            continue
        first = names[0]
        if names[-1] == first and names.count(first) == len(names):
            yield type_, first, len(names)
        else:
            per_node: dict[str, int] = {}
            for name in names:
                per_node[name] = per_node.get(name, 0) + 1
            for name, n in per_node.items():
                yield type_, name, n


def nodes_of(*placements: Placement) -> set[str]:
    """The nodes that any of these placements uses."""
    return {name for placement in placements for names in placement.values() for name in names}


def grown(placement: Placement, added: Placement) -> dict[str, tuple[str, ...]]:
    """The placement with the added replicas at the end."""
    return {**placement, **{type_: placement.get(type_, ()) + names for type_, names in added.items() if names}}


def lacking(placement: Placement, counts: Counts) -> dict[str, int]:
    """How many replicas of each type are missing in the placement."""
    return {t: n - len(placement.get(t, ())) for t, n in counts.items() if n > len(placement.get(t, ()))}


def shrunk(placement: Placement, counts: Counts) -> dict[str, tuple[str, ...]]:
    """The placement with only the first replicas of each type: TFJobs remove the highest indices first."""
    return {type_: names[: counts.get(type_, 0)] for type_, names in placement.items() if counts.get(type_, 0)}


def replicas_on_nodes(placement: Placement) -> dict[str, int]:
    """How many replicas of any type each node has."""
    counts: dict[str, int] = {}
    for names in placement.values():
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return counts


def more_replicas(one: Placement, other: Placement) -> list[str]:
    """The nodes where `one` has more replicas than `other`."""
    has, had = replicas_on_nodes(one), replicas_on_nodes(other)
    return [name for name, n in has.items() if n > had.get(name, 0)]

"""Free resources per node while a plan is made, with an ordered index and undo.

A FreeCapacity is a view of a Snapshot: it follows the jobs' placements from one Snapshot to the next. A round takes
from it and gives back to it freely and rolls everything back at its end.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Literal

from elastic_tfjob.scheduling.admission import Admission
from elastic_tfjob.scheduling.by_resource import ByResource
from elastic_tfjob.scheduling.nodes import mean_allocated, merged, usable_nodes
from elastic_tfjob.scheduling.placements import replicas_per_node
from elastic_tfjob.scheduling.resources import NOTHING, Resources, maximal, total_of
from elastic_tfjob.scheduling.snapshot import (
    AS_REQUESTED,
    PS,
    Cpu,
    Job,
    JobSpec,
    Node,
    Placement,
    ReplicaGroup,
    Snapshot,
)

Rank = Literal["least-free", "least-allocated", "fewest-ps"]
"""How the index orders nodes: by free accelerators, CPU, memory; by mean allocated share, which is kube-scheduler's
LeastAllocated score; or by parameter servers on them, the freest first among equals. All ascending."""

UNREQUESTED_CPU = 100
"""Millicores that kube-scheduler counts for a replica which requests no CPU when it scores nodes, not when it looks
whether something fits (DefaultMilliCPURequest in pkg/scheduler/util/pod_resources.go). Else all of them would go to one
node, since that stays the least allocated. Its like for memory is not counted here."""

MANY = 1 << 30
Key = tuple[float, float, float, int]


class FreeCapacity:
    def __init__(self, nodes: list[Node], rank: Rank, *, totals_only: bool = False) -> None:
        self.totals_only = totals_only
        self.rank = rank
        self._log: list[tuple[int | str, Resources, int] | list[Node]] = []
        """To undo: what was taken of which node with how many `counted`, and the nodes before others came."""
        self._elsewhere: dict[str, tuple[Resources, int]] = {}
        """What jobs hold on nodes that are not here, by name, with how many `counted`: such a node may come (back)."""
        self._set_up(nodes, {})

    def _set_up(self, nodes: list[Node], held: dict[str, tuple[Resources, int]]) -> None:
        """Stand on these nodes, of which jobs hold so much."""
        self.nodes = nodes
        self.index = {node.name: i for i, node in enumerate(nodes)}
        self.capacity = [node.capacity for node in nodes]
        self.usable = [node.free for node in nodes]
        self.cpu = [node.free.cpu for node in nodes]
        self.memory = [node.free.memory for node in nodes]
        self.accelerators = [node.free.accelerators for node in nodes]
        self.pods = [node.free.pods for node in nodes]
        self.storage = [node.free.storage for node in nodes]
        total = self.total = total_of(self.usable)
        self.counted = [0] * len(nodes)
        """Replicas of our jobs per node that the rank counts: under least-allocated those that request no CPU, else
        parameter servers, for placements that keep them apart."""
        for name in held.keys() & self.index.keys():
            i, (taken, counted) = self.index[name], held.pop(name)
            self.cpu[i] -= taken.cpu
            self.memory[i] -= taken.memory
            self.accelerators[i] -= taken.accelerators
            self.pods[i] -= taken.pods
            self.storage[i] -= taken.storage
            self.counted[i] += counted
            total = total.minus(taken)
        self.free_cpu, self.free_memory, self.free_accelerators, self.free_pods, self.free_storage = total
        self._elsewhere = held
        self._keys: list[Key] = [self._key(i) for i in range(len(nodes))]
        self._order: list[Key] = sorted(self._keys)
        self._by_resource = ByResource(self.cpu, self.memory, self.accelerators) if self.rank == "fewest-ps" else None
        self._largest = maximal(self.usable)
        self.admission = Admission(nodes)

    @property
    def holds_elsewhere(self) -> bool:
        """Whether jobs hold anything on nodes that are not here."""
        return bool(self._elsewhere)

    # ---- following the Snapshot

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before and after and before.placement == after.placement and before.cpu == after.cpu:
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
        """Go over to these nodes; what jobs hold on them stays held."""
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
                per_node[at] = per_node.get(at, 0) + sign * (held - group.request.cpu)
        for at, millicores in per_node.items():
            self.take_cpu(at, millicores)

    def take_replicas(self, i: int | str, group: ReplicaGroup, n: int) -> None:
        """Take what `n` replicas ask for from node `i` (or that of this name, which is not here); a negative `n` gives
        back."""
        counts = not group.request.cpu if self.rank == "least-allocated" else group.type == PS
        self.take_from(i, group.request if n == 1 else group.request.times(n), n if counts else 0)

    def take_from(self, i: int | str, taken: Resources, counted: int) -> None:
        """Take this much of node `i`, for replicas of which so many are `counted`."""
        self._shift(i, taken, counted)
        self._log.append((i, taken, counted))

    def take_cpu(self, i: int | str, millicores: int) -> None:
        """Take CPU alone from node `i`, for replicas that are there; a negative amount gives back."""
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
        if self._by_resource:
            self._by_resource.take(i, (self.cpu[i], self.memory[i], self.accelerators[i]), taken)
        self.cpu[i] -= cpu
        self.memory[i] -= memory
        self.accelerators[i] -= accelerators
        self.counted[i] += counted
        self.free_cpu -= cpu
        self.free_memory -= memory
        self.free_accelerators -= accelerators
        if pods or storage:
            self.pods[i] -= pods
            self.storage[i] -= storage
            self.free_pods -= pods
            self.free_storage -= storage
        order, key = self._order, self._key(i)
        del order[bisect_left(order, self._keys[i])]
        insort(order, key)
        self._keys[i] = key

    def mark(self) -> int:
        return len(self._log)

    def rollback(self, mark: int) -> None:
        """Undo what was done since: in one go per node, since a long round comes back to each many times."""
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
        """Give all this back."""
        for i, amounts in taken.items():
            if amounts != (NOTHING, 0):
                self._shift(i, amounts[0].times(-1), -amounts[1])

    # ---- looking

    def _key(self, i: int) -> Key:
        if self.rank == "least-free":
            return (self.accelerators[i], self.cpu[i], self.memory[i], i)
        if self.rank == "fewest-ps":
            return (self.counted[i], -self.accelerators[i], -self.cpu[i], i)
        cpu = self.cpu[i] - UNREQUESTED_CPU * self.counted[i]
        return (mean_allocated(self.capacity[i], (cpu, self.memory[i], self.accelerators[i])), 0, 0, i)

    @property
    def free_total(self) -> Resources:
        return Resources(self.free_cpu, self.free_memory, self.free_accelerators, self.free_pods, self.free_storage)

    def free_cpu_for(self, spec: JobSpec) -> int:
        """Millicores that are free where all types of a job may run."""
        allowed = self.allowed(spec)
        return self.free_cpu if allowed is None else sum(self.cpu[i] for i in allowed)

    def fits_total(self, demand: Resources) -> bool:
        return (
            demand.accelerators <= self.free_accelerators
            and demand.cpu <= self.free_cpu
            and demand.memory <= self.free_memory
            and demand.pods <= self.free_pods
            and demand.storage <= self.free_storage
        )

    def free(self, i: int) -> Resources:
        return Resources(self.cpu[i], self.memory[i], self.accelerators[i], self.pods[i], self.storage[i])

    def fit(self, i: int, request: Resources, planned: Resources = NOTHING) -> int:
        """How many such requests node `i` still holds beside what is planned for it."""
        n = MANY
        if request.accelerators:
            n = (self.accelerators[i] - planned.accelerators) // request.accelerators
        if request.cpu:
            n = min(n, (self.cpu[i] - planned.cpu) // request.cpu)
        if request.memory:
            n = min(n, (self.memory[i] - planned.memory) // request.memory)
        if request.pods:
            n = min(n, (self.pods[i] - planned.pods) // request.pods)
        if request.storage:
            n = min(n, (self.storage[i] - planned.storage) // request.storage)
        return max(n, 0)

    def fit_empty(self, i: int, request: Resources) -> int:
        """How many such requests node `i` would hold without any of our jobs."""
        usable = self.usable[i]
        return min((have // want for have, want in zip(usable, request, strict=True) if want), default=MANY)

    def holds(self, i: int, demand: Resources) -> bool:
        return (
            demand.accelerators <= self.accelerators[i]
            and demand.cpu <= self.cpu[i]
            and demand.memory <= self.memory[i]
            and demand.pods <= self.pods[i]
            and demand.storage <= self.storage[i]
        )

    def allowed(self, spec: JobSpec, type_: str | None = None) -> frozenset[int] | None:
        """Indices of the nodes where replicas of this type may run, or all types; None: all nodes."""
        return self.admission.nodes_for(spec, type_)

    def best_fit(self, demand: Resources, allowed: frozenset[int] | None) -> int | None:
        """The node with least left free that holds `demand`; ties to the first node. Needs rank `least-free`."""
        cpu, memory, accelerators, pods, storage = demand
        start = bisect_left(self._order, (accelerators, cpu, memory, -1))
        for _, free_cpu, free_memory, i in islice(self._order, start, None):  # each has the accelerators
            if (
                free_cpu >= cpu
                and free_memory >= memory
                and self.pods[i] >= pods
                and self.storage[i] >= storage
                and (allowed is None or i in allowed)
            ):
                return i
        return None

    def first(self, demand: Resources, allowed: frozenset[int] | None) -> int | None:
        """The first node in the order of `rank` that holds `demand`."""
        few = self._by_resource.few(demand) if self._by_resource else None
        cpu, memory, accelerators = self.cpu, self.memory, self.accelerators
        want_cpu, want_memory, want_accelerators, want_pods, want_storage = demand
        if few is not None:
            holding = [
                i
                for i in few
                if accelerators[i] >= want_accelerators
                and cpu[i] >= want_cpu
                and memory[i] >= want_memory
                and self.pods[i] >= want_pods
                and self.storage[i] >= want_storage
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
                and self.storage[i] >= want_storage
                and (allowed is None or i in allowed)
            ):
                return i
        return None

    def holding(self, demand: Resources) -> Iterator[int]:
        """The nodes that hold `demand`, in the order of `rank`. Taking while iterating moves nodes."""
        few = self._by_resource.few(demand) if self._by_resource else None
        if few is not None:
            return iter(sorted((i for i in few if self.holds(i, demand)), key=self._key))
        return (key[3] for key in self._order if self.holds(key[3], demand))

    def none_holds(self, request: Resources) -> bool:
        """Whether surely no node holds it, which is seen at once; False where it takes a search (rank `fewest-ps` knows
        at once)."""
        return self._by_resource is not None and self._by_resource.none_holds(request)

    def largest_empty_fit(self, demand: Resources) -> bool:
        """Whether some node without any of our jobs would hold `demand`."""
        return any(demand.within(usable) for usable in self._largest)

    def ascending(self) -> Iterator[int]:
        """Nodes in the order of `rank`. Taking while iterating moves nodes: take a list first."""
        return (key[3] for key in self._order)

    def descending(self) -> Iterator[int]:
        """Freest first under `least-free`; ties still to the first node."""
        order = self._order
        k = len(order)
        while k:
            head = order[k - 1][:3]
            start = bisect_left(order, (*head, -1))
            for j in range(start, k):
                yield order[j][3]
            k = start


def room_view(rank: Rank, totals_only: bool) -> Callable[[Snapshot], FreeCapacity]:
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

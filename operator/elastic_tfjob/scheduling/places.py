"""Placements: which nodes replicas go to. PLACES has each by the name that the parameter `place` gives it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import ClassVar, Literal

from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.room import ANY_NODE, MANY, FreeCapacity, Rank, in_all
from elastic_tfjob.scheduling.rules import Place
from elastic_tfjob.scheduling.snapshot import PS, Counts, JobSpec, Placement, ReplicaGroup

__all__ = ["Apart", "Where"]

Where = Mapping[str, frozenset[int] | None]
"""By replica type, the nodes where it may go; None: all."""

PlaceName = Literal["count", "consolidate", "best-fit", "spread", "even", "pack", "apart", "pack-apart"]


@dataclass(frozen=True, slots=True)
class BestFit(Place):
    """Best fit decreasing: each replica goes to the fullest node that still holds it. The types with the largest
    requests go first, so that large holes stay for large replicas."""

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None
        return _place_types(
            _largest_first(spec),
            add,
            room,
            lambda group, left: _fullest_nodes(group, left, room, room.allowed(spec, group.type)),
        )


@dataclass(frozen=True, slots=True)
class Spread(Place):
    """kube-scheduler's LeastAllocated: the node whose mean allocated share of its resources is smallest."""

    rank: ClassVar[Rank] = "least-allocated"

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None

        def nodes(group: ReplicaGroup, left: int) -> Iterator[tuple[int, int]]:
            allowed = room.allowed(spec, group.type)
            while (i := room.first(group.request, allowed)) is not None:
                yield i, 1

        return _place_types(spec.groups, add, room, nodes)


@dataclass(frozen=True, slots=True)
class CountOnly(Place):
    """The cluster as one node with the sum of all, as a simulator without placement assumes. Not for live use."""

    totals_only: ClassVar[bool] = True

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None
        placement: Mapping[str, tuple[str, ...]] = {type_: (ANY_NODE,) * n for type_, n in add.items() if n}
        room.take(spec, placement)
        return placement


@dataclass(frozen=True, slots=True)
class EvenSplit(Place):
    """Optimus' placement (Peng et al., EuroSys'18, section 4.2, theorem 1): the smallest k for which each of the k
    freest nodes can hold an equal number of PSs and of workers (to within one). Where there is no such k, best fit.
    """

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None
        allowed = room.allowed(spec)
        tasks = sum(add.values())
        freest = list(islice((i for i in room.descending() if allowed is None or i in allowed), tasks))
        for k in range(1, min(tasks, len(freest)) + 1):
            chosen = freest[:k]
            if all(room.holds(i, spec.demand(_share(add, j, k))) for j, i in enumerate(chosen)):
                return _place_types(spec.groups, add, room, partial(_even_nodes, add=add, nodes=chosen))
        return BestFit().place(spec, add, room, kept)


def _even_nodes(group: ReplicaGroup, left: int, *, add: Counts, nodes: Sequence[int]) -> Iterator[tuple[int, int]]:
    for j, i in enumerate(nodes):
        if n := _share(add, j, len(nodes)).get(group.type, 0):
            yield i, n


@dataclass(frozen=True, slots=True)
class Consolidate(Place):
    """Uses as few nodes as an empty cluster would need; otherwise the job waits. A job that fits one node goes to the
    fullest node that holds it. A larger one takes nodes that are as free as they ever get, and best fit for the
    remainder (Helios and Lucid call it "consolidate", Tiresias "yarn"). A job that grows does so on one of its nodes,
    or not at all."""

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
        demand = spec.demand(add)
        if not room.fits_total(demand):
            return None
        allowed = room.allowed(spec)
        if kept:
            i = next((i for i in _nodes_of_job(kept, room) if room.holds(i, demand)), None)
            if i is None:
                return None
        else:
            i = room.best_fit(demand, allowed)
        if i is not None:
            name = room.nodes[i].name
            together = {type_: (name,) * n for type_, n in add.items() if n}
            room.take(spec, together)
            return together
        if room.largest_empty_fit(demand):
            return None
        return _place_types(spec.groups, add, room, lambda group, left: self._free_nodes(group, left, room, allowed))

    def _free_nodes(
        self, group: ReplicaGroup, left: int, room: FreeCapacity, allowed: frozenset[int] | None
    ) -> Iterator[tuple[int, int]]:
        for i in list(room.descending()):
            if left <= 0:
                return
            if allowed is not None and i not in allowed:
                continue
            full = room.fit_empty(i, group.request)
            if left < full or room.fit(i, group.request) < full:
                continue  # nodes differ: a later one may be small enough, or completely free
            yield i, full
            left -= full
        if 0 < left < MANY:
            last = room.best_fit(group.request.times(left), allowed)
            if last is not None:
                yield last, left


# -- Pack: the fewest nodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pack(Place):
    """The fewest nodes, workers beside their PS, PSs of different jobs apart.

    One node for the whole job if one holds it; else node after node is filled: first what needs accelerators, then PSs
    (DRAGON, CLOSER'19); where that does not fit, the largest replicas first. The job's own nodes come first; then those
    with the fewest PSs of other jobs, so that PSs do not share a network card; then the freest.
    """

    rank: ClassVar[Rank] = "fewest-ps"

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
        for group in spec.groups:
            if add.get(group.type) and room.none_holds(group.request):
                return None
        demand = spec.demand(add)
        if not room.fits_total(demand):
            return None
        where = {group.type: room.allowed(spec, group.type) for group in spec.groups}
        return _pack(spec, add, room, kept, where, demand=demand)


def _pack(
    spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement, where: Where, *, demand: Resources
) -> Placement | None:
    """As Pack says, on the nodes of `where`. `demand` is the sum of `add`."""
    allowed = in_all(where.values())
    own = _nodes_of_job(kept, room)
    whole = next((i for i in own if room.holds(i, demand)), None) if own else None
    if whole is None:
        whole = room.first(demand, allowed)
    if whole is not None and (allowed is None or whole in allowed):
        name = room.nodes[whole].name
        room.take_from(whole, demand, add.get(PS, 0))
        return {type_: (name,) * n for type_, n in add.items() if n}
    added = [group for group in spec.groups if add.get(group.type)]
    # Few nodes have accelerators: replicas that need none must not take the CPU beside them.
    ps_first = largest_first = added
    if len(added) > 1:
        ps_first = sorted(added, key=lambda group: (not group.request.accelerators, group.type != PS))
        largest_first = sorted(ps_first, key=lambda group: (-group.request.accelerators, -group.request.cpu))
    chosen = _fill(ps_first, add, room, own, where)
    if chosen is None and largest_first != ps_first:
        chosen = _fill(largest_first, add, room, own, where)
    if chosen is None:
        return None
    for group in added:
        for i, n in chosen[group.type]:
            room.take_replicas(i, group, n)
    return {type_: tuple(name for i, n in each for name in (room.nodes[i].name,) * n) for type_, each in chosen.items()}


def _fill(
    groups: Sequence[ReplicaGroup], add: Counts, room: FreeCapacity, own: Sequence[int], where: Where
) -> dict[str, list[tuple[int, int]]] | None:
    """By type, the nodes and how many replicas go to each, where types are placed one after another; None if they do
    not fit."""
    planned: dict[int, Resources] = {}
    chosen: dict[str, list[tuple[int, int]]] = {}
    for group in groups:
        left, allowed = add[group.type], where[group.type]
        others = (i for i in room.holding(group.request) if i not in own)
        for i in chain((i for i in own if room.holds(i, group.request)), others):
            if allowed is not None and i not in allowed:
                continue
            taken = planned.get(i, NOTHING)
            n = min(left, room.fit(i, group.request, taken))
            if n:
                if len(groups) > 1:
                    planned[i] = taken.plus(group.request.times(n))
                chosen.setdefault(group.type, []).append((i, n))
                left -= n
            if not left:
                break
        if left:
            return None
    return chosen


# -- Apart: own and borrowed nodes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Apart(Place):
    """A job is either on own nodes or on borrowed ones, so that borrowed nodes can be returned with few stops.

    A job starts on own nodes, or as a whole on borrowed ones where it may run there and no own node has room. A job
    with several replica types, which need each other in each step, starts on one node if one holds all of it. On two
    borrowed nodes the return of either would stop it, so it waits for one borrowed node that could hold all of it.

    A growing job stays with the kind of its nodes, with one exception: workers of a job on own nodes are added on
    borrowed nodes where it may run there and they are as fast, since these workers can leave without a stop. A PS goes
    to a borrowed node only with the whole job. New replicas go beside the last one, since the highest indices leave
    first; then to one node that holds them all; then by best fit.
    """

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
        demand = spec.demand(add)
        if not room.fits_total(demand):
            return None
        types = [type_ for type_, n in add.items() if n]
        starts_together = not kept and len(types) > 1
        for where in self.wheres(spec, room, kept):
            if starts_together:
                allowed = in_all(where[type_] for type_ in types)
                one = room.best_fit(demand, allowed)
                if one is not None:
                    room.take_from(one, demand, add.get(PS, 0))
                    return {type_: (room.nodes[one].name,) * add[type_] for type_ in types}
                if _one_borrowed_could(room, demand, allowed):
                    continue
            nodes = partial(_apart_nodes, room=room, kept=kept, where=where)
            placement = _place_types(_largest_first(spec), add, room, nodes)
            if placement is not None:
                return placement
        return None

    def wheres(self, spec: JobSpec, room: FreeCapacity, kept: Placement) -> Iterator[Where]:
        """The nodes for replicas beside `kept`, in the order in which they are tried."""
        types = [group.type for group in spec.groups]
        own = {type_: room.admission.own(spec, type_) for type_ in types}
        lent = {type_: room.admission.lent(spec, type_) for type_ in types}
        if not kept:
            yield own
            if any(lent.values()):
                yield lent
            return
        there = [room.index[name] for names in kept.values() for name in names if name in room.index]
        if there and all(room.nodes[i].loan != "own" for i in there):
            yield lent
            return
        if any(lent.values()):
            slowest = min((room.nodes[i].accelerator_speed for i in there), default=1.0)
            quick = {
                type_: frozenset(i for i in nodes or () if room.nodes[i].accelerator_speed >= slowest)
                for type_, nodes in lent.items()
            }
            if any(quick.values()):
                yield {type_: own[type_] if type_ == PS else quick[type_] for type_ in types}
        yield own


def _one_borrowed_could(room: FreeCapacity, demand: Resources, allowed: frozenset[int] | None) -> bool:
    """Whether one of these nodes is borrowed and would hold the demand if it were empty."""
    return any(room.nodes[i].loan != "own" and room.fit_empty(i, demand) for i in allowed or ())


def _apart_nodes(
    group: ReplicaGroup, left: int, *, room: FreeCapacity, kept: Placement, where: Where
) -> Iterator[tuple[int, int]]:
    """As Apart says for replicas that are added."""
    allowed = where[group.type]
    last = room.index.get(kept[group.type][-1]) if kept.get(group.type) else None
    if last is not None and (allowed is None or last in allowed):
        n = min(left, room.fit(last, group.request))
        if n:
            yield last, n
            left -= n
    if left > 1 and kept:
        one = room.best_fit(group.request.times(left), allowed)
        if one is not None:
            yield one, left
            return
    yield from _fullest_nodes(group, left, room, allowed)


@dataclass(frozen=True, slots=True)
class PackApart(Pack):
    """Pack, with own and borrowed nodes kept apart as in Apart."""

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
        if not any(room.admission.lent(spec, group.type) for group in spec.groups):
            return Pack.place(self, spec, add, room, kept)
        demand = spec.demand(add)
        if not room.fits_total(demand):
            return None
        for where in Apart().wheres(spec, room, kept):
            placement = _pack(spec, add, room, kept, where, demand=demand)
            if placement is not None:
                return placement
        return None


PLACES: dict[PlaceName, Place] = {
    "count": CountOnly(),
    "consolidate": Consolidate(),
    "best-fit": BestFit(),
    "spread": Spread(),
    "even": EvenSplit(),
    "pack": Pack(),
    "apart": Apart(),
    "pack-apart": PackApart(),
}


# -- Shared by the placements ------------------------------------------------------------------------------------------


def _place_types(
    groups: Iterable[ReplicaGroup],
    add: Counts,
    room: FreeCapacity,
    nodes: Callable[[ReplicaGroup, int], Iterator[tuple[int, int]]],
) -> Placement | None:
    """Place type after type, all or nothing. `nodes` yields for a type, and how many of its replicas to place, a node
    and how many go there; they are taken from `room` before it continues."""
    mark = room.mark()
    placement: dict[str, tuple[str, ...]] = {}
    for group in groups:
        left = add.get(group.type, 0)
        if not left:
            continue
        names: list[str] = []
        for i, n in nodes(group, left):
            room.take_replicas(i, group, n)
            names += [room.nodes[i].name] * n
            left -= n
            if not left:
                break
        if left:
            room.rollback(mark)
            return None
        placement[group.type] = tuple(names)
    return placement


def _largest_first(spec: JobSpec) -> list[ReplicaGroup]:
    return sorted(spec.groups, key=lambda group: (group.request.accelerators, group.request.cpu), reverse=True)


def _fullest_nodes(
    group: ReplicaGroup, left: int, room: FreeCapacity, allowed: frozenset[int] | None
) -> Iterator[tuple[int, int]]:
    while left > 0:
        i = room.best_fit(group.request, allowed)
        if i is None:
            return
        n = min(left, room.fit(i, group.request))  # the fullest node stays the fullest while it holds more
        yield i, n
        left -= n


def _share(counts: Counts, j: int, k: int) -> dict[str, int]:
    """The share of the j-th of k nodes; if the count is not divisible by k, the first nodes get one more."""
    return {type_: n // k + (j < n % k) for type_, n in counts.items()}


def _nodes_of_job(kept: Placement, room: FreeCapacity) -> list[int]:
    """Nodes with the job's PSs, then its other nodes."""
    if not kept:
        return []
    seen: dict[str, None] = dict.fromkeys(kept.get(PS, ()))
    for names in kept.values():
        seen.update(dict.fromkeys(names))
    return [i for name in seen if (i := room.index.get(name)) is not None]

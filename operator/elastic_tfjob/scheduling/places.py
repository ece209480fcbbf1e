"""Best fit: each replica to the fullest node that still holds it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.room import ANY_NODE, MANY, FreeCapacity, Rank, in_all
from elastic_tfjob.scheduling.rules import Place
from elastic_tfjob.scheduling.snapshot import PS, Counts, JobSpec, Placement, ReplicaGroup

__all__ = ["Apart", "Where"]

LEAST_FREE: Rank = "least-free"


@dataclass(frozen=True, slots=True)
class BestFit:
    """Best fit decreasing: the types with the largest requests first, so that large holes stay for large replicas."""

    rank: Rank = LEAST_FREE
    totals_only: bool = False

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None
        mark = room.mark()
        placement: dict[str, tuple[str, ...]] = {}
        for group in sorted(spec.groups, key=lambda g: (g.request.accelerators, g.request.cpu), reverse=True):
            left, allowed = add.get(group.type, 0), room.allowed(spec, group.type)
            names: list[str] = []
            while left > 0:
                i = room.best_fit(group.request, allowed)
                if i is None:
                    room.rollback(mark)
                    return None
                n = min(left, room.fit(i, group.request))  # the fullest node stays the fullest while it holds more
                room.take_replicas(i, group, n)
                names += [room.nodes[i].name] * n
                left -= n
            if names:
                placement[group.type] = tuple(names)
        return placement


# -- Spread: each replica to the least allocated node ------------------------------------------------------------------

LEAST_ALLOCATED: Rank = "least-allocated"


@dataclass(frozen=True, slots=True)
class Spread:
    """kube-scheduler's LeastAllocated: the node whose mean allocated share of its resources is smallest."""

    rank: Rank = LEAST_ALLOCATED
    totals_only: bool = False

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None
        mark = room.mark()
        placement: dict[str, tuple[str, ...]] = {}
        for group in spec.groups:
            allowed = room.allowed(spec, group.type)
            names: list[str] = []
            for _ in range(add.get(group.type, 0)):
                i = room.first(group.request, allowed)
                if i is None:
                    room.rollback(mark)
                    return None
                room.take_replicas(i, group, 1)
                names.append(room.nodes[i].name)
            if names:
                placement[group.type] = tuple(names)
        return placement


# -- Even split: the fewest nodes on which a job's PSs and workers spread evenly ---------------------------------------


@dataclass(frozen=True, slots=True)
class EvenSplit:
    """Optimus' placement (Peng et al., EuroSys'18, section 4.2, theorem 1): on the k freest nodes, with k as small as
    can be, each holds an equal number of PSs and of workers (to within one). Where no k does, best fit.
    """

    rank: Rank = LEAST_FREE
    totals_only: bool = False

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None
        allowed = room.allowed(spec)
        tasks = sum(add.values())
        freest = list(islice((i for i in room.descending() if allowed is None or i in allowed), tasks))
        for k in range(1, min(tasks, len(freest)) + 1):
            chosen = freest[:k]
            if all(room.holds(i, spec.demand(share(add, j, k))) for j, i in enumerate(chosen)):
                placement: dict[str, tuple[str, ...]] = {}
                for group in spec.groups:
                    names: list[str] = []
                    for j, i in enumerate(chosen):
                        n = share(add, j, k).get(group.type, 0)
                        if n:
                            room.take_replicas(i, group, n)
                            names += [room.nodes[i].name] * n
                    if names:
                        placement[group.type] = tuple(names)
                return placement
        return BestFit().place(spec, add, room, beside)


def share(counts: Counts, j: int, k: int) -> dict[str, int]:
    """The part of the j-th of k nodes; what does not divide goes to the first ones."""
    return {type_: n // k + (j < n % k) for type_, n in counts.items()}


# -- Totals only: no node is chosen ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CountOnly:
    """The cluster as one node with the sum of all: what a simulator without placement assumes. Not for live use."""

    rank: Rank = LEAST_FREE
    totals_only: bool = True

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None
        placement: Mapping[str, tuple[str, ...]] = {type_: (ANY_NODE,) * n for type_, n in add.items() if n}
        room.take(spec, placement)
        return placement


# -- Where a job already is --------------------------------------------------------------------------------------------


def own_nodes(beside: Placement, room: FreeCapacity) -> list[int]:
    """Nodes with the job's PSs, then its other nodes."""
    if not beside:
        return []
    seen: dict[str, None] = dict.fromkeys(beside.get(PS, ()))
    for names in beside.values():
        seen.update(dict.fromkeys(names))
    return [i for name in seen if (i := room.index.get(name)) is not None]


# -- Strict consolidation: as few nodes as an empty cluster would need, or wait ----------------------------------------


@dataclass(frozen=True, slots=True)
class Consolidate:
    """A job that fits one node gets the fullest node that still holds it (best fit). A larger one takes nodes that are
    as free as they ever get, and best fit for what is left (Helios and Lucid call it "consolidate", Tiresias "yarn").
    A job that grows does so on a node it has, or not at all.
    """

    rank: Rank = LEAST_FREE
    totals_only: bool = False

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        demand = spec.demand(add)
        if not room.fits_total(demand):
            return None
        allowed = room.allowed(spec)
        if beside:
            i = next((i for i in own_nodes(beside, room) if room.holds(i, demand)), None)
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
        mark = room.mark()
        placement: dict[str, tuple[str, ...]] = {}
        for group in spec.groups:
            left = add.get(group.type, 0)
            names: list[str] = []
            for i in list(room.descending()):
                if left <= 0:
                    break
                if allowed is not None and i not in allowed:
                    continue
                full = room.fit_empty(i, group.request)
                if left < full or room.fit(i, group.request) < full:
                    continue  # among unequal nodes one behind it may be small enough, or free as a whole
                room.take_replicas(i, group, full)
                names += [room.nodes[i].name] * full
                left -= full
            if left > 0:
                last = room.best_fit(group.request.times(left), allowed) if left < MANY else None
                if last is None:
                    room.rollback(mark)
                    return None
                room.take_replicas(last, group, left)
                names += [room.nodes[last].name] * left
            if names:
                placement[group.type] = tuple(names)
        return placement


# -- Apart: a job is on our own nodes or on lent ones, so that these go back with as few stops as can be ---------------

Where = Mapping[str, frozenset[int] | None]
"""By type the nodes where replicas may go; None: all."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A job starts on our own nodes, or as a whole on lent ones where it may run there and ours have no room.

    One with replicas of several types, which need each other in each step, starts on one node if one holds all of it:
    on two lent nodes it would be stopped for each of them, so it waits for one that would hold all of it.

    A job that grows stays with the kind of nodes that it is on. One on our own nodes that may run on lent ones has its
    further workers there, if they are as fast: they can leave without a stop. A parameter server goes to a lent node
    only with the whole job. Replicas that are added go beside the last one, since the highest indices leave first, then
    to one node that holds them all, then by best fit.
    """

    rank: Rank = LEAST_FREE
    totals_only: bool = False

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        demand = spec.demand(add)
        if not room.fits_total(demand):
            return None
        types = [type_ for type_, n in add.items() if n]
        starts_together = not beside and len(types) > 1
        for where in self.wheres(spec, room, beside):
            if starts_together:
                allowed = in_all(where[type_] for type_ in types)
                one = room.best_fit(demand, allowed)
                if one is not None:
                    room.take_from(one, demand, add.get(PS, 0))
                    return {type_: (room.nodes[one].name,) * add[type_] for type_ in types}
                if _one_lent_could(room, demand, allowed):
                    continue
            nodes = _place(spec, add, room, beside, where)
            if nodes is not None:
                return nodes
        return None

    def wheres(self, spec: JobSpec, room: FreeCapacity, beside: Placement) -> Iterator[Where]:
        """The nodes for replicas beside these, the kind that is to be tried first."""
        types = [group.type for group in spec.groups]
        own = {type_: room.admission.own(spec, type_) for type_ in types}
        lent = {type_: room.admission.lent(spec, type_) for type_ in types}
        if not beside:
            yield own
            if any(lent.values()):
                yield lent
            return
        there = [room.index[name] for names in beside.values() for name in names if name in room.index]
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


def _one_lent_could(room: FreeCapacity, demand: Resources, allowed: frozenset[int] | None) -> bool:
    """Whether one of these nodes is lent and would hold this if nothing else were there."""
    return any(room.nodes[i].loan != "own" and room.fit_empty(i, demand) for i in allowed or ())


def _place(spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement, where: Where) -> Placement | None:
    mark = room.mark()
    placement: dict[str, tuple[str, ...]] = {}
    for group in sorted(spec.groups, key=lambda g: (g.request.accelerators, g.request.cpu), reverse=True):
        names: list[str] = []
        left = add.get(group.type, 0)
        for i, n in _nodes(group, left, room, beside, where[group.type]):
            room.take_replicas(i, group, n)
            names += [room.nodes[i].name] * n
            left -= n
        if left:
            room.rollback(mark)
            return None
        if names:
            placement[group.type] = tuple(names)
    return placement


def _nodes(
    group: ReplicaGroup, left: int, room: FreeCapacity, beside: Placement, allowed: frozenset[int] | None
) -> Iterator[tuple[int, int]]:
    """Nodes and how many replicas go there; what is yielded has to be taken."""
    last = room.index.get(beside[group.type][-1]) if beside.get(group.type) else None
    if last is not None and (allowed is None or last in allowed) and left:
        n = min(left, room.fit(last, group.request))
        if n:
            yield last, n
            left -= n
    if left > 1 and beside:
        one = room.best_fit(group.request.times(left), allowed)
        if one is not None:
            yield one, left
            return
    while left > 0:
        i = room.best_fit(group.request, allowed)
        if i is None:
            return
        n = min(left, room.fit(i, group.request))
        yield i, n
        left -= n


# -- Pack: the fewest nodes, workers beside their PS, PS of different jobs apart ---------------------------------------

FEWEST_PS: Rank = "fewest-ps"


@dataclass(frozen=True, slots=True)
class Pack:
    """One node for the whole job if one holds it, else node after node filled as far as it goes: what needs
    accelerators first, then PSs (DRAGON, CLOSER'19); if not all fits like that, the largest replicas first. Nodes that
    already serve the job come first; then those with the fewest PSs of others, so that these do not share one network
    card; then the freest.
    """

    rank: Rank = FEWEST_PS
    totals_only: bool = False

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        for group in spec.groups:
            if add.get(group.type) and room.none_holds(group.request):
                return None
        demand = spec.demand(add)
        if not room.fits_total(demand):
            return None
        where = {group.type: room.allowed(spec, group.type) for group in spec.groups}
        return pack(spec, add, room, beside, where, demand=demand)


@dataclass(frozen=True, slots=True)
class PackApart(Pack):
    """Pack, on our own nodes or on lent ones, as `apart` has it, so that these go back with as few stops as can be."""

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        if not any(room.admission.lent(spec, group.type) for group in spec.groups):
            return Pack.place(self, spec, add, room, beside)
        demand = spec.demand(add)
        if not room.fits_total(demand):
            return None
        for where in Apart().wheres(spec, room, beside):
            found = pack(spec, add, room, beside, where, demand=demand)
            if found is not None:
                return found
        return None


def pack(
    spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement, where: Where, *, demand: Resources
) -> Placement | None:
    """On these nodes alone. `demand` is what all of `add` ask for together."""
    allowed = in_all(where.values())
    own = own_nodes(beside, room)
    whole = next((i for i in own if room.holds(i, demand)), None) if own else None
    if whole is None:
        whole = room.first(demand, allowed)
    if whole is not None and (allowed is None or whole in allowed):
        name = room.nodes[whole].name
        room.take_from(whole, demand, add.get(PS, 0))
        return {type_: (name,) * n for type_, n in add.items() if n}
    added = [group for group in spec.groups if add.get(group.type)]
    # Accelerators are on few nodes: what needs none must not take the CPU beside them.
    ps_first = largest_first = added
    if len(added) > 1:
        ps_first = sorted(added, key=lambda group: (not group.request.accelerators, group.type != PS))
        largest_first = sorted(ps_first, key=lambda group: (-group.request.accelerators, -group.request.cpu))
    chosen = fill(ps_first, add, room, own, where)
    if chosen is None and largest_first != ps_first:
        chosen = fill(largest_first, add, room, own, where)
    if chosen is None:
        return None
    for group in added:
        for i, n in chosen[group.type]:
            room.take_replicas(i, group, n)
    return {type_: tuple(name for i, n in each for name in (room.nodes[i].name,) * n) for type_, each in chosen.items()}


def fill(
    groups: Sequence[ReplicaGroup], add: Counts, room: FreeCapacity, own: Sequence[int], where: Where
) -> dict[str, list[tuple[int, int]]] | None:
    """By type, how many replicas go to which nodes, where types are given what is left one after another; None if
    that is not enough."""
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


# -- Placements by the names that a profile's parameters give them -----------------------------------------------------

PlaceName = Literal["count", "consolidate", "best-fit", "spread", "even", "pack", "apart", "pack-apart"]

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

"""Apart: a job is on our own nodes or on lent ones, so that these go back with as few stops as can be."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.admission import in_all
from elastic_tfjob.scheduling.free_capacity import FreeCapacity, Rank
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, Counts, JobSpec, Placement, ReplicaGroup
from elastic_tfjob.scheduling.stages.place.best_fit import RANK

__all__ = ["Apart", "Where"]

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

    rank: Rank = RANK
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

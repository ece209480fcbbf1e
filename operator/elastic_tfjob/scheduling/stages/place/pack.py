"""Pack: the fewest nodes, workers beside their PS, PS of different jobs apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from elastic_tfjob.scheduling.admission import in_all
from elastic_tfjob.scheduling.free_capacity import FreeCapacity, Rank
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.snapshot import PS, Counts, JobSpec, Placement, ReplicaGroup
from elastic_tfjob.scheduling.stages.place.apart import Apart, Where
from elastic_tfjob.scheduling.stages.place.own_nodes import own_nodes

RANK: Rank = "fewest-ps"


@dataclass(frozen=True, slots=True)
class Pack:
    """One node for the whole job if one holds it, else node after node filled as far as it goes: what needs
    accelerators first, then PSs (DRAGON, CLOSER'19); if not all fits like that, the largest replicas first. Nodes that
    already serve the job come first; then those with the fewest PSs of others, so that these do not share one network
    card; then the freest.
    """

    rank: Rank = RANK
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

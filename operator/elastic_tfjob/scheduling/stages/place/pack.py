"""Pack: the fewest nodes, workers beside their PS, PS of different jobs apart."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.room import Rank, Room
from elastic_tfjob.scheduling.snapshot import PS, Counts, JobSpec, Placement

RANK: Rank = "fewest-ps"


@dataclass(frozen=True, slots=True)
class Pack:
    """One node for the whole job if one holds it, else node after node filled as far as it goes, PSs first (DRAGON,
    CLOSER'19). Nodes that already serve the job come first; then those with the fewest PSs of others, so that these
    do not share one network card; then the freest.
    """

    rank: Rank = RANK
    totals_only: bool = False

    def place(self, spec: JobSpec, add: Counts, room: Room, beside: Placement) -> Placement | None:
        demand = spec.demand(add)
        if not room.fits_total(demand):
            return None
        allowed = room.allowed(spec)
        own = own_nodes(beside, room)
        whole = next((i for i in own if room.holds(i, demand)), None)
        if whole is None:
            whole = room.first(demand, allowed)
        if whole is not None and (allowed is None or whole in allowed):
            name = room.nodes[whole].name
            for group in spec.groups:
                n = add.get(group.type, 0)
                if n:
                    room.take_replicas(whole, group, n)
            return {type_: (name,) * n for type_, n in add.items() if n}
        mark = room.mark()
        left = dict(add)
        names: dict[str, list[str]] = {}
        groups = sorted((g for g in spec.groups if add.get(g.type)), key=lambda g: g.type != PS)
        least = Resources(*map(min, zip(*(g.request for g in groups), strict=True)))
        cpu, memory, accelerators = room.cpu, room.memory, room.accelerators
        has_room = [  # most nodes of a full cluster have none for any of these
            i
            for i in (*own, *(i for i in room.ascending() if i not in own))
            if cpu[i] >= least.cpu and memory[i] >= least.memory and accelerators[i] >= least.accelerators
        ]
        for i in has_room:
            for group in groups:
                want = left.get(group.type, 0)
                if not want:
                    continue
                allowed_type = room.allowed(spec, group.type)
                if allowed_type is not None and i not in allowed_type:
                    continue
                n = min(want, room.fit(i, group.request))
                if n:
                    room.take_replicas(i, group, n)
                    names.setdefault(group.type, []).extend([room.nodes[i].name] * n)
                    left[group.type] = want - n
            if not any(left.values()):
                return {type_: tuple(nodes) for type_, nodes in names.items()}
        room.rollback(mark)
        return None


def own_nodes(beside: Placement, room: Room) -> list[int]:
    """Nodes with the job's PSs, then its other nodes."""
    seen: dict[str, None] = dict.fromkeys(beside.get(PS, ()))
    for names in beside.values():
        seen.update(dict.fromkeys(names))
    return [i for name in seen if (i := room.index.get(name)) is not None]

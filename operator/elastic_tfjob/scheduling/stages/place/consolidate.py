"""Strict consolidation: as few nodes as an empty cluster would need, or wait."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.free_capacity import MANY, FreeCapacity, Rank
from elastic_tfjob.scheduling.snapshot import Counts, JobSpec, Placement
from elastic_tfjob.scheduling.stages.place.own_nodes import own_nodes

RANK: Rank = "least-free"


@dataclass(frozen=True, slots=True)
class Consolidate:
    """A job that fits one node gets the fullest node that still holds it (best fit). A larger one takes nodes that are
    as free as they ever get, and best fit for what is left (Helios and Lucid call it "consolidate", Tiresias "yarn").
    A job that grows does so on a node it has, or not at all.
    """

    rank: Rank = RANK
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

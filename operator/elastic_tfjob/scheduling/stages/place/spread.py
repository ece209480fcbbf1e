"""Spread: each replica to the least allocated node."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.free_capacity import FreeCapacity, Rank
from elastic_tfjob.scheduling.snapshot import Counts, JobSpec, Placement

RANK: Rank = "least-allocated"


@dataclass(frozen=True, slots=True)
class Spread:
    """kube-scheduler's LeastAllocated: the node whose mean allocated share of its resources is smallest."""

    rank: Rank = RANK
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

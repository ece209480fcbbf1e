"""Best fit: each replica to the fullest node that still holds it."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.free_capacity import FreeCapacity, Rank
from elastic_tfjob.scheduling.snapshot import Counts, JobSpec, Placement

RANK: Rank = "least-free"


@dataclass(frozen=True, slots=True)
class BestFit:
    """Best fit decreasing: the types with the largest requests first, so that large holes stay for large replicas."""

    rank: Rank = RANK
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

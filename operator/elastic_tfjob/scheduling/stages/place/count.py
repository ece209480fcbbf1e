"""Totals only: no node is chosen."""

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.free_capacity import FreeCapacity, Rank
from elastic_tfjob.scheduling.nodes import ANY_NODE
from elastic_tfjob.scheduling.snapshot import Counts, JobSpec, Placement

RANK: Rank = "least-free"


@dataclass(frozen=True, slots=True)
class CountOnly:
    """The cluster as one node with the sum of all: what a simulator without placement assumes. Not for live use."""

    rank: Rank = RANK
    totals_only: bool = True

    def place(self, spec: JobSpec, add: Counts, room: FreeCapacity, beside: Placement) -> Placement | None:
        if not room.fits_total(spec.demand(add)):
            return None
        placement: Mapping[str, tuple[str, ...]] = {type_: (ANY_NODE,) * n for type_, n in add.items() if n}
        room.take(spec, placement)
        return placement

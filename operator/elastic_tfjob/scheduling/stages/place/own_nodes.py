"""Where a job already is."""

from elastic_tfjob.scheduling.free_capacity import FreeCapacity
from elastic_tfjob.scheduling.snapshot import PS, Placement


def own_nodes(beside: Placement, room: FreeCapacity) -> list[int]:
    """Nodes with the job's PSs, then its other nodes."""
    if not beside:
        return []
    seen: dict[str, None] = dict.fromkeys(beside.get(PS, ()))
    for names in beside.values():
        seen.update(dict.fromkeys(names))
    return [i for name in seen if (i := room.index.get(name)) is not None]

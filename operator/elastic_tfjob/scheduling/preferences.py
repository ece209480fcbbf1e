"""Which nodes a placement tries first: leaders and parameter servers on nodes that stay, no replica on nodes that may
be removed soon.

A job survives the loss of a worker by shrinking in a moment. A leader or a parameter server that loses its node without
enough notice costs a restart of all replicas.
"""

from collections.abc import Iterator

from elastic_tfjob.scheduling.room import FreeCapacity
from elastic_tfjob.scheduling.rules import Place
from elastic_tfjob.scheduling.snapshot import PS, Counts, JobSpec, Placement

__all__ = ["place_preferring"]


def place_preferring(place: Place, spec: JobSpec, add: Counts, room: FreeCapacity, kept: Placement) -> Placement | None:
    """As `place.place`, first with the preferred nodes. Where these have no room, on any node, so that a preference
    never lets a job wait. Without spot nodes and nodes to avoid it is `place.place`."""
    admission = room.admission
    if not (admission.spot or admission.avoided) or place.totals_only or not room.fits_total(spec.demand(add)):
        return place.place(spec, add, room, kept)
    everywhere = frozenset(range(len(room.nodes)))
    calm = everywhere - admission.avoided
    stay = calm - admission.spot
    firm = {type_: n for type_, n in _firm(spec, add, kept) if n}
    if admission.spot and firm and stay:
        rest = {type_: n - firm.get(type_, 0) for type_, n in add.items() if n > firm.get(type_, 0)}
        placed = _in_turn(place, spec, room, kept, ((firm, stay), (rest, calm)))
        if placed is not None:
            return placed
    if admission.avoided and calm:
        placed = _in_turn(place, spec, room, kept, ((add, calm),))
        if placed is not None:
            return placed
    return place.place(spec, add, room, kept)


def _firm(spec: JobSpec, add: Counts, kept: Placement) -> Iterator[tuple[str, int]]:
    """The added replicas that should be on nodes that stay: parameter servers and the leader."""
    for type_, n in add.items():
        if type_ == PS:
            yield type_, n
        elif type_ == spec.leader:
            yield type_, min(n, 0 if kept.get(type_) else 1)


def _in_turn(
    place: Place,
    spec: JobSpec,
    room: FreeCapacity,
    kept: Placement,
    parts: tuple[tuple[Counts, frozenset[int]], ...],
) -> Placement | None:
    """Place these replicas one part after the other, each on its nodes only; None, and nothing taken, if one part has
    no room."""
    mark, placed = room.mark(), dict[str, tuple[str, ...]]()
    for add, nodes in parts:
        if not add:
            continue
        beside = {type_: (*kept.get(type_, ()), *placed.get(type_, ())) for type_ in {**kept, **placed}}
        room.admission.keep_to = nodes
        try:
            found = place.place(spec, add, room, beside)
        finally:
            room.admission.keep_to = None
        if found is None:
            room.rollback(mark)
            return None
        for type_, names in found.items():
            placed[type_] = (*placed.get(type_, ()), *names)
    return placed

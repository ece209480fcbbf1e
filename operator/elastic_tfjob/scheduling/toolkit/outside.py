"""Nodes where no job may run: their taints, as a control plane's, are tolerated by none. What they have is no part of
what jobs share."""

from collections.abc import Iterable, Mapping, Set

from elastic_tfjob.scheduling.free_capacity import FreeCapacity
from elastic_tfjob.scheduling.resources import NOTHING, Resources, total_of
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Node

__all__ = ["nodes_outside", "usable_total"]

Kind = tuple[object, ...]
"""All that says where a job may run."""


class Constrained:
    """A view of the kinds of constraints that jobs have: how many have each, and one of them. So it knows which nodes
    no job may use."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.kinds: dict[Kind, tuple[int, JobSpec]] = {}
        self._nodes: list[Node] | None = None
        self._outside: Set[int] = frozenset()
        self._has = NOTHING
        for job in jobs:
            self.change(None, job, 0.0)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None and after is not None and before.spec is after.spec:
            return
        if before is not None:
            kind = _kind(before.spec)
            count, spec = self.kinds[kind]
            if count == 1:
                del self.kinds[kind]
                self._nodes = None
            else:
                self.kinds[kind] = count - 1, spec
        if after is not None:
            kind = _kind(after.spec)
            if kind not in self.kinds:
                self._nodes = None
            self.kinds[kind] = self.kinds.get(kind, (0, after.spec))[0] + 1, after.spec

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True

    def outside(self, room: FreeCapacity) -> tuple[Set[int], Resources]:
        """The nodes where none of the Snapshot's jobs may run, and what these have for jobs. Looked for anew where the
        nodes are others, or the kinds of constraints."""
        if self._nodes is not room.nodes:
            self._nodes, self._outside = room.nodes, self._find_outside(room)
            self._has = total_of(room.usable[i] for i in self._outside)
        return self._outside, self._has

    def _find_outside(self, room: FreeCapacity) -> Set[int]:
        outside = set(range(len(room.nodes)))
        for _, spec in self.kinds.values():
            allowed = room.allowed(spec)
            if allowed is None:
                return frozenset()
            outside -= allowed
        return outside


def usable_total(round_: Round) -> Resources:
    """What nodes where at least one of the Snapshot's jobs may run have for jobs, whoever holds it now."""
    return round_.room.total.minus(_outside(round_)[1])


def nodes_outside(round_: Round) -> Set[int]:
    """The nodes where none of the Snapshot's jobs may run."""
    return _outside(round_)[0]


def _outside(round_: Round) -> tuple[Set[int], Resources]:
    room = round_.room
    if not room.admission.tainted or room.totals_only:
        return frozenset(), NOTHING
    return round_.snapshot.view("constrained", lambda snapshot: Constrained(snapshot.jobs.values())).outside(room)


def _kind(spec: JobSpec) -> Kind:
    return spec.constraints, spec.loanable, spec.constraints_by_type

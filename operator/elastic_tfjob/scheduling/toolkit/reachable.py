"""What there is in all, where jobs may run: not on nodes whose taints no job tolerates, as a control plane's."""

from collections.abc import Iterable, Mapping, Sequence, Set

from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Node

__all__ = ["reachable_total", "shared_by"]

Kind = tuple[object, ...]
"""All that says where a job may run."""


class Constrained:
    """A view of the kinds of constraints that jobs have: how many have each, and one of them."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.kinds: dict[Kind, tuple[int, JobSpec]] = {}
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
            else:
                self.kinds[kind] = count - 1, spec
        if after is not None:
            kind = _kind(after.spec)
            self.kinds[kind] = self.kinds.get(kind, (0, after.spec))[0] + 1, after.spec

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        return True


def reachable_total(round_: Round) -> Resources:
    """What is free on nodes where at least one of the Snapshot's jobs may run."""
    room, reached = round_.room, _reached(round_)
    if reached is None:
        return room.free_total
    outside = NOTHING
    for i in range(len(room.nodes)):
        if i not in reached:
            outside = outside.plus(room.free(i))
    return room.free_total.minus(outside)


def shared_by(round_: Round, jobs: Sequence[Job]) -> list[Resources]:
    """What each of these jobs holds of what is there for all: its replicas on nodes that are gone, or where no job may
    run any more, would leave nothing to anybody."""
    room, reached = round_.room, _reached(round_)
    outside = () if reached is None else (i for i in range(len(room.nodes)) if i not in reached)
    if not room.holds_elsewhere and all(room.free(i) == room.usable[i] for i in outside):
        return [_held(job.spec, round_.placement(job)) for job in jobs]  # as nearly always: none is there
    there = room.index.keys() if reached is None else {name for name, i in room.index.items() if i in reached}
    within = (
        {type_: [name for name in names if name in there] for type_, names in round_.placement(job).items()}
        for job in jobs
    )
    return [_held(job.spec, placement) for job, placement in zip(jobs, within, strict=True)]


def _held(spec: JobSpec, placement: Mapping[str, Sequence[str]]) -> Resources:
    """No more than it declares, for which it has a claim; fewer where it was robbed of nodes."""
    for type_, n in spec.declared.items():
        if len(placement.get(type_, ())) < n:
            return spec.demand({t: min(most, len(placement.get(t, ()))) for t, most in spec.declared.items()})
    return spec.declared_demand


def _reached(round_: Round) -> Set[int] | None:
    """The nodes where at least one of the Snapshot's jobs may run; None: all."""
    room = round_.room
    if not room.tainted or room.totals_only:
        return None
    view = round_.snapshot.view("constrained", lambda snapshot: Constrained(snapshot.jobs.values()))
    reached: set[int] = set()
    for _, spec in view.kinds.values():
        allowed = room.allowed(spec)
        if allowed is None:
            return None
        reached |= allowed
    return reached


def _kind(spec: JobSpec) -> Kind:
    return spec.constraints, spec.loanable, spec.constraints_by_type

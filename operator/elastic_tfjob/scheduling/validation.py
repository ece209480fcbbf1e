"""Checks what the steps of a round decided, before it becomes a plan: a profile of another package may do anything.

The operator and the simulator carry a plan out as it is. A size outside a job's bounds would cost its pods, or reserve
nodes for pods that it never has.
"""

from collections.abc import Iterator

from elastic_tfjob.scheduling.plan import CAUSES, Assignment
from elastic_tfjob.scheduling.room import ANY_NODE, more_replicas
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job

__all__ = ["InvalidPlanError", "validate"]


class InvalidPlanError(ValueError):
    """The steps of a profile made a plan that cannot be carried out. The message names the profile, one job, what was
    decided and what is allowed."""


def validate(round_: Round) -> None:
    """Check each change of a round that has not been rolled back. Raises InvalidPlanError for the first one that is
    outside its job's bounds, stops what cannot be stopped, names a node that does not exist, or has no room there.

    A job may keep what it has, whatever that is. Costs time for the changed jobs alone."""
    for key, change in round_.changes.items():
        problem = next(_problems(round_, round_.job(key), change), None)
        if problem is not None:
            raise InvalidPlanError(f"profile {round_.rules.name}: job {key}: {problem}")


def _problems(round_: Round, job: Job, change: Assignment) -> Iterator[str]:
    spec = job.spec
    if change.cause not in CAUSES:
        yield f"the cause {change.cause!r:.60}; allowed: {', '.join(CAUSES)}"
    if not change.nodes:
        if job.placement and not spec.stoppable:
            yield "it is stopped, but has no checkpoint to resume from"
        return
    for type_ in change.nodes:
        if spec.group(type_) is None:
            yield f"replicas of {type_!r:.60}; it has {', '.join(group.type for group in spec.groups)}"
            return
    for group in spec.groups:
        n = len(change.nodes.get(group.type, ()))
        if group.minimum <= n <= group.maximum:
            continue
        held = len(job.placement.get(group.type, ()))
        if not held or not min(group.minimum, held) <= n <= max(group.maximum, held):
            yield f"{n} replicas of {group.type}; allowed: {group.minimum} to {group.maximum}"
    room = round_.room
    wrong = [
        name
        for names in change.nodes.values()
        for name in set(names)
        if (i := room.index.get(name)) is None or room.overbooked(i)
    ]
    if not wrong or ANY_NODE in room.index:
        return
    more = more_replicas(change.nodes, job.placement)
    for name in wrong:
        if name in more:
            there = "which has no room for them" if name in room.index else "which does not exist or is not usable"
            yield f"replicas on node {name!r:.60}, {there}"

"""What a job has been promised: which replicas on which nodes, and what its pods hold beyond that. Pure.

What is promised is the size and nodes of the job's target, or of its pods where they are bound.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.core_job import Pair, Role, by_task
from elastic_tfjob.controller.planning.request import JobRequest, promised, refused_target
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.resources import NOTHING, Resources

__all__ = ["REFUSED", "Occupied", "OverdueRelease", "Reservations", "occupied", "owing", "promises", "since"]

# So long pods may take to give up what they were told to, in seconds; then it counts as theirs.
_GIVE_UP_S: Final = 60.0
# So long a job that stops is expected to leave, in seconds.
_LEAVE_S: Final = 300.0
# What a node is called in the place of a replica that cannot have it: no node's name has a space.
REFUSED: Final = " refused by kube-scheduler"

Parts = list[tuple[str, Resources]]
"""Amounts with the node that each is on; empty: on none that is known."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """What a job has been promised. `on_its_way`: it goes to another size, or to other nodes. `pods` are all of its
    bound pods by role, `kept` those that it keeps. `placement` has the node of every replica, `awaited` those promised
    to replicas that are not bound yet, of which one is gone where `lost`; `room` is kept for what is still to come.
    `blocked`: on its way, and all that is left of it is on lost nodes, so that nobody knows when it comes there.
    `cpu` of whole pods, where that differs from requests. `refused` are kube-scheduler's words where it refuses
    nodes."""

    requests: Mapping[str, Resources]
    size: Mapping[str, int]
    on_its_way: bool
    pods: Mapping[Role, Pod]
    kept: Mapping[Role, Pod]
    placement: core.Placement
    awaited: Mapping[Role, str]
    room: Parts
    cpu: core.Cpu
    lost: bool = False
    refused: str = ""
    blocked: bool = False

    @property
    def stops(self) -> bool:
        """Whether it is to give up all that it has."""
        return self.on_its_way and not self.size

    @property
    def awaits(self) -> bool:
        """Whether somebody may still move into what is promised, and nothing else is under way."""
        if self.blocked:
            return bool(self.room)
        return bool(self.awaited) and not (self.lost or self.on_its_way)


class OverdueRelease(NamedTuple):
    """What pods hold, by role, beyond what the job has been promised, once nobody expects them to give it up.
    `since_s`: since when (Unix time) they hold more, or a job that is to stop has not left; None: neither. `lasts_s`:
    for how long."""

    owed: Mapping[Role, Resources]
    since_s: float | None
    lasts_s: float


class Occupied(NamedTuple):
    """What pods of the job take on nodes: `taken` counts as what it has been promised, `leaves` is taken by pods of a
    job that stops, and `others` is all the rest."""

    taken: Parts
    leaves: Parts
    others: Parts


class _Seat(NamedTuple):
    """Where a replica is, or shall be. `room`: the node on which room is kept for it. `refused`: the words of
    kube-scheduler, where it refuses that node."""

    node: str
    room: str = ""
    awaited: bool = False
    refused: str = ""


def promises(
    request: JobRequest,
    target: Target | None,
    state: StoredState | None,
    pods: Mapping[Role, Pod],
    *,
    nodes: Mapping[str, KubeNode],
    unfit: Mapping[Pair, str],
    cordoned: Collection[str],
) -> Reservations:
    """`pods` are those of the job that are bound, by type and index."""
    size, on_its_way = promised(request, target, state, started=bool(pods))
    by_role = by_task(pods, state)
    cpu = _promised_cpu(request, target, state, size, nodes)
    placement: dict[str, tuple[str, ...]] = {}
    awaited: dict[Role, str] = {}
    room: Parts = []
    lost, refused = False, ""
    placed = target.nodes if target is not None else {}
    if target is not None and state is not None and refused_target(target, state):
        placed = state.nodes
    for name in request.spec.tf_replica_specs:
        wanted = placed.get(name, ())
        there = []
        for index in range(size.get(name, 0)):
            role = name, index
            pod, node = by_role.get(role), wanted[index] if index < len(wanted) else ""
            # It runs on a cordoned node, and is not on its way: it is to be moved away, perhaps once more.
            stays = (
                pod is not None and pod.node in cordoned and request.stoppable and not (on_its_way or pod.terminating)
            )
            why = None if on_its_way or pod is not None else unfit.get((name.lower(), node))
            seat = _seat(pod, node, nodes, stays=stays, on_its_way=on_its_way, why=why)
            if seat.room:
                room.append((seat.room, _request(request.requests, cpu, role)))
            if seat.awaited:
                awaited[role] = seat.node
                lost = lost or (bool(seat.node) and seat.node not in nodes)
            refused = seat.refused or refused
            there.append(seat.node)
        if there:
            placement[name] = tuple(there)
    kept = {role: pod for role, pod in by_role.items() if role[1] < size.get(role[0], 0)}
    if refused and not kept:  # nothing of it stands anywhere, so it may begin anew as a whole
        size, placement, awaited, room, cpu = {}, {}, {}, [], {}
    left = {pod.node for pod in by_role.values()}
    return Reservations(
        request.requests,
        size,
        on_its_way,
        by_role,
        kept,
        placement,
        awaited,
        room,
        cpu,
        lost=lost,
        refused=refused,
        blocked=on_its_way and bool(left) and left.isdisjoint(nodes) and left.isdisjoint(cordoned),
    )


def _seat(
    pod: Pod | None, wanted: str, nodes: Mapping[str, KubeNode], *, stays: bool, on_its_way: bool, why: str | None
) -> _Seat:
    """Of a replica whose target says node `wanted` (empty: none); `why` are kube-scheduler's words against that."""
    if pod is None:
        node = wanted if why is None else f"{wanted}{REFUSED}"
        return _Seat(node, node, awaited=True, refused="" if why is None else why or "no words")
    if pod.node not in nodes and wanted in nodes and not stays:  # its node is lost: it will be made anew on the other
        return _Seat(wanted, wanted)
    moves = on_its_way and wanted in nodes and wanted != pod.node  # room is kept for it there, too
    return _Seat(pod.node, wanted if moves else "")


def owing(promise: Reservations, before_s: float | None, now_s: float) -> OverdueRelease:
    """`before_s`: since when pods owed something when that was looked at last, under the same target."""
    owed = {
        role: over
        for role, pod in promise.kept.items()
        if any(over := pod.requests.minus(_request(promise.requests, promise.cpu, role)).positive())
    }
    since_s = since(bool(owed) or promise.stops, before_s, now_s)
    lasts_s = now_s - since_s if since_s is not None else 0.0
    return OverdueRelease(owed if lasts_s >= _GIVE_UP_S else {}, since_s, lasts_s)


def occupied(promise: Reservations, owes: OverdueRelease, active: Iterable[Pod]) -> Occupied:
    """What all `active` pods of the job's name take, whosever they are."""
    taken = [(pod.node, pod.requests.minus(owes.owed.get(role, NOTHING))) for role, pod in promise.kept.items()]
    counted = {pod.uid for pod in promise.kept.values()}
    # The room of a job that saves before it stops is given away already, though nobody can move in yet: else a plan
    # would take the next job's room, too.
    leaving = list(promise.pods.values()) if promise.stops and owes.lasts_s < _LEAVE_S else []
    counted |= {pod.uid for pod in leaving}
    others = [(pod.node, pod.requests) for pod in active if pod.uid not in counted]
    others += [(promise.kept[role].node, over) for role, over in owes.owed.items()]
    return Occupied(taken, [(pod.node, pod.requests) for pod in leaving], others)


def since(holds: bool, before_s: float | None, now_s: float) -> float | None:
    """Since when something holds that holds now or not."""
    if not holds:
        return None
    return now_s if before_s is None else before_s


def _promised_cpu(
    request: JobRequest,
    target: Target | None,
    state: StoredState | None,
    size: Mapping[str, int],
    nodes: Mapping[str, KubeNode],
) -> dict[str, tuple[int, ...]]:
    """Millicores of whole pods, per type where any replica's differ from the request. CPU is lent on top of requests,
    within a node: what is written there beside that counts as the request."""
    most = max((node.allocatable.cpu for node in nodes.values()), default=0)
    if target is None or (state is not None and refused_target(target, state)):
        given = state.cpu if state is not None else {}
    else:
        given = target.cpu
    cpu = {}
    for name, values in given.items():
        if name in request.requests:
            requested = request.requests[name].cpu
            whole = [request.pod_cpu(name, value) for value in values]
            each = tuple(
                whole[index] if index < len(whole) and requested <= whole[index] <= most else requested
                for index in range(size.get(name, 0))
            )
            if any(value != requested for value in each):
                cpu[name] = each
    return cpu


def _request(requests: Mapping[str, Resources], cpu: core.Cpu, role: Role) -> Resources:
    request = requests[role[0]]
    values = cpu.get(role[0], ())
    return request._replace(cpu=values[role[1]]) if role[1] < len(values) else request

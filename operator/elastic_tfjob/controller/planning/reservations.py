"""Computes a job's reservations (replicas and their nodes), and what its pods hold beyond them. Pure.

A job's target determines the reserved size and nodes; a bound pod's reservation is on the pod's node.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.core_job import Pair, Role, by_task
from elastic_tfjob.controller.planning.request import JobRequest, refused_target, reserved_size
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.memory_limit import NO_ROOM_S
from elastic_tfjob.scheduling.resources import NOTHING, Resources

__all__ = [
    "REFUSED",
    "Occupied",
    "OverdueRelease",
    "Reservations",
    "occupied",
    "overdue_release",
    "real_name",
    "reservations_of",
    "since",
]

# Seconds that pods may take to release capacity; after that, it counts as used by them.
_GIVE_UP_S: Final = 60.0
# Seconds within which a stopping job is expected to leave its nodes.
_LEAVE_S: Final = 300.0
# Marks a replica's node as rejected, as a suffix of the node's name: no node's name has a space.
REFUSED: Final = " refused by kube-scheduler"

Parts = list[tuple[str, Resources]]
"""Amounts, each with the name of its node; empty: no node is known."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """A job's reservations. `on_its_way`: the job is being resized, moved or stopped. `pods` are all its bound pods by
    role, `kept` those that it keeps. `placement` has the node of every replica, `pending` the intended nodes of
    replicas that are not bound yet; `lost`: one of these nodes no longer exists or is unusable. `room` has the capacity
    that is kept free for future pods. `blocked`: the job is on its way, but all its pods are on lost nodes, so it is
    unknown when new pods can start. `cpu` is in millicores of whole pods, for types where it differs from the requests.
    `refused`: kube-scheduler's message, if it rejects a node of the job."""

    requests: Mapping[str, Resources]
    size: Mapping[str, int]
    on_its_way: bool
    pods: Mapping[Role, Pod]
    kept: Mapping[Role, Pod]
    placement: core.Placement
    pending: Mapping[Role, str]
    room: Parts
    cpu: core.Cpu
    lost: bool = False
    refused: str = ""
    blocked: bool = False

    @property
    def stops(self) -> bool:
        """Whether the job is to release all its capacity."""
        return self.on_its_way and not self.size

    @property
    def waits_for_pods(self) -> bool:
        """Whether reserved capacity waits for pods that do not exist or are not bound yet. A job that is on its way
        counts only if it is `blocked`; a job that waits for a lost node does not count."""
        if self.blocked:
            return bool(self.room)
        return bool(self.pending) and not (self.lost or self.on_its_way)


class OverdueRelease(NamedTuple):
    """What pods hold beyond their reservations, by role, once they are no longer expected to release it. `since_s`:
    since when (Unix time) pods hold more, or a stopping job has not left its nodes; None: neither. `lasts_s`: the
    seconds since then."""

    amounts: Mapping[Role, Resources]
    since_s: float | None
    lasts_s: float


class Occupied(NamedTuple):
    """What pods with the job's name use, by node. `used` counts as the job's reservations, `leaves` is what the pods of
    a stopping job use, and `other_usage` is all the rest."""

    used: Parts
    leaves: Parts
    other_usage: Parts


class _Seat(NamedTuple):
    """The node of a replica. `room`: the node on which capacity is kept free for it; empty: none. `pending`: it has no
    bound pod yet. `refused`: kube-scheduler's message, if it rejects the node."""

    node: str
    room: str = ""
    pending: bool = False
    refused: str = ""


def reservations_of(
    request: JobRequest,
    target: Target | None,
    state: StoredState | None,
    pods: Mapping[Role, Pod],
    *,
    nodes: Mapping[str, KubeNode],
    rejected_nodes: Mapping[Pair, str],
    cordoned: Collection[str],
    now_s: float,
) -> Reservations:
    """A job's reservations at this Unix time. `pods` are the job's bound pods, by type and index."""
    size, on_its_way = reserved_size(request, target, state, started=bool(pods))
    by_role = by_task(pods, state)
    cpu = _reserved_cpu(request, target, state, size, nodes)
    placement: dict[str, tuple[str, ...]] = {}
    pending: dict[Role, str] = {}
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
            # The replica runs on a cordoned node and is not being moved yet: a plan should move it, perhaps once more.
            stays = (
                pod is not None and pod.node in cordoned and request.stoppable and not (on_its_way or pod.terminating)
            )
            why = None if on_its_way or pod is not None else rejected_nodes.get((name.lower(), node))
            seat = _seat(pod, node, nodes, stays=stays, on_its_way=on_its_way, why=why)
            may_leave = pod is not None and request.stoppable and not (on_its_way or pod.terminating)
            if pod is not None and may_leave and _outgrown(pod, request.memory.get(name, 0), now_s):
                seat = _Seat(f"{pod.node}{core.OUTGROWN}")
            if seat.room:
                room.append((seat.room, _request(request.requests, cpu, role)))
            if seat.pending:
                pending[role] = seat.node
                lost = lost or (bool(seat.node) and seat.node not in nodes)
            refused = seat.refused or refused
            there.append(seat.node)
        if there:
            placement[name] = tuple(there)
    kept = {role: pod for role, pod in by_role.items() if role[1] < size.get(role[0], 0)}
    if refused and not kept:  # the job keeps no pod, so all of it may be placed from scratch
        size, placement, pending, room, cpu = {}, {}, {}, [], {}
    left = {pod.node for pod in by_role.values()}
    return Reservations(
        request.requests,
        size,
        on_its_way,
        by_role,
        kept,
        placement,
        pending,
        room,
        cpu,
        lost=lost,
        refused=refused,
        blocked=on_its_way and bool(left) and left.isdisjoint(nodes) and left.isdisjoint(cordoned),
    )


def _outgrown(pod: Pod, raised: int, now_s: float) -> bool:
    """Whether a pod needs more memory than its node has had for it for a while: it may also ask for what was given up,
    or for that of a second program."""
    since_at = moment_of(pod.no_memory_at) if pod.memory.bound <= raised else None
    return since_at is not None and now_s - since_at.timestamp() >= NO_ROOM_S


def real_name(node: str) -> str:
    """The node's name without the mark of a node that a replica should leave."""
    return node.removesuffix(REFUSED).removesuffix(core.OUTGROWN)


def _seat(
    pod: Pod | None, wanted: str, nodes: Mapping[str, KubeNode], *, stays: bool, on_its_way: bool, why: str | None
) -> _Seat:
    """The seat of a replica whose target has the node `wanted` (empty: none). `why`: kube-scheduler's message, if it
    rejects that node; else None."""
    if pod is None:
        node = wanted if why is None else f"{wanted}{REFUSED}"
        return _Seat(node, node, pending=True, refused="" if why is None else why or "no words")
    if (
        pod.node not in nodes and wanted in nodes and not stays
    ):  # the pod's node is lost: the replica will be recreated on `wanted`
        return _Seat(wanted, wanted)
    moves = on_its_way and wanted in nodes and wanted != pod.node  # capacity is kept on the new node, too
    return _Seat(pod.node, wanted if moves else "")


def overdue_release(reservations: Reservations, before_s: float | None, now_s: float) -> OverdueRelease:
    """What pods hold beyond their reservations. `before_s`: since when (Unix time) they held too much in the previous
    view, under the same target; None: they did not."""
    amounts = {
        role: over
        for role, pod in reservations.kept.items()
        if any(over := pod.requests.minus(_request(reservations.requests, reservations.cpu, role)).positive())
    }
    since_s = since(bool(amounts) or reservations.stops, before_s, now_s)
    lasts_s = now_s - since_s if since_s is not None else 0.0
    return OverdueRelease(amounts if lasts_s >= _GIVE_UP_S else {}, since_s, lasts_s)


def occupied(reservations: Reservations, overdue: OverdueRelease, active: Iterable[Pod]) -> Occupied:
    """What all `active` pods with the job's name use, whether the job owns them or not."""
    # A replica that is to leave its node holds no place there, and yet takes room.
    seated = {
        role: pod
        for role, pod in reservations.kept.items()
        if not reservations.placement[role[0]][role[1]].endswith(core.OUTGROWN)
    }
    used = [(pod.node, pod.requests.minus(overdue.amounts.get(role, NOTHING))) for role, pod in seated.items()]
    counted = {pod.uid for pod in seated.values()}
    # The capacity of a job that saves a checkpoint before its stop is assigned to other jobs already, though it is not
    # free yet: otherwise the next plan would stop one more job for the same capacity.
    leaving = list(reservations.pods.values()) if reservations.stops and overdue.lasts_s < _LEAVE_S else []
    counted |= {pod.uid for pod in leaving}
    other_usage = [(pod.node, pod.requests) for pod in active if pod.uid not in counted]
    other_usage += [(seated[role].node, over) for role, over in overdue.amounts.items() if role in seated]
    return Occupied(used, [(pod.node, pod.requests) for pod in leaving], other_usage)


def since(holds: bool, before_s: float | None, now_s: float) -> float | None:
    """Since when a condition holds: since `before_s` if it held before, else since now. None: it does not hold."""
    if not holds:
        return None
    return now_s if before_s is None else before_s


def _reserved_cpu(
    request: JobRequest,
    target: Target | None,
    state: StoredState | None,
    size: Mapping[str, int],
    nodes: Mapping[str, KubeNode],
) -> dict[str, tuple[int, ...]]:
    """Millicores of whole pods, for each type with a replica whose CPU differs from the request. CPU is only ever lent
    on top of requests and within one node, so a stored value outside this range counts as the request."""
    most = max((node.allocatable.cpu_millicores for node in nodes.values()), default=0)
    if target is None or (state is not None and refused_target(target, state)):
        given = state.cpu if state is not None else {}
    else:
        given = target.cpu
    cpu = {}
    for name, values in given.items():
        if name in request.requests:
            requested = request.requests[name].cpu_millicores
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
    return request._replace(cpu_millicores=values[role[1]]) if role[1] < len(values) else request

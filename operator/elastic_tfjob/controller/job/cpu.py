"""Resizes the CPU of running pods in place, by their target and what they can get. Pure."""

from dataclasses import replace

from elastic_tfjob.api.reading import MAX_MILLICORES, MAX_REPLICAS
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.decision import Change, ResizePod
from elastic_tfjob.controller.model.annotations import position
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.quantities import NO_CPU, CpuAsked, cpu_of, has_pod_level_resources
from elastic_tfjob.controller.model.state import Next, StoredState
from elastic_tfjob.controller.model.target import Cpu, Target
from elastic_tfjob.scheduling.shared_cpu import held_by_node, takes_turns


def possible_cpu(ctx: ReconcileContext, wanted: Cpu) -> Cpu:
    """Returns the wanted CPU that pods can get: if a change was refused a short while ago, it is the pod's present CPU.
    The stored CPU is then what pods have, so no capacity is reserved for a refused change."""
    found = dict(wanted)
    for name in ctx.declared.tf_replica_specs:
        asked = _declared(ctx, name).request_millicores
        if not asked:
            continue
        values = list(found.get(name, ()))
        for pod in ctx.of_type(name):
            index = ctx.task(name, pod)
            if index is None or index >= MAX_REPLICAS or not pod.cpu.request_millicores:
                continue
            value = values[index] if index < len(values) else asked
            change: Change = "more" if value > pod.cpu.request_millicores else "less"
            if value != pod.cpu.request_millicores and (pod.uid, change) in ctx.refused:
                values += [asked] * (index + 1 - len(values))
                values[index] = pod.cpu.request_millicores
        if values:
            found[name] = tuple(values)
    return found


def resize_cpu(ctx: ReconcileContext) -> None:
    """Changes the CPU of running pods to the target's, in place. During a resize pods only give up CPU: added pods may
    need it, and whether the others get more is known when the new size runs. Pods get more only after pods of the same
    job that leave the node or give up CPU have done so: the plan relies on that."""
    state = ctx.state
    if state is None or not ctx.elastic:
        return
    size = state if state.phase == "Stable" else state.next
    if size is None:
        return
    shared: dict[str, int] = {}
    if _may_share(ctx):
        requested = {name: _declared(ctx, name).request_millicores for name in ctx.declared.tf_replica_specs}
        shared = held_by_node(requested, size.nodes, size.cpu)
    room: dict[str, int] | None = None
    for name in ctx.spec.tf_replica_specs:
        request, limit = _declared(ctx, name)
        there = shared if limit == request and takes_turns(name) else {}
        for pod in ctx.of_type(name):
            if pod.index is None or ctx.task(name, pod) is None or pod.terminating or pod.phase != "Running":
                continue
            wanted = cpu_of_replica(ctx, size, name, pod.index)
            if wanted is None:
                continue
            wanted = _sharing(ctx, pod, wanted, there.get(pod.node, 0))
            if wanted == pod.cpu or not (size is state or wanted.request_millicores < pod.cpu.request_millicores):
                continue
            change, more = _change(pod.cpu, wanted), wanted.request_millicores - pod.cpu.request_millicores
            if (pod.uid, change) in ctx.refused:
                continue
            if change == "more":
                room = _room(ctx, state) if room is None else room
                if more > room.get(pod.node, 0):
                    continue
                room[pod.node] -= more
            ctx.actions.append(ResizePod(pod.name, pod.uid, *wanted, change, container=pod.trains))


def holds_more(ctx: ReconcileContext, coming: Next) -> bool:
    """Whether running pods still hold more CPU than the coming size gives them. A pod that is added meanwhile may find
    no room."""
    if not ctx.elastic:
        return False
    for name in ctx.declared.tf_replica_specs:
        for pod in ctx.of_type(name):
            if pod.index is None or pod.terminating or pod.phase != "Running" or (pod.uid, "less") in ctx.refused:
                continue
            wanted = cpu_of_replica(ctx, coming, name, pod.index)
            held = max(pod.cpu.request_millicores, pod.held_millicores)
            if wanted is not None and held > wanted.request_millicores:
                return True
    return False


def _room(ctx: ReconcileContext, state: StoredState) -> dict[str, int]:
    """Returns by node the millicores that may be added to the job's pods there now: their target, less what all of the
    job's pods there still hold. The plan has already waited for other jobs' pods. A pod that will be recreated on a
    different node holds its CPU until it has left."""
    target = ctx.own(Target.of)
    planned = state
    if target is not None and target.replicas == state.replicas:
        planned = replace(
            state, nodes=target.nodes, cpu=target.cpu
        )  # the state has the larger CPU of pods that have not given it up
    room: dict[str, int] = {}
    for name in ctx.declared.tf_replica_specs:
        for pod in ctx.of_type(name):
            if pod.ended:
                continue
            task, nodes = ctx.task(name, pod), planned.nodes.get(name, ())
            stays = task is not None and (task >= len(nodes) or nodes[task] == pod.node)
            wanted = cpu_of_replica(ctx, planned, name, pod.index) if stays and pod.index is not None else None
            room[pod.node] = (
                room.get(pod.node, 0) + (wanted.request_millicores if wanted else 0) - pod.cpu.request_millicores
            )
    return room


def _change(has: CpuAsked, wanted: CpuAsked) -> Change:
    if wanted.request_millicores == has.request_millicores and wanted.limit_millicores > has.limit_millicores:
        return "share"
    return "more" if wanted.request_millicores > has.request_millicores else "less"


def _may_share(ctx: ReconcileContext) -> bool:
    """Whether limits may cover all CPU of the job on a node. Not if Kueue counts the pods' requests, nor if pods do not
    report: without a sidecar a pod may be of a class (Guaranteed) that does not allow a limit beyond the request."""
    return ctx.settings.shares_cpu and not ctx.job.queue and ctx.elasticity.reports(ctx.declared)


def _sharing(ctx: ReconcileContext, pod: Pod, wanted: CpuAsked, held_millicores: int) -> CpuAsked:
    """Returns the wanted CPU with a limit of all CPU that the job holds on the pod's node. A namespace may not allow
    that limit, so it is tried in a change of its own first, and is left out while it is refused."""
    unasked = (
        pod.cpu.limit_millicores <= pod.cpu.request_millicores
        and pod.cpu.request_millicores != wanted.request_millicores
    )
    if unasked or (pod.uid, "share") in ctx.refused:
        return wanted
    return wanted._replace(limit_millicores=max(wanted.limit_millicores, min(held_millicores, MAX_MILLICORES)))


def _declared(ctx: ReconcileContext, name: str) -> CpuAsked:
    """Returns the template's CPU if it can be changed: Kubernetes resizes no pod with pod-level resources."""
    spec = ctx.declared.tf_replica_specs[name].template.get("spec") or {}
    return NO_CPU if has_pod_level_resources(spec) else cpu_of(spec)


def cpu_of_replica(ctx: ReconcileContext, size: StoredState | Next, name: str, index: int) -> CpuAsked | None:
    """Returns the CPU of a replica; None if the template requests none, so that there is nothing to adjust."""
    request, limit = _declared(ctx, name)
    if not request:
        return None
    granted = size.cpu.get(name, ())
    task = position(size.replicas, size.indexes, name, index)
    if task is not None and task < len(granted):
        limit = granted[task] if limit == request else max(limit, granted[task]) if limit else 0
        request = granted[task]
    return CpuAsked(request, limit)

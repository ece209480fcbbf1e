"""CPU in place: what the target has for running pods, and what of it they can have. Pure."""

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
    """The CPU that pods can have of what is wanted for them: where a change was refused a short while ago, what the
    pod has. What is stored is then true, so that nothing is kept for it."""
    found = dict(wanted)
    for name in ctx.declared.tf_replica_specs:
        asked = _declared(ctx, name).request
        if not asked:
            continue
        values = list(found.get(name, ()))
        for pod in ctx.of_type(name):
            index = ctx.task(name, pod)
            if index is None or index >= MAX_REPLICAS or not pod.cpu.request:
                continue
            value = values[index] if index < len(values) else asked
            change: Change = "more" if value > pod.cpu.request else "less"
            if value != pod.cpu.request and (pod.uid, change) in ctx.refused:
                values += [asked] * (index + 1 - len(values))
                values[index] = pod.cpu.request
        if values:
            found[name] = tuple(values)
    return found


def resize_cpu(ctx: ReconcileContext) -> None:
    """Bring the CPU of running pods to what the target says, in place. On the way to another size pods only give
    up CPU: those that are added may need it, and whether the others get more is known when that size runs. Then pods
    get more once those of the job that leave the node, or give CPU up, have done so: the plan counts on that."""
    state = ctx.state
    if state is None or not ctx.elastic:
        return
    size = state if state.phase == "Stable" else state.next
    if size is None:
        return
    shared: dict[str, int] = {}
    if _may_share(ctx):
        requested = {name: _declared(ctx, name).request for name in ctx.declared.tf_replica_specs}
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
            if wanted == pod.cpu or not (size is state or wanted.request < pod.cpu.request):
                continue
            change, more = _change(pod.cpu, wanted), wanted.request - pod.cpu.request
            if (pod.uid, change) in ctx.refused:
                continue
            if change == "more":
                room = _room(ctx, state) if room is None else room
                if more > room.get(pod.node, 0):
                    continue
                room[pod.node] -= more
            ctx.actions.append(ResizePod(pod.name, pod.uid, *wanted, change, container=pod.trains))


def _room(ctx: ReconcileContext, state: StoredState) -> dict[str, int]:
    """By node, the millicores by which the job's pods there may be raised now: what the target has for them, less what
    all of the job's pods there still hold. Other jobs' pods the plan has waited for. A pod that is to come again on
    another node holds its CPU until it has left."""
    target = ctx.own(Target.of)
    planned = state
    if target is not None and target.replicas == state.replicas:
        planned = replace(
            state, nodes=target.nodes, cpu=target.cpu
        )  # the state has what pods keep that were to give some up
    room: dict[str, int] = {}
    for name in ctx.declared.tf_replica_specs:
        for pod in ctx.of_type(name):
            if pod.ended:
                continue
            task, nodes = ctx.task(name, pod), planned.nodes.get(name, ())
            stays = task is not None and (task >= len(nodes) or nodes[task] == pod.node)
            wanted = cpu_of_replica(ctx, planned, name, pod.index) if stays and pod.index is not None else None
            room[pod.node] = room.get(pod.node, 0) + (wanted.request if wanted else 0) - pod.cpu.request
    return room


def _change(has: CpuAsked, wanted: CpuAsked) -> Change:
    if wanted.request == has.request and wanted.limit > has.limit:
        return "share"
    return "more" if wanted.request > has.request else "less"


def _may_share(ctx: ReconcileContext) -> bool:
    """Not where Kueue knows what the pods ask for, nor where nobody reports: without a sidecar a pod may be of a class
    (Guaranteed) that does not allow a limit beyond the request."""
    return ctx.settings.shares_cpu and not ctx.job.queue and ctx.elasticity.reports(ctx.declared)


def _sharing(ctx: ReconcileContext, pod: Pod, wanted: CpuAsked, held_there: int) -> CpuAsked:
    """With a limit of all that the job holds on the pod's node. A namespace may not allow it: so it is asked for alone
    first, and is left out while it is refused."""
    unasked = pod.cpu.limit <= pod.cpu.request and pod.cpu.request != wanted.request
    if unasked or (pod.uid, "share") in ctx.refused:
        return wanted
    return wanted._replace(limit=max(wanted.limit, min(held_there, MAX_MILLICORES)))


def _declared(ctx: ReconcileContext, name: str) -> CpuAsked:
    """What the template asks for, where it can be changed: Kubernetes resizes no pod with pod-level resources."""
    spec = ctx.declared.tf_replica_specs[name].template.get("spec") or {}
    return NO_CPU if has_pod_level_resources(spec) else cpu_of(spec)


def cpu_of_replica(ctx: ReconcileContext, size: StoredState | Next, name: str, index: int) -> CpuAsked | None:
    """CPU of a replica; None where the template asks for none, so there is nothing to adjust."""
    request, limit = _declared(ctx, name)
    if not request:
        return None
    granted = size.cpu.get(name, ())
    task = position(size.replicas, size.indexes, name, index)
    if task is not None and task < len(granted):
        limit = granted[task] if limit == request else max(limit, granted[task]) if limit else 0
        request = granted[task]
    return CpuAsked(request, limit)

"""Creates and deletes the pods and services of a job's replicas, and judges pods that end. Pure."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from elastic_tfjob.api.tfjob import (
    COMPLETION_INDEX_LABEL,
    CONTAINER,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    REPLICATED_JOB_LABEL,
    trains_in,
)
from elastic_tfjob.controller.job import inject, owned
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.cpu import cpu_of_replica
from elastic_tfjob.controller.job.decision import AdmissionTrial, AdoptService, Count, Create, DeleteOwned
from elastic_tfjob.controller.job.pods import general_name, render_pod, render_service, worker_selector
from elastic_tfjob.controller.model.affinity import template_pin
from elastic_tfjob.controller.model.annotations import position
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION, Command
from elastic_tfjob.controller.model.injection import Injection
from elastic_tfjob.controller.model.owned_objects import Service
from elastic_tfjob.controller.model.pod import Pod, retried
from elastic_tfjob.controller.model.state import Next, StoredState
from elastic_tfjob.controller.model.status import ReplicaCounts, moment_of

# Objects that one pass creates. The API server takes half a minute for a job of a thousand replicas, and the job may be
# suspended, deleted or scaled meanwhile.
_CREATED_AT_ONCE: Final = 200
_INSTALL_AGAIN_S: Final = 10.0


def advance_pods(ctx: ReconcileContext, name: str, wanted: Sequence[int]) -> None:
    """Creates and deletes pods, so that the type has those with these indexes. Pods beyond the present size are being
    prepared for the next one, and do not affect the job's status."""
    replica = ctx.spec.tf_replica_specs[name]
    selector = worker_selector(ctx.job.name) if name == "Worker" else ""
    counts = ctx.status.replicas[name] = ReplicaCounts(selector=selector)
    present: set[int] = set()
    kept = wanted if isinstance(wanted, range) else frozenset(wanted)
    hold = ctx.hold
    for pod in ctx.of_type(name):
        if pod.index is None:
            continue
        present.add(pod.index)
        # A marked pod was to be deleted, by an operator that was killed before it did so.
        unfinished = pod.stopped_by_us and not hold
        if pod.index not in kept or unfinished or _waits_for_a_node_in_vain(ctx, name, pod):
            ctx.delete_pods([pod], mark=True, left=pod.index not in kept and _ends_soon(ctx, name))
        elif pod.not_installed:
            _install_again(ctx, pod)
        elif pod.shut_down and not pod.terminating:
            ctx.delete_pods([pod])  # recreated, as a pod whose node is deleted
        leaving = leaves(ctx, name, pod)
        as_planned = ctx.state is not None and (pod.stopped_by_us or pod.index not in kept)
        if pod.exit_code is not None and not as_planned:
            ctx.event("Normal", "ExitedWithCode", f"Pod: {pod.namespace}.{pod.name} exited with code {pod.exit_code}")
        if pod.phase == "Failed" and not leaving:
            _judge_failed(ctx, name, replica.restart, pod)
        _tally(counts, pod, leaving=leaving)
    if hold:
        return
    for index in wanted:
        if index in present or ((name, index) == ctx.chief and _another_leads(ctx)):
            continue
        if _may_create(ctx, Pod, general_name(ctx.job.name, name, index)):
            _create_pod(ctx, name, index)


def _ends_soon(ctx: ReconcileContext, name: str) -> bool:
    """Whether a pod of this type that the job does without has nothing to do any more: it is a server, its values are
    saved, and its template has no grace period of its own."""
    state, report, types = ctx.state, ctx.chief_report, ctx.declared.tf_replica_specs
    serves = name == "PS" or (name == "Worker" and "PS" in types)
    own = (types[name].template.get("spec") or {}).get("terminationGracePeriodSeconds")
    if state is None or report is None or state.phase not in ("Switching", "Stable"):
        return False
    saved = report.generation == state.generation and not report.handing_over
    return serves and ctx.launcher and saved and own is None


def _another_leads(ctx: ReconcileContext) -> bool:
    """Whether a pod that led the training under another index has not ended yet: two chiefs must not train at once. One
    that is prepared does not train."""
    state = ctx.state
    coming = ctx.coming_chief if state is not None and state.phase == "Preparing" else ctx.chief
    return any(pod.leads and not pod.ended and role not in (ctx.chief, coming) for role, pod in ctx.by_role.items())


def leaves(ctx: ReconcileContext, name: str, pod: Pod) -> bool:
    """Whether a pod's end does not affect the job's status: the pod is not part of the size, the operator ended it or
    caused its failure by what it injected, its node was shut down, or the pod belongs to a new size that fails before
    its first step. A job with checkpoints survives the loss of a pod, so a drain or a preemption is no failure of the
    job."""
    stoppable = ctx.state is not None and ctx.stoppable
    ended_for_us = pod.stopped_by_us or bool(pod.not_installed) or (stoppable and pod.terminating) or pod.shut_down
    ended_for_us = ended_for_us or _fails_on_trial(ctx, name, pod)
    return ended_for_us or ctx.task(name, pod) is None


def _fails_on_trial(ctx: ReconcileContext, name: str, pod: Pod) -> bool:
    """Whether a pod failed permanently in a size that the job leaves for the last one that trained."""
    state = ctx.state
    if state is None or not state.on_trial or pod.phase != "Failed":
        return False
    return state.phase == "Recreating" or not retried(ctx.declared.tf_replica_specs[name].restart, pod.exit_code)


def _install_again(ctx: ReconcileContext, pod: Pod) -> None:
    """Recreates a pod whose launcher could not be installed, after a delay: its node's disk may be full."""
    since = moment_of(pod.not_installed)
    left_s = _INSTALL_AGAIN_S - (ctx.now - since).total_seconds() if since is not None else 0.0
    if left_s > 0:
        ctx.look_again(left_s)
        return
    ctx.event(
        "Warning", "LauncherNotInstalled", f"The launcher could not be installed in pod {pod.name}, which is recreated"
    )
    ctx.delete_pods([pod])


def _may_create(ctx: ReconcileContext, kind: type[Pod | Service], name: str) -> bool:
    """Whether an object name is free, and this pass may create another object."""
    if (holder := ctx.taken.get((kind, name))) is not None:
        if holder.owner == ctx.job.uid and not (holder.terminating or holder.uid in ctx.deleted):
            ctx.event("Warning", f"FailedCreate{kind.__name__}", _relabelled(holder))
        return False
    if ctx.created == _CREATED_AT_ONCE:
        ctx.again_at = ctx.now
        return False
    ctx.created += 1
    return True


def _waits_for_a_node_in_vain(ctx: ReconcileContext, name: str, pod: Pod) -> bool:
    """Whether an unbound pod is pinned to a node that is no longer planned for it, such as a lost one. If the plan has
    no node for it, the pin may come from its template, and is kept."""
    state = ctx.state
    if state is None or pod.index is None or pod.node or not pod.pinned or pod.phase != "Pending":
        return False
    node = _node(_size_with(state, name, pod.index), name, pod.index)
    return pod.pinned != (node or template_pin(ctx.declared.tf_replica_specs[name].template))


def _judge_failed(ctx: ReconcileContext, name: str, policy: str, pod: Pod) -> None:
    if retried(policy, pod.exit_code):
        message = f"job {ctx.job.name} is restarting because {name} replica(s) failed."
        ctx.condition("Restarting", "TFJobRestarting", message)
        if not pod.terminating:
            ctx.delete_pods([pod])
            ctx.event("Warning", "TFJobRestarting", message)
            if Count("restarted") not in ctx.counts:
                ctx.counts.append(Count("restarted"))
    elif policy == "ExitCode":
        message = f'job "{ctx.job.name}" is failing because "{name}" replica(s) failed.'
        ctx.event("Warning", "TFJobFailed", message)
        ctx.condition("Failed", "TFJobFailed", message)


def _create_pod(ctx: ReconcileContext, name: str, index: int) -> None:
    template = ctx.spec.tf_replica_specs[name].template.get("spec") or {}
    if template.get("restartPolicy"):
        ctx.event(
            "Warning",
            "SetPodTemplateRestartPolicy",
            "Restart policy in pod template will be overwritten by restart policy in replica spec",
        )
    if (scheduler := ctx.settings.gang_scheduler) and owned.has_other_scheduler(ctx.spec, scheduler):
        ctx.event(
            "Warning",
            "SetPodTemplateSchedulerName",
            "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten",
        )
    ctx.actions.append(creation(ctx, name, index))


def creation(ctx: ReconcileContext, name: str, index: int) -> Create:
    """Returns the creation of a replica's pod, according to the job's state."""
    injection = ctx.state.injection if ctx.state is not None else None
    render = partial(_render, ctx, name, index)
    trial = None
    if (
        ctx.state is not None
        and ctx.settings.image
        and inject.injected(ctx.elasticity, ctx.declared, injection) != "none"
    ):
        resources = inject.resources_of(injection, ctx.settings.resources, ctx.job.queue)
        trial = AdmissionTrial(resources, injection.tries if injection is not None else 0, ctx.pods, render)
    return Create("Pod", general_name(ctx.job.name, name, index), partial(render, injection), trial)


def _render(ctx: ReconcileContext, name: str, index: int, injection: Injection | None) -> dict[str, Any]:
    pod = _render_pod(ctx, name, index, injection)
    if scheduler := ctx.settings.gang_scheduler:
        owned.decorate(pod, ctx.job.name, name, scheduler)
    task = _task(_size_with(ctx.state, name, index), name, index) if ctx.state is not None else index
    _as_trainjob_has_it(pod, task if task is not None else index)
    return pod


def _as_trainjob_has_it(pod: dict[str, Any], task: int) -> None:
    """Adds the index label by which clients of Trainer v2 find a TrainJob's pods, and the name by which they find the
    training container."""
    labels = pod["metadata"]["labels"]
    if REPLICATED_JOB_LABEL in labels:
        labels[COMPLETION_INDEX_LABEL] = str(task)
        trainer = next(each for each in pod["spec"]["containers"] if each["name"] == CONTAINER)
        trainer["name"] = trains_in(labels)


def _render_pod(ctx: ReconcileContext, name: str, index: int, injection: Injection | None) -> dict[str, Any]:
    state = ctx.state
    if state is None:
        counts = {each: replica.count for each, replica in ctx.declared.tf_replica_specs.items()}
        return render_pod(ctx.job, ctx.declared, name, index, configs=ctx.sizes.tf_configs(counts, 0))
    size = _size_with(state, name, index)
    added = size is not state
    configs = ctx.sizes.tf_configs(size.replicas, size.slot, size.indexes)
    local = ctx.sizes.is_local(size.replicas)
    pod = render_pod(ctx.job, ctx.sizes.spec(size.replicas), name, index, configs=configs, local=local)
    what = inject.injected(ctx.elasticity, ctx.declared, injection) if ctx.settings.image else "none"
    resources = inject.resources_of(injection, ctx.settings.resources, ctx.job.queue)
    identity = f"{ctx.job.namespace}/{ctx.job.name}/{ctx.job.uid}"
    adapted = inject.is_adapted(injection)
    inject.inject(
        pod, what, ctx.settings.image, ctx.elasticity.checkpoint_dir, resources, job=identity, adapted=adapted
    )
    if what != "none":
        inject.keep_last_words(pod)
    if injection is not None and injection.refused:
        inject.set_checkpoint_env(pod, ctx.elasticity.checkpoint_dir, identity)
    if added or state.generation:
        head, tail = configs.parts(name, index)
        mode = size.mode if isinstance(size, Next) else "overlap"
        saved = ctx.saved if (name, index) == ctx.chief else None
        config = None if local else head + tail
        command = Command(size.generation, "prepare" if added else "run", config, mode, saved=saved)
        pod["metadata"].setdefault("annotations", {})[COMMAND_ANNOTATION] = command.to_json()
    if node := _node(size, name, index):
        inject.pin(pod, node)
        if ctx.elasticity.loanable:  # only on planned nodes, so that the plan knows every pod on a lent node
            inject.tolerate_loan(pod)
    cpu = cpu_of_replica(ctx, size, name, index)
    if cpu is not None and size.cpu.get(name):
        inject.set_cpu(pod, *cpu)
    return pod


def advance_services(ctx: ReconcileContext, name: str, wanted: Sequence[int]) -> None:
    """Creates and deletes services, so that the type has those with these indexes; a service without an owner is
    adopted."""
    present: set[int] = set()
    for service in (*ctx.services, *ctx.orphans):
        if service.replica_type != name.lower() or service.index is None:
            continue
        present.add(service.index)
        if service.terminating:
            continue
        if service.index not in wanted:
            if service.owner:
                ctx.actions.append(DeleteOwned("Service", service.name, service.uid))
        elif not service.owner:
            ctx.actions.append(AdoptService(service.name, service.uid))
    for index in wanted:
        service_name = general_name(ctx.job.name, name, index)
        if index not in present and _may_create(ctx, Service, service_name):
            render = partial(render_service, ctx.job, ctx.spec, name, index)
            ctx.actions.append(Create("Service", service_name, render))


def _size_with(state: StoredState, name: str, index: int) -> StoredState | Next:
    """Returns the size that a replica belongs to: the present one, or the next one if the replica is added for it."""
    return state if state.next is None or index in state.pods(name) else state.next


def _node(size: StoredState | Next, name: str, index: int) -> str:
    """Returns the planned node of a pod; empty if kube-scheduler chooses."""
    nodes, task = size.nodes.get(name, ()), _task(size, name, index)
    return nodes[task] if task is not None and task < len(nodes) else ""


def _task(size: StoredState | Next, name: str, index: int) -> int | None:
    """Returns the task of a pod in a size; None if it is not part of it."""
    return position(size.replicas, size.indexes, name, index)


def _relabelled(holder: Pod | Service) -> str:
    kind = type(holder).__name__
    return (
        f"Error creating: {kind.lower()} {holder.name} of this job exists, but its labels {REPLICA_TYPE_LABEL} and "
        f"{REPLICA_INDEX_LABEL} were changed: restore them, or delete the {kind.lower()}"
    )


def _tally(counts: ReplicaCounts, pod: Pod, *, leaving: bool) -> None:
    if pod.phase == "Running":
        if not pod.terminating:
            counts.active += 1
        elif not leaving:
            # Another client deletes the pod (a drain, a preemption): upstream counts it as failed at once.
            counts.failed += 1
    elif pod.phase == "Succeeded" and not leaving:
        counts.succeeded += 1
    elif pod.phase == "Failed" and not leaving:
        counts.failed += 1

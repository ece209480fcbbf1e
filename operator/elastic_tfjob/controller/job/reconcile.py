"""Decides one job's next step: the actions that bring the observed job closer to its spec. Pure.

Level-based: the same observation gives the same decision, and a decision that was carried out in part is one more state
to observe. A job finishes in two passes: the first records the result, and only when that is stored does the next one
delete pods. A crash between the two can therefore never restart a finished job.

The rules are upstream's (tfjob v1: common/job.go, common/pod.go, tensorflow/tfjob_controller.go of the
training-operator). docs/compatibility.md lists the deviations.
"""

from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Final

from elastic_tfjob.api.reading import MAX_LISTED_TROUBLES, MAX_TEXT, after, cut
from elastic_tfjob.api.tfjob import InvalidTFJob
from elastic_tfjob.controller.job import inject
from elastic_tfjob.controller.job.conditions import count_active_as_succeeded, fail, limit_reached, update_status
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.cpu import possible_cpu, resize_cpu
from elastic_tfjob.controller.job.decision import (
    Count,
    Decision,
    DeleteJob,
    Event,
    Observed,
    ReconcileSettings,
    TryPods,
)
from elastic_tfjob.controller.job.injection import injection_settled, why_not
from elastic_tfjob.controller.job.memory import follow_memory, report_kills, resize_memory
from elastic_tfjob.controller.job.node_orders import advance_orders
from elastic_tfjob.controller.job.owned import delete_pod_group, gang_may_start, keep_budget
from elastic_tfjob.controller.job.progress import NUMBERS_S, tells_numbers, with_numbers, with_outcome
from elastic_tfjob.controller.job.replicas import advance_pods, advance_services, creation
from elastic_tfjob.controller.job.rescale import advance
from elastic_tfjob.controller.job.stored_state import room_for, save_state, settle_state, stored_or_first
from elastic_tfjob.controller.model.annotations import position
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.target import Target

# -- A finished or suspended job: which of its objects are deleted, and when -------------------------------------------


def clean_up(ctx: ReconcileContext) -> None:
    """Cleans up a finished job: deletes its pods by its clean-pod policy, their services, and the job itself when its
    time to live is over. Parameter servers never end by themselves; those of a loanable job are always deleted, so that
    they do not stay on lent nodes."""
    policy = ctx.spec.clean_pod_policy
    if policy == "None" and ctx.elasticity.loanable:
        policy = "Running"
    # Containers that do not train would otherwise hold the node indefinitely, whatever the policy.
    outlived = [pod for pod in ctx.pods if ctx.done_with_trainer and pod.only_sidecars]
    if policy == "None":
        # So would pods that were prepared for a size that the job never had.
        prepared = _beyond_size(ctx)
        ctx.delete_pods([*outlived, *prepared])
        ctx.delete_services({pod.name for pod in prepared})
    else:
        active = [pod for pod in ctx.pods if pod.phase in ("Running", "Pending")]
        doomed = ctx.pods if policy != "Running" else [*active, *outlived]
        kept = {pod.name for pod in ctx.pods} - {pod.name for pod in doomed}
        ctx.delete_pods(doomed)
        # Services of pods that are already gone are deleted too: an operator may have been killed after deleting only
        # the pods.
        ctx.delete_services({service.name for service in ctx.services} - kept)
    delete_pod_group(ctx)
    count_active_as_succeeded(ctx)
    _expire(ctx)


def _beyond_size(ctx: ReconcileContext) -> list[Pod]:
    """Returns the pods that are no part of the size that a finished job had."""
    state = ctx.own(StoredState.of)
    if state is None or not state.replicas:
        return []
    sizes = state.replicas, state.indexes
    return [pod for (name, index), pod in ctx.by_role.items() if position(*sizes, name, index) is None]


def _expire(ctx: ReconcileContext) -> None:
    ttl = ctx.spec.run_policy.ttl_seconds_after_finished
    completed = moment_of(ctx.status.completion_time)
    if ttl is None or ctx.spec.run_policy.suspend or completed is None:
        return
    expires = after(completed, ttl)
    if ctx.now >= expires:
        ctx.actions.append(DeleteJob())
    else:
        ctx.again_at = expires


def suspend(ctx: ReconcileContext) -> None:
    """Suspends a job: deletes all of its pods and services."""
    # These pods were not faulty, so their end is no failure, even if the job is resumed soon after.
    ctx.delete_pods(ctx.pods, mark=True)
    ctx.delete_services({service.name for service in ctx.services})
    delete_pod_group(ctx)
    for name, counts in ctx.status.replicas.items():
        # Kueue reassigns a job's capacity once no pod is active, and until then the pods may be saving. A pod that
        # cannot be ended, as its node is lost, saves nothing, so it does not count.
        counts.active = (
            sum(not (pod.ended or pod.overdue(ctx.now)) for pod in ctx.of_type(name)) if ctx.job.queue else 0
        )
    message = f"TFJob {ctx.job.name} is suspended."
    if ctx.status.is_true("Running"):
        ctx.condition("Running", "TFJobSuspended", message, status="False")
    if not ctx.status.is_true("Suspended"):
        ctx.condition("Suspended", "TFJobSuspended", message)
        ctx.events.append(Event("Normal", "TFJobSuspended", message))


# -- A job that follows a target: whether it does, and its next step ---------------------------------------------------


def state_of(ctx: ReconcileContext) -> StoredState | None:
    """Returns the state of a job that follows a target; None if the job follows none, or its annotations have no space
    for a state."""
    if not (ctx.waits_for_target or ctx.elastic or ctx.elasticity.max_memory or ctx.stored):
        return None
    state = stored_or_first(ctx)
    return state if room_for(ctx, state) else None


def follow(ctx: ReconcileContext) -> None:
    """Takes the job's present size from its state, and the next step from its target."""
    stored_first = injection_settled(ctx)
    if (state := ctx.state) is None:
        report_kills(ctx)
        return
    ctx.target, ctx.launcher = _target(ctx, state), _has_launcher(ctx)
    after_step = advance(ctx)
    if stored_first:
        ctx.hold = True
        ctx.look_again(0.0)
    if state.replicas:
        ctx.spec = ctx.sizes.spec(state.replicas)
    if ctx.tries is not None:
        ctx.actions.append(_attempt(ctx, state, ctx.tries))
    report = ctx.chief_report
    kept = with_numbers(
        state, after_step, report, ctx.elasticity.total_steps, ctx.now, planned=ctx.forecast, under=ctx.speed_conditions
    )
    kept = follow_memory(ctx, kept, numbers_due=kept.metrics_at != state.metrics_at)
    kept, tallies = with_outcome(kept, ctx.target, report, ctx.now)
    ctx.counts += tallies
    save_state(ctx, kept)
    if after_step.phase != state.phase:
        ctx.look_again(0.0)
    elif not tells_numbers(kept, report):
        # Nothing else triggers a pass to store these figures later.
        stored_at = moment_of(kept.metrics_at) or ctx.now
        ctx.look_again(max(0.0, NUMBERS_S - (ctx.now - stored_at).total_seconds()))


def _attempt(ctx: ReconcileContext, before: StoredState, after: StoredState) -> TryPods:
    """Returns a trial of one pod of each type of the coming size. The pods of a type differ only in their index; the
    last one is tried, which is a new one if the type grows."""
    coming = copy(ctx)
    coming.state = after
    more = {name for name, count in after.replicas.items() if count > before.replicas.get(name, 0)}
    fewer = any(count > after.replicas.get(name, 0) for name, count in before.replicas.items())
    counts = {name: count for name, count in after.replicas.items() if count}
    pods = tuple(creation(coming, name, after.pods(name)[-1]) for name in counts)
    return TryPods(after.generation, pods, tuple(counts.values()), quota=bool(more) and not fewer)


def _target(ctx: ReconcileContext, state: StoredState) -> Target | None:
    """Returns the job's target, with the CPU that its pods can get."""
    target = ctx.own(Target.of)
    if target is None or not ctx.refused or target.replicas != state.replicas:
        return target
    ctx.look_again(min((until - ctx.now).total_seconds() for until in ctx.refused.values()))
    return replace(target, cpu=possible_cpu(ctx, target.cpu))


def _has_launcher(ctx: ReconcileContext) -> bool:
    """Whether all of the job's pods have a launcher. If they could have one and do not, an event gives the reason."""
    launcher = inject.has_launcher(ctx.elasticity, ctx.declared)
    if ctx.elasticity.injected(ctx.declared) == "none":
        return launcher
    if types := inject.on_windows(ctx.declared):
        message = (
            f"{', '.join(types)}: pods run on Windows, so nothing is injected, and rescales stop the job (recreate)"
        )
        ctx.event("Warning", "LauncherNotInjected", message)
    if ctx.state is not None and ctx.state.injection is not None and ctx.state.injection.refused:
        ctx.event("Warning", "LauncherNotInjected", why_not(ctx.state.injection))
        return False
    if launcher and not ctx.settings.image:
        ctx.event("Warning", "LauncherNotInjected", "the operator does not know its own image; set its flag --image")
        return False
    if missing := inject.without_command(ctx.declared):
        message = f"{', '.join(missing)}: container tensorflow has no command, so rescales stop the job (recreate)"
        ctx.event("Warning", "LauncherNotInjected", message)
    return launcher


# Characters of an event's message for the problem in a spec.
_ROOM: Final = MAX_TEXT - 100


def reconcile(observed: Observed, settings: ReconcileSettings) -> Decision:
    """Decides one step for one job."""
    job = observed.job
    try:
        spec = job.spec()
    except InvalidTFJob as error:
        # An older version may have accepted a running job's spec that is invalid now; the job has not failed.
        pods = any(not pod.ended for pod in observed.pods)
        left = "; its pods are neither changed nor replaced until the spec is corrected" if pods else ""
        return Decision(events=(Event("Warning", "TFJobFailedValidation", f"{cut(str(error), _ROOM)}{left}"),))
    if job.deleting or not spec.managed_here() or not spec.tf_replica_specs:
        return Decision()
    return _run(ReconcileContext(observed, spec, settings))


def _run(ctx: ReconcileContext) -> Decision:
    """Selects the branch for the job's state: finished, suspended, left alone or running."""
    if ctx.status.set("Created", "TFJobCreated", f"TFJob {ctx.job.name} is created.", ctx.now_text):
        ctx.counts.append(Count("created"))
    if ctx.status.finished:
        clean_up(ctx)
        settle_state(ctx, "Stable")
    elif ctx.spec.run_policy.suspend:
        suspend(ctx)
        settle_state(ctx, "Waiting" if ctx.waits_for_target else "Stable")
    elif ctx.unreadable:
        return Decision(events=tuple(ctx.events))
    else:
        _advance(ctx)
    advance_orders(ctx)
    keep_budget(ctx)
    status = ctx.status.to_dict()
    return Decision(
        actions=tuple(ctx.actions),
        status=status if status != ctx.before else None,
        events=tuple(ctx.events),
        counts=tuple(ctx.counts),
        again_at=ctx.again_at,
    )


def _advance(ctx: ReconcileContext) -> None:
    """Advances a job that should run."""
    if ctx.status.is_true("Suspended"):
        message = f"TFJob {ctx.job.name} is resumed."
        ctx.condition("Suspended", "TFJobResumed", message, status="False")
        ctx.status.start_time = ctx.now_text
        ctx.events.append(Event("Normal", "TFJobResumed", message))
    ctx.state = state_of(ctx)
    if failure := limit_reached(ctx):
        fail(ctx, "TFJobFailed", failure)
        return
    if not gang_may_start(ctx):
        return
    _report_troubles(ctx)
    _report_lost_nodes(ctx)
    for problem in ctx.elasticity.problems:
        ctx.event("Warning", "InvalidAnnotation", problem)
    follow(ctx)
    if ctx.state is not None and ctx.state.phase == "Waiting":
        stop, name = ctx.state.stop, f"TFJob {ctx.job.name}"
        if stop is not None and (ctx.status.is_true("Running") or ctx.status.is_true("Restarting")):
            ctx.condition("Restarting", "TFJobStopped", f"{name} is stopped: {stop.reason}")
        elif ctx.status.is_true("Running"):
            ctx.condition("Restarting", "TFJobRescaling", f"{name} waits: {ctx.state.reason}")
        return
    resize_cpu(ctx)
    resize_memory(ctx)
    for name, replica in ctx.spec.tf_replica_specs.items():
        wanted = ctx.wanted.get(name, ()) if ctx.wanted is not None else range(replica.count)
        advance_pods(ctx, name, wanted)
        advance_services(ctx, name, wanted)
    update_status(ctx)


def _report_troubles(ctx: ReconcileContext) -> None:
    """Reports the first troubles of the job's pods. If an image does not exist, each container of each pod has a
    trouble, up to 32,000, at each change of any of them."""
    pods = [pod for pod in ctx.pods if pod.troubles and not pod.terminating]
    troubles = islice((trouble for pod in pods for trouble in pod.troubles), MAX_LISTED_TROUBLES)
    ctx.events += [Event("Warning", trouble.reason, trouble.message) for trouble in troubles]
    if (more := sum(len(pod.troubles) for pod in pods) - MAX_LISTED_TROUBLES) > 0:
        message = f"Pods of TFJob {ctx.job.name} have {more} more problems that get no event: see the pods' status"
        ctx.events.append(Event("Warning", "MoreTroubles", message))


def _report_lost_nodes(ctx: ReconcileContext) -> None:
    """Reports lost nodes. Nothing else explains why a job does not train when some of its pods are on a lost node."""
    lost: dict[str, list[Pod]] = {}
    for pod in ctx.pods:
        if pod.node and (pod.unreachable or pod.overdue(ctx.now)):
            lost.setdefault(pod.node, []).append(pod)
    for node, there in islice(sorted(lost.items()), MAX_LISTED_TROUBLES):
        names = ", ".join(sorted(pod.name for pod in there)[:3]) + (f" and {len(there) - 3} more" if there[3:] else "")
        why = "does not answer" if any(pod.unreachable for pod in there) else "has not ended them in time"
        message = (
            f"The job waits for the end of {names}, which may still write: node {node} {why}. They are recreated once "
            "they are gone, or the node is deleted or tainted out-of-service"
        )
        ctx.events.append(Event("Warning", "NodeLost", message))

"""One job's next step: from what is observed to the actions that bring it closer to what its spec asks for. Pure.

Level-based: the same observation gives the same decision, and a decision that was carried out in part is one more state
to observe. A job finishes in two passes: the first records the verdict, and only when that is stored does the next one
delete pods. A crash between the two can then never make a finished job run again.

The rules are upstream's (tfjob v1: common/job.go, common/pod.go, tensorflow/tfjob_controller.go of the
training-operator), deviations are listed in docs/compatibility.md.
"""

from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Final

from elastic_tfjob.api.reading import MAX_TEXT, MAX_TOLD_TROUBLES, after, cut
from elastic_tfjob.api.tfjob import InvalidTFJob
from elastic_tfjob.controller.job import inject
from elastic_tfjob.controller.job.commands import TOLD_AT_ONCE, TOLD_S
from elastic_tfjob.controller.job.conditions import count_active_as_succeeded, fail, limit_reached, update_status
from elastic_tfjob.controller.job.cpu import possible_cpu, resize_cpu
from elastic_tfjob.controller.job.decision import (
    Count,
    Decision,
    DeleteJob,
    Event,
    Observed,
    SendCommand,
    Settings,
    TryPods,
)
from elastic_tfjob.controller.job.injection import injection_settled, why_not
from elastic_tfjob.controller.job.owned import delete_pod_group, gang_may_start, keep_budget
from elastic_tfjob.controller.job.progress import NUMBERS_S, tells_numbers, with_numbers, with_outcome
from elastic_tfjob.controller.job.reconcile_pass import Pass, RescaleInput
from elastic_tfjob.controller.job.replicas import advance_pods, advance_services, creation
from elastic_tfjob.controller.job.rescale import advance
from elastic_tfjob.controller.job.stored_state import room_for, save_state, settle_state, stored_or_first
from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.state import State
from elastic_tfjob.controller.objects.status import moment_of
from elastic_tfjob.controller.objects.target import Target

# -- A job that is finished or suspended: what of it goes, and when ----------------------------------------------------


def clean_up(p: Pass) -> None:
    """Of a job that is finished: its pods by its clean-pod policy, their services, and itself when its time is over.
    Parameter servers never end by themselves: those of a loanable job do not stay on nodes that others want back."""
    policy = p.spec.clean_pod_policy
    if policy == "None" and p.elasticity.loanable:
        policy = "Running"
    # Their containers that do not train would hold the node for ever, whatever the policy.
    outlived = [pod for pod in p.pods if p.done_with_trainer and pod.only_sidecars]
    if policy == "None":
        p.delete_pods(outlived)
    else:
        active = [pod for pod in p.pods if pod.phase in ("Running", "Pending")]
        doomed = p.pods if policy != "Running" else [*active, *outlived]
        kept = {pod.name for pod in p.pods} - {pod.name for pod in doomed}
        p.delete_pods(doomed)
        # Also of pods that are gone already: an operator that was killed may have got no further than those.
        p.delete_services({service.name for service in p.services} - kept)
    delete_pod_group(p)
    count_active_as_succeeded(p)
    _expire(p)


def _expire(p: Pass) -> None:
    ttl = p.spec.run_policy.ttl_seconds_after_finished
    completed = moment_of(p.status.completion_time)
    if ttl is None or p.spec.run_policy.suspend or completed is None:
        return
    expires = after(completed, ttl)
    if p.time >= expires:
        p.actions.append(DeleteJob())
    else:
        p.again_at = expires


def suspend(p: Pass) -> None:
    """All of the job's pods and services go."""
    # These pods ran by right until now: their end is no failure, also after a quick resume.
    p.delete_pods(p.pods, mark=True)
    p.delete_services({service.name for service in p.services})
    delete_pod_group(p)
    for name, counts in p.status.replicas.items():
        # Kueue gives the room of a job away once none is active: until then its pods may be saving.
        # One that nobody can end, as its node is lost, saves nothing: nobody waits for it.
        counts.active = sum(not (pod.ended or pod.overdue(p.time)) for pod in p.of_type(name)) if p.job.queue else 0
    message = f"TFJob {p.job.name} is suspended."
    if p.status.is_true("Running"):
        p.condition("Running", "TFJobSuspended", message, status="False")
    if not p.status.is_true("Suspended"):
        p.condition("Suspended", "TFJobSuspended", message)
        p.events.append(Event("Normal", "TFJobSuspended", message))


# -- A job that follows a target: whether it does, and the step that brings it closer ----------------------------------


def state_of(p: Pass) -> State | None:
    """The state of a job that follows a target; None for one that does not, or has no room for a state."""
    if not (p.waits_for_target or p.elastic or p.stored):
        return None
    state = stored_or_first(p)
    return state if room_for(p, state) else None


def follow(p: Pass) -> None:
    """Take the size that the job runs with from its state, and the next step from its target."""
    stored_first = injection_settled(p)
    if (state := p.state) is None:
        return
    situation = _rescale_input(p, state)
    step = advance(situation)
    if stored_first:
        step = replace(step, hold=True)
        p.look_again(0.0)
    p.step = step
    p.events += step.events
    p.counts += step.tallies
    if state.replicas:
        p.spec = p.sizes.spec(state.replicas)
    for role, command in step.commands.items():
        pod = situation.by_role[role]
        p.actions.append(SendCommand(pod.name, pod.uid, command))
    if len(step.commands) >= TOLD_AT_ONCE:
        p.look_again(TOLD_S)
    p.delete_pods(step.delete, mark=True)
    if step.tries is not None:
        p.actions.append(_attempt(p, state, step.tries))
    report = p.chief_report
    kept = with_numbers(state, step.state, report, p.elasticity.total_steps, p.time, planned=p.forecast)
    kept, tallies = with_outcome(kept, situation.target, report, p.time)
    p.counts += tallies
    save_state(p, kept)
    if step.state.phase != state.phase:
        p.look_again(0.0)
    elif step.again_s is not None:
        p.look_again(step.again_s)
    elif not tells_numbers(kept, report):
        p.look_again(NUMBERS_S)  # nobody wakes us again for what it was too early to store


def _rescale_input(p: Pass, state: State) -> RescaleInput:
    rescale = p.elasticity.rescale
    return RescaleInput(
        job=p.job,
        spec=p.declared,
        sizes=p.sizes,
        state=state,
        target=_target(p, state),
        now=p.time,
        pods=p.pods,
        reports=p.reports,
        listened_s=p.listened_s,
        elastic=p.elastic,
        stoppable=p.stoppable,
        launcher=_has_launcher(p),
        mode=rescale if rescale in ("overlap", "spare", "recreate") else "overlap",  # type: ignore[arg-type]
        timeouts=p.settings.timeouts,
        refused_pods=p.refused_pods,
        admission=p.admission,
    )


def _attempt(p: Pass, before: State, after: State) -> TryPods:
    """One pod of each type of the size to come, a new one where there is one: those of a type differ in their index."""
    coming = copy(p)
    coming.state = after
    more = {name for name, count in after.replicas.items() if count > before.replicas.get(name, 0)}
    fewer = any(count > after.replicas.get(name, 0) for name, count in before.replicas.items())
    counts = {name: count for name, count in after.replicas.items() if count}
    pods = tuple(creation(coming, name, after.pods(name)[-1]) for name in counts)
    return TryPods(after.generation, pods, tuple(counts.values()), quota=bool(more) and not fewer)


def _target(p: Pass, state: State) -> Target | None:
    """The job's target, with the CPU that its pods can have."""
    target = p.own(Target.of)
    if target is None or not p.refused or target.replicas != state.replicas:
        return target
    p.look_again(min((until - p.time).total_seconds() for until in p.refused.values()))
    return replace(target, cpu=possible_cpu(p, target.cpu))


def _has_launcher(p: Pass) -> bool:
    """Whether all of the job's pods have a launcher; the user is told why where they could and have not."""
    launcher = inject.has_launcher(p.elasticity, p.declared)
    if p.elasticity.injected(p.declared) == "none":
        return launcher
    if types := inject.on_windows(p.declared):
        message = (
            f"{', '.join(types)}: pods run on Windows, so nothing is injected, and rescales stop the job (recreate)"
        )
        p.event("Warning", "LauncherNotInjected", message)
    if p.state is not None and p.state.injection is not None and p.state.injection.refused:
        p.event("Warning", "LauncherNotInjected", why_not(p.state.injection))
        return False
    if launcher and not p.settings.image:
        p.event("Warning", "LauncherNotInjected", "the operator does not know its own image: give it --image")
        return False
    if missing := inject.without_command(p.declared):
        message = f"{', '.join(missing)}: container tensorflow has no command, so rescales stop the job (recreate)"
        p.event("Warning", "LauncherNotInjected", message)
    return launcher


# Of an event's message, for what is wrong with a spec.
_ROOM: Final = MAX_TEXT - 100


def reconcile(observed: Observed, settings: Settings) -> Decision:
    """Decide one step for one job."""
    job = observed.job
    try:
        spec = job.spec()
    except InvalidTFJob as error:
        # Of a job that runs, an older version may have taken what is refused by now: it has not failed.
        pods = any(not pod.ended for pod in observed.pods)
        left = "; its pods are left alone, and nothing is done for them, until the spec is corrected" if pods else ""
        return Decision(events=(Event("Warning", "TFJobFailedValidation", f"{cut(str(error), _ROOM)}{left}"),))
    if job.deleting or not spec.managed_here() or not spec.tf_replica_specs:
        return Decision()
    return _run(Pass(observed, spec, settings))


def _run(p: Pass) -> Decision:
    """Take the branch that the job's state calls for."""
    if p.status.set("Created", "TFJobCreated", f"TFJob {p.job.name} is created.", p.now):
        p.counts.append(Count("created"))
    if p.status.finished:
        clean_up(p)
        settle_state(p, "Stable")
    elif p.spec.run_policy.suspend:
        suspend(p)
        settle_state(p, "Waiting" if p.waits_for_target else "Stable")
    elif p.left_alone:
        return Decision(events=tuple(p.events))
    else:
        _advance(p)
    keep_budget(p)
    status = p.status.to_dict()
    return Decision(
        actions=tuple(p.actions),
        status=status if status != p.before else None,
        events=tuple(p.events),
        counts=tuple(p.counts),
        again_at=p.again_at,
    )


def _advance(p: Pass) -> None:
    """A job that should run."""
    if p.status.is_true("Suspended"):
        message = f"TFJob {p.job.name} is resumed."
        p.condition("Suspended", "TFJobResumed", message, status="False")
        p.status.start_time = p.now
        p.events.append(Event("Normal", "TFJobResumed", message))
    p.state = state_of(p)
    if failure := limit_reached(p):
        fail(p, "TFJobFailed", failure)
        return
    if not gang_may_start(p):
        return
    _report_troubles(p)
    _report_lost_nodes(p)
    for problem in p.elasticity.problems:
        p.event("Warning", "InvalidAnnotation", problem)
    follow(p)
    if p.state is not None and p.state.phase == "Waiting":
        stop, name = p.state.stop, f"TFJob {p.job.name}"
        if stop is not None and (p.status.is_true("Running") or p.status.is_true("Restarting")):
            p.condition("Restarting", "TFJobStopped", f"{name} is stopped: {stop.reason}")
        elif p.status.is_true("Running"):
            p.condition("Restarting", "TFJobRescaling", f"{name} waits: {p.state.reason}")
        return
    resize_cpu(p)
    for name, replica in p.spec.tf_replica_specs.items():
        wanted = p.step.pods.get(name, ()) if p.step is not None else range(replica.count)
        advance_pods(p, name, wanted)
        advance_services(p, name, wanted)
    update_status(p)


def _report_troubles(p: Pass) -> None:
    """The first of them: where an image does not exist that is so of each container of each pod, 32,000 at most, at
    each change of any of them."""
    pods = [pod for pod in p.pods if pod.troubles and not pod.terminating]
    troubles = islice((trouble for pod in pods for trouble in pod.troubles), MAX_TOLD_TROUBLES)
    p.events += [Event("Warning", trouble.reason, trouble.message) for trouble in troubles]
    if (more := sum(len(pod.troubles) for pod in pods) - MAX_TOLD_TROUBLES) > 0:
        message = f"{more} more reasons why pods of TFJob {p.job.name} do not run are not told here: see the pods"
        p.events.append(Event("Warning", "MoreTroubles", message))


def _report_lost_nodes(p: Pass) -> None:
    """Nothing else says why a job does not train some of whose pods are on a node that is lost."""
    lost: dict[str, list[Pod]] = {}
    for pod in p.pods:
        if pod.node and (pod.unreachable or pod.overdue(p.time)):
            lost.setdefault(pod.node, []).append(pod)
    for node, there in islice(sorted(lost.items()), MAX_TOLD_TROUBLES):
        names = ", ".join(sorted(pod.name for pod in there)[:3]) + (f" and {len(there) - 3} more" if there[3:] else "")
        why = "does not answer" if any(pod.unreachable for pod in there) else "has not ended them in time"
        message = (
            f"The job waits for {names}, as node {node} {why}, and they may still write. They are recreated once they "
            "are gone, or the node is deleted or tainted out-of-service"
        )
        p.events.append(Event("Warning", "NodeLost", message))

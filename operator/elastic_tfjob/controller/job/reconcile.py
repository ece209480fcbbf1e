"""One job's next step: from what is observed to the actions that bring it closer to what its spec asks for. Pure.

Level-based: the same observation gives the same decision, and a decision that was carried out in part is one more state
to observe. A job finishes in two passes: the first records the verdict, and only when that is stored does the next one
delete pods. A crash between the two can then never make a finished job run again.

The rules are upstream's (tfjob v1: common/job.go, common/pod.go, tensorflow/tfjob_controller.go of the
training-operator), deviations are listed in docs/compatibility.md.
"""

from itertools import islice
from typing import Final

from elastic_tfjob.api.fields import cut
from elastic_tfjob.api.limits import MAX_TEXT, MAX_TOLD_TROUBLES
from elastic_tfjob.api.tfjob import InvalidTFJob
from elastic_tfjob.controller.job.conditions import fail, update_status
from elastic_tfjob.controller.job.cpu import resize_cpu
from elastic_tfjob.controller.job.decision import Count, Decision, Event, Observed, Settings
from elastic_tfjob.controller.job.disruptions import keep_budget
from elastic_tfjob.controller.job.ending import clean_up, suspend
from elastic_tfjob.controller.job.following import follow, state_of
from elastic_tfjob.controller.job.gang import gang_may_start
from elastic_tfjob.controller.job.reconcile_pass import Pass
from elastic_tfjob.controller.job.replicas import advance_pods, advance_services
from elastic_tfjob.controller.job.run_limits import limit_reached
from elastic_tfjob.controller.job.stored_state import settle_state
from elastic_tfjob.controller.objects.pod import Pod

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

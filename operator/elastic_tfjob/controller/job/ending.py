"""A job that is finished or suspended: what of it goes, and when. Pure."""

from elastic_tfjob.api.limits import after
from elastic_tfjob.controller.job.conditions import count_active_as_succeeded
from elastic_tfjob.controller.job.decision import DeleteJob, Event
from elastic_tfjob.controller.job.gang import delete_pod_group
from elastic_tfjob.controller.job.reconcile_pass import Pass
from elastic_tfjob.controller.objects.status import moment_of


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

"""PodGroups for the gang schedulers Volcano and scheduler-plugins (coscheduling), and PodDisruptionBudgets. Pure.

Source: tfjob v1, section "gang scheduling" (common/job.go, podgroup_control.go of the training-operator).
"""

from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Final

from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.api.reading import MAX_REPLICAS
from elastic_tfjob.api.tfjob import CONTROLLER_NAME, JOB_NAME_LABEL, OPERATOR_NAME_LABEL, SchedulingPolicy, TFJobSpec
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.decision import Create, DeleteOwned, Event, UpdatePodGroup
from elastic_tfjob.controller.job.pods import owner_reference
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.owned_objects import PodGroup

__all__ = [
    "BUDGET",
    "VOLCANO",
    "budget_name",
    "decorate",
    "delete_pod_group",
    "gang_may_start",
    "group_version",
    "has_other_scheduler",
    "keep_budget",
    "must_wait",
    "render_budget",
    "render_pod_group",
    "shrunk",
]

VOLCANO: Final = "volcano"
_VOLCANO_VERSION: Final = "scheduling.volcano.sh/v1beta1"
_PLUGINS_VERSION: Final = "scheduling.x-k8s.io/v1alpha1"


def is_volcano(scheduler: str) -> bool:
    """Whether the gang scheduler is Volcano; any other name is a scheduler built with scheduler-plugins."""
    return scheduler.lower() == VOLCANO


def group_version(scheduler: str) -> str:
    """Returns API group and version of the PodGroup that this gang scheduler reads."""
    return _VOLCANO_VERSION if is_volcano(scheduler) else _PLUGINS_VERSION


def must_wait(scheduler: str, group: PodGroup | None) -> bool:
    """Whether the job's pods have to wait for the PodGroup. Volcano admits a gang before its pods exist;
    scheduler-plugins gathers existing pods."""
    return is_volcano(scheduler) and (group is None or group.phase in ("", "Pending"))


def decorate(pod: dict[str, Any], job: str, replica_type: str, scheduler: str) -> None:
    """Marks a rendered pod as a member of its gang. A scheduler that the user named is kept."""
    pod["spec"].setdefault("schedulerName", VOLCANO if is_volcano(scheduler) else scheduler)
    if is_volcano(scheduler):
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations["scheduling.k8s.io/group-name"] = job
        annotations["volcano.sh/task-spec"] = replica_type.lower()
    else:
        pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = job


def has_other_scheduler(spec: TFJobSpec, scheduler: str) -> bool:
    """Whether a template names a scheduler other than the gang's."""
    own = VOLCANO if is_volcano(scheduler) else scheduler
    named = ((replica.template.get("spec") or {}).get("schedulerName") for replica in spec.tf_replica_specs.values())
    return any(name and name != own for name in named)


def render_pod_group(
    job: TFJob, spec: TFJobSpec, scheduler: str, priorities: Mapping[str, int], existing: PodGroup | None
) -> dict[str, Any]:
    """Returns the PodGroup that the job should have. `priorities` are the values of PriorityClasses by name."""
    policy = spec.run_policy.scheduling_policy or SchedulingPolicy.model_validate({})
    members = policy.min_available if policy.min_available is not None else spec.total_replicas
    resources = policy.min_resources
    if resources is None:
        resources = _min_resources(spec, members, priorities)
    wanted: dict[str, Any] = {"minMember": members, "minResources": resources}
    if is_volcano(scheduler):
        # A queue that the group was moved to takes precedence over the job's.
        wanted["queue"] = (existing.spec().get("queue") if existing else None) or policy.queue or "default"
        if policy.priority_class:
            wanted["priorityClassName"] = policy.priority_class
    elif policy.schedule_timeout_seconds is not None:
        wanted["scheduleTimeoutSeconds"] = policy.schedule_timeout_seconds
    return {
        "apiVersion": group_version(scheduler),
        "kind": "PodGroup",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "annotations": job.annotations,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": wanted,
    }


def shrunk(spec: TFJobSpec) -> TFJobSpec:
    """Returns the spec of a job whose present size differs from the declared one, with a gang no larger than that
    size."""
    policy = spec.run_policy.scheduling_policy
    if policy is None or policy.min_available is None or policy.min_available <= spec.total_replicas:
        return spec
    policy = policy.model_copy(update={"min_available": spec.total_replicas})
    return spec.model_copy(update={"run_policy": spec.run_policy.model_copy(update={"scheduling_policy": policy})})


def _min_resources(spec: TFJobSpec, members: int, priorities: Mapping[str, int]) -> dict[str, int | str]:
    """Returns the requests (limits for a container without requests) of the first `members` pods, highest priority
    first."""

    def priority(name: str) -> int:
        pod = spec.tf_replica_specs[name].template.get("spec") or {}
        return priorities.get(pod.get("priorityClassName", ""), 0)

    total: dict[str, Decimal] = {}
    for name in sorted(spec.tf_replica_specs, key=lambda name: (-priority(name), name)):
        replica = spec.tf_replica_specs[name]
        count = min(replica.count, members)
        members -= count
        for container in replica.containers():
            resources = container.get("resources") or {}
            wanted = resources.get("requests") or resources.get("limits") or {}
            for resource, written in wanted.items():
                total[resource] = total.get(resource, Decimal(0)) + count * quantity(written)
    return {resource: _format(amount) for resource, amount in sorted(total.items()) if amount}


def _format(amount: Decimal) -> str:
    whole = amount == amount.to_integral_value()
    return f"{amount:f}".split(".")[0] if whole else f"{(amount * 1000).to_integral_value()}m"


def gang_may_start(ctx: ReconcileContext) -> bool:
    """Creates or updates the job's PodGroup, if a gang scheduler is used. Returns whether the job's pods may be
    created."""
    scheduler = ctx.settings.gang_scheduler
    if not scheduler:
        return True
    spec = ctx.spec
    if ctx.state is not None:
        if ctx.state.phase == "Waiting":
            _delete(ctx)  # of a stopped job: Volcano would keep capacity for it
            return True  # a waiting job has no gang
        spec = shrunk(ctx.sizes.spec(ctx.state.replicas))
    wanted = render_pod_group(ctx.job, spec, scheduler, ctx.priorities, ctx.pod_group)
    if ctx.pod_group is None:
        ctx.actions.append(Create("PodGroup", ctx.job.name, lambda: wanted))
    elif ctx.pod_group.owner == ctx.job.uid and not _within(wanted["spec"], ctx.pod_group.spec()):
        ctx.actions.append(UpdatePodGroup(ctx.pod_group.name, wanted["spec"]))
    # While a job's pods are recreated, Volcano reports Pending, and new pods are created only when the old ones are
    # gone. If the job waited here, Volcano might wait for the old pods' capacity.
    recreating = ctx.state is not None and ctx.state.phase == "Recreating"
    if must_wait(scheduler, ctx.pod_group) and not recreating:
        ctx.status.last_reconcile_time = ctx.status.last_reconcile_time or ctx.now_text
        return False
    return True


def delete_pod_group(ctx: ReconcileContext) -> None:
    """Deletes the PodGroup of a job that ended or is suspended."""
    if ctx.settings.gang_scheduler and _delete(ctx):
        ctx.events.append(Event("Normal", "JobTerminated", "Job has been terminated. Deleting PodGroup"))


def _delete(ctx: ReconcileContext) -> bool:
    """Deletes the job's PodGroup; returns False if the job owns none."""
    group = ctx.pod_group
    if group is None or group.owner != ctx.job.uid:
        return False
    ctx.actions.append(DeleteOwned("PodGroup", group.name, group.uid))
    return True


def _within(wanted: Mapping[str, Any], existing: Mapping[str, Any]) -> bool:
    """Whether `existing` has all wanted values; the gang scheduler may have added defaults."""
    return all(existing.get(name) == value for name, value in wanted.items())


# -- The PodDisruptionBudget of a job that can be moved: a drain waits until its pods have left the node ---------------
# `kubectl drain` cordons a node and then evicts its pods. The plan moves the replicas of a movable job away from a
# cordoned node; until that is done, an eviction would end a pod that trains. The budget therefore admits no eviction of
# ready pods. It has a number instead of a percentage, because for a percentage Kubernetes would ask the TFJob for its
# scale subresource, which it does not have.

BUDGET: Final = "PodDisruptionBudget"


def budget_name(job: str) -> str:
    """Returns the name of a job's budget."""
    return f"{job}-moves"


def render_budget(job: TFJob) -> dict[str, Any]:
    """Renders a budget whose minimum exceeds any job's number of pods, so no ready pod may be evicted; a pod that is
    not ready may."""
    labels = {OPERATOR_NAME_LABEL: CONTROLLER_NAME, JOB_NAME_LABEL: job.name}
    return {
        "apiVersion": "policy/v1",
        "kind": BUDGET,
        "metadata": {
            "name": budget_name(job.name),
            "namespace": job.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "minAvailable": 2 * MAX_REPLICAS,
            "selector": {"matchLabels": labels},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def keep_budget(ctx: ReconcileContext) -> None:
    """Creates or deletes the job's PodDisruptionBudget: a running job has one if the profile moves it away from a node
    that is drained."""
    if not ctx.budget_known:
        return
    runs = not (ctx.status.finished or ctx.spec.run_policy.suspend)
    runs = runs and ctx.state is not None and bool(ctx.state.replicas)
    if runs and ctx.waits_for_target and ctx.stoppable:
        if ctx.budget is None:
            ctx.actions.append(Create(BUDGET, budget_name(ctx.job.name), partial(render_budget, ctx.job)))
    elif ctx.budget is not None and ctx.budget.owner == ctx.job.uid:
        ctx.actions.append(DeleteOwned("PodDisruptionBudget", ctx.budget.name, ctx.budget.uid))

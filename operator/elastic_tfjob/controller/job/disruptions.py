"""The PodDisruptionBudget of a job that can be moved: a drain waits until its pods have left the node. Pure.

`kubectl drain` cordons a node and then evicts its pods. The plan moves the replicas of a movable job away from a
cordoned node; until that is done, an eviction would end a pod that trains. The budget admits none, of pods that are
ready. It has a number and no percentage: for that Kubernetes would ask the TFJob for a scale, which it has not.
"""

from functools import partial
from typing import Any, Final

from elastic_tfjob.api.limits import MAX_REPLICAS
from elastic_tfjob.api.tfjob import CONTROLLER_NAME, JOB_NAME_LABEL, OPERATOR_NAME_LABEL
from elastic_tfjob.controller.job.decision import Create, DeleteBudget
from elastic_tfjob.controller.job.pods import owner_reference
from elastic_tfjob.controller.job.reconcile_pass import Pass
from elastic_tfjob.controller.objects.job import Job

__all__ = ["BUDGET", "budget_name", "keep_budget", "render_budget"]

BUDGET: Final = "PodDisruptionBudget"


def budget_name(job: str) -> str:
    """The name of a job's budget."""
    return f"{job}-moves"


def render_budget(job: Job) -> dict[str, Any]:
    """A budget that more pods would have to keep than a job can have; a pod that is not ready may be evicted."""
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


def keep_budget(p: Pass) -> None:
    """A PodDisruptionBudget for a job that runs, and that the profile moves away from a node that is drained."""
    if not p.budget_known:
        return
    runs = not (p.status.finished or p.spec.run_policy.suspend)
    runs = runs and p.state is not None and bool(p.state.replicas)
    if runs and p.waits_for_target and p.stoppable:
        if p.budget is None:
            p.actions.append(Create(BUDGET, budget_name(p.job.name), partial(render_budget, p.job)))
    elif p.budget is not None and p.budget.owner == p.job.uid:
        p.actions.append(DeleteBudget(p.budget.name, p.budget.uid))

"""Placeholder pods, by which a job asks an autoscaler for nodes. Pure.

An autoscaler adds a node for a pod that kube-scheduler finds no node for. The plan says for which replicas a job has no
room (`Target.orders`); the job then has one placeholder for each. A placeholder requests what the replica's pod does,
may run on the same nodes, does nothing, and gives way to every other pod. The plan takes its room for free. As soon as
the plan places the replica, the placeholder goes.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count, islice
from typing import Any, Final

from elastic_tfjob.api.words import counts_in_words
from elastic_tfjob.controller.job import inject
from elastic_tfjob.controller.job.context import ReconcileContext
from elastic_tfjob.controller.job.decision import Create, DeleteOwned
from elastic_tfjob.controller.job.pods import owner_reference, render_pod
from elastic_tfjob.controller.model.owned_objects import (
    ORDER_LABEL,
    ORDER_PRIORITY_CLASS,
    ORDER_TYPE_LABEL,
    NodeOrder,
)
from elastic_tfjob.controller.model.status import moment_of

__all__ = ["ORDER", "advance_orders"]

ORDER: Final = "Order"
"""The kind of an action about a placeholder."""

# Placeholders that one pass creates, as for pods.
_CREATED_AT_ONCE: Final = 200
# Seconds from the creation of a placeholder until another one replaces it, if it has ended: a kubelet that refuses each
# one ends it at once.
_REPLACED_S: Final = 60.0
_PAUSE: Final = ["python", "-c", "import signal; signal.pause()"]
_END: Final = ["python", "-c", ""]
# What of a template decides where its pods may run, and what they request.
_KEPT: Final = ("nodeSelector", "tolerations", "schedulerName", "runtimeClassName", "overhead", "os", "resources")


def advance_orders(ctx: ReconcileContext) -> None:
    """Creates and deletes placeholders, so that the job has those that its target orders; a job without a target has
    none."""
    orders = ctx.target.orders if ctx.target is not None else {}
    spelling = {name.lower(): name for name in ctx.declared.tf_replica_specs}
    wanted = {name: n for name, n in orders.items() if name in ctx.declared.tf_replica_specs}
    missing: dict[str, int] = dict(wanted)
    names: set[str] = set()
    # Bound ones stay first: their nodes are there.
    for order in sorted(ctx.orders, key=lambda each: (each.ended, not each.node, each.name)):
        names.add(order.name)
        name = spelling.get(order.replica_type, "")
        if order.terminating or not missing.get(name) or _is_to_be_replaced(ctx, order):
            if not order.terminating:
                ctx.actions.append(DeleteOwned(ORDER, order.name, order.uid))
            continue
        missing[name] -= 1
    added = [
        (name, pod)
        for name, n in missing.items()
        for pod in islice((each for each in _names(ctx.job.name, name) if each not in names), n)
    ]
    for name, pod in added[:_CREATED_AT_ONCE]:
        ctx.actions.append(Create(ORDER, pod, partial(render_order, ctx, name, pod)))
    if len(added) > _CREATED_AT_ONCE:
        ctx.look_again(0.0)
    if added:
        ctx.event(
            "Normal", "NodesOrdered", f"Asks an autoscaler for nodes: no room for {counts_in_words(dict(wanted))}"
        )


def _is_to_be_replaced(ctx: ReconcileContext, order: NodeOrder) -> bool:
    """Whether a placeholder has ended, and is old enough to be replaced."""
    created = moment_of(order.created)
    left_s = _REPLACED_S - (ctx.now - created).total_seconds() if created is not None else 0.0
    if order.ended and 0 < left_s <= _REPLACED_S:
        ctx.look_again(left_s)
        return False
    return order.ended


def _names(job: str, name: str) -> Iterator[str]:
    """Names of placeholders. They end in no number, so that no replica has one of them."""
    return (f"{job}-{name.lower()}-{number}-order" for number in count())


def render_order(ctx: ReconcileContext, name: str, pod_name: str) -> dict[str, Any]:
    """Renders the placeholder for one replica of a type: its pod's containers, with their resources and no program."""
    pod = render_pod(ctx.job, ctx.declared, name, 0, local=True)
    injection = ctx.state.injection if ctx.state is not None else None
    what = inject.injected(ctx.elasticity, ctx.declared, injection)
    resources = inject.resources_of(injection, ctx.settings.resources, ctx.job.queue)
    if ctx.settings.image:  # as for the replica's own pod
        inject.inject(pod, what, ctx.settings.image, None, resources, adapted=inject.is_adapted(injection))
    spec = pod["spec"]
    kept = {each: spec[each] for each in _KEPT if spec.get(each)}
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    if node_affinity:
        kept["affinity"] = {"nodeAffinity": node_affinity}
    # A claim may bind its volume to a zone.
    claims = [volume for volume in spec.get("volumes") or () if volume.get("persistentVolumeClaim")]
    if claims:
        kept["volumes"] = claims
    image = ctx.settings.image
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name,
            "namespace": ctx.job.namespace,
            "labels": {ORDER_LABEL: ctx.job.name, ORDER_TYPE_LABEL: name.lower()},
            "ownerReferences": [owner_reference(ctx.job)],
        },
        "spec": {
            **kept,
            "priorityClassName": ORDER_PRIORITY_CLASS,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [_idle(each, image, _PAUSE) for each in spec["containers"]],
            "initContainers": [
                _idle(each, image, _PAUSE if each.get("restartPolicy") else _END)
                for each in spec.get("initContainers") or ()
            ],
        },
    }


def _idle(container: Mapping[str, Any], image: str, command: list[str]) -> dict[str, Any]:
    """The container with the operator's image, which does nothing. While the operator's image is not known, it is the
    container's own: whether that can be idle does not matter to an autoscaler."""
    kept = {name: container[name] for name in ("name", "resources", "restartPolicy") if container.get(name)}
    return {
        **kept,
        "image": image or container["image"],
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "securityContext": dict(inject.SECURITY),
    }

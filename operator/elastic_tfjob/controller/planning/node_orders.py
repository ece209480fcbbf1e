"""What placeholder pods say of the orders of their jobs, and what a user is told of an order that failed. Pure."""

from collections.abc import Iterable, Mapping

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.model.owned_objects import NodeOrder
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.scheduling.unfilled_orders import FailedOrder

__all__ = ["failure_event", "filled_orders", "waiting_orders"]


def waiting_orders(orders: Iterable[NodeOrder]) -> dict[str, tuple[float, NodeOrder]]:
    """By job (its name in the Snapshot) the placeholder that has waited longest for a node, and since when (Unix
    time)."""
    found: dict[str, tuple[float, NodeOrder]] = {}
    for order in orders:
        created = moment_of(order.created)
        if order.node or order.terminating or created is None:
            continue
        name = "/".join(order.key)
        if name not in found or created.timestamp() < found[name][0]:
            found[name] = created.timestamp(), order
    return found


def filled_orders(orders: Iterable[NodeOrder]) -> set[str]:
    """The jobs, by their names in the Snapshot, that have a placeholder on a node."""
    return {"/".join(order.key) for order in orders if order.node and not order.terminating}


def failure_event(
    failed: FailedOrder, waits: Mapping[str, tuple[float, NodeOrder]], job: str, timeout_s: float
) -> Event:
    """What the user of a job is told of its order. `waits`: of `waiting_orders`."""
    if failed.why == "not used":
        message = f"Nodes came, and the profile left the job at its size; asks again in {failed.retry_s:.0f} s"
        return Event("Normal", "NodesNotUsed", message)
    _, order = waits[job]
    why = f": {order.why}" if order.why else ""
    message = f"No node has come for {order.name} in {timeout_s:.0f} s; asks again in {failed.retry_s:.0f} s{why}"
    return Event("Warning", "NodesNotComing", message)

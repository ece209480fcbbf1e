"""What placeholder pods say of the orders of their jobs, and what a user is told of an order that failed. Pure."""

from collections.abc import Iterable, Mapping
from math import inf

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
        if order.node or order.terminating or order.ended or created is None:
            continue
        name = "/".join(order.key)
        if name not in found or created.timestamp() < found[name][0]:
            found[name] = created.timestamp(), order
    return found


def filled_orders(orders: Iterable[NodeOrder]) -> dict[str, tuple[float, int]]:
    """By job (its name in the Snapshot) when the first of its placeholders that are on nodes was created (Unix time),
    and how many there are."""
    found: dict[str, tuple[float, int]] = {}
    for order in orders:
        created = moment_of(order.created)
        if not order.node or order.terminating or order.ended or created is None:
            continue
        name = "/".join(order.key)
        at_s, n = found.get(name, (inf, 0))
        found[name] = min(at_s, created.timestamp()), n + 1
    return found


def failure_event(
    failed: FailedOrder,
    job: str,
    timeout_s: float,
    waits: Mapping[str, tuple[float, NodeOrder]],
    filled: Mapping[str, tuple[float, int]],
) -> Event:
    """What the user of a job is told of its order. `waits`: of `waiting_orders`; `filled`: of `filled_orders`."""
    again = f"asks again in {failed.retry_s:.0f} s"
    if failed.why == "not used":
        return Event("Normal", "NodesNotUsed", f"Nodes came, and the profile left the job at its size; {again}")
    if job in waits:
        _, order = waits[job]
        why = f": {order.why}" if order.why else ""
        message = f"No node has come for {order.name} in {timeout_s:.0f} s; {again}{why}"
    elif job in filled:
        came = f"Nodes have come for {filled[job][1]} of its placeholders"
        message = f"{came}, but it could not use them in {timeout_s:.0f} s; {again}"
    else:
        message = f"There is no placeholder after {timeout_s:.0f} s: refused or deleted; {again}"
    return Event("Warning", "NodesNotComing", message)

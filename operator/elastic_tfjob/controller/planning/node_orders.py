"""Remembers orders of nodes that no autoscaler has filled, or that their job did not use. Pure.

A job whose placeholders have waited too long orders nothing for a while, longer each time: its nodes may not exist, and
other jobs can order meanwhile. The same holds for a running job that orders again without having grown since nodes
came: the profile leaves it at its size, and each node would come and go. This memory is lost with the process; then the
wait begins anew.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.owned_objects import NodeOrder
from elastic_tfjob.controller.model.status import moment_of

__all__ = ["UnfilledOrders"]

_LONGEST_RETRY_S: Final = 1800.0


@dataclass(slots=True)
class _Unfilled:
    until_s: float
    delay_s: float


class UnfilledOrders:
    """The jobs whose orders were not filled in time. Times are Unix times."""

    def __init__(self) -> None:
        self._unfilled: dict[Key, _Unfilled] = {}
        self._ordering: dict[Key, int] = {}
        """By job that orders, the replicas that it holds."""
        self._filled: dict[Key, int] = {}
        """By job whose order was filled, the replicas that it held then."""

    def clear(self) -> None:
        """Forgets all: the configuration has changed."""
        self._unfilled.clear()
        self._ordering.clear()
        self._filled.clear()

    def failed(self, now_s: float) -> frozenset[str]:
        """The jobs, by their names in the Snapshot, that order nothing at the moment."""
        return frozenset(f"{key[0]}/{key[1]}" for key, each in self._unfilled.items() if now_s < each.until_s)

    def follow(
        self,
        orders: Iterable[NodeOrder],
        held: Callable[[Key], int | None],
        now_s: float,
        timeout_s: float,
        retry_s: float,
    ) -> Mapping[Key, Event]:
        """Notes the jobs of which a placeholder has waited for `timeout_s`, and those that did not use what came;
        returns an event for each. `held`: the replicas that a job has; None: it does not exist, and is forgotten. So is
        a job whose placeholders are all bound."""
        waiting: dict[Key, NodeOrder] = {}
        bound: set[Key] = set()
        for order in orders:
            if order.terminating:
                continue
            if order.node:
                bound.add(order.key)
            elif order.created and (order.key not in waiting or order.created < waiting[order.key].created):
                waiting[order.key] = order
        events: dict[Key, Event] = {}
        for key, order in waiting.items():
            created = moment_of(order.created)
            known = self._unfilled.get(key)
            if created is None or now_s - created.timestamp() < timeout_s or (known and now_s < known.until_s):
                continue
            delay_s = min(2 * known.delay_s, _LONGEST_RETRY_S) if known is not None else retry_s
            self._unfilled[key] = _Unfilled(now_s + delay_s, delay_s)
            why = f": {order.why}" if order.why else ""
            message = f"No node has come for {order.name} in {timeout_s:.0f} s; asks again in {delay_s:.0f} s{why}"
            events[key] = Event("Warning", "NodesNotComing", message)
        for key in [key for key in self._unfilled if held(key) is None or (key in bound and key not in waiting)]:
            del self._unfilled[key]
        return events | self._unused(waiting.keys() | bound, held, now_s)

    def _unused(self, ordering: Collection[Key], held: Callable[[Key], int | None], now_s: float) -> dict[Key, Event]:
        """Notes the running jobs that order again without having grown since their last order was filled."""
        events: dict[Key, Event] = {}
        for key in ordering:
            has = held(key) or 0
            if has and key not in self._ordering and has <= self._filled.pop(key, -1):
                self._unfilled[key] = _Unfilled(now_s + _LONGEST_RETRY_S, _LONGEST_RETRY_S)
                message = (
                    f"Nodes came, and the profile left the job at its size; asks again in {_LONGEST_RETRY_S:.0f} s"
                )
                events[key] = Event("Normal", "NodesNotUsed", message)
        failed = self._unfilled.keys()
        self._filled |= {key: has for key, has in self._ordering.items() if key not in ordering and key not in failed}
        self._filled = {key: has for key, has in self._filled.items() if held(key) is not None}
        self._ordering = {key: held(key) or 0 for key in ordering}
        return events

    def next_s(self, orders: Iterable[NodeOrder], now_s: float, timeout_s: float) -> float | None:
        """Seconds until `follow` has something to note, or an order may be tried again; None: neither."""
        times = [each.until_s for each in self._unfilled.values()]
        for order in orders:
            if not order.node and not order.terminating and (created := moment_of(order.created)) is not None:
                times.append(created.timestamp() + timeout_s)
        return min((at - now_s for at in times if at > now_s), default=None)

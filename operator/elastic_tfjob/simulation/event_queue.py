"""The event queue of a simulation (events by time, and the next periodic scheduling round), and the scripted loss and
addition of nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Final

from elastic_tfjob.scheduling.room import ANY_NODE
from elastic_tfjob.scheduling.snapshot import Node, Placement

__all__ = [
    "ARRIVE",
    "AUTOSCALE",
    "COOLED",
    "DEMAND",
    "FINISH",
    "JUMP",
    "MEMORY",
    "NODES",
    "NOTICE",
    "READY",
    "ROUND",
    "SPEED_CHANGE",
    "Event",
    "EventQueue",
]

FINISH: Final = 0
READY: Final = 1
MEMORY: Final = 2
ARRIVE: Final = 3
JUMP: Final = 4
COOLED: Final = 5
NODES: Final = 6
NOTICE: Final = 7
DEMAND: Final = 8
SPEED_CHANGE: Final = 9
ROUND: Final = 10
AUTOSCALE: Final = 11
"""Kinds of events. Events at the same time are handled in this order."""

Event = tuple[float, int, int, int, str]
"""Time, kind, index in the list that is known beforehand (jobs or node changes) or what happens to memory, version of
the job, key of the job."""


class EventQueue:
    """The future events. An event that carries a job's version is void once the job has a newer version; the caller of
    `take` compares them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.round_at_s = inf
        """Time of the next periodic round."""

    def add(self, at_s: float, kind: int, *, place: int = 0, version: int = 0, key: str = "") -> None:
        heappush(self.events, (at_s, kind, place, version, key))

    def due(self, now: float) -> bool:
        """Whether another event is due at this time."""
        return bool(self.events) and self.events[0][0] == now

    def take(self) -> Event:
        """Removes the next event and returns it."""
        return heappop(self.events)

    def round_now(self, now: float) -> None:
        """Schedule a round at this time."""
        self.add(now, ROUND)
        self.round_at_s = now

    def round_by_clock(self, now: float, interval_s: float, *, had_one: bool) -> None:
        """Schedule a round at the next multiple of the interval, if none is scheduled. `now` itself qualifies unless it
        `had_one`."""
        if interval_s <= 0 or self.round_at_s != inf:
            return
        at = (now // interval_s) * interval_s
        if at < now or (at == now and had_one):
            at += interval_s
        self.round_at_s = at
        self.add(at, ROUND)


# -- Scripted node changes: nodes that the cluster loses and gets during a simulation ----------------------------------


@dataclass(frozen=True, slots=True)
class NodeChange:
    """At `at_s` (seconds) the cluster loses the node `name`, which is drained for the last `notice_s` seconds. With
    `node`, the cluster gets this node instead, for the first time or after a loss."""

    at_s: float
    name: str
    node: Node | None = None
    notice_s: float = 0.0


class NodeScript:
    """The node changes of one run, sorted by time, then those that an autoscaler adds. Raises ValueError for an
    impossible change: the loss of a node that the cluster does not have, or the addition of a node that it has
    already."""

    def __init__(self, changes: Sequence[NodeChange], nodes: Mapping[str, Node]) -> None:
        self.changes = sorted(changes, key=lambda change: change.at_s)
        self._rank = {name: i for i, name in enumerate((*nodes, *(change.name for change in self.changes)))}
        there = set(nodes)
        since_s = dict.fromkeys(nodes, -inf)
        self.notices: list[tuple[float, int]] = []
        """When a node begins to be drained, and the number of the change that ends it."""
        for k, change in enumerate(self.changes):
            if change.notice_s and change.node is None:
                self.notices.append((max(change.at_s - change.notice_s, since_s.get(change.name, -inf)), k))
            since_s[change.name] = change.at_s
            if (change.node is None) != (change.name in there):
                said = "already exists" if change.node is not None else "does not exist, so it cannot be lost"
                raise ValueError(f"node {change.name!r} {said} at {change.at_s:g} s")
            there ^= {change.name}
        self.known = len(self.changes)
        """Number of changes that are known beforehand."""
        self.last_s = self.changes[-1].at_s if self.changes else -inf
        """When the last of these is."""

    def add(self, change: NodeChange) -> int:
        """Add a change of a node with a name of its own, and return its number. The loss of a node that has left before
        changes nothing."""
        self.changes.append(change)
        self._rank.setdefault(change.name, len(self._rank))
        return len(self.changes) - 1

    def carried_out(self, k: int, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """The nodes after change `k`, in the order of their first appearance."""
        change = self.changes[k]
        after = {name: node for name, node in nodes.items() if name != change.name}
        if change.node is not None:
            after[change.name] = change.node
        return dict(sorted(after.items(), key=lambda item: self._rank[item[0]]))


def on_lost_node(placement: Placement, nodes: Mapping[str, Node]) -> bool:
    """Whether at least one replica is on a node that is not in the cluster."""
    return any(name not in nodes and name != ANY_NODE for names in placement.values() for name in names)

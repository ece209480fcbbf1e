"""What happens when in a simulation: events by their time, and the next round that is due by the clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Final

from elastic_tfjob.scheduling.room import ANY_NODE
from elastic_tfjob.scheduling.snapshot import Node, Placement

__all__ = ["ARRIVE", "COOLED", "DEMAND", "FINISH", "JUMP", "NODES", "READY", "ROUND", "STRAY", "Event", "EventQueue"]

FINISH: Final = 0
READY: Final = 1
ARRIVE: Final = 2
JUMP: Final = 3
COOLED: Final = 4
NODES: Final = 5
DEMAND: Final = 6
STRAY: Final = 7
ROUND: Final = 8
"""Kinds of events, in the order of those at one time."""

Event = tuple[float, int, int, int, str]
"""Time, kind, place in what is known beforehand (jobs, changes of nodes), version and key of the job."""


class EventQueue:
    """Events to come. One that waits for a version of a job is void when that has another: who takes it compares."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.round_at = inf
        """When a round is due by the clock."""

    def add(self, at: float, kind: int, *, place: int = 0, version: int = 0, key: str = "") -> None:
        heappush(self.events, (at, kind, place, version, key))

    def due(self, now: float) -> bool:
        """Whether there is one (more) at this time."""
        return bool(self.events) and self.events[0][0] == now

    def take(self) -> Event:
        """The next one, off the agenda."""
        return heappop(self.events)

    def round_now(self, now: float) -> None:
        """Have a round at this time."""
        self.add(now, ROUND)
        self.round_at = now

    def round_by_clock(self, now: float, interval: float, *, had_one: bool) -> None:
        """Have a round at the next multiple of the interval, if none is due: `now` itself unless it `had_one`."""
        if interval <= 0 or self.round_at != inf:
            return
        at = (now // interval) * interval
        if at < now or (at == now and had_one):
            at += interval
        self.round_at = at
        self.add(at, ROUND)


# -- Nodes that the cluster loses and gets while a simulation runs, as a script says -----------------------------------


@dataclass(frozen=True, slots=True)
class NodeChange:
    """At `at_s` the cluster loses the node of this name; or, with `node`, it has it, for the first time or again."""

    at_s: float
    name: str
    node: Node | None = None


class NodeScript:
    """The changes of one run, in order of time. Raises ValueError for one that cannot be: the loss of a node that is
    not there, or a second node of a name."""

    def __init__(self, changes: Sequence[NodeChange], nodes: Mapping[str, Node]) -> None:
        self.changes = sorted(changes, key=lambda change: change.at_s)
        self._rank = {name: i for i, name in enumerate((*nodes, *(change.name for change in self.changes)))}
        there = set(nodes)
        for change in self.changes:
            if (change.node is None) != (change.name in there):
                said = "is there already" if change.node is not None else "is not there to be lost"
                raise ValueError(f"node {change.name!r} {said} at {change.at_s:g} s")
            there ^= {change.name}

    def carried_out(self, k: int, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """The nodes after change `k`, in the order in which they first came."""
        change = self.changes[k]
        after = {name: node for name, node in nodes.items() if name != change.name}
        if change.node is not None:
            after[change.name] = change.node
        return dict(sorted(after.items(), key=lambda item: self._rank[item[0]]))


def on_lost_node(placement: Placement, nodes: Mapping[str, Node]) -> bool:
    """Whether some replica's node is not in the cluster."""
    return any(name not in nodes and name != ANY_NODE for names in placement.values() for name in names)

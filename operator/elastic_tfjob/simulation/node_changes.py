"""Nodes that the cluster loses and gets while a simulation runs, as a script says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic_tfjob.scheduling.nodes import ANY_NODE
from elastic_tfjob.scheduling.snapshot import Node, Placement


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

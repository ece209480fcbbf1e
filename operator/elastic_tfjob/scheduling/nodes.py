"""Nodes that a plan may use, and all of them as one."""

from collections.abc import Mapping, Sequence

from elastic_tfjob.scheduling.constraints import Constraints
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.snapshot import Node

ANY_NODE = "*"
"""The one node of a placement that looks at totals only."""


def usable_nodes(nodes: Mapping[str, Node]) -> list[Node]:
    """Ours and those lent to us, by name order of the Snapshot."""
    return [node for node in nodes.values() if node.loan in ("own", "loaned")]


def admitting(nodes: Sequence[Node], constraints: Constraints, loanable: bool) -> frozenset[int]:
    """Indices of the nodes that admit a job of these constraints; one that is lent to us admits loanable jobs only."""
    return frozenset(
        i
        for i, node in enumerate(nodes)
        if (node.loan == "own" or (node.loan == "loaned" and loanable)) and constraints.admit(node.labels, node.taints)
    )


def mean_allocated(capacity: Resources, free: tuple[int, int, int]) -> float:
    """The mean part of CPU, memory and accelerators that is allocated, of those that the node has."""
    shares = [1 - left / all_ for left, all_ in zip(free, capacity[:3], strict=True) if all_ > 0]
    return round(sum(shares) / len(shares), 9) if shares else 0.0


def merged(nodes: Sequence[Node]) -> Node:
    """All nodes as one, for placements that look at totals only."""
    capacity = free = NOTHING
    for node in nodes:
        capacity, free = capacity.plus(node.capacity), free.plus(node.free)
    return Node(ANY_NODE, capacity, free)

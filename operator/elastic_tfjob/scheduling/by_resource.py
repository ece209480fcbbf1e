"""Nodes in the order of what they have free of each resource: of a full cluster, few have what is asked for."""

from bisect import bisect_left, insort
from collections.abc import Sequence

FEW = 8
"""One in so many nodes is few enough to sort them rather than to go through all in order."""


class ByResource:
    """Nodes by number, one sorted list per resource: free CPU, memory and accelerators.

    A list holds `free * nodes + i`, since numbers compare faster than pairs.
    """

    def __init__(self, cpu: Sequence[int], memory: Sequence[int], accelerators: Sequence[int]) -> None:
        self._count = count = len(cpu)
        self._lists = tuple(
            sorted(free * count + i for i, free in enumerate(each)) for each in (cpu, memory, accelerators)
        )

    def take(self, i: int, free: Sequence[int], taken: Sequence[int]) -> None:
        """Node `i` had `free` of each resource, and has less by `taken` now."""
        count = self._count
        for nodes, before, less in zip(self._lists, free, taken, strict=False):
            if less:
                del nodes[bisect_left(nodes, before * count + i)]
                insort(nodes, (before - less) * count + i)

    def few(self, demand: Sequence[int]) -> list[int] | None:
        """Unordered superset of the nodes that hold `demand`, which starts with CPU, memory and accelerators; None if
        those are many."""
        count = self._count
        least, fewest, start = count // FEW, None, 0
        for nodes, want in zip(self._lists, demand, strict=False):
            if not want:
                continue
            at = bisect_left(nodes, want * count)
            if len(nodes) - at <= least:
                least, fewest, start = len(nodes) - at, nodes, at
                if not least:
                    return []
        return None if fewest is None else [each % count for each in fewest[start:]]

    def none_holds(self, demand: Sequence[int]) -> bool:
        """Whether surely no node holds it: none has so much of one resource."""
        cpu, memory, accelerators = self._lists
        count = self._count
        return (
            not count
            or cpu[-1] < demand[0] * count
            or memory[-1] < demand[1] * count
            or accelerators[-1] < demand[2] * count
        )

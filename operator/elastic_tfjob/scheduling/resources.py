"""Resource vectors: what a node has and what a replica asks for."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Resources(NamedTuple):
    """CPU in millicores, memory in bytes, accelerators in whole devices, pods, ephemeral storage in bytes. Integers, so
    that sums are exact.

    Pods and ephemeral storage only decide whether something fits on a node. Where nobody counts them, as in traces,
    they are 0 on both sides.
    """

    cpu: int = 0
    memory: int = 0
    accelerators: int = 0
    pods: int = 0
    storage: int = 0

    def plus(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.accelerators + other.accelerators,
            self.pods + other.pods,
            self.storage + other.storage,
        )

    def minus(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu - other.cpu,
            self.memory - other.memory,
            self.accelerators - other.accelerators,
            self.pods - other.pods,
            self.storage - other.storage,
        )

    def times(self, n: int) -> "Resources":
        return Resources(self.cpu * n, self.memory * n, self.accelerators * n, self.pods * n, self.storage * n)

    def positive(self) -> "Resources":
        """With nothing where there is less than nothing."""
        return Resources(*(max(0, part) for part in self))

    def within(self, other: "Resources") -> bool:
        """Whether every component is at most the other's."""
        return (
            self.cpu <= other.cpu
            and self.memory <= other.memory
            and self.accelerators <= other.accelerators
            and self.pods <= other.pods
            and self.storage <= other.storage
        )

    def dominant_share(self, of: "Resources") -> float:
        """The largest share of CPU, memory or accelerators of `of` (Ghodsi et al., NSDI'11). A resource nobody has
        counts as 0."""
        return max((mine / all_ for mine, all_ in zip(self[:3], of[:3], strict=True) if all_ > 0), default=0.0)


NOTHING = Resources()


def total_of(amounts: Iterable[Resources]) -> Resources:
    """Their sum."""
    total = NOTHING
    for amount in amounts:
        total = total.plus(amount)
    return total


def maximal(vectors: Sequence[Resources]) -> list[Resources]:
    """Those that no other dominates: what fits any fits one of these."""
    distinct = sorted(set(vectors), reverse=True)
    return [v for v in distinct if not any(v != w and v.within(w) for w in distinct)]

"""Resource vectors: what a node has and what a replica asks for."""

from typing import NamedTuple


class Resources(NamedTuple):
    """CPU in millicores, memory in bytes, accelerators in whole devices. Integers, so that sums are exact."""

    cpu: int = 0
    memory: int = 0
    accelerators: int = 0

    def plus(self, other: "Resources") -> "Resources":
        return Resources(self.cpu + other.cpu, self.memory + other.memory, self.accelerators + other.accelerators)

    def minus(self, other: "Resources") -> "Resources":
        return Resources(self.cpu - other.cpu, self.memory - other.memory, self.accelerators - other.accelerators)

    def times(self, n: int) -> "Resources":
        return Resources(self.cpu * n, self.memory * n, self.accelerators * n)

    def positive(self) -> "Resources":
        """With nothing where there is less than nothing."""
        return Resources(*(max(0, part) for part in self))

    def within(self, other: "Resources") -> bool:
        """Whether every component is at most the other's."""
        return self.cpu <= other.cpu and self.memory <= other.memory and self.accelerators <= other.accelerators

    def dominant_share(self, of: "Resources") -> float:
        """The largest share of any resource of `of` (Ghodsi et al., NSDI'11). A resource nobody has counts as 0."""
        return max((mine / all_ for mine, all_ in zip(self, of, strict=True) if all_ > 0), default=0.0)


NOTHING = Resources()

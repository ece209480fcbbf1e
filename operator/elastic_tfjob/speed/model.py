"""What a policy may ask about speed."""

from collections.abc import Mapping
from typing import Protocol


class Speed(Protocol):
    """How fast a job trains at a given size."""

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        """Training steps per second with these replicas per type ("PS", "Worker", ...), or None when unknown."""
        ...

"""Measured speeds, as they were measured."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Steps per second by (PSs, workers); a size that was not measured has no speed."""

    rates: Mapping[tuple[int, int], float]

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return self.rates.get((counts.get("PS", 0), counts.get("Worker", 0)))

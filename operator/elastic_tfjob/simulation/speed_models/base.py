"""What a speed model is to the engine."""

from collections.abc import Mapping
from typing import Protocol

from elastic_tfjob.scheduling.snapshot import Placement
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.model import Speed


class TrueSpeed(Protocol):
    """One job's real behaviour. It is also a Speed, for a policy that is given the oracle."""

    @property
    def total_steps(self) -> float: ...

    def rate(self, placement: Placement) -> float:
        """Steps per second with these replicas on these nodes, undisturbed by other jobs; 0: cannot run so."""
        ...

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        """Steps per second with so many replicas, placed as well as can be."""
        ...


class SpeedModel(Protocol):
    """`contended`: a job's rate depends on what else runs on its nodes (see `on_nodes`)."""

    @property
    def name(self) -> str: ...

    @property
    def contended(self) -> bool: ...

    def true_speed(self, job: WorkloadJob) -> TrueSpeed: ...


__all__ = ["Speed", "SpeedModel", "TrueSpeed"]

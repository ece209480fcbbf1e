"""What a speed model is to the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from elastic_tfjob.scheduling.snapshot import WORKER, Placement
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.model import Speed

__all__ = ["Speed", "SpeedModel", "TrueSpeed"]


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


# -- The duration in the trace, whatever the size and place ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FixedTrueSpeed:
    """One step is one second."""

    total_steps: float

    def rate(self, placement: Placement) -> float:
        return 1.0

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return 1.0


@dataclass(frozen=True, slots=True)
class FixedSpeedModel:
    name: str = "fixed"
    contended: bool = False

    def true_speed(self, job: WorkloadJob) -> TrueSpeed:
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the speed model fixed needs a duration")
        return FixedTrueSpeed(job.duration_s)


# -- Speed in proportion to workers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinearTrueSpeed:
    """One step is one second at the declared size. Aryl's model (arXiv 2202.07896): inside [min, max] throughput is
    linear in workers, less `loss` for each worker beyond the declared ones (its "imperfect scaling" run).
    """

    total_steps: float
    declared: int
    loss: float = 0.0

    def rate(self, placement: Placement) -> float:
        return self._rate(len(placement.get(WORKER, ())))

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return self._rate(counts.get(WORKER, 0))

    def _rate(self, workers: int) -> float:
        extra = max(0, workers - self.declared)
        return (min(workers, self.declared) + extra * (1 - self.loss)) / self.declared


@dataclass(frozen=True, slots=True)
class LinearSpeedModel:
    loss: float = 0.0
    name: str = "linear"
    contended: bool = False

    def true_speed(self, job: WorkloadJob) -> TrueSpeed:
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the speed model linear needs a duration")
        declared = next((group.count for group in job.groups if group.type == WORKER), 1)
        return LinearTrueSpeed(job.duration_s, max(declared, 1), self.loss)

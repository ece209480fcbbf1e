"""The interface of speed models, and two simple ones: `fixed` (the duration in the trace) and `linear` (speed
proportional to the number of workers)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from elastic_tfjob.scheduling.snapshot import WORKER, Placement
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.model import Speed

__all__ = ["Speed", "SpeedModel", "TrueSpeed"]


class TrueSpeed(Protocol):
    """The true speed of one job. It is also a Speed, for a policy with the oracle."""

    @property
    def total_steps(self) -> float: ...

    def rate(self, placement: Placement) -> float:
        """Steps per second with these replicas on these nodes, without other jobs there; 0: the job cannot run so."""
        ...

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        """Steps per second with these replica counts in the best placement; None if it is unknown."""
        ...


class SpeedModel(Protocol):
    """A speed model. `contended`: a job's rate depends on the other jobs on its nodes (see NodeSpeeds in cpu.py)."""

    @property
    def name(self) -> str: ...

    @property
    def contended(self) -> bool: ...

    def true_speed(self, job: WorkloadJob) -> TrueSpeed: ...


# -- `fixed`: the duration in the trace, independent of size and placement ---------------------------------------------


@dataclass(frozen=True, slots=True)
class FixedTrueSpeed:
    """The duration in the trace at every size. One step is one second."""

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


# -- `linear`: speed proportional to the number of workers -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinearTrueSpeed:
    """Aryl's model (arXiv 2202.07896): inside [min, max] throughput is linear in the number of workers, minus `loss`
    for each worker beyond the declared ones (Aryl's "imperfect scaling" run). One step is one second at the declared
    size.
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

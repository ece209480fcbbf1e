"""The duration in the trace, whatever the size and place."""

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.snapshot import Placement
from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob


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

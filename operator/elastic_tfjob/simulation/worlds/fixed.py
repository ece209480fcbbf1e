"""The duration in the trace, whatever the size and place."""

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.snapshot import Placement
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.simulation.worlds.base import Truth


@dataclass(frozen=True, slots=True)
class FixedTruth:
    """One step is one second."""

    total_steps: float

    def rate(self, placement: Placement) -> float:
        return 1.0

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return 1.0


@dataclass(frozen=True, slots=True)
class FixedWorld:
    name: str = "fixed"
    contended: bool = False

    def truth(self, job: WorkloadJob) -> Truth:
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the fixed world needs a duration")
        return FixedTruth(job.duration_s)

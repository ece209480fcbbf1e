"""Speed in proportion to workers."""

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.snapshot import WORKER, Placement
from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob


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

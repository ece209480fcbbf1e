"""Speed in proportion to workers."""

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.snapshot import WORKER, Placement
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.simulation.worlds.base import Truth


@dataclass(frozen=True, slots=True)
class LinearTruth:
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
class LinearWorld:
    loss: float = 0.0
    name: str = "linear"
    contended: bool = False

    def truth(self, job: WorkloadJob) -> Truth:
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the linear world needs a duration")
        declared = next((group.count for group in job.groups if group.type == WORKER), 1)
        return LinearTruth(job.duration_s, max(declared, 1), self.loss)

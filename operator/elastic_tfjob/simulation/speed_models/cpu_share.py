"""Containers that share a node's CPUs."""

from dataclasses import dataclass

from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.speed_models.fixed import FixedTrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob


@dataclass(frozen=True, slots=True)
class CpuShareSpeedModel:
    """SpeCon's setting (arXiv 2010.11307): short CPU-bound jobs whose requests do not bound what they use.

    One step is one second undisturbed. A container that wants d CPUs of a node with K gets d min(1, K / sum d), and
    works in proportion; a job is as slow as its slowest container. NodeSpeeds keeps the sums.
    """

    name: str = "cpu-share"
    contended: bool = True

    def true_speed(self, job: WorkloadJob) -> TrueSpeed:
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the speed model cpu-share needs a duration")
        return FixedTrueSpeed(job.duration_s)

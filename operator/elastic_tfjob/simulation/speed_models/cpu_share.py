"""Containers that share a node's CPUs."""

from dataclasses import dataclass

from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.speed_models.fixed import FixedTrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob


@dataclass(frozen=True, slots=True)
class CpuShareSpeedModel:
    """SpeCon's setting (arXiv 2010.11307): short CPU-bound jobs whose requests do not bound what they use.

    One step is one second undisturbed. The CPUs of a node are shared out in proportion to the CPU that containers
    hold, which is what they request unless a plan says otherwise; what one cannot use goes to the others. A container
    works in proportion to what it gets; a job is as slow as its slowest container. NodeSpeeds keeps the shares.
    """

    name: str = "cpu-share"
    contended: bool = True

    def true_speed(self, job: WorkloadJob) -> TrueSpeed:
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the speed model cpu-share needs a duration")
        return FixedTrueSpeed(job.duration_s)

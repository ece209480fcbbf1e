"""Containers that share a node's CPUs."""

from dataclasses import dataclass

from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.simulation.worlds.base import Truth
from elastic_tfjob.simulation.worlds.fixed import FixedTruth


@dataclass(frozen=True, slots=True)
class CpuShareWorld:
    """SpeCon's setting (arXiv 2010.11307): short CPU-bound jobs whose requests do not bound what they use.

    One step is one second undisturbed. A container that wants d CPUs of a node with K gets d min(1, K / sum d), and
    works in proportion; a job is as slow as its slowest container. The engine keeps the sums.
    """

    name: str = "cpu-share"
    contended: bool = True

    def truth(self, job: WorkloadJob) -> Truth:
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the cpu-share world needs a duration")
        return FixedTruth(job.duration_s)

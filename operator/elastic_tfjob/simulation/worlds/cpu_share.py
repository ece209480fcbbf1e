"""Containers that share a node's CPUs."""

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.snapshot import Placement
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.simulation.worlds.base import Truth


@dataclass(frozen=True, slots=True)
class CpuShareTruth:
    """One step is one second undisturbed. A container that wants d CPUs of a node with K gets d min(1, K / sum d), and
    works in proportion; a job is as slow as its slowest container. The engine keeps the sums.
    """

    total_steps: float

    def rate(self, placement: Placement) -> float:
        return 1.0

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return 1.0


@dataclass(frozen=True, slots=True)
class CpuShareWorld:
    """SpeCon's setting (arXiv 2010.11307): short CPU-bound jobs whose requests do not bound what they use."""

    name: str = "cpu-share"
    contended: bool = True

    def truth(self, job: WorkloadJob) -> Truth:
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the cpu-share world needs a duration")
        return CpuShareTruth(job.duration_s)

"""The interface of speed models, and two simple ones: `fixed` (the duration in the trace) and `linear` (speed
proportional to the number of workers)."""

from collections.abc import Callable, Mapping
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


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """A speed model. `true_speed` raises ValueError if the job lacks what the model needs. `contended`: a job's rate
    depends on the other jobs on its nodes (see NodeSpeeds in cpu.py)."""

    name: str
    true_speed: Callable[[WorkloadJob], TrueSpeed]
    contended: bool = False


# -- `fixed`: the duration in the trace, independent of size and placement ---------------------------------------------


@dataclass(frozen=True, slots=True)
class FixedTrueSpeed:
    """The same speed, `per_s` steps per second, at every size."""

    total_steps: float
    per_s: float = 1.0

    def rate(self, placement: Placement) -> float:
        return self.per_s

    def steps_per_s(self, counts: Mapping[str, int]) -> float:
        return self.per_s


def fixed_speed(job: WorkloadJob, name: str = "fixed") -> TrueSpeed:
    """The duration in the trace at every size. One step is one second. `name`: the speed model, for the error."""
    if job.duration_s is None:
        raise ValueError(f"job {job.key}: the speed model {name} needs a duration")
    return FixedTrueSpeed(job.duration_s)


FIXED = SpeedModel("fixed", fixed_speed)


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


def linear_speed(job: WorkloadJob, loss: float = 0.0) -> TrueSpeed:
    if job.duration_s is None:
        raise ValueError(f"job {job.key}: the speed model linear needs a duration")
    declared = next((group.count for group in job.groups if group.type == WORKER), 1)
    return LinearTrueSpeed(job.duration_s, max(declared, 1), loss)


LINEAR = SpeedModel("linear", linear_speed)

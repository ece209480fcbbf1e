"""Jobs as a workload file or a scenario describes them, before any speed model or policy."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.snapshot import ReplicaGroup


@dataclass(frozen=True, slots=True)
class LossCurve:
    """l(k) = 1 / (b0 k + b1) + b2 after k steps (Optimus, EuroSys'18, equation 1)."""

    b0: float
    b1: float
    b2: float = 0.0

    def at(self, steps: float) -> float:
        return 1 / (self.b0 * steps + self.b1) + self.b2


@dataclass(frozen=True, slots=True)
class WorkloadJob:
    """`duration_s` is the run time at the declared size, `total_steps` the work; a speed model needs one of them.

    `estimated_s` is what the user says the duration is, if anything. `cpu_demand` is the CPUs that one replica would
    use if it could (None: what it asks for). `line` is where the job stands in its file.
    """

    key: str
    submit_s: float
    groups: tuple[ReplicaGroup, ...]
    duration_s: float | None = None
    total_steps: float | None = None
    estimated_s: float | None = None
    deadline_s: float | None = None
    priority: int = 0
    model: str = ""
    batch_size: int = 0
    loanable: bool = False
    loss: LossCurve | None = None
    cpu_demand: float | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    format: str
    jobs: tuple[WorkloadJob, ...]

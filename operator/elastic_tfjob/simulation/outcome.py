"""What one run of the simulator gave: each job's fate, and what the cluster held."""

from dataclasses import dataclass, field

from elastic_tfjob.scheduling.forecasts import Forecast


@dataclass(slots=True)
class JobRecord:
    """One job's fate. Times in seconds on the workload's clock; `finish_s` None: it did not finish."""

    key: str
    submit_s: float
    deadline_s: float | None
    start_s: float | None = None
    finish_s: float | None = None
    queue_s: float = 0.0
    executed_s: float = 0.0
    preemptions: int = 0
    rescales: int = 0
    migrations: int = 0
    lost_steps: float = 0.0
    lost_nodes: int = 0
    """How often it lost a node that it ran on."""
    forecast: Forecast | None = None
    """Under the plan that started it first."""

    @property
    def jct_s(self) -> float | None:
        return None if self.finish_s is None else self.finish_s - self.submit_s


@dataclass(slots=True)
class Interval:
    """A job on a node for a while, for the Gantt chart."""

    node: str
    key: str
    start_s: float
    end_s: float
    replicas: int


@dataclass(slots=True)
class Sample:
    """The cluster from `time_s` on: jobs waiting and running, and what they hold."""

    time_s: float
    waiting: int
    running: int
    accelerators: int
    cpu: int


@dataclass(slots=True)
class Outcome:
    """What one run gave. Areas are resource times seconds: held, and of CPU also used where the speed model knows."""

    profile: str
    seed: int
    oracle: bool
    records: list[JobRecord]
    first_s: float = 0.0
    last_s: float = 0.0
    accelerator_capacity: int = 0
    cpu_capacity: int = 0
    accelerator_area: float = 0.0
    cpu_area: float = 0.0
    cpu_used_area: float | None = None
    rounds: int = 0
    cpu_s: float = 0.0
    partial: bool = False
    samples: list[Sample] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)

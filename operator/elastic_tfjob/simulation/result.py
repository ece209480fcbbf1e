"""What one run of the simulator gave: each job's fate, and what the cluster held."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from elastic_tfjob.scheduling.forecasts import Forecast
from elastic_tfjob.scheduling.plan import Cause
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.snapshot import Node
from elastic_tfjob.speed.prediction import Source


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
    lost_s: float = 0.0
    """What it took to make these steps, at the speed that it had when they were lost."""
    lost_nodes: int = 0
    """How often it lost a node that it ran on."""
    forecast: Forecast | None = None
    """Under the plan that started it first."""

    @property
    def jct_s(self) -> float | None:
        return None if self.finish_s is None else self.finish_s - self.submit_s


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of one change: steps per second, expected when it was decided and measured after it. `source`: what the
    expected speed was known from."""

    cause: Cause
    source: Source
    expected: float
    measured: float


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
class RunResult:
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
    changes: Counter[Cause] = field(default_factory=Counter)
    """What plans changed, by cause."""
    compared: list[Compared] = field(default_factory=list)
    pool: bool = False
    """Whether there was a pool that lends nodes; areas in node-seconds."""
    loaned_s: float = 0.0
    loaned_used_s: float = 0.0
    unmet_s: float = 0.0
    """For how long nodes were lent, jobs were on them, and the pool waited for nodes that it wanted back."""
    returned: int = 0
    scaled_in: int = 0
    """Nodes that went back, and jobs that shrank for that."""

    @classmethod
    def begun(
        cls, profile: Profile, seed: int, start_s: float, nodes: Iterable[Node], *, pool: bool = False
    ) -> "RunResult":
        """That of a run that begins, on these nodes."""
        free = [node.free for node in nodes]
        return cls(
            profile=profile.name,
            seed=seed,
            oracle=profile.oracle,
            records=[],
            first_s=start_s,
            last_s=start_s,
            accelerator_capacity=sum(each.accelerators for each in free),
            cpu_capacity=sum(each.cpu for each in free),
            pool=pool,
        )

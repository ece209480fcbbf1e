"""The result of one simulator run: a record per job, resource-seconds of the cluster, samples and Gantt intervals."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from elastic_tfjob.scheduling.forecasts import Forecast
from elastic_tfjob.scheduling.plan import Cause
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Node
from elastic_tfjob.scheduling.steps.leave import Outcome
from elastic_tfjob.speed.prediction import Source

if TYPE_CHECKING:
    from elastic_tfjob.simulation.teams import TeamRecorder


@dataclass(slots=True)
class JobRecord:
    """The record of one job. Times are in seconds on the workload's clock. `finish_s` None: the job did not finish."""

    key: str
    submit_s: float
    deadline_s: float | None
    start_s: float | None = None
    finish_s: float | None = None
    queue_s: float = 0.0
    executed_s: float = 0.0
    preemptions: int = 0
    rescales: int = 0
    undone: int = 0
    """How many of the changes of size returned, within five minutes, to the size before."""
    migrations: int = 0
    lost_steps: float = 0.0
    lost_s: float = 0.0
    """The training time of the lost steps in seconds, at the job's speed when they were lost."""
    lost_nodes: int = 0
    """How often the job lost a node that it ran on."""
    first_step_s: float | None = None
    """When its program began to train."""
    steps: float = 0.0
    """All its steps, once it has finished."""
    memory_kills: int = 0
    memory_raises: int = 0
    """How often the kernel killed its parameter servers, and how often their limit was raised."""
    memory_failed: bool = False
    """Whether it failed after such kills."""
    ps_held_byte_s: float = 0.0
    ps_used_byte_s: float = 0.0
    """The memory that its parameter servers asked for, and what they used, times seconds; 0: it was not simulated."""
    forecast: Forecast | None = None
    """The forecast under the plan that started the job first."""

    @property
    def jct_s(self) -> float | None:
        return None if self.finish_s is None else self.finish_s - self.submit_s


@dataclass(frozen=True, slots=True)
class Compared:
    """The speeds for one change: expected at the decision, and measured afterwards. `source`: what the expected speed
    was known from."""

    cause: Cause
    source: Source
    expected_steps_per_s: float
    measured_steps_per_s: float
    relative_error: float
    """Of the expected speed, one standard deviation."""


@dataclass(slots=True)
class Interval:
    """A bar of the Gantt chart: a job's replicas on a node from `start_s` to `end_s`."""

    node: str
    key: str
    start_s: float
    end_s: float
    replicas: int


@dataclass(slots=True)
class Sample:
    """The cluster from `time_s` on: the number of waiting and running jobs, and the accelerators and CPU
    held."""

    time_s: float
    waiting: int
    running: int
    accelerators: int
    cpu_millicores: int


@dataclass(slots=True)
class NodeLife:
    """A node of a run. It is paid for, `price` per hour, from `from_s` to `until_s`, and can be used from `ready_s`."""

    name: str
    capacity: Resources
    price: float
    from_s: float
    ready_s: float
    until_s: float = inf


@dataclass(slots=True)
class RunResult:
    """The result of one run. `held_accelerator_s` and `held_millicore_s`: the resources that jobs held, times
    seconds; `used_millicore_s`: the CPU that they used, times seconds, and None if the speed model does not give it."""

    profile: str
    seed: int
    oracle: bool
    records: list[JobRecord]
    first_s: float = 0.0
    last_s: float = 0.0
    accelerator_capacity: int = 0
    cpu_capacity_millicores: int = 0
    held_accelerator_s: float = 0.0
    held_millicore_s: float = 0.0
    used_millicore_s: float | None = None
    rounds: int = 0
    cpu_s: float = 0.0
    partial: bool = False
    samples: list[Sample] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    changes: Counter[Cause] = field(default_factory=Counter)
    """The number of changes in plans, by cause."""
    interruptions: Counter[Outcome] = field(default_factory=Counter)
    """How jobs met the end of a drained node, once for each job and node."""
    compared: list[Compared] = field(default_factory=list)
    pool: bool = False
    """Whether an inference pool lent nodes. The next three fields are in node-seconds."""
    loaned_s: float = 0.0
    loaned_used_s: float = 0.0
    unmet_s: float = 0.0
    """Node-seconds during which nodes were lent, jobs were on lent nodes, and the pool waited for nodes that it wanted
    back."""
    returned: int = 0
    scaled_in: int = 0
    """The number of nodes returned, and of jobs that shrank for a return."""
    lives: list[NodeLife] = field(default_factory=list)
    """All nodes, in the order in which they came, where there is an autoscaler or a node has a price; else empty."""
    added: int | None = None
    """Nodes that an autoscaler launched; None: there is none. The next four fields are numbers, too."""
    failed_launches: int = 0
    failed_orders: int = 0
    taken_away: int = 0
    taken_with_pods: int = 0
    """Nodes that the cloud took away, and those of them that still had pods."""
    teams: "TeamRecorder | None" = None
    """What each team got; None: it was not recorded."""

    @classmethod
    def begun(
        cls, profile: Profile, seed: int, start_s: float, nodes: Iterable[Node], *, pool: bool = False
    ) -> "RunResult":
        """The result of a run that is just starting on these nodes."""
        free = [node.free for node in nodes]
        return cls(
            profile=profile.name,
            seed=seed,
            oracle=profile.oracle,
            records=[],
            first_s=start_s,
            last_s=start_s,
            accelerator_capacity=sum(each.accelerators for each in free),
            cpu_capacity_millicores=sum(each.cpu_millicores for each in free),
            pool=pool,
        )

"""Resource accounting of a simulation: resource-seconds held and used, samples over time, Gantt bars; and the
comparison of expected with measured speeds after changes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastic_tfjob.scheduling.forecasts import expected_rate
from elastic_tfjob.scheduling.plan import Assignment, Cause
from elastic_tfjob.scheduling.room import replicas_on_nodes
from elastic_tfjob.scheduling.snapshot import AS_REQUESTED, Job, Node, Placement, Pool, Snapshot, counts_of
from elastic_tfjob.simulation.live_job import LiveJob
from elastic_tfjob.simulation.result import Compared, Interval, RunResult, Sample
from elastic_tfjob.speed.history import History
from elastic_tfjob.speed.model import SETTLED_S, Calibration, calibration


class Utilisation:
    """The resource accounting of one run; results go to `outcome`. With `trace`, samples and Gantt bars are
    recorded."""

    def __init__(self, outcome: RunResult, *, trace: bool) -> None:
        self.outcome = outcome
        self.trace = trace
        self.running = 0
        """Number of jobs that hold resources."""
        self._until_s = outcome.first_s
        self._accelerators = 0
        self._cpu_millicores = 0
        self._busy_cores = 0.0
        self._open: dict[tuple[str, str], Interval] = {}
        self._lent: frozenset[str] = frozenset()
        self._unmet = self._lent_used = 0
        self._replicas: dict[str, int] = {}
        """Replicas by node; kept only if an inference pool lends nodes."""

    def hold(self, live: LiveJob, new: Placement, now: float) -> None:
        """From now on the job holds the placement `new`. The caller has already set `live.cpu_held`."""
        self._account(now)
        self.running += bool(new) - bool(live.placement)
        self._accelerators -= live.accelerators
        self._cpu_millicores -= live.cpu_millicores
        if self.trace:
            self._bars(live, new, now)
        if self.outcome.pool:
            self._count(live.placement, new)
        live.placement = new
        if new:
            counts = counts_of(new)
            demand = live.spec.demand(counts)
            live.accelerators, live.cpu_millicores = (
                demand.accelerators,
                demand.cpu_millicores + live.spec.extra_cpu(live.cpu_held),
            )
            live.held = demand.accelerators or sum(counts.values())
        else:
            live.accelerators = live.cpu_millicores = live.held = 0
            live.cpu_held = AS_REQUESTED
            self._busy_cores -= live.busy_cores
            live.busy_cores = 0.0
        self._accelerators += live.accelerators
        self._cpu_millicores += live.cpu_millicores

    def lend(self, nodes: Mapping[str, Node], pools: Mapping[str, Pool], now: float) -> None:
        """From now on the nodes marked as loaned are lent, and each pool wants `wanted` nodes back."""
        self._account(now)
        self._lent = frozenset(name for name, node in nodes.items() if node.loan == "loaned")
        self._unmet = sum(pool.wanted for pool in pools.values())
        self._lent_used = sum(name in self._replicas for name in self._lent)

    def _count(self, old: Placement, new: Placement) -> None:
        before, after = replicas_on_nodes(old), replicas_on_nodes(new)
        for name in before.keys() | after.keys():
            n = self._replicas.pop(name, 0)
            left = n + after.get(name, 0) - before.get(name, 0)
            if left:
                self._replicas[name] = left
            if name in self._lent:
                self._lent_used += bool(left) - bool(n)

    def use(self, live: LiveJob, busy_cores: float, now: float) -> None:
        """From now on the job uses `busy_cores`."""
        self._account(now)
        self._busy_cores += busy_cores - live.busy_cores
        live.busy_cores = busy_cores

    def _account(self, now: float) -> None:
        passed, outcome = now - self._until_s, self.outcome
        if passed > 0:
            outcome.held_accelerator_s += passed * self._accelerators
            outcome.held_millicore_s += passed * self._cpu_millicores
            outcome.loaned_s += passed * len(self._lent)
            outcome.loaned_used_s += passed * self._lent_used
            outcome.unmet_s += passed * self._unmet
            if outcome.used_millicore_s is not None:
                outcome.used_millicore_s += passed * 1000 * self._busy_cores
            self._until_s = now

    def sample(self, jobs: int, now: float) -> None:
        """Record a sample of the cluster, which has `jobs` waiting and running jobs in all."""
        if self.trace:
            self.outcome.samples.append(
                Sample(now, jobs - self.running, self.running, self._accelerators, self._cpu_millicores)
            )

    def _bars(self, live: LiveJob, new: Placement, now: float) -> None:
        key = live.spec.key
        before, after = replicas_on_nodes(live.placement), replicas_on_nodes(new)
        for node in before.keys() | after.keys():
            if before.get(node) == after.get(node):
                continue
            if node in before:
                interval = self._open.pop((key, node))
                interval.end_s = now
                if now > interval.start_s:
                    self.outcome.intervals.append(interval)
            if node in after:
                self._open[key, node] = Interval(node, key, now, now, after[node])

    def close(self) -> None:
        """Close the open Gantt bars at the end of the run, including a run that ends early."""
        now, outcome = self._until_s, self.outcome
        for interval in self._open.values():
            interval.end_s = max(now, interval.start_s)
            outcome.intervals.append(interval)
        outcome.intervals.sort(key=lambda i: (i.node, i.start_s, i.key))
        if outcome.partial:
            outcome.last_s = max(outcome.last_s, now)


# -- Expected and measured speeds after each change --------------------------------------------------------------------


@dataclass(slots=True)
class _Stay:
    """The period of a job between two changes. `began_s`: the time at which training started after the change, with
    `steps` done by then; None: training has not started. `steps_per_s`: the mean speed since `began_s`; None: the job
    did not train for long enough."""

    cause: Cause
    job: Job
    target: Assignment
    now: float
    history: History
    began_s: float | None = None
    steps: float = 0.0
    steps_per_s: float | None = None


class Stays:
    """Compares expected with measured speeds in one run. Speeds are measured during the run. The expected speeds are
    computed after it, so that the run's CPU time does not include them."""

    def __init__(self) -> None:
        self._open: dict[str, _Stay] = {}
        self._measured: list[_Stay] = []

    def change(self, live: LiveJob, target: Assignment, snapshot: Snapshot) -> None:
        """A plan for this Snapshot is about to change the job to `target`."""
        key, now = live.spec.key, snapshot.now
        self.end(live, now)
        if target.nodes and target.cause is not None:
            self._open[key] = _Stay(target.cause, snapshot.jobs[key], target, now, snapshot.history)

    def trains(self, live: LiveJob) -> None:
        """The job trains in its changed state from `observed_s` on."""
        stay = self._open.get(live.spec.key)
        if stay is not None and stay.began_s is None:
            stay.began_s, stay.steps = live.observed_s, live.steps

    def end(self, live: LiveJob, now: float) -> None:
        """The job ends or is about to be changed."""
        stay = self._open.pop(live.spec.key, None)
        if stay is None or stay.began_s is None or now - stay.began_s < SETTLED_S:
            return
        stay.steps_per_s = (live.steps_at(now) - stay.steps) / (now - stay.began_s)
        self._measured.append(stay)

    def lost(self, live: LiveJob) -> None:
        """The job loses a node. Its period is discarded, as its progress then says nothing about its speed."""
        self._open.pop(live.spec.key, None)

    def compared(self, nodes: Mapping[str, Node]) -> list[Compared]:
        """All changes with both an expected and a measured speed."""
        found = []
        for stay in self._measured:
            past = stay.history.past(stay.job.spec.scope, stay.job.spec.model)
            rate = expected_rate(stay.job, placement=stay.target.nodes, cpu=stay.target.cpu, past=past, nodes=nodes)
            if rate is not None and rate.steps_per_s > 0 and stay.steps_per_s is not None:
                found.append(Compared(stay.cause, rate.source, rate.steps_per_s, stay.steps_per_s, rate.relative_error))
        return found


def by_cause(compared: Iterable[Compared]) -> dict[str, Calibration]:
    """The calibration for each cause, and for `all` changes together."""
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in compared:
        for name in ("all", each.cause):
            ratios[name].append((each.measured_steps_per_s / each.expected_steps_per_s, each.relative_error))
    return {name: calibration(found) for name, found in sorted(ratios.items())}

"""What jobs hold of the cluster as time goes on: areas, samples, and bars of the Gantt chart."""

from collections.abc import Mapping

from elastic_tfjob.scheduling.placements import replicas_on_nodes
from elastic_tfjob.scheduling.snapshot import AS_REQUESTED, Node, Placement, Pool, counts_of
from elastic_tfjob.simulation.live_job import LiveJob
from elastic_tfjob.simulation.outcome import Interval, Outcome, Sample


class Accounts:
    """Of one run, kept in `outcome`. `trace`: samples and bars are kept, too."""

    def __init__(self, outcome: Outcome, *, trace: bool) -> None:
        self.outcome = outcome
        self.trace = trace
        self.running = 0
        """Jobs that hold something."""
        self._until_s = outcome.first_s
        self._accelerators = 0
        self._cpu = 0
        self._busy = 0.0
        self._open: dict[tuple[str, str], Interval] = {}
        self._lent: frozenset[str] = frozenset()
        self._unmet = self._lent_used = 0
        self._replicas: dict[str, int] = {}
        """By node, where there is a pool that lends some."""

    def hold(self, live: LiveJob, new: Placement, now: float) -> None:
        """From now on the job holds `new`; its CPU is what `live.cpu_held` says already."""
        self._account(now)
        self.running += bool(new) - bool(live.placement)
        self._accelerators -= live.accelerators
        self._cpu -= live.cpu
        if self.trace:
            self._bars(live, new, now)
        if self.outcome.pool:
            self._count(live.placement, new)
        live.placement = new
        if new:
            counts = counts_of(new)
            demand = live.spec.demand(counts)
            live.accelerators, live.cpu = demand.accelerators, demand.cpu + live.spec.extra_cpu(live.cpu_held)
            live.held = demand.accelerators or sum(counts.values())
        else:
            live.accelerators = live.cpu = live.held = 0
            live.cpu_held = AS_REQUESTED
            self._busy -= live.busy
            live.busy = 0.0
        self._accelerators += live.accelerators
        self._cpu += live.cpu

    def lend(self, nodes: Mapping[str, Node], pools: Mapping[str, Pool], now: float) -> None:
        """From now on these nodes are lent, and pools want so many back."""
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

    def use(self, live: LiveJob, busy: float, now: float) -> None:
        """From now on the job uses so many CPUs."""
        self._account(now)
        self._busy += busy - live.busy
        live.busy = busy

    def _account(self, now: float) -> None:
        passed, outcome = now - self._until_s, self.outcome
        if passed > 0:
            outcome.accelerator_area += passed * self._accelerators
            outcome.cpu_area += passed * self._cpu
            outcome.loaned_s += passed * len(self._lent)
            outcome.loaned_used_s += passed * self._lent_used
            outcome.unmet_s += passed * self._unmet
            if outcome.cpu_used_area is not None:
                outcome.cpu_used_area += passed * 1000 * self._busy
            self._until_s = now

    def sample(self, jobs: int, now: float) -> None:
        """The cluster as it stands, with so many jobs in all."""
        if self.trace:
            self.outcome.samples.append(Sample(now, jobs - self.running, self.running, self._accelerators, self._cpu))

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
        """Account for what still runs when a run ends early."""
        now, outcome = self._until_s, self.outcome
        for interval in self._open.values():
            interval.end_s = max(now, interval.start_s)
            outcome.intervals.append(interval)
        outcome.intervals.sort(key=lambda i: (i.node, i.start_s, i.key))
        if outcome.partial:
            outcome.last_s = max(outcome.last_s, now)

"""What the rounds of a run know of its autoscaler, and what it sees of them: how jobs order nodes, and which nodes they
leave to it. The counterpart of the operator's controller/schedule/autoscaling.py."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Final

from elastic_tfjob.api.scenario import Autoscaling, NodeOrders
from elastic_tfjob.scheduling.given_up import CompactionTimes, GivenUpNodes
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.room import lost_nodes, room_index
from elastic_tfjob.scheduling.snapshot import ClusterRules, Counts, Job, JobSpec, Node, OrderRules, Snapshot
from elastic_tfjob.simulation.autoscaler import Autoscaler, Pending
from elastic_tfjob.simulation.event_queue import NodeChange

__all__ = ["UnfilledOrders"]

PODS_EXIST: Final = "fixed"
"""The profile under which the operator makes a job's pods at once, as the training-operator does."""

LONGEST_RETRY_S: Final = 1800.0
"""The longest time between two orders of a job, as in the operator."""


class Scaling:
    """The autoscaler of a run, and what is remembered between rounds. Jobs ask for nodes by the plans' orders, under
    PODS_EXIST by their pods; then they leave no nodes either. Raises ValueError for a profile that uses no nodes."""

    def __init__(self, settings: Autoscaling, profile: Profile, seed: int) -> None:
        if profile.place.totals_only:
            raise ValueError(f"profile {profile.name}: place count uses no nodes, so an autoscaler would add none")
        self.settings = settings
        self.autoscaler = Autoscaler(settings, seed)
        self.look_s = -inf
        """When the autoscaler looks again, if nothing happens before."""
        self.round_s = inf
        """When a round is due for what it remembers."""
        self._pods_exist = profile.name == PODS_EXIST
        self._unfilled = UnfilledOrders(settings.order)
        self._given_up = GivenUpNodes()
        self._orders: Mapping[str, Counts] = {}
        self._room = ("room", profile.place.rank, False), room_index(profile.place.rank, False)

    @property
    def asks(self) -> bool:
        """Whether jobs ask for nodes at all."""
        return self._pods_exist or self.settings.order.when == "always"

    @property
    def failed_orders(self) -> int:
        return self._unfilled.count

    # ---- rounds

    def begin(self, snapshot: Snapshot, now: float) -> Snapshot:
        """The Snapshot with the rules of a round, and with what is remembered of its nodes."""
        if self._pods_exist:
            return snapshot
        orders = self._unfilled.rules(now) if self.asks else None
        if (times := self._times) is None:
            rules, nodes = ClusterRules(orders), None
        else:
            added = self.autoscaler.names & snapshot.nodes.keys()
            given_up = self._given_up.names(added, times, now)
            keeps = frozenset(self._given_up.kept)
            marked = {
                name: replace(node, given_up=name in given_up, autoscaled=name not in keeps)
                for name, node in snapshot.nodes.items()
                if name in added and (node.given_up, node.autoscaled) != (name in given_up, name not in keeps)
            }
            nodes = {**snapshot.nodes, **marked} if marked else None
            rules = ClusterRules(orders, self._given_up.rules(times, now))
        if nodes is None and rules == snapshot.cluster_rules:
            return snapshot
        return snapshot.evolve(now, nodes=nodes, pools=snapshot.pools, cluster_rules=rules)

    def decided(self, plan: Plan, now: float) -> bool:
        """Note what a plan orders, and the nodes that it gives up. Whether another round should follow at once."""
        self._orders, self.round_s = plan.orders, inf
        if self._pods_exist or (times := self._times) is None:
            return False
        again = self._given_up.follow(plan, now)
        after_s = self._given_up.next_s(times, now)
        self.round_s = inf if after_s is None else now + after_s
        return again

    @property
    def _times(self) -> CompactionTimes | None:
        given = self.settings.compact
        return None if given is None else CompactionTimes(given.after_s, given.every_s, given.forget_s, given.headroom)

    # ---- the autoscaler's turn

    def look(self, snapshot: Snapshot, in_use: set[str], now: float) -> list[NodeChange]:
        """What the autoscaler does now. `in_use`: as for Autoscaler.look."""
        room = snapshot.index(*self._room)
        changes, unfilled = self.autoscaler.look(now, snapshot.jobs.values(), room, self._pending(snapshot), in_use)
        next_s = self.autoscaler.next_s(now)
        if not self._pods_exist:
            ordering = [key for key in self._orders if key in snapshot.jobs]
            failed = self._unfilled.follow(ordering, unfilled, snapshot.jobs, now)
            self.round_s = now if failed else min(self.round_s, self._unfilled.retry_s(now))
            next_s = min(next_s, self._unfilled.timeout_s(), self.round_s if snapshot.jobs else inf)
        self.look_s = next_s
        return changes

    def _pending(self, snapshot: Snapshot) -> list[Pending]:
        jobs = snapshot.jobs
        if self._pods_exist:
            return pods_without_node(jobs.values(), snapshot.nodes)
        return [each for key, counts in self._orders.items() if key in jobs for each in _all(jobs[key].spec, counts)]


def pods_without_node(jobs: Iterable[Job], nodes: Mapping[str, Node]) -> list[Pending]:
    """The replicas without a node, where each job has its pods from the beginning: all of a waiting job, and those on
    nodes that are gone."""
    found: list[Pending] = []
    for job in jobs:
        if not job.placement:
            found += _all(job.spec, job.spec.declared)
        elif lost_nodes(job.placement, nodes):
            gone = {t: sum(name not in nodes for name in names) for t, names in job.placement.items()}
            found += _all(job.spec, gone)
    return found


def _all(spec: JobSpec, counts: Counts) -> list[Pending]:
    return [Pending(spec, group, n) for group in spec.groups if (n := counts.get(group.type, 0))]


# -- Orders that nobody has filled or used -----------------------------------------------------------------------------


class UnfilledOrders:
    """Jobs whose order has waited too long, or who did not use what came: each orders nothing for a while, longer each
    time. The counterpart of the operator's controller/planning/node_orders.py."""

    def __init__(self, settings: NodeOrders) -> None:
        self.settings = settings
        self.count = 0
        """The number of such orders."""
        self._since: dict[str, float] = {}
        self._tried: dict[str, tuple[float, float]] = {}
        """By job: until when it orders nothing, and how long that is."""
        self._ordering: dict[str, int] = {}
        """By job that orders, the replicas that it holds."""
        self._filled: dict[str, int] = {}
        """By job whose order was filled, the replicas that it held then."""

    def rules(self, now: float) -> OrderRules:
        given = self.settings
        failed = frozenset(key for key, (until, _) in self._tried.items() if now < until)
        return OrderRules(given.size, given.jobs, given.pods, round(given.cpu * 1000), failed)

    def follow(self, ordering: Collection[str], unfilled: Collection[str], jobs: Mapping[str, Job], now: float) -> bool:
        """Note what became of the orders; whether one has failed. `unfilled`: the jobs that order replicas for which no
        node is there."""
        before = self.count
        self._since = {key: self._since.get(key, now) for key in unfilled}
        for key, since in list(self._since.items()):
            if now - since >= self.settings.timeout_s:
                _, waited = self._tried.get(key, (0.0, 0.0))
                self._fail(key, min(2 * waited, LONGEST_RETRY_S) if waited else self.settings.retry_s, now)
                del self._since[key]
        done = [key for key in self._tried if key not in jobs or (key in ordering and key not in unfilled)]
        for key in done:
            del self._tried[key]
        held = {key: sum(map(len, jobs[key].placement.values())) for key in {*ordering, *self._ordering} if key in jobs}
        for key in ordering:
            if held[key] and key not in self._ordering and held[key] <= self._filled.pop(key, -1):
                self._fail(key, LONGEST_RETRY_S, now)
        self._filled |= {k: n for k, n in self._ordering.items() if k not in ordering and k not in self._tried}
        self._filled = {key: n for key, n in self._filled.items() if key in jobs}
        self._ordering = {key: held[key] for key in ordering}
        return self.count > before

    def _fail(self, key: str, delay_s: float, now: float) -> None:
        self._tried[key] = (now + delay_s, delay_s)
        self.count += 1

    def timeout_s(self) -> float:
        """When the next order has waited too long."""
        return min((since + self.settings.timeout_s for since in self._since.values()), default=inf)

    def retry_s(self, now: float) -> float:
        """When the next job may order again."""
        return min((until for until, _ in self._tried.values() if until > now), default=inf)

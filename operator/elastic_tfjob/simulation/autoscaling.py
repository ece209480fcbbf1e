"""What the rounds of a run know of its autoscaler, and what it sees of them: how jobs order nodes, and which nodes they
leave to it. The counterpart of the operator's controller/schedule/autoscaling.py."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

from elastic_tfjob.api.scenario import Autoscaling
from elastic_tfjob.scheduling.given_up import CompactionTimes, GivenUpNodes
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.room import lost_nodes, room_index
from elastic_tfjob.scheduling.snapshot import ClusterRules, Counts, Job, JobSpec, Node, OrderRules, Snapshot
from elastic_tfjob.scheduling.unfilled_orders import UnfilledOrders
from elastic_tfjob.simulation.autoscaler import Autoscaler, Pending
from elastic_tfjob.simulation.event_queue import NodeChange

__all__ = ["PODS_EXIST", "Scaling"]

PODS_EXIST: Final = "fixed"
"""The profile under which the operator makes a job's pods at once, as the training-operator does."""


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
        self._unfilled = UnfilledOrders()
        self._waits_since: dict[str, float] = {}
        """By job that orders, since when a replica of its order has no node."""
        self.failed_orders = 0
        self._given_up = GivenUpNodes()
        self._orders: Mapping[str, Counts] = {}
        self._room = ("room", profile.place.rank, False), room_index(profile.place.rank, False)

    @property
    def asks(self) -> bool:
        """Whether jobs ask for nodes at all."""
        return self._pods_exist or self.settings.order.when == "always"

    # ---- rounds

    def begin(self, snapshot: Snapshot, now: float) -> Snapshot:
        """The Snapshot with the rules of a round, and with what is remembered of its nodes."""
        if self._pods_exist:
            return snapshot
        order = self.settings.order
        known = self._unfilled
        limits = order.size, order.jobs, order.pods, round(order.cpu * 1000)
        orders = OrderRules(*limits, known.failed(now), known.since_s, known.lead_s) if self.asks else None
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
            since = {key: self._waits_since.get(key, now) for key in unfilled}
            filled = [key for key in self._orders if key in snapshot.jobs and key not in since]
            timeout_s, retry_s = self.settings.order.timeout_s, self.settings.order.retry_s
            failed = self._unfilled.follow(
                since, filled, partial(_held, snapshot.jobs), now, timeout_s=timeout_s, retry_s=retry_s
            )
            self.failed_orders += len(failed)
            self._waits_since = {key: at_s for key, at_s in since.items() if key not in failed}
            again_s = self._unfilled.next_s(self._waits_since, now, timeout_s)
            self.round_s = now if failed else min(self.round_s, again_s)
            next_s = min(next_s, again_s, self.round_s if snapshot.jobs else inf)
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


def _held(jobs: Mapping[str, Job], key: str) -> int | None:
    return sum(map(len, jobs[key].placement.values())) if key in jobs else None

"""What a scheduling round knows of the cluster's autoscaler: how jobs order nodes, and which nodes they leave to it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Final

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.model.cluster import ForeignPod, KubeNode, selects
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.owned_objects import NodeOrder
from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.planning.node_orders import failure_event, filled_orders, waiting_orders
from elastic_tfjob.controller.planning.round import NO_MARKS, NodeMarks
from elastic_tfjob.scheduling.given_up import GivenUpNodes
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.snapshot import NO_RULES, ClusterRules, CompactionRules, OrderRules
from elastic_tfjob.scheduling.unfilled_orders import UnfilledOrders

__all__ = ["Autoscaling"]

# Added to a timer, so that the time has passed for certain when it fires.
_LATER_S: Final = 0.1
# Seconds that a job may order nodes without a placeholder: they are refused, or somebody deletes them. Until then it
# uses up what all jobs may order.
_WITHOUT_S: Final = 120.0


class Autoscaling:
    """The orders and the nodes given up, between two rounds. `present`: whether the cluster serves an autoscaler's API.
    `held`: the replicas that a job, by its name in the Snapshot, has; None: it does not exist. Times are of the
    monotonic clock, so that nothing waits for ever after the other one was set back.
    An operator of one namespace (`partial`) sees a part of what is free, so that it does neither."""

    def __init__(
        self,
        jobs: Informer[TFJob],
        nodes: Informer[KubeNode],
        recorder: EventRecorder,
        *,
        orders: Callable[[], Iterable[NodeOrder]],
        present: Callable[[], bool],
        held: Callable[[str], int | None],
        partial: bool,
        wake: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        self._nodes = nodes
        self._recorder = recorder
        self._orders = orders
        self._present = present
        self._held = held
        self._partial = partial
        self._wake = wake
        self._unfilled = UnfilledOrders()
        self._given_up = GivenUpNodes()
        self.given_up: Collection[str] = ()
        """The nodes that jobs leave, as of the last round."""
        self._bound: set[str] = set()
        self._asks_since: dict[str, float] = {}
        """By job that orders, since when it has no placeholder, or when the last round found one."""
        self._timer: asyncio.TimerHandle | None = None

    def clear(self) -> None:
        """Forgets what failed and what was given up: the configuration has changed."""
        self._unfilled = UnfilledOrders()
        self._given_up = GivenUpNodes()

    def begin(self, configuration: Configuration, foreign: Collection[ForeignPod]) -> tuple[ClusterRules, NodeMarks]:
        """The rules of a round, and what it knows of nodes. Notes the orders that no autoscaler has filled in time."""
        if self._partial:
            return NO_RULES, NO_MARKS
        now_s = time.monotonic()
        orders = self._ordering(configuration, now_s)
        compaction, marks = self._compaction(configuration, foreign, now_s)
        return ClusterRules(orders, compaction), marks

    def _ordering(self, configuration: Configuration, now_s: float) -> OrderRules | None:
        settings, orders, unix_s = configuration.autoscaling.order, tuple(self._orders()), time.time()
        self._measure(orders, unix_s)
        if not settings.asks(self._nodes, autoscaler=self._present()):
            return None
        waits, filled, timeout_s = waiting_orders(orders), filled_orders(orders), settings.timeout_s
        since, used = (
            {name: now_s - max(0.0, unix_s - at_s) for name, (at_s, _) in each.items()} for each in (waits, filled)
        )
        unused = {
            name
            for name, at_s in used.items()
            if name not in since and name in self._asks_since and now_s - at_s >= timeout_s
        }
        without_s = min(timeout_s, _WITHOUT_S)
        for name in self._asks_since.keys() & {*waits, *filled}:
            self._asks_since[name] = now_s
        unmade = {name for name, at_s in self._asks_since.items() if now_s - at_s >= without_s}
        failed = self._unfilled.follow(
            {**since, **dict.fromkeys({*unused, *unmade}, now_s - timeout_s)},
            filled.keys() - unused,
            self._held,
            now_s,
            timeout_s=timeout_s,
            retry_s=settings.retry_s,
        )
        for name, each in failed.items():
            metrics.ORDERS_FAILED.labels(each.why).inc()
            namespace, _, job_name = name.partition("/")
            if (job := self._jobs.one((namespace, job_name))) is not None:
                event = failure_event(each, name, without_s if name in unmade else timeout_s, waits, filled)
                self._recorder.record(job, event)
        self._wake_in(self._unfilled.next_s({**used, **since}, now_s, timeout_s) - now_s)
        unmade_s = (at_s + without_s - now_s for name, at_s in self._asks_since.items() if name not in unmade)
        self._wake_in(min(unmade_s, default=None))
        asked = {name: at_s for name, (at_s, _) in waits.items()}
        return settings.rules(self._unfilled.failed(now_s), asked, self._unfilled.lead_s)

    def _measure(self, orders: Collection[NodeOrder], now_s: float) -> None:
        """Counts placeholders by state, and how long those waited that have a node now."""
        states = Counter("bound" if order.node else "waiting" for order in orders)
        for state in ("waiting", "bound"):
            metrics.ORDER_PODS.labels(state).set(states[state])
        for order in orders:
            if order.node and order.uid not in self._bound and (created := moment_of(order.created)) is not None:
                metrics.ORDER_SECONDS.observe(max(0.0, now_s - created.timestamp()))
        self._bound = {order.uid for order in orders if order.node}

    def _compaction(
        self, configuration: Configuration, foreign: Collection[ForeignPod], now_s: float
    ) -> tuple[CompactionRules | None, NodeMarks]:
        settings = configuration.autoscaling.compact
        matching = {node.name: node for node in self._nodes if selects(settings.nodes, node.labels)}
        times = settings.times
        given_up = self.given_up = self._given_up.names(matching, times, now_s)
        states = Counter(
            "draining" if node.draining else "given up" if name in given_up else "used"
            for name, node in matching.items()
        )
        for state in ("used", "given up", "draining"):
            metrics.AUTOSCALED_NODES.labels(state).set(states[state])
        if not matching:
            return None, NO_MARKS
        held = {pod.node for pod in foreign if pod.holds_node}
        leave = {name for name, node in matching.items() if node.usable and not node.kept and name not in held}
        prices = {name: price for name, node in matching.items() if (price := settings.price(node.labels))}
        marks = NodeMarks(frozenset(leave.difference(self._given_up.kept)), given_up, prices)
        self._wake_in(self._given_up.next_s(times, now_s))
        return self._given_up.rules(times, now_s), marks

    def decided(self, plan: Plan) -> None:
        """Notes the jobs that a plan lets order, and the nodes that it gives up."""
        now_s = time.monotonic()
        self._asks_since = {name: self._asks_since.get(name, now_s) for name in plan.orders}
        if plan.snapshot.cluster_rules.compaction is None:
            return
        before = plan.snapshot.nodes
        metrics.NODES_GIVEN_UP.inc(sum(not before[name].given_up for name in plan.given_up))
        if self._given_up.follow(plan, now_s):
            self._wake()

    def _wake_in(self, after_s: float | None) -> None:
        """Wakes the loop after this time, or at the time set before if that is earlier."""
        if after_s is None or after_s == inf:
            return
        loop = asyncio.get_running_loop()
        if self._timer is not None and not self._timer.cancelled():
            left_s = self._timer.when() - loop.time()
            if 0 < left_s <= after_s + _LATER_S:
                return
            self._timer.cancel()
        self._timer = loop.call_later(after_s + _LATER_S, self._wake)

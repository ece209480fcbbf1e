"""Follows nodes that are taken away: when each is gone, events for the jobs on it, and the metric of how they met
it."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.notices import Notices
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.steps.leave import next_chance_s

__all__ = ["NodeNotices"]

_AFTER_S: Final = 0.1
"""Seconds from the last chance of a job to the round that decides again."""


class NodeNotices:
    """The scheduling loop's knowledge of nodes that are taken away. `leaving`: by node, the Unix time at which it is
    gone. `touched` is called with each job on such a node at its last chance, since nothing else changes then."""

    def __init__(
        self,
        nodes: Informer[KubeNode],
        jobs: Informer[TFJob],
        pods: Informer[Pod],
        recorder: EventRecorder,
        touched: Callable[[Key], None],
    ) -> None:
        self._nodes = nodes
        self._jobs = jobs
        self._pods = pods
        self._recorder = recorder
        self._touched = touched
        self._notices = Notices()
        self._timer: asyncio.TimerHandle | None = None
        self.leaving: Mapping[str, float] = {}

    def follow(self) -> None:
        """Takes the nodes as they are now."""
        now_s = time.time()
        self.leaving = self._notices.leaving(self._nodes, now_s)
        if self._timer is not None:
            self._timer.cancel()
        at_s = next_chance_s(self.leaving, now_s)
        wakes = asyncio.get_running_loop().call_later
        self._timer = wakes(at_s - now_s + _AFTER_S, self._last_chance) if at_s is not None else None

    def _last_chance(self) -> None:
        for pod in self._pods:
            if pod.node in self.leaving:
                self._touched(pod.key)

    def met(self, plan: Plan, targets: Mapping[str, Target]) -> None:
        """Sends an event to each job that is on such a node for the first time, and counts how jobs met the end of
        nodes. `targets`: what `plan` became, by the jobs' names in the Snapshot."""
        followed = {*self.leaving, *self._notices.followed}
        if not followed:
            return
        there: dict[str, dict[str, Key]] = {}
        for pod in self._pods:
            if pod.node in followed and not (pod.ended or pod.terminating or pod.stopped_by_us):
                there.setdefault(pod.node, {})[f"{pod.key[0]}/{pod.key[1]}"] = pod.key
        new, ended = self._notices.met(self.leaving, there, plan, targets)
        signs = {node.name: node.draining for node in self._nodes}
        for name, node in new:
            if (job := self._jobs.one(there[node][name])) is not None:
                left_s = max(0.0, self.leaving[node] - time.time())
                message = f"Node {node} is taken away in {left_s:.0f} s ({signs.get(node, 'no sign')})"
                self._recorder.record(job, Event("Warning", "NodeTakenAway", message))
        for outcome, number in ended.items():
            metrics.INTERRUPTIONS.labels(outcome).inc(number)

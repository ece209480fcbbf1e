"""Nodes that kube-scheduler refuses to a job's pods, for reasons that the core knows nothing of. Pure.

A pod is pinned to the node that the core chose. What the core does not model (zones of volumes, host ports, topology
spread, a pod of others that was faster) it learns from kube-scheduler: a pinned pod that stays unschedulable means that
its replica type cannot have that node. The pair is left alone for a while, longer each time it proves wrong again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.status import moment_of

__all__ = ["PATIENCE_S", "Pair", "Unfit", "active", "judge", "verdict_due_s"]

Pair = tuple[str, str]
"""Replica type, in lower case as in the pods' labels, and node."""

PATIENCE_S: Final = 10.0
"""What leaves a node may take a moment to be gone: a verdict counts when it has stood for so long."""
_FIRST_S: Final = 60.0
_LONGEST_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Unfit:
    """Until when (Unix time) a replica type is kept from a node, for how long in all, and kube-scheduler's words."""

    until_s: float
    delay_s: float
    why: str


def judge(known: Mapping[Pair, Unfit], pods: Iterable[Pod], now_s: float) -> dict[Pair, Unfit]:
    """What is known of a job's nodes, after a look at its pods. A pod that got a node proves that it is fit."""
    found = {pair: unfit for pair, unfit in known.items() if now_s < unfit.until_s + unfit.delay_s}
    refused: dict[Pair, str] = {}
    for pod in pods:
        if pod.node:
            found.pop((pod.replica_type, pod.node), None)
        elif _waited_s(pod, now_s) >= PATIENCE_S:
            refused.setdefault((pod.replica_type, pod.pinned), pod.unschedulable)
    for pair, why in refused.items():
        before = found.get(pair)
        if before is not None and now_s < before.until_s:
            continue
        delay_s = _FIRST_S if before is None else min(2 * before.delay_s, _LONGEST_S)
        found[pair] = Unfit(now_s + delay_s, delay_s, why)
    return found


def active(known: Mapping[Pair, Unfit], now_s: float) -> dict[Pair, str]:
    """The pairs that must not be tried now, with kube-scheduler's words."""
    return {pair: unfit.why for pair, unfit in known.items() if now_s < unfit.until_s}


def verdict_due_s(pods: Iterable[Pod], now_s: float) -> float | None:
    """Seconds until the next verdict counts; None if there is none to wait for."""
    waited = [_waited_s(pod, now_s) for pod in pods if not pod.node]
    return min((PATIENCE_S - each for each in waited if 0 <= each < PATIENCE_S), default=None)


def _waited_s(pod: Pod, now_s: float) -> float:
    """For how long a pinned pod has been refused its node; -1 for one that is not."""
    if not pod.pinned or not pod.unschedulable_at or pod.phase != "Pending" or pod.terminating:
        return -1.0
    at = moment_of(pod.unschedulable_at)
    return -1.0 if at is None else max(0.0, now_s - at.timestamp())

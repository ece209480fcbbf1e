"""Collects a round's input about loans of nodes, and writes its decisions to the nodes.

The leader's scheduling loop is the only writer. Each write reads the node first, and is dropped if the node has changed
since the decision; if the node changes after that, the API server rejects the write. A later round decides again.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import structlog

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, OPERATOR_NAME_LABEL
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Invalid, NotFound
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import cancels, excerpt, unending
from elastic_tfjob.controller.model.cluster import (
    LOAN_ANNOTATION,
    LOANED_TAINT,
    PENDING,
    ForeignPod,
    KubeNode,
    NodeLoan,
    PendingPod,
)
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.pod import GRACE_S, Pod
from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.controller.planning.lending import (
    NO_LENDING,
    Lending,
    LendingInput,
    LoanWrite,
    asked_by_plan,
    concerned,
    lending,
    stage_of,
)
from elastic_tfjob.controller.planning.request import refused_target
from elastic_tfjob.scheduling.plan import Loan
from elastic_tfjob.scheduling.resources import NOTHING, Resources

__all__ = ["Loans"]

log = structlog.get_logger(__name__)

# Seconds until a node that could not be written is tried again; and until any node is offered after a write failed for
# lack of permission.
_REFUSED_S: Final = 30.0
_FORBIDDEN_S: Final = 300.0
_WRITE_S: Final = 15.0
# Seconds that a round waits for the first list of pods.
_READ_S: Final = 5.0
# Seconds for which pods are waited for after the time limit of their job's stop.
_HARD_S: Final = 60.0


class Loans:
    """The scheduling loop's knowledge of loans, and their writer. `wants`: the minimum number of nodes that each pool
    has requested. `owned`: whether an existing TFJob owns a pod. `touched` is called when a pool's pending pod changes.
    """

    def __init__(
        self,
        api: ApiClient,
        nodes: Informer[KubeNode],
        recorder: EventRecorder,
        *,
        wants: Callable[[], Mapping[str, int]],
        owned: Callable[[Pod], bool],
        touched: Callable[[Key], None],
    ) -> None:
        self._api = api
        self._nodes = nodes
        self._recorder = recorder
        self._wants = wants
        self._owned = owned
        self._touched = touched
        self._pending: dict[str, tuple[Informer[PendingPod], asyncio.Task[None]]] = {}
        self._refused: dict[str, float] = {}
        self._forbidden_until = 0.0
        self._writing: set[str] = set()
        self._writes: tuple[LoanWrite, ...] = ()
        self._evicted: tuple[Pod, ...] = ()
        self._evict_again: dict[tuple[str, str], float] = {}  # by namespace and name, since the pod may be recreated
        self._unplaced: frozenset[str] = frozenset()

    async def follow(self, configuration: Configuration, group: asyncio.TaskGroup) -> None:
        """Watches the pending pods in the namespaces of pools, and only there. Returns once they are known: no node is
        offered before, so without this wait the first round of a new leader would start jobs on fewer nodes than are
        available. A namespace that cannot be read delays the loop by _READ_S at most, and only once."""
        wanted = {name for pool in configuration.pools.values() for name in pool.namespaces}
        for name in [name for name, (_, task) in self._pending.items() if name not in wanted or task.done()]:
            self._pending.pop(name)[1].cancel()
        added = sorted(wanted - self._pending.keys())
        for name in added:
            informer = Informer(
                self._api,
                f"/api/v1/namespaces/{name}/pods",
                PendingPod.parse,
                lambda _: None,
                selector=f"{OPERATOR_NAME_LABEL}!={CONTROLLER_NAME}",
                fields=PENDING,
                touched=self._touched,
            )
            task = group.create_task(unending(informer.run), name=f"pending-pods-{name}")
            self._pending[name] = informer, task
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READ_S):
                for name in added:
                    await self._pending[name][0].synced.wait()

    def usable(self) -> Iterator[KubeNode]:
        """The nodes on which jobs may be placed and may stay."""
        return (node for node in self._nodes if node.usable and stage_of(node) != "recalled")

    def cordoned(self) -> dict[str, str]:
        """The nodes that keep their pods but get no new ones, with the taint that drains them, if any: for jobs, a
        recalled node counts as cordoned."""
        return {
            node.name: node.draining
            for node in self._nodes
            if node.cordoned or (node.usable and stage_of(node) == "recalled")
        }

    def concerns(self, configuration: Configuration) -> bool:
        """Whether any node is part of lending: it may be lent, or has not been returned yet."""
        return any(concerned(node, configuration.pools.keys()) for node in self._nodes)

    def cluster(
        self,
        configuration: Configuration,
        foreign: Iterable[ForeignPod],
        pods: Iterable[Pod],
        candidates: Collection[JobView],
        *,
        plans: bool = True,
    ) -> LendingInput | None:
        """The input of a round's lending; None if no node is part of it, and then at low cost: otherwise the cost grows
        with the number of all pods. `plans`: whether a plan can stop jobs."""
        pools = configuration.pools
        nodes = {node.name: node for node in self._nodes if concerned(node, pools.keys())}
        if not nodes:
            return None
        now = time.monotonic()
        self._refused = {name: until for name, until in self._refused.items() if now < until}
        others = {pod.uid: pod for pod in foreign if pod.node in nodes}
        trained: dict[str, Resources] = {}
        guests: dict[str, tuple[Pod, ...]] = {}
        staying: set[str] = set()
        known = {each.source.key: each for each in candidates if each.source is not None}
        for pod in pods:
            if pod.node not in nodes or pod.ended:
                continue
            if self._owned(pod):
                trained[pod.node] = trained.get(pod.node, NOTHING).plus(pod.requests)
                if plans and pod.pinned == pod.node:
                    guests[pod.node] = (*guests.get(pod.node, ()), pod)
                    if _stays(pod, known.get(pod.key)):
                        staying.add(pod.node)
            else:
                # Any user can put the operator's label on a pod. No node waits for a pod that the stop of a job would
                # not end.
                others.setdefault(pod.uid, _stray(pod))
        waiting = [pod for informer, _ in self._pending.values() for pod in informer]
        return LendingInput(
            dict(sorted(nodes.items())),
            pools,
            tuple(others.values()),
            tuple(sorted(waiting, key=lambda pod: (pod.namespace, pod.name))),
            trained,
            guests,
            frozenset(staying),
            _promised(candidates, nodes),
            self._wants(),
            frozenset(self._refused),
            now >= self._forbidden_until and all(i.synced.is_set() for i, _ in self._pending.values()),
            configuration.rescale.stop_timeout_s + _HARD_S,
        )

    def decided(self, cluster: LendingInput | None, lent: Lending, loans: Iterable[Loan]) -> None:
        """Keeps a round's decisions for `write`, and updates the metrics."""
        self._writes = (*lent.writes, *asked_by_plan(loans, lent, cluster)) if cluster is not None else ()
        self._evicted = lent.evicted
        for gauge, numbers in ((metrics.POOL_NODES, lent.counts), (metrics.POOL_PENDING, lent.pending)):
            gauge.clear()  # removes pools that no longer exist
            for labels, number in numbers.items():
                gauge.labels(*labels).set(number)
        self._record_unplaced(lent.unplaced)

    def _record_unplaced(self, pods: Collection[PendingPod]) -> None:
        """Sends an event to one of these pods in each namespace that had none of them in the previous round: no node is
        recalled for them."""
        first = {pod.namespace: pod for pod in reversed(tuple(pods))}
        count = Counter(pod.namespace for pod in pods)
        for namespace in first.keys() - self._unplaced:
            others = f", nor for {count[namespace] - 1} more of this namespace" if count[namespace] > 1 else ""
            message = (
                f"The pod fits on no node of its pool, including lent nodes, so no node is recalled for it{others}"
            )
            self._recorder.record(first[namespace], Event("Warning", "FitsNoPoolNode", message))
        self._unplaced = frozenset(first)

    def without_plan(
        self,
        configuration: Configuration,
        foreign: Iterable[ForeignPod],
        pods: Iterable[Pod],
        candidates: Collection[JobView],
    ) -> None:
        """Decides about loans in a round without a plan: no node is lent, and lent nodes are returned when their jobs
        have ended."""
        cluster = self.cluster(configuration, foreign, pods, candidates, plans=False)
        self.decided(cluster, NO_LENDING if cluster is None else lending(cluster, time.time()), ())

    def write(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Starts writing the last decisions, and returns the tasks. A node with an unfinished write is left to a later
        round."""
        writes, self._writes = self._writes, ()
        begun = []
        for write in writes:
            name = write.seen.name
            if name in self._writing or name in self._refused:
                continue
            self._writing.add(name)
            task = group.create_task(self._write(write), name=f"loan-{name}")
            task.add_done_callback(partial(self._written, name))
            begun.append(task)
        now, evicted, self._evicted = time.monotonic(), self._evicted, ()
        self._evict_again = {name: at for name, at in self._evict_again.items() if now < at}
        for pod in evicted:
            if (pod.namespace, pod.name) not in self._evict_again:
                self._evict_again[pod.namespace, pod.name] = now + _REFUSED_S
                begun.append(group.create_task(self._evict(pod), name=f"evict-{pod.uid}"))
        return begun

    async def _evict(self, pod: Pod) -> None:
        """Deletes a TFJob's pod that no stop of its job has ended: the job may no longer be stopped, or is invalid. The
        grace period is the default of Kubernetes."""
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._api.delete(path, uid=pod.uid, gracePeriodSeconds=GRACE_S)
        except (Conflict, NotFound):
            return
        except (ApiError, TimeoutError) as error:
            log.warning(
                "pod on recalled node not deleted",
                namespace=pod.namespace,
                pod=pod.name,
                node=pod.node,
                error=excerpt(error),
            )
            return
        log.warning("pod on recalled node deleted", namespace=pod.namespace, pod=pod.name, node=pod.node)

    def _written(self, name: str, _: asyncio.Task[None]) -> None:
        self._writing.discard(name)

    async def _write(self, write: LoanWrite) -> None:
        """Writes one node. An error does not affect the writes of other nodes; a later round decides again."""
        result = "failed"
        try:
            async with asyncio.timeout(_WRITE_S):
                result = await self._store(write)
        except NotFound:
            result = "gone"
        except Conflict:
            result = "conflict"
        except Invalid as error:
            self._refused[write.seen.name] = time.monotonic() + _FORBIDDEN_S
            if error.status == 403:
                result, self._forbidden_until = "forbidden", time.monotonic() + _FORBIDDEN_S
            words = "The operator has no right to change this node, so it is neither lent nor returned"
            message = f"{words} (apply the component loans): {error.message}"
            self._recorder.record(write.seen, Event("Warning", "LoansForbidden", message))
            log.warning("loan not written", node=write.seen.name, stage=write.stage, error=excerpt(error))
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            self._refused[write.seen.name] = time.monotonic() + _REFUSED_S
            level = log.warning if isinstance(error, (ApiError, TimeoutError)) else log.error
            level("loan not written", node=write.seen.name, stage=write.stage, error=excerpt(error))
        metrics.NODE_LOANS.labels(write.pool, write.stage, result).inc()

    async def _store(self, write: LoanWrite) -> str:
        seen, path = write.seen, f"/api/v1/nodes/{write.seen.name}"
        raw = await self._api.get(path)
        fresh, now = KubeNode.parse(raw), datetime.now(UTC)
        if _of_loan(fresh) != _of_loan(seen):
            self._nodes.seen(raw)
            return "changed"
        self._nodes.seen(await self._api.patch(path, patch_of(write, raw, now)))
        event = _event_of(write, now.timestamp())
        self._recorder.record(seen, event)
        if write.stage == "returned" and seen.loan is not None and seen.loan.stage == "recalled":
            metrics.NODE_RETURN_SECONDS.labels(write.pool).observe(seen.loan.age_s(now.timestamp()))
        log.info("loan", node=seen.name, pool=write.pool, stage=write.stage, tainted=write.tainted, why=write.why)
        return "ok"


def patch_of(write: LoanWrite, raw: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The merge patch for the node `raw`, which was just read. All other taints stay. The API server rejects the patch
    if the node has changed since it was read."""
    loan = write.seen.loan
    since = format_time(now) if write.renews or loan is None else loan.since
    stored = NodeLoan(write.stage, write.pool, since, write.why)
    metadata, taints = raw["metadata"], (raw.get("spec") or {}).get("taints") or []
    body: dict[str, Any] = {
        "metadata": {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {LOAN_ANNOTATION: stored.to_json()},
        }
    }
    if write.tainted != write.seen.tainted:
        others = [taint for taint in taints if taint["key"] != LOANED_TAINT]
        ours = [{"key": LOANED_TAINT, "effect": "NoSchedule"}] if write.tainted else []
        body["spec"] = {"taints": [*others, *ours]}
    return body


def _stray(pod: Pod) -> ForeignPod:
    return ForeignPod(pod.namespace, pod.name, pod.uid, pod.version, pod.node, pod.requests)


def _stays(guest: Pod, found: JobView | None) -> bool:
    """Whether no plan can stop the job of this pod, because the job is no longer loanable. A job that has ended, was
    deleted or is suspended leaves by itself."""
    source = found.source if found is not None else None
    if found is None or source is None or source.deleting or guest.terminating:
        return False
    if found.job is not None:
        return not found.job.spec.loanable
    if found.request is not None and found.request.spec.run_policy.suspend:
        return False
    return not source.status().finished


def _of_loan(node: KubeNode) -> tuple[object, ...]:
    """The fields of a node that a decision about its loan depends on."""
    return node.uid, node.loan, node.tainted, node.pool, node.usable, node.cordoned


def _event_of(write: LoanWrite, now_s: float) -> Event:
    pool, why = write.pool, write.why
    if write.late:
        return Event(
            "Warning",
            "NodeNotVacated",
            f"Pods of TFJobs are still on the node, which is returned to pool {pool} anyway",
        )
    if write.stage == "loaned":
        return Event("Normal", "NodeLent", f"Lent by pool {pool}: {why}")
    if write.stage == "recalled":
        return Event("Normal", "NodeRecalled", f"Recalled by pool {pool}, returned once its jobs have left: {why}")
    loan = write.seen.loan
    took = f"{loan.age_s(now_s):.0f} s after the recall" if loan is not None and loan.stage == "recalled" else "at once"
    return Event("Normal", "NodeReturned", f"Returned to pool {pool}, {took}: {why}")


def _promised(candidates: Iterable[JobView], nodes: Collection[str]) -> frozenset[str]:
    """Nodes that loanable jobs of the profile use, or will use by their targets and states."""
    promised: set[str] = set()
    for candidate in candidates:
        if candidate.job is None or not candidate.job.spec.loanable:
            continue
        promised.update(candidate.reserved)
        target = candidate.target
        if target is not None and candidate.state is not None and refused_target(target, candidate.state):
            target = None  # the job keeps the size of its state
        for stored in (target, candidate.state, candidate.state.next if candidate.state is not None else None):
            if stored is not None:
                promised.update(name for names in stored.nodes.values() for name in names)
    return frozenset(promised.intersection(nodes))

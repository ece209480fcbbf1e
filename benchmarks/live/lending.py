"""What is seen of loans while jobs train and a model server serves beside them, and what that comes to. Pure: objects
of the API server in, figures out. Times are Unix times; names that end in `_s` are seconds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from harness.api import Object
from harness.load import Request
from harness.training import PREFIX, unix

__all__ = ["CHECKPOINT_S", "Chief", "Figures", "Seen", "Server", "figures", "goals", "lost_s", "percentile"]

SLOW_S: Final = 1.0
"""A request that takes longer is slow."""
PENDING_S: Final = 20.0
"""A replica of the service should have a node by then."""
SPREAD_S: Final = 2.0
"""From a replica's readiness until the nodes' kube-proxies send requests to it: so long it does not count as up."""
CHECKPOINT_S: Final = 30.0
"""How often the jobs save: no job should lose more."""
_JOB, _TYPE = "training.kubeflow.org/job-name", "training.kubeflow.org/replica-type"


@dataclass(slots=True)
class Server:
    """A replica of the service. `bound`: when it got a node. `up`: from when to when it was ready (None: is still)."""

    created: float
    bound: float | None = None
    gone: float | None = None
    up: list[tuple[float, float | None]] = field(default_factory=list)


@dataclass(slots=True)
class Chief:
    """A pod of a job's chief. `lines`: time, step, and the step that it went on from, as it reported them."""

    job: str
    pod: str
    namespace: str
    began: float
    lines: list[tuple[float, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Seen:
    """All that is seen from `begin` on of jobs created since, and of the service in the namespace `serving`."""

    serving: str
    begin: float
    servers: dict[str, Server] = field(default_factory=dict)
    stages: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    """Of each node: when its loan got which stage; the first is what it was at the begin."""
    jobs: dict[str, tuple[float, frozenset[str]]] = field(default_factory=dict)
    """When each job was created, and its types of replicas, in lower case."""
    started: dict[str, float] = field(default_factory=dict)
    """When a pod of each of its types had run."""
    chiefs: dict[str, Chief] = field(default_factory=dict)
    """By uid, in the order of their start."""
    stops: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each job: how often each event told that its pods end, to be made anew later or elsewhere."""
    _namespaces: set[str] = field(default_factory=set)
    _running: dict[str, set[str]] = field(default_factory=dict)

    def tfjob(self, item: Object, at: float) -> None:
        """A TFJob was made or has changed."""
        meta = item["metadata"]
        if unix(meta["creationTimestamp"]) >= math.floor(self.begin):
            self._namespaces.add(meta["namespace"])
            self.jobs.setdefault(meta["name"], (at, frozenset(map(str.lower, item["spec"]["tfReplicaSpecs"]))))

    def pod(self, item: Object, at: float, *, gone: bool = False) -> None:
        """A pod was made, has changed, or is gone."""
        meta = item["metadata"]
        if meta["namespace"] == self.serving:
            self._server(item, at, gone)
        elif meta["namespace"] in self._namespaces and item.get("status", {}).get("phase") == "Running" and not gone:
            job, kind = meta["labels"][_JOB], meta["labels"][_TYPE]
            running = self._running.setdefault(job, set())
            running.add(kind)
            if job in self.jobs and running >= self.jobs[job][1]:
                self.started.setdefault(job, at)
            if kind == "chief":
                self.chiefs.setdefault(meta["uid"], Chief(job, meta["name"], meta["namespace"], at))

    def _server(self, item: Object, at: float, gone: bool) -> None:
        server = self.servers.setdefault(item["metadata"]["uid"], Server(at))
        if server.bound is None and item.get("spec", {}).get("nodeName"):
            server.bound = at
        conditions = item.get("status", {}).get("conditions", ())
        leaves = gone or item["metadata"].get("deletionTimestamp") is not None
        ready = not leaves and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        was = bool(server.up) and server.up[-1][1] is None
        if ready and not was:
            server.up.append((at, None))
        elif was and not ready:
            server.up[-1] = (server.up[-1][0], at)
        if leaves and server.gone is None:
            server.gone = at

    def node(self, item: Object, at: float) -> None:
        """A node has changed. One without a loan has the stage ""."""
        text = (item["metadata"].get("annotations") or {}).get(f"{PREFIX}loan")
        stage = str(json.loads(text)["stage"]) if text else ""
        changes = self.stages.setdefault(item["metadata"]["name"], [])
        if not changes or changes[-1][1] != stage:
            changes.append((at, stage))

    def event(self, item: Object) -> None:
        """An event; it is counted as often as it happened."""
        about = item["involvedObject"]
        stopped = item["reason"] == "Stopped" or (item["reason"] == "Rescaling" and "(recreate)" in item["message"])
        if about.get("kind") == "TFJob" and about.get("namespace") in self._namespaces and stopped:
            told = self.stops.setdefault(about["name"], {})
            told[item["metadata"]["name"]] = max(1, item.get("count") or 1)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. `recall_s`: from each recall until the node was free, `recalls_open` of them as long as was waited for.
    `pending_s`: of each replica of the service, until it had a node. `failed`: requests that failed while a replica was
    up; `unserved`: while none was. `preempted`: stops by job, `untold`: those without an event, `lost_s`: of each stop
    the training that was repeated, at most (None: the job has not gone on)."""

    queue_s: Mapping[str, float]
    requests: int
    failed: int
    unserved: int
    slow: int
    latency_p50_s: float | None
    latency_p99_s: float | None
    recall_s: Sequence[float]
    recalls_open: int
    loaned_s: float
    pending_s: Sequence[float]
    preempted: Mapping[str, int]
    untold: int
    lost_s: Sequence[float | None]
    errors: Sequence[str]
    """The first few kinds of failures while a replica was up."""

    @property
    def queue_mean_s(self) -> float:
        return statistics.mean(self.queue_s.values())


def figures(seen: Seen, requests: Sequence[Request], end: float) -> Figures:
    """What a run came to that ended at `end`."""
    wrong = [each for each in requests if each.error]
    failed = [each for each in wrong if _up(seen.servers.values(), each.at)]
    times = [each.s for each in requests if not each.error]
    closed, still_open = _recalls(seen.stages.values(), end)
    chiefs: dict[str, list[Chief]] = {}
    for chief in seen.chiefs.values():
        chiefs.setdefault(chief.job, []).append(chief)
    preempted = {job: len(found) - 1 for job, found in chiefs.items() if len(found) > 1}
    told = {job: sum(seen.stops.get(job, {}).values()) for job in preempted}
    return Figures(
        queue_s={job: round(seen.started.get(job, end) - at, 1) for job, (at, _) in seen.jobs.items()},
        requests=len(requests),
        failed=len(failed),
        unserved=len(wrong) - len(failed),
        slow=sum(each > SLOW_S for each in times),
        latency_p50_s=percentile(times, 0.5),
        latency_p99_s=percentile(times, 0.99),
        recall_s=[round(each, 1) for each in (*closed, *still_open)],
        recalls_open=len(still_open),
        loaned_s=round(sum(_loaned(changes, end) for changes in seen.stages.values()), 1),
        pending_s=[round(_first(each.bound, each.gone, end) - each.created, 1) for each in seen.servers.values()],
        preempted=preempted,
        untold=sum(max(0, stops - told[job]) for job, stops in preempted.items()),
        lost_s=[lost_s(before, found[k:]) for found in chiefs.values() for k, before in enumerate(found[:-1], 1)],
        errors=sorted({each.error for each in failed})[:5],
    )


def percentile(values: Iterable[float], part: float) -> float | None:
    """The least of the values that so large a part of them does not exceed; None: there are none."""
    ordered = sorted(values)
    return ordered[math.ceil(part * len(ordered)) - 1] if ordered else None


def lost_s(before: Chief, after: Sequence[Chief]) -> float | None:
    """Seconds of training that a chief had reported and those after it repeat, at most: from the last report that the
    checkpoint has in any case. One that was stopped before its first report repeats nothing. None: none of them has
    reported anything, so nobody knows."""
    if not before.lines:
        return 0.0
    lines = next((chief.lines for chief in after if chief.lines), None)
    if lines is None:
        return None
    end, last, _ = before.lines[-1]
    resumed_at = lines[0][2]
    if resumed_at >= last:
        return 0.0
    kept = [at for at, step, _ in before.lines if step <= resumed_at]
    return round(end - (kept[-1] if kept else before.began), 1)


def _up(servers: Iterable[Server], at: float) -> bool:
    return any(
        start + SPREAD_S <= at and (stop is None or at < stop) for server in servers for start, stop in server.up
    )


def _recalls(nodes: Iterable[Sequence[tuple[float, str]]], end: float) -> tuple[list[float], list[float]]:
    """Seconds of recalls that came to an end, and of those that did not."""
    closed: list[float] = []
    still_open: list[float] = []
    for changes in nodes:
        for k, (at, stage) in enumerate(changes):
            if stage == "recalled":
                (closed if k + 1 < len(changes) else still_open).append(_next(changes, k, end) - at)
    return closed, still_open


def _loaned(changes: Sequence[tuple[float, str]], end: float) -> float:
    return sum(_next(changes, k, end) - at for k, (at, stage) in enumerate(changes) if stage == "loaned")


def _next(changes: Sequence[tuple[float, str]], k: int, end: float) -> float:
    return changes[k + 1][0] if k + 1 < len(changes) else max(end, changes[k][0])


def _first(*values: float | None) -> float:
    return next(each for each in values if each is not None)


def goals(
    found: Mapping[str, Sequence[Figures]], jcts: Mapping[str, float], lends: str, others: Sequence[str]
) -> list[tuple[str, str, bool]]:
    """What the operator `lends` should reach, what it did, and whether that is enough. `found`: the runs of each
    operator, `jcts`: its mean JCT in seconds."""
    rows: list[tuple[str, str, bool]] = []
    runs = found[lends]
    for other in others:
        for what, ours, theirs in (
            ("queue", _queue(runs), _queue(found[other])),
            ("JCT", jcts[lends], jcts[other]),
        ):
            ratio = theirs / ours if ours > 0 else math.inf
            rows.append((f"{what} against {other} >= 1.5x", f"{ratio:.2f}x", ratio >= 1.5))
    p99 = percentile((each for run in runs for each in run.recall_s), 0.99)
    rows.append(
        (
            "recall to node free, p99 <= 20 s",
            "no recall" if p99 is None else f"{p99:.1f} s",
            p99 is not None and p99 <= 20,
        )
    )
    for what, number in (
        ("requests failed while a replica was up: 0", sum(run.failed for run in runs)),
        (
            f"replicas without a node for > {PENDING_S:g} s: 0",
            sum(s > PENDING_S for run in runs for s in run.pending_s),
        ),
        ("stops that no event told: 0", sum(run.untold for run in runs)),
    ):
        rows.append((what, str(number), number == 0))
    lost: list[float | None] = [each for run in runs for each in run.lost_s]
    known = [each for each in lost if each is not None]
    text = f"{max(known):.0f} s" if known else "no stop"
    text += f"; {len(lost) - len(known)} jobs did not go on" if len(known) < len(lost) else ""
    rows.append(
        (
            f"training lost by a stop <= {CHECKPOINT_S:g} s",
            text,
            len(known) == len(lost) and max(known, default=0) <= CHECKPOINT_S,
        )
    )
    return rows


def _queue(runs: Sequence[Figures]) -> float:
    return statistics.mean(run.queue_mean_s for run in runs)

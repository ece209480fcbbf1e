"""Jobs, nodes and a query server for tests, from objects as the API server sends them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from aiohttp.test_utils import TestClient, TestServer

from elastic_tfjob.controller.kube.informer import T
from elastic_tfjob.controller.model.cluster import LOAN_ANNOTATION, POOL_LABEL, ForeignPod, KubeNode, NodeLoan
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.settings import Configuration, parse_configuration
from elastic_tfjob.controller.query.gate import Gate, NoGate
from elastic_tfjob.controller.query.server import QueryServer, Source
from elastic_tfjob.scheduling.plan import TeamShare
from elastic_tfjob.speed.history import History
from unit.build import raw_node

PREFIX = "elastic.kubeflow.org/"
CREATED = "2026-01-02T03:00:00Z"


def tfjob(
    name: str = "j",
    namespace: str = "ns",
    *,
    target: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    conditions: Mapping[str, str] | None = None,
    version: int = 7,
    cpu: str = "1",
    **spec: Any,
) -> dict[str, Any]:
    """A TFJob of one chief, one PS and two workers; `annotations` without their prefix, `conditions` type to time."""
    given = {"max-workers": "4", "checkpoint-dir": "/c"} if annotations is None else annotations
    said = {PREFIX + key: text for key, text in given.items()}
    if target is not None:
        said[f"{PREFIX}target"] = json.dumps(target)
    if state is not None:
        said[f"{PREFIX}state"] = json.dumps(state)
    pod = {"containers": [{"name": "tensorflow", "image": "train", "resources": {"requests": {"cpu": cpu}}}]}
    types = {kind: {"replicas": n, "template": {"spec": pod}} for kind, n in (("Chief", 1), ("PS", 1), ("Worker", 2))}
    told = [
        {
            "type": kind,
            "status": "True",
            "reason": f"TFJob{kind}",
            "message": f"TFJob is {kind}.",
            "lastTransitionTime": at,
        }
        for kind, at in (conditions or {}).items()
    ]
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"{namespace}-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": CREATED,
            "annotations": said,
        },
        "spec": {"tfReplicaSpecs": types, **spec},
        "status": {
            "conditions": told,
            **({"startTime": "2026-01-02T03:01:00Z"} if "Running" in (conditions or {}) else {}),
        },
    }


RUNS = {"Created": "2026-01-02T03:00:01Z", "Running": "2026-01-02T03:01:00Z"}
SIZE = {"Chief": 1, "PS": 1, "Worker": 2}
GROWN = {"Chief": 1, "PS": 1, "Worker": 4}


def running(name: str = "j", namespace: str = "ns", starts: str | None = None, **more: Any) -> dict[str, Any]:
    """One that grew from two to four workers, and is at step 500 of 1,000 with 5 steps a second."""
    done = {
        "generation": 1,
        "at": "2026-01-02T03:10:00Z",
        "before": SIZE,
        "after": GROWN,
        "mode": "overlap",
        "downtime_s": 0.2,
        "lost_steps": 0,
        "reason": "idle CPU",
    }
    state = {
        "phase": "Stable",
        "generation": 1,
        "replicas": GROWN,
        "rescales": 1,
        "last_downtime_s": 0.2,
        "history": [done],
        "step": 500,
        "total_steps": 1000,
        "steps_per_s": 5.0,
        "speeds": {"1/4": 5.0},
        "eta": "2026-01-02T03:20:00Z",
        "eta_earliest": "2026-01-02T03:19:00Z",
        "eta_latest": "2026-01-02T03:31:00Z",
        "eta_source": "measured",
        "metrics_at": "2026-01-02T03:18:20Z",
        "starts": starts,
        "since": "2026-01-02T03:10:00Z",
    }
    target = {"generation": 1, "replicas": GROWN, "reason": "idle CPU"}
    return tfjob(name, namespace, target=target, state=state, conditions=RUNS, **more)


def waiting(name: str = "w", namespace: str = "ns", why: object = "no room", **more: Any) -> dict[str, Any]:
    """One that has never run."""
    return tfjob(name, namespace, target={"generation": 0, "replicas": {}, "reason": why}, **more)


def job(raw: Mapping[str, Any]) -> TFJob:
    return TFJob.parse(raw)


def pod(name: str, node: str, *, of: str = "j", cpu: str = "1500m", kind: str = "worker", index: int = 0) -> Pod:
    """A running replica of a job."""
    labels = {
        "training.kubeflow.org/job-name": of,
        "training.kubeflow.org/replica-type": kind,
        "training.kubeflow.org/replica-index": str(index),
    }
    container = {"name": "tensorflow", "resources": {"requests": {"cpu": cpu}}}
    return Pod.parse(
        {
            "metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1", "labels": labels},
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"phase": "Running"},
        }
    )


def node(name: str, cpu: str = "4", *, pool: str = "", loan: NodeLoan | None = None, **spec: Any) -> KubeNode:
    """A node, of a pool, and with a loan as the operator writes it."""
    labels = {POOL_LABEL: pool} if pool else {}
    annotations = {LOAN_ANNOTATION: loan.to_json()} if loan is not None else {}
    return KubeNode.parse(raw_node(name, cpu, labels=labels, annotations=annotations, **spec))


def foreign(name: str, on: str, cpu: str = "250m") -> ForeignPod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return ForeignPod.parse(
        {
            "metadata": {"namespace": "other", "name": name, "uid": name, "resourceVersion": "1"},
            "spec": {"nodeName": on, "containers": [container]},
        }
    )


class Held(Generic[T]):
    """What an informer holds."""

    def __init__(self, *entries: T) -> None:
        self.entries = list(entries)

    def __iter__(self) -> Iterator[T]:
        yield from self.entries

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def changes(self) -> int:
        return hash(tuple((each.uid, each.version) for each in self.entries))

    def of_job(self, key: Key) -> tuple[T, ...]:
        return tuple(each for each in self.entries if each.key == key)

    def one(self, key: Key) -> T | None:
        return next(iter(self.of_job(key)), None)


@dataclass
class World:
    """All that a query server is asked about."""

    jobs: Held[TFJob] = field(default_factory=Held)
    pods: Held[Pod] = field(default_factory=Held)
    nodes: Held[KubeNode] = field(default_factory=Held)
    foreign: Held[ForeignPod] = field(default_factory=Held)
    reports: Mapping[Key, Mapping[str, Report]] | None = None
    configuration: Configuration = field(default_factory=lambda: parse_configuration("profile: kips"))
    priorities: Mapping[str, int] = field(default_factory=dict)
    history: History = field(default_factory=History)
    missing: str = ""
    teams: Mapping[str, TeamShare] = field(default_factory=dict)

    def source(self) -> Source:
        def of_job(key: Key) -> Mapping[str, Report]:
            assert self.reports is not None
            return self.reports.get(key, {})

        return Source(
            jobs=self.jobs,
            pods=self.pods,
            nodes=self.nodes,
            foreign=self.foreign,
            configuration=lambda: self.configuration,
            priorities=lambda: self.priorities,
            reports=lambda: of_job if self.reports is not None else None,
            history=lambda: self.history,
            missing=lambda: self.missing,
            teams=lambda: self.teams,
        )

    def client(self, gate: Gate | None = None) -> "TestClient[Any, Any]":
        """`async with world.client() as client:` talks to a server of its own."""
        return TestClient(TestServer(QueryServer(self.source(), gate or NoGate()).application()))


def world(*raws: Mapping[str, Any], **more: Any) -> World:
    return World(jobs=Held(*map(job, raws)), **more)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}

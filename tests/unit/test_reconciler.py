"""Which jobs are looked up before anything is done to them, against an API server that answers from a dict."""

import asyncio
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_tfjob.controller.job.decision import Create, Decision, DeletePod, Observed, ReconcileSettings
from elastic_tfjob.controller.job.pods import replica_labels
from elastic_tfjob.controller.kube import reconciler as module
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, NotFound, Unavailable
from elastic_tfjob.controller.kube.informer import Caches, jobs_path
from elastic_tfjob.controller.kube.queue import KeyQueue
from elastic_tfjob.controller.kube.reconciler import Reconciler
from elastic_tfjob.controller.model.job import TFJob

KEY = ("ns", "j")
JOB, PODS = f"{jobs_path('ns')}/j", "/api/v1/namespaces/ns/pods"
MAKE = Decision(actions=(Create("Pod", "j-worker-0", dict),))


def a_job(version: int) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": "j", "uid": "u", "resourceVersion": str(version)},
        "spec": {"tfReplicaSpecs": {}},
    }


def a_pod(index: int, version: int) -> dict[str, Any]:
    metadata = {
        "namespace": "ns",
        "name": f"j-worker-{index}",
        "uid": f"u{index}",
        "resourceVersion": str(version),
        "labels": replica_labels("j", "Worker", index),
    }
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}


class Bench:
    """A reconciler whose caches hold a job of version 1 and its pod 0. What is decided is told by version, what is
    carried out is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, decisions: dict[int, Decision]) -> None:
        self.asked: list[str] = []
        self.selectors: list[str] = []
        self.done: list[tuple[int, Decision]] = []
        self.seen: list[tuple[int, set[str]]] = []
        self.errors: list[ApiError] = []
        self.there: dict[str, dict[str, Any] | ApiError] = {JOB: a_job(1)}
        self.caches = Caches.of(
            self,  # type: ignore[arg-type]
            namespace="",
            gang_scheduler="",
            look_at=lambda *_: None,
            job_touched=lambda _: None,
            pods_touched=lambda _: None,
        )
        self.caches.jobs.seen(a_job(1))
        self.caches.pods.seen(a_pod(0, 1))

        def decide(observed: Observed, _: ReconcileSettings) -> Decision:
            self.seen.append((observed.job.version, {pod.name for pod in observed.pods}))
            return decisions[observed.job.version]

        monkeypatch.setattr(module, "reconcile", decide)

        def observe(job: TFJob, now: datetime) -> Observed:
            return Observed(job, now, pods=self.caches.pods.of_job(job.key))

        self.reconciler = Reconciler(
            self,  # type: ignore[arg-type]
            self.caches,
            queue=KeyQueue(1),
            executor=self,  # type: ignore[arg-type]
            reports=SimpleNamespace(follow=lambda *_: None),  # type: ignore[arg-type]
            recorder=SimpleNamespace(),  # type: ignore[arg-type]
            observe=observe,
            settings=ReconcileSettings,
            holds=lambda: True,
        )

    async def get(self, path: str, *, labelSelector: str = "", **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.asked.append(path)
        self.selectors += [labelSelector] if labelSelector else []
        answer = self.there[path]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def carry_out(self, job: TFJob, decision: Decision) -> None:
        self.done.append((job.version, decision))
        if self.errors:
            raise self.errors.pop(0)

    async def handle(self) -> None:
        await self.reconciler._handle(KEY)

    def changed(self, *pods: dict[str, Any]) -> None:
        """Another replica has changed the job, and these are its pods; no watch tells."""
        self.there |= {JOB: a_job(2), PODS: {"items": list(pods), "metadata": {"resourceVersion": "9"}}}


async def test_a_new_leader_decides_from_what_it_has_read_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from what a silent watch has left: neither the job nor its pods."""
    delete = Decision(actions=(DeletePod("j-worker-1", "u1"),))
    bench = Bench(monkeypatch, {1: MAKE, 2: delete})
    bench.changed(a_pod(1, 8))
    bench.reconciler.doubt_all(9)
    await bench.handle()
    assert bench.done == [(2, delete)]
    assert bench.seen[-1] == (2, {"j-worker-1"})
    assert bench.asked == [JOB, PODS]
    assert bench.selectors == ["training.kubeflow.org/operator-name=tfjob-controller,training.kubeflow.org/job-name=j"]
    await bench.handle()
    assert bench.asked == [JOB, PODS], "it is sure now"
    assert len(bench.done) == 2


async def test_a_job_that_nobody_changed_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its pods are not; where no other replica has led it is not, either."""
    bench = Bench(monkeypatch, {1: MAKE})
    await bench.handle()
    assert bench.asked == []
    bench.reconciler.doubt_all(9)
    await bench.handle()
    await bench.handle()
    assert bench.asked == [JOB]
    assert bench.done == [(1, MAKE)] * 3


@pytest.mark.parametrize(("version", "asked"), [(9, [JOB, PODS]), (10, [])])
async def test_a_job_that_comes_late_may_be_history(
    monkeypatch: pytest.MonkeyPatch, version: int, asked: list[str]
) -> None:
    """A watch that was silent tells first how a job began that others have led to its end since. What is made after
    the take-over was led by nobody else."""
    bench = Bench(monkeypatch, {version: MAKE})
    bench.caches.jobs._remove("u", 3)
    bench.reconciler.doubt_all(9)
    bench.caches.jobs.seen(a_job(version))
    bench.there |= {JOB: a_job(version), PODS: {"items": [a_pod(1, 8)], "metadata": {"resourceVersion": "9"}}}
    await bench.handle()
    assert bench.asked == asked
    await bench.handle()
    assert bench.asked == asked
    assert len(bench.done) == 2


async def test_a_job_with_nothing_to_do_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes 10,000 of them over has little to ask."""
    bench = Bench(monkeypatch, {1: Decision()})
    bench.reconciler.doubt_all(9)
    await bench.handle()
    assert bench.asked == []
    assert bench.reconciler._doubted == {KEY: 1}


async def test_nothing_is_done_to_a_job_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often its turn comes, until the watch says so."""
    bench = Bench(monkeypatch, {1: MAKE})
    bench.there[JOB] = NotFound("GET", 404, "NotFound", "")
    bench.reconciler.doubt_all(9)
    await bench.handle()
    await bench.handle()
    assert bench.done == []
    bench.caches.jobs._remove("u", 3)
    await bench.handle()
    assert bench.reconciler._doubted == {}


async def test_pods_that_could_not_be_listed_stay_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the job is known by then."""
    bench = Bench(monkeypatch, {1: MAKE, 2: MAKE})
    bench.changed(a_pod(1, 8))
    answer, bench.there[PODS] = bench.there[PODS], Unavailable("GET", 503, "", "")
    bench.reconciler.doubt_all(9)
    await bench.handle()
    assert bench.done == []
    bench.there[PODS] = answer
    await bench.handle()
    assert bench.done == [(2, MAKE)]
    assert bench.seen[-1] == (2, {"j-worker-1"})


@pytest.mark.parametrize("error", [Conflict("PUT", 409, "Conflict", ""), NotFound("PUT", 404, "NotFound", "")])
async def test_after_a_write_that_shows_it_the_job_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, error: ApiError
) -> None:
    """Whether the watch has told the news or not."""
    bench = Bench(monkeypatch, {1: Decision(status={}), 2: MAKE})
    bench.changed(a_pod(1, 8))
    bench.errors.append(error)
    await bench.handle()
    assert bench.asked == []
    await bench.handle()
    assert bench.done == [(1, Decision(status={})), (2, MAKE)]
    assert bench.asked == [JOB, PODS]

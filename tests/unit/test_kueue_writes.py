"""What the scheduling loop reads of Kueue, writes there, and tells of it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Invalid, NotFound
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.workloads import growth_workload
from elastic_tfjob.controller.model.annotations import GROWTH_ANNOTATION
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.kueue import Growth, Workload
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.settings import parse_configuration
from elastic_tfjob.controller.planning.growth import Create, QueuedJob
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.controller.planning.request import job_request
from elastic_tfjob.controller.schedule.growth import QuotaGrowth
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Node, ReplicaGroup, Snapshot

from .build import UID, job, pod

GROWS = parse_configuration("profile: drf\nkueue: {growth: workloads}")
OFF = parse_configuration("profile: drf")
ADMITTED = [{"type": "Admitted", "status": "True"}, {"type": "QuotaReserved", "status": "True"}]


def assigned(name: str, count: int) -> dict[str, Any]:
    return {"name": name, "count": count, "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": str(count)}}


def base() -> dict[str, Any]:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "j", "uid": UID, "controller": True}
    metadata = {"namespace": "ns", "name": "tfjob-j", "uid": "base", "resourceVersion": "5", "ownerReferences": [owner]}
    counts = {"ps": 1, "worker": 2}
    return {
        "metadata": metadata,
        "spec": {"queueName": "q", "podSets": [{"name": name, "count": n} for name, n in counts.items()]},
        "status": {
            "conditions": ADMITTED,
            "admission": {"clusterQueue": "cq", "podSetAssignments": [assigned(name, n) for name, n in counts.items()]},
        },
    }


def cluster_queue() -> dict[str, Any]:
    flavor = {"name": "f", "resources": [{"name": "cpu", "nominalQuota": "4"}]}
    return {
        "metadata": {"name": "cq", "uid": "cq", "resourceVersion": "9"},
        "spec": {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}]},
        "status": {
            "conditions": [{"type": "Active", "status": "True"}],
            "flavorsReservation": [{"name": "f", "resources": [{"name": "cpu", "total": "3"}]}],
        },
    }


class Server:
    """An API server with Kueue's objects. `refuses`: the error of each write; `unreadable`: of each read."""

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {
            "workloads": [base()],
            "localqueues": [
                {
                    "metadata": {"namespace": "ns", "name": "q", "uid": "lq", "resourceVersion": "1"},
                    "spec": {"clusterQueue": "cq"},
                }
            ],
            "clusterqueues": [cluster_queue()],
            "cohorts": [],
        }
        self.writes: list[tuple[str, str]] = []
        self.refuses: ApiError | None = None
        self.unreadable: ApiError | None = None

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        if self.unreadable is not None:
            raise self.unreadable
        return {"items": self.lists[path.rpartition("/")[2]], "metadata": {"resourceVersion": "50"}}

    async def watch(self, path: str, **_: Any) -> AsyncIterator[dict[str, Any]]:
        await asyncio.Event().wait()
        yield {}

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.writes.append(("create", body["metadata"]["name"]))
        if self.refuses is not None:
            raise self.refuses
        metadata = {**body["metadata"], "uid": body["metadata"]["name"], "resourceVersion": "60"}
        assignment = {"clusterQueue": "cq", "podSetAssignments": [assigned("worker", 1)]}
        return {**body, "metadata": metadata, "status": {"conditions": ADMITTED, "admission": assignment}}

    async def delete(self, path: str, **_: Any) -> dict[str, Any]:
        self.writes.append(("delete", path.rpartition("/")[2]))
        return {}

    async def patch(self, path: str, body: dict[str, Any], content_type: str = "") -> dict[str, Any]:
        if "/tfjobs/" in path:
            self.writes.append(("tell", str(body["metadata"]["annotations"][f"{PREFIX}growth"])))
            raise NotFound("PATCH", 404, "NotFound", "not kept here")
        self.writes.append(("patch", str(sorted(body["status"]))))
        raise NotFound("PATCH", 404, "NotFound", "not kept here")


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, _: TFJob, event: Event) -> None:
        self.events.append(event)

    def of(self, reason: str) -> list[str]:
        return [each.message for each in self.events if each.reason == reason]


class Loop:
    """The part of the scheduling loop that calls it, with one job of 1 PS and `workers` workers that runs."""

    def __init__(self, server: Server, group: asyncio.TaskGroup) -> None:
        self.server, self.group, self.recorder = server, group, Recorder()
        api = cast(ApiClient, server)
        self.jobs = Informer(api, "/jobs", TFJob.parse, lambda _: None)
        self.pods = Informer(api, "/pods", Pod.parse, lambda _: None)
        self.touched: list[Key] = []
        self.growth = QuotaGrowth(
            api,
            self.jobs,
            self.pods,
            cast(EventRecorder, self.recorder),
            namespace="",
            touched=self.touched.append,
            wake=lambda: None,
        )
        annotations = {f"{PREFIX}max-workers": "6", f"{PREFIX}min-workers": "1", f"{PREFIX}checkpoint-dir": "/c"}
        self.job = replace(job({"PS": 1, "Worker": 2}, annotations=annotations), queue="q")
        self.jobs._store(self.job)

    async def round(self, configuration: Any = GROWS, *, workers: int = 2) -> None:
        for k in range(workers):
            self.pods._store(replace(pod("Worker", k), uid=f"w{k}"))
        for known in [each for each in self.pods if each.uid.startswith("w") and int(each.uid[1:]) >= workers]:
            self.pods._remove(known.uid, 10**6)
        self.pods._store(replace(pod("PS", 0), uid="ps"))
        await self.growth.follow(configuration, self.group)
        request = job_request(self.job, admitted=self.growth.admitted(self.job))
        one = Resources(1000, 0, 0, 1)
        groups = (ReplicaGroup("PS", one, 1, 1, 1), ReplicaGroup("Worker", one, 2, *request.bounds("Worker")))
        decided = Job(JobSpec("ns/j", 0.0, groups), {"PS": ("n",), "Worker": ("n",) * workers}, "running")
        node = Resources(9000, 2**40, 0, 100)
        view = JobView(self.job, decided, request, followed=True)
        await self.growth.step(
            {self.job.key: view},
            Snapshot(100.0, {"n": Node("n", node, node)}, {"ns/j": decided}),
            build("drf", parse_profile("drf", {})),
            configuration,
            is_written=lambda _: False,
            group=self.group,
        )
        await asyncio.sleep(0.05)


@pytest.fixture
async def loop() -> AsyncIterator[Loop]:
    """Ended by cancelling its watches."""
    ready: asyncio.Future[Loop] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with asyncio.TaskGroup() as group:
            ready.set_result(Loop(Server(), group))
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    yield await ready
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_growth_is_created_used_told_and_returned(loop: Loop) -> None:
    await loop.round()
    assert ("create", "j-growth-0") in loop.server.writes
    assert loop.growth.admitted(loop.job) == {"PS": 1, "Worker": 3}
    assert "no free quota" in loop.recorder.of("GrowthWaits")[0]
    await loop.round(workers=3)
    assert ("patch", "['conditions']") in loop.server.writes, "its replica runs"
    assert any(what == "tell" and '"Worker":2' in text for what, text in loop.server.writes)
    loop.server.writes.clear()
    await loop.round(OFF, workers=3)
    assert ("delete", "j-growth-0") not in loop.server.writes, "the job has not shrunk"
    assert loop.growth.admitted(loop.job) == {"PS": 1, "Worker": 2}
    assert loop.job.key in loop.touched
    await loop.round(OFF, workers=2)
    assert ("delete", "j-growth-0") in loop.server.writes


async def test_a_refused_workload_is_told_and_not_tried_at_once(loop: Loop) -> None:
    loop.server.refuses = Invalid("POST workloads", 403, "Forbidden", "cannot create workloads")
    for _ in range(3):
        await loop.round()
    assert [what for what, _ in loop.server.writes if what == "create"] == ["create"]
    assert loop.recorder.of("GrowthRefused") == [
        "The API server refuses a Workload for growth: cannot create workloads. Tries again in 60 s"
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotFound("GET", 404, "NotFound", "no"), "Kueue v0.19 or newer is not installed"),
        (Invalid("GET", 403, "Forbidden", "workloads is forbidden"), "workloads is forbidden"),
    ],
)
async def test_without_kueue_or_the_rights_jobs_are_told(loop: Loop, error: ApiError, words: str) -> None:
    loop.server.unreadable = error
    await loop.round()
    assert words in loop.recorder.of("GrowthRefused")[0]
    assert (loop.growth.admitted(loop.job), loop.server.writes) == ({}, [])
    loop.server.unreadable = None
    await loop.round()
    assert loop.server.writes == [], "it looks again in a minute"


async def test_without_growth_nothing_is_read(loop: Loop) -> None:
    loop.server.unreadable = Invalid("GET", 403, "Forbidden", "must not be read")
    await loop.growth.follow(OFF, loop.group)
    assert not loop.growth.concerned
    assert loop.growth.admitted(loop.job) == {}


async def test_growth_from_before_a_restart_is_returned_where_the_configuration_has_none_now(loop: Loop) -> None:
    create = Create(QueuedJob(loop.job.key, loop.job.uid, "q", "grows"), Workload.parse(base()), "Worker", "j-growth-0")
    made = growth_workload(create, loop.job)
    loop.server.lists["workloads"].append(await loop.server.post("", made))
    told = {**loop.job.annotations, GROWTH_ANNOTATION: Growth({"PS": 1, "Worker": 3}).to_json(loop.job.uid)}
    loop.job = replace(loop.job, annotations=told)
    loop.jobs._store(replace(loop.job, version=loop.job.version + 1))
    loop.server.writes.clear()
    await loop.round(OFF, workers=3)
    assert loop.growth.admitted(loop.job) == {"PS": 1, "Worker": 2}
    assert loop.server.writes == [("tell", "None")]
    await loop.round(OFF, workers=2)
    assert ("delete", "j-growth-0") in loop.server.writes

"""Jobs that a real Kueue admits: held until then, never beyond their quota, evicted and resumed, on nodes on loan too.

`make test-kueue`: Kueue's first build takes longer than `make test` should.
"""

import asyncio
import contextlib
import json
import re
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance.manifest import counts
from elastic_tfjob.controller.model.quantities import requests_of
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from harness import kueue, kwok
from harness.api import NODES, Api, Object, events, pods, tfjobs
from harness.controlplane import ControlPlane
from harness.operators import install, kubectl, service_account

from .fake_nodes import HOME, NAME, PREFIX, configure, job, target_of, target_when
from .ledger import conditions, final
from .running import running
from .test_loans import ROOT, component, lend, loan_of, node_is
from .workload import JOB

ELASTIC = {"placement": "auto", "min-workers": "1", "max-workers": "6", "checkpoint-dir": "/checkpoints"}
SAVING = "example.com/saving"
"""A finalizer: a pod with it ends only when the test says so, as one that saves."""

_WITHIN_S = 120.0

pytestmark = [pytest.mark.kueue, pytest.mark.timeout(600)]


@dataclass
class Held:
    """What the pods of jobs request in each moment until they are gone: `now` by job, and the `most` of all."""

    most: Resources = NOTHING
    pods: dict[str, Object] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def of(self, name: str) -> list[Object]:
        return [pod for pod in self.pods.values() if pod["metadata"]["labels"][JOB] == name]

    async def follow(self, api: Api) -> None:
        async for kind, pod in api.follow(pods("default")):
            async with self.changed:
                if kind == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed"):
                    self.pods.pop(pod["metadata"]["uid"], None)
                else:
                    self.pods[pod["metadata"]["uid"]] = pod
                now = NOTHING
                for each in self.pods.values():
                    now = now.plus(requests_of(each["spec"]))
                self.most = Resources(*map(max, self.most[:2], now[:2]))
                self.changed.notify_all()

    async def until(self, name: str, count: int, phase: str = "Running", within_s: float = _WITHIN_S) -> list[Object]:
        """The job's pods once it has so many, all in this phase."""

        def so_many() -> bool:
            found = self.of(name)
            return len(found) == count and all(pod["status"].get("phase") == phase for pod in found)

        try:
            async with asyncio.timeout(within_s), self.changed:
                await self.changed.wait_for(so_many)
        except TimeoutError:
            found = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in self.of(name)}
            raise AssertionError(f"{name} has {found}, not {count} that are {phase}") from None
        return self.of(name)

    async def stopping(self, name: str, count: int) -> None:
        """Wait until so many pods of the job are being deleted."""
        async with asyncio.timeout(_WITHIN_S), self.changed:
            await self.changed.wait_for(
                lambda: sum("deletionTimestamp" in pod["metadata"] for pod in self.of(name)) == count
            )


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with Kueue for all of these tests: both take long to start."""
    folder = tmp_path_factory.mktemp("kueue")
    with ControlPlane(folder / "plane", scheduler=True, controller_manager=True) as started:
        install("ours", started.kubeconfig)
        service_account("ours", started.kubeconfig)
        with kueue.running(started, folder / "kueue"):
            yield started


@contextlib.asynccontextmanager
async def cluster(plane: ControlPlane, folder: Path, nodes: int, *queues: list[Object]) -> AsyncIterator[Api]:
    """A client of that control plane with nodes of four cores and these queues; no job is left after it."""
    for each in queues:
        await apply(plane, *each)
    async with Api(plane.kubeconfig) as api, kwok.nodes(api, plane.kubeconfig, folder, nodes, cpu=4):
        try:
            yield api
        finally:
            await api.delete(tfjobs("default"))
            async with asyncio.timeout(_WITHIN_S):
                while (await api.items(pods("default")))[0]:
                    await asyncio.sleep(0.2)
            await api.delete(NODES)


@contextlib.asynccontextmanager
async def at_work(plane: ControlPlane, folder: Path, api: Api) -> AsyncIterator[Held]:
    """Our operator, with the sidecars that it injects, and what all pods hold while it works."""
    held = Held()
    follower = asyncio.create_task(held.follow(api))
    identity = await asyncio.to_thread(service_account, "ours", plane.kubeconfig)
    arguments = [f"--config-map={HOME}/{NAME}", "--image=operator"]
    try:
        async with running("ours", plane.kubeconfig, folder, arguments=arguments, identity=identity):
            yield held
            assert not follower.done(), follower.result()
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)


async def apply(plane: ControlPlane, *items: Object) -> None:
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})
    await asyncio.to_thread(kubectl, plane.kubeconfig, "apply", "--server-side", "-f", "-", stdin=body)


def queued(name: str, queue: str, *, said: dict[str, str] | None = None, **replicas: int) -> Object:
    """An elastic job for Kueue; each replica asks for a core and 512 MiB."""
    made = job(name, cpu="1", annotations={**ELASTIC, **(said or {})}, **replicas)
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    for replica in made["spec"]["tfReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["resources"]["requests"]["memory"] = "512Mi"
    return made


def suspended(found: Object) -> bool:
    return bool(found["spec"].get("runPolicy", {}).get("suspend"))


async def job_is(
    api: Api, name: str, what: Callable[[Object], Any], within_s: float = _WITHIN_S, since: str = "0"
) -> Object:
    """The job once `what` holds for it, or has held since a version of all jobs."""
    seen: Object = {}
    try:
        async with asyncio.timeout(within_s):
            async for _, seen in api.watch(tfjobs("default"), since, fieldSelector=f"metadata.name={name}"):
                if what(seen):
                    return seen
    except TimeoutError:
        raise AssertionError(f"{name}: {seen}") from None
    raise AssertionError("the watch never ends")


async def event_is(api: Api, name: str, reason: str) -> str:
    """The message of an event about a job."""
    async with asyncio.timeout(_WITHIN_S):
        async for _, event in api.watch(events("default"), fieldSelector=f"involvedObject.name={name}"):
            if event["reason"] == reason:
                return str(event["message"])
    raise AssertionError("the watch never ends")


async def stays_without_pods(api: Api, held: Held, name: str, for_s: float = 4.0) -> None:
    """The job is suspended, and has no pod for so long."""
    for _ in range(round(for_s * 4)):
        assert suspended(await api.get(f"{tfjobs('default')}/{name}"))
        assert held.of(name) == []
        await asyncio.sleep(0.25)


async def test_the_examples_of_the_docs_are_admitted(plane: ControlPlane, tmp_path: Path) -> None:
    shown = re.findall(r"^    ```yaml\n(.*?)^    ```", (ROOT / "docs/kueue.md").read_text(), re.DOTALL | re.MULTILINE)
    queues, (mnist,) = (list(yaml.safe_load_all(textwrap.dedent(text))) for text in shown)
    async with cluster(plane, tmp_path, 1, queues) as api:
        _, before = await api.items(tfjobs("default"))
        await apply(plane, mnist)
        await job_is(api, "mnist", suspended, since=before)  # which it may be no more by now
        await job_is(api, "mnist", lambda found: not suspended(found))
        uid = (await api.get(f"{tfjobs('default')}/mnist"))["metadata"]["uid"]
        found = (await api.items(f"{kueue.API}/namespaces/default/workloads"))[0]  # of others, too, that just went
        (workload,) = [
            each for each in found if uid in [owner["uid"] for owner in each["metadata"].get("ownerReferences", ())]
        ]
        admitted = {each["name"]: each["count"] for each in workload["status"]["admission"]["podSetAssignments"]}
        assert admitted == {"ps": 1, "worker": 8}


async def test_a_job_starts_when_it_is_admitted_and_never_has_more(plane: ControlPlane, tmp_path: Path) -> None:
    """A profile that gives every job as much as there is room for, and a person who asks for more."""
    quota = kueue.queue("team-a", "default", cpu="3", memory="1536Mi")
    async with cluster(plane, tmp_path, 4, quota) as api:
        await configure(api, profile="drf")
        async with at_work(plane, tmp_path, api) as held:
            await api.create(tfjobs("default"), queued("first", "team-a", PS=1, Worker=2))
            await held.until("first", 3)
            first = await api.get(f"{tfjobs('default')}/first")
            assert target_of(first)["replicas"] == {"PS": 1, "Worker": 2}
            assert len([pod for pod in held.of("first") if pod["spec"].get("initContainers")]) == 3
            await api.create(tfjobs("default"), queued("second", "team-a", PS=1, Worker=1))
            await api.merge(
                f"{tfjobs('default')}/first", {"metadata": {"annotations": {f"{PREFIX}target-workers": "6"}}}
            )
            assert "Kueue admitted only 2 workers (queue team-a)" in await event_is(api, "first", "KueueQuota")
            await stays_without_pods(api, held, "second")
            await held.until("first", 3)
            # What is not admitted by Kueue has no such bound: the profile gives it the rest of the cluster.
            assert held.most == Resources(3000, 1536 * 2**20)
            free = queued("free", "team-a", PS=1, Worker=2)
            del free["metadata"]["labels"]
            await api.create(tfjobs("default"), free)
            await target_when(api, "free", lambda target: target["replicas"].get("Worker") == 6, _WITHIN_S)
            await api.delete(f"{tfjobs('default')}/first")
            await held.until("second", 2)
            assert not suspended(await api.get(f"{tfjobs('default')}/second"))


async def test_an_evicted_job_saves_before_its_room_is_given_away_and_resumes(
    plane: ControlPlane, tmp_path: Path
) -> None:
    quota = kueue.queue("team-b", "default", cpu="3", memory="2Gi")
    urgent = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
    async with cluster(plane, tmp_path, 2, [*quota, urgent]) as api:
        await configure(api, profile="fifo-backfill")
        async with at_work(plane, tmp_path, api) as held:
            await api.create(tfjobs("default"), queued("low", "team-b", PS=1, Worker=2))
            for pod in await held.until("low", 3):
                await api.merge(f"{pods('default')}/{pod['metadata']['name']}", {"metadata": {"finalizers": [SAVING]}})
            active = {"PS": {"active": 1}, "Worker": {"active": 2}}
            await job_is(api, "low", lambda found: counts(found.get("status", {})) == active)
            high = queued("high", "team-b", Worker=2)
            high["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "urgent"
            await api.create(tfjobs("default"), high)
            evicted = await job_is(api, "low", lambda found: conditions(found).get("Suspended") == "True")
            assert suspended(evicted)
            assert counts(evicted["status"]) == active
            await held.stopping("low", 3)
            await stays_without_pods(api, held, "high")
            assert len(held.of("low")) == 3
            for pod in held.of("low"):
                await api.merge(f"{pods('default')}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}})
            await held.until("high", 2)
            assert held.of("low") == []
            assert held.most == Resources(3000, 1536 * 2**20)
            await api.delete(f"{tfjobs('default')}/high")
            await held.until("low", 3)
            resumed = await job_is(api, "low", lambda found: conditions(found).get("Running") == "True")
            assert conditions(resumed)["Suspended"] == "False"
            assert final(resumed) is None


async def test_replicas_that_are_edited_wait_for_quota(plane: ControlPlane, tmp_path: Path) -> None:
    """Kueue takes back an admitted job whose replicas are edited; it is never larger than its quota meanwhile."""
    async with cluster(plane, tmp_path, 2, kueue.queue("team-c", "default", cpu="3", memory="4Gi")) as api:
        await configure(api, profile="drf")
        async with at_work(plane, tmp_path, api) as held:
            await api.create(tfjobs("default"), queued("edited", "team-c", PS=1, Worker=2))
            await held.until("edited", 3)
            where = f"{tfjobs('default')}/edited"
            await asyncio.to_thread(plane.kubectl, "scale", "tfjob/edited", "--replicas=4")
            await job_is(api, "edited", lambda found: conditions(found).get("Suspended") == "True")
            await held.until("edited", 0)
            await stays_without_pods(api, held, "edited")
            await api.merge(where, {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}}})
            await held.until("edited", 2)
            assert held.most.cpu_millicores == 3000


async def test_a_node_on_loan_respects_the_quota_and_the_flavor(plane: ControlPlane, tmp_path: Path) -> None:
    """On a node that is lent an admitted job has what was admitted, and what is not admitted has nothing. A queue
    whose flavor names nodes keeps its jobs there."""
    everywhere = kueue.queue("team-d", "default", cpu="6", memory="8Gi")
    ours_only = kueue.queue("ours-only", "default", node_labels={"example.com/ours": "yes"}, cpu="4", memory="8Gi")
    async with cluster(plane, tmp_path, 2, everywhere, ours_only) as api:
        await apply(plane, *yaml.safe_load_all(component("role.yaml", "policy.yaml")))
        await api.merge(f"{NODES}/kwok-000", {"metadata": {"labels": {"example.com/ours": "yes"}}})
        await api.merge(f"{NODES}/kwok-001", {"metadata": {"labels": {f"{PREFIX}pool": "inference"}}})
        await lend(api)
        loanable = {"loanable": "true"}
        async with at_work(plane, tmp_path, api) as held:
            await api.create(tfjobs("default"), queued("own", "team-d", said={"max-workers": "4"}, Worker=4))
            await held.until("own", 4)
            await api.create(tfjobs("default"), queued("guest", "team-d", said=loanable, Worker=2))
            await node_is(api, "kwok-001", ("loaned", True), within_s=_WITHIN_S)
            assert {pod["spec"]["nodeName"] for pod in await held.until("guest", 2)} == {"kwok-001"}
            await api.merge(
                f"{tfjobs('default')}/guest", {"metadata": {"annotations": {f"{PREFIX}target-workers": "4"}}}
            )
            await event_is(api, "guest", "KueueQuota")
            await api.create(tfjobs("default"), queued("later", "team-d", said=loanable, Worker=1))
            await api.create(tfjobs("default"), queued("stays", "ours-only", said=loanable, Worker=1))
            await stays_without_pods(api, held, "later")
            stays = await job_is(api, "stays", lambda found: target_of(found) and not suspended(found))
            assert target_of(stays)["replicas"] == {}, "its flavor has no node on loan"
            assert loan_of(await api.get(f"{NODES}/kwok-001")) == ("loaned", True)
            assert len(held.of("guest")) == 2
            await api.delete(f"{tfjobs('default')}/own")
            assert {pod["spec"]["nodeName"] for pod in await held.until("stays", 1)} == {"kwok-000"}
            await held.until("later", 1)

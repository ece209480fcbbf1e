"""What each action of a decision does to a job and its pods, and in which order: one table, for the executor with a
real API server and for the cluster that unit tests pretend with (unit.pretend)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import orjson
import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.tfjob import GROUP, KIND, VERSION
from elastic_tfjob.controller.job.decision import (
    Action,
    Create,
    Decision,
    DeletePod,
    Observed,
    ReconcileSettings,
    ResizePod,
    SaveState,
    SendCommand,
    TryPods,
)
from elastic_tfjob.controller.job.pods import render_pod
from elastic_tfjob.controller.job.reconcile import reconcile
from elastic_tfjob.controller.kube.client import ApiClient, load_configuration
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.executor import Executor
from elastic_tfjob.controller.kube.informer import Caches, Informer, jobs_path
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.command import STOP_COMMAND
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.owned_objects import DisruptionBudget, Service
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.target import Target
from harness.api import Api, pods, tfjobs
from unit.build import NOW
from unit.pretend import ELASTIC, Cluster

PREPARE = '{"action":"prepare","generation":1}'
NODE = "node-7"
TYPES = {"Chief": 1, "PS": 1, "Worker": 1}
PLACED = Target(0, TYPES, {"Worker": (NODE,)}, {}, "placed", TYPES).to_json()
STATUS: dict[str, Any] = {"conditions": [], "replicaStatuses": {"Worker": {"active": 1}}}

Seen = dict[str, Any]
"""What is there, by words: `worker-0 phase`, `annotation state`, `status`."""


def of_pod(pod: Pod) -> Seen:
    role = f"{pod.replica_type}-{pod.index}"
    assert pod.name == f"j-{role}"
    fields = ("phase", "terminating", "grace_s", "exit_code", "restarts", "troubles", "cpu", "command", "pinned")
    return {f"{role} {field}": getattr(pod, field) for field in fields}


def of_job(annotations: Mapping[str, str], status: Seen) -> Seen:
    own = {f"annotation {name.removeprefix(PREFIX)}": text for name, text in annotations.items() if name not in ELASTIC}
    return {**own, "status": status}


class Side(Protocol):
    """A job with a chief, a PS and a worker, each bound to a node, before the executor or where it is pretended."""

    async def job(self) -> TFJob: ...
    async def pods(self) -> dict[str, Pod]:
        """By role, such as worker-0."""
        ...

    async def seen(self) -> Seen: ...
    async def carry_out(self, decision: Decision, killed_after: int | None = None) -> None:
        """All of it, or so many of its writes."""
        ...


class Pretended:
    def __init__(self) -> None:
        self.cluster = Cluster(types=TYPES)
        self.cluster.annotations[TARGET_ANNOTATION] = PLACED

    async def job(self) -> TFJob:
        return self.cluster.job()

    async def pods(self) -> dict[str, Pod]:
        return {name.removeprefix("j-"): pod for name, pod in self.cluster.pods.items()}

    async def seen(self) -> Seen:
        found = of_job(self.cluster.annotations, self.cluster.status)
        for pod in self.cluster.pods.values():
            found |= of_pod(pod)
        return found

    async def carry_out(self, decision: Decision, killed_after: int | None = None) -> None:
        self.cluster.carry_out(decision, killed_after=killed_after)


class Killed(Exception):
    """The operator, before a write."""


class Mortal:
    """The operator's client; it dies after so many writes."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.lives: int | None = None

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self._client, name)
        if name not in ("post", "put", "patch", "delete"):
            return ask

        async def write(*arguments: Any, **options: Any) -> Any:
            if self.lives == 0:
                raise Killed
            if self.lives is not None:
                self.lives -= 1
            return await ask(*arguments, **options)

        return write


class Silent:
    """A recorder that nobody reads: events are another test's matter."""

    def record(self, *_: object) -> None: ...


class Real:
    """The executor, with the caches of an operator that sees nothing but its own writes."""

    def __init__(self, api: Api, client: ApiClient, namespace: str) -> None:
        self._api, self._namespace, self._path = api, namespace, f"{jobs_path(namespace)}/j"
        self._client = Mortal(client)
        self._jobs = Informer(client, "", TFJob.parse, lambda _: None)
        self._pods = Informer(client, "", Pod.parse, lambda _: None)
        caches = Caches(
            self._jobs,
            self._pods,
            Informer(client, "", Service.parse, lambda _: None),
            budgets=Informer(client, "", DisruptionBudget.parse, lambda _: None),
        )
        self._executor = Executor(cast("ApiClient", self._client), caches, cast("EventRecorder", Silent()))

    async def job(self) -> TFJob:
        return TFJob.parse(await self._api.get(self._path))

    async def pods(self) -> dict[str, Pod]:
        found = map(Pod.parse, (await self._api.items(pods(self._namespace)))[0])
        return {pod.name.removeprefix("j-"): pod for pod in found}

    async def seen(self) -> Seen:
        raw = await self._api.get(self._path)
        found = of_job(raw["metadata"].get("annotations", {}), raw.get("status", {}))
        for pod in (await self.pods()).values():
            found |= of_pod(pod)
        return found

    async def carry_out(self, decision: Decision, killed_after: int | None = None) -> None:
        self._client.lives = killed_after
        mine = asyncio.current_task()
        try:
            await self._executor.carry_out(await self.job(), decision)
        except Killed:
            others = [task for task in asyncio.all_tasks() if task is not mine]
            await asyncio.gather(*others, return_exceptions=True)
        finally:
            self._client.lives = None

    def admission(self, uid: str) -> Mapping[int, str]:
        return self._executor.admission(uid)

    async def bind(self) -> None:
        """The pods to a node: only then do they end in their own time."""
        for pod in (await self.pods()).values():
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name}, "target": target}
            await self._api.create(f"{pods(self._namespace)}/{pod.name}/binding", binding)


@pytest.fixture(params=["real", "pretended"])
async def side(request: pytest.FixtureRequest, api: Api, namespace: str, kubeconfig: Path) -> AsyncIterator[Side]:
    """A job whose pods were made."""
    pretended = Pretended()
    if request.param == "pretended":
        await begin(pretended)
        yield pretended
        return
    async with ApiClient(await load_configuration(str(kubeconfig))) as client:
        yield await made(api, client, namespace)


async def made(api: Api, client: ApiClient, namespace: str) -> Real:
    """A job on the API server, whose pods were made and bound."""
    pretended = Pretended()
    metadata = {"name": "j", "namespace": namespace, "annotations": pretended.cluster.annotations}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata}
    await api.create(tfjobs(namespace), {**body, "spec": orjson.loads(pretended.cluster.job().raw_spec)})
    real = Real(api, client, namespace)
    await begin(real)
    await real.bind()
    return real


async def begin(side: Side) -> None:
    """It is admitted, then its pods are made: what is decided is the operator's own."""
    settings = ReconcileSettings(image="operator:1", wait_for_target=True)
    for _ in range(2):
        there = await side.pods()
        await side.carry_out(reconcile(Observed(await side.job(), NOW, tuple(there.values())), settings))


@dataclass(frozen=True)
class Case:
    """Actions, and what they change; None: gone."""

    actions: Callable[[TFJob, Mapping[str, Pod]], tuple[Action, ...]]
    changes: Seen


def another_worker(job: TFJob) -> Create:
    return Create("Pod", "j-worker-1", lambda: render_pod(job, job.spec(), "Worker", 1))


CASES: dict[str, Case] = {
    "a command": Case(
        lambda _, pods: (SendCommand("j-ps-0", pods["ps-0"].uid, PREPARE),),
        {"ps-0 command": PREPARE},
    ),
    "state": Case(
        lambda *_: (SaveState({f"{PREFIX}eta": "soon", STATE_ANNOTATION: "{}"}),),
        {"annotation eta": "soon", "annotation state": "{}"},
    ),
    "state that goes": Case(lambda *_: (SaveState({TARGET_ANNOTATION: None}),), {"annotation target": None}),
    "a pod that goes": Case(
        lambda _, pods: (DeletePod("j-worker-0", pods["worker-0"].uid),), {"worker-0 terminating": True}
    ),
    "a pod that goes with a note": Case(
        lambda _, pods: (DeletePod("j-worker-0", pods["worker-0"].uid, mark=True),),
        {"worker-0 terminating": True, "worker-0 command": STOP_COMMAND},
    ),
    "a pod that goes soon": Case(
        lambda _, pods: (DeletePod("j-worker-0", pods["worker-0"].uid, grace_s=20),),
        {"worker-0 terminating": True, "worker-0 grace_s": 20},
    ),
    "another pod": Case(
        lambda job, _: (another_worker(job),),
        {
            "worker-1 phase": "Pending",
            "worker-1 terminating": False,
            "worker-1 grace_s": 30,
            "worker-1 restarts": 0,
            "worker-1 troubles": (),
            "worker-1 cpu": (100, 100),
            "worker-1 command": "",
            "worker-1 pinned": "",
        },
    ),
    "pods that are only tried": Case(lambda job, _: (TryPods(1, (another_worker(job),), (1,)),), {}),
    "less CPU": Case(
        lambda _, pods: (ResizePod("j-ps-0", pods["ps-0"].uid, 50, 60, change="less"),), {"ps-0 cpu": (50, 60)}
    ),
    "CPU without a limit leaves the limit": Case(
        lambda _, pods: (ResizePod("j-ps-0", pods["ps-0"].uid, 50, 0, change="less"),), {"ps-0 cpu": (50, 100)}
    ),
}


def changes(before: Seen, after: Seen) -> Seen:
    return {name: after.get(name) for name in before | after if before.get(name) != after.get(name)}


async def test_the_first_pods(side: Side) -> None:
    seen = await side.seen()
    assert {name for name in seen if name.endswith("phase")} == {"chief-0 phase", "ps-0 phase", "worker-0 phase"}
    assert (seen["worker-0 pinned"], seen["ps-0 pinned"]) == (NODE, "")
    assert (seen["chief-0 cpu"], seen["chief-0 command"]) == ((100, 100), "")
    assert "annotation state" in seen
    assert [item["type"] for item in seen["status"]["conditions"]] == ["Created"]


@pytest.mark.parametrize("name", CASES)
async def test_each_action(side: Side, name: str) -> None:
    before = await side.seen()
    await side.carry_out(Decision(CASES[name].actions(await side.job(), await side.pods())))
    assert changes(before, await side.seen()) == CASES[name].changes


async def test_a_pod_that_ends_already_is_given_less_time(side: Side) -> None:
    """A second delete shortens the grace period, and never makes it longer."""
    before = await side.seen()
    for grace_s in (2000, 60, 900):
        worker = (await side.pods())["worker-0"]
        await side.carry_out(Decision((DeletePod("j-worker-0", worker.uid, grace_s=grace_s),)))
    assert changes(before, await side.seen()) == {"worker-0 terminating": True, "worker-0 grace_s": 60}


async def test_a_command_over_another(side: Side) -> None:
    """Those of one decision are to different pods, and in no order; the next decision's come later."""
    before = await side.seen()
    for command in (PREPARE, f"{PREPARE} "):
        ps = (await side.pods())["ps-0"]
        await side.carry_out(Decision((SendCommand("j-ps-0", ps.uid, command),)))
    assert changes(before, await side.seen()) == {"ps-0 command": f"{PREPARE} "}


@pytest.mark.parametrize("writes", range(6))
async def test_the_order_of_writes(side: Side, writes: int) -> None:
    """Killed after so many: what is there explains what is gone."""
    there = await side.pods()
    decision = Decision(
        actions=(
            DeletePod("j-worker-0", there["worker-0"].uid),
            SendCommand("j-ps-0", there["ps-0"].uid, PREPARE),
            SaveState({f"{PREFIX}eta": "soon"}),
            another_worker(await side.job()),
        ),
        status=STATUS,
    )
    before = await side.seen()
    await side.carry_out(decision, killed_after=writes)
    done = changes(before, await side.seen())
    order = ["worker-1 phase", "status", "annotation eta", "worker-0 terminating", "ps-0 command"]
    assert [name in done for name in order] == [number < writes for number in range(5)]


def labels(level: str) -> Seen:
    return {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}


async def test_pods_that_are_tried(api: Api, namespace: str, kubeconfig: Path) -> None:
    """The API server says beforehand what it would say to the pods, and nothing of it stays: a quota that is full, a
    limit range, a policy. A pod whose name is taken is no refusal, nor is a quota that counts pods which are to go."""
    async with ApiClient(await load_configuration(str(kubeconfig))) as client:
        real = await made(api, client, namespace)
        job = await real.job()
        worker, ps = another_worker(job), Create("Pod", "j-ps-0", lambda: render_pod(job, job.spec(), "PS", 0))

        async def answer(*pods: Create, quota: bool = True) -> str:
            await real.carry_out(Decision((TryPods(7, pods, (1,) * len(pods), quota),)))
            said = real.admission(job.uid)
            assert list(said) == [7]
            return said[7]

        assert await answer(worker, ps) == ""
        there = await real.pods()
        core = f"/api/v1/namespaces/{namespace}"
        limit = {"metadata": {"name": "small"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "50m"}}]}}
        await api.create(f"{core}/limitranges", limit)
        assert "maximum cpu usage per Container is 50m" in await answer(worker)
        await api.delete(f"{core}/limitranges/small")
        await api.create(f"{core}/resourcequotas", {"metadata": {"name": "team"}, "spec": {"hard": {"pods": "3"}}})
        full = {"status": {"hard": {"pods": "3"}, "used": {"pods": "3"}}}
        await api.merge(f"{core}/resourcequotas/team/status", full)
        assert "exceeded quota: team" in await until_refused(answer, worker)
        assert await answer(worker, quota=False) == ""
        await api.delete(f"{core}/resourcequotas/team")
        await api.merge(f"/api/v1/namespaces/{namespace}", labels("restricted"))
        assert 'violates PodSecurity "restricted' in await answer(ps)
        assert set(await real.pods()) == set(there)


async def until_refused(answer: Callable[[Create], Any], pod: Create) -> str:
    """An admission plugin hears of a quota a moment after it is made."""
    for _ in range(100):
        if said := await answer(pod):
            return str(said)
        await asyncio.sleep(0.1)
    raise AssertionError("never refused")

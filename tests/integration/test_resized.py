"""Jobs that grow and shrink, as others see them: what pipelines wait for, and what gang schedulers are told."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance.manifest import counts, tfjob
from harness.api import Api, Object, pods, tfjobs
from harness.background import background
from harness.kubelet import kubelet, runs_forever

from .fake_nodes import PREFIX, state_of
from .running import running
from .test_rights import PLUGINS, VOLCANO
from .workload import replica_of

DOCS = Path(__file__).parents[2] / "docs" / "compatibility.md"
ELASTIC = {"min-workers": "1", "max-workers": "4", "checkpoint-dir": "/ckpt", "rescale": "recreate", "inject": "none"}
GROUPS = {"volcano": VOLCANO, "scheduler-plugins-scheduler": PLUGINS}
WITHIN_S = 120


def documented(key: str) -> Object:
    """The example of the docs that has this field at its top."""
    found = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)]
    return next(example for example in found if key in example)


def argo_holds(condition: str, job: Object) -> bool:
    """Of a `resource` template: paths, each with an operator and a number; one that leads nowhere meets none. That all
    must hold for success, and any for a failure, is no matter here: there is one, or none may hold."""

    def holds(path: str, operator: str, wanted: str) -> bool:
        found: Any = job
        for word in path.split("."):
            found = found.get(word, {})
        return isinstance(found, int) and {"==": found == int(wanted), ">": found > int(wanted)}[operator]

    return any(holds(*each.split()) for each in condition.split(","))


def katib_holds(condition: str, job: Object) -> bool:
    """Of a trial template: conditions of a type, and of those the ones of a status, if any."""
    asked = re.fullmatch(r'status\.conditions\.#\(type=="(\w+)"\)#\|#\(status=="(\w+)"\)#', condition)
    assert asked is not None
    return asked.groups() in [(each["type"], each["status"]) for each in job.get("status", {}).get("conditions", [])]


async def job_when(api: Api, namespace: str, what: Callable[[Object], bool], within_s: float = WITHIN_S) -> Object:
    """The only job of the namespace once `what` holds for it."""
    return await api.seen(tfjobs(namespace), what, within_s=within_s)


async def resize(api: Api, namespace: str, name: str, workers: int) -> None:
    """Ask for so many workers, as a person does, and wait until the job rests with them and all its pods run."""
    note = {f"{PREFIX}target-workers": str(workers)}
    await api.merge(f"{tfjobs(namespace)}/{name}", {"metadata": {"annotations": note}})
    await rests(api, namespace, workers)


async def rests(api: Api, namespace: str, workers: int) -> None:
    def reached(found: Object) -> bool:
        state = state_of(found)
        active = found.get("status", {}).get("replicaStatuses", {}).get("Worker", {}).get("active")
        return state.get("phase") == "Stable" and state["replicas"].get("Worker") == active == workers

    await job_when(api, namespace, reached)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sizes", [(4, 1), pytest.param((1, 4), marks=pytest.mark.thorough)])
async def test_pipelines_wait_for_what_the_manifest_says(
    kubeconfig: Path, api: Api, namespace: str, tmp_path: Path, sizes: tuple[int, int]
) -> None:
    """The documented templates: their conditions hold when the job is over, whatever its size then, and not before."""
    template = documented("kind")["spec"]["templates"][0]["resource"]
    trial = documented("trialTemplate")["trialTemplate"]
    success, failure = template["successCondition"], template["failureCondition"]
    manifest = yaml.safe_load(template["manifest"])
    declared = manifest["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]
    assert success == f"status.replicaStatuses.Worker.succeeded == {declared}"
    assert declared not in sizes
    manifest["metadata"]["annotations"] |= {PREFIX + key: text for key, text in ELASTIC.items()}
    manifest["spec"]["successPolicy"] = "AllWorkers"
    trained = asyncio.Event()

    async def program(pod: Object) -> int | None:
        """The workers end one after the other, so that each number of them can be seen."""
        kind, _, index = replica_of(pod)[1].partition("-")
        await trained.wait()
        await asyncio.sleep(0.7 * int(index))
        return 0 if kind == "worker" else None

    def over(job: Object) -> bool:
        """Whether it has succeeded; all agree on that at each moment, and nobody finds that it has failed."""
        assert not argo_holds(failure, job)
        assert not katib_holds(trial["failureCondition"], job)
        succeeded = katib_holds(trial["successCondition"], job)
        assert argo_holds(success, job) == succeeded, job["status"]
        return succeeded

    async def watch() -> None:
        await job_when(api, namespace, over, within_s=350)

    async with (
        background(watch()),
        kubelet(api, namespace, program),
        running("ours", kubeconfig, tmp_path, namespace=namespace, arguments=[f"--config-map={namespace}/none"]),
    ):
        name = (await api.create(tfjobs(namespace), manifest))["metadata"]["name"]
        await rests(api, namespace, declared)
        for workers in sizes:
            await resize(api, namespace, name, workers)
        trained.set()
        job = await job_when(api, namespace, over)
    assert counts(job["status"]) == {"PS": {"succeeded": 1}, "Worker": {"succeeded": declared}}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "scheduler", ["volcano", pytest.param("scheduler-plugins-scheduler", marks=pytest.mark.thorough)]
)
async def test_a_gang_is_as_large_as_its_job(
    pod_groups: Path, api: Api, namespace: str, tmp_path: Path, scheduler: str
) -> None:
    groups = f"{GROUPS[scheduler]}/namespaces/{namespace}/podgroups"
    metadata = {"annotations": {PREFIX + key: text for key, text in ELASTIC.items()}}

    async def members() -> int:
        return int((await api.get(f"{groups}/job"))["spec"]["minMember"])

    options = {"namespace": namespace, "gang_scheduler": scheduler, "arguments": [f"--config-map={namespace}/none"]}
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(kubelet(api, namespace, runs_forever))
        if scheduler == "volcano":
            await stack.enter_async_context(background(volcano(api, namespace, groups, room=5)))
        await stack.enter_async_context(running("ours", pod_groups, tmp_path, **options))
        await api.create(tfjobs(namespace), tfjob("job", metadata=metadata, PS=1, Worker=2))
        await rests(api, namespace, 2)
        assert await members() == 3
        await resize(api, namespace, "job", 4)
        assert await members() == 5
        await resize(api, namespace, "job", 1)
        assert await members() == 2


async def volcano(api: Api, namespace: str, groups: str, *, room: int) -> None:
    """What Volcano says of a job in a cluster with room for so many pods: that it runs while its whole gang does; else
    it is pending, until the room that is left is enough for a whole one."""
    while True:
        there = [pod for pod in (await api.items(pods(namespace)))[0] if not pod["metadata"].get("deletionTimestamp")]
        runs = sum(pod["status"].get("phase") == "Running" for pod in there)
        for group in (await api.items(groups))[0]:
            least, before = group["spec"]["minMember"], group.get("status", {}).get("phase")
            admitted = before == "Inqueue" or runs + least <= room
            phase = "Running" if runs >= least else "Inqueue" if admitted else "Pending"
            if phase != before:
                await api.merge(f"{groups}/{group['metadata']['name']}/status", {"status": {"phase": phase}})
        await asyncio.sleep(0.05)

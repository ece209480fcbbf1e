"""Nodes that are taken away, on a real control plane: a taint is set, and jobs leave in the time that its notice
gives."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import kwok
from harness.api import NODES, Api, Object, events, pods, tfjobs
from harness.controlplane import ControlPlane

from .fake_nodes import configure, job, operator_with_its_rights, state_of, target_of

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("scheduled"),
]
ELASTIC = {"min-workers": "1", "max-workers": "5", "checkpoint-dir": "/c", "inject": "none", "rescale": "recreate"}
TIMES = {"stop_timeout_s": 1, "checkpoint_timeout_s": 1}


@pytest.fixture
def api(two_nodes: Api) -> Api:
    return two_nodes


async def rests(api: Api, name: str, workers: int, without: str = "") -> Object:
    """The job once so many workers and its chief run, none of them on the node `without`."""

    def holds(found: Object) -> bool:
        state, status = state_of(found), found.get("status", {}).get("replicaStatuses", {})
        target = target_of(found) or {}
        on = {node for names in target.get("nodes", {}).values() for node in names}
        active = {kind: each.get("active", 0) for kind, each in status.items()}
        return (
            state.get("phase") == "Stable"
            and state["generation"] == target["generation"]
            and state["replicas"].get("Worker") == workers
            and active == {"Chief": 1, "Worker": workers}
            and without not in on
        )

    return await api.seen(tfjobs("default"), holds, name=name, within_s=60)


async def drain(api: Api, node: str, key: str) -> None:
    taint = {"key": key, "effect": "NoSchedule"}
    await api.merge(f"{NODES}/{node}", {"spec": {"taints": [kwok.TAINT, taint]}})


async def nodes_of(api: Api) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in (await api.items(pods("default")))[0]}


async def told(api: Api, reason: str) -> str:
    async with asyncio.timeout(30):
        async for _, event in api.watch(events("default"), fieldSelector=f"reason={reason}"):
            return str(event["message"])
    raise AssertionError(reason)


async def counted(metrics: Callable[[], str], line: str) -> None:
    async with asyncio.timeout(30):
        while line not in await asyncio.to_thread(metrics):
            await asyncio.sleep(0.3)


async def test_jobs_leave_in_the_time_that_the_notice_gives(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    """A job on both nodes has no room elsewhere, and shrinks away from its workers' node. Then its leader's node goes
    while the other one is back: it saves, and restarts there."""
    await configure(api, profile="fifo-backfill", rescale=TIMES)
    async with operator_with_its_rights(plane, tmp_path) as operator:
        await api.create(tfjobs("default"), job("j", annotations=ELASTIC, Chief=1, Worker=5))
        begun = target_of(await rests(api, "j", 5))
        lead = begun["nodes"]["Chief"][0]
        other = next(name for name in ("kwok-000", "kwok-001") if name != lead)
        stay = begun["nodes"]["Worker"].count(lead)
        await drain(api, other, "aws-node-termination-handler/spot-itn")
        shrunk = await rests(api, "j", stay, without=other)
        assert await nodes_of(api) == {lead}
        assert target_of(shrunk)["reason"]["code"] == "taken-away"
        said = await told(api, "NodeTakenAway")
        assert said.startswith(f"Node {other} is taken away in 1")
        assert said.endswith("(aws-node-termination-handler/spot-itn)")
        await api.merge(f"{NODES}/{other}", {"spec": {"taints": [kwok.TAINT]}})
        await counted(operator.metrics, 'elastic_tfjob_interruptions_total{outcome="shrunk"} 1.0')
        await drain(api, lead, "remediator.kubernetes.azure.com/unschedulable")
        moved = await rests(api, "j", stay, without=lead)
        assert await nodes_of(api) == {other}
        assert state_of(moved)["history"][-1]["mode"] == "recreate"
        await api.delete(f"{NODES}/{lead}")
        await counted(operator.metrics, 'elastic_tfjob_interruptions_total{outcome="saved"} 1.0')


async def test_a_pod_that_its_nodes_shutdown_ended_is_recreated(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    """The kubelet ends pods as Failed before the machine stops. With restartPolicy Never that is no end of the job."""
    await configure(api, profile="fifo-backfill")
    made = job("j", annotations={"placement": "auto"}, Worker=1)
    made["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    async with operator_with_its_rights(plane, tmp_path):
        await api.create(tfjobs("default"), made)
        (first,) = await running(api)
        body = {"status": {"phase": "Failed", "reason": "Terminated", "message": "Pod was terminated in response to"}}
        await api.merge(f"{pods('default')}/{first['metadata']['name']}/status", body)
        async with asyncio.timeout(60):
            while (found := await running(api)) and found[0]["metadata"]["uid"] == first["metadata"]["uid"]:
                await asyncio.sleep(0.2)
        status = (await api.get(f"{tfjobs('default')}/j"))["status"]
        assert not [each for each in status["conditions"] if each["type"] == "Failed" and each["status"] == "True"]


async def running(api: Api) -> list[Object]:
    """The pods that run, once there is one."""
    async with asyncio.timeout(60):
        while not (found := [p for p in (await api.items(pods("default")))[0] if p["status"]["phase"] == "Running"]):
            await asyncio.sleep(0.2)
    return found

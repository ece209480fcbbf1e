"""Jobs on a cluster that has no node until a real Karpenter adds one: they order nodes, start, grow, and leave them.

`make test-karpenter`: Karpenter's first build takes longer than `make test` should. KWOK plays the kubelets.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from conformance.manifest import tfjob
from harness import karpenter, kwok
from harness.api import CORE, NODES, Api, Object, events, tfjobs
from harness.api import pods as pods_in
from harness.controlplane import ControlPlane
from harness.operators import install, service_account

from .fake_nodes import PREFIX, configure, operator_with_its_rights, state_of, target_of

pytestmark = [pytest.mark.karpenter, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
_WITHIN_S = 60.0
IMAGE = "--image=operator:1"
ORDERS = {"labelSelector": f"{PREFIX}order-of"}
TIMES = {"stop_timeout_s": 1, "checkpoint_timeout_s": 1, "prepare_timeout_s": 20}


def job(name: str, cpu: str = "1", workers: int = 2, **annotations: str) -> Object:
    """A chief, a PS and workers that may be 1 to 4, on any node."""
    container = {"name": "tensorflow", "image": "fake", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    template = {"spec": {"containers": [container]}}
    types = {"Chief": 1, "PS": 1, "Worker": workers}
    made = tfjob(name, **{kind: {"replicas": count, "template": template} for kind, count in types.items()})
    known = {"min-workers": "1", "max-workers": "4", "checkpoint-dir": "/c", "inject": "none", "rescale": "recreate"}
    made["metadata"]["annotations"] = {PREFIX + key: text for key, text in (known | annotations).items()}
    return made


@contextlib.asynccontextmanager
async def cluster(
    plane: ControlPlane,
    folder: Path,
    *,
    profile: str = "elastic",
    compact: str = "",
    pods: int = 1000,
    **pool: Any,
) -> AsyncIterator[Api]:
    """A control plane with Karpenter and no node, and the operator's objects under a profile. `compact`:
    the label of the nodes that jobs leave; `pods`: most placeholders."""
    await asyncio.to_thread(install, "ours", plane.kubeconfig)
    await asyncio.to_thread(service_account, "ours", plane.kubeconfig)  # makes the namespace, too
    with (
        karpenter.running(plane, folder / "karpenter"),
        kwok.kubelets(plane.kubeconfig, folder, karpenter.NODE_POOL_LABEL),
    ):
        for each in karpenter.node_pool("default", **pool):
            await asyncio.to_thread(plane.kubectl, "apply", "--server-side", "-f", "-", stdin=json.dumps(each))
        async with Api(plane.kubeconfig) as api:
            await configure(
                api,
                profile=profile,
                profiles={profile: {"lend": "none"}},
                rescale=TIMES,
                autoscaling={
                    "order": {"timeout_s": 40, "retry_s": 600, "pods": pods},
                    "compact": {"after_s": 5, "every_s": 2, "nodes": compact},
                },
            )
            yield api


async def has(api: Api, name: str, workers: int, within_s: float = _WITHIN_S) -> Object:
    """The job once it rests with so many workers and all of its pods run."""

    def rests(found: Object) -> bool:
        state, status = state_of(found), found.get("status", {}).get("replicaStatuses", {})
        return state.get("phase") == "Stable" and state["replicas"].get("Worker") == workers == status.get(
            "Worker", {}
        ).get("active")

    return await api.seen(tfjobs("default"), rests, name=name, within_s=within_s)


async def told(api: Api, reason: str, name: str) -> str:
    async with asyncio.timeout(_WITHIN_S):
        selector = f"reason={reason},involvedObject.name={name}"
        async for _, event in api.watch(events("default"), fieldSelector=selector):
            return str(event["message"])
    raise AssertionError(reason)


async def no_orders_are_left(api: Api) -> None:
    async with asyncio.timeout(_WITHIN_S):
        while (await api.items(pods_in("default"), **ORDERS))[0]:
            await asyncio.sleep(0.3)


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_jobs_start_from_no_node_and_grow_to_what_they_declare(own_plane: ControlPlane, tmp_path: Path) -> None:
    async with cluster(own_plane, tmp_path) as api, operator_with_its_rights(own_plane, tmp_path, IMAGE):
        for name in ("one", "two", "three"):
            await api.create(tfjobs("default"), job(name))
        assert await told(api, "NodesOrdered", "one") == (
            "Asks an autoscaler for nodes: no room for 1 chief + 1 PS + 2 workers"
        )
        for name in ("one", "two", "three"):
            found = await has(api, name, 2)
            assert target_of(found).get("orders") is None
        await no_orders_are_left(api)
        assert (await api.items(NODES))[0]


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_a_job_beyond_the_limit_of_the_pool_is_told_and_others_go_on(
    own_plane: ControlPlane, tmp_path: Path
) -> None:
    async with cluster(own_plane, tmp_path, cpu=32) as api, operator_with_its_rights(own_plane, tmp_path, IMAGE):
        await api.create(tfjobs("default"), job("huge", cpu="60"))
        await api.create(tfjobs("default"), job("small"))
        await has(api, "small", 2)
        assert "No node has come for huge-" in await told(api, "NodesNotComing", "huge")
        assert target_of(await api.get(f"{tfjobs('default')}/small"))["replicas"]["Worker"] == 2


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_a_quota_that_refuses_placeholders_is_told_and_others_go_on(
    own_plane: ControlPlane, tmp_path: Path
) -> None:
    """The refused job asks for as many nodes as all jobs may, at first."""
    async with (
        cluster(own_plane, tmp_path, pods=4) as api,
        operator_with_its_rights(own_plane, tmp_path, IMAGE),
    ):
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
        await api.create(f"{CORE}/namespaces/default/resourcequotas", quota)
        await api.create(tfjobs("default"), job("held"))
        assert "exceeded quota" in await told(api, "OrderRefused", "held")
        await api.create(f"{CORE}/namespaces", {"metadata": {"name": "other"}})
        await api.create(tfjobs("other"), job("small"))
        async with asyncio.timeout(2 * _WITHIN_S):
            while not (await api.items(NODES))[0]:
                await asyncio.sleep(0.5)
        assert "There is no placeholder after 40 s" in await told(api, "NodesNotComing", "held")


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_an_operator_that_is_killed_leaves_no_placeholder_behind(own_plane: ControlPlane, tmp_path: Path) -> None:
    async with cluster(own_plane, tmp_path) as api:
        async with operator_with_its_rights(own_plane, tmp_path, IMAGE) as operator:
            await api.create(tfjobs("default"), job("one"))
            await told(api, "NodesOrdered", "one")
            await asyncio.to_thread(operator.kill)
        async with operator_with_its_rights(own_plane, tmp_path, IMAGE):
            await has(api, "one", 2)
            await no_orders_are_left(api)
            await api.create(tfjobs("default"), job("gone", cpu="50"))
            await told(api, "NodesOrdered", "gone")
            await api.delete(f"{tfjobs('default')}/gone")
            await no_orders_are_left(api)


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_jobs_leave_a_node_that_karpenter_removes(own_plane: ControlPlane, tmp_path: Path) -> None:
    async with cluster(own_plane, tmp_path) as api, operator_with_its_rights(own_plane, tmp_path, IMAGE):
        await api.create(tfjobs("default"), job("one"))
        await has(api, "one", 2)
        (claim, *_), _ = await api.items(f"{karpenter.API}/nodeclaims")
        await api.delete(f"{karpenter.API}/nodeclaims/{claim['metadata']['name']}")
        node = claim["status"]["nodeName"]

        async with asyncio.timeout(_WITHIN_S):
            while any(each["metadata"]["name"] == node for each in (await api.items(NODES))[0]):
                await asyncio.sleep(0.5)
        await has(api, "one", 2)


async def nodes_are(api: Api, count: int, within_s: float = _WITHIN_S) -> None:
    """Until the cluster has so many nodes."""
    async with asyncio.timeout(within_s):
        while len((await api.items(NODES))[0]) != count:
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_a_job_starts_small_on_what_is_left_and_grows_on_the_next_node(
    own_plane: ControlPlane, tmp_path: Path
) -> None:
    async with (
        cluster(own_plane, tmp_path, profile="aryl") as api,
        operator_with_its_rights(own_plane, tmp_path, IMAGE),
    ):
        # Not elastic, so that no CPU is lent to it: KWOK's pods cannot give any back.
        await api.create(tfjobs("default"), job("one", cpu="1500m", workers=1, **{"max-workers": "1"}))
        await has(api, "one", 1)
        sizes = list[int]()

        async def follow() -> None:
            async for _, found in api.watch(tfjobs("default"), fieldSelector="metadata.name=two"):
                sizes.append(state_of(found).get("replicas", {}).get("Worker", 0))

        following = asyncio.create_task(follow())
        await api.create(tfjobs("default"), job("two", workers=4))
        await has(api, "two", 4)
        following.cancel()
        assert any(0 < each < 4 for each in sizes), sizes
        await no_orders_are_left(api)


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_jobs_leave_a_node_and_karpenter_removes_it(own_plane: ControlPlane, tmp_path: Path) -> None:
    """Two jobs fit a node. After one of three has ended, the other two come together, and one node goes."""
    pool: dict[str, Any] = {"compact": karpenter.NODE_POOL_LABEL, "consolidate": "0s", "node_cpu": "8"}
    async with cluster(own_plane, tmp_path, **pool) as api, operator_with_its_rights(own_plane, tmp_path, IMAGE):
        names = ("one", "two", "three")
        for name in names:  # not elastic, so that no CPU is lent: KWOK's pods cannot give any back
            await api.create(tfjobs("default"), job(name, workers=1, **{"max-workers": "1"}))
        on = {name: nodes_of(await has(api, name, 1)) for name in names}
        assert len(set.union(*on.values())) == 2
        ends = next(name for name in names if any(on[name] & on[other] for other in names if other != name))
        await api.delete(f"{tfjobs('default')}/{ends}")
        await nodes_are(api, 1, within_s=90)
        after = [nodes_of(await has(api, name, 1)) for name in names if name != ends]
        assert after[0] == after[1]


def nodes_of(found: Object) -> set[str]:
    """The nodes that a job is placed on."""
    return {node for nodes in state_of(found)["nodes"].values() for node in nodes}


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_karpenter_does_not_consolidate_the_node_of_a_ready_job(own_plane: ControlPlane, tmp_path: Path) -> None:
    async with (
        cluster(own_plane, tmp_path, consolidate="0s") as api,
        operator_with_its_rights(own_plane, tmp_path, IMAGE),
    ):
        await api.create(tfjobs("default"), job("one"))
        await has(api, "one", 2)
        (node, *others), _ = await api.items(NODES)
        assert not others
        async with asyncio.timeout(_WITHIN_S):
            selector = f"reason=DisruptionBlocked,involvedObject.name={node['metadata']['name']}"
            async for _, event in api.watch(f"{CORE}/events", fieldSelector=selector):
                if "pdb" in str(event["message"]).lower():
                    break
        assert [each["metadata"]["name"] for each in (await api.items(NODES))[0]] == [node["metadata"]["name"]]


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_jobs_leave_a_node_that_expires(own_plane: ControlPlane, tmp_path: Path) -> None:
    async with (
        cluster(own_plane, tmp_path, expire="40s") as api,
        operator_with_its_rights(own_plane, tmp_path, IMAGE),
    ):
        await api.create(tfjobs("default"), job("one"))
        await has(api, "one", 2)
        first = {each["metadata"]["name"] for each in (await api.items(NODES))[0]}
        async with asyncio.timeout(120):
            while first & {each["metadata"]["name"] for each in (await api.items(NODES))[0]}:
                await asyncio.sleep(0.5)
        await has(api, "one", 2)


@pytest.mark.parametrize("own_plane", [{"scheduler": True, "controller_manager": True}], indirect=True)
async def test_a_loanable_job_orders_with_a_class_that_buys(own_plane: ControlPlane, tmp_path: Path) -> None:
    """Its own class is below 0, its placeholders have the class of orders."""
    async with cluster(own_plane, tmp_path) as api, operator_with_its_rights(own_plane, tmp_path, IMAGE):
        priority = ROOT / "manifests" / "components" / "loans" / "priority.yaml"
        await asyncio.to_thread(own_plane.kubectl, "apply", "-f", priority)
        made = job("low", loanable="true")
        for replica in made["spec"]["tfReplicaSpecs"].values():
            replica["template"]["spec"] = {**replica["template"]["spec"], "priorityClassName": "elastic-tfjob-loanable"}
        await api.create(tfjobs("default"), made)
        await told(api, "NodesOrdered", "low")
        await has(api, "low", 2)

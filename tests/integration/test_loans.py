"""Loans of nodes on a real control plane: taint and annotation, who may run there, and how a node comes back."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import audit, kwok
from harness.api import CORE, NODES, Api, Object, events, pods, tfjobs
from harness.controlplane import ControlPlane
from harness.effort import effort
from harness.operators import install, kubectl, service_account

from .fake_nodes import HOME, PREFIX, configure, job, operator_with_its_rights, target_of, target_when
from .running import OPERATOR

ROOT = Path(__file__).parents[2]
LOANED = f"{PREFIX}loaned"
PROFILE = "fifo-backfill"
OTHER_TAINT = {"key": "example.com/mine", "value": "x", "effect": "PreferNoSchedule"}

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.parametrize(
        "own_plane", [{"scheduler": True, "controller_manager": True, "audit": True}], indirect=True
    ),
]


def component(*files: str, of: str = "loans") -> str:
    """Manifests of the component, for an operator in HOME."""
    found = []
    for name in files:
        for item in yaml.safe_load_all((ROOT / "manifests/components" / of / name).read_text()):
            for subject in item.get("subjects") or ():
                subject["namespace"] = HOME
            found.append(item)
    return yaml.safe_dump_all(found)


@contextlib.asynccontextmanager
async def cluster(plane: ControlPlane, folder: Path, count: int) -> AsyncIterator[Api]:
    """A client of a control plane with nodes of four cores, all but the first of the pool `inference`."""
    await asyncio.to_thread(install, "ours", plane.kubeconfig)
    await asyncio.to_thread(service_account, "ours", plane.kubeconfig)
    async with Api(plane.kubeconfig) as api, kwok.nodes(api, plane.kubeconfig, folder, count, cpu=4):
        await api.create(f"{CORE}/namespaces", {"metadata": {"name": "serving"}})
        for i in range(1, count):
            await api.merge(f"{NODES}/kwok-{i:03d}", {"metadata": {"labels": {f"{PREFIX}pool": "inference"}}})
        yield api


async def allow(plane: ControlPlane, api: Api) -> None:
    """Apply the component, and wait until the API server heeds it."""
    manifests = component("role.yaml", "policy.yaml")
    await asyncio.to_thread(kubectl, plane.kubeconfig, "apply", "-f", "-", stdin=manifests)
    await api.allowed(OPERATOR, "", verb="patch", group="", resource="nodes")


async def lend(api: Api, profile: str = PROFILE, **pool: Any) -> None:
    """Configure the pool."""
    settings = {"namespaces": ["serving"], "headroom": 0, "hold_s": 600, "grace_s": 60, **pool}
    await configure(
        api,
        profile=profile,
        profiles={profile: {"lend": "offered", "reclaim": "cost"}},
        pools={"inference": settings},
        rescale={"stop_timeout_s": 1, "checkpoint_timeout_s": 1},  # nothing trains on these nodes, so nothing saves
    )


def loan_of(node: Object) -> tuple[str, bool]:
    """A node's stage, and whether it has our taint."""
    text = (node["metadata"].get("annotations") or {}).get(f"{PREFIX}loan")
    taints = node["spec"].get("taints") or []
    return json.loads(text)["stage"] if text else "", any(taint["key"] == LOANED for taint in taints)


async def node_is(api: Api, name: str, *stages: tuple[str, bool], within_s: float = 120) -> Object:
    """The node once its loan is one of these."""
    return await api.seen(NODES, lambda node: loan_of(node) in stages, name=name, within_s=within_s)


async def pod_is(api: Api, namespace: str, name: str, what: Callable[[Object], bool]) -> Object:
    """The pod once `what` holds for it."""
    return await api.seen(pods(namespace), what, name=name, within_s=150)


def loanable(name: str, cpu: str = "1", **replicas: int) -> Object:
    return job(
        name,
        cpu=cpu,
        annotations={"loanable": "true", "checkpoint-dir": "/ckpt", "rescale": "recreate", "inject": "none"},
        **replicas,
    )


def server(name: str, cpu: str) -> Object:
    """A pod of the pool."""
    spec = kwok.pod_template(cpu)["spec"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**spec, "nodeSelector": {**spec["nodeSelector"], f"{PREFIX}pool": "inference"}},
    }


def bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


async def test_a_node_is_lent_and_comes_back_whenever_the_operator_is_killed(
    own_plane: ControlPlane, tmp_path: Path
) -> None:
    async with cluster(own_plane, tmp_path, 2) as api, contextlib.AsyncExitStack() as running:
        await allow(own_plane, api)
        await api.merge(f"{NODES}/kwok-001", {"spec": {"taints": [kwok.TAINT, OTHER_TAINT]}})
        await lend(api, grace_s=10)
        operator = await running.enter_async_context(operator_with_its_rights(own_plane, tmp_path))
        await api.create(tfjobs("default"), job("own", Worker=4))
        await target_when(api, "own", lambda target: target["replicas"])
        await api.create(tfjobs("default"), job("stays", Worker=2))
        waits = await target_when(api, "stays", lambda target: True)
        assert waits["replicas"] == {}, "a job that is not loanable runs on no other pool's node"
        await api.create(tfjobs("default"), loanable("guest", Worker=2))
        node = await node_is(api, "kwok-001", ("loaned", True))
        assert OTHER_TAINT in node["spec"]["taints"]
        if effort(False, True):  # the campaign kills it at each write of a loan
            await asyncio.to_thread(operator.kill)
            operator = await running.enter_async_context(operator_with_its_rights(own_plane, tmp_path))
        found = await pod_is(api, "default", "guest-worker-1", bound)
        assert found["spec"]["nodeName"] == "kwok-001"
        assert any(each.get("key") == LOANED for each in found["spec"]["tolerations"])
        assert target_of(await api.get(f"{tfjobs('default')}/stays"))["replicas"] == {}
        await api.create(pods("serving"), server("huge", "64"))
        counted = 'elastic_tfjob_pool_pending_pods{fit="nowhere",pool="inference"} 1.0'
        async with asyncio.timeout(120):
            while counted not in await asyncio.to_thread(operator.metrics):
                await asyncio.sleep(0.2)
        # It was looked at, fits nowhere, and so recalls nothing.
        assert loan_of(await api.get(f"{NODES}/kwok-001")) == ("loaned", True)
        await api.create(pods("serving"), server("server", "3"))
        await node_is(api, "kwok-001", ("recalled", True), ("returned", False))
        await asyncio.to_thread(operator.kill)
        await running.enter_async_context(operator_with_its_rights(own_plane, tmp_path))
        node = await node_is(api, "kwok-001", ("returned", False), within_s=120)
        assert OTHER_TAINT in node["spec"]["taints"]
        assert (await pod_is(api, "serving", "server", bound))["spec"]["nodeName"] == "kwok-001"
        guest = await target_when(api, "guest", lambda target: not target["replicas"])
        assert guest["nodes"] == {}
        # It goes on where it can, and nowhere else: the node is held back for its pool now.
        await api.delete(f"{tfjobs('default')}/own")
        await api.delete(f"{tfjobs('default')}/stays")
        again = await target_when(api, "guest", lambda target: target["replicas"], within_s=120)
        assert again["nodes"] == {"Worker": ["kwok-000"] * 2}
        assert loan_of(await api.get(f"{NODES}/kwok-001")) == ("returned", False)
    assert audit.differs_from("loans", own_plane.audit_log.read_text().splitlines()) == []
    await _changes_nothing_else(own_plane)


async def _changes_nothing_else(plane: ControlPlane) -> None:
    """The policy: the operator may change its taint and its annotation, and nothing else."""
    identity = await asyncio.to_thread(service_account, "ours", plane.kubeconfig)
    async with Api(identity) as limited:
        for change in (
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"annotations": {"a": "b"}}},
            {"spec": {"taints": [OTHER_TAINT]}},
            {"spec": {"unschedulable": True}},
        ):
            with pytest.raises(Exception, match="operator of TFJobs may"):
                await limited.merge(f"{NODES}/kwok-001", change)


@pytest.mark.thorough  # campaign: elastic-recall, recall-shrink
async def test_an_elastic_guest_gives_up_what_it_has_on_a_node_that_goes_back_and_trains_on(
    own_plane: ControlPlane, tmp_path: Path
) -> None:
    async with cluster(own_plane, tmp_path, 3) as api:
        await allow(own_plane, api)
        await lend(api, "aryl")
        async with operator_with_its_rights(own_plane, tmp_path):
            await api.create(
                tfjobs("default"), job("own", Worker=4, annotations={"placement": "auto", "estimated-duration": "1h"})
            )
            await target_when(api, "own", lambda target: target["replicas"])
            sizes = {"min-workers": "4", "max-workers": "8", "estimated-duration": "2h"}
            guest = loanable("guest", Worker=4)
            guest["metadata"]["annotations"] |= {f"{PREFIX}{name}": text for name, text in sizes.items()}
            await api.create(tfjobs("default"), guest)
            grown = await target_when(api, "guest", lambda target: target["replicas"].get("Worker") == 8)
            assert set(grown["nodes"]["Worker"]) == {"kwok-001", "kwok-002"}
            stays = grown["nodes"]["Worker"][0]
            (goes,) = {"kwok-001", "kwok-002"} - {stays}
            for k in range(8):
                await pod_is(api, "default", f"guest-worker-{k}", bound)
            await api.create(pods("serving"), server("server", "3"))
            await node_is(api, goes, ("returned", False))
            smaller = await target_when(api, "guest", lambda target: target["replicas"].get("Worker") != 8)
            assert smaller["nodes"]["Worker"] == [stays] * 4
            assert (await pod_is(api, "serving", "server", bound))["spec"]["nodeName"] == goes
            assert loan_of(await api.get(f"{NODES}/{stays}")) == ("loaned", True)
            told = {each["reason"] for each in (await api.items(events("default")))[0]}
            assert "Rescaling" in told
            assert not told & {"Stopping", "Stopped"}


@pytest.mark.thorough  # campaign: taint-gone, relabelled; the first test has the policy
async def test_changes_of_others_to_a_lent_node_are_kept_or_forbidden(own_plane: ControlPlane, tmp_path: Path) -> None:
    async with cluster(own_plane, tmp_path, 5) as api:
        await lend(api)
        # It fits nowhere, so it waits and borrows all there is.
        await api.create(tfjobs("default"), loanable("large", cpu="9", Worker=1))
        async with operator_with_its_rights(own_plane, tmp_path):
            async with asyncio.timeout(120):  # without the right nothing is lent, and all else goes on
                async for _, event in api.watch(events("default"), fieldSelector="involvedObject.kind=Node"):
                    if event["reason"] == "LoansForbidden":
                        assert "apply the component loans" in event["message"]
                        break
            await api.create(tfjobs("default"), job("small", Worker=1))
            assert (await target_when(api, "small", lambda target: target["replicas"]))["nodes"]["Worker"] == [
                "kwok-000"
            ]
            assert all(loan_of(node) == ("", False) for node in (await api.items(NODES))[0])
        await allow(own_plane, api)
        names = [f"kwok-{i:03d}" for i in range(1, 5)]
        async with operator_with_its_rights(own_plane, tmp_path):
            for name in names:
                await node_is(api, name, ("loaned", True))
            # A pod of the pool that no node can hold recalls nothing, and whoever looks at it is told.
            await api.create(pods("serving"), server("enormous", "9"))
            async with asyncio.timeout(120):
                async for _, event in api.watch(events("serving"), fieldSelector="reason=FitsNoPoolNode"):
                    assert event["involvedObject"]["kind"] == "Pod"
                    assert event["involvedObject"]["name"] == "enormous"
                    break
            assert {loan_of(await api.get(f"{NODES}/{name}")) for name in names} == {("loaned", True)}
            relabelled, untainted, cordoned, deleted = names
            await api.merge(f"{NODES}/{relabelled}", {"metadata": {"labels": {f"{PREFIX}pool": "other"}}})
            await api.merge(f"{NODES}/{untainted}", {"spec": {"taints": [kwok.TAINT]}})
            await api.merge(f"{NODES}/{cordoned}", {"spec": {"unschedulable": True}})
            await api.delete(f"{NODES}/{deleted}")
            for name in (relabelled, untainted, cordoned):
                node = await node_is(api, name, ("returned", False))
                assert kwok.TAINT["key"] in {taint["key"] for taint in node["spec"]["taints"]}
            assert (await api.get(f"{NODES}/{cordoned}"))["spec"]["unschedulable"] is True
            # The pool is taken out of the configuration: what is still lent goes back.
            await api.merge(f"{NODES}/{relabelled}", {"metadata": {"labels": {f"{PREFIX}pool": "inference"}}})
            await configure(api, profile=PROFILE)
            await api.create(tfjobs("default"), job("last", Worker=1))
            assert (await target_when(api, "last", lambda target: target["replicas"]))["replicas"]

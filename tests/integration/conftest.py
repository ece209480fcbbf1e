"""Control planes: one that a test may break, and one that tests use after each other."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from harness import kwok, operators
from harness.api import CORE, NODES, Api, events, pods, services, tfjobs
from harness.controlplane import ControlPlane


@pytest.fixture
async def own_plane(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """One of the test's own, without any CRD; indirect parameters are those of ControlPlane."""
    plane = ControlPlane(tmp_path / "plane", **getattr(request, "param", {}))
    try:
        await asyncio.to_thread(plane.start)
        yield plane
    finally:
        await asyncio.to_thread(plane.stop)


@pytest.fixture(scope="session")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With kube-scheduler and kube-controller-manager, the CRD, and the operator's namespace and rights."""
    with ControlPlane(tmp_path_factory.mktemp("scheduled"), scheduler=True, controller_manager=True) as plane:
        operators.install("ours", plane.kubeconfig)
        operators.service_account("ours", plane.kubeconfig)  # makes the namespace, too
        yield plane


@pytest.fixture
async def plane(scheduled: ControlPlane) -> AsyncIterator[ControlPlane]:
    """`scheduled`, empty again when a test ends. Its tests are in the xdist_group "scheduled": it starts once."""
    try:
        yield scheduled
    finally:
        async with Api(scheduled.kubeconfig) as api, asyncio.timeout(120):
            await _emptied(api)


@pytest.fixture
async def two_nodes(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Api]:
    """A client of `plane` with two nodes of four cores."""
    async with Api(plane.kubeconfig) as api, kwok.nodes(api, plane.kubeconfig, tmp_path, 2, cpu=4):
        yield api


async def _emptied(api: Api) -> None:
    """Delete what a test and its operator have made, and wait until it is gone: names come again."""
    namespaces = ("default", "kubeflow")
    apps = [f"/apis/apps/v1/namespaces/{each}/{kind}" for each in namespaces for kind in ("deployments", "replicasets")]
    for collection in (*map(tfjobs, namespaces), *apps, NODES):
        await api.request("DELETE", collection)
    settings = f"{CORE}/namespaces/kubeflow/configmaps"
    for each in (await api.items(settings))[0]:
        if each["metadata"]["name"] != "kube-root-ca.crt":
            await api.delete(f"{settings}/{each['metadata']['name']}")
    gone = [kind(each) for each in namespaces for kind in (pods, services)]
    while any([(await api.items(each, labelSelector="!component"))[0] for each in gone]):  # not the Service kubernetes
        for namespace in namespaces:
            await api.request("DELETE", pods(namespace), {"gracePeriodSeconds": 0})
        await asyncio.sleep(0.1)
    for namespace in namespaces:
        await api.request("DELETE", events(namespace))

"""The operator's roles hold what it uses: no more, by the API server's audit log, and no less."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from conformance.manifest import container, labels, replica, tfjob
from harness import audit, operators
from harness.api import CORE, Api, pods, services, tfjobs
from harness.controlplane import ControlPlane
from harness.kubelet import kubelet, runs_forever

from .running import OPERATOR, running

NAME = "elastic-tfjob-operator"
HOME = "kubeflow"
CONFIG_MAPS = f"{CORE}/namespaces/{HOME}/configmaps"
PREFIX = "elastic.kubeflow.org/"
POD_GROUPS = Path(__file__).parents[1] / "conformance" / "podgroups.yaml"
VOLCANO, PLUGINS = "/apis/scheduling.volcano.sh/v1beta1", "/apis/scheduling.x-k8s.io/v1alpha1"


@pytest.fixture
async def api(own_plane: ControlPlane) -> AsyncIterator[Api]:
    operators.install("ours", own_plane.kubeconfig)
    own_plane.kubectl("apply", "-f", POD_GROUPS)
    for group in (VOLCANO, PLUGINS):
        operators.wait_served(own_plane.kubeconfig, f"{group}/podgroups")
    operators.service_account("ours", own_plane.kubeconfig)  # makes the namespace, too
    async with Api(own_plane.kubeconfig) as client:
        await client.allowed(OPERATOR, "", verb="list", group="kubeflow.org", resource="tfjobs")
        await client.allowed(OPERATOR, HOME, verb="create", group="coordination.k8s.io", resource="leases")
        yield client


@pytest.mark.timeout(600)
@pytest.mark.parametrize("own_plane", [{"audit": True}], indirect=True)
async def test_every_granted_right_is_used_and_no_other_is_requested(
    own_plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    work = _Work(own_plane, api, tmp_path)
    await api.create(CONFIG_MAPS, {"metadata": {"name": NAME}, "data": {"config.yaml": "profile: kips"}})
    config, elect = f"--config-map={HOME}/{NAME}", ["--leader-elect", f"--leader-election-namespace={HOME}"]
    async with work.operator("plain", config, *elect) as namespace:
        await work.until("get", "leases.coordination.k8s.io")
        await work.until("watch", "nodes")  # only where a profile decides
        await work.until("list", "priorityclasses.scheduling.k8s.io")
        await api.merge(f"{CONFIG_MAPS}/{NAME}", {"data": {"config.yaml": yaml.safe_dump({"profile": "fixed"})}})
        await work.plain(namespace)
    for scheduler, group in (("volcano", VOLCANO), ("scheduler-plugins-scheduler", PLUGINS)):
        async with work.operator(scheduler, f"--gang-scheduler-name={scheduler}") as namespace:
            await work.gang(namespace, f"{group}/namespaces/{namespace}/podgroups")
    granted, found = audit.granted(audit.rendered()), work.requests()
    assert not found.refused
    assert found.asked <= granted
    assert audit.unused(granted, found.asked, audit.RARE) == []


class _Work:
    """What makes the operator use each of its rights."""

    def __init__(self, plane: ControlPlane, api: Api, folder: Path) -> None:
        self._plane = plane
        self._api = api
        self._folder = folder

    def requests(self) -> audit.Requests:
        return audit.requests(self._plane.audit_log.read_text().splitlines())

    async def until(self, verb: str, resource: str) -> None:
        """Wait until the operator has asked for something."""
        try:
            async with asyncio.timeout(120):
                while f"{verb} {resource}" not in map(str, self.requests().asked):
                    await asyncio.sleep(0.3)
        except TimeoutError:
            raise AssertionError(f"not asked for: {verb} {resource}") from None

    @contextlib.asynccontextmanager
    async def operator(self, name: str, *arguments: str) -> AsyncIterator[str]:
        """One that has the rights of its manifests, in a new namespace whose pods run."""
        identity = await asyncio.to_thread(operators.service_account, "ours", self._plane.kubeconfig)
        namespace = await self._api.new_namespace()
        folder = self._folder / name
        options = {"namespace": namespace, "identity": identity, "arguments": [*arguments, "--image=example.org/x"]}

        async with (
            kubelet(self._api, namespace, runs_forever),
            running("ours", self._plane.kubeconfig, folder, **options),
        ):
            yield namespace

    async def plain(self, namespace: str) -> None:
        """Jobs whose names are taken, that adopt, shrink, are resized, end and are deleted."""
        api, jobs = self._api, tfjobs(namespace)
        other = {"metadata": {"name": "taken-worker-0"}}
        await api.create(pods(namespace), {**other, "spec": {"containers": [container()]}})
        await api.create(services(namespace), {**other, "spec": {"ports": [{"port": 1}]}})
        await api.create(jobs, tfjob("taken", Worker=1))
        await self.until("get", "pods")
        await self.until("get", "services")
        await api.delete(f"{jobs}/taken")

        ours = labels("job", "worker", 0)
        orphan = {"clusterIP": "None", "selector": ours, "ports": [{"port": 2222}]}
        await api.create(services(namespace), {"metadata": {"name": "job-worker-0", "labels": ours}, "spec": orphan})
        await api.create(jobs, tfjob("job", policy={"ttlSecondsAfterFinished": 0, "cleanPodPolicy": "All"}, Worker=2))
        await self.until("patch", "services")
        await self._running(namespace, "job", 2)
        await api.merge(f"{jobs}/job", {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}}})
        await self.until("patch", "pods")
        await self.until("delete", "pods")
        await self.until("delete", "services")
        await self.until("update", "tfjobs/status.kubeflow.org")
        ended = {"name": "tensorflow", "image": "", "imageID": "", "ready": False, "restartCount": 0}
        ended["state"] = {"terminated": {"exitCode": 0}}
        status = {"status": {"phase": "Succeeded", "containerStatuses": [ended]}}
        await api.merge(f"{pods(namespace)}/job-worker-0/status", status)
        await self.until("delete", "tfjobs.kubeflow.org")

        bounds = {f"{PREFIX}max-workers": "2", f"{PREFIX}checkpoint-dir": "/c"}
        image = container(command=["train"], resources={"requests": {"cpu": "1"}})
        elastic = tfjob("elastic", metadata={"annotations": bounds}, Worker=replica(containers=[image]), PS=1)
        await api.create(jobs, elastic)
        await self.until("patch", "tfjobs.kubeflow.org")
        await self._running(namespace, "elastic", 2)
        image["resources"] = {"requests": {"cpu": "2"}}
        await api.merge(f"{jobs}/elastic", {"spec": {"tfReplicaSpecs": {"Worker": replica(containers=[image])}}})
        await self.until("patch", "pods/resize")  # refused here, as no real node could do it
        for profile, verb in (("kips", "create"), ("fixed", "delete")):  # which moves jobs, and which does not
            await api.merge(f"{CONFIG_MAPS}/{NAME}", {"data": {"config.yaml": f"profile: {profile}"}})
            await self.until(verb, "poddisruptionbudgets.policy")
        await api.delete(f"{jobs}/elastic")

    async def gang(self, namespace: str, groups: str) -> None:
        """A PodGroup that changes with its job, and goes with its pods."""
        api, jobs, group = self._api, tfjobs(namespace), groups.split("/")[2]
        await api.create(jobs, tfjob("gang", policy={"schedulingPolicy": {"minAvailable": 2}}, Worker=2))
        await self.until("create", f"podgroups.{group}")
        await api.merge(f"{jobs}/gang", {"spec": {"runPolicy": {"schedulingPolicy": {"minAvailable": 1}}}})
        await self.until("patch", f"podgroups.{group}")
        await api.merge(f"{jobs}/gang", {"spec": {"runPolicy": {"suspend": True}}})
        await self.until("delete", f"podgroups.{group}")

    async def _running(self, namespace: str, name: str, count: int) -> None:
        async with asyncio.timeout(120):
            while True:
                found, _ = await self._api.items(
                    pods(namespace), labelSelector=f"training.kubeflow.org/job-name={name}"
                )
                if sum(pod["status"].get("phase") == "Running" for pod in found) == count:
                    return
                await asyncio.sleep(0.2)

"""What pods take of nodes is what the real kube-scheduler counts: generated pods, each on a node of its own.

Each node has what the operator counts for its pod, and a little more. Two probes, which no node can ever take because
they ask for a resource that none has, then show what the scheduler thinks is left there: `EXACT` asks for just that
little, and must be refused for that resource alone; `BEYOND` asks for one unit more of each resource, and must be
refused for all of them. The scheduler says on how many nodes which resource is missing, so that two probes are enough
for any number of pods.

    make test-scheduler    # PODS=500
"""

import asyncio
import os
import random
import re
from collections.abc import Sequence
from typing import Any, Final

import pytest

from elastic_tfjob.api.tfjob import CONTAINER
from elastic_tfjob.controller.job.inject import inject, requests_with
from elastic_tfjob.controller.model.cluster import ACTIVE_AND_BOUND, ForeignPod
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.quantities import requests_of
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from harness.api import CORE, NODES, Api, Object, pods
from harness.controlplane import ControlPlane

COUNT = int(os.environ.get("PODS") or 100)
GPU: Final = "nvidia.com/gpu"
NAMES: Final = ("cpu", "memory", GPU, "pods", "ephemeral-storage")
"""In the order of Resources."""
SPARE: Final = Resources(100, 2**20, 1, 1, 2**20)
NOWHERE: Final = {"example.com/nowhere": "1"}
EXACT: Final = {"cpu": "100m", "memory": "1Mi", GPU: "1", "ephemeral-storage": "1Mi"}
BEYOND: Final = {"cpu": "101m", "memory": str(2**20 + 1), GPU: "2", "ephemeral-storage": str(2**20 + 1)}
PLAIN, LIMITED = "plain", "limited"
"""Namespaces; the second has a LimitRange."""

# By amount, so that a limit can be chosen that is no less than a request. Some are rounded by the API server.
AMOUNTS: Final = {
    "cpu": ("0", "0.3m", "1m", "2e-1", "250m", "0.5", "1", "1500m"),
    "memory": ("0", "300m", "1500m", "1k", "64Mi", "100M", "0.5Gi", "1Gi"),
    "ephemeral-storage": ("0", "1", "10M", "1Gi"),
}
# More than all containers of a pod together, as the API server demands.
WHOLE_POD: Final = {
    "requests": {"cpu": "12", "memory": "10Gi"},
    "limits": {"cpu": "14500m", "memory": "12G"},
}


def amounts(choose: random.Random, *, limits: bool = True) -> Object:
    """`resources` of a container: requests, limits, both or none of each resource."""
    found: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for name, values in AMOUNTS.items():
        low, high = sorted(choose.choices(range(len(values)), k=2))
        which = choose.choice(("none", "request", "request", "limit", "both"))
        if which in ("request", "both"):
            found["requests"][name] = values[low]
        if which in ("limit", "both") and limits:
            found["limits"][name] = values[high]
    if choose.random() < 0.25:
        found["limits"][GPU] = choose.choice("123")
    return {kind: each for kind, each in found.items() if each}


def generated(choose: random.Random, index: int) -> Object:
    """A replica's pod that is bound to the node of its number from the beginning."""

    def container(name: str, **more: Any) -> Object:
        return {"name": name, "image": "fake", "resources": amounts(choose), **more}

    spec: Object = {
        "nodeName": f"node-{index}",
        "containers": [
            container(CONTAINER, command=["python"]),
            *(container(f"main-{i}") for i in range(choose.choice((0, 0, 1, 2)))),
        ],
        "initContainers": [
            container(f"init-{i}", **({"restartPolicy": "Always"} if choose.random() < 0.5 else {}))
            for i in range(choose.choice((0, 0, 1, 2, 3)))
        ],
    }
    if choose.random() < 0.35:
        spec["resources"] = {
            kind: {name: amount for name, amount in WHOLE_POD[kind].items() if choose.random() < 0.6}
            for kind in choose.choice((["requests"], ["limits"], ["requests", "limits"]))
        }
        of_containers = choose.random() < 0.7
        for each in (*spec["containers"], *spec["initContainers"]):
            if not of_containers:  # then a limit of the pod is its request
                each["resources"] = {}
            # The API server makes requests of the pod of what containers ask for, before it rounds that.
            for asked in each["resources"].values():
                asked.update({name: "1m" for name, amount in asked.items() if amount == "0.3m"})
        if "requests" in spec["resources"] and choose.random() < 0.4:  # and nothing beyond that
            least = requests_of({**spec, "resources": {}})
            spec["resources"]["requests"] = {"cpu": f"{least.cpu_millicores}m", "memory": str(least.memory_bytes)}
    if choose.random() < 0.3:
        spec["runtimeClassName"] = "sandboxed"
    labels = {
        "training.kubeflow.org/job-name": "job",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": str(index),
    }
    return {"metadata": {"name": f"pod-{index}", "labels": labels}, "spec": spec}


def reported(choose: random.Random, pod: Object) -> Object:
    """The status of a pod whose containers are being resized, or that has ended."""
    end = choose.random()
    if end < 0.08:
        return {"phase": "Succeeded" if end < 0.04 else "Failed"}

    def status(container: Object) -> Object:
        found = {"name": container["name"], "image": "fake", "imageID": "", "ready": True, "restartCount": 0}
        if choose.random() < 0.8:
            found["resources"] = amounts(choose) if choose.random() < 0.8 else {}
        if choose.random() < 0.7:
            found["allocatedResources"] = amounts(choose, limits=False).get("requests", {})
        return found

    pending = choose.choice((None, "Deferred", "Infeasible", "Infeasible"))
    conditions = [{"type": "PodResizeInProgress", "status": "True"}]
    if pending:
        conditions.append({"type": "PodResizePending", "status": "True", "reason": pending})
    return {
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": [status(each) for each in pod["spec"]["containers"] if choose.random() < 0.9],
        "initContainerStatuses": [
            status(each) for each in pod["spec"].get("initContainers", ()) if choose.random() < 0.9
        ],
    }


async def prepare(api: Api) -> None:
    for name in (PLAIN, LIMITED):
        await api.create(f"{CORE}/namespaces", {"metadata": {"name": name}})
    limits = {
        "type": "Container",
        "default": {"cpu": "1600m", "memory": "1100Mi"},
        "defaultRequest": {"cpu": "70m", "ephemeral-storage": "3Mi"},
    }
    await api.create(
        f"{CORE}/namespaces/{LIMITED}/limitranges", {"metadata": {"name": "limits"}, "spec": {"limits": [limits]}}
    )
    overhead = {"cpu": "0.3m", "memory": "120Mi"}
    await api.create(
        "/apis/node.k8s.io/v1/runtimeclasses",
        {"metadata": {"name": "sandboxed"}, "handler": "runc", "overhead": {"podFixed": overhead}},
    )


async def make(api: Api, index: int) -> None:
    """The pod of this number, as far as its life goes."""
    choose = random.Random(index)
    template = generated(choose, index)
    # The API server refuses pods whose containers get more by a LimitRange than the whole pod has.
    namespace = LIMITED if choose.random() < 0.2 and "resources" not in template["spec"] else PLAIN
    what = choose.choice(("none", "launcher", "sidecar", "both"))
    counted = requests_with(what, template["spec"])
    inject(template, what, "fake", None)
    made = await api.create(pods(namespace), template)
    if namespace == PLAIN and "runtimeClassName" not in template["spec"]:
        assert requests_of(made["spec"]) == counted, made["spec"]
    path = f"{pods(namespace)}/pod-{index}"
    if choose.random() < 0.5:
        await api.merge(f"{path}/status", {"status": reported(choose, made)})
    if choose.random() < 0.05:  # its node has no kubelet, so it stays, and takes what it takes
        await api.delete(path)


def node(name: str, taken: Resources) -> Object:
    total = taken.plus(SPARE)
    size = dict(zip(NAMES, (f"{total.cpu_millicores}m", *map(str, total[1:])), strict=True))
    return {"metadata": {"name": name, "labels": {"name": name}}, "status": {"allocatable": size, "capacity": size}}


async def probe(api: Api, asked: Object, nodes: Sequence[str]) -> dict[str, int]:
    """On how many of these nodes which resource is missing for a pod that asks for so much."""
    here = {"matchExpressions": [{"key": "name", "operator": "In", "values": list(nodes)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    spec = {
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": required},
        "containers": [{"name": "probe", "image": "fake", "resources": {"limits": {**asked, **NOWHERE}}}],
    }
    made = await api.create(pods("default"), {"metadata": {"generateName": "probe-"}, "spec": spec})
    name = made["metadata"]["name"]
    async for _, pod in api.watch(pods("default"), fieldSelector=f"metadata.name={name}"):
        for condition in pod["status"].get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                await api.delete(f"{pods('default')}/{name}", grace_period_s=0)
                missing = re.findall(r"(\d+) Insufficient (\S+?)[,.](?:\s|$)", condition["message"])
                return {resource: int(count) for count, resource in missing}
    raise AssertionError("the watch never ends")


async def agrees(api: Api, nodes: Sequence[str]) -> bool:
    """Whether the scheduler counts on each of these nodes what the operator counts."""
    exact, beyond = await probe(api, EXACT, nodes), await probe(api, BEYOND, nodes)
    nowhere = dict.fromkeys(NOWHERE, len(nodes))
    return exact == nowhere and beyond == {**dict.fromkeys(BEYOND, len(nodes)), **nowhere}


async def disagreeing(api: Api, nodes: Sequence[str]) -> str:
    """One of the nodes on which they count something else."""
    while len(nodes) > 1:
        half = len(nodes) // 2
        nodes = nodes[half:] if await agrees(api, nodes[:half]) else nodes[:half]
    return nodes[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("own_plane", [{"scheduler": True, "scheduler_qps": 500.0}], indirect=True)
async def test_the_requests_of_pods_are_those_that_kube_scheduler_counts(own_plane: ControlPlane) -> None:
    async with Api(own_plane.kubeconfig) as api:
        await prepare(api)
        await asyncio.gather(*(make(api, index) for index in range(COUNT)))
        taken = {f"node-{index}": NOTHING for index in range(COUNT)}
        raw: dict[str, Object] = {}
        for each in (await api.items(pods(), fieldSelector=ACTIVE_AND_BOUND))[0]:
            found = ForeignPod.parse(each)
            assert Pod.parse(each).requests == found.requests
            taken[found.node] = taken[found.node].plus(found.requests)
            raw[found.node] = each
        assert len(raw) < COUNT, "none has ended"
        await asyncio.gather(*(api.create(NODES, node(*each)) for each in taken.items()))
        for _ in range(20):  # the scheduler hears of pods and of nodes on two ways
            if await agrees(api, list(taken)):
                return
            await asyncio.sleep(0.5)
        wrong = await disagreeing(api, list(taken))
        pytest.fail(f"{wrong}: counted as {taken[wrong]}, and otherwise by kube-scheduler: {raw.get(wrong)}")

"""A model server beside the jobs: the sample manifests/samples/inference.yaml on the cluster, requests by a curve, and
as many replicas as the curve asks for. There is no metrics API on the cluster, so the driver plays the autoscaler: it
goes by the rate of the moment, not by what will come.

    service:
      curve: [[0, 0], [300, 0], [420, 20], [600, 0]]    # seconds, requests a second; evenly between the points
      per_replica: 8                                    # requests a second
      max_replicas: 3
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from harness import deploy, images, load, names
from harness.api import CORE, NODES, Api, ApiError, Object, pods
from harness.background import background
from harness.cluster import Cluster
from harness.load import Request, parse, rate
from harness.progress import CommandFailed
from harness.training import PREFIX
from live.scenario import ScenarioError

__all__ = ["NAMESPACE", "Service", "as_before", "read_service", "serving"]

NAMESPACE: Final = "serving"
NAME: Final = "digits-server"
SAMPLE: Final = images.ROOT / "manifests" / "samples" / "inference.yaml"
GENERATOR: Final = "bench-load"
"""The namespace of the load generator, which is no pod of the pool."""
SCRIPT: Final = Path(load.__file__).read_text()
_START_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Service:
    """`curve`: points (seconds from the begin of the load, requests a second). `per_replica`: requests a second."""

    curve: tuple[tuple[float, float], ...]
    per_replica: float
    max_replicas: int

    def replicas(self, at_s: float) -> int:
        """How many there shall be at a time; none where nothing is asked."""
        return min(self.max_replicas, math.ceil(rate(self.curve, at_s) / self.per_replica))


def read_service(raw: object, place: str) -> Service:
    """What a scenario file says of its service. Raises ScenarioError."""
    keys = ("curve", "per_replica", "max_replicas")
    if not isinstance(raw, dict) or set(raw) != set(keys):
        raise ScenarioError(f"{place}: service: an object of {', '.join(keys)} is needed, not {raw!r}")
    curve, per, most = (raw[key] for key in keys)
    if not isinstance(curve, list) or len(curve) < 2 or not all(map(_point, curve)):
        raise ScenarioError(f"{place}: service.curve: points [seconds, requests a second from 0 to 1000] are needed")
    if curve[0][0] != 0 or any(a[0] >= b[0] for a, b in pairwise(curve)):
        raise ScenarioError(f"{place}: service.curve: seconds from 0 on, rising")
    if not _number(per) or not 0 < per <= 1000:
        raise ScenarioError(f"{place}: service.per_replica: a number above 0 is needed, not {per!r}")
    if type(most) is not int or not 1 <= most <= 100:
        raise ScenarioError(f"{place}: service.max_replicas: a whole number from 1 to 100 is needed, not {most!r}")
    return Service(tuple((float(x), float(y)) for x, y in curve), float(per), most)


def _point(raw: Any) -> bool:
    return (
        isinstance(raw, list)
        and len(raw) == 2
        and all(map(_number, raw))
        and 0 <= raw[0] <= 86_400
        and 0 <= raw[1] <= 1000
    )


def _number(raw: object) -> bool:
    return isinstance(raw, int | float) and not isinstance(raw, bool)


@asynccontextmanager
async def serving(cluster: Cluster, api: Api, service: Service, generator_image: str) -> AsyncIterator[list[Request]]:
    """The service under load from now on. Once block and curve have ended, the list is filled and all is gone."""
    requests: list[Request] = []
    for namespace in (NAMESPACE, GENERATOR):
        await _gone(api, namespace)
        await api.create(f"{CORE}/namespaces", {"metadata": {"name": namespace}})
    try:
        await _apply(cluster, service.replicas(0))
        begin = await _begin(cluster, api, service, generator_image)
        async with background(_scale(api, service, begin)):
            yield requests
            await asyncio.sleep(max(0.0, begin + service.curve[-1][0] + load.TIMEOUT_S + 1 - time.time()))
        requests += parse(await _log(cluster))[1]
    finally:
        for namespace in (GENERATOR, NAMESPACE):  # whoever asks goes first
            await _gone(api, namespace)


async def _apply(cluster: Cluster, replicas: int) -> None:
    items = list(yaml.safe_load_all(names.local(SAMPLE)))
    (deployment,) = (item for item in items if item["kind"] == "Deployment")
    deployment["spec"]["replicas"] = replicas
    await asyncio.to_thread(cluster.kubectl, "-n", NAMESPACE, "apply", "-f", "-", stdin=yaml.safe_dump_all(items))
    waits = ("rollout", "status", f"deployment/{NAME}", f"--timeout={_START_S:.0f}s")
    await asyncio.to_thread(cluster.kubectl, "-n", NAMESPACE, *waits)


async def _begin(cluster: Cluster, api: Api, service: Service, image: str) -> float:
    """Start the load generator beside the control plane; when it began, Unix time."""
    await api.create(
        f"{CORE}/namespaces/{GENERATOR}/configmaps", {"metadata": {"name": "load"}, "data": {"load.py": SCRIPT}}
    )
    async with asyncio.timeout(_START_S):
        while not await _created(api, pods(GENERATOR), generator(service, image)):
            await asyncio.sleep(0.5)
        while not (begin := parse(await _log(cluster))[0]):
            await asyncio.sleep(0.5)
    return begin


async def _created(api: Api, collection: str, body: Object) -> bool:
    """Create an object; False: its namespace is so new that it has no service account yet."""
    try:
        await api.create(collection, body)
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    return True


def generator(service: Service, image: str) -> Object:
    """The pod of the load generator."""
    url = f"http://{NAME}.{NAMESPACE}/v1/models/digits:predict"
    curve = orjson.dumps(service.curve).decode()
    container = {
        "name": "load",
        "image": image,
        "command": ["python", "/load/load.py", url, f"--curve={curve}"],
        "volumeMounts": [{"name": "load", "mountPath": "/load"}],
    }
    spec = {
        **deploy.ON_CONTROL_PLANE,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "load", "configMap": {"name": "load"}}],
    }
    return {"metadata": {"name": "load"}, "spec": spec}


async def _log(cluster: Cluster) -> str:
    try:
        return await asyncio.to_thread(cluster.kubectl, "-n", GENERATOR, "logs", "load")
    except CommandFailed:  # it has not started
        return ""


async def _scale(api: Api, service: Service, begin: float) -> None:
    """As many replicas as the rate of the moment asks for."""
    have: int | None = None
    while True:
        wanted = service.replicas(time.time() - begin)
        if wanted != have:
            await api.merge(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}", {"spec": {"replicas": wanted}})
            have = wanted
        await asyncio.sleep(1.0)


async def _gone(api: Api, namespace: str) -> None:
    """Delete a namespace with all that is in it, if there is one, and wait until it is gone."""
    path = f"{CORE}/namespaces/{namespace}"
    while True:
        try:
            if "deletionTimestamp" not in (await api.get(path))["metadata"]:
                await api.delete(path)
        except ApiError as error:
            if error.status == 404:
                return
            if error.status != 409:
                raise
        await asyncio.sleep(1.0)


async def as_before(api: Api) -> None:
    """Nodes as if none had ever been lent, so that no run begins with what the one before it left."""
    for item in (await api.items(NODES))[0]:
        if f"{PREFIX}loan" in item["metadata"].get("annotations", {}):
            others = [each for each in item["spec"].get("taints", ()) if each["key"] != f"{PREFIX}loaned"]
            patch = {"metadata": {"annotations": {f"{PREFIX}loan": None}}, "spec": {"taints": others or None}}
            await api.merge(f"{NODES}/{item['metadata']['name']}", patch)

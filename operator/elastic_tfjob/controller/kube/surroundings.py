"""What the operator asks of the cluster that it runs in: its own namespace, image and Deployment, and the
priority classes."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Final

import structlog

from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Invalid
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.objects.cluster import OwnObject

__all__ = ["PriorityClasses", "own_image", "own_namespace", "own_object"]

log = structlog.get_logger(__name__)

_PRIORITIES_S: Final = 60.0
# What the operator does not learn of its own image at the first try it asks for again, later each time.
_IMAGE_S: Final = 1.0
_MAX_IMAGE_S: Final = 60.0
_SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def own_namespace() -> str:
    """The namespace of the operator's pod; `default` outside a cluster."""
    if namespace := os.environ.get("POD_NAMESPACE"):
        return namespace
    if os.path.exists(_SERVICE_ACCOUNT_NAMESPACE):
        with open(_SERVICE_ACCOUNT_NAMESPACE) as file:
            return file.read().strip()
    return "default"


async def own_image(api: ApiClient, asked: asyncio.Event) -> str:
    """The image of the operator's pod, which holds launcher and exporter; empty outside a cluster. `asked` is set when
    the first question has failed: jobs that need no launcher are not kept waiting."""
    name, again_s = os.environ.get("POD_NAME"), _IMAGE_S
    while name:
        try:
            pod = await api.get(f"/api/v1/namespaces/{own_namespace()}/pods/{name}")
            containers = pod["spec"]["containers"]
            return str(next((c for c in containers if c["name"] == "operator"), containers[0])["image"])
        except Exception as error:
            log.warning("own image not known; --image says it", error=excerpt(error), again_in_s=again_s)
        asked.set()
        await asyncio.sleep(again_s)
        again_s = min(2 * again_s, _MAX_IMAGE_S)
    return ""


async def own_object(api: ApiClient) -> OwnObject | None:
    """The Deployment of the operator's pod, else the pod; None outside a cluster. It asks until the API server answers.
    ReplicaSets are called after their Deployment, so none is read, which would take a right of its own."""
    name, namespace, again_s = os.environ.get("POD_NAME"), own_namespace(), _IMAGE_S
    while name:
        try:
            pod = await api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
            return await _deployment_of(api, pod) or OwnObject.of("v1", "Pod", pod)
        except Exception as error:
            log.warning("own Deployment not known: it gets no events", error=excerpt(error), again_in_s=again_s)
        await asyncio.sleep(again_s)
        again_s = min(2 * again_s, _MAX_IMAGE_S)
    return None


async def _deployment_of(api: ApiClient, pod: Mapping[str, Any]) -> OwnObject | None:
    """The Deployment that made the pod; None where there is none, or no right to look."""
    owners = pod["metadata"].get("ownerReferences") or ()
    for replica_set in (owner["name"] for owner in owners if owner["kind"] == "ReplicaSet"):
        path = f"/apis/apps/v1/namespaces/{pod['metadata']['namespace']}/deployments"
        try:
            answer = await api.get(path, fieldSelector=f"metadata.name={replica_set.rpartition('-')[0]}")
        except Invalid:
            return None
        for found in answer.get("items") or ():
            return OwnObject.of("apps/v1", "Deployment", found)
    return None


class PriorityClasses:
    """The priorities by class, read anew each minute; by "" that of pods that name no class, where there is one."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.values: Mapping[str, int] = {}

    async def follow(self) -> None:
        """Read them for ever."""
        while True:
            try:
                answer = await self._api.get("/apis/scheduling.k8s.io/v1/priorityclasses")
                found = [item for item in answer.get("items") or () if isinstance(item.get("value"), int)]
                values = {item["metadata"]["name"]: item["value"] for item in found}
                # Of several defaults the API server gives pods the one with the smallest value.
                defaults = [item["value"] for item in found if item.get("globalDefault")]
                self.values = {**values, "": min(defaults)} if defaults else values
            except ApiError as error:
                log.warning("priority classes not read", error=str(error))
            await asyncio.sleep(_PRIORITIES_S)

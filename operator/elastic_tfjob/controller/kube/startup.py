"""Checks for competing TFJob controllers before the operator starts, and reads what it needs from its own cluster."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from threading import Thread
from typing import Any, Final, TypeVar

import structlog

from elastic_tfjob.api.tfjob import GROUP, PLURAL
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Invalid
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.model.cluster import OwnObject

__all__ = ["PriorityClasses", "find_rivals", "on_volume", "own_image", "own_namespace", "own_object"]

log = structlog.get_logger(__name__)

_LABEL: Final = "control-plane=kubeflow-training-operator"
# The suffix of the Go training-operator's webhook names. Other webhooks for TFJobs (Kueue, policies) do not compete.
_WEBHOOK: Final = ".training-operator.kubeflow.org"
# The namespace in the manifests of the Go training-operator.
_NAMESPACE: Final = "kubeflow"
# Maximum number of untrusted Deployments that are read. Any user may create many, each larger than a megabyte.
_MOST_LISTED: Final = 10


async def find_rivals(api: ApiClient, *, own: str = "") -> list[str]:
    """Other controllers of TFJobs in this cluster: one sentence each, with the remedy.

    Finds a Go training-operator that is available and does not exclude TFJobs. Also finds its admission webhook for
    TFJobs, which rejects every job once that operator is gone. Without the right to read them, nothing is found.

    Any user may label a Deployment in their own namespace. Only Deployments in namespaces of an administrator count:
    `kubeflow`, the namespace `own` of this operator, and the namespaces that webhooks of the Go operator point to.
    """
    webhooks = await _items(api, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations")
    trusted = sorted({_NAMESPACE, own, *_webhooks_lead_to(webhooks)} - {""})
    deployments = [
        item
        for namespace in trusted
        for item in await _items(api, f"/apis/apps/v1/namespaces/{namespace}/deployments", labelSelector=_LABEL)
    ]
    await _warn_of_other_operators(api, trusted)
    return [*_deployments(deployments), *_webhooks(webhooks)]


async def _warn_of_other_operators(api: ApiClient, trusted: Collection[str]) -> None:
    """Log other Deployments that look like a training-operator. Any user may have created them, so neither their
    content nor an error prevents the operator's start."""
    try:
        elsewhere = ",".join(f"metadata.namespace!={namespace}" for namespace in trusted)
        path = "/apis/apps/v1/deployments"
        found = await _items(api, path, labelSelector=_LABEL, fieldSelector=elsewhere, limit=str(_MOST_LISTED))
        names = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in _at_work(found)]
    except Exception as error:
        log.warning("cannot look for other training-operators", error=f"{type(error).__name__}: {error}"[:200])
        return
    for namespace, name in names:
        log.warning(
            "a Deployment looks like a training-operator; any user may have created it. If it is one, scale it to 0",
            namespace=namespace,
            deployment=name,
        )


async def _items(api: ApiClient, path: str, **selectors: str) -> list[dict[str, Any]]:
    try:
        return (await api.get(path, most_bytes=None, **selectors))["items"] or []
    except Invalid as error:
        if error.status != 403:
            raise
        return []


def _at_work(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in items:
        available = (item.get("status") or {}).get("availableReplicas")
        if available and _runs_tfjobs(item["spec"]["template"]["spec"]["containers"]):
            yield item


def _deployments(items: list[dict[str, Any]]) -> Iterator[str]:
    for item in _at_work(items):
        name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
        yield (
            f"Deployment {namespace}/{name} is a training-operator that reconciles TFJobs: scale it to 0 "
            f"(kubectl -n {namespace} scale deployment {name} --replicas=0), or let it keep its other kinds with "
            "--enable-scheme=<kind> for each of them"
        )


def _runs_tfjobs(containers: list[dict[str, Any]]) -> bool:
    """Whether a Go training-operator reconciles TFJobs. Without --enable-scheme it reconciles all kinds it knows."""
    words = " ".join(word for item in containers for word in (*(item.get("command") or ()), *(item.get("args") or ())))
    schemes = [scheme.lower() for part in words.split("enable-scheme")[1:] for scheme in part.strip("= ").split()[:1]]
    return not schemes or "tfjob" in schemes


def _its(item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The webhooks of a configuration that belong to the Go training-operator."""
    return (webhook for webhook in item.get("webhooks") or () if webhook["name"].endswith(_WEBHOOK))


def _webhooks_lead_to(items: list[dict[str, Any]]) -> set[str]:
    """The namespaces of the services that webhooks of the Go training-operator call, for any kind of job."""
    services = (webhook.get("clientConfig", {}).get("service") for item in items for webhook in _its(item))
    return {service["namespace"] for service in services if service}


def _webhooks(items: list[dict[str, Any]]) -> Iterator[str]:
    for item in items:
        for webhook in _its(item):
            for rule in webhook.get("rules") or ():
                if GROUP in rule.get("apiGroups", ()) and PLURAL in rule.get("resources", ()):
                    name = item["metadata"]["name"]
                    yield (
                        f"ValidatingWebhookConfiguration {name} sends TFJobs to {webhook['name']}: remove that webhook "
                        "from it (the CRD of elastic-tfjob validates by itself), or every new TFJob is refused once "
                        "its server is gone"
                    )


# -- The operator's own namespace, image and Deployment, and the cluster's priority classes ----------------------------

_PRIORITIES_S: Final = 60.0
# Reading the operator's own image or Deployment is retried with a growing delay, from the first to the second value.
_IMAGE_S: Final = 1.0
_MAX_IMAGE_S: Final = 60.0
_SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def own_namespace() -> str:
    """The namespace of the operator's pod, `default` outside a cluster."""
    if namespace := os.environ.get("POD_NAMESPACE"):
        return namespace
    if os.path.exists(_SERVICE_ACCOUNT_NAMESPACE):
        with open(_SERVICE_ACCOUNT_NAMESPACE) as file:
            return file.read().strip()
    return "default"


async def own_image(api: ApiClient, asked: asyncio.Event) -> str:
    """The image of the operator's pod, which contains launcher and exporter; empty outside a cluster. Failed requests
    are retried. `asked` is set after the first failure, so that jobs without a launcher need not wait."""
    name, again_s = os.environ.get("POD_NAME"), _IMAGE_S
    while name:
        try:
            pod = await api.get(f"/api/v1/namespaces/{own_namespace()}/pods/{name}")
            containers = pod["spec"]["containers"]
            return str(next((c for c in containers if c["name"] == "operator"), containers[0])["image"])
        except Exception as error:
            log.warning("own image unknown; set --image", error=excerpt(error), again_in_s=again_s)
        asked.set()
        await asyncio.sleep(again_s)
        again_s = min(2 * again_s, _MAX_IMAGE_S)
    return ""


async def own_object(api: ApiClient) -> OwnObject | None:
    """The Deployment of the operator's pod, or the pod if it has none; None outside a cluster. Failed requests are
    retried. The Deployment's name follows from that of the ReplicaSet, so no right to read ReplicaSets is needed."""
    name, namespace, again_s = os.environ.get("POD_NAME"), own_namespace(), _IMAGE_S
    while name:
        try:
            pod = await api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
            return await _deployment_of(api, pod) or OwnObject.of("v1", "Pod", pod)
        except Exception as error:
            log.warning("own Deployment unknown, so it gets no events", error=excerpt(error), again_in_s=again_s)
        await asyncio.sleep(again_s)
        again_s = min(2 * again_s, _MAX_IMAGE_S)
    return None


async def _deployment_of(api: ApiClient, pod: Mapping[str, Any]) -> OwnObject | None:
    """The Deployment that created the pod; None if there is none, or without the right to read it."""
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
    """The priorities by class, read every minute. The key "" has the priority of pods without a class, if a default
    class exists."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.values: Mapping[str, int] = {}

    async def follow(self) -> None:
        """Read the classes without end."""
        while True:
            try:
                answer = await self._api.get("/apis/scheduling.k8s.io/v1/priorityclasses")
                found = [item for item in answer.get("items") or () if isinstance(item.get("value"), int)]
                values = {item["metadata"]["name"]: item["value"] for item in found}
                # With several default classes, the API server gives pods the one with the smallest value.
                defaults = [item["value"] for item in found if item.get("globalDefault")]
                self.values = {**values, "": min(defaults)} if defaults else values
            except ApiError as error:
                log.warning("priority classes not read", error=str(error))
            await asyncio.sleep(_PRIORITIES_S)


# -- Work on files of a volume, which may be slow or never return ------------------------------------------------------
# It runs in threads that do not delay the end of the process.

T = TypeVar("T")


def on_volume(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in a thread; the future gets its result or its Exception. The thread is a daemon, so that the process
    can end while it hangs. Python waits for the threads of asyncio's own pool."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failed)

    Thread(target=run, name="volume", daemon=True).start()
    return future

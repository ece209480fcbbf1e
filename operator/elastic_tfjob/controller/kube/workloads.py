"""Kueue's objects: their caches, and the writes of growth Workloads (planning/growth.py decides about them)."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import structlog

from elastic_tfjob.api.tfjob import CONTROLLER_NAME
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, NotFound
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import unending
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.kueue import GROWTH_LABEL, Cohort, LocalQueue, Queue, Workload
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.planning.growth import Action, Create, Delete, SetReady
from elastic_tfjob.controller.planning.kueue_quota import KueueObjects

__all__ = ["KueueCaches", "carry_out", "growth_workload"]

log = structlog.get_logger(__name__)

_GROUP: Final = "kueue.x-k8s.io/v1beta2"
_APPLY: Final = "application/apply-patch+yaml"
GROWTH_PRIORITY: Final = -1_000_000
"""Below every other Workload: whoever waits in the queue preempts growth first, and growth preempts nobody in it."""
_SYNC_S: Final = 60.0
"""Seconds that the first round waits for Kueue's objects."""
# What of a template decides what Kueue counts, and which flavors fit.
_KEPT: Final = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "overhead", "resources")
_KEPT_OF_CONTAINER: Final = ("name", "image", "resources", "restartPolicy")


class KueueCaches:
    """The caches of Workloads, queues and cohorts. They are filled once `start` finds that they can be read.

    `touched` is called with the key of a job when one of its Workloads changes, `wake` when a queue does. `problem`:
    why Kueue's objects cannot be read; empty: they can, or it is not known yet."""

    def __init__(
        self, api: ApiClient, *, namespace: str, touched: Callable[[Key], None], wake: Callable[[], None]
    ) -> None:
        self._api = api
        cluster = f"/apis/{_GROUP}"
        place = f"{cluster}/namespaces/{quote(namespace, safe='')}" if namespace else cluster

        def changed(_: Key) -> None:
            wake()

        def of_job(key: Key) -> None:
            if key[1]:  # Workloads of other frameworks change often, and start no round
                touched(key)

        self.workloads = Informer(api, f"{place}/workloads", Workload.parse, lambda _: None, touched=of_job)
        self.local_queues = Informer(api, f"{place}/localqueues", LocalQueue.parse, lambda _: None, touched=changed)
        self.queues = Informer(api, f"{cluster}/clusterqueues", Queue.parse, lambda _: None, touched=changed)
        self.cohorts = Informer(api, f"{cluster}/cohorts", Cohort.parse, lambda _: None, touched=changed)
        self._all = self.workloads, self.local_queues, self.queues, self.cohorts
        self.started = False
        self.problem = ""

    @property
    def synced(self) -> bool:
        """Whether all objects have been read."""
        return all(each.synced.is_set() for each in self._all)

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to read Kueue's objects, if the operator may, and wait until they have been read: jobs that have grown
        would shrink before. Sets `problem` if it may not; then it may be called again."""
        try:
            for informer in self._all:
                await self._api.get(informer.path, limit="1")
        except NotFound:
            self.problem = f"the API server does not serve {_GROUP}: Kueue v0.19 or newer is not installed"
            return
        except ApiError as error:
            self.problem = f"{error.message or error.reason} (manifests/components/kueue-growth has the rights)"
            return
        self.problem, self.started = "", True
        for informer in self._all:
            group.create_task(unending(informer.run), name=f"kueue-{informer.resource}")
        try:
            async with asyncio.timeout(_SYNC_S):
                for informer in self._all:
                    await informer.synced.wait()
        except TimeoutError:
            log.warning("Kueue's objects have not been read in time", waited_s=_SYNC_S)

    def objects(self) -> KueueObjects:
        """The objects as they are now."""
        return KueueObjects(
            self.workloads.of_job,
            {each.name: each for each in self.queues},
            {each.key: each for each in self.local_queues},
            {each.name: each for each in self.cohorts},
        )


def growth_workload(create: Create, job: TFJob) -> dict[str, Any]:
    """The growth Workload for one replica: what Kueue counts of the type's template. The base Workload owns it, since
    Kueue deletes other Workloads that the TFJob owns."""
    template = job.spec().tf_replica_specs[create.type].template.get("spec") or {}
    base = create.base
    spec: dict[str, Any] = {name: template[name] for name in _KEPT if template.get(name)}
    for name in ("containers", "initContainers"):
        if template.get(name):
            spec[name] = [
                {field: each[field] for field in _KEPT_OF_CONTAINER if each.get(field)} for each in template[name]
            ]
    owner = {"apiVersion": _GROUP, "kind": "Workload", "name": base.name, "uid": base.uid, "controller": True}
    return {
        "apiVersion": _GROUP,
        "kind": "Workload",
        "metadata": {
            "name": create.name,
            "namespace": job.namespace,
            "labels": {GROWTH_LABEL: job.name},
            "ownerReferences": [owner],
        },
        "spec": {
            "queueName": job.queue,
            "priority": GROWTH_PRIORITY,
            "podSets": [{"name": create.type.lower(), "count": 1, "template": {"spec": spec}}],
        },
    }


async def carry_out(api: ApiClient, action: Action, job: TFJob | None, now: datetime) -> Mapping[str, Any] | None:
    """Carry out an action. Returns the object as it is then; None: it does not exist. Raises ApiError, and InvalidTFJob
    for a job whose spec is invalid."""
    if isinstance(action, Create):
        assert job is not None
        path = f"/apis/{_GROUP}/namespaces/{quote(job.namespace, safe='')}/workloads"
        return await api.post(path, growth_workload(action, job))
    workload = action.workload
    path = f"/apis/{_GROUP}/namespaces/{quote(workload.namespace, safe='')}/workloads/{quote(workload.name, safe='')}"
    if isinstance(action, Delete):
        try:
            await api.delete(path, uid=workload.uid)
        except (NotFound, Conflict):  # it is gone, or another one has its name
            return None
        return None
    status: dict[str, Any]
    if isinstance(action, SetReady):
        condition = {
            "type": "PodsReady",
            "status": "True",
            "reason": "Started",
            "message": "The replica runs",
            "lastTransitionTime": format_time(now),
        }
        status = {"conditions": [condition]}
    else:
        status = {"reclaimablePods": [{"name": name, "count": n} for name, n in sorted(action.counts.items())]}
        if not action.counts:
            status = {}
    body = {
        "apiVersion": _GROUP,
        "kind": "Workload",
        "metadata": {"name": workload.name, "namespace": workload.namespace, "uid": workload.uid},
        "status": status,
    }
    return await api.patch(f"{path}/status?fieldManager={CONTROLLER_NAME}&force=true", body, _APPLY)

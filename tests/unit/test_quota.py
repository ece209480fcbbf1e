"""What all pods of another size take of a ResourceQuota together, before any pod ends for them."""

import asyncio
from typing import Any, cast

import pytest

from elastic_tfjob.controller.job.decision import Create, Decision, TryPods
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import Invalid
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.executor import Executor
from elastic_tfjob.controller.kube.informer import Caches
from elastic_tfjob.controller.model.quota import excess
from unit.build import UID, job

Raw = dict[str, Any]


def pod(requests: Raw, limits: Raw | None = None, **spec: Any) -> Raw:
    container = {"name": "tensorflow", "resources": {"requests": requests, "limits": limits or {}}}
    owner = [{"uid": UID, "controller": True}]
    return {"metadata": {"name": "p", "ownerReferences": owner}, "spec": {"containers": [container], **spec}}


def quota(used: Raw, hard: Raw, **spec: Any) -> Raw:
    return {"metadata": {"name": "team"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used}}


CPU = pod({"cpu": "1"}, {"cpu": "2"})
GPU = pod({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 1})
SIDECAR = pod({"cpu": "1"}, initContainers=[{"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}])
SOON = pod({"cpu": "1"}, activeDeadlineSeconds=60)
HUGE = pod({"cpu": "1", "hugepages-2Mi": "4Mi"})
OVERHEAD = pod({"cpu": "1"}, {"memory": "1Gi", "cpu": "0"}, overhead={"cpu": "1", "memory": "1Gi"})


def resized(has: str, reason: str) -> Raw:
    """One that asks for 1 CPU, with a limit of 2, and has so much, with a limit of twice that."""
    given = {"requests": {"cpu": has}, "limits": {"cpu": str(2 * float(has))}}
    pending = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    return {**CPU, "status": {"conditions": pending, "containerStatuses": [{"name": "tensorflow", "resources": given}]}}


URGENT = pod({"cpu": "1"}, priorityClassName="urgent")


def of_class(*names: str) -> Raw:
    return {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": names}]}}


@pytest.mark.parametrize(
    ("made", "gone", "coming", "fits"),
    [
        (quota({"requests.cpu": "2"}, {"requests.cpu": "4"}), [CPU] * 2, [(CPU, 4)], True),
        (quota({"requests.cpu": "2"}, {"requests.cpu": "3"}), [CPU] * 2, [(CPU, 4)], False),
        (quota({"cpu": "2"}, {"cpu": "3500m"}), [CPU] * 2, [(CPU, 4)], False),
        (quota({"limits.cpu": "4"}, {"limits.cpu": "7"}), [CPU] * 2, [(CPU, 4)], False),
        (quota({"pods": "2"}, {"pods": "3"}), [CPU] * 2, [(CPU, 3)], True),
        (quota({"count/pods": "3"}, {"count/pods": "4"}), [CPU] * 2, [(CPU, 4)], False),
        (quota({"requests.nvidia.com/gpu": 1}, {"requests.nvidia.com/gpu": 2}), [GPU], [(GPU, 3)], False),
        (quota({"requests.nvidia.com/gpu": 1}, {"requests.nvidia.com/gpu": 2}), [GPU], [(GPU, 2)], True),
        (quota({"cpu": "1500m"}, {"cpu": "4"}), [SIDECAR], [(SIDECAR, 3)], False),
        (quota({"hugepages-2Mi": "0"}, {"hugepages-2Mi": "8Mi"}), [], [(HUGE, 2)], True),
        (quota({"hugepages-2Mi": "0"}, {"hugepages-2Mi": "8Mi"}), [], [(HUGE, 3)], False),
        # The overhead is added to limits that there are, and 0 is none.
        (quota({"limits.cpu": "0"}, {"limits.cpu": "0"}), [], [(OVERHEAD, 2)], True),
        (quota({"limits.memory": "0"}, {"limits.memory": "3Gi"}), [], [(OVERHEAD, 2)], False),
        # What is resized leaves as much as it has, or is to get where it can.
        (quota({"cpu": "3"}, {"cpu": "3"}), [resized("3", "Deferred")], [(CPU, 3)], True),
        (quota({"limits.cpu": "6"}, {"limits.cpu": "6"}), [resized("3", "Infeasible")], [(CPU, 3)], True),
        (quota({"cpu": "1"}, {"cpu": "1"}), [resized("0.5", "Deferred")], [(CPU, 1)], True),
        (quota({"cpu": "500m"}, {"cpu": "500m"}), [resized("0.5", "Infeasible")], [(CPU, 1)], False),
        # One that is full already, by an administrator who lowered it: the same size would not come back either.
        (quota({"pods": "2"}, {"pods": "1"}), [CPU] * 2, [(CPU, 2)], False),
        # Others' pods are in `used`, and stay there; pods that have ended take nothing.
        (quota({"pods": "4"}, {"pods": "5"}), [CPU] * 2, [(CPU, 4)], False),
        (quota({"pods": "1"}, {"pods": "1"}), [{**CPU, "status": {"phase": "Succeeded"}}], [(CPU, 1)], False),
        # Scopes.
        (quota({"pods": "0"}, {"pods": "1"}, scopes=["BestEffort"]), [], [(CPU, 2)], True),
        (quota({"pods": "0"}, {"pods": "1"}, scopes=["BestEffort"]), [], [(pod({}), 2)], False),
        (quota({"pods": "0"}, {"pods": "1"}, scopes=["NotBestEffort"]), [], [(CPU, 2)], False),
        (quota({"pods": "0"}, {"pods": "1"}, scopes=["Terminating"]), [], [(CPU, 2)], True),
        (quota({"pods": "0"}, {"pods": "1"}, scopes=["Terminating"]), [], [(SOON, 2)], False),
        (quota({"pods": "0"}, {"pods": "1"}, scopes=["NotTerminating"]), [], [(CPU, 2)], False),
        (quota({"pods": "0"}, {"pods": "1"}, **of_class("urgent")), [], [(URGENT, 2)], False),
        (quota({"pods": "0"}, {"pods": "1"}, **of_class("other")), [], [(URGENT, 2)], True),
        (quota({"pods": "0"}, {"pods": "1"}, scopes=["Newer"]), [], [(CPU, 2)], True),
        (quota({"secrets": "9"}, {"secrets": "1"}), [], [(CPU, 2)], True),
    ],
)
def test_pods_are_added_up(made: Raw, gone: list[Raw], coming: list[tuple[Raw, int]], fits: bool) -> None:
    assert (excess([made], gone, coming) == "") is fits


class Api:
    """Admits each pod by itself, and has a quota."""

    def __init__(self, readable: bool) -> None:
        self.readable = readable

    async def post(self, path: str, body: Raw, **options: str) -> Raw:
        assert (path, options) == ("/api/v1/namespaces/ns/pods", {"dryRun": "All"})
        return body

    async def get(self, path: str) -> Raw:
        if path.endswith("/resourcequotas"):
            if not self.readable:
                raise Invalid("GET", 403, "Forbidden", "resourcequotas is forbidden")
            return {"items": [quota({"pods": "2"}, {"pods": "3"})]}
        stranger = {**CPU, "metadata": {"name": "other"}}
        return {"items": [CPU, stranger]}


@pytest.mark.parametrize("readable", [True, False])
def test_pods_are_tried_against_quotas_before_a_job_is_recreated(readable: bool) -> None:
    cache = cast("Any", None)

    async def said(count: int) -> str:
        api = cast("ApiClient", Api(readable))
        executor = Executor(api, Caches(cache, cache, cache, cache), cast("EventRecorder", None))
        tried = TryPods(7, (Create("Pod", "j-worker-1", lambda: CPU),), (count,), quota=False)
        await executor.carry_out(job(), Decision(actions=(tried,)))
        return executor.admission(job().uid)[7]

    assert asyncio.run(said(2)) == ""
    refused = "exceeded quota: team: the new pods need 3 pods in total, 2 of 3 is left after the old pods have ended"
    assert asyncio.run(said(3)) == (refused if readable else "")

"""The metric that names failed pods: why each failed, which are named, and what /metrics says of them."""

from datetime import timedelta
from typing import Any

import pytest

from elastic_tfjob.controller.kube.metrics import NAMESPACE_LIMIT, TOTAL_LIMIT, named_failures
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION, STOP_COMMAND
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import ContainerFailure, Pod, failure_of
from harness.background import until
from harness.controlplane import free_port
from unit.build import NOW, condition, job, pod

from .test_operator import Server, answer, running


def ended(name: str, code: int, reason: str = "Error") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"containerStatuses": [ended("tensorflow", 137, "OOMKilled")]}, ContainerFailure("OOMKilled", "137")),
        ({"containerStatuses": [ended("log", 1), ended("tensorflow", 2)]}, ContainerFailure("Error", "2")),
        ({"containerStatuses": [ended("tensorflow", 0, "Completed"), ended("log", 3)]}, ContainerFailure("Error", "3")),
        ({"initContainerStatuses": [ended("fetch", 4)], "containerStatuses": []}, ContainerFailure("Error", "4")),
        ({"reason": "Evicted"}, ContainerFailure("Evicted", "")),
        ({"reason": "Evicted", "containerStatuses": [ended("tensorflow", 143)]}, ContainerFailure("Evicted", "143")),
        ({"containerStatuses": [ended("tensorflow", 1, "a word of a tenant's")]}, ContainerFailure("Other", "1")),
        ({"containerStatuses": [ended("tensorflow", 2**31 - 1)]}, ContainerFailure("Error", "")),
        ({"containerStatuses": [ended("tensorflow", -1)]}, ContainerFailure("Error", "")),
        ({}, ContainerFailure("Other", "")),
        ({"phase": "Running", "containerStatuses": [ended("tensorflow", 1)]}, None),
        ({"phase": "Succeeded", "containerStatuses": [ended("tensorflow", 0)]}, None),
    ],
    ids=[
        "out of memory",
        "the container that trains goes first",
        "another container",
        "an init container",
        "evicted before it ran",
        "evicted as it ran",
        "a reason that nobody knows",
        "an exit code that no process has",
        "a negative exit code",
        "nothing is said",
        "runs",
        "succeeded",
    ],
)
def test_why_a_pod_failed(status: dict[str, Any], expected: ContainerFailure | None) -> None:
    assert failure_of({"phase": "Failed", **status}) == expected


def failed(index: int = 0, **state: Any) -> Pod:
    return pod("Worker", index, "Failed", status={"containerStatuses": [ended("tensorflow", 1)]}, **state)


def of(found: TFJob, *pods: Pod) -> list[tuple[TFJob, Pod]]:
    return [(found, each) for each in pods]


def since(type_: str, ago: timedelta) -> dict[str, Any]:
    moment = (NOW - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"conditions": [{**condition(type_), "lastTransitionTime": moment}]}


@pytest.mark.parametrize(
    ("status", "named"),
    [
        ({}, True),
        (since("Running", timedelta(days=3)), True),
        (since("Restarting", timedelta(0)), True),
        (since("Failed", timedelta(minutes=59)), True),
        (since("Failed", timedelta(minutes=61)), False),
        ({"conditions": [{**condition("Failed"), "lastTransitionTime": "yesterday"}]}, True),
        (since("Succeeded", timedelta(0)), False),
        ({"conditions": [condition("Succeeded"), condition("Failed")]}, True),
    ],
)
def test_failed_pods_are_named_by_the_state_of_their_job(status: dict[str, Any], named: bool) -> None:
    expected = [("ns", "j", "j-worker-0", "Error", "1")] if named else []
    assert named_failures(of(job(status=status), failed()), NOW) == (expected, 0)


def test_a_pod_that_the_operator_had_end_is_no_failure() -> None:
    ours = failed(annotations={COMMAND_ANNOTATION: STOP_COMMAND})
    assert named_failures(of(job(), ours, pod("Worker", 1)), NOW) == ([], 0)


def tenant(namespace: str, count: int) -> list[tuple[TFJob, Pod]]:
    """A job of a namespace with so many failed pods."""
    metadata: dict[str, Any] = {"namespace": namespace, "name": "j", "uid": f"{namespace}-uid", "resourceVersion": "1"}
    found = TFJob.parse({"metadata": metadata, "spec": {}})
    status = {"phase": "Failed", "containerStatuses": [ended("tensorflow", 1)]}
    pods = (
        Pod.parse({"metadata": {**metadata, "name": f"p-{n:05}", "uid": f"{n}"}, "status": status})
        for n in range(count)
    )
    return [(found, each) for each in pods]


def test_a_namespace_has_so_many_series_and_no_more() -> None:
    named, left_out = named_failures(tenant("many", NAMESPACE_LIMIT + 7) + tenant("few", 3), NOW)
    assert (len(named), left_out) == (NAMESPACE_LIMIT + 3, 7)
    assert sum(labels[0] == "few" for labels in named) == 3


def test_the_number_of_named_pods_is_limited_and_shared_by_namespaces() -> None:
    crowd = [pair for n in range(15) for pair in tenant(f"ns-{n:02}", NAMESPACE_LIMIT)]
    named, left_out = named_failures(crowd + tenant("zz-last", 1), NOW)
    assert len(named) == TOTAL_LIMIT
    assert left_out == 15 * NAMESPACE_LIMIT + 1 - TOTAL_LIMIT
    assert ("zz-last", "j", "p-00000", "Error", "1") in named
    # The same pods in another order give the same series: none of them flickers.
    assert named_failures([*tenant("zz-last", 1), *reversed(crowd)], NOW) == (named, left_out)


def raw_pod(owner: str, version: str = "2") -> dict[str, Any]:
    name = "training.kubeflow.org/job-name"
    metadata = {
        "namespace": "ns",
        "name": "j-worker-0",
        "uid": "pod-uid",
        "resourceVersion": version,
        "labels": {name: "j"},
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    return {"metadata": metadata, "status": {"phase": "Failed", "containerStatuses": [ended("tensorflow", 137)]}}


SERIES = (
    'elastic_tfjob_failed_pods{exit_code="137",job_namespace="ns",reason="Error",tfjob="j",tfjob_pod="j-worker-0"} 1.0'
)


async def test_metrics_name_a_failed_pod_while_it_is_there() -> None:
    port = free_port()
    async with running(Server("ns"), metrics_address=f"127.0.0.1:{port}") as (operator, _, _):
        await until(lambda: operator._leads)

        async def lines() -> list[str]:
            status, text = await answer(f"http://127.0.0.1:{port}/metrics")
            assert status == 200
            return [line for line in text.splitlines() if line.startswith("elastic_tfjob_failed_pods")]

        pods = operator._caches.pods
        pods.written(raw_pod("ns-uid"))
        assert await lines() == [SERIES, "elastic_tfjob_failed_pods_left_out 0.0"]
        # One that stands by has the same caches, and would tell each failure a second time.
        operator._leads = False
        assert await lines() == ["elastic_tfjob_failed_pods_left_out 0.0"]
        operator._leads = True
        # A pod that only says that it is of the job.
        pods.written(raw_pod("another-uid", "3"))
        assert await lines() == ["elastic_tfjob_failed_pods_left_out 0.0"]
        pods.written(raw_pod("ns-uid", "4"))
        assert SERIES in await lines()
        pods._remove("pod-uid", 5)
        assert await lines() == ["elastic_tfjob_failed_pods_left_out 0.0"]

"""Replicas need more memory than their template says: they get it before the kernel kills them, or after it did."""

import json
from typing import Any

import pytest
from kubernetes.utils.quantity import parse_quantity

from harness.cluster import shared_folder
from harness.growing import LIMIT, PROGRAM, growing
from harness.jobs import Jobs, Object, until
from harness.training import Lines, wait_for_step

from .test_elastic import ask, elastic, lost_steps, settled, state

MIB = 1 << 20


def apply(jobs: Jobs, name: str, grows: str, limit: str = LIMIT, **annotations: str) -> None:
    """A job whose parameter server grows, by harness/growing.py."""
    shared_folder(jobs.namespace)
    jobs.apply(PROGRAM)
    jobs.apply(growing(name, f"{jobs.namespace}/{name}", grows, limit, **annotations))


def container(jobs: Jobs, name: str) -> dict[str, Any]:
    """The status of the container that trains in the job's first parameter server."""
    statuses = jobs.pods(name)[f"{name}-ps-0"]["status"]["containerStatuses"]
    found: dict[str, Any] = next(each for each in statuses if each["name"] == "tensorflow")
    return found


def of_servers(jobs: Jobs, name: str) -> dict[str, Any]:
    """What the operator knows of the memory of the job's parameter servers."""
    found: dict[str, Any] = state(jobs, name).get("memory", {}).get("PS", {})
    return found


@pytest.mark.beside
def test_memory_is_raised_before_it_is_used_up_and_a_kill_is_named_and_teaches(jobs: Jobs) -> None:
    apply(jobs, "grows", "40 20 1", **{"max-memory": "ps=2Gi"})
    with Lines(jobs.cluster, jobs.namespace, "grows-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        until(
            lambda: (of_servers(jobs, "grows").get("highest") or 0) > 900 * MIB,
            180,
            lambda: f"it does not grow: {of_servers(jobs, 'grows')} {jobs.describe('grows')}",
        )
        assert "MemoryRaised" in jobs.describe("grows")
        assert container(jobs, "grows")["restartCount"] == 0
        assert lost_steps(lines) == 0
    jobs.kubectl("delete", "tfjob", "grows")
    # A jump, which nobody foresees: 300 MiB at once.
    apply(jobs, "jumps", "15 20 0", **{"max-memory": "ps=2Gi"})
    apply(jobs, "killed", "40 20 1")
    said = jobs.wait_for_words("killed", "OutOfMemory", "at its limit of 384 MiB", seconds=300)
    assert "elastic.kubeflow.org/max-memory" in said
    jobs.kubectl("delete", "tfjob", "killed")
    jobs.wait_for_words("jumps", "OutOfMemory", "Its memory is raised", seconds=300)
    before = state(jobs, "jumps").get("step") or 0
    until(
        lambda: (
            (of_servers(jobs, "jumps").get("highest") or 0) > 400 * MIB
            and (state(jobs, "jumps").get("step") or 0) > before
        ),
        180,
        lambda: f"it does not train on: {state(jobs, 'jumps')} {jobs.describe('jumps')}",
    )
    assert of_servers(jobs, "jumps")["kills"] <= 2
    assert container(jobs, "jumps")["restartCount"] <= 2


@pytest.mark.thorough  # the planner's part: tests/unit/test_memory.py; the kubelet's: by hand, with this test
def test_a_server_leaves_a_node_that_has_no_more_memory(jobs: Jobs) -> None:
    apply(jobs, "grows", "150 4 2", limit="512Mi", **{"max-memory": "ps=2Gi"})
    with Lines(jobs.cluster, jobs.namespace, "grows-chief-0") as lines:
        wait_for_step(lines, 20, 400)
        node = jobs.pods("grows")["grows-ps-0"]["spec"]["nodeName"]
        fill(jobs, node)
        settled(jobs, "grows", PS=1)
        until(
            lambda: node not in nodes_of_servers(jobs, "grows"),
            240,
            lambda: f"it stays: {of_servers(jobs, 'grows')} {jobs.describe('grows')}",
        )
        settled(jobs, "grows", PS=1)
        wait_for_step(lines, lines.last_step() + 40, 120)
        assert lost_steps(lines) == 0
    assert "has no more memory for its pods" in jobs.describe("grows")
    assert of_servers(jobs, "grows").get("kills", 0) == 0


@pytest.mark.thorough  # the operator's part: tests/unit/test_memory.py
def test_a_second_program_borrows_its_memory(jobs: Jobs) -> None:
    job: Object = elastic(jobs, "borrows", steps=100_000, annotations={"max-memory": "ps=2Gi"})
    types = job["spec"]["tfReplicaSpecs"]
    for replica in types.values():
        replica["template"]["spec"]["containers"][0]["command"].append("--embedding-mb=300")
    server = types["PS"]["template"]["spec"]["containers"][0]  # its program uses some 450 MiB
    server["resources"]["requests"]["memory"] = server["resources"]["limits"]["memory"] = "700Mi"
    jobs.apply(job)
    with Lines(jobs.cluster, jobs.namespace, "borrows-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        ask(jobs, "borrows", ps=2)
        settled(jobs, "borrows", PS=2)
        assert lost_steps(lines) == 0
    assert state(jobs, "borrows")["history"][-1]["mode"] == "overlap", jobs.describe("borrows")
    assert "waiting for the memory of a second program" in jobs.describe("borrows"), state(jobs, "borrows")["memory"]
    until(
        lambda: {memory_limit(pod) for name, pod in jobs.pods("borrows").items() if "-ps-" in name} == {700 * MIB},
        120,
        lambda: f"it is not given back: {state(jobs, 'borrows').get('memory')} {jobs.describe('borrows')}",
    )


def nodes_of_servers(jobs: Jobs, name: str) -> set[str]:
    pods = jobs.pods(name)
    return {pods[each]["spec"]["nodeName"] for each in pods if "-ps-" in each}


def memory_limit(pod: Object) -> int:
    (found,) = [each for each in pod["spec"]["containers"] if each["name"] == "tensorflow"]
    return int(parse_quantity(found["resources"]["limits"]["memory"]))


def fill(jobs: Jobs, node: str) -> None:
    """Have a pod request all memory that the node's pods leave."""
    free = parse_quantity(jobs.get("node", node)["status"]["allocatable"]["memory"])
    pods = json.loads(jobs.cluster.kubectl("get", "pods", "-A", "-o", "json", f"--field-selector=spec.nodeName={node}"))
    for pod in pods["items"]:
        for each in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            free -= parse_quantity(each.get("resources", {}).get("requests", {}).get("memory", "0"))
    template = elastic(jobs, "x", 1)["spec"]["tfReplicaSpecs"]["PS"]["template"]
    container = {**template["spec"]["containers"][0], "command": ["sleep", "3600"], "env": [], "volumeMounts": []}
    container["resources"] = {"requests": {"memory": str(int(free) - 32 * MIB)}}
    pod = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1}
    jobs.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fills"}, "spec": pod})

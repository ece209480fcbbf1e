"""Nodes come and go under jobs that train, as with an autoscaler (`make e2e-autoscaling`)."""

import json
from collections.abc import Iterator

import pytest

from harness import moves
from harness.cluster import Cluster, shared_folder
from harness.deploy import NAMESPACE, configured
from harness.jobs import Jobs, until
from harness.training import PREFIX, Lines, training, wait_for_step

from .test_elastic import elastic, finished, lost_steps, settled, state
from .test_elastic_faults import RIGHT, at
from .test_moves import history, moved, other_node

pytestmark = pytest.mark.autoscaling

ORDERS = """
profile: elastic
profiles: {elastic: {lend: none, cooldown_s: 5}}
autoscaling: {order: {when: always}}
"""
TAINT = "karpenter.sh/disrupted:NoSchedule"


@pytest.fixture
def ordering(cluster: Cluster) -> Iterator[None]:
    """The operator orders nodes, until the test is over."""
    with configured(cluster, ORDERS):
        yield


def placeholders(jobs: Jobs, name: str) -> list[str]:
    """The phases of a job's placeholder pods."""
    return [each["status"]["phase"] for each in jobs.get("pods", "-l", f"{PREFIX}order-of={name}")["items"]]


@pytest.mark.usefixtures("ordering")
def test_a_job_starts_small_and_grows_when_a_node_joins(jobs: Jobs) -> None:
    """Its placeholders wait for the node; no step is lost."""
    operator = json.loads(jobs.cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", "json"))["items"]
    away = next(each for each in jobs.cluster.workers() if each not in {pod["spec"]["nodeName"] for pod in operator})
    shared_folder(jobs.namespace)
    job = training(
        "joined",
        replicas={"Chief": 1, "PS": 1, "Worker": 4},
        arguments=["--steps=2400", "--report-every=10", "--checkpoint-every=10", "--at-most=20"],
        annotations={"min-workers": "1", "max-workers": "4"},
        cpu_m=200,
        cpu_limits=False,
        folder=f"{jobs.namespace}/joined",
    )
    with jobs.cluster.frozen(away):
        jobs.cluster.kubectl("delete", "node", away)
        jobs.apply(job)
        jobs.wait_for_words("joined", "NodesOrdered", seconds=60)
        until(lambda: "Pending" in placeholders(jobs, "joined"), 60, lambda: jobs.describe("joined"))
        until(lambda: bool(state(jobs, "joined").get("replicas")), 120, lambda: jobs.describe("joined"))
        small = state(jobs, "joined")["replicas"]["Worker"]
        assert 1 <= small < 4
        lines = Lines(jobs.cluster, jobs.namespace, "joined-chief-0")
        with lines:
            wait_for_step(lines, 20, 400)
    with Lines(jobs.cluster, jobs.namespace, "joined-chief-0") as lines:
        settled(jobs, "joined", Worker=4)
        until(lambda: not placeholders(jobs, "joined"), 60, lambda: jobs.describe("joined"))
        assert finished(jobs, "joined", lines, seconds=900).content["accuracy"] >= RIGHT
    assert {lost for _, lost in history(jobs, "joined")} == {0}


def test_replicas_leave_a_node_that_karpenter_drains(jobs: Jobs) -> None:
    """By its taint and no cordon. All replicas are on it, the chief as well."""
    jobs.apply(elastic(jobs, "drained", steps=1800, annotations=moves.ONE_SIZE))
    pods = [(jobs.cluster, jobs.namespace, f"drained-chief-{index}") for index in range(2)]
    with Lines(*pods[0]) as lines, Lines(*pods[1], beside=lines):
        wait_for_step(lines, 60, 400)
        here = at(jobs, "drained-chief-0")
        there = other_node(jobs, here)
        for kind in ("Worker", "PS"):
            if at(jobs, f"drained-{kind.lower()}-0") != here:
                moved(jobs, "drained", kind, here)
        generation = state(jobs, "drained")["generation"]
        jobs.cluster.kubectl("taint", "node", here, TAINT)
        try:
            for kind in ("Worker", "PS", "Chief"):
                moves.arrived(jobs, "drained", kind, [there], generation + 1)
        finally:
            jobs.cluster.kubectl("taint", "node", here, f"{TAINT}-")
        assert set(history(jobs, "drained")) <= {("live", 0), ("overlap", 0)}
        assert finished(jobs, "drained", lines, seconds=900).content["accuracy"] >= RIGHT
    assert lost_steps(lines) == 0

"""Replicas that train go to other nodes: the chief stays, and no step is lost."""

import json

from harness.jobs import Jobs, until
from harness.training import PREFIX, Lines, wait_for_step

from .test_elastic import elastic, finished, lost_steps, state
from .test_elastic_faults import RIGHT, at

ONE_SIZE = {"min-workers": "1", "max-workers": "1", "min-ps": "1", "max-ps": "1"}
"""A job that is never rescaled can be moved all the same."""


def other_node(jobs: Jobs, node: str) -> str:
    """A worker of the cluster that is not this one."""
    return next(name for name in jobs.cluster.workers() if name != node)


def move(jobs: Jobs, name: str, kind: str, node: str) -> None:
    """Have the first replica of a type run on another node, as a profile does."""
    before = json.loads(jobs.get("tfjob", name)["metadata"]["annotations"][f"{PREFIX}target"])
    generation = max(before["generation"], state(jobs, name)["generation"]) + 1
    nodes = {**before["nodes"], kind: [node]}
    target = {**before, "generation": generation, "nodes": nodes, "reason": "moved by the scenario"}
    jobs.kubectl("annotate", "tfjob", name, "--overwrite", f"{PREFIX}target={json.dumps(target)}")
    arrived(jobs, name, kind, node, generation)


def arrived(jobs: Jobs, name: str, kind: str, node: str, generation: int) -> None:
    """Wait until a type's only pod is on a node, and the job is at rest there."""

    def reached() -> bool:
        now = state(jobs, name)
        pods = [pod for pod in jobs.pods(name).values() if f"-{kind.lower()}-" in pod["metadata"]["name"]]
        there = [pod["spec"].get("nodeName") for pod in pods]
        return there == [node] and now.get("phase") == "Stable" and now["generation"] >= generation

    until(reached, 300, lambda: f"{kind} of {name} is not on {node} alone:\n{jobs.describe(name)}")


def history(jobs: Jobs, name: str) -> list[tuple[str, int]]:
    """Mode and lost steps of the changes that the job has been through."""
    return [(each["mode"], each["lost_steps"]) for each in state(jobs, name)["history"]]


def test_a_worker_and_a_ps_move_and_leave_a_drained_node(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "moved", steps=12000, annotations=ONE_SIZE))
    with Lines(jobs.cluster, jobs.namespace, "moved-chief-0") as lines:
        wait_for_step(lines, 200, 400)
        chief = jobs.pods("moved")["moved-chief-0"]["metadata"]["uid"]
        home = at(jobs, "moved-chief-0")
        away = other_node(jobs, home)
        if at(jobs, "moved-worker-0") == home:
            move(jobs, "moved", "Worker", away)
        if at(jobs, "moved-ps-0") == home:
            move(jobs, "moved", "PS", away)
        moves = len(history(jobs, "moved"))
        generation = state(jobs, "moved")["generation"]
        try:
            what = "--pod-selector=training.kubeflow.org/job-name=moved"
            jobs.cluster.kubectl("drain", away, "--ignore-daemonsets", "--delete-emptydir-data", "--force", what)
            for kind in ("Worker", "PS"):
                arrived(jobs, "moved", kind, home, generation + 1)
        finally:
            jobs.cluster.kubectl("uncordon", away)
        assert len(history(jobs, "moved")) > moves
        assert set(history(jobs, "moved")) == {("overlap", 0)}
        assert jobs.pods("moved")["moved-chief-0"]["metadata"]["uid"] == chief
        assert finished(jobs, "moved", lines).content["accuracy"] >= RIGHT
    assert lost_steps(lines) == 0
    until(
        lambda: not jobs.get("poddisruptionbudgets")["items"],
        60,
        lambda: "the job has ended, and its budget is still there",
    )

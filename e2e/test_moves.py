"""Replicas that train go to other nodes: the chief stays, and no step is lost."""

import pytest

from harness import moves
from harness.jobs import Jobs, until
from harness.training import Lines, wait_for_step

from .test_elastic import elastic, finished, lost_steps, state
from .test_elastic_faults import RIGHT, at


def other_node(jobs: Jobs, node: str) -> str:
    """A worker of the cluster that is not this one."""
    return next(name for name in jobs.cluster.workers() if name != node)


def moved(jobs: Jobs, name: str, kind: str, node: str) -> None:
    """Have the only replica of a type go to another node, and wait until it is there."""
    target = moves.move(jobs, name, kind, node)
    moves.arrived(jobs, name, kind, [node], target["generation"])


def history(jobs: Jobs, name: str) -> list[tuple[str, int]]:
    """Mode and lost steps of the changes that the job has been through."""
    return [(each["mode"], each["lost_steps"]) for each in state(jobs, name)["history"]]


@pytest.mark.thorough  # campaign: move-worker, move-ps, drain
def test_a_worker_and_a_ps_move_and_leave_a_drained_node(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "moved", steps=1800, annotations=moves.ONE_SIZE))
    with Lines(jobs.cluster, jobs.namespace, "moved-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        chief = jobs.pods("moved")["moved-chief-0"]["metadata"]["uid"]
        home = at(jobs, "moved-chief-0")
        away = other_node(jobs, home)
        if at(jobs, "moved-worker-0") == home:
            moved(jobs, "moved", "Worker", away)
        if at(jobs, "moved-ps-0") == home:
            moved(jobs, "moved", "PS", away)
        before = len(history(jobs, "moved"))
        generation = state(jobs, "moved")["generation"]
        try:
            what = "--pod-selector=training.kubeflow.org/job-name=moved"
            jobs.cluster.kubectl("drain", away, "--ignore-daemonsets", "--delete-emptydir-data", "--force", what)
            for kind in ("Worker", "PS"):
                moves.arrived(jobs, "moved", kind, [home], generation + 1)
        finally:
            jobs.cluster.kubectl("uncordon", away)
        assert len(history(jobs, "moved")) > before
        assert set(history(jobs, "moved")) <= {("live", 0), ("overlap", 0)}
        assert jobs.pods("moved")["moved-chief-0"]["metadata"]["uid"] == chief
        assert finished(jobs, "moved", lines, seconds=900).content["accuracy"] >= RIGHT
    assert lost_steps(lines) == 0
    until(
        lambda: not jobs.get("poddisruptionbudgets")["items"],
        180,
        lambda: "the job has ended, and its budget is still there",
    )

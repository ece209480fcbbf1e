"""Things that go wrong around a job that changes its size: it ends with the right model all the same."""

from harness.cluster import CHECKPOINTS
from harness.deploy import DEPLOYMENT, NAMESPACE
from harness.jobs import Jobs, until
from harness.training import Lines, wait_for_step
from test_elastic import ask, elastic, finished, lost_steps, settled, state

STEPS_A_CHECKPOINT = 5000
"""More steps than a job of these tests does between two checkpoints (10 s)."""


def kill(jobs: Jobs, pod: str, container: str = "tensorflow") -> None:
    """End a container's first process as a crash would."""
    jobs.kubectl("exec", pod, f"--container={container}", "--", "sh", "-c", "kill -TERM 1")


def test_a_killed_worker_and_a_killed_ps_cost_a_checkpoint_interval_at_most(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "hurt", steps=8000))
    with Lines(jobs.cluster, jobs.namespace, "hurt-chief-0") as lines:
        wait_for_step(lines, 500, 240)
        kill(jobs, "hurt-worker-0")
        wait_for_step(lines, lines.last_step() + 500, 120)
        kill(jobs, "hurt-ps-0")
        assert finished(jobs, "hurt", lines).content["accuracy"] >= 0.95
    assert lost_steps(lines) <= STEPS_A_CHECKPOINT


def test_the_operator_is_killed_during_a_rescale(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "orphan", steps=8000))
    with Lines(jobs.cluster, jobs.namespace, "orphan-chief-0") as lines:
        wait_for_step(lines, 200, 240)
        ask(jobs, "orphan", workers=2)
        until(lambda: state(jobs, "orphan").get("phase") == "Preparing", 60, lambda: f"{state(jobs, 'orphan')}")
        select = "--selector=control-plane=elastic-tfjob-operator"
        jobs.cluster.kubectl("-n", NAMESPACE, "delete", "pod", select, "--grace-period=0", "--force")
        settled(jobs, "orphan", Worker=2)
        assert finished(jobs, "orphan", lines).content["accuracy"] >= 0.95
    assert lost_steps(lines) == 0
    jobs.cluster.kubectl("-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=120s")


def test_a_volume_that_takes_no_checkpoint_refuses_the_rescale_and_training_goes_on(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "full", steps=10000))
    with Lines(jobs.cluster, jobs.namespace, "full-chief-0") as lines:
        wait_for_step(lines, 200, 240)
        folder = CHECKPOINTS / jobs.namespace / "full"
        folder.chmod(0o555)  # as the job's user sees a read-only volume
        ask(jobs, "full", workers=2)
        until(lambda: bool(state(jobs, "full").get("refused")), 180, lambda: f"not refused: {state(jobs, 'full')}")
        assert "RescaleRolledBack" in jobs.kubectl("describe", "tfjob", "full")
        wait_for_step(lines, lines.last_step() + 100, 60)
        folder.chmod(0o777)
        assert finished(jobs, "full", lines).content["accuracy"] >= 0.95
    assert lost_steps(lines) == 0

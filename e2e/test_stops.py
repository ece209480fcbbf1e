"""A running job is stopped for one of a higher priority, and goes on later: real TensorFlow, and nothing is lost."""

from collections.abc import Iterator

import pytest

from harness.cluster import Cluster
from harness.deploy import configured
from harness.jobs import UNTIL_TOLD, Jobs, end, sleepers, until
from harness.training import PREFIX, Lines, wait_for_step

from .test_elastic import elastic, finished, lost_steps, state

PRIORITY = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: e2e-urgent}
value: 1000
"""


@pytest.fixture
def preemptive(cluster: Cluster) -> Iterator[None]:
    """The operator follows a profile that preempts, until the test is over."""
    cluster.kubectl("apply", "-f", "-", stdin=PRIORITY)
    try:
        with configured(cluster, "profile: las\nprofiles: {las: {stop_cooldown_s: 20}}\n"):
            yield
    finally:
        cluster.kubectl("delete", "priorityclass", "e2e-urgent", "--wait=false")


def reason(jobs: Jobs, name: str) -> str:
    """Of the job's condition that was set last."""
    conditions = jobs.get("tfjob", name).get("status", {}).get("conditions", [])
    return str([each for each in conditions if each["status"] == "True"][-1]["reason"])


@pytest.mark.thorough  # campaign: preempted; SIGTERM saves: pod/test_elastic.py
@pytest.mark.usefixtures("preemptive")
def test_preempted_and_resumed_without_losing_a_step(jobs: Jobs) -> None:
    """One of a fixed size: it needs a checkpoint-dir for that, and no bounds with room between them."""
    one_size = {"min-workers": "1", "max-workers": "1", "min-ps": "1", "max-ps": "1"}
    jobs.apply(elastic(jobs, "digits", steps=1600, cpu_m=450, annotations=one_size))
    with Lines(jobs.cluster, jobs.namespace, "digits-chief-0") as lines:
        wait_for_step(lines, 200, 400)
        urgent = sleepers("urgent", command=UNTIL_TOLD, Worker=1)
        urgent["metadata"]["annotations"] = {f"{PREFIX}placement": "auto"}
        pod = urgent["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["priorityClassName"] = "e2e-urgent"
        pod["containers"][0]["resources"] = {"requests": {"cpu": "700m"}}
        jobs.apply(urgent)
        until(
            lambda: state(jobs, "digits").get("phase") == "Waiting",
            400,
            lambda: f"digits was not stopped: {state(jobs, 'digits')}\n{jobs.describe('digits')}",
        )
        until(lambda: reason(jobs, "digits") == "TFJobStopped", 60, lambda: jobs.describe("digits"))
        jobs.wait_for("urgent", "Running", 400)
        stop = state(jobs, "digits")["stop"]
        assert (stop["lost"], stop["cause"]) == (0, "preempt")
        assert stop["saved"] >= 200
        end(jobs, "urgent-worker-0")
        jobs.wait_for("urgent", "Succeeded", 400)
        jobs.wait_for("digits", "Running", 400)
        last = finished(jobs, "digits", lines)
    assert last.content["accuracy"] >= 0.95
    assert lost_steps(lines) == 0
    stopped, resumed = f"Stopped at step {stop['saved']}, no step is lost", f"Resumed at step {stop['saved']}"
    told = jobs.wait_for_words("digits", "Stopping", stopped, resumed)
    assert "CheckpointMissed" not in told

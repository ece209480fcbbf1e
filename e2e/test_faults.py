"""Things that go wrong around a job."""

import re

import pytest

from harness.deploy import kill_operator, operator_log, wait_ready
from harness.jobs import UNTIL_TOLD, Jobs, end, sleepers, until


@pytest.mark.thorough  # integration/test_scheduling.py, with the real scheduler
def test_a_job_that_cannot_be_scheduled_waits_and_says_why(jobs: Jobs) -> None:
    job = sleepers("huge", Worker=1)
    container = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": "1000"}}
    jobs.apply(job)

    def events() -> str:
        """Of the job and of its pod: where a person looks."""
        return jobs.kubectl("describe", "tfjob", "huge") + jobs.kubectl("events", "--for=pod/huge-worker-0")

    until(lambda: "Insufficient cpu" in events(), 180, lambda: "no event says why:\n" + events())
    assert jobs.conditions("huge") == ["Created"]
    # and it runs as soon as it can
    jobs.kubectl("delete", "tfjob", "huge")
    container["resources"] = {"requests": {"cpu": "10m"}}
    jobs.apply(job)
    jobs.wait_for("huge", "Running")


@pytest.mark.thorough  # the operator is killed during a rescale, which is more
def test_a_job_outlives_the_operators_pod(jobs: Jobs) -> None:
    """The operator's pod is deleted while a job runs; the job's end, which comes later, is still seen."""
    jobs.apply(sleepers("calm", command=UNTIL_TOLD, PS=1, Worker=2))
    jobs.wait_for("calm", "Running")
    before = {name: pod["metadata"]["uid"] for name, pod in jobs.pods("calm").items()}
    kill_operator(jobs.cluster)
    end(jobs, "calm-worker-0")
    jobs.wait_for("calm", "Succeeded")
    after = {name: pod["metadata"]["uid"] for name, pod in jobs.pods("calm").items()}
    assert after.items() <= before.items()  # no pod was made anew
    wait_ready(jobs.cluster)


@pytest.mark.beside
def test_a_failing_replica_fails_the_job_and_its_exit_code_is_told(jobs: Jobs) -> None:
    job = sleepers("broken", command="exit 3", Worker=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    jobs.apply(job)
    jobs.wait_for("broken", "Failed")
    jobs.wait_for_words("broken", "ExitedWithCode")


def test_the_operators_role_is_enough(jobs: Jobs) -> None:
    """After all the work above, the API server has refused the operator nothing."""
    jobs.apply(sleepers("last", command="true", Worker=1))
    jobs.wait_for("last", "Succeeded")
    assert not re.findall(r"User \S+ cannot .*", operator_log(jobs.cluster))

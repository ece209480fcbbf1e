"""From the Go training-operator to ours, in the middle of running jobs: as a user would migrate.

The Go operator v1.8.1 runs in the cluster, installed by its own manifests with webhook and CRD; only its image is one
that was built from the same Go module.
"""

from collections.abc import Iterator

import pytest

from harness import deploy, images
from harness.cluster import Cluster
from harness.jobs import UNTIL_TOLD, Jobs, Object, end, sleepers, until
from harness.progress import CommandFailed

WEBHOOK = "validatingwebhookconfiguration/validator.training-operator.kubeflow.org"


@pytest.fixture
def our_image(cluster: Cluster) -> Iterator[str]:
    """The Go operator runs instead of ours, whose image this is; afterwards it is the other way round, with as many
    replicas of ours as there were: under MONKEY=1 two."""
    ours = images.operator()
    replicas = cluster.kubectl("-n", deploy.NAMESPACE, "get", deploy.DEPLOYMENT, "-o", "jsonpath={.spec.replicas}")
    scale(cluster, 0)
    try:
        with deploy.go_operator(cluster):
            yield ours
    finally:
        deploy.install(cluster, ours)
        scale(cluster, int(replicas))


def scale(cluster: Cluster, replicas: int) -> None:
    """Scale our operator, and wait until it is so."""
    cluster.kubectl("-n", deploy.NAMESPACE, "scale", deploy.DEPLOYMENT, f"--replicas={replicas}")
    cluster.kubectl("-n", deploy.NAMESPACE, "rollout", "status", deploy.DEPLOYMENT, "--timeout=180s")


@pytest.mark.thorough  # conformance has it as H20a, with the same Go operator
def test_jobs_go_on_when_our_operator_takes_over(our_image: str, jobs: Jobs) -> None:
    cluster = jobs.cluster
    # refused at first while the webhook's certificate spreads
    until(lambda: applied(jobs, sleepers("runs", command=UNTIL_TOLD, PS=1, Worker=2)), 180, lambda: "not admitted")
    jobs.apply(sleepers("early", command="true", Worker=1))
    jobs.wait_for("runs", "Running")
    jobs.wait_for("early", "Succeeded")
    pods = {name: pod["metadata"]["uid"] for name, pod in jobs.pods("runs").items()}
    created = jobs.get("tfjob", "runs")["status"]["conditions"][0]
    assert len(pods) == 3

    # Ours sees that another one is at work: it says so, and does not act.
    deploy.install(cluster, our_image)
    # Both in one look: its container begins again and again, and has said nothing at first.
    until(lambda: refused(last_words(cluster)), 180, lambda: "no refusal:\n" + last_words(cluster))

    # The migration, as docs/migration.md has it.
    cluster.kubectl("-n", deploy.NAMESPACE, "scale", "deployment/training-operator", "--replicas=0")
    cluster.kubectl("delete", WEBHOOK)
    scale(cluster, 0)
    scale(cluster, 1)

    end(jobs, "runs-worker-0")
    assert jobs.conditions("early")[-1] == "Succeeded"
    jobs.wait_for("runs", "Succeeded")
    status = jobs.get("tfjob", "runs")["status"]
    assert [c["type"] for c in status["conditions"]] == ["Created", "Running", "Succeeded"]
    assert status["conditions"][0] == created
    assert status["replicaStatuses"]["Worker"]["succeeded"] >= 1
    now = {name: pod["metadata"]["uid"] for name, pod in jobs.pods("runs").items()}
    assert now.items() <= pods.items()  # pods may have been cleaned up; none was made


def applied(jobs: Jobs, job: Object) -> bool:
    try:
        jobs.apply(job)
    except CommandFailed as error:
        if "failed calling webhook" not in str(error):
            raise
        return False
    return True


def refused(words: str) -> bool:
    """Whether our operator has said that another one is there, and why that matters."""
    return "training-operator" in words and "reconciles TFJobs" in words


def last_words(cluster: Cluster) -> str:
    """What our operator's pod logged, or what its container that ended did."""
    try:
        return deploy.operator_log(cluster)
    except CommandFailed as error:
        return str(error)

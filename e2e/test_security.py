"""The operator's pod under the strictest Pod Security standard, what tenants may not do, and its rights."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from harness import audit
from harness.cluster import Cluster
from harness.deploy import DEPLOYMENT, NAMESPACE
from harness.jobs import Jobs, sleepers, until
from harness.progress import CommandFailed

from .conftest import LEFT_OUT

NOT_HERE = {"test_people.py", "test_pipelines.py"}
"""`make e2e-people` plays them."""


@pytest.mark.beside
def test_the_operators_pod_meets_restricted(jobs: Jobs) -> None:
    """The API server itself judges, in a namespace that enforces the standard."""
    jobs.restrict()
    deployment = json.loads(jobs.cluster.kubectl("-n", NAMESPACE, "get", DEPLOYMENT, "-o", "json"))
    spec = deployment["spec"]["template"]["spec"] | {"serviceAccountName": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": spec}
    spec.pop("serviceAccount", None)

    def admit() -> None:
        jobs.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))

    secure = spec.pop("securityContext")  # the namespace does enforce
    with pytest.raises(CommandFailed, match="violates PodSecurity"):
        admit()
    spec["securityContext"] = secure
    admit()


@pytest.mark.beside
def test_the_operator_runs_without_root_and_cannot_write_its_files(jobs: Jobs) -> None:
    def inside(*command: str) -> str:
        return jobs.cluster.kubectl("-n", NAMESPACE, "exec", DEPLOYMENT, "--", *command)

    assert inside("id", "-u").strip() != "0"
    with pytest.raises(CommandFailed, match="Read-only file system"):
        inside("touch", "/opt/venv/written")


@pytest.mark.beside
def test_a_tenant_does_not_write_what_is_the_operators(jobs: Jobs) -> None:
    """The policies are installed and act; what they say exactly is tested in tests/integration/test_admission.py."""
    jobs.kubectl("create", "rolebinding", "tenant", "--clusterrole=cluster-admin", "--user=tenant")
    until(lambda: may(jobs, "tenant"), 60, lambda: "the tenant has no rights")
    jobs.apply(sleepers("job", Worker=1))
    with pytest.raises(CommandFailed, match=r"only the operator may write elastic\.kubeflow\.org/state"):
        jobs.kubectl("annotate", "--as=tenant", "tfjob", "job", "elastic.kubeflow.org/state={}")
    jobs.wait_for("job", "Running")
    with pytest.raises(CommandFailed, match=r"only the operator of TFJobs may write elastic\.kubeflow\.org/command"):
        jobs.kubectl("annotate", "--as=tenant", "pod", "job-worker-0", "elastic.kubeflow.org/command={}")
    jobs.kubectl("annotate", "--as=tenant", "tfjob", "job", "elastic.kubeflow.org/placement=pack")
    jobs.kubectl("delete", "--as=tenant", "tfjob", "job")


def may(jobs: Jobs, user: str) -> bool:
    """Whether a user may do all in the namespace, which the API server knows a moment after a binding was made."""
    try:
        jobs.kubectl("auth", "can-i", "*", "*", f"--as={user}")
    except CommandFailed:
        return False
    return True


@pytest.mark.last
def test_only_the_leader_wrote(cluster: Cluster, begun: datetime) -> None:
    """With MONKEY=1 the lease changes hands every 30 s."""
    assert audit.beside_the_leader(cluster.audit_log(), since=begun) == []


@pytest.mark.last
def test_the_operators_rights_are_those_that_it_used(
    cluster: Cluster, begun: datetime, request: pytest.FixtureRequest
) -> None:
    """By the API server's audit log of this run; that each right was used, only after a run of all scenarios. After
    another run it is skipped at its end."""
    granted, found = audit.granted(audit.rendered()), audit.requests(cluster.audit_log(), since=begun)
    assert not found.refused
    assert found.asked <= granted
    scenarios = {path.name for path in Path(__file__).parent.glob("test_*.py")} - NOT_HERE
    left_out = request.config.stash.get(LEFT_OUT, []) or scenarios - {item.path.name for item in request.session.items}
    if left_out or request.session.testsfailed:
        pytest.skip("no right was lacking; whether each was used, only a run of all scenarios can tell")
    assert audit.unused(granted, found.asked, audit.RARE, audit.NOT_IN_E2E) == []

"""The operator's pod under the strictest Pod Security standard."""

import json

import pytest

from harness.deploy import DEPLOYMENT, NAMESPACE
from harness.jobs import Jobs
from harness.progress import CommandFailed


def test_the_operators_pod_meets_restricted(jobs: Jobs) -> None:
    """The API server itself judges, in a namespace that enforces the standard."""
    jobs.cluster.kubectl("label", "namespace", jobs.namespace, "pod-security.kubernetes.io/enforce=restricted")
    deployment = json.loads(jobs.cluster.kubectl("-n", NAMESPACE, "get", DEPLOYMENT, "-o", "json"))
    spec = deployment["spec"]["template"]["spec"] | {"serviceAccountName": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": spec}
    spec.pop("serviceAccount", None)

    def admit() -> None:
        jobs.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))

    admit()
    del spec["securityContext"]  # the namespace does enforce
    with pytest.raises(CommandFailed, match="violates PodSecurity"):
        admit()


def test_the_operator_runs_without_root_and_cannot_write_its_files(jobs: Jobs) -> None:
    def inside(*command: str) -> str:
        return jobs.cluster.kubectl("-n", NAMESPACE, "exec", DEPLOYMENT, "--", *command)

    assert inside("id", "-u").strip() != "0"
    with pytest.raises(CommandFailed, match="Read-only file system"):
        inside("touch", "/opt/venv/written")

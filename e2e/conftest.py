"""Scenarios on a real kind cluster with the operator deployed: `make e2e`.

A test gets `jobs`: a namespace of its own, and kubectl in it. The cluster stays when the tests are done.
"""

import uuid
from collections.abc import Iterator

import pytest

from harness.cluster import Cluster
from harness.deploy import deploy, operator_log
from harness.jobs import Jobs


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return deploy()


@pytest.fixture
def jobs(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    namespace = "e2e-" + uuid.uuid4().hex[:8]
    cluster.kubectl("create", "namespace", namespace)
    yield Jobs(cluster, namespace)
    if request.session.testsfailed:
        print(operator_log(cluster, tail=40))
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")

"""A job that Kueue admits holds what was admitted, and says that it holds it until its pods have ended."""

from dataclasses import replace
from typing import Any, cast

import pytest

from elastic_tfjob.controller.job.inject import inject, resources_of
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.startup import find_rivals
from elastic_tfjob.controller.model.quantities import requests_of
from elastic_tfjob.controller.model.target import Target
from unit.build import decide, job, pod
from unit.pretend import Cluster, ReconcileSettings

QUEUE = "team-a"


def placed(**types: int) -> Cluster:
    """A queued job that was admitted with 1 PS and 2 workers, and trains with `types` on node a."""
    cluster = Cluster(
        settings=ReconcileSettings(image="operator:1", wait_for_target=True), types={"PS": 1, "Worker": 2}, queue=QUEUE
    )
    aim(cluster, 0, **{name: ("a",) * count for name, count in types.items()})
    cluster.run(6)
    return cluster


def aim(cluster: Cluster, generation: int, **nodes: tuple[str, ...]) -> None:
    """Write a target with these nodes."""
    size = {name: len(names) for name, names in nodes.items()}
    target = Target(generation, size, nodes, {}, "wanted", dict(cluster.types))
    cluster.annotations["elastic.kubeflow.org/target"] = target.to_json()


def most_pods(cluster: Cluster, rounds: int = 40) -> int:
    """Pods that the job has at most while so many rounds go by."""
    found = 0
    for _ in range(rounds):
        cluster.run(1)
        found = max(found, len(cluster.pods))
    return found


def test_no_pod_is_made_beside_one_that_moves() -> None:
    cluster = placed(PS=1, Worker=2)
    aim(cluster, 1, PS=("a",), Worker=("a", "b"))
    assert most_pods(cluster) == 3
    assert [each.mode for each in cluster.state.history] == ["recreate"]
    assert cluster.pods["j-worker-1"].node == "b"
    assert "Kueue admitted only 2 workers (queue team-a), so no pods can be prepared beside them" in str(cluster.events)


def test_a_smaller_job_has_room_for_one_that_moves() -> None:
    cluster = placed(PS=1, Worker=1)
    aim(cluster, 1, PS=("b",), Worker=("a",))
    assert most_pods(cluster) == 2
    cluster = placed(PS=1, Worker=1)
    cluster.types = {"PS": 2, "Worker": 2}
    aim(cluster, 1, PS=("b",), Worker=("a",))
    assert most_pods(cluster) == 3
    assert [each.mode for each in cluster.state.history] == ["overlap"]


def test_a_job_that_returned_quota_has_no_room_for_one_that_moves() -> None:
    """It has one PS of the two that are declared, as the other one's quota was returned."""
    cluster = placed(PS=1, Worker=1)
    cluster.types = {"PS": 2, "Worker": 2}
    cluster.admitted = {"PS": 1, "Worker": 1}
    aim(cluster, 1, PS=("b",), Worker=("a",))
    assert most_pods(cluster) == 2
    assert "Kueue admitted only 1 PS (queue team-a)" in str(cluster.events)


@pytest.mark.parametrize(("queue", "active"), [(QUEUE, {"active": 2}), ("", {})])
def test_a_suspended_job_is_active_until_its_pods_have_ended(queue: str, active: dict[str, int]) -> None:
    status: dict[str, Any] = {"replicaStatuses": {"Worker": {"active": 3}}}
    suspended = replace(job({"Worker": 3}, runPolicy={"suspend": True}, status=status), queue=queue)
    left = (
        pod("Worker", 0, terminating=True),
        pod("Worker", 1, "Pending"),
        pod("Worker", 2, "Failed", exit_code=143, terminating=True),
    )
    decision = decide(suspended, pods=left)
    assert decision.status is not None
    assert decision.status["replicaStatuses"] == {"Worker": active}
    after = decide(replace(job({"Worker": 3}, runPolicy={"suspend": True}, status=decision.status), queue=queue))
    assert (after.status or decision.status)["replicaStatuses"] == {"Worker": {}}


def test_injected_containers_have_no_request_under_kueue() -> None:
    trains = {"name": "tensorflow", "command": ["train"], "resources": {"requests": {"cpu": "1"}}}
    template: dict[str, Any] = {"containers": [trains]}
    asked = {}
    for queue in ("", QUEUE):
        rendered: dict[str, Any] = {"spec": {**template, "containers": [dict(template["containers"][0])]}}
        inject(rendered, "both", "image", None, resources_of(None, queue=queue))
        asked[queue] = requests_of(rendered["spec"])
    assert asked[QUEUE] == requests_of(template)
    assert asked[""].memory_bytes > asked[QUEUE].memory_bytes


class Webhooks:
    """An API server that knows one webhook on TFJobs."""

    def __init__(self, name: str) -> None:
        rule = {"apiGroups": ["kubeflow.org"], "resources": ["tfjobs"]}
        self._item = {"metadata": {"name": "theirs"}, "webhooks": [{"name": name, "rules": [rule]}]}

    async def get(self, path: str, **_: str) -> dict[str, Any]:
        return {"items": [self._item] if path.endswith("validatingwebhookconfigurations") else []}


@pytest.mark.parametrize(
    ("name", "found"), [("validator.tfjob.training-operator.kubeflow.org", 1), ("vtfjob.kb.io", 0)]
)
async def test_kueues_webhook_is_no_other_controller(name: str, found: int) -> None:
    assert len(await find_rivals(cast(ApiClient, Webhooks(name)))) == found

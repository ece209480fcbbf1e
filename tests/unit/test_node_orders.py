"""Placeholder pods: which a job has, what they request, and when they go."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import Create, Decision, DeleteOwned, ReconcileSettings
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.cluster import ForeignPod
from elastic_tfjob.controller.model.owned_objects import ORDER_LABEL, NodeOrder
from elastic_tfjob.controller.model.quantities import requests_of
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.node_orders import failure_event, filled_orders, waiting_orders
from elastic_tfjob.scheduling.resources import NOTHING
from elastic_tfjob.scheduling.unfilled_orders import FailedOrder

from .build import NOW, UID, condition, decide, job, replicas

SETTINGS = ReconcileSettings(image="operator:1", wait_for_target=True)
ASKS = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"}}


def waiting(orders: dict[str, int], **more: Any) -> Any:
    """A job of 1 PS and 3 workers that waits and orders nodes."""
    containers = [{"name": "tensorflow", "image": "train", "command": ["python", "t.py"], "resources": ASKS}]
    worker = replicas(
        3, containers=containers, nodeSelector={"pool": "a"}, tolerations=[{"key": "gpu", "operator": "Exists"}]
    )
    target = Target(0, {}, reason="no room", orders=orders)
    annotations = {
        f"{PREFIX}checkpoint-dir": "/ckpt",
        f"{PREFIX}min-workers": "1",
        TARGET_ANNOTATION: target.to_json(UID),
    }
    return job({"PS": 1, "Worker": worker}, annotations=annotations, **more)


def order(number: int, kind: str = "worker", **fields: Any) -> NodeOrder:
    created = format_time(NOW)
    known = NodeOrder("ns", f"j-{kind}-{number}-order", f"u{number}", 1, "j", UID, kind, "", created, False, "")
    return replace(known, **fields)


def made(decision: Decision) -> list[str]:
    return [action.name for action in decision.actions if isinstance(action, Create) and action.kind == "Order"]


def gone(decision: Decision) -> list[str]:
    return [action.name for action in decision.actions if isinstance(action, DeleteOwned) and action.kind == "Order"]


def test_a_waiting_job_has_a_placeholder_for_each_replica_that_it_orders() -> None:
    decision = decide(waiting({"PS": 1, "Worker": 3}), settings=SETTINGS)
    assert made(decision) == ["j-ps-0-order", *(f"j-worker-{k}-order" for k in range(3))]
    assert [e.message for e in decision.events if e.reason == "NodesOrdered"] == [
        "Asks an autoscaler for nodes: no room for 1 PS + 3 workers"
    ]


def test_a_placeholder_requests_what_the_pod_does_and_may_run_where_it_may() -> None:
    decision = decide(waiting({"Worker": 1}), settings=SETTINGS)
    (body,) = [action.body for action in decision.actions if isinstance(action, Create) and action.kind == "Order"]
    spec = body["spec"]
    asked = requests_of(spec)
    assert (asked.cpu_millicores, asked.accelerators) == (2000, 1)
    assert asked.memory_bytes == 2**30 + 32 * 2**20, "with the exporter's"
    assert (spec["nodeSelector"], spec["tolerations"][0]["key"]) == ({"pool": "a"}, "gpu")
    assert spec["priorityClassName"] == "elastic-tfjob-order"
    assert {each["image"] for each in (*spec["containers"], *spec["initContainers"])} == {"operator:1"}
    assert not any(each.get("volumeMounts") or each.get("env") for each in spec["containers"])
    assert set(body["metadata"]["labels"]) == {ORDER_LABEL, f"{PREFIX}order-type"}
    assert body["metadata"]["ownerReferences"][0]["uid"] == UID


def test_what_is_there_is_not_made_again_and_another_owners_does_not_count() -> None:
    there = (order(1), order(2, owner="other"))
    decision = decide(waiting({"Worker": 2}), settings=SETTINGS, orders=there)
    assert (made(decision), gone(decision)) == (["j-worker-0-order"], [])


def test_fewer_orders_keep_the_placeholders_that_have_a_node() -> None:
    there = (order(0), order(1, node="n"), order(2))
    decision = decide(waiting({"Worker": 1}), settings=SETTINGS, orders=there)
    assert (made(decision), gone(decision)) == ([], ["j-worker-0-order", "j-worker-2-order"])


@pytest.mark.parametrize(("age_s", "replaced"), [(0, False), (59, False), (61, True), (-3600, True)])
def test_a_placeholder_that_a_kubelet_has_evicted_is_replaced_but_not_at_once(age_s: float, replaced: bool) -> None:
    """It asks for nothing, and the kubelet may refuse the next one, too."""
    created = format_time(NOW - timedelta(seconds=age_s))
    raw = {
        "metadata": {
            "namespace": "ns",
            "name": "j-worker-0-order",
            "uid": "u0",
            "resourceVersion": "1",
            "labels": {ORDER_LABEL: "j", f"{PREFIX}order-type": "worker"},
            "ownerReferences": [{"uid": UID, "kind": "TFJob", "name": "j", "controller": True}],
            "creationTimestamp": created,
        },
        "spec": {"nodeName": "n"},
        "status": {"phase": "Failed", "reason": "Evicted"},
    }
    evicted: NodeOrder = NodeOrder.parse(raw)
    assert filled_orders([evicted]) == {}
    assert waiting_orders([replace(evicted, node="")]) == {}
    decision = decide(waiting({"Worker": 1}), settings=SETTINGS, orders=(evicted,))
    assert (gone(decision), made(decision)) == ((["j-worker-0-order"], ["j-worker-1-order"]) if replaced else ([], []))
    assert replaced or decision.again_at is not None


@pytest.mark.parametrize("why", ["no order", "suspended", "finished", "type that the spec lacks"])
def test_placeholders_go_when_nothing_is_ordered(why: str) -> None:
    known = waiting({} if why == "no order" else {"Worker": 1})
    if why == "suspended":
        known = waiting({"Worker": 1}, runPolicy={"suspend": True})
    if why == "finished":
        known = waiting({"Worker": 1}, status={"conditions": [condition("Succeeded")]})
    there = (order(0, "evaluator") if why == "type that the spec lacks" else order(0),)
    assert len(gone(decide(known, settings=SETTINGS, orders=there))) == 1


def test_while_the_operators_image_is_not_known_a_placeholder_has_the_replicas() -> None:
    (action,) = (
        each
        for each in decide(waiting({"Worker": 1}), settings=ReconcileSettings(wait_for_target=True)).actions
        if isinstance(each, Create) and each.kind == "Order"
    )
    assert [each["image"] for each in action.render()["spec"]["containers"]] == ["train"]


@pytest.mark.parametrize(
    ("labels", "priority", "free"),
    [
        ({ORDER_LABEL: "j"}, -5, True),
        ({ORDER_LABEL: "j"}, 0, False),
        ({}, -5, False),
        ({ORDER_LABEL: "j"}, None, False),
    ],
)
def test_the_room_of_a_placeholder_is_free(labels: dict[str, str], priority: int | None, free: bool) -> None:
    """Anybody may label a pod; only one of negative priority gives way to pods of jobs."""
    spec = {"nodeName": "n", "containers": [{"name": "c", "resources": ASKS}]}
    raw = {
        "metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "1", "labels": labels},
        "spec": {**spec, **({"priority": priority} if priority is not None else {})},
    }
    assert (ForeignPod.parse(raw).requests == NOTHING) == free


def test_the_oldest_placeholder_without_a_node_counts() -> None:
    later = format_time(NOW + timedelta(seconds=9))
    orders = [
        order(0, created=later),
        order(1),
        order(2, node="n"),
        order(3, terminating=True),
        order(4, created="never"),
    ]
    assert waiting_orders(orders) == {"ns/j": (NOW.timestamp(), orders[1])}
    assert filled_orders(orders) == {"ns/j": (NOW.timestamp(), 1)}
    assert (waiting_orders(orders[2:]), filled_orders(orders[:2])) == ({}, {})


def test_a_user_is_told_why_no_node_has_come() -> None:
    waits = waiting_orders([order(0, why="0/3 nodes are available")])
    told = failure_event(FailedOrder("not coming", 300), "ns/j", 900, waits, {})
    assert (told.type, told.reason) == ("Warning", "NodesNotComing")
    assert told.message == (
        "No node has come for j-worker-0-order in 900 s; asks again in 300 s: 0/3 nodes are available"
    )
    told = failure_event(FailedOrder("not used", 1800), "ns/j", 900, {}, {})
    assert (told.type, told.reason) == ("Normal", "NodesNotUsed")
    assert told.message == "Nodes came, and the profile left the job at its size; asks again in 1800 s"

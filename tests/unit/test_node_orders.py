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
from elastic_tfjob.controller.planning.node_orders import UnfilledOrders
from elastic_tfjob.scheduling.resources import NOTHING

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


class TestUnfilledOrders:
    S = NOW.timestamp()

    def follow(self, unfilled: UnfilledOrders, *orders: NodeOrder, after_s: float, held: int | None = 0) -> list[str]:
        found = unfilled.follow(orders, lambda _: held, self.S + after_s, 900, 300)
        return [event.message for event in found.values()]

    def test_a_job_whose_nodes_do_not_come_asks_again_later_each_time(self) -> None:
        unfilled = UnfilledOrders()
        why = order(0, why="0/3 nodes are available")
        assert self.follow(unfilled, why, after_s=899) == []
        assert unfilled.next_s([why], self.S + 899, 900) == pytest.approx(1)
        (message,) = self.follow(unfilled, why, after_s=900)
        assert message == (
            "No node has come for j-worker-0-order in 900 s; asks again in 300 s: 0/3 nodes are available"
        )
        assert unfilled.failed(self.S + 901) == {"ns/j"}
        assert self.follow(unfilled, after_s=1000) == []
        assert unfilled.failed(self.S + 1200) == frozenset()
        again = order(0, created=format_time(NOW + timedelta(seconds=1200)))
        (message,) = self.follow(unfilled, again, after_s=2100)
        assert "asks again in 600 s" in message

    def test_it_is_forgotten_when_the_nodes_have_come_or_the_job_is_gone(self) -> None:
        for changed in ({"orders": (order(0, node="n"),)}, {"orders": (), "held": None}):
            unfilled = UnfilledOrders()
            self.follow(unfilled, order(0), after_s=900)
            self.follow(unfilled, *changed.pop("orders"), after_s=950, **changed)  # type: ignore[misc]
            assert unfilled.failed(self.S + 951) == frozenset()

    @pytest.mark.parametrize(("after", "again_s"), [(1, 1800), (2, None)])
    def test_a_job_that_did_not_grow_on_new_nodes_asks_for_none_for_a_while(
        self, after: int, again_s: int | None
    ) -> None:
        unfilled = UnfilledOrders()
        assert self.follow(unfilled, order(0), after_s=10, held=1) == []
        assert self.follow(unfilled, order(0, node="n"), after_s=20, held=1) == []
        assert self.follow(unfilled, after_s=30, held=1) == []  # there is room now
        assert self.follow(unfilled, after_s=90, held=after) == []
        told = self.follow(unfilled, order(0), after_s=100, held=after)  # and now there is none again
        assert told == (
            ["Nodes came, and the profile left the job at its size; asks again in 1800 s"] if again_s else []
        )
        assert bool(unfilled.failed(self.S + 101)) == bool(again_s)
        assert unfilled.failed(self.S + 100 + 1800) == frozenset()

    def test_a_waiting_job_may_ask_again_at_once(self) -> None:
        """Others took the nodes that it ordered."""
        unfilled = UnfilledOrders()
        for after_s in (10, 20):
            self.follow(unfilled, order(0), after_s=after_s)
            assert self.follow(unfilled, after_s=after_s + 5) == []
        assert unfilled.failed(self.S + 30) == frozenset()

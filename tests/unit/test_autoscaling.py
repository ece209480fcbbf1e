"""What the operator remembers of an autoscaler between two rounds: orders without placeholders, clocks, metrics."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.owned_objects import NodeOrder
from elastic_tfjob.controller.model.settings import Configuration, parse_configuration
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.planning.round import NodeMarks
from elastic_tfjob.controller.schedule.autoscaling import Autoscaling
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.snapshot import ClusterRules, Counts, Snapshot

from .build import NOW, UID, job
from .scheduling.build import node

ALWAYS = parse_configuration("profile: kips\nautoscaling: {order: {when: always, timeout_s: 900, retry_s: 300}}")


class Rounds:
    """Rounds of the scheduling loop for one job, ns/j, that waits. `wall_s` and `steady_s` are the two clocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s, self.steady_s = NOW.timestamp(), 5000.0
        monkeypatch.setattr("time.time", lambda: self.wall_s)
        monkeypatch.setattr("time.monotonic", lambda: self.steady_s)
        self.orders: list[NodeOrder] = []
        self.nodes: list[KubeNode] = []
        self.told: list[Event] = []
        me: Any = self
        self.memory = Autoscaling(
            me,
            self.nodes,  # type: ignore[arg-type]
            me,
            orders=lambda: self.orders,
            present=lambda: True,
            held=lambda _: 0,
            partial=False,
            wake=lambda: None,
        )

    def one(self, _: tuple[str, str]) -> TFJob:
        return replace(job(), namespace="ns", name="j")

    def record(self, _: TFJob, event: Event) -> None:
        self.told.append(event)

    def later(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds

    def round(
        self, asks: Mapping[str, Counts] | None = None, configuration: Configuration = ALWAYS, **more: Any
    ) -> tuple[ClusterRules, NodeMarks]:
        async def begin() -> tuple[ClusterRules, NodeMarks]:
            found = self.memory.begin(configuration, ())
            rules, marks = found
            nodes = {each.name: replace(node(each.name), given_up=each.name in marks.given_up) for each in self.nodes}
            failed = rules.orders.failed if rules.orders is not None else frozenset()
            plan = Plan(
                Snapshot(self.wall_s, nodes, {}, cluster_rules=rules),
                {},
                orders={key: counts for key, counts in (asks or {}).items() if key not in failed},
                **more,
            )
            self.memory.decided(plan)
            return found

        return asyncio.run(begin())

    def pauses(self, asks: Mapping[str, Counts] | None = None) -> bool:
        """Whether the job may not ask for nodes in this round."""
        rules, _ = self.round(asks)
        return rules.orders is not None and "ns/j" in rules.orders.failed

    def placeholder(self, number: int, **fields: Any) -> NodeOrder:
        created = format_time(NOW + timedelta(seconds=self.wall_s - NOW.timestamp()))
        known = NodeOrder("ns", f"j-worker-{number}-order", f"u{number}", 1, "j", UID, "worker", "", created, False, "")
        return replace(known, **fields)


ASKS: Mapping[str, Counts] = {"ns/j": {"Worker": 1000}}


def test_an_order_whose_placeholders_are_refused_stands_back_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota or a policy lets none of them be made. The order would use up what all jobs may order, for ever."""
    rounds = Rounds(monkeypatch)
    assert not rounds.pauses(ASKS)
    rounds.later(100)
    assert not rounds.pauses(ASKS), "placeholders of other jobs are made first"
    rounds.later(100)
    assert rounds.pauses(ASKS)
    [event] = rounds.told
    assert (event.type, event.reason) == ("Warning", "NodesNotComing")
    assert event.message == "There is no placeholder after 120 s: refused or deleted; asks again in 300 s"
    rounds.later(301)
    assert not rounds.pauses(ASKS)
    rounds.later(121)
    assert rounds.pauses(ASKS)
    assert rounds.told[-1].message.endswith("asks again in 600 s")


def test_a_clock_that_is_set_back_keeps_no_job_from_asking_and_no_node_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = Rounds(monkeypatch)
    rounds.nodes.append(autoscaled("n"))
    rounds.orders.append(rounds.placeholder(0))
    rounds.round(ASKS, given_up=frozenset({"n"}))
    rounds.later(900)
    assert rounds.pauses(ASKS)
    rounds.orders.clear()
    rounds.wall_s -= 365 * 86_400
    rounds.later(301)
    _, marks = rounds.round()
    assert not rounds.pauses(ASKS)
    assert marks.given_up == frozenset()


def test_the_gauges_of_nodes_fall_to_zero_with_the_last_node(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch)
    rounds.nodes.append(autoscaled("n"))
    rounds.round()
    assert used() == 1
    rounds.nodes.clear()
    rounds.round()
    assert used() == 0


def autoscaled(name: str) -> KubeNode:
    """A node of Karpenter."""
    found: KubeNode = KubeNode.parse(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "resourceVersion": "1",
                "labels": {"karpenter.sh/nodepool": "default"},
            },
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            },
        }
    )
    return found


def used() -> float | None:
    return REGISTRY.get_sample_value("elastic_tfjob_autoscaled_nodes", {"state": "used"})


def test_an_order_whose_nodes_are_not_used_returns_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota lets only some of a job's placeholders be made: these hold nodes that the job cannot start on."""
    rounds = Rounds(monkeypatch)
    rounds.orders += [rounds.placeholder(0, node="n"), rounds.placeholder(1, node="n")]
    rounds.round(ASKS)
    rounds.later(899)
    assert not rounds.pauses(ASKS)
    rounds.later(2)
    assert rounds.pauses(ASKS)
    [event] = rounds.told
    assert (event.type, event.reason) == ("Warning", "NodesNotComing")
    assert event.message == (
        "Nodes have come for 2 of its placeholders, but it could not use them in 900 s; asks again in 300 s"
    )
    rounds.orders.clear()
    assert rounds.pauses()
    rounds.later(301)
    assert not rounds.pauses(ASKS)


@pytest.mark.parametrize("text", [",", "a,,b", "a,"])
def test_a_selector_with_an_empty_part_is_refused(text: str) -> None:
    """It would match nothing, or not what was meant, without a word."""
    for settings in ({"nodes": text}, {"prices": {text: 1}}):
        with pytest.raises(ValueError, match="'' is not a label; allowed: KEY or KEY=VALUE, separated by commas"):
            parse_configuration(f"profile: kips\nautoscaling: {json.dumps({'compact': settings})}")

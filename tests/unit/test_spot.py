"""Nodes that are taken away, in the operator: signs and their notices, the time that is left, and what a job does
live."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import ReconcileSettings
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.cluster import DRAINING_TAINTS, SHUTTING_DOWN, SPOT_LABELS, KubeNode
from elastic_tfjob.controller.model.pod import ContainerFailure, Pod
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.notices import Notices
from elastic_tfjob.controller.planning.round import assemble
from elastic_tfjob.controller.planning.targets import decide
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Assignment, Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import CHIEF, PS, WORKER, Snapshot
from elastic_tfjob.scheduling.steps.leave import LAST_CHANCE_S

from .build import raw_node
from .pretend import Cluster, started
from .scheduling.build import job as core_job
from .scheduling.build import workers

SPOT = {"karpenter.sh/capacity-type": "spot"}
AT = "2026-11-29T10:00:00Z"
AT_S = datetime(2026, 11, 29, 10, tzinfo=UTC).timestamp()


def taint(key: str, effect: str = "NoSchedule", **more: Any) -> dict[str, Any]:
    return {"key": key, "effect": effect, **more}


def drained(key: str, *, labels: Mapping[str, str] | None = None, name: str = "n1", **more: Any) -> KubeNode:
    return KubeNode.parse(raw_node(name, labels=dict(labels or {}), taints=[taint(key, **more)]))


# Signs and notices


@pytest.mark.parametrize(
    ("key", "labels", "notice_s"),
    [
        ("aws-node-termination-handler/spot-itn", {}, 120),
        ("aws-node-termination-handler/asg-lifecycle-termination", {}, 120),
        ("cloud.google.com/impending-node-termination", {}, 15),
        ("remediator.kubernetes.azure.com/unschedulable", {}, 30),
        ("ToBeDeletedByClusterAutoscaler", {}, 120),
        ("karpenter.sh/disrupted", SPOT, 120),
        ("karpenter.sh/disrupted", {}, None),
    ],
)
def test_each_sign_has_its_notice(key: str, labels: dict[str, str], notice_s: float | None) -> None:
    found = drained(key, labels=labels)
    assert (found.draining, found.notice_s) == (key, notice_s)


@pytest.mark.parametrize("keys", [("a/maintenance", "karpenter.sh/disrupted"), ("karpenter.sh/disrupted",)])
def test_of_several_signs_the_shortest_notice_counts(keys: tuple[str, ...]) -> None:
    """A drain that waits says nothing about a cloud that takes the node meanwhile."""
    last = "cloud.google.com/impending-node-termination"
    taints = [taint(each) for each in (*keys, "ToBeDeletedByClusterAutoscaler", last)]
    for each in (taints, taints[::-1]):
        found = KubeNode.parse(raw_node("n1", taints=each)).configured({"a/maintenance": None}, "")
        assert (found.draining, found.notice_s) == (last, 15)
        assert found.gone_s(AT_S) == AT_S + 15


def test_the_table_names_every_sign() -> None:
    assert len(DRAINING_TAINTS) == 6


def test_the_configuration_changes_notices_and_adds_signs() -> None:
    changed = drained("karpenter.sh/disrupted").configured({"karpenter.sh/disrupted": 60}, "")
    assert changed.notice_s == 60
    added = drained("example.com/maintenance").configured({"example.com/maintenance": None}, "")
    assert (added.cordoned, added.notice_s, added.gone_s(AT_S)) == (True, None, None)


def test_a_shutdown_of_the_machine_needs_no_taint() -> None:
    raw = raw_node("n1")
    raw["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "message": f"[{SHUTTING_DOWN}]", "lastTransitionTime": AT}
    ]
    found = KubeNode.parse(raw)
    assert (found.cordoned, found.draining, found.gone_s()) == (True, SHUTTING_DOWN, AT_S + 15)
    raw["status"]["conditions"][0]["status"] = "Unknown"
    assert not KubeNode.parse(raw).cordoned


@pytest.mark.parametrize("label", sorted(SPOT_LABELS))
def test_spot_nodes_are_known_by_the_labels_of_the_clouds(label: tuple[str, str]) -> None:
    assert KubeNode.parse(raw_node("n1", labels=dict([label]))).spot
    assert not KubeNode.parse(raw_node("n1", labels={label[0]: "other"})).spot


def test_spot_nodes_are_known_by_all_labels_that_the_configuration_names() -> None:
    found = KubeNode.parse(raw_node("n1", labels={"pool": "cheap", "zone": "a"}))
    assert found.configured({}, "pool=cheap, zone=a").spot
    assert not found.configured({}, "pool=cheap, zone=b").spot


@pytest.mark.parametrize(
    "key", ["DeletionCandidateOfClusterAutoscaler", "aws-node-termination-handler/rebalance-recommendation"]
)
def test_a_node_that_may_be_removed_soon_is_avoided_but_not_left(key: str) -> None:
    found = drained(key, effect="PreferNoSchedule")
    assert (found.avoid, found.usable) == (True, True)


# The time that is left


def test_the_time_counts_from_when_the_sign_was_first_seen() -> None:
    notices, node = Notices(), drained("aws-node-termination-handler/spot-itn")
    assert notices.leaving([node], 1000.0) == {"n1": 1120.0}
    assert notices.leaving([node], 1050.0) == {"n1": 1120.0}
    assert notices.leaving([], 1060.0) == {}
    assert notices.leaving([node], 1070.0) == {"n1": 1190.0}


@pytest.mark.parametrize(
    "dated",
    [
        {"timeAdded": AT},
        {"value": str(int(AT_S))},  # as the cluster autoscaler writes it
    ],
)
def test_a_restarted_operator_reads_the_time_of_the_sign(dated: dict[str, Any]) -> None:
    node = drained("ToBeDeletedByClusterAutoscaler", **dated)
    assert Notices().leaving([node], AT_S + 50) == {"n1": AT_S + 120}


def test_the_api_server_dates_the_last_change_of_taints() -> None:
    raw = raw_node("n1", taints=[taint("aws-node-termination-handler/spot-itn")])
    raw["metadata"]["managedFields"] = [
        {"time": "2026-11-29T12:00:00Z", "fieldsV1": {"f:status": {}}},
        {"time": AT, "fieldsV1": {"f:spec": {"f:taints": {}}}},
        {"time": "x" * 10_000, "fieldsV1": {"f:spec": {"f:taints": {}}}},
    ]
    assert Notices().leaving([KubeNode.parse(raw)], AT_S + 50) == {"n1": AT_S + 120}


def test_a_node_without_a_known_notice_has_no_time() -> None:
    cordoned = KubeNode.parse(raw_node("n2", unschedulable=True))
    assert Notices().leaving([drained("karpenter.sh/disrupted"), cordoned], 1000.0) == {}


def test_jobs_count_once_for_each_node_by_how_they_left_it() -> None:
    notices = Notices()
    held = {
        "ns/a": core_job("ns/a", workers(2), on={WORKER: ("m", "n1")}),
        "ns/b": core_job("ns/b", workers(1), on={WORKER: ("n1",)}),
        "ns/c": core_job("ns/c", workers(1), on={WORKER: ("n1",)}),
    }
    why = Reason("taken-away", {})
    changes = {
        "ns/a": Assignment({WORKER: ("m",)}, why, cause="repair"),
        "ns/b": Assignment({}, why, cause="notice"),
    }
    before = Snapshot(0.0, {}, held)
    targets: Any = dict.fromkeys(changes)
    new, ended = notices.met({"n1": 9.0}, {"n1": sorted(held)}, Plan(before, changes), targets)
    assert (new, ended) == ([("ns/a", "n1"), ("ns/b", "n1"), ("ns/c", "n1")], {})
    new, ended = notices.met({"n1": 9.0}, {"n1": ["ns/c"]}, Plan(before, {}), {})
    assert (new, ended) == ([], {})
    new, ended = notices.met({}, {"n1": ["ns/c"]}, Plan(before, {}), {})
    assert ended == {"shrunk": 1, "saved": 1, "lost": 1}
    assert notices.met({}, {}, Plan(before, {}), {}) == ([], {})


# What a job does, with the real reconcile loop


ONE = Resources(100, 32 << 20, pods=1)


class World:
    """A job on nodes of which one is taken away. Pods of a node that is gone are gone, too."""

    def __init__(self, *workers_on: str, **nodes: int) -> None:
        """By name, how many replicas each node holds. Chief and PS are on the first node, the workers on these."""
        self.nodes = {name: KubeNode.parse(raw_node(name, f"{100 * n}m")) for name, n in nodes.items()}
        self.leaving: dict[str, float] = {}
        self.cluster = Cluster(
            types={"Chief": 1, "PS": 1, "Worker": len(workers_on)},
            annotations={f"{PREFIX}{k}": v for k, v in {"min-workers": "1", "checkpoint-dir": "/c"}.items()},
            settings=ReconcileSettings(image="operator:1", wait_for_target=True),
        )
        first = next(iter(nodes))
        where = {CHIEF: (first,), PS: (first,), WORKER: workers_on}
        sizes = {type_: len(names) for type_, names in where.items()}
        self.cluster.annotations[TARGET_ANNOTATION] = Target(0, sizes, where, reason="r", declared=sizes).to_json()
        self.view: JobView | None = None
        self.profile = build("fifo-backfill", parse_profile("fifo-backfill", {}))

    def tick(self) -> None:
        cluster = self.cluster
        usable = {name: node for name, node in self.nodes.items() if name not in self.leaving}
        pods = tuple(replace(pod, requests=ONE) if pod.node else pod for pod in cluster.pods.values())
        self.view = view_of(
            cluster.job(),
            pods,
            nodes=usable,
            now=cluster.now,
            reports={name: replace(each, starts="fork") for name, each in cluster.reports().items()},
            before=self.view,
            cordoned=dict.fromkeys(self.leaving.keys() & self.nodes.keys(), "sign"),
            leaving=self.leaving,
        )
        found = assemble([self.view], usable, [], cluster.now.timestamp(), leaving=self.leaving)
        if self.view.job is not None:
            for target in decide(schedule(found, self.profile), {self.view.job.key: self.view}).values():
                cluster.annotations[TARGET_ANNOTATION] = target.to_json()
        cluster.reconcile()
        cluster.tick()

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.tick()

    def take_away(self, node: str, notice_s: float) -> None:
        self.leaving = {node: self.cluster.now.timestamp() + notice_s}

    @property
    def state(self) -> StoredState:
        state = self.cluster.state
        assert state is not None
        return state

    def on(self) -> dict[str, str]:
        return {name: pod.node for name, pod in self.cluster.pods.items()}


def test_a_job_shrinks_away_from_the_node_of_a_middle_worker_without_a_new_pod() -> None:
    world = World("n1", "n2", "n3", n1=3, n2=1, n3=1)
    world.run(20)
    before, made = world.on(), len(world.cluster.made)
    world.take_away("n2", 15)
    world.run(8)
    assert world.on() == {name: node for name, node in before.items() if name != "j-worker-1"}
    assert (world.state.phase, world.state.replicas) == ("Stable", {CHIEF: 1, PS: 1, WORKER: 2})
    assert (len(world.cluster.made), tuple(world.state.pods(WORKER))) == (made, (0, 2))
    assert world.state.history[-1].mode == "overlap"
    assert any("n2 is taken away in 15 s" in message for _, message in world.cluster.events)


def test_after_that_it_grows_again_when_there_is_room() -> None:
    world = World("n1", "n2", "n3", n1=3, n2=1, n3=1)
    world.profile = build("drf", parse_profile("drf", {}))
    world.run(20)
    world.take_away("n2", 15)
    world.run(15)
    del world.nodes["n2"]
    world.leaving = {}
    world.nodes["n4"] = KubeNode.parse(raw_node("n4", "100m"))
    world.run(120)
    assert world.state.replicas == {CHIEF: 1, PS: 1, WORKER: 3}
    assert sorted(world.on().values()) == ["n1", "n1", "n1", "n3", "n4"]


def test_a_job_moves_if_there_is_time_and_room() -> None:
    world = World("n1", "n2", "n3", n1=3, n2=1, n3=1, n4=1)
    world.run(20)
    world.take_away("n2", 110)
    world.run(30)
    assert world.state.replicas == {CHIEF: 1, PS: 1, WORKER: 3}
    assert sorted(world.on().values()) == ["n1", "n1", "n1", "n3", "n4"]
    assert world.state.history[-1].mode == "overlap"
    assert world.state.prepare_s is not None


def test_the_leader_moves_if_there_is_time() -> None:
    world = World("n2", "n2", n1=2, n2=9)
    world.run(20)
    world.take_away("n1", 110)
    world.run(30)
    assert set(world.on().values()) == {"n2"}
    assert (world.state.phase, world.state.history[-1].mode) == ("Stable", "overlap")
    assert world.state.indexes == {CHIEF: (1,), PS: (1,)}


def test_without_time_the_leaders_node_is_left_by_a_restart() -> None:
    world = World("n2", "n2", n1=2, n2=9)
    world.run(20)
    world.take_away("n1", 30)
    world.run(20)
    assert set(world.on().values()) == {"n2"}
    assert (world.state.phase, world.state.history[-1].mode) == ("Stable", "recreate")


def test_without_room_a_job_saves_and_waits() -> None:
    world = World("n1", n1=5)
    world.run(20)
    world.take_away("n1", 60)
    world.run(25)
    assert world.state.phase == "Stable"  # until the last chance there may be room
    world.run(int(60 - 25 - LAST_CHANCE_S) + 15)
    assert (world.state.phase, world.on()) == ("Waiting", {})
    assert any(reason == "Stopped" and "no step is lost" in message for reason, message in world.cluster.events)


def test_a_move_that_is_not_ready_at_the_last_chance_is_given_up() -> None:
    """The new pod comes up, its program does not: the job shrinks away instead."""
    world = World("n1", "n2", "n3", n1=3, n2=1, n3=1, n4=1)
    world.run(20)
    world.take_away("n2", 70)
    for _ in range(38):
        world.tick()
        for name in world.cluster.launchers.keys() - {"j-chief-0", "j-ps-0", "j-worker-0", "j-worker-1", "j-worker-2"}:
            world.cluster.launchers[name].waits = True
    assert world.state.phase == "Preparing"
    world.run(20)
    assert (world.state.phase, world.state.replicas[WORKER]) == ("Stable", 2)
    assert "n2" not in world.on().values()


# Pods that a shutdown of their node ended


def shut_down(pod: Pod, reason: str) -> Pod:
    return replace(pod, phase="Failed", exit_code=1, failure=ContainerFailure(reason, "1"))


@pytest.mark.parametrize("reason", ["Terminated", "NodeShutdown"])
@pytest.mark.parametrize("policy", ["Never", "ExitCode", "OnFailure"])
def test_a_pod_ended_by_a_shutdown_of_its_node_is_no_failure(reason: str, policy: str) -> None:
    cluster = started(restart=policy, spec={"runPolicy": {"backoffLimit": 0}})
    cluster.pods["j-worker-1"] = shut_down(cluster.pods["j-worker-1"], reason)
    cluster.run(6)
    conditions = {each["type"]: each["status"] for each in cluster.status["conditions"]}
    assert conditions.get("Failed") is None
    assert cluster.pods["j-worker-1"].phase == "Running"


def test_a_program_that_fails_still_fails_its_job() -> None:
    cluster = started(restart="ExitCode")
    cluster.pods["j-worker-1"] = shut_down(cluster.pods["j-worker-1"], "Error")
    cluster.run(3)
    assert {"Failed": "True"}.items() <= {c["type"]: c["status"] for c in cluster.status["conditions"]}.items()

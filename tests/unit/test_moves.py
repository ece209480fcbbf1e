"""A replica that runs goes to another node: which pods the job has on the way and then, and that nothing is lost."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.reading import MAX_REPLICAS
from elastic_tfjob.controller.job.decision import Create, ReconcileSettings
from elastic_tfjob.controller.job.moves import Move, coming_indexes, described, moves, replicas_moved
from elastic_tfjob.controller.job.owned import BUDGET, render_budget
from elastic_tfjob.controller.job.pods import replica_labels
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION, position, resized
from elastic_tfjob.controller.model.state import Next, StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import UsageRecord
from unit.build import UID, job
from unit.pretend import Cluster

SIZE = {"Chief": 1, "PS": 1, "Worker": 2}
NODES = {"Chief": ("a",), "PS": ("a",), "Worker": ("a", "b")}
FIXED_SIZE = {f"{PREFIX}checkpoint-dir": "/checkpoints"}


def aim(cluster: Cluster, generation: int, **nodes: tuple[str, ...]) -> None:
    """Write a target with these nodes; the other types stay where they are."""
    where = {**NODES, **nodes}
    size = {name: len(names) for name, names in where.items()}
    target = Target(generation, size, where, {}, "wanted", dict(cluster.types))
    cluster.annotations[TARGET_ANNOTATION] = target.to_json()


def placed(**options: Any) -> Cluster:
    """A job that trains on the nodes of a profile's plan."""
    cluster = Cluster(settings=ReconcileSettings(image="operator:1", wait_for_target=True), **options)
    aim(cluster, 0)
    cluster.run(6)
    assert {name: pod.node for name, pod in cluster.pods.items()} == {
        "j-chief-0": "a",
        "j-ps-0": "a",
        "j-worker-0": "a",
        "j-worker-1": "b",
    }
    cluster.events.clear()
    return cluster


def tasks(cluster: Cluster, pod: str) -> tuple[dict[str, list[str]], int]:
    """The pods that a pod was told to train with, without the rest of their names, and its task."""
    config = orjson.loads(orjson.loads(cluster.pods[pod].command)["tf_config"])
    pods = {kind: [name.split(".")[0] for name in names] for kind, names in config["cluster"].items()}
    return pods, config["task"]["index"]


@pytest.mark.parametrize("annotations", [None, FIXED_SIZE])
@pytest.mark.parametrize(
    ("nodes", "gone", "new"),
    [
        ({"Worker": ("a", "c")}, "worker-1", "worker-2"),
        ({"Worker": ("c", "b")}, "worker-0", "worker-2"),
        ({"PS": ("c",)}, "ps-0", "ps-1"),
    ],
)
def test_a_replica_moves(
    nodes: dict[str, tuple[str, ...]], gone: str, new: str, annotations: dict[str, str] | None
) -> None:
    """By overlap, with equal bounds too: the pods that stay are the same, and the one that goes stays till the end."""
    cluster = placed(**({"annotations": dict(annotations)} if annotations else {}))
    kept = {name: pod.uid for name, pod in cluster.pods.items() if name != f"j-{gone}"}
    aim(cluster, 1, **nodes)
    cluster.until("Switching")
    assert f"j-{gone}" in cluster.pods
    cluster.run(20)
    state = cluster.state
    assert (state.phase, state.generation, dict(state.replicas)) == ("Stable", 1, SIZE)
    assert {name: pod.uid for name, pod in cluster.pods.items() if name in kept} == kept
    assert cluster.running == dict.fromkeys([*(name.removeprefix("j-") for name in kept), new], 1)
    assert cluster.pods[f"j-{new}"].node == "c"
    assert [each.mode for each in state.history] == ["overlap"]
    assert (state.last_downtime_s, state.history[0].lost_steps) == (0.5, 0)
    assert cluster.reasons == ["Rescaling", "Rescaled"]
    message = cluster.events[0][1]
    assert message.startswith(f"Moves {gone} from {'b' if gone == 'worker-1' else 'a'} to c (overlap): wanted")
    assert UsageRecord.of(cluster.annotations, UID).moves == 1


def test_tasks_keep_their_numbers() -> None:
    cluster = placed()
    aim(cluster, 1, Worker=("c", "b"))
    cluster.run(25)
    assert tasks(cluster, "j-worker-2")[1] == 0
    pods, task = tasks(cluster, "j-worker-1")
    assert (pods["worker"], task) == (["j-worker-2", "j-worker-1"], 1)


def test_a_moved_job_moves_again_grows_and_shrinks() -> None:
    """Each pod that is added gets the lowest index that is free."""
    cluster = placed()
    for generation, workers, pods in (
        (1, ("a", "c"), ["worker-0", "worker-2"]),
        (2, ("a", "d"), ["worker-0", "worker-1"]),
        (3, ("e", "d"), ["worker-1", "worker-2"]),
        (4, ("e", "d", "a"), ["worker-0", "worker-1", "worker-2"]),
        (5, ("e",), ["worker-2"]),
    ):
        aim(cluster, generation, Worker=workers)
        cluster.run(25)
        assert [name for name in cluster.running if name.startswith("worker")] == pods
        assert set(cluster.running.values()) == {generation}
        where = {pod.index: pod.node for pod in cluster.pods.values() if pod.replica_type == "worker"}
        assert tuple(where[index] for index in cluster.state.pods("Worker")) == workers
    assert cluster.made.count("j-chief-0") == 1


def test_a_move_that_is_refused_leaves_all_as_it_was() -> None:
    cluster = placed()
    cluster.launchers["j-chief-0"].saves = "fails"
    aim(cluster, 1, Worker=("a", "c"))
    cluster.run(30)
    assert (cluster.state.phase, cluster.state.generation, dict(cluster.state.nodes)) == ("Stable", 0, NODES)
    assert cluster.running == {"chief-0": 0, "ps-0": 0, "worker-0": 0, "worker-1": 0}
    assert cluster.reasons == ["Rescaling", "RescaleRolledBack"]
    assert "Stays at 1 chief + 1 PS + 2 workers instead of other nodes" in str(cluster.events)
    cluster.launchers["j-chief-0"].saves = "well"
    aim(cluster, 2, Worker=("a", "c"))
    cluster.run(30)
    assert set(cluster.running.values()) == {2}


def test_other_nodes_are_wanted_meanwhile() -> None:
    cluster = placed()
    aim(cluster, 1, Worker=("a", "c"))
    cluster.until("Preparing")
    aim(cluster, 2, Worker=("a", "d"))
    cluster.run(60)
    assert sorted(pod.node for pod in cluster.pods.values() if pod.replica_type == "worker") == ["a", "d"]
    assert "the target now has other nodes" in str(cluster.events)


def test_the_same_generation_is_no_move() -> None:
    """Where a pod is to be made anew: on the node of a lost one's successor."""
    cluster = placed()
    aim(cluster, 0, Worker=("a", "c"))
    cluster.run(5)
    assert cluster.pods["j-worker-1"].node == "b"
    cluster.kill("j-worker-1")
    cluster.run(5)
    assert cluster.pods["j-worker-1"].node == "c"
    assert cluster.reasons == []


@pytest.mark.parametrize("writes", range(6))
@pytest.mark.parametrize("phase", ["Stable", "Preparing", "Checkpointing", "Switching"])
def test_the_operator_is_killed_while_a_replica_moves(phase: str, writes: int) -> None:
    cluster = placed()
    aim(cluster, 1, Worker=("a", "c"))
    cluster.until(phase)
    cluster.reconcile(killed_after=writes)
    cluster.tick()
    cluster.run(40)
    assert cluster.running == {"chief-0": 1, "ps-0": 1, "worker-0": 1, "worker-2": 1}
    assert UsageRecord.of(cluster.annotations, UID).moves == 1


@pytest.mark.parametrize("victim", ["j-worker-1", "j-worker-2", "j-ps-0"])
@pytest.mark.parametrize("phase", ["Preparing", "Checkpointing", "Switching"])
def test_a_pod_is_lost_while_a_replica_moves(phase: str, victim: str) -> None:
    cluster = placed()
    aim(cluster, 1, Worker=("a", "c"))
    cluster.until(phase)
    cluster.run(1)
    if victim in cluster.pods:
        cluster.kill(victim)
    cluster.run(60)
    state = cluster.state
    assert state.phase == "Stable"
    pods = {f"{name.lower()}-{index}" for name in state.replicas for index in state.pods(name)}
    assert cluster.running == dict.fromkeys(pods, state.generation)


class TestPure:
    """moves.py and indexes.py."""

    STATE = StoredState("Stable", replicas={"PS": 1, "Worker": 3}, nodes={"PS": ("a",), "Worker": ("a", "b", "c")})

    def test_a_replica_without_a_pod_is_not_moved(self) -> None:
        target = Target(1, {"PS": 1, "Worker": 3}, {"Worker": ("a", "b", "d")})
        assert moves(self.STATE, target, {}) == ()

    def test_moving_pods_never_take_an_index_that_is_in_use(self) -> None:
        """Not even one that the same change takes away."""
        moving = [Move("Worker", 0, 0, "a", "d")]
        assert coming_indexes("job", self.STATE, {"PS": 1, "Worker": 2}, moving) == {"Worker": (3, 1)}

    def test_no_index_exceeds_the_largest_allowed(self) -> None:
        state = StoredState("Stable", replicas={"Worker": MAX_REPLICAS})
        moving = [Move("Worker", 1, 1, "a", "b")]
        assert coming_indexes("job", state, {"Worker": MAX_REPLICAS}, moving) is None

    def test_no_pod_name_of_a_move_is_too_long(self) -> None:
        """`JOB-worker-9` has 63 characters: with ten workers, none can move to an eleventh pod."""
        job, moving = "j" * 54, [Move("Worker", 1, 1, "a", "b")]
        nine, ten = (StoredState("Stable", replicas={"Worker": count}) for count in (9, 10))
        assert coming_indexes(job, nine, {"Worker": 9}, moving) == {"Worker": (0, 9, *range(2, 9))}
        assert coming_indexes(job, ten, {"Worker": 10}, moving) is None

    def test_words(self) -> None:
        many = [Move("Worker", i, i, "a", "b") for i in range(7)]
        assert described(many[:1]) == "worker-0 from a to b"
        assert described(many).endswith("worker-4 from a to b and 2 more")

    def test_replicas_moved(self) -> None:
        size = {"PS": 1, "Worker": 3}
        coming = Next(1, 1, "overlap", size, size, {"PS": ("b",), "Worker": ("a", "b", "d")})
        assert replicas_moved(self.STATE, coming) == 2

    def test_resized(self) -> None:
        assert resized((2, 1), 4) == (2, 1, 0, 3)
        assert resized((2, 1), 1) == (2,)
        assert position({"Worker": 2}, {"Worker": (2, 1)}, "Worker", 1) == 1
        assert position({"Worker": 2}, {}, "Worker", 2) is None


class TestAnnotation:
    STATE = StoredState(
        "Preparing",
        generation=3,
        replicas={"Worker": 2},
        indexes={"Worker": (0, 2)},
        next=Next(4, 1, "overlap", {"Worker": 2}, {"Worker": 2}, indexes={"Worker": (3, 2)}),
    )

    def test_round_trip(self) -> None:
        assert StoredState.parse(self.STATE.to_json()) == self.STATE

    def test_a_state_that_needs_none_has_none(self) -> None:
        assert "indexes" not in orjson.loads(StoredState("Stable", replicas={"Worker": 2}).to_json())

    @pytest.mark.parametrize(
        "indexes",
        [
            "nonsense",
            [],
            {"Worker": []},
            {"Worker": [0]},
            {"Worker": [0, 0]},
            {"Worker": [0, 1, 2]},
            {"Worker": [0, -1]},
            {"Worker": [0, MAX_REPLICAS]},
            {"Worker": [0, 10**30]},
            {"Worker": [0, True]},
            {"Worker": [0, 2.0]},
            {"Worker": "02"},
        ],
    )
    def test_invalid_indexes_are_ignored_and_reported(self, indexes: object) -> None:
        written = orjson.loads(self.STATE.to_json())
        found = StoredState.parse(json.dumps({**written, "indexes": indexes}))
        assert found == replace(self.STATE, indexes={})
        assert [each.startswith(f"{PREFIX}state: ignored: indexes") for each in found.problems] == [True]
        found = StoredState.parse(json.dumps({**written, "next": {**written["next"], "indexes": indexes}}))
        assert self.STATE.next is not None
        assert found == replace(self.STATE, next=replace(self.STATE.next, indexes={}))
        assert [each.startswith(f"{PREFIX}state: ignored: next.indexes") for each in found.problems] == [True]

    def test_a_type_that_the_size_does_not_have_costs_no_other(self) -> None:
        """Of a newer operator, or nonsense."""
        written = orjson.loads(self.STATE.to_json())
        found = StoredState.parse(orjson.dumps({**written, "indexes": {"Boss": [0, 2], **written["indexes"]}}).decode())
        assert found == self.STATE

    def test_pods_are_bounded_with_those_between(self) -> None:
        replicas = {"PS": 1, "Worker": 1}
        most = MAX_REPLICAS // 2
        state = StoredState("Stable", replicas=replicas, indexes={"PS": (most - 1,), "Worker": (most - 1,)})
        assert StoredState.parse(state.to_json()) == state
        more = replace(state, indexes={"PS": (most,), "Worker": (most,)})
        assert StoredState.parse(more.to_json()) == replace(state, indexes={})


class TestBudget:
    """A drain waits until the replicas have moved."""

    def test_the_budget_exists_as_long_as_the_pods(self) -> None:
        cluster = placed()
        assert cluster.budget is not None
        assert (cluster.budget.name, cluster.budget.owner, cluster.budget.key) == ("j-moves", UID, ("ns", "j"))
        cluster.run(3)
        assert BUDGET not in [each.kind for each in cluster.decision.actions if isinstance(each, Create)]
        cluster.spec = {"runPolicy": {"suspend": True}}
        cluster.run(2)
        assert cluster.budget is None

    def test_a_job_that_has_ended_has_none(self) -> None:
        cluster = placed()
        cluster.pods["j-chief-0"] = replace(cluster.pods["j-chief-0"], phase="Succeeded", exit_code=0)
        cluster.run(3)
        assert cluster.budget is None

    @pytest.mark.parametrize(
        ("annotations", "settings"),
        [
            ({**FIXED_SIZE, f"{PREFIX}rescale": "never"}, ReconcileSettings(image="o:1", wait_for_target=True)),
            ({f"{PREFIX}deadline": "90m"}, ReconcileSettings(image="o:1", wait_for_target=True)),
            (FIXED_SIZE, ReconcileSettings(image="o:1")),
        ],
    )
    def test_a_job_that_is_not_moved_has_no_budget(
        self, annotations: dict[str, str], settings: ReconcileSettings
    ) -> None:
        """Else a drain would wait for ever."""
        cluster = Cluster(annotations=dict(annotations), settings=settings)
        aim(cluster, 0)
        cluster.run(5)
        assert len(cluster.pods) == 4
        assert cluster.budget is None

    def test_the_budget_prevents_every_eviction_of_a_ready_pod(self) -> None:
        """A number beyond what a job may have: a percentage would need the TFJob's scale."""
        body = render_budget(job())
        assert body["spec"]["minAvailable"] > MAX_REPLICAS + 1
        assert body["spec"]["selector"]["matchLabels"].items() <= replica_labels("j", "Worker", 3).items()
        assert body["metadata"]["ownerReferences"][0]["uid"] == UID

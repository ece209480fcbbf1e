"""The chief moves to another node: it trains in another pod then, and never in two at once."""

from dataclasses import replace
from datetime import timedelta

import orjson
import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import ReconcileSettings
from elastic_tfjob.controller.model.reports import Prepared, Report
from unit.pretend import Cluster
from unit.test_moves import aim, placed, tasks

PHASES = ("Preparing", "Checkpointing", "Switching")


def trains(cluster: Cluster) -> list[str]:
    """The pods whose launchers run a chief's program."""
    return [name for name, each in cluster.launchers.items() if each.chief and each.generation is not None]


def run(cluster: Cluster, rounds: int = 40) -> None:
    """Let time pass; at no moment do two chiefs train."""
    for _ in range(rounds):
        cluster.run(1)
        assert len(trains(cluster)) <= 1, trains(cluster)


def moved(**options: object) -> Cluster:
    """A job whose chief is wanted on another node."""
    cluster = placed()
    for name, value in options.items():
        setattr(cluster, name, value)
    aim(cluster, 1, Chief=("c",))
    return cluster


@pytest.mark.parametrize("reachable", [True, False])
def test_the_chief_moves(reachable: bool) -> None:
    """The new pod learns that the old chief has left, from it or from the operator."""
    cluster = moved(reachable=reachable)
    kept = {name: pod.uid for name, pod in cluster.pods.items() if name != "j-chief-0"}
    run(cluster)
    state = cluster.state
    assert (state.phase, state.generation, state.indexes) == ("Stable", 1, {"Chief": (1,)})
    assert cluster.running == {"chief-1": 1, "ps-0": 1, "worker-0": 1, "worker-1": 1}
    assert {name: cluster.pods[name].uid for name in kept} == kept
    assert cluster.pods["j-chief-1"].node == "c"
    assert [(each.mode, each.lost_steps) for each in state.history] == [("overlap", 0)]
    assert cluster.reasons == ["Rescaling", "Rescaled"]
    assert cluster.events[0][1].startswith("Moves chief-0 from a to c (overlap): wanted")
    assert tasks(cluster, "j-worker-1")[0]["chief"] == ["j-chief-1"]
    assert tasks(cluster, "j-chief-1") == (tasks(cluster, "j-ps-0")[0], 0)


def test_it_moves_with_others_and_back() -> None:
    cluster = placed()
    aim(cluster, 1, Chief=("c",), PS=("c",), Worker=("c", "d"))
    run(cluster)
    assert cluster.running == {"chief-1": 1, "ps-1": 1, "worker-2": 1, "worker-3": 1}
    aim(cluster, 2, Chief=("a",), PS=("c",), Worker=("c", "d"))
    run(cluster)
    assert cluster.running == {"chief-0": 2, "ps-1": 2, "worker-2": 2, "worker-3": 2}
    assert cluster.state.indexes == {"PS": (1,), "Worker": (2, 3)}
    assert [each.mode for each in cluster.state.history] == ["overlap", "overlap"]


def test_the_first_worker_leads() -> None:
    """Its label is what clients look for. It leads by its task, and by that it ends the job."""
    cluster = Cluster(
        types={"PS": 1, "Worker": 2}, settings=ReconcileSettings(image="operator:1", wait_for_target=True)
    )
    cluster.annotations[f"{PREFIX}target"] = _target(0, PS=("a",), Worker=("a", "b"))
    cluster.run(6)
    cluster.annotations[f"{PREFIX}target"] = _target(1, PS=("a",), Worker=("c", "b"))
    run(cluster)
    assert cluster.running == {"ps-0": 1, "worker-1": 1, "worker-2": 1}
    assert trains(cluster) == ["j-worker-2"]
    assert tasks(cluster, "j-worker-2")[1] == 0
    assert [each.mode for each in cluster.state.history] == ["overlap"]
    cluster.pods["j-worker-2"] = replace(cluster.pods["j-worker-2"], phase="Succeeded", exit_code=0)
    cluster.reconcile()
    assert cluster.status["conditions"][-1]["type"] == "Succeeded"


def test_a_job_of_one_replica() -> None:
    cluster = Cluster(
        annotations={f"{PREFIX}checkpoint-dir": "/checkpoints"},
        types={"Worker": 1},
        settings=ReconcileSettings(image="operator:1", wait_for_target=True),
    )
    cluster.annotations[f"{PREFIX}target"] = _target(0, Worker=("a",))
    cluster.run(6)
    cluster.annotations[f"{PREFIX}target"] = _target(1, Worker=("b",))
    run(cluster)
    assert cluster.running == {"worker-1": 1}
    assert [each.mode for each in cluster.state.history] == ["overlap"]
    assert "tf_config" not in orjson.loads(cluster.pods["j-worker-1"].command)


def _target(generation: int, **nodes: tuple[str, ...]) -> str:
    counts = {name: len(names) for name, names in nodes.items()}
    return orjson.dumps(
        {"generation": generation, "replicas": counts, "nodes": nodes, "reason": "wanted", "declared": counts}
    ).decode()


@pytest.mark.parametrize("saves", ["fails", "never"])
def test_a_failed_save_changes_nothing(saves: str) -> None:
    cluster = moved()
    cluster.launchers["j-chief-0"].saves = saves
    run(cluster, 250)
    assert cluster.running == {"chief-0": 0, "ps-0": 0, "worker-0": 0, "worker-1": 0}
    assert cluster.reasons == ["Rescaling", "RescaleRolledBack"]


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("writes", range(6))
@pytest.mark.parametrize("phase", ["Stable", *PHASES])
def test_the_operator_is_killed(phase: str, writes: int, reachable: bool) -> None:
    cluster = moved(reachable=reachable)
    cluster.until(phase)
    cluster.reconcile(killed_after=writes)
    cluster.tick()
    run(cluster)
    assert cluster.running == {"chief-1": 1, "ps-0": 1, "worker-0": 1, "worker-1": 1}


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("later", range(4))
@pytest.mark.parametrize("victim", ["j-chief-0", "j-chief-1", "j-ps-0", "j-worker-1"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_pod_is_lost(phase: str, victim: str, later: int, reachable: bool) -> None:
    """Before or after the old chief has left, and whether the operator knows that or not."""
    cluster = moved(reachable=reachable)
    cluster.until(phase)
    run(cluster, later)
    if victim in cluster.pods:
        cluster.kill(victim)
    run(cluster, 90)
    _is_whole(cluster)


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("later", range(4))
@pytest.mark.parametrize("victim", ["j-chief-0", "j-chief-1"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_container_ends(phase: str, victim: str, later: int, reachable: bool) -> None:
    cluster = moved(reachable=reachable)
    cluster.until(phase)
    run(cluster, later)
    if victim in cluster.launchers:
        cluster.launchers[victim].restart()
    run(cluster, 90)
    _is_whole(cluster)


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("later", range(4))
@pytest.mark.parametrize("phase", PHASES)
def test_the_move_is_not_wanted_any_more(phase: str, later: int, reachable: bool) -> None:
    """The chief may hear of it before or after it has left."""
    cluster = moved(reachable=reachable)
    cluster.until(phase)
    run(cluster, later)
    aim(cluster, 2)
    run(cluster, 90)
    _is_whole(cluster)
    assert cluster.pods[trains(cluster)[0]].node == "a"


@pytest.mark.parametrize("phase", PHASES)
def test_the_node_of_the_old_chief_is_lost(phase: str) -> None:
    """Nothing is heard from it any more, until its pod is gone."""
    cluster = moved()
    cluster.until(phase)
    lost = cluster.pods["j-chief-0"]
    cluster.pods["j-chief-0"] = replace(lost, unreachable=True)
    heard = cluster.reports

    def reports() -> dict[str, Report]:
        return {name: report for name, report in heard().items() if cluster.pods[name].uid != lost.uid}

    cluster.reports = reports  # type: ignore[method-assign]
    run(cluster, 200)
    _is_whole(cluster)


def _is_whole(cluster: Cluster) -> None:
    """One size is there with all its pods, and its chief trains."""
    state = cluster.state
    pods = {f"{name.lower()}-{index}": state.generation for name in state.replicas for index in state.pods(name)}
    assert state.phase == "Stable"
    assert cluster.running == pods


def test_a_chief_that_has_left_is_believed() -> None:
    """An old report of it proves nothing: a rollback waits until it tells that it prepares nothing any more."""
    cluster = moved(reachable=False)
    cluster.until("Checkpointing")
    cluster.unheard.add("j-chief-0")
    cluster.until("RollingBack", rounds=200)
    cluster.run(5)
    chief = cluster.launchers["j-chief-0"]
    assert (cluster.state.phase, chief.prepared) == ("RollingBack", Prepared(1, "leave", "ready"))
    chief._leave(1)
    run(cluster, 5)
    assert cluster.state.generation == 1
    run(cluster, 90)
    _is_whole(cluster)


def test_it_sees_none_of_the_checkpoints() -> None:
    """A volume of one node: the chief would start at step 0 there."""
    cluster = moved(checkpoint=100)
    cluster.until("Preparing")
    cluster.run(1)
    cluster.launchers["j-chief-1"].checkpoint = None
    run(cluster)
    assert cluster.running == {"chief-0": 0, "ps-0": 0, "worker-0": 0, "worker-1": 0}
    assert "chief-1 sees none of the checkpoints of chief-0: they must be on a volume that all nodes share" in str(
        cluster.events
    )
    cluster.launchers["j-chief-0"].checkpoint = 100
    aim(cluster, 2, Chief=("d",))
    run(cluster)
    assert set(cluster.running.values()) == {2}


def test_a_volume_that_one_pod_at_a_time_can_mount() -> None:
    """The next attempt ends the old chief's pod first."""
    cluster = moved()
    cluster.until("Preparing")
    cluster.reconcile()
    waits = replace(cluster.pods["j-chief-1"], node="c", terminating=False)
    while cluster.state.phase == "Preparing":
        cluster.pods["j-chief-1"] = waits
        cluster.reconcile()
        cluster.now += timedelta(seconds=1)
    run(cluster)
    assert "not ready after 300 s: chief-1" in str(cluster.events)
    aim(cluster, 2, Chief=("d",))
    run(cluster, 60)
    assert cluster.state.history[-1].mode == "recreate"
    assert cluster.running == {"chief-0": 2, "ps-0": 2, "worker-0": 2, "worker-1": 2}


def test_an_older_launcher_does_not_leave() -> None:
    cluster = moved(modes=("overlap", "spare"))
    run(cluster, 60)
    assert [each.mode for each in cluster.state.history] == ["recreate"]
    assert "chief-0 moves, and its launcher is older than that" in str(cluster.events)


def test_no_time_is_left_before_the_node_goes() -> None:
    cluster = moved()
    target = orjson.loads(cluster.annotations[f"{PREFIX}target"])
    cluster.annotations[f"{PREFIX}target"] = orjson.dumps({**target, "cause": "notice"}).decode()
    run(cluster, 60)
    assert [each.mode for each in cluster.state.history] == ["recreate"]

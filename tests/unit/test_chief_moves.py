"""The chief moves to another node: it trains in another pod then, and never in two at once."""

from dataclasses import replace
from datetime import timedelta

import orjson
import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import ReconcileSettings
from elastic_tfjob.controller.model.reports import MemoryUse, Prepared, Report
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


@pytest.mark.parametrize(("sees", "words"), [(None, "none of the checkpoints"), (50, "only step 50")])
def test_it_does_not_see_the_checkpoints(sees: int | None, words: str) -> None:
    """A volume of one node, perhaps with older ones: the chief would start there again."""
    cluster = moved(checkpoint=100)
    cluster.until("Preparing")
    cluster.run(1)
    cluster.launchers["j-chief-1"].checkpoint = sees
    run(cluster, 90)
    assert cluster.running == {"chief-0": 0, "ps-0": 0, "worker-0": 0, "worker-1": 0}
    assert f"chief-1 sees {words} of chief-0, which has saved step 100" in str(cluster.events)
    aim(cluster, 2, Chief=("d",))
    run(cluster)
    assert set(cluster.running.values()) == {2}


def test_a_file_system_shows_the_checkpoints_late() -> None:
    cluster = moved(checkpoint=100)
    cluster.until("Preparing")
    cluster.run(1)
    chief = cluster.launchers["j-chief-1"]
    chief.checkpoint = 50
    run(cluster, 30)
    assert (cluster.state.phase, chief.prepared) == ("Preparing", Prepared(1, "overlap", "ready", checkpoint=50))
    chief.prepared = Prepared(1, "overlap", "ready", checkpoint=100)
    run(cluster)
    assert set(cluster.running.values()) == {1}


def test_it_goes_on_from_what_was_saved() -> None:
    """Its pod is told that with each command until it has made a step, also one that is made anew."""
    cluster = moved(reachable=False, checkpoint=100)
    cluster.hangs.add(1)
    cluster.until("Switching")
    cluster.reconcile()
    assert orjson.loads(cluster.pods["j-chief-1"].command)["saved"] == 100
    assert "saved" not in cluster.pods["j-ps-0"].command
    cluster.kill("j-chief-1")
    cluster.checkpoint = None
    cluster.run(1)  # the old one's pod ends first
    cluster.reconcile()
    assert orjson.loads(cluster.pods["j-chief-1"].command)["saved"] == 100
    cluster.hangs.clear()
    run(cluster)
    assert "saved" not in cluster.pods["j-chief-1"].command
    _is_whole(cluster)


def test_a_volume_that_one_node_at_a_time_can_mount() -> None:
    """From then on the old chief's pod ends first."""
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
    for generation, node in ((2, "d"), (3, "c")):
        aim(cluster, generation, Chief=(node,))
        run(cluster, 60)
        assert cluster.state.history[-1].mode == "recreate"
        assert set(cluster.running.values()) == {generation}
    assert "the next pod of chief-0 did not start beside it, perhaps for its volume" in str(cluster.events)
    aim(cluster, 4, Chief=("c",), Worker=("a", "c"))
    run(cluster)
    assert cluster.state.history[-1].mode == "overlap"


def slow(cluster: Cluster, grace_s: int = 10) -> None:
    """Pods take so long to end, and train meanwhile."""
    tick, left = cluster.tick, dict[str, int]()

    def later(seconds: float = 1.0) -> None:
        ending = {name: pod for name, pod in cluster.pods.items() if pod.terminating}
        kept = {}
        for name, pod in ending.items():
            left[pod.uid] = left.get(pod.uid, grace_s) - 1
            if left[pod.uid] > 0:
                kept[name] = cluster.pods.pop(name), cluster.launchers.pop(name)
        tick(seconds)
        for name, (pod, launcher) in kept.items():
            cluster.pods[name], cluster.launchers[name] = pod, launcher

    cluster.tick = later  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["suspended", "state-lost"])
def test_a_job_that_starts_over_waits_for_the_chief_that_ends(how: str) -> None:
    """Its pod has another name than the first one."""
    cluster = moved()
    run(cluster)
    assert trains(cluster) == ["j-chief-1"]
    slow(cluster)
    if how == "suspended":
        cluster.spec = {"runPolicy": {"suspend": True}}
        run(cluster, 2)
        cluster.spec = {}
    else:
        del cluster.annotations[f"{PREFIX}state"]
    aim(cluster, 2, Chief=("c",))
    run(cluster, 60)
    _is_whole(cluster)
    assert trains(cluster) == ["j-chief-0"]


def _ahead(cluster: Cluster) -> None:
    """The pods act before the operator hears of either: the old chief has left, and the next one trains."""
    cluster.until("Checkpointing")
    cluster.reconcile()
    while trains(cluster) != ["j-chief-1"]:
        cluster.tick()


def test_the_next_chief_is_lost_and_the_old_one_gone() -> None:
    """It may train where nobody hears it: no other pod leads until it is gone."""
    cluster = moved()
    _ahead(cluster)
    lost = cluster.pods["j-chief-1"]
    cluster.pods["j-chief-1"] = replace(lost, unreachable=True)
    cluster.kill("j-chief-0")
    heard, tick = cluster.reports, cluster.tick

    def reports() -> dict[str, Report]:
        return {name: each for name, each in heard().items() if cluster.pods[name].uid != lost.uid}

    def stays(seconds: float = 1.0) -> None:
        pod, launcher = cluster.pods.pop("j-chief-1"), cluster.launchers.pop("j-chief-1")
        tick(seconds)
        cluster.pods["j-chief-1"], cluster.launchers["j-chief-1"] = pod, launcher

    cluster.reports, cluster.tick = reports, stays  # type: ignore[method-assign]
    run(cluster, 150)
    assert cluster.state.phase == "RollingBack"
    cluster.tick = tick  # type: ignore[method-assign]
    cluster.kill("j-chief-1")
    run(cluster, 60)
    _is_whole(cluster)


@pytest.mark.parametrize("how", ["gone", "failed"])
def test_a_new_operator_hears_the_next_chief_first(how: str) -> None:
    """The old one has left and is gone; that is no reason to end the next one."""
    cluster = moved()
    _ahead(cluster)
    uid = cluster.pods["j-chief-1"].uid
    if how == "gone":
        cluster.kill("j-chief-0")
    else:
        cluster.pods["j-chief-0"] = replace(cluster.pods["j-chief-0"], phase="Failed", exit_code=1)
    cluster.listens_since, cluster.deaf = cluster.now, True
    cluster.run(2, seconds=0.1)
    cluster.deaf = False
    run(cluster, 60)
    assert (cluster.state.generation, cluster.pods["j-chief-1"].uid) == (1, uid)


def test_the_old_chiefs_pod_cannot_end() -> None:
    """Its node has no power since the drain. Further moves take other indexes."""
    cluster = moved()
    cluster.until("Switching")
    cluster.reconcile()
    tick = cluster.tick

    def stays(seconds: float = 1.0) -> None:
        pod, launcher = cluster.pods.pop("j-chief-0"), cluster.launchers.pop("j-chief-0")
        tick(seconds)
        cluster.pods["j-chief-0"], cluster.launchers["j-chief-0"] = replace(pod, unreachable=True), launcher

    cluster.tick = stays  # type: ignore[method-assign]
    run(cluster, 60)
    aim(cluster, 2, Chief=("d",))
    run(cluster, 60)
    assert (cluster.state.generation, cluster.state.indexes) == (2, {"Chief": (2,)})


def test_memory_for_a_second_program_is_not_needed_where_none_starts() -> None:
    cluster = moved()
    heard = cluster.reports
    full = {"memory": MemoryUse(700, 1000), "modes": ("leave",)}

    def reports() -> dict[str, Report]:
        return {name: replace(each, **full) if name == "j-chief-0" else each for name, each in heard().items()}  # type: ignore[arg-type]

    cluster.reports = reports  # type: ignore[method-assign]
    run(cluster)
    assert cluster.state.history[-1].mode == "overlap"


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
def test_the_job_ends_while_the_next_chief_is_prepared(policy: str) -> None:
    cluster = placed(spec={"runPolicy": {"cleanPodPolicy": policy}})
    aim(cluster, 1, Chief=("c",))
    cluster.until("Preparing")
    run(cluster, 3)
    cluster.pods["j-chief-0"] = replace(cluster.pods["j-chief-0"], phase="Succeeded", exit_code=0)
    cluster.launchers["j-chief-0"].generation = None
    run(cluster, 20)
    assert cluster.status["conditions"][-1]["type"] == "Succeeded"
    assert "j-chief-1" not in cluster.pods
    assert ("j-ps-0" in cluster.pods) == (policy == "None")


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

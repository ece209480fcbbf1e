"""Mode `live`: workers join and leave the running program, whose other replicas keep theirs."""

from dataclasses import replace

import orjson
import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.pod import GRACE_S
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Nodes, Target
from unit.pretend import Cluster, started


def _live(**options: object) -> Cluster:
    cluster = started(**options)
    cluster.modes = ("live", "overlap", "spare")
    return cluster


def _modes(cluster: Cluster) -> list[str]:
    return [each.mode for each in cluster.state.history]


def _target(cluster: Cluster, generation: int, **replicas: int) -> None:
    cluster.target(generation, **replicas)
    cluster.run(20)


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_workers_change_and_no_program_is_replaced(workers: int) -> None:
    cluster = _live()
    kept = {name: pod.uid for name, pod in cluster.pods.items()}
    _target(cluster, 1, Worker=workers)
    state = cluster.state
    assert (state.phase, state.generation, state.slot) == ("Stable", 1, 0)
    assert _modes(cluster) == ["live"]
    assert set(cluster.running.values()) == {1}
    assert sum("worker" in name for name in cluster.running) == workers
    assert all(cluster.pods[name].uid == uid for name, uid in kept.items() if name in cluster.pods)
    started_as = {name: each.started_as for name, each in cluster.launchers.items()}
    assert {name for name, generation in started_as.items() if not generation} == kept.keys() & cluster.pods.keys()
    assert cluster.reasons == ["Rescaling", "Rescaled"]


def test_only_the_added_pods_and_the_chief_prepare() -> None:
    cluster = _live()
    cluster.target(1, Worker=3)
    cluster.run(20)
    assert {name for name, action in cluster.told if action == "prepare"} <= {"j-worker-2", "j-chief-0"}
    assert [name for name, action in cluster.told if action == "switch"] == ["j-chief-0"]
    command = orjson.loads(cluster.pods["j-ps-0"].command)
    assert (command["action"], command["generation"]) == ("run", 1)


def test_pods_that_leave_end_after_the_program_has_given_them_up() -> None:
    cluster = _live()
    cluster.launchers["j-chief-0"].lives = "never"
    cluster.target(1, Worker=1)
    cluster.run(10)
    assert cluster.state.phase == "Checkpointing"
    assert "j-worker-1" in cluster.pods
    cluster.launchers["j-chief-0"].lives = "well"
    cluster.run(10)
    assert "j-worker-1" not in cluster.pods
    assert _modes(cluster) == ["live"]


@pytest.mark.parametrize(("own", "given"), [(GRACE_S, 5), (60, 60), (3, 3)])
def test_a_worker_that_left_does_not_wait_for_the_chief_to_end(own: int, given: int) -> None:
    cluster = _live()
    cluster.pods = {name: replace(pod, grace_s=own) for name, pod in cluster.pods.items()}
    cluster.target(1, Worker=1)
    for _ in range(20):
        cluster.reconcile()
        if cluster.pods["j-worker-1"].terminating:
            break
        cluster.tick()
    assert cluster.pods["j-worker-1"].grace_s == given


def test_a_worker_moves() -> None:
    cluster = _live(annotations={f"{PREFIX}checkpoint-dir": "/c", f"{PREFIX}min-workers": "1"})
    nodes: Nodes = {"Chief": ("any",), "PS": ("any",), "Worker": ("any", "other")}
    target = Target(1, dict(cluster.types), nodes, {}, "nearer", dict(cluster.types))
    cluster.annotations[f"{PREFIX}target"] = target.to_json()
    cluster.run(20)
    assert _modes(cluster) == ["live"]
    assert set(cluster.pods) == {"j-chief-0", "j-ps-0", "j-worker-0", "j-worker-2"}


@pytest.mark.parametrize("replicas", [{"PS": 2}, {"PS": 2, "Worker": 3}])
def test_parameter_servers_change_by_overlap(replicas: dict[str, int]) -> None:
    cluster = _live()
    _target(cluster, 1, **replicas)
    assert _modes(cluster) == ["overlap"]
    _target(cluster, 2, PS=replicas["PS"], Worker=1)
    assert _modes(cluster) == ["overlap", "live"]
    assert cluster.state.slot == 1
    _target(cluster, 3, Worker=1)
    assert _modes(cluster) == ["overlap", "live", "overlap"]
    assert set(cluster.running.values()) == {3}


def test_a_program_that_keeps_its_workers_says_why() -> None:
    cluster = _live()
    cluster.modes, cluster.not_live = ("overlap", "spare"), "the program has\nset live=False"
    _target(cluster, 1, Worker=3)
    assert _modes(cluster) == ["overlap"]
    [message] = [message for reason, message in cluster.events if reason == "Rescaling"]
    assert message.endswith("(overlap): wanted; not live: the program has | set live=False")


def test_a_change_waits_until_the_launcher_has_checked() -> None:
    cluster = started()
    cluster.reported_at = 4.0
    _target(cluster, 1, Worker=3)
    assert (cluster.state.phase, cluster.state.generation) == ("Stable", 0)
    cluster.modes, cluster.reported_at = ("live", "overlap", "spare"), 5.0
    cluster.run(20)
    assert _modes(cluster) == ["live"]


@pytest.mark.parametrize("pod", ["j-ps-0", "j-worker-0"])
def test_a_pod_of_an_older_operator_would_replace_its_program(pod: str) -> None:
    cluster = _live()
    cluster.old_pods = {pod}
    _target(cluster, 1, Worker=3)
    assert _modes(cluster) == ["overlap"]


def test_the_user_may_refuse_it() -> None:
    cluster = _live()
    cluster.annotations[f"{PREFIX}rescale"] = "overlap"
    _target(cluster, 1, Worker=3)
    assert _modes(cluster) == ["overlap"]


def test_a_refusal_falls_back_to_overlap_for_the_same_size() -> None:
    cluster = _live()
    cluster.launchers["j-chief-0"].lives = "fails"
    added = {"j-worker-2"}
    cluster.target(1, Worker=3)
    cluster.run(30)
    assert _modes(cluster) == ["overlap"]
    assert set(cluster.running.values()) == {1}
    assert cluster.state.slot == 1
    assert [name for name in cluster.made if name in added] == ["j-worker-2"], "the added pod stays"
    messages = [message for reason, message in cluster.events if reason == "Rescaling"]
    assert messages[1].endswith("(overlap): wanted; not live: no dataset on the new worker")


def test_without_another_mode_a_refusal_is_rolled_back() -> None:
    cluster = _live()
    cluster.modes = ("live",)
    cluster.launchers["j-chief-0"].lives = "fails"
    cluster.target(1, Worker=3)
    cluster.run(30)
    assert (cluster.state.phase, cluster.state.generation) == ("Stable", 0)
    assert cluster.state.refused is not None
    assert str(cluster.state.refused.reason) == "the workers did not change: no dataset on the new worker"
    assert "j-worker-2" not in cluster.pods


@pytest.mark.parametrize("phase", ["Preparing", "Checkpointing", "Switching"])
@pytest.mark.parametrize("writes", range(5))
@pytest.mark.parametrize("lives", ["well", "fails"])
def test_the_operator_killed_in_each_phase(phase: str, writes: int, lives: str) -> None:
    cluster = _live()
    cluster.launchers["j-chief-0"].lives = lives
    cluster.target(1, Worker=3)
    cluster.until(phase)
    cluster.reconcile(killed_after=writes)
    cluster.tick()
    cluster.run(40)
    assert _modes(cluster) == ["live" if lives == "well" else "overlap"]
    assert set(cluster.running.values()) == {1}


@pytest.mark.parametrize("phase", ["Preparing", "Checkpointing", "Switching"])
@pytest.mark.parametrize("victim", ["j-chief-0", "j-ps-0", "j-worker-0", "j-worker-2"])
def test_a_pod_killed_in_each_phase(phase: str, victim: str) -> None:
    cluster = _live()
    cluster.target(1, Worker=3)
    cluster.until(phase)
    if victim in cluster.pods:
        cluster.kill(victim)
    cluster.run(60)
    assert cluster.state.phase == "Stable"
    assert set(cluster.running.values()) == {cluster.state.generation}


@pytest.mark.parametrize("phase", ["Preparing", "Checkpointing"])
def test_the_target_is_withdrawn(phase: str) -> None:
    cluster = _live()
    cluster.launchers["j-chief-0"].lives = "never"
    cluster.target(1, Worker=3)
    cluster.until(phase)
    cluster.target(2, Worker=2)
    cluster.run(5)
    cluster.launchers["j-chief-0"].lives = "well"
    cluster.run(30)
    assert (cluster.state.phase, cluster.state.replicas["Worker"]) == ("Stable", 2)
    assert set(cluster.running.values()) == {cluster.state.generation}
    assert "j-worker-2" not in cluster.pods


def test_an_old_report_does_not_show_that_the_chief_keeps_its_workers() -> None:
    cluster = _live()
    cluster.target(1, Worker=3)
    cluster.until("Checkpointing")
    chief, reports = cluster.launchers["j-chief-0"], cluster.reports
    old = reports()["j-chief-0"]

    def unheard() -> dict[str, Report]:
        same = cluster.launchers.get("j-chief-0") is chief
        return {**reports(), "j-chief-0": old} if same else reports()

    cluster.reports = unheard  # type: ignore[method-assign]
    cluster.run(300)
    assert cluster.state.phase == "Stable"
    assert set(cluster.running.values()) == {cluster.state.generation}


def test_the_chief_may_have_changed_its_workers_before_it_hears_that_it_is_not_to() -> None:
    cluster = _live()
    cluster.target(1, Worker=3)
    cluster.until("Checkpointing")
    cluster.run(1)
    cluster.unheard = {"j-chief-0"}
    cluster.target(2, Worker=2)
    cluster.run(2)
    cluster.unheard = set()
    cluster.run(30)
    state: StoredState = cluster.state
    assert (state.phase, state.replicas["Worker"]) == ("Stable", 2)
    assert set(cluster.running.values()) == {state.generation}
    assert cluster.running.keys() == {"chief-0", "ps-0", "worker-0", "worker-1"}

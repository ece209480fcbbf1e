"""The rescale of a running job: every way through its phases, and every way back.

The operator in these tests has no memory: each pass starts from what is stored, as after a restart.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.manifest import counts
from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.context import COMMANDS_INTERVAL_S
from elastic_tfjob.controller.job.decision import (
    Change,
    Create,
    Decision,
    DeletePod,
    Observed,
    ReconcileSettings,
    ResizePod,
    SendCommand,
)
from elastic_tfjob.controller.job.reconcile import reconcile
from elastic_tfjob.controller.kube.executor import Refusals
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.command import STOP_COMMAND
from elastic_tfjob.controller.model.reports import MemoryUse
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import UsageRecord
from harness.effort import effort
from unit import build
from unit.pretend import ELASTIC, Cluster, started

SIZE = {"chief-0": 0, "ps-0": 0, "worker-0": 0, "worker-1": 0}


def test_a_job_that_nobody_rescales_is_told_nothing() -> None:
    cluster = started()
    assert cluster.running == SIZE
    assert cluster.state.phase == "Stable"
    assert not any(pod.command for pod in cluster.pods.values())


@pytest.mark.parametrize(
    ("replicas", "running"),
    [
        ({"Worker": 3}, {"chief-0": 1, "ps-0": 1, "worker-0": 1, "worker-1": 1, "worker-2": 1}),
        ({"Worker": 1}, {"chief-0": 1, "ps-0": 1, "worker-0": 1}),
        ({"PS": 2}, {"chief-0": 1, "ps-0": 1, "ps-1": 1, "worker-0": 1, "worker-1": 1}),
        ({"PS": 2, "Worker": 1}, {"chief-0": 1, "ps-0": 1, "ps-1": 1, "worker-0": 1}),
    ],
)
def test_overlap(replicas: dict[str, int], running: dict[str, int]) -> None:
    cluster = started()
    kept = {name: pod.uid for name, pod in cluster.pods.items()}
    cluster.target(1, **replicas)
    cluster.run(20)
    assert cluster.running == running
    state = cluster.state
    assert (state.phase, state.generation, state.slot, state.rescales) == ("Stable", 1, 1, 1)
    assert (state.last_downtime_s, state.history[0].lost_steps, state.history[0].reason) == (0.5, 0, "wanted")
    assert cluster.reasons == ["Rescaling", "Rescaled"]
    assert all(cluster.pods[name].uid == uid for name, uid in kept.items() if name in cluster.pods)


@pytest.mark.parametrize(("looked", "mode"), [(True, "overlap"), (False, "recreate")])
def test_a_launcher_that_has_not_looked_since_the_first_step_is_waited_for(looked: bool, mode: str) -> None:
    """Its word is older than the program's that it can be rescaled. If it stays with it, the pods are made anew."""
    cluster = started()
    cluster.modes, cluster.reported_at = (), 4.0
    cluster.target(1, Worker=3)
    cluster.run(3)
    assert cluster.state.phase == "Stable"
    cluster.reported_at = 10.0
    if looked:
        cluster.modes = ("overlap", "spare")
    cluster.run(30)
    assert [each.mode for each in cluster.state.history] == [mode]


def test_the_next_generation_listens_on_the_other_port() -> None:
    cluster = started()
    for generation, workers, port in ((1, 3, 2223), (2, 4, 2222)):
        cluster.target(generation, Worker=workers)
        cluster.run(20)
        config = orjson.loads(orjson.loads(cluster.pods["j-chief-0"].command)["tf_config"])
        assert config["cluster"]["worker"][-1] == f"j-worker-{workers - 1}.ns.svc:{port}"


def test_without_a_chief_worker_0_leads() -> None:
    cluster = started(types={"PS": 1, "Worker": 2})
    cluster.target(1, Worker=3)
    cluster.run(20)
    assert set(cluster.running.values()) == {1}
    assert cluster.reasons == ["Rescaling", "Rescaled"]


def test_kept_pods_prepare_when_the_added_ones_run() -> None:
    """Before, the added ones' host names do not exist yet."""
    cluster = started()
    cluster.unschedulable = {"j-worker-2"}
    cluster.target(1, Worker=3)
    cluster.until("Preparing")
    cluster.run(3)
    assert cluster.pods["j-chief-0"].command == ""
    cluster.unschedulable.clear()
    cluster.run(2)
    assert '"prepare"' in cluster.pods["j-chief-0"].command


class TestRollBack:
    """Whatever goes wrong before the switch is committed: training goes on as it was."""

    @staticmethod
    def stays(cluster: Cluster, why: str) -> None:
        cluster.run(20)
        state = cluster.state
        assert (state.phase, state.generation, state.rescales) == ("Stable", 0, 0)
        assert cluster.running == SIZE
        assert state.refused is not None
        assert why in str(state.refused.reason)
        assert cluster.reasons == ["Rescaling", "RescaleRolledBack"]
        assert all(launcher.prepared is None for launcher in cluster.launchers.values())

    def test_a_rescale_without_a_node_for_the_new_pod_is_rolled_back(self) -> None:
        cluster = started()
        cluster.unschedulable = {"j-worker-2"}
        cluster.target(1, Worker=3)
        cluster.until("Preparing")
        begun = cluster.now
        cluster.until("Stable")
        assert (cluster.now - begun).total_seconds() < 30
        self.stays(cluster, "the new worker-2 cannot be scheduled: 0/3 nodes are available")

    def test_new_pods_that_need_the_room_of_those_that_leave_are_made_after_them(self) -> None:
        """On full nodes a change that adds and removes pods has room for the new ones only when the others have left:
        prepared beside them it would be refused for ever. A change that only adds pods gains nothing by that."""
        cluster = started()
        cluster.unschedulable = {"j-ps-1"}
        cluster.target(1, PS=2, Worker=1)
        cluster.until("Preparing")
        cluster.until("Stable")
        refused = cluster.state.refused
        assert refused is not None
        assert refused.no_room
        cluster.target(2, PS=2)
        cluster.until("Preparing")
        cluster.until("Stable")
        cluster.unschedulable.clear()
        cluster.target(3, PS=2, Worker=1)
        cluster.until("Recreating")
        said = [message for reason, message in cluster.events if reason == "Rescaling"][-1]
        assert said.endswith("; its new pods fit only after old pods have ended")
        cluster.run(30)
        assert (cluster.state.phase, dict(cluster.state.replicas)) == ("Stable", {"Chief": 1, "PS": 2, "Worker": 1})
        assert set(cluster.running.values()) == {3}

    def test_a_new_pod_that_just_came_is_not_refused_yet(self) -> None:
        """However long the phase: those of a large job are made one after the other."""
        cluster = started()
        cluster.target(1, Worker=3)
        cluster.until("Preparing")
        cluster.now += timedelta(seconds=60)
        cluster.unschedulable = {"j-worker-2"}
        cluster.run(10)
        assert cluster.state.phase == "Preparing"
        cluster.unschedulable.clear()
        cluster.run(20)
        assert set(cluster.running.values()) == {1}

    def test_the_new_program_fails(self) -> None:
        cluster = started()
        cluster.launchers["j-ps-0"].builds = False
        cluster.target(1, Worker=3)
        self.stays(cluster, "ps-0 could not be prepared: exit code 1")

    def test_a_rescale_that_takes_too_long_is_rolled_back(self) -> None:
        cluster = started()
        cluster.target(1, Worker=3)
        cluster.until("Preparing")
        cluster.deaf = True
        cluster.run(6, seconds=100)
        cluster.deaf = False
        self.stays(cluster, "not ready after 300 s: chief-0")

    def test_the_checkpoint_fails(self) -> None:
        cluster = started()
        cluster.launchers["j-chief-0"].saves = "fails"
        cluster.target(1, Worker=3)
        self.stays(cluster, "no checkpoint: No space left on device")

    def test_the_checkpoint_hangs(self) -> None:
        cluster = started()
        cluster.launchers["j-chief-0"].saves = "never"
        cluster.target(1, Worker=3)
        cluster.until("Checkpointing")
        cluster.run(3, seconds=100)
        self.stays(cluster, "no checkpoint and no answer from chief-0 for")

    @pytest.mark.parametrize("phase", ["Preparing", "Checkpointing"])
    def test_the_target_is_withdrawn(self, phase: str) -> None:
        cluster = started()
        cluster.launchers["j-chief-0"].saves = "fails" if phase == "Checkpointing" else "well"
        cluster.target(1, Worker=3)
        cluster.until(phase)
        del cluster.annotations[TARGET_ANNOTATION]
        cluster.run(20)
        assert cluster.running == SIZE
        assert cluster.state.phase == "Stable"

    def test_a_refused_target_is_not_tried_again(self) -> None:
        cluster = started()
        cluster.launchers["j-chief-0"].saves = "fails"
        cluster.target(1, Worker=3)
        cluster.run(40)
        assert cluster.reasons.count("Rescaling") == 1
        cluster.launchers["j-chief-0"].saves = "well"
        cluster.target(2, Worker=3)
        cluster.run(20)
        assert set(cluster.running.values()) == {2}
        assert cluster.state.refused is not None

    def test_a_commit_that_crosses_the_cancellation_wins(self) -> None:
        """The chief commits in the moment in which the operator gives up: what the launcher did is what holds."""
        cluster = started()
        cluster.launchers["j-chief-0"].saves = "never"
        cluster.target(1, Worker=3)
        cluster.until("Checkpointing")
        cluster.run(3)
        cluster.now = cluster.now.replace(year=cluster.now.year + 1)
        cluster.until("RollingBack")
        cluster.launchers["j-chief-0"].saves = "well"
        cluster.launchers["j-chief-0"].switch = None
        cluster.launchers["j-chief-0"].obey(cluster.pods["j-chief-0"].command)
        cluster.run(20)
        assert set(cluster.running.values()) == {1}
        assert cluster.state.generation == 1


def test_the_newer_of_two_targets_wins() -> None:
    cluster = started()
    cluster.target(1, Worker=3)
    cluster.until("Preparing")
    cluster.run(2)
    cluster.target(2, Worker=4)
    cluster.run(40)
    assert set(cluster.running.values()) == {2}
    assert len(cluster.running) == 6
    assert cluster.reasons == ["Rescaling", "RescaleRolledBack", "Rescaling", "Rescaled"]
    assert "2 PS" not in cluster.events[1][1]
    assert "the target is now 1 chief + 1 PS + 4 workers" in cluster.events[1][1]


def test_the_next_target_waits_until_all_know_what_runs() -> None:
    """A pod that has not heard that generation 1 runs would stop its program to prepare generation 2."""
    cluster = started()
    cluster.target(1, Worker=3)
    cluster.until("Switching")
    cluster.unheard = {"j-worker-0"}
    cluster.target(2, Worker=2)
    cluster.run(10)
    assert cluster.state.phase == "Switching"
    assert '"run"' in cluster.pods["j-worker-0"].command
    cluster.unheard.clear()
    cluster.run(30)
    assert cluster.running == {"chief-0": 2, "ps-0": 2, "worker-0": 2, "worker-1": 2}
    assert cluster.reasons == ["Rescaling", "Rescaled"] * 2


def test_each_pod_is_told_once() -> None:
    """The switch only the chief, which decides; added pods are born with their first command."""
    cluster = started()
    cluster.target(1, Worker=3)
    cluster.run(60)
    kept = ["j-chief-0", "j-ps-0", "j-worker-0", "j-worker-1"]
    prepare, switch = [(name, "prepare") for name in kept], [("j-chief-0", "switch")]
    assert cluster.told == [*prepare, *switch, *((name, "run") for name in (*kept, "j-worker-2"))]


@pytest.mark.parametrize(
    "dropped", [("j-chief-0", "prepare"), ("j-chief-0", "switch"), ("j-worker-0", "prepare"), ("j-worker-0", "run")]
)
def test_a_command_that_the_kubelet_does_not_pass_on_is_given_again(dropped: tuple[str, str]) -> None:
    cluster = started()
    cluster.dropped = dropped
    cluster.target(1, Worker=3)
    cluster.run(25)
    assert cluster.told.count(dropped) == 2
    assert cluster.reasons == ["Rescaling", "Rescaled"]
    assert set(cluster.running.values()) == {1}


def test_a_chief_that_did_not_hear_that_it_is_to_go_on_is_not_made_anew() -> None:
    cluster = started()
    cluster.launchers["j-ps-0"].builds = False
    cluster.dropped = ("j-chief-0", "run")
    cluster.target(1, Worker=3)
    uid = cluster.pods["j-chief-0"].uid
    cluster.run(80)
    assert cluster.told.count(("j-chief-0", "run")) == 2
    assert cluster.reasons == ["Rescaling", "RescaleRolledBack"]
    assert cluster.pods["j-chief-0"].uid == uid


PHASES = ["Preparing", "Checkpointing", "Switching"]


@pytest.mark.parametrize("victim", ["j-chief-0", "j-ps-0", "j-worker-0", "j-worker-2"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_pod_killed_in_each_phase(phase: str, victim: str) -> None:
    """The pod is made anew, and the job ends at one of the two sizes, all of its pods in one generation."""
    cluster = started()
    cluster.target(1, Worker=3)
    cluster.until(phase)
    cluster.run(1)
    if victim in cluster.pods:
        cluster.kill(victim)
    cluster.run(60)
    consistent(cluster)


@pytest.mark.parametrize("writes", range(7))
@pytest.mark.parametrize("phase", ["Stable", *PHASES])
def test_the_operator_killed_in_each_phase(phase: str, writes: int) -> None:
    """After so many of its writes: the next one goes on from what is stored."""
    cluster = started()
    cluster.target(1, Worker=3)
    cluster.until(phase)
    cluster.reconcile(killed_after=writes)
    cluster.tick()
    cluster.run(30)
    assert set(cluster.running.values()) == {1}
    consistent(cluster)


@pytest.mark.parametrize("phase", ["Stable", *PHASES])
def test_an_operator_that_comes_back_late_listens_before_it_judges(phase: str) -> None:
    """The phase began long ago, but that nothing was heard since is not the pods' fault."""
    cluster = started()
    cluster.target(1, Worker=3)
    if phase != "Stable":
        cluster.until(phase)
        cluster.reconcile()
    kept = {name: pod.uid for name, pod in cluster.pods.items()}
    cluster.back_after(3600)
    cluster.run(30)
    assert set(cluster.running.values()) == {1}
    assert [each.mode for each in cluster.state.history] == ["overlap"]
    assert cluster.reasons == ["Rescaling", "Rescaled"]
    assert cluster.state.last_downtime_s == 0.5
    assert {name: pod.uid for name, pod in cluster.pods.items() if name in kept} == kept


def test_an_operator_that_comes_back_late_to_a_roll_back_leaves_the_chief_alone() -> None:
    cluster = started()
    cluster.launchers["j-ps-0"].builds = False
    cluster.target(1, Worker=3)
    cluster.until("RollingBack")
    uid = cluster.pods["j-chief-0"].uid
    cluster.back_after(3600)
    cluster.run(30)
    assert cluster.reasons == ["Rescaling", "RescaleRolledBack"]
    assert cluster.state.phase == "Stable"
    assert cluster.pods["j-chief-0"].uid == uid


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("what", ["suspended", "finished", "deleted"])
def test_the_job_ends_in_the_middle(what: str, phase: str) -> None:
    cluster = started()
    cluster.target(1, Worker=3)
    cluster.until(phase)
    if what == "suspended":
        cluster.spec = {"runPolicy": {"suspend": True}}
        cluster.run(5)
        assert cluster.pods == {}
        cluster.spec = {}
        cluster.run(40)
        consistent(cluster)
        return
    if what == "finished":
        finish(cluster)
        cluster.run(5)
        assert [c["type"] for c in cluster.status["conditions"] if c["status"] == "True"][-1] == "Succeeded"
        assert cluster.state.phase == "Stable"
        return
    made, before = len(cluster.made), dict(cluster.annotations)
    cluster.deleting = True
    cluster.run(5)
    assert (len(cluster.made), cluster.annotations) == (made, before)


def test_recreate_stops_the_chief_before_its_parameter_servers() -> None:
    """It saves on SIGTERM, and what it saves is on them. All are marked before."""
    cluster = started(annotations={**ELASTIC, f"{PREFIX}rescale": "recreate"})
    cluster.target(1, Worker=3)
    cluster.until("Recreating")
    cluster.reconcile()
    assert all(pod.stopped_by_us and not pod.terminating for pod in cluster.pods.values())
    cluster.reconcile()
    leaving = {name for name, pod in cluster.pods.items() if pod.terminating}
    assert leaving == {"j-chief-0"}
    cluster.run(20)
    assert set(cluster.running.values()) == {1}
    assert len(cluster.running) == 5
    assert cluster.state.history[0].mode == "recreate"


def test_a_node_that_is_refused_after_recreate_is_not_waited_for() -> None:
    """The job must be Stable to be placed elsewhere, and does not wait ten minutes for a pod that cannot come."""
    cluster = started(annotations={**ELASTIC, f"{PREFIX}rescale": "recreate"})
    size = {"Chief": 1, "PS": 1, "Worker": 3}
    nodes = {"Chief": ("a",), "PS": ("a",), "Worker": ("a", "a", "b")}
    cluster.annotations[TARGET_ANNOTATION] = Target(1, size, nodes, reason="grows").to_json()
    cluster.unschedulable = {"j-worker-2"}
    cluster.steps = False
    cluster.until("Switching")
    begun = cluster.now
    cluster.until("Stable")
    assert (cluster.now - begun).total_seconds() < 30
    said = dict(cluster.events)["Rescaled"]
    assert said.endswith("(recreate), but worker-2 cannot be scheduled: 0/3 nodes are available: 3 Insufficient cpu.")
    elsewhere = {**nodes, "Worker": ("a", "a", "c")}
    cluster.annotations[TARGET_ANNOTATION] = Target(1, size, elsewhere, reason="b is refused").to_json()
    cluster.run(5)
    cluster.unschedulable.clear()
    cluster.run(10)
    assert cluster.pods["j-worker-2"].node == "c"
    assert set(cluster.running.values()) == {1}


def test_marks_that_reach_nobody_make_no_busy_loop() -> None:
    """The pods are gone, and the operator has yet to hear of that: their marks are answered with "not found", which is
    no failure and changes nothing, so that the same pass would follow at once."""
    cluster = started(annotations={**ELASTIC, f"{PREFIX}rescale": "recreate"})
    cluster.target(1, Worker=3)
    cluster.until("Recreating")
    for _ in range(3):
        cluster.reconcile(killed_after=0)
        assert [action for action in cluster.decision.actions if isinstance(action, SendCommand)]
        assert cluster.decision.again_at is not None
        assert (cluster.decision.again_at - cluster.now).total_seconds() == COMMANDS_INTERVAL_S


def test_without_a_command_the_launcher_cannot_be_injected() -> None:
    cluster = started(command=None)
    cluster.target(1, Worker=3)
    cluster.until("Recreating")
    cluster.reconcile()
    assert "LauncherNotInjected" in [reason for reason, _ in cluster.events]


@pytest.mark.parametrize(
    ("memory_used", "mode"), [(100, "overlap"), (700, "spare")], ids=["room for two", "no room for two"]
)
def test_the_mode_follows_memory(memory_used: int, mode: str) -> None:
    cluster = started()
    cluster.memory_of = {"chief": MemoryUse(memory_used, 1000)}
    cluster.target(1, Worker=3)
    cluster.until("Preparing")
    assert cluster.state.next is not None
    assert cluster.state.next.mode == mode


@pytest.mark.parametrize(
    "annotations",
    [{}, {**ELASTIC, f"{PREFIX}rescale": "never"}, {k: v for k, v in ELASTIC.items() if "checkpoint" not in k}],
    ids=["plain", "never", "no checkpoint-dir"],
)
def test_a_job_that_is_not_elastic_is_never_touched(annotations: dict[str, str]) -> None:
    cluster = started(annotations=dict(annotations))
    before = {name: pod.uid for name, pod in cluster.pods.items()}
    cluster.target(1, Worker=3)
    cluster.run(10)
    assert {name: pod.uid for name, pod in cluster.pods.items()} == before
    assert cluster.running == SIZE


class TestWaiting:
    """Under a profile that places jobs."""

    WAITS = ReconcileSettings(image="operator:1", wait_for_target=True)

    def test_no_pods_are_created_before_there_is_a_target(self) -> None:
        cluster = Cluster(settings=self.WAITS)
        cluster.run(3)
        assert cluster.pods == {}
        cluster.annotations[TARGET_ANNOTATION] = Target(0, {}, reason="needs 400m, 100m are free").to_json()
        cluster.run(3)
        assert (cluster.state.phase, cluster.state.reason) == ("Waiting", "needs 400m, 100m are free")
        assert cluster.reasons == ["Waiting"]
        assert [c["type"] for c in cluster.status["conditions"]] == ["Created"]

    def test_a_waiting_job_starts_where_the_target_says(self) -> None:
        cluster = Cluster(settings=self.WAITS)
        nodes = {"Chief": ("a",), "PS": ("a",), "Worker": ("b",)}
        target = Target(0, {"Chief": 1, "PS": 1, "Worker": 1}, nodes, {"Worker": (300,)}, "fits on a and b")
        cluster.annotations[TARGET_ANNOTATION] = target.to_json()
        cluster.run(5)
        assert cluster.running == {"chief-0": 0, "ps-0": 0, "worker-0": 0}
        assert cluster.pods["j-worker-0"].cpu == (300, 300)
        assert cluster.pods["j-ps-0"].cpu == (100, 100)

    def test_a_pod_that_waits_for_a_lost_node_is_made_anew_on_another(self) -> None:
        """Those that are bound stay where they are; only what is not is bound to somewhere else."""
        cluster = Cluster(settings=self.WAITS)
        replicas = {"Chief": 1, "PS": 1, "Worker": 1}
        target = Target(0, replicas, {"Chief": ("a",), "PS": ("a",), "Worker": ("b",)}, reason="fits on a and b")
        cluster.annotations[TARGET_ANNOTATION] = target.to_json()
        cluster.unschedulable.add("j-worker-0")
        cluster.run(5)
        assert cluster.pods["j-worker-0"].pinned == "b"
        kept = {name: pod.uid for name, pod in cluster.pods.items() if pod.node}
        elsewhere = Target(0, replicas, dict.fromkeys(replicas, ("c",)), reason="b is gone")
        cluster.annotations[TARGET_ANNOTATION] = elsewhere.to_json()
        cluster.run(5)
        cluster.unschedulable.clear()
        cluster.run(5)
        assert cluster.pods["j-worker-0"].node == "c"
        assert {name: cluster.pods[name].uid for name in kept} == kept
        assert set(kept) == {"j-chief-0", "j-ps-0"}

    def test_a_job_without_annotations_does_not_wait(self) -> None:
        cluster = Cluster(settings=self.WAITS, annotations={})
        cluster.run(3)
        assert len(cluster.pods) == 4
        assert cluster.annotations == {}

    def test_a_job_is_stopped_by_an_empty_target_and_starts_again(self) -> None:
        cluster = started(settings=self.WAITS, annotations={**ELASTIC, TARGET_ANNOTATION: _target(0)})
        cluster.annotations[TARGET_ANNOTATION] = Target(1, {}, reason="preempted").to_json()
        cluster.run(10)
        assert cluster.pods == {}
        assert cluster.state.phase == "Waiting"
        cluster.annotations[TARGET_ANNOTATION] = _target(2)
        cluster.run(10)
        assert set(cluster.running.values()) == {2}


def test_cpu_alone_changes_in_place() -> None:
    cluster = started()
    uids = {name: pod.uid for name, pod in cluster.pods.items()}
    target = Target(0, {"Chief": 1, "PS": 1, "Worker": 2}, {}, {"Worker": (300, 200)}, "idle capacity")
    cluster.annotations[TARGET_ANNOTATION] = target.to_json()
    cluster.run(5)
    assert {action.name: action.request_millicores for action in cluster.resized} == {
        "j-worker-0": 300,
        "j-worker-1": 200,
    }
    assert {name: pod.uid for name, pod in cluster.pods.items()} == uids
    assert ("CPUAdjusted", "Worker 300m + 200m: idle capacity") in cluster.events
    cluster.annotations[TARGET_ANNOTATION] = _target(0)
    cluster.run(5)
    assert cluster.pods["j-worker-0"].cpu == (100, 100)


def test_cpu_that_was_lent_is_given_back_before_the_new_size_runs() -> None:
    """Added pods may need it; and nobody gets more before that size runs, for it may not come."""
    cluster = started()
    lent = Target(0, {"Chief": 1, "PS": 1, "Worker": 2}, {}, {"Chief": (400,), "PS": (100,)}, "idle capacity")
    cluster.annotations[TARGET_ANNOTATION] = lent.to_json()
    cluster.run(5)
    cluster.unschedulable.add("j-worker-2")
    grown = Target(1, {"Chief": 1, "PS": 1, "Worker": 3}, {}, {"Chief": (150,), "PS": (300,)}, "grows")
    cluster.annotations[TARGET_ANNOTATION] = grown.to_json()
    cluster.run(5)
    preparing = cluster.state
    assert preparing.phase == "Preparing"
    assert cluster.pods["j-chief-0"].cpu == (150, 150)
    assert cluster.pods["j-ps-0"].cpu == (100, 100)
    cluster.unschedulable.clear()
    cluster.run(30)
    assert cluster.state.phase == "Stable"
    assert cluster.pods["j-ps-0"].cpu == (300, 300)


@pytest.mark.parametrize(("kubelet_s", "created_s"), [(1.0, 1.0), (60.0, 3.0)])
def test_a_pod_is_added_when_lent_cpu_was_given_up(kubelet_s: float, created_s: float) -> None:
    """kube-scheduler would find no room for it before; a kubelet that needs long is not waited for."""
    cluster = started()
    lent = Target(0, {"Chief": 1, "PS": 1, "Worker": 2}, {}, {"Chief": (400,)}, "idle capacity")
    cluster.annotations[TARGET_ANNOTATION] = lent.to_json()
    cluster.run(5)
    cluster.pods["j-chief-0"] = replace(cluster.pods["j-chief-0"], held_millicores=400)
    grown = Target(1, {"Chief": 1, "PS": 1, "Worker": 3}, {}, {}, "grows")
    cluster.annotations[TARGET_ANNOTATION] = grown.to_json()
    cluster.until("Preparing")
    began = cluster.now
    while "j-worker-2" not in cluster.pods:
        if (cluster.now - began).total_seconds() >= kubelet_s:
            cluster.pods["j-chief-0"] = replace(cluster.pods["j-chief-0"], held_millicores=100)
        cluster.run(1)
    assert created_s <= (cluster.now - began).total_seconds() <= created_s + 2
    assert cluster.pods["j-chief-0"].cpu.request_millicores < 400


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(("index", "elastic"), [(1, True), (0, True), (1, False)])
def test_a_pod_that_leaves_as_planned_gets_no_event_of_its_exit_code(index: int, elastic: bool, marked: bool) -> None:
    """Only of a job that follows a target: upstream sends the event for each pod."""
    stored = StoredState("Stable", 1, replicas={"Worker": 1}).to_json()
    annotations = {**ELASTIC, f"{PREFIX}state": stored} if elastic else {}
    pods = [build.pod("Worker", k, exit_code=137 if k == index else None) for k in range(2)]
    pods[index] = replace(pods[index], command=STOP_COMMAND if marked else "")
    decision = build.decide(build.job({"Worker": 1}, annotations=annotations), pods=tuple(pods))
    leaves = elastic and (marked or index == 1)
    assert ("ExitedWithCode" in [each.reason for each in decision.events]) is not leaves


def test_cpu_that_was_given_up_for_a_size_that_did_not_come_is_not_taken_back() -> None:
    """Another job may have it by now; the next plan says."""
    cluster = started()
    lent = Target(0, {"Chief": 1, "PS": 1, "Worker": 2}, {}, {"Chief": (400,), "PS": (300,)}, "idle capacity")
    cluster.annotations[TARGET_ANNOTATION] = lent.to_json()
    cluster.run(5)
    cluster.launchers["j-chief-0"].builds = False
    grown = Target(1, {"Chief": 1, "PS": 1, "Worker": 3}, {}, {"Chief": (150,), "PS": (300,)}, "grows")
    cluster.annotations[TARGET_ANNOTATION] = grown.to_json()
    cluster.until("RollingBack")
    cluster.run(20)
    assert cluster.state.phase == "Stable"
    assert cluster.state.cpu == {"Chief": (150,), "PS": (300,)}
    assert cluster.pods["j-chief-0"].cpu == (150, 150)
    again = Target(2, {"Chief": 1, "PS": 1, "Worker": 2}, {}, {"Chief": (400,), "PS": (300,)}, "idle capacity")
    cluster.annotations[TARGET_ANNOTATION] = again.to_json()
    cluster.run(5)
    assert cluster.pods["j-chief-0"].cpu == (400, 400)


def _resized(
    held: dict[str, int],
    planned: tuple[int, ...],
    *,
    leaving: int = 0,
    refused: str = "",
    nodes: tuple[str, ...] = (),
    ending: str = "",
) -> dict[str, int]:
    """What a pass asks for, of workers on one node that hold so much, where the plan has so much for them, on `nodes`.
    Another one, which holds `leaving`, still ends there; those in `ending` do, and come again."""
    asks = {"resources": {"requests": {"cpu": "1"}}, "name": "tensorflow", "image": "i"}
    there = {"Worker": nodes} if nodes else {}
    target = Target(1, {"Worker": len(planned)}, there, {"Worker": planned}, "shrinks")
    stored = StoredState("Stable", 1, replicas={"Worker": len(planned)}, nodes=there, cpu={"Worker": planned})
    annotations = {**ELASTIC, f"{PREFIX}target": target.to_json(), f"{PREFIX}state": stored.to_json()}
    job = build.job({"Worker": build.replicas(3, containers=[asks])}, annotations=annotations)
    pods = [
        build.pod("Worker", k, spec=_holds(cpu), terminating=name in ending)
        for k, (name, cpu) in enumerate(held.items())
    ]
    if leaving:
        pods.append(build.pod("Worker", len(held), terminating=True, spec=_holds(leaving)))
    until = {(f"j-worker-{name}-uid", "less"): build.NOW + timedelta(hours=1) for name in refused}
    decision = build.decide(job, pods=tuple(pods), refused=until)
    return {each.name: each.request_millicores for each in decision.actions if isinstance(each, ResizePod)}


def _holds(cpu: int) -> dict[str, Any]:
    asks = {"requests": {"cpu": f"{cpu}m"}}
    return {"nodeName": "n1", "containers": [{"name": "tensorflow", "image": "i", "resources": asks}]}


def test_cpu_is_raised_into_what_was_given_up_alone() -> None:
    """What a plan has for pods after a shrink is there when those that leave the node are gone."""
    assert _resized({"a": 1000}, (1500,), leaving=1000) == {}
    assert _resized({"a": 1000}, (1500,)) == {"j-worker-0": 1500}
    assert _resized({"a": 1000, "b": 1000}, (500, 1500)) == {"j-worker-0": 500}
    assert _resized({"a": 500, "b": 1000}, (500, 1500)) == {"j-worker-1": 1500}
    assert _resized({"a": 1000, "b": 1000}, (500, 1500), refused="0") == {}
    assert _resized({"a": 1000, "b": 1000}, (1900, 1000), nodes=("n1", "n2"), ending="b") == {}
    assert _resized({"a": 1000, "b": 1000}, (1900, 1000), nodes=("n1", "n1")) == {"j-worker-0": 1900}
    assert _resized({"a": 1000, "b": 1000}, (1200, 1300)) == {"j-worker-0": 1200, "j-worker-1": 1300}


@pytest.mark.parametrize(
    ("declared", "bounds", "running", "distributed"),
    [
        ({"Worker": 2}, {"min-workers": 1, "max-workers": 2}, {"Worker": 1}, True),
        ({"PS": 1, "Worker": 1}, {"min-ps": 0}, {"PS": 0, "Worker": 1}, True),
        ({"Worker": 1}, {"max-workers": 4}, {"Worker": 1}, True),
        ({"Worker": 1}, {}, {"Worker": 3}, True),
        ({"Worker": 1}, {}, {"Worker": 1}, False),
        ({"Worker": 1, "PS": 0}, {"max-workers": 1}, {"Worker": 1, "PS": 0}, False),
    ],
)
def test_whether_a_job_is_distributed_is_no_matter_of_the_moment(
    declared: dict[str, int], bounds: dict[str, int], running: dict[str, int], distributed: bool
) -> None:
    """A program for several replicas reads TF_CONFIG, also when it has shrunk to one and its pods are made anew."""
    annotations = {f"{PREFIX}{name}": str(value) for name, value in bounds.items()}
    annotations |= {
        f"{PREFIX}checkpoint-dir": "/c",
        f"{PREFIX}state": StoredState("Stable", 1, replicas=running).to_json(),
    }
    decision = build.decide(
        build.job(declared, annotations=annotations), settings=ReconcileSettings(image="operator:1")
    )
    pods = [each.body for each in decision.actions if isinstance(each, Create) and each.kind == "Pod"]
    named = [{env["name"] for env in pod["spec"]["containers"][0].get("env", ())} for pod in pods]
    assert len(pods) == sum(running.values())
    assert all(("TF_CONFIG" in names) is distributed for names in named)


@pytest.mark.parametrize("types", [{"Worker": 1}, {"Chief": 1, "Worker": 0}])
@pytest.mark.parametrize("nodes", [("b",), ()])
def test_a_job_of_one_replica_gets_no_tf_config_later(types: dict[str, int], nodes: tuple[str, ...]) -> None:
    """When it was moved, or stopped, its program finds what it found at first: none."""
    name, waits = next(iter(types)), ReconcileSettings(image="operator:1", wait_for_target=True)
    cluster = Cluster(annotations={f"{PREFIX}checkpoint-dir": "/c"}, types=types, settings=waits)
    for generation, there in enumerate((("a",), nodes, ("a",))):
        target = Target(generation, types if there else {}, {name: there} if there else {}, reason="wanted")
        cluster.annotations[TARGET_ANNOTATION] = target.to_json()
        cluster.run(20)
        assert all("tf_config" not in pod.command for pod in cluster.pods.values())
    assert (cluster.state.phase, cluster.state.generation) == ("Stable", 2)
    assert list(cluster.running.values()) == [2]


def test_a_drained_pod_of_an_elastic_job_is_no_failure() -> None:
    cluster = started()
    cluster._write(_delete(cluster, "j-worker-1"))
    cluster.reconcile()
    assert "Failed" not in [c["type"] for c in cluster.status["conditions"]]
    cluster.run(5)
    assert cluster.running == SIZE


def test_a_sizes_speed_is_not_that_beside_starting_programs() -> None:
    cluster = started()
    cluster.steps_per_s = 12.0
    cluster.target(1, Worker=3)
    cluster.until("Preparing")
    assert cluster.state.speeds == {"1/2": 12.0}
    cluster.steps_per_s = 4.0  # the programs of the new size take the CPU
    cluster.until("Stable")
    assert cluster.state.steps_per_s == 4.0
    assert cluster.state.speeds["1/2"] == 12.0


def test_state_survives_its_annotation() -> None:
    cluster = started()
    cluster.target(1, Worker=3)
    cluster.until("Preparing")
    state = cluster.state
    assert StoredState.parse(state.to_json()) == state


def conditions(cluster: Cluster) -> list[str]:
    return [c["type"] for c in cluster.status["conditions"] if c["status"] == "True"]


def test_a_job_that_ends_before_its_figures_are_refreshed_has_its_last_speed() -> None:
    """They are stored once a minute; others of its name are to learn how fast it was. What pods have said is known for
    a while after they have ended."""
    cluster = started()
    for launcher in cluster.launchers.values():
        launcher.first_step = True
    cluster.run(3)
    before = cluster.state.speeds
    cluster.steps_per_s = 25.0
    cluster.run(3)
    assert cluster.state.speeds == before
    said = cluster.reports()
    finish(cluster)
    cluster.reports = lambda: said  # type: ignore[method-assign]
    cluster.run(3)
    assert cluster.state.speeds == {"1/2": 25.0}


class TestVerdict:
    """Success needs a pod that succeeded; and at the end a job counts as its spec says."""

    def test_a_job_without_workers_has_not_succeeded(self) -> None:
        """Its bounds allow none, and there was no room for more."""
        annotations = {**ELASTIC, f"{PREFIX}min-workers": "0"}
        cluster = started(types={"PS": 1, "Worker": 2}, annotations=annotations)
        cluster.target(1, Worker=0)
        cluster.run(30)
        assert set(cluster.pods) == {"j-ps-0"}
        assert "Succeeded" not in conditions(cluster)

    def test_a_chief_that_an_edit_adds(self) -> None:
        """It is not there yet, so that none is missing says nothing."""
        cluster = started(types={"PS": 1, "Worker": 2})
        cluster.types = {"Chief": 1, "PS": 1, "Worker": 2}
        cluster.run(5)
        assert "Succeeded" not in conditions(cluster)
        cluster.pods["j-worker-0"] = replace(cluster.pods["j-worker-0"], phase="Succeeded", exit_code=0)
        cluster.run(3)
        assert conditions(cluster)[-1] == "Succeeded"

    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_counted_as_declared(self, workers: int) -> None:
        """Argo waits for `replicaStatuses.Worker.succeeded == 2`, as the manifest says."""
        cluster = started()
        if workers != 2:
            cluster.target(1, Worker=workers)
            cluster.run(20)
        finish(cluster)
        cluster.run(5)
        assert counts(cluster.status) == {
            "Chief": {"succeeded": 1},
            "PS": {"succeeded": 1},
            "Worker": {"succeeded": 2},
        }

    def test_a_grown_job_succeeds_when_all_its_workers_have(self) -> None:
        """What waits for 2 must not go on while two others train, nor when one of them has failed."""
        cluster = started(types={"PS": 1, "Worker": 2}, spec={"successPolicy": "AllWorkers"})
        cluster.target(1, Worker=4)
        cluster.run(20)
        for number in (1, 2, 3, 0):
            assert cluster.status["replicaStatuses"]["Worker"].get("succeeded", 0) < 2
            name = f"j-worker-{number}"
            cluster.pods[name] = replace(cluster.pods[name], phase="Succeeded", exit_code=0)
            cluster.run(2)
        assert conditions(cluster)[-1] == "Succeeded"
        assert counts(cluster.status)["Worker"] == {"succeeded": 2}


@pytest.mark.parametrize("policy", ["Never", "ExitCode"])
@pytest.mark.parametrize("spec", [{}, {"runPolicy": {"backoffLimit": 0}}])
def test_pods_that_end_while_they_are_made_anew_have_not_failed(policy: str, spec: dict[str, Any]) -> None:
    """The chief is gone, so its peers' programs fail."""
    cluster = started(annotations={**ELASTIC, f"{PREFIX}rescale": "recreate"}, restart=policy, spec=spec)
    cluster.target(1, Worker=3)
    cluster.until("Recreating")
    for _ in range(10):
        cluster.reconcile()
        cluster.tick()
        if "j-chief-0" not in cluster.pods:
            break
    assert len(cluster.pods) == 3
    for name, pod in cluster.pods.items():
        cluster.pods[name] = replace(pod, phase="Failed", exit_code=1)
    cluster.run(30)
    assert "Failed" not in conditions(cluster)
    assert set(cluster.running.values()) == {1}


def test_a_drained_pod_of_an_elastic_job_is_no_retry() -> None:
    cluster = started(restart="Never", spec={"runPolicy": {"backoffLimit": 0}})
    drained = replace(cluster.pods["j-worker-1"], phase="Failed", exit_code=143, terminating=True)
    cluster.pods["j-worker-1"] = drained
    cluster.reconcile()
    assert "Failed" not in conditions(cluster)
    cluster.pods["j-worker-1"] = replace(drained, terminating=False)
    cluster.reconcile()
    assert conditions(cluster)[-1] == "Failed"


def test_a_node_that_the_template_asks_for_is_no_node_of_ours() -> None:
    """A state without nodes, and a pod that waits for the one node that its user wants: it is not made anew."""
    cluster = started()
    fields = [{"key": "metadata.name", "operator": "In", "values": ["theirs"]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    cluster.pod_spec = {"affinity": {"nodeAffinity": required}}
    waiting = replace(cluster.pods["j-worker-1"], phase="Pending", node="", pinned="theirs")
    cluster.pods["j-worker-1"] = waiting
    cluster.unschedulable.add("j-worker-1")
    cluster.run(3)
    assert cluster.pods["j-worker-1"].uid == waiting.uid
    cluster.pods["j-worker-1"] = replace(waiting, pinned="lost")
    cluster.run(3)
    assert cluster.pods["j-worker-1"].uid != waiting.uid


def test_a_pod_that_failed_before_they_are_made_anew_has_failed() -> None:
    cluster = started(annotations={**ELASTIC, f"{PREFIX}rescale": "recreate"}, restart="Never")
    cluster.target(1, Worker=3)
    cluster.until("Recreating")
    cluster.pods["j-worker-1"] = replace(cluster.pods["j-worker-1"], phase="Failed", exit_code=1)
    cluster.run(5)
    assert conditions(cluster)[-1] == "Failed"


class TestWithoutHook:
    """A program that does not use ElasticCheckpoint never reports a step; most TFJobs are such."""

    @staticmethod
    def without(**options: Any) -> Cluster:
        cluster = Cluster(**options)
        cluster.hook, cluster.modes, cluster.steps = False, (), False
        cluster.run(40)
        cluster.events.clear()
        return cluster

    def test_a_job_without_the_hook_is_recreated_at_once(self) -> None:
        cluster = self.without()
        cluster.target(1, Worker=3)
        for _ in range(12):
            cluster.reconcile()
            cluster.tick()
        assert cluster.state.phase == "Stable"
        assert (cluster.state.rescales, cluster.state.history[0].mode) == (1, "recreate")
        assert len(cluster.pods) == 5
        cluster.run(2)
        assert conditions(cluster)[-1] == "Running"
        assert cluster.reasons == ["Rescaling", "Rescaled"]
        assert "does not use ElasticCheckpoint" in cluster.events[0][1]

    def test_a_program_that_has_just_started_is_given_time(self) -> None:
        """It may not have come to it yet; what is waited for is said at once."""
        cluster = Cluster()
        cluster.hook, cluster.modes, cluster.steps = False, (), False
        cluster.run(8)
        cluster.events.clear()
        cluster.target(1, Worker=3)
        cluster.run(3)
        assert cluster.state.phase == "Stable"
        assert set(cluster.reasons) == {"RescalePending"}
        assert "waiting until chief-0 reports a step, at most 300 s" in cluster.events[0][1]
        cluster.hook, cluster.modes, cluster.steps = True, ("overlap", "spare"), True
        cluster.run(30)
        assert [each.mode for each in cluster.state.history] == ["overlap"]

    def test_a_program_that_has_just_started_leaves_a_node_that_goes_away_at_once(self) -> None:
        cluster = Cluster()
        cluster.modes, cluster.steps = (), False
        cluster.run(8)
        cluster.events.clear()
        cluster.want(1, {"Worker": 1}, "repair")
        cluster.run(5)
        cluster.steps = True
        cluster.run(30)
        assert [each.mode for each in cluster.state.history] == ["recreate"]
        assert cluster.reasons[0] == "Rescaling"
        assert "chief-0 has made no step yet" in cluster.events[0][1]

    def test_time_that_a_pod_waits_for_a_node_or_image_does_not_count(self) -> None:
        cluster = Cluster()
        cluster.hook, cluster.modes, cluster.steps = None, (), False
        cluster.unschedulable = {"j-chief-0"}
        cluster.run(10, seconds=50)
        cluster.unschedulable = set()
        cluster.run(2)
        cluster.pods["j-chief-0"] = replace(cluster.pods["j-chief-0"], running_since=format_time(cluster.now))
        cluster.target(1, Worker=3)
        cluster.run(250)
        assert not cluster.state.history
        assert "Rescaling" not in cluster.reasons
        cluster.run(100)
        assert [each.mode for each in cluster.state.history] == ["recreate"]

    def test_a_program_that_reported_steps_is_waited_for(self) -> None:
        """It was made anew a while ago (a node was lost), and imports TensorFlow for minutes."""
        cluster = started()
        assert cluster.state.step is not None
        cluster.hook, cluster.modes, cluster.steps = False, (), False
        cluster.run(60)
        cluster.events.clear()
        cluster.target(1, Worker=3)
        cluster.run(10)
        assert cluster.state.phase == "Stable"
        assert set(cluster.reasons) == {"RescalePending"}

    def test_the_time_counts_from_the_start_of_the_program(self) -> None:
        """And not from the job's last rescale, which may be days ago."""
        cluster = started()
        cluster.run(400)
        chief = cluster.pods["j-chief-0"]
        cluster.pods[chief.name] = replace(chief, running_since=format_time(cluster.now))
        cluster.steps = False
        cluster.target(1, Worker=3)
        cluster.run(60)
        assert cluster.state.phase == "Stable"
        cluster.run(300)
        assert cluster.state.next is not None
        assert cluster.state.next.mode == "recreate"

    def test_nothing_known_of_the_hook(self) -> None:
        """As with a launcher of before: only time tells."""
        cluster = self.without()
        cluster.hook = None
        cluster.target(1, Worker=3)
        cluster.run(60)
        assert set(cluster.reasons) == {"RescalePending"}
        cluster.run(300)
        assert [each.mode for each in cluster.state.history] == ["recreate"]


def test_a_job_that_is_only_placed_follows_its_spec() -> None:
    """An edit of its replicas is followed as upstream does it: the pods that stay go on."""
    waits = ReconcileSettings(image="operator:1", wait_for_target=True)
    declared = {"Chief": 1, "PS": 1, "Worker": 2}
    placed = {f"{PREFIX}placement": "auto"}
    cluster = started(
        settings=waits, annotations={**placed, TARGET_ANNOTATION: Target(0, declared, declared=declared).to_json()}
    )
    kept = {name: pod.uid for name, pod in cluster.pods.items()}
    for generation, workers in ((1, 4), (2, 1)):
        cluster.types = {**declared, "Worker": workers}
        cluster.run(2)
        nodes = {"Chief": ("a",), "PS": ("a",), "Worker": ("b",) * workers}
        target = Target(generation, cluster.types, nodes, declared=cluster.types, reason="spec")
        cluster.annotations[TARGET_ANNOTATION] = target.to_json()
        cluster.run(5)
        assert len(cluster.pods) == 2 + workers
        assert {name: pod.uid for name, pod in cluster.pods.items() if name in kept}.items() <= kept.items()
    assert "Scaled" in [reason for reason, _ in cluster.events]


def test_a_job_that_was_suspended_while_it_waited_starts_when_nobody_decides_for_it() -> None:
    """Its state has no size, and none will come."""
    cluster = Cluster(settings=ReconcileSettings(image="operator:1", wait_for_target=True))
    cluster.run(3)
    cluster.settings = ReconcileSettings(image="operator:1")
    cluster.spec = {"runPolicy": {"suspend": True}}
    cluster.run(3)
    cluster.spec = {}
    cluster.run(5)
    assert cluster.running == SIZE


FIXED = {f"{PREFIX}checkpoint-dir": "/data", f"{PREFIX}total-steps": "1000"}
"""A job that has somewhere to go on from, and one size."""


class TestStopped:
    """A plan takes all from a job, and gives it back later."""

    def stopped(self, annotations: dict[str, str]) -> Cluster:
        waits = ReconcileSettings(image="operator:1", wait_for_target=True)
        cluster = Cluster(annotations=dict(annotations), settings=waits)
        cluster.target(0)
        cluster.run(5)
        cluster.annotations[TARGET_ANNOTATION] = Target(1, {}, reason="others go before it").to_json()
        cluster.run(15)
        return cluster

    def test_a_stopped_job_waits_and_resumes(self) -> None:
        """One with equal bounds, too: it need not be elastic for that."""
        cluster = self.stopped(FIXED)
        assert (cluster.state.phase, cluster.pods) == ("Waiting", {})
        waited = [each for each in cluster.status["conditions"] if each["status"] == "True"][-1]
        assert waited["type"] == "Restarting"
        cluster.target(2)
        cluster.run(10)
        assert cluster.state.phase == "Stable"
        assert set(cluster.pods) == {"j-chief-0", "j-ps-0", "j-worker-0", "j-worker-1"}
        assert set(cluster.running.values()) == {2}

    def test_a_job_without_checkpoints_is_not_stopped(self) -> None:
        cluster = self.stopped({f"{PREFIX}total-steps": "1000"})
        assert cluster.state.phase == "Stable"
        assert len(cluster.pods) == 4

    def test_the_record_of_a_stopped_job_keeps_its_usage(self) -> None:
        """What it had before counts, what it waits does not."""
        cluster = self.stopped(FIXED)
        record = UsageRecord.of(cluster.annotations, "job-uid")
        assert (record.placed, record.stops, bool(record.stopped)) == ("", 1, True)
        assert 0 < record.executed_s < 20
        assert record.service == 4 * record.executed_s
        cluster.run(100)
        assert UsageRecord.of(cluster.annotations, "job-uid") == record
        cluster.target(2)
        cluster.run(10)
        again = UsageRecord.of(cluster.annotations, "job-uid")
        assert again.placed
        assert (again.executed_s, again.service, again.held) == (record.executed_s, record.service, 4)

    @pytest.mark.parametrize("how", ["ended", "suspended"])
    def test_the_record_of_a_job_is_closed_once(self, how: str) -> None:
        """A job that has ended or is suspended is not written again and again. Neither is a stop of a plan's, after
        which it would have to wait."""
        cluster = Cluster(annotations=dict(FIXED), settings=ReconcileSettings(image="operator:1", wait_for_target=True))
        cluster.target(0)
        cluster.run(10)
        if how == "ended":
            cluster.pods["j-chief-0"] = replace(cluster.pods["j-chief-0"], phase="Succeeded", exit_code=0)
        else:
            cluster.spec = {"runPolicy": {"suspend": True}}
        cluster.run(10)
        record = UsageRecord.of(cluster.annotations, "job-uid")
        assert (record.placed, record.stops, record.stopped) == ("", 0, "")
        assert record.executed_s > 5
        looked = decision_of(cluster)
        assert looked.actions == ()


class TestRefusedCpu:
    """Changes of CPU that the API server refuses: known by pod and direction, for a while."""

    def test_the_state_tells_what_the_pod_has(self) -> None:
        cluster = started()
        lent = Target(0, {"Chief": 1, "PS": 1, "Worker": 2}, {}, {"Worker": (300, 200)}, "idle capacity")
        cluster.annotations[TARGET_ANNOTATION] = lent.to_json()
        uid = cluster.pods["j-worker-0"].uid
        cluster.refused = {(uid, "more"): cluster.now + timedelta(seconds=60)}
        cluster.run(5)
        assert cluster.pods["j-worker-0"].cpu == (100, 100)
        assert cluster.pods["j-worker-1"].cpu == (200, 200)
        assert cluster.state.cpu == {"Worker": (100, 200)}
        cluster.run(70)
        assert cluster.pods["j-worker-0"].cpu == (300, 300)
        assert cluster.state.cpu == {"Worker": (300, 200)}

    def test_giving_back_is_tried_though_more_was_refused(self) -> None:
        cluster = started()
        lent = Target(0, {"Chief": 1, "PS": 1, "Worker": 2}, {}, {"Worker": (300, 200)}, "idle capacity")
        cluster.annotations[TARGET_ANNOTATION] = lent.to_json()
        cluster.run(5)
        uids = [cluster.pods[name].uid for name in ("j-worker-0", "j-worker-1")]
        cluster.refused = {(uid, "more"): cluster.now + timedelta(days=1) for uid in uids}
        cluster.annotations[TARGET_ANNOTATION] = _target(0)
        cluster.run(5)
        assert cluster.pods["j-worker-0"].cpu == (100, 100)
        assert cluster.state.cpu == {}

    def test_cpu_that_cannot_be_reclaimed_is_in_the_state(self) -> None:
        cluster = started()
        lent = Target(0, {"Chief": 1, "PS": 1, "Worker": 2}, {}, {"Worker": (300, 200)}, "idle capacity")
        cluster.annotations[TARGET_ANNOTATION] = lent.to_json()
        cluster.run(5)
        cluster.refused = {(cluster.pods["j-worker-1"].uid, "less"): cluster.now + timedelta(seconds=60)}
        cluster.annotations[TARGET_ANNOTATION] = _target(0)
        cluster.run(5)
        assert cluster.state.cpu == {"Worker": (100, 200)}

    def test_a_refusal_of_another_job_is_no_reason_to_look_again(self) -> None:
        cluster = started()
        cluster.annotations[TARGET_ANNOTATION] = _target(0)
        seen = Observed(job=cluster.job(), now=cluster.now, pods=tuple(cluster.pods.values()))
        others: dict[tuple[str, Change], datetime] = {("other-uid", "less"): cluster.now + timedelta(seconds=5)}
        found = [reconcile(each, cluster.settings) for each in (seen, replace(seen, refused=others))]
        assert found[0].again_at == found[1].again_at

    def test_a_refused_cpu_change_is_retried_later_each_time(self) -> None:
        now = datetime(2026, 1, 2, tzinfo=UTC)
        refusals = Refusals(now=lambda: now)
        assert [refusals.note("u", "more") for _ in range(8)] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
        assert [refusals.note("u", "less") for _ in range(3)] == [60, 60, 60]
        assert [refusals.note("u", "share") for _ in range(2)] == [60, 120]
        refusals.forget("u", "more")
        assert refusals.note("u", "more") == 60
        now += timedelta(days=1)
        refusals.note("v", "more")
        assert set(refusals.until) == {("v", "more")}


class TestGang:
    """The gang is as large as the job that runs."""

    @pytest.mark.parametrize("scheduler", ["volcano", "scheduler-plugins-scheduler"])
    @pytest.mark.parametrize(("policy", "grown"), [({}, 6), ({"minAvailable": 4}, 4)])
    def test_min_available_of_a_gang_follows_the_size(self, policy: dict[str, int], grown: int, scheduler: str) -> None:
        """A minAvailable of the user's is a minimum still where the job has grown."""
        found = ReconcileSettings(image="operator:1", gang_scheduler=scheduler)
        cluster = started(settings=found, spec={"runPolicy": {"schedulingPolicy": policy}} if policy else {})
        assert cluster.gang[-1]["minMember"] == 4
        cluster.target(1, Worker=4)
        cluster.until("Checkpointing")
        assert len(cluster.pods) == 6
        assert cluster.gang[-1]["minMember"] == 4, "a gang is not whole while the added pods come one by one"
        cluster.run(20)
        assert cluster.gang[-1]["minMember"] == grown
        cluster.target(2, Worker=1)
        cluster.run(20)
        assert cluster.running == {"chief-0": 2, "ps-0": 2, "worker-0": 2}
        assert cluster.gang[-1]["minMember"] == 3

    def test_pods_go_while_volcano_says_pending(self) -> None:
        """It says so once the chief is gone, for as long as the others leave too little room for the whole gang."""
        found = ReconcileSettings(image="operator:1", gang_scheduler="volcano")
        cluster = started(settings=found, annotations={**ELASTIC, f"{PREFIX}rescale": "recreate"})
        cluster.target(1, Worker=3)
        cluster.until("Recreating")
        while "j-chief-0" in cluster.pods:
            cluster.reconcile()
            cluster.tick()
        cluster.gang_phase = "Pending"
        cluster.run(10)
        assert not cluster.pods
        assert cluster.gang[-1]["minMember"] == 5
        cluster.gang_phase = "Inqueue"
        cluster.run(20)
        assert set(cluster.running.values()) == {1}
        assert len(cluster.running) == 5

    def test_a_stopped_job_has_none(self) -> None:
        """Volcano would keep the room for it that others were given."""
        found = ReconcileSettings(image="operator:1", gang_scheduler="volcano", wait_for_target=True)
        cluster = Cluster(settings=found)
        cluster.target(0)
        cluster.run(5)
        assert cluster.gang[-1]["minMember"] == 4
        cluster.annotations[TARGET_ANNOTATION] = Target(1, {}, reason="others go before it").to_json()
        cluster.until("Waiting")
        cluster.run(5)
        assert not cluster.gang
        cluster.target(2, Worker=1)
        cluster.run(5)
        assert cluster.gang[-1]["minMember"] == 3
        assert len(cluster.pods) == 3


def test_last_words_are_readable() -> None:
    """What the program said last is the end of it."""
    cluster = started()
    traceback = "Traceback\n" + '  File "train.py", line 1\n' * 100 + "ValueError: no\tsuch\x1b[0m column"
    cluster.launchers["j-ps-0"].builds = False
    cluster.launchers["j-ps-0"].why = traceback
    cluster.target(1, Worker=3)
    cluster.run(20)
    message = dict(cluster.events)["RescaleRolledBack"]
    assert message.endswith("ValueError: no such?[0m column")
    assert message.startswith("Stays at 1 chief + 1 PS + 2 workers instead of 1 chief + 1 PS + 3 workers: ")
    assert len(message) < 1024
    assert message.isprintable()


@pytest.mark.parametrize("speed", [1e-300, 1e-9])
def test_an_end_beyond_the_calendar(speed: float) -> None:
    cluster = started(annotations={**ELASTIC, f"{PREFIX}total-steps": "1000000000000"})
    cluster.steps_per_s = speed
    cluster.run(130)
    assert cluster.state.eta == "9998-12-31T00:00:00Z"


FAULTS = st.sampled_from(["kill", "operator", "save fails", "save hangs", "retarget", "deaf", "restart", "nothing"])


@settings(max_examples=effort(15, 60), deadline=None)
@given(st.booleans(), st.lists(st.tuples(FAULTS, st.integers(0, 5), st.integers(1, 6)), max_size=12))
def test_a_job_recovers_from_random_faults(live: bool, faults: list[tuple[str, int, int]]) -> None:
    """Random faults at random moments; then quiet: every pod runs one generation, and there are as many as there shall
    be. That no two pods of one replica exist is checked at each creation."""
    cluster = started()
    if live:
        cluster.modes = ("live", "overlap", "spare")
    generation = 1
    cluster.target(generation, Worker=3)
    for fault, number, rounds in faults:
        names = sorted(cluster.pods)
        match fault:
            case "kill" if names:
                cluster.kill(names[number % len(names)])
            case "operator":
                cluster.reconcile(killed_after=number)
            case "save fails" | "save hangs":
                for launcher in cluster.launchers.values():
                    launcher.saves = launcher.lives = "fails" if fault == "save fails" else "never"
            case "retarget":
                generation += 1
                cluster.target(generation, Worker=1 + number % 4, PS=1 + number % 2)
            case "deaf":
                cluster.deaf = not cluster.deaf
            case "restart" if names:
                cluster.launchers[names[number % len(names)]].restart()
        cluster.run(rounds, seconds=5)
    cluster.deaf = False
    for launcher in cluster.launchers.values():
        launcher.saves = launcher.lives = "well"
    cluster.run(200, seconds=5)
    consistent(cluster)


def consistent(cluster: Cluster) -> None:
    state = cluster.state
    assert state.phase == "Stable", cluster.events
    assert set(cluster.running.values()) == {state.generation}, (cluster.running, state)
    assert len(cluster.running) == sum(state.replicas.values())
    assert all(launcher.prepared is None for launcher in cluster.launchers.values())


def finish(cluster: Cluster) -> None:
    cluster.pods["j-chief-0"] = replace(cluster.pods["j-chief-0"], phase="Succeeded", exit_code=0)


def _target(generation: int) -> str:
    return Target(generation, {"Chief": 1, "PS": 1, "Worker": 2}, reason="wanted").to_json()


def _delete(cluster: Cluster, name: str) -> Any:
    return DeletePod(name, cluster.pods[name].uid)


def test_a_job_that_stands_still_is_left_alone() -> None:
    """Its figures are stored: nobody looks at ten thousand such jobs once a minute. Where it is too early to store what
    is new, somebody looks again."""
    cluster = started()
    cluster.run(70)
    looked = decision_of(cluster)
    assert looked.again_at is None
    cluster.steps_per_s = 11.0
    cluster.reconcile()
    cluster.steps_per_s = 12.0
    again_at = decision_of(cluster).again_at
    assert again_at is not None
    assert 0 < (again_at - cluster.now).total_seconds() <= 60


def decision_of(cluster: Cluster) -> Decision:
    seen = Observed(cluster.job(), cluster.now, tuple(cluster.pods.values()), reports=cluster.reports())
    return reconcile(seen, cluster.settings)

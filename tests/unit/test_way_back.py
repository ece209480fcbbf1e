"""No change of size without a way back: what cannot train returns to what did, what is not admitted is not begun, and
what cannot be prepared beside itself takes another mode."""

from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import DeletePod, TryPods
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.pod import last_end
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.request import refused_target
from unit.pretend import ELASTIC, Cluster, started

QUOTA = 'pods "j-worker-2" is forbidden: exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4'


def began(mode: str = "overlap", **options: Any) -> Cluster:
    """A job that trains, whose size changes in this mode."""
    return started(annotations={**ELASTIC, f"{PREFIX}rescale": mode}, **options)


def failed(cluster: Cluster) -> bool:
    conditions = cluster.status.get("conditions") or ()
    return any(each["type"] == "Failed" and each["status"] == "True" for each in conditions)


def messages(cluster: Cluster, reason: str) -> list[str]:
    return [message for found, message in cluster.events if found == reason]


class TestFirstStep:
    """A size that is committed and makes no step."""

    @pytest.mark.parametrize("limit", [None, 0, 1])
    @pytest.mark.parametrize("policy", ["OnFailure", "Never", "ExitCode"])
    @pytest.mark.parametrize("mode", ["overlap", "spare", "recreate"])
    def test_dies_each_time(self, mode: str, policy: str, limit: int | None) -> None:
        cluster = began(mode, restart=policy, spec={} if limit is None else {"runPolicy": {"backoffLimit": limit}})
        cluster.dies = {1}
        cluster.target(1, Worker=3)
        cluster.run(40)
        assert not failed(cluster)
        assert cluster.state.phase == "Stable"
        assert cluster.state.replicas == cluster.types
        assert cluster.running == {"chief-0": 2, "ps-0": 2, "worker-0": 2, "worker-1": 2}
        assert cluster.state.refused is not None
        assert cluster.state.refused.generation == 1
        assert messages(cluster, "RescaleUndone") == [
            f"From 1 chief + 1 PS + 2 workers to 1 chief + 1 PS + 3 workers ({mode}), but no step was made: chief-0: "
            "the program ended with exit code 1: ValueError: Shape mismatch. Training continues with 1 chief + 1 PS + "
            "2 workers"
        ]
        assert messages(cluster, "Rescaled")[-1].startswith(
            "From 1 chief + 1 PS + 3 workers to 1 chief + 1 PS + 2 workers"
        )

    def test_one_death_in_the_first_step_is_not_a_failure(self) -> None:
        """And does not count as a retry of the user's."""
        cluster = began(spec={"runPolicy": {"backoffLimit": 1}})
        cluster.dies = {1}
        cluster.target(1, Worker=3)
        cluster.until("Switching")
        while not cluster.pods["j-chief-0"].restarts:
            cluster.tick()
        cluster.dies.clear()
        cluster.run(10)
        assert not failed(cluster)
        assert cluster.state.phase == "Stable"
        assert cluster.state.generation == 1
        assert cluster.state.forgiven == sum(pod.restarts for pod in cluster.pods.values())
        pod = cluster.pods["j-ps-0"]
        cluster.pods["j-ps-0"] = replace(pod, restarts=pod.restarts + 1)
        cluster.run(3)
        assert failed(cluster)

    @pytest.mark.parametrize(("mode", "limit_s"), [("overlap", 300), ("recreate", 600)])
    def test_hangs(self, mode: str, limit_s: int) -> None:
        cluster = began(mode)
        cluster.hangs = {1}
        cluster.target(1, Worker=3)
        cluster.until("Switching")
        begun = cluster.now
        cluster.until("Recreating", rounds=limit_s + 60)
        assert limit_s - 10 < (cluster.now - begun).total_seconds() < limit_s + 40
        cluster.run(20)
        assert cluster.state.replicas == cluster.types
        assert set(cluster.running.values()) == {2}
        assert "none was reported for" in messages(cluster, "RescaleUndone")[0]

    @pytest.mark.parametrize("phase", ["Switching", "Recreating"])
    @pytest.mark.parametrize("writes", range(5))
    def test_the_operator_dies(self, phase: str, writes: int) -> None:
        cluster = began(restart="Never")
        cluster.dies = {1}
        cluster.target(1, Worker=3)
        cluster.until(phase)
        cluster.reconcile(killed_after=writes)
        cluster.back_after(60)
        cluster.run(40)
        assert not failed(cluster)
        assert cluster.running == {"chief-0": 2, "ps-0": 2, "worker-0": 2, "worker-1": 2}

    def test_a_job_rolls_back_once(self) -> None:
        """Where no step follows there either, the job is one like any other."""
        cluster = began()
        cluster.dies, cluster.hangs = {1}, {2}
        cluster.target(1, Worker=3)
        cluster.run(700)
        assert cluster.state.phase == "Stable"
        assert cluster.state.generation == 2
        assert len(messages(cluster, "RescaleUndone")) == 1
        assert messages(cluster, "ReturnFailed") == [
            "From 1 chief + 1 PS + 3 workers to 1 chief + 1 PS + 2 workers (recreate), but no step was made at this "
            "size either: none was reported for 601 s. From now on its restart policy applies"
        ]
        assert cluster.state.trained is None

    def test_a_return_that_fails_fails_the_job(self) -> None:
        cluster = began(restart="Never")
        cluster.dies = {1, 2}
        cluster.target(1, Worker=3)
        cluster.run(40)
        assert failed(cluster)
        assert len(messages(cluster, "RescaleUndone")) == 1

    def test_nothing_to_return_to(self) -> None:
        """The first size never made a step."""
        cluster = Cluster(annotations={**ELASTIC, f"{PREFIX}rescale": "recreate"})
        cluster.hangs = {0, 1}
        cluster.run(5)
        cluster.target(1, Worker=3)
        cluster.run(660)
        assert cluster.state.generation == 1
        assert not messages(cluster, "RescaleUndone")
        assert "but no step was reported for 600 s" in messages(cluster, "Rescaled")[0]

    def test_a_move(self) -> None:
        """The same size on other nodes returns to its previous nodes."""
        nodes = {"Chief": ("a",), "PS": ("a",), "Worker": ("a", "a")}
        cluster = Cluster()
        cluster.annotations[TARGET_ANNOTATION] = Target(0, cluster.types, nodes, reason="begins").to_json()
        cluster.run(8)
        cluster.dies = {1}
        moved = {**nodes, "Worker": ("a", "b")}
        cluster.annotations[TARGET_ANNOTATION] = Target(1, cluster.types, moved, reason="nearer").to_json()
        cluster.run(40)
        assert {pod.node for pod in cluster.pods.values()} == {"a"}
        assert cluster.state.nodes == nodes
        assert set(cluster.running.values()) == {2}
        assert "Training continues on its previous nodes" in messages(cluster, "RescaleUndone")[0]

    def test_a_newer_target_is_not_followed_under_an_old_number(self) -> None:
        """The generation that returns is newer than each target, so that the next one can be told from those before."""
        cluster = began()
        cluster.dies = {1}
        cluster.target(1, Worker=3)
        cluster.until("Switching")
        cluster.target(2, Worker=4)
        cluster.run(40)
        assert cluster.state.generation == 3
        target = Target.parse(cluster.annotations[TARGET_ANNOTATION])
        assert target is not None
        assert refused_target(target, cluster.state)
        cluster.target(4, Worker=4)
        cluster.run(20)
        assert cluster.state.generation == 4
        assert cluster.state.replicas["Worker"] == 4

    def test_the_state_survives_its_annotation(self) -> None:
        cluster = began()
        cluster.dies = {1}
        cluster.target(1, Worker=3)
        cluster.until("Switching")
        assert cluster.state.way_back is not None
        assert StoredState.parse(cluster.state.to_json()) == cluster.state
        cluster.until("Recreating")
        assert cluster.state.on_trial
        assert StoredState.parse(cluster.state.to_json()) == cluster.state


class TestAdmission:
    """Pods that the API server refuses."""

    def test_nothing_ends_for_a_size_that_is_not_admitted(self) -> None:
        cluster = began("recreate")
        before = {name: pod.uid for name, pod in cluster.pods.items()}
        cluster.refused_pods = {"j-worker-2": QUOTA}
        cluster.target(1, Worker=3)
        cluster.run(20)
        assert {name: pod.uid for name, pod in cluster.pods.items()} == before
        assert cluster.state.phase == "Stable"
        assert cluster.state.refused is not None
        assert messages(cluster, "RescaleRolledBack") == [
            "Stays at 1 chief + 1 PS + 2 workers instead of 1 chief + 1 PS + 3 workers: the API server refuses "
            f"its pods: {QUOTA}"
        ]

    def test_pods_of_all_types_are_tried_once(self) -> None:
        cluster = began("recreate")
        cluster.target(1, Worker=3)
        cluster.reconcile()
        tried = [action for action in cluster.decision.actions if isinstance(action, TryPods)]
        assert [[pod.name for pod in each.pods] for each in tried] == [["j-chief-0", "j-ps-0", "j-worker-2"]]
        assert tried[0].quota
        assert not [action for action in cluster.decision.actions if isinstance(action, DeletePod)]
        config = tried[0].pods[2].body["spec"]["containers"][0]["env"][0]["value"]
        assert "j-worker-2" in config
        cluster.reconcile()
        assert cluster.state.phase == "Recreating"

    def test_a_quota_counts_only_where_pods_are_added(self) -> None:
        """Those that go free what those that come need."""
        cluster = began("recreate")
        cluster.target(1, Worker=1, PS=2)
        cluster.reconcile()
        assert [each.quota for each in cluster.decision.actions if isinstance(each, TryPods)] == [False]

    def test_a_quota_that_closes_in_the_middle(self) -> None:
        cluster = began("recreate", restart="Never")
        cluster.target(1, Worker=3)
        cluster.hangs = {1}  # it waits for its worker
        cluster.until("Recreating")
        cluster.refused_pods = {"j-worker-2": QUOTA}
        cluster.until("Switching")
        begun = cluster.now
        cluster.until("Recreating", rounds=90)
        assert (cluster.now - begun).total_seconds() < 60
        cluster.run(20)
        assert cluster.running == {"chief-0": 2, "ps-0": 2, "worker-0": 2, "worker-1": 2}
        assert QUOTA in messages(cluster, "RescaleUndone")[0]

    def test_without_a_launcher(self) -> None:
        """Nobody reports a step: a size is reached when all of its pods run."""
        cluster = began("recreate", command=None)
        cluster.hook, cluster.steps = None, False
        cluster.run(3)
        cluster.target(1, Worker=3)
        cluster.until("Recreating")
        cluster.refused_pods = {"j-worker-2": QUOTA}
        cluster.until("Switching")
        cluster.run(60)
        assert sorted(cluster.pods) == ["j-chief-0", "j-ps-0", "j-worker-0", "j-worker-1"]
        assert QUOTA in messages(cluster, "RescaleUndone")[0]

    def test_a_return_that_is_refused_is_tried_on(self) -> None:
        cluster = began("recreate")
        cluster.target(1, Worker=3)
        cluster.hangs = {1, 2}  # they wait for their workers
        cluster.until("Recreating")
        cluster.refused_pods = {"j-worker-1": QUOTA, "j-worker-2": QUOTA}
        cluster.run(150)
        assert len(messages(cluster, "RescaleUndone")) == 1
        assert len(messages(cluster, "ReturnFailed")) == 1
        cluster.refused_pods, cluster.hangs = {}, set()
        cluster.run(10)
        assert cluster.running == {"chief-0": 2, "ps-0": 2, "worker-0": 2, "worker-1": 2}

    def test_while_preparing(self) -> None:
        cluster = began()
        cluster.target(1, Worker=3)
        cluster.refused_pods = {"j-worker-2": QUOTA}
        cluster.until("Preparing")
        begun = cluster.now
        cluster.until("Stable")
        assert (cluster.now - begun).total_seconds() < 45
        assert messages(cluster, "RescaleRolledBack")[0].endswith(f"the new worker-2 cannot be created: {QUOTA}")


class TestPreparedBesideItself:
    """A program with a port or a lock file of its own."""

    def test_another_mode_after_two_deaths(self) -> None:
        cluster = began()
        cluster.launchers["j-chief-0"].builds = False
        cluster.launchers["j-chief-0"].why = "the program ended with exit code 1: OSError: Address already in use"
        modes = []
        for generation in range(1, 6):
            cluster.target(generation, Worker=3)
            cluster.until("Preparing" if generation < 5 else "Recreating")
            assert cluster.state.next is not None
            modes.append(cluster.state.next.mode)
            cluster.run(12)
        assert modes == ["overlap", "overlap", "spare", "spare", "recreate"]
        told = messages(cluster, "Rescaling")
        assert "in mode overlap, 2 programs failed to start beside the running one" in told[2]
        assert "Address already in use" in told[2]
        assert "in mode overlap and spare, 2 programs failed to start" in told[4]
        assert cluster.state.replicas["Worker"] == 3
        assert "Address already in use" in messages(cluster, "Rescaled")[0]

    def test_forgotten_with_the_template(self) -> None:
        cluster = began()
        cluster.launchers["j-chief-0"].builds = False
        for generation in (1, 2):
            cluster.target(generation, Worker=3)
            cluster.run(12)
        assert cluster.state.deaths is not None
        assert cluster.state.deaths.overlap == 2
        cluster.pod_spec = {"priorityClassName": "urgent"}
        cluster.launchers["j-chief-0"].builds = True
        cluster.target(3, Worker=3)
        cluster.run(20)
        assert cluster.state.history[-1].mode == "overlap"
        assert cluster.state.deaths is None

    @pytest.mark.parametrize("what", ["waits", "container dies"])
    @pytest.mark.parametrize("victim", ["j-chief-0", "j-ps-0", "j-worker-1"])
    def test_a_job_that_is_twice_not_ready_in_overlap_is_rescaled_in_spare(self, victim: str, what: str) -> None:
        """It waits for a lock that the running one has; or it takes the container down with it, by its memory."""
        cluster = began()
        modes = []
        for generation in range(1, 4):
            cluster.target(generation, Worker=3)
            cluster.until("Preparing")
            assert cluster.state.next is not None
            modes.append(cluster.state.next.mode)
            beside = modes[-1] == "overlap"
            cluster.launchers[victim].waits = beside and what == "waits"
            while cluster.state.phase != "Stable":
                if beside and what == "container dies" and cluster.launchers[victim].prepared is not None:
                    pod = cluster.pods[victim]
                    cluster.pods[victim] = replace(pod, restarts=pod.restarts + 1)
                    cluster.launchers[victim].restart()
                cluster.run(1)
        assert modes == ["overlap", "overlap", "spare"]
        assert cluster.state.replicas["Worker"] == 3
        assert sum(pod.restarts for pod in cluster.pods.values()) <= 8

    def test_an_added_replica_has_nothing_beside_it(self) -> None:
        cluster = began()
        cluster.target(1, Worker=3)
        cluster.until("Preparing")
        cluster.run(1)
        cluster.launchers["j-worker-2"].builds = False
        cluster.run(12)
        assert messages(cluster, "RescaleRolledBack")
        assert cluster.state.deaths is None


LOG = """starts
Traceback (most recent call last):
  File "train.py", line 1, in <module>
    restore()
ValueError: Shape mismatch
"""


# As the launcher marks the lines of a program that has just been switched to.
MARKED = {"terminated": {"exitCode": 1, "message": "".join(f"[generation 12] {each}\n" for each in LOG.splitlines())}}
RAISED = {"terminated": {"exitCode": 1, "message": LOG}}
TWO_LINES = {"terminated": {"exitCode": 1, "message": "a\nb"}}


@pytest.mark.parametrize(
    ("status", "deaths", "words"),
    [
        ({"restartCount": 1, "state": {"running": {}}, "lastState": RAISED}, 1, "ValueError: Shape mismatch"),
        ({"restartCount": 1, "state": {"running": {}}, "lastState": MARKED}, 1, "ValueError: Shape mismatch"),
        ({"restartCount": 1, "state": {"waiting": {}}, "lastState": TWO_LINES}, 2, "a | b"),
        ({"restartCount": 0, "state": {"terminated": {"exitCode": 137}}}, 1, ""),
    ],
    ids=["runs again", "marked", "waits to be restarted", "has just ended"],
)
def test_how_a_program_ended(status: dict[str, Any], deaths: int, words: str) -> None:
    found = last_end({"containerStatuses": [{"name": "tensorflow", **status}]})
    assert found is not None
    assert (found.deaths, found.words) == (deaths, words)


@pytest.mark.parametrize("code", [0, -1, 256, "1", None])
def test_an_exit_code_that_is_zero_or_invalid_is_no_failure(code: object) -> None:
    ended = {"name": "tensorflow", "state": {"terminated": {"exitCode": code}}}
    assert last_end({"containerStatuses": [ended]}) is None

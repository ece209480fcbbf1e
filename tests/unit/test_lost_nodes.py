"""The node of a replica is lost: nothing that is under way keeps the other pods, or other jobs, waiting for it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX, Elasticity
from elastic_tfjob.controller.job.decision import DeletePod, ReconcileSettings, SendCommand, Timeouts
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from unit import build
from unit.pretend import ELASTIC, Cluster

STOP_S = 120.0
NOTICED_S = 50
"""Kubernetes takes so long to find that it does not hear from a node (node-monitor-grace-period)."""


class Losing(Cluster):
    """A job that trains on nodes of which some do not answer any more: their pods neither end nor report. `noticed`:
    Kubernetes marks such pods not ready, as it does where their containers were ready."""

    def __init__(self, *, noticed: bool = True, **options: Any) -> None:
        self.noticed = noticed
        self.lost: dict[str, float] = {}
        waits = ReconcileSettings(image="operator:1", wait_for_target=True, timeouts=Timeouts(stop_s=STOP_S))
        super().__init__(settings=waits, **options)
        self.target(0)
        self.run(8)
        self.events.clear()

    def lose(self, name: str) -> None:
        self.lost[name] = 0.0

    def reports(self) -> dict[str, Any]:
        found = super().reports()
        for name in self.lost.keys() & found.keys():
            received_at = self.now.timestamp() - self.lost[name]
            found[name] = replace(found[name], received_at_s=received_at)
        return found

    def tick(self, seconds: float = 1.0) -> None:
        kept = {name: (self.pods[name], self.launchers[name]) for name in self.lost if name in self.pods}
        super().tick(seconds)
        for name, (pod, launcher) in kept.items():
            self.lost[name] += seconds
            self.pods[name], self.launchers[name] = pod, launcher
            if self.noticed and self.lost[name] >= NOTICED_S:
                self.pods[name] = replace(self.pods[name], unreachable=True)

    def stop(self, generation: int = 9) -> None:
        target = Target(generation, {}, reason="others go before it", cause="preempt")
        self.annotations[TARGET_ANNOTATION] = target.to_json()

    def healthy(self) -> set[str]:
        return set(self.pods) - set(self.lost)

    def waits(self, what: Any, most_s: float = 400) -> float:
        """Seconds until something is so."""
        begun = self.now
        while not what():
            assert (self.now - begun).total_seconds() < most_s, f"never: {self.state.phase}, {sorted(self.pods)}"
            self.reconcile()
            self.tick()
        return (self.now - begun).total_seconds()


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("victim", ["j-chief-0", "j-worker-1"])
@pytest.mark.parametrize("after_s", [0, 2, 4])
def test_a_stop_frees_the_other_nodes(victim: str, after_s: int, noticed: bool) -> None:
    """Whenever the node is lost: before the stop, while it saves, while pods are marked or the chief ends."""
    job = Losing(noticed=noticed)
    job.stop()
    job.run(after_s)
    job.lose(victim)
    assert job.waits(lambda: not job.healthy()) <= STOP_S
    job.run(20, 30)
    assert set(job.pods) == {victim}
    assert job.state.phase == "Recreating"
    job.kill(victim)
    job.until("Waiting")


@pytest.mark.parametrize("noticed", [True, False])
def test_a_recreate_frees_them_and_starts_nothing_beside_the_old_chief(noticed: bool) -> None:
    """The old chief may still write checkpoints: no pod is made before it is gone."""
    job = Losing(noticed=noticed, annotations={**ELASTIC, f"{PREFIX}rescale": "recreate"})
    job.target(1, Worker=3)
    job.until("Recreating")
    job.lose("j-chief-0")
    job.made.clear()
    assert job.waits(lambda: not job.healthy()) <= STOP_S
    assert [reason for reason, _ in job.events if reason == "ChiefLost"] == ["ChiefLost"]
    job.run(20, 30)
    assert (job.made, job.state.phase) == ([], "Recreating")
    job.kill("j-chief-0")
    job.lost.clear()
    job.run(20)
    assert set(job.running.values()) == {1}
    assert len(job.pods) == 5


@pytest.mark.parametrize("victim", ["j-chief-0", "j-ps-0", "j-worker-1", "j-worker-2"])
@pytest.mark.parametrize("phase", ["Preparing", "Checkpointing", "Switching"])
def test_a_change_that_is_under_way_does_not_keep_a_stop_waiting(phase: str, victim: str) -> None:
    """A plan stops the job as its node is lost."""
    job = Losing()
    job.launchers["j-chief-0"].saves = "never" if phase == "Checkpointing" else "well"
    job.target(1, Worker=3)
    job.until(phase)
    job.lose(victim)
    job.stop()
    leaves_s = job.waits(lambda: job.state.phase != phase)
    job.launchers["j-chief-0"].saves = "well"
    assert leaves_s + job.waits(lambda: not job.healthy()) <= STOP_S


@pytest.mark.parametrize("phase", ["Preparing", "Checkpointing"])
def test_added_pods_are_deleted_when_the_chief_is_lost(phase: str) -> None:
    """It holds room for nothing."""
    job = Losing()
    job.launchers["j-chief-0"].saves = "never"
    job.target(1, Worker=3)
    job.until(phase)
    job.lose("j-chief-0")
    assert job.waits(lambda: "j-worker-2" not in job.pods) <= STOP_S
    assert job.waits(lambda: job.state.phase == "Stable") <= STOP_S
    job.made.clear()
    job.run(20, 15)
    assert "j-chief-0" not in job.made


@pytest.mark.parametrize("victim", ["j-chief-0", "j-ps-0", "j-worker-1"])
def test_a_job_is_told_what_it_waits_for(victim: str) -> None:
    """Nothing else says why a job does not train whose pod is on a lost node; one event, however long that lasts."""
    job = Losing()
    job.pods[victim] = replace(job.pods[victim], node="node-a")
    job.lose(victim)
    job.waits(lambda: any(reason == "NodeLost" for reason, _ in job.events))
    (said,) = {message for reason, message in job.events if reason == "NodeLost"}
    assert said.startswith(f"The job waits for the end of {victim}, which may still write: node node-a does not answer")
    assert "out-of-service" in said


def test_a_chief_that_answers_is_waited_for() -> None:
    """A node that Kubernetes calls not ready may well run its pods: the network plugin restarts, say."""
    job = Losing()
    job.launchers["j-chief-0"].saves = "never"
    job.stop()
    job.run(3)
    job.pods["j-chief-0"] = replace(job.pods["j-chief-0"], unreachable=True)
    job.run(60)
    assert not any(pod.terminating for pod in job.pods.values())


class TestGrace:
    """How long pods may take to end is the operator's word where their room is promised to others."""

    YEAR = 365 * 86_400

    def deletions(self, job: Cluster) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for _ in range(10):
            job.reconcile()
            found |= {each.name: each.grace_s for each in job.decision.actions if isinstance(each, DeletePod)}
            job.tick()
        return found

    @pytest.mark.parametrize(("template_s", "sent_s"), [(30, None), (110, None), (111, 110), (YEAR, 110)])
    def test_a_stop_shortens_it(self, template_s: int, sent_s: int | None) -> None:
        job = Losing()
        for name, pod in job.pods.items():
            job.pods[name] = replace(pod, grace_s=template_s)
        job.stop()
        assert self.deletions(job) == dict.fromkeys(["j-chief-0", "j-ps-0", "j-worker-0", "j-worker-1"], sent_s)

    def test_a_pod_that_ends_already_with_a_longer_one_is_ended_again(self) -> None:
        """Once: the API server has the new one then."""
        job = Losing()
        until = format_time(job.now + timedelta(seconds=self.YEAR))
        job.lose("j-worker-0")
        job.pods["j-worker-0"] = replace(job.pods["j-worker-0"], terminating=True, grace_s=self.YEAR, ends_at=until)
        job.stop()
        assert self.deletions(job)["j-worker-0"] == 110
        assert "j-worker-0" not in self.deletions(job)

    def test_a_plain_job_keeps_its_own(self) -> None:
        """Nobody is promised its room: it ends as upstream's does."""
        job = build.job({"Worker": 1}, runPolicy={"suspend": True})
        pod = build.pod("Worker", 0, spec={"terminationGracePeriodSeconds": self.YEAR})
        decision = build.decide(job, pods=(pod,))
        assert [each.grace_s for each in decision.actions if isinstance(each, DeletePod)] == [None]


LOANABLE = {f"{PREFIX}loanable": "true", f"{PREFIX}checkpoint-dir": "/c"}


@pytest.mark.parametrize(("grace_s", "loanable"), [(None, True), (120, True), (121, False), (31_536_000, False)])
def test_a_job_that_may_take_long_to_leave_gets_no_lent_node(grace_s: int | None, loanable: bool) -> None:
    """Of any type, and it is told why."""
    spec: dict[str, Any] = {} if grace_s is None else {"terminationGracePeriodSeconds": grace_s}
    job = build.job({"Worker": 1, "PS": build.replicas(1, **spec)}, annotations=LOANABLE)
    found = Elasticity.parse(job.annotations, job.spec())
    assert found.loanable is loanable
    assert any(f"of PS is {grace_s}; allowed: up to 120" in each for each in found.problems) is not loanable
    told = [event.message for event in build.decide(job).events if event.reason == "InvalidAnnotation"]
    assert list(found.problems) == told


@pytest.mark.parametrize(("annotations", "deleted"), [(LOANABLE, ["j-ps-0"]), ({}, [])])
def test_the_servers_of_a_loanable_job_end_with_it(annotations: dict[str, str], deleted: list[str]) -> None:
    status = {"conditions": [build.condition("Succeeded")]}
    job = build.job({"PS": 1, "Worker": 1}, annotations=annotations, status=status)
    pods = build.pod("PS", 0), build.pod("Worker", 0, "Succeeded", exit_code=0)
    decision = build.decide(job, pods=pods)
    assert [each.name for each in decision.actions if isinstance(each, DeletePod)] == deleted


@pytest.mark.parametrize(
    ("metadata", "spec", "grace_s"),
    [
        ({}, {}, 30),
        ({}, {"terminationGracePeriodSeconds": 0}, 0),
        ({}, {"terminationGracePeriodSeconds": -1}, 0),
        ({}, {"terminationGracePeriodSeconds": 2**63 - 1}, 3_153_600_000),
        ({"deletionGracePeriodSeconds": 5}, {"terminationGracePeriodSeconds": 600}, 5),
    ],
)
def test_grace_is_read(metadata: dict[str, Any], spec: dict[str, Any], grace_s: int) -> None:
    identity = {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "1"}
    assert Pod.parse({"metadata": identity | metadata, "spec": spec}).grace_s == grace_s


@pytest.mark.parametrize(
    ("conditions", "gates", "unreachable"),
    [
        ({"Ready": "True", "ContainersReady": "True"}, [], False),
        ({"Ready": "False", "ContainersReady": "True"}, [], True),
        ({"Ready": "False", "ContainersReady": "False"}, [], False),
        ({"Ready": "False", "ContainersReady": "True"}, ["mesh"], False),
        ({"Ready": "False", "ContainersReady": "True", "mesh": "True"}, ["mesh"], True),
        ({}, [], False),
    ],
)
def test_a_lost_node_is_read_from_its_pods(conditions: dict[str, str], gates: list[str], unreachable: bool) -> None:
    status = {"conditions": [{"type": name, "status": value} for name, value in conditions.items()]}
    spec = {"readinessGates": [{"conditionType": name} for name in gates]}
    assert build.pod("Worker", 0, status=status, spec=spec).unreachable is unreachable


def test_a_pod_whose_mark_is_refused_keeps_nobody_waiting_for_ever() -> None:
    class Refusing(Losing):
        def _write(self, write: Any) -> None:
            if not (isinstance(write, SendCommand) and write.name == "j-worker-1" and "stop" in write.command):
                super()._write(write)

    job = Refusing()
    job.stop()
    job.run(int(STOP_S))
    assert job.state.phase == "Recreating"
    job.run(600)
    assert (job.state.phase, set(job.pods)) == ("Waiting", set())

"""Things that go wrong around an elastic job: it ends with the right model all the same, and events say what was."""

import contextlib
import json

import pytest

from harness.cluster import shared_folder
from harness.deploy import kill_operator, operator_log, wait_ready
from harness.jobs import RESTRICTED, Jobs, Object, until
from harness.progress import CommandFailed
from harness.training import PREFIX, Lines, wait_for_step

from .test_elastic import CHECKPOINT_S, ask, elastic, finished, lost_seconds, lost_steps, settled, state

RIGHT = 0.95
STEPS = 800
SAVING_S = 5
"""What a save and a busy machine may add to the time between two checkpoints."""

KILL_PROGRAMS = """
import os, pathlib, signal
for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):
    pid, parent = int(stat.parent.name), int(stat.read_text().rpartition(')')[2].split()[1])
    if parent == 1 and pid != os.getpid():
        os.kill(pid, signal.SIGKILL)
"""
"""Kills what a container's first process started, as the kernel does when memory runs out."""

LATER = """
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + 60
time.time_ns = lambda: _time_ns() + 60 * 10**9
"""
"""A clock that is a minute fast, for every Python program that starts with it as its sitecustomize."""


def at(jobs: Jobs, pod: str) -> str:
    return str(jobs.get("pod", pod)["spec"]["nodeName"])


def restarts(jobs: Jobs, pod: str, container: str) -> int:
    """How often a container of a pod was started again; the exporter is an init container that stays."""
    status = jobs.get("pod", pod)["status"]
    statuses = status.get("initContainerStatuses", []) + status["containerStatuses"]
    return int(next(each["restartCount"] for each in statuses if each["name"] == container))


def test_killed_worker_ps_and_exporter_cost_a_checkpoint_interval_at_most(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "hurt", steps=STEPS))
    with Lines(jobs.cluster, jobs.namespace, "hurt-chief-0") as lines:
        wait_for_step(lines, 80, 400)
        node = at(jobs, "hurt-chief-0")
        jobs.cluster.on_node(node, "pkill", "-KILL", "-f", "elastic_tfjob.exporter")  # of all its pods there
        exporter = "elastic-tfjob-exporter"
        until(lambda: restarts(jobs, "hurt-chief-0", exporter) > 0, 180, lambda: "the exporter is not started again")
        jobs.kubectl("delete", "pod", "hurt-worker-0", "--grace-period=0", "--force")
        wait_for_step(lines, lines.last_step() + 80, 300)
        with contextlib.suppress(CommandFailed):  # it may end with the container that it kills
            jobs.kubectl("exec", "hurt-ps-0", "--container=tensorflow", "--", "python", "-c", KILL_PROGRAMS)
        until(lambda: restarts(jobs, "hurt-ps-0", "tensorflow") > 0, 180, lambda: "the PS was not killed")
        assert finished(jobs, "hurt", lines).content["accuracy"] >= RIGHT
    assert lost_seconds(lines) <= CHECKPOINT_S + SAVING_S


def test_the_operator_is_killed_during_a_rescale(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "orphan", steps=STEPS))
    with Lines(jobs.cluster, jobs.namespace, "orphan-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        ask(jobs, "orphan", workers=3)
        until(lambda: state(jobs, "orphan").get("phase") == "Preparing", 180, lambda: f"{state(jobs, 'orphan')}")
        kill_operator(jobs.cluster)
        settled(jobs, "orphan", Worker=3)
        assert finished(jobs, "orphan", lines).content["accuracy"] >= RIGHT
    assert lost_steps(lines) == 0
    wait_ready(jobs.cluster)


@pytest.mark.thorough  # pod/test_elastic.py has such a volume
@pytest.mark.beside
def test_a_read_only_volume_refuses_the_rescale_and_training_goes_on(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "mute", steps=STEPS))
    folder = shared_folder(f"{jobs.namespace}/mute")
    with Lines(jobs.cluster, jobs.namespace, "mute-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        folder.chmod(0o555)  # the job's user is not its owner
        ask(jobs, "mute", workers=3)
        until(lambda: bool(state(jobs, "mute").get("refused")), 180, lambda: f"not refused: {state(jobs, 'mute')}")
        jobs.wait_for_words("mute", "RescaleRolledBack")
        wait_for_step(lines, lines.last_step() + 60, 300)
        folder.chmod(0o777)
        assert finished(jobs, "mute", lines).content["accuracy"] >= RIGHT
    assert lost_steps(lines) == 0


@pytest.mark.thorough  # pod/test_elastic.py has such a volume
@pytest.mark.beside
def test_a_full_volume_takes_no_checkpoint_and_training_goes_on(jobs: Jobs) -> None:
    """In a namespace that enforces the Pod Security standard `restricted`, which forbids the other tests' hostPath."""
    jobs.restrict()
    job = elastic(jobs, "full", steps=STEPS)
    for spec in job["spec"]["tfReplicaSpecs"].values():
        pod = spec["template"]["spec"]
        pod["containers"][0]["command"].append("--embedding-mb=2")
        pod["containers"][0]["securityContext"] = RESTRICTED
        pod["volumes"] = [{"name": "checkpoints", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    jobs.apply(job)
    with Lines(jobs.cluster, jobs.namespace, "full-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        added = {each["name"] for each in jobs.get("pod", "full-chief-0")["spec"]["initContainers"]}
        assert added == {"elastic-tfjob-exporter"}
        ask(jobs, "full", workers=3)
        until(lambda: bool(state(jobs, "full").get("refused")), 180, lambda: f"not refused: {state(jobs, 'full')}")
        jobs.wait_for_words("full", "No space left on device")
        assert finished(jobs, "full", lines).content["accuracy"] >= RIGHT
    assert lost_steps(lines) == 0


@pytest.mark.thorough  # campaign: drain; killing a worker and a PS ends them alike
def test_the_node_is_drained(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "moved", steps=STEPS))
    with Lines(jobs.cluster, jobs.namespace, "moved-chief-0") as lines:
        wait_for_step(lines, 80, 400)
        node = at(jobs, "moved-ps-0")
        try:
            what = "--pod-selector=training.kubeflow.org/job-name"  # the operator may stay
            jobs.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", what)
            assert finished(jobs, "moved", lines).content["accuracy"] >= RIGHT
        finally:
            jobs.cluster.kubectl("uncordon", node)
    assert lost_seconds(lines) <= CHECKPOINT_S + SAVING_S


@pytest.mark.thorough  # no clock of one pod is compared with another's: unit/test_reports.py
@pytest.mark.beside
def test_a_clock_that_is_a_minute_fast_changes_nothing(jobs: Jobs) -> None:
    jobs.kubectl("create", "configmap", "later", f"--from-literal=sitecustomize.py={LATER}")
    job = elastic(jobs, "early", steps=STEPS)
    chief = job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]
    chief["volumes"].append({"name": "later", "configMap": {"name": "later"}})
    chief["containers"][0]["volumeMounts"].append({"name": "later", "mountPath": "/later"})
    chief["containers"][0]["env"].append({"name": "PYTHONPATH", "value": "/later"})
    jobs.apply(job)
    with Lines(jobs.cluster, jobs.namespace, "early-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        ask(jobs, "early", workers=3)
        now = settled(jobs, "early", Worker=3)
        assert finished(jobs, "early", lines).content["accuracy"] >= RIGHT
    assert 0 < now["history"][-1]["downtime_s"] < 60  # a clock that is compared with another adds or takes a minute
    assert lost_steps(lines) == 0


@pytest.mark.thorough  # integration/test_loop.py, unit/test_own_annotations.py, campaign
@pytest.mark.beside
def test_nonsense_in_annotations_is_told_and_the_job_runs(jobs: Jobs) -> None:
    nonsense = {"max-ps": "lots", "deadline": "soon", "state": "{", "target": '{"generation": "new"}'}
    job: Object = elastic(jobs, "odd", steps=500, annotations=nonsense)
    jobs.apply(job)
    with Lines(jobs.cluster, jobs.namespace, "odd-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        wrong = {f"{PREFIX}target": "[]", f"{PREFIX}state": json.dumps({"phase": "Asleep"})}
        jobs.kubectl("annotate", "tfjob", "odd", "--overwrite", *(f"{key}={text}" for key, text in wrong.items()))
        assert finished(jobs, "odd", lines).content["accuracy"] >= RIGHT
    until(
        lambda: jobs.describe("odd").count("InvalidAnnotation") >= len(nonsense),
        120,
        lambda: f"not all is told:\n{jobs.describe('odd')}",
    )
    assert "bug" not in operator_log(jobs.cluster, tail=200)


@pytest.mark.thorough  # unit/test_lost_nodes.py, campaign: chief-lost
def test_the_node_is_lost(jobs: Jobs) -> None:
    """Kubernetes itself keeps the pods of a lost node until somebody says that it is gone; then they are made anew."""
    jobs.apply(elastic(jobs, "lost", steps=STEPS))
    with Lines(jobs.cluster, jobs.namespace, "lost-chief-0") as lines:
        wait_for_step(lines, 80, 400)
        node = at(jobs, "lost-ps-0")
        with jobs.cluster.frozen(node):
            jobs.cluster.kubectl("delete", "node", node)
            assert finished(jobs, "lost", lines).content["accuracy"] >= RIGHT
    assert lost_seconds(lines) <= CHECKPOINT_S + SAVING_S

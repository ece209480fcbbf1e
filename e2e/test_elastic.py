"""Running jobs change their size: real TensorFlow, real pods, and nothing is lost."""

import itertools
import json
import os
import time
from typing import Any

import pytest
from kubernetes.utils.quantity import parse_quantity

from harness.cluster import shared_folder
from harness.jobs import Jobs, Object, sleepers, until
from harness.training import PREFIX, Line, Lines, said, training, wait_for_step

GROWS = {"min-workers": "1", "max-workers": "3", "min-ps": "1", "max-ps": "2"}
ONE_WORKER = {"Chief": 1, "PS": 1, "Worker": 1}
CHECKPOINT_S = 10
REST_S = 40.0 if os.environ.get("MONKEY") == "1" else 3.0
"""What stays the same for so long is at rest. Where leaders are killed nothing changes until another one leads."""
STEPS_PER_S = 20.0
"""At most: what is done to a job takes half a minute, and on a fast machine a job would have ended by then. More would
only take the cores from what tests wait for."""


def elastic(jobs: Jobs, name: str, steps: int, at_most: float = STEPS_PER_S, **more: Any) -> Object:
    """A digits job between one and three workers, one and two PS, with checkpoints in a folder of its own, and at most
    so many steps a second (0: as many as it can)."""
    shared_folder(jobs.namespace)
    annotations = GROWS | more.pop("annotations", {})
    arguments = [f"--steps={steps}", "--report-every=10", f"--checkpoint-every={CHECKPOINT_S}", f"--at-most={at_most}"]
    return training(
        name,
        replicas=ONE_WORKER,
        arguments=arguments,
        annotations=annotations,
        folder=f"{jobs.namespace}/{name}",
        **more,
    )


def ask(jobs: Jobs, name: str, **sizes: int) -> None:
    """Ask for a size as a person does: ask(jobs, "x", workers=3)."""
    words = [f"{PREFIX}target-{key}={count}" for key, count in sizes.items()]
    jobs.kubectl("annotate", "tfjob", name, "--overwrite", *words)


def state(jobs: Jobs, name: str) -> dict[str, Any]:
    """What the operator says of a job in its annotation `state`."""
    return said(jobs, name, "state")


def settled(jobs: Jobs, name: str, *, seconds: float = 400, **replicas: int) -> dict[str, Any]:
    """The job's state, once it is Stable with these replicas."""
    seen: dict[str, Any] = {}

    def reached() -> bool:
        seen.clear()
        seen.update(state(jobs, name))
        size = seen.get("replicas", {})
        return seen.get("phase") == "Stable" and all(size.get(kind) == count for kind, count in replicas.items())

    until(reached, seconds, lambda: f"{name} is not stable with {replicas}: {seen}\n{jobs.describe(name)}")
    return seen


def preparation(jobs: Jobs, pod: str) -> dict[str, Any]:
    """How the program of the newest size was started in a pod, and what that cost."""
    status = jobs.cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{jobs.namespace}/pods/{pod}:9465/proxy/status")
    return dict(json.loads(status)["preparation"])


def programs(lines: Lines) -> list[list[Line]]:
    """The chief's lines by the program that printed them, in their order."""
    result: list[list[Line]] = []
    for line in lines.seen:
        last = result[-1][-1] if result else None
        if last is None or last.resumed_at != line.resumed_at or line.step < last.step:  # both may have begun at 0
            result.append([])
        result[-1].append(line)
    return result


def lost_steps(lines: Lines) -> int:
    """Reported steps that the next program trained once more, in all."""
    each = programs(lines)
    return sum(max(0, before[-1].step - after[0].resumed_at) for before, after in itertools.pairwise(each))


def lost_seconds(lines: Lines) -> float:
    """The longest training that was done once more: from the step that a program went on from until the last step of
    the one before."""
    longest = 0.0
    for before, after in itertools.pairwise(programs(lines)):
        again = [line.at for line in before if line.step > after[0].resumed_at]
        longest = max(longest, again[-1] - again[0] if again else 0.0)
    return longest


def finished(jobs: Jobs, name: str, lines: Lines, seconds: float = 600) -> Line:
    """The last line of the job, once it has succeeded."""
    jobs.wait_for(name, "Succeeded", seconds)
    last = lines.seen[-1].content["steps"]
    until(lambda: lines.last_step() == last, 120, lambda: f"the last line is of step {lines.last_step()}")
    return lines.seen[-1]


@pytest.mark.beside
def test_grows_and_shrinks_without_losing_a_step(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "digits", steps=1600))
    with Lines(jobs.cluster, jobs.namespace, "digits-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        chief = jobs.pods("digits")["digits-chief-0"]["metadata"]["uid"]
        ask(jobs, "digits", workers=3)
        settled(jobs, "digits", Worker=3)
        ask(jobs, "digits", workers=1, ps=2)
        settled(jobs, "digits", Worker=1, PS=2)
        assert preparation(jobs, "digits-chief-0")["way"] == "fork"
        assert jobs.pods("digits")["digits-chief-0"]["metadata"]["uid"] == chief  # the same pod all the time
        left = ["digits-chief-0", "digits-ps-0", "digits-ps-1", "digits-worker-0"]
        until(lambda: sorted(jobs.pods("digits")) == left, 120, lambda: f"there are {sorted(jobs.pods('digits'))}")
        last = finished(jobs, "digits", lines)
    assert last.content["accuracy"] >= 0.95
    assert lost_steps(lines) == 0
    history = state(jobs, "digits")["history"]
    changes = [(each["mode"], each["lost_steps"]) for each in history[-2:]]
    assert changes == [("live", 0), ("overlap", 0)], jobs.describe("digits")
    jobs.wait_for_words("digits", "Rescaled", "lost")


@pytest.mark.thorough  # the mode `recreate`: campaign, scenarios recreate and no-chief
@pytest.mark.beside
def test_without_a_launcher_the_pods_are_made_anew(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "plain", steps=800, annotations={"inject": "none"}))
    with Lines(jobs.cluster, jobs.namespace, "plain-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        saved = shared_folder(f"{jobs.namespace}/plain")
        until(lambda: any(saved.glob("*.complete")), 120, lambda: f"no checkpoint: {sorted(saved.iterdir())}")
        before = {pod["metadata"]["uid"] for pod in jobs.pods("plain").values()}
        ask(jobs, "plain", workers=2)
        now = settled(jobs, "plain", Worker=2)
        assert now["history"][-1]["mode"] == "recreate"
        assert before.isdisjoint(pod["metadata"]["uid"] for pod in jobs.pods("plain").values())
        last = finished(jobs, "plain", lines)
    assert last.content["accuracy"] >= 0.95
    assert lost_steps(lines) == 0  # the chief saves when it gets SIGTERM


@pytest.mark.thorough  # pod/test_launcher.py, and the campaign's scenario no-hook
@pytest.mark.beside
def test_a_program_without_our_hooks_is_made_anew_at_once(jobs: Jobs) -> None:
    """It cannot be told to save and wait, so its pods end and begin again from its own checkpoint: at once and said in
    an event, and the job is Running again when its pods are."""
    job = elastic(jobs, "monitored", steps=0, annotations={"max-ps": "1"})
    types = job["spec"]["tfReplicaSpecs"]
    del types["Chief"]
    for replica in types.values():
        arguments = ["--steps=1000000", "--report-every=20", "--at-most=50"]
        command = ["python", "/app/monitored_digits.py", *arguments]
        replica["template"]["spec"]["containers"][0]["command"] = command
        replica["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    jobs.apply(job)
    with Lines(jobs.cluster, jobs.namespace, "monitored-worker-0") as lines:
        wait_for_step(lines, 500, 400)
        ask(jobs, "monitored", workers=2)
        now = settled(jobs, "monitored", Worker=2)
        assert now["history"][-1]["mode"] == "recreate"
        until(
            lambda: jobs.conditions("monitored")[-1] == "Running",
            120,
            lambda: f"the job runs, but is {jobs.conditions('monitored')}",
        )
        # From its own checkpoint; what the program before has said last may come late.
        until(lambda: programs(lines)[-1][0].resumed_at > 0, 300, lambda: f"not resumed: {lines.seen[-1]}")
        wait_for_step(lines, lines.last_step() + 100, 300)
    jobs.wait_for_words("monitored", "ElasticCheckpoint")  # why it was stopped


@pytest.mark.thorough  # integration/test_loop.py edits a spec
@pytest.mark.beside
def test_an_edit_of_the_replicas_rescales_an_elastic_job(jobs: Jobs) -> None:
    jobs.apply(elastic(jobs, "edited", steps=800))
    with Lines(jobs.cluster, jobs.namespace, "edited-chief-0") as lines:
        wait_for_step(lines, 60, 400)
        patch = {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 2}}}}
        jobs.kubectl("patch", "tfjob", "edited", "--type=merge", "--patch", json.dumps(patch))
        settled(jobs, "edited", Worker=2)
        assert finished(jobs, "edited", lines).content["accuracy"] >= 0.95
    assert lost_steps(lines) == 0


def test_cpu_is_adjusted_in_place(jobs: Jobs) -> None:
    """A job of 200m a replica on an idle cluster is lent what its node has; another job comes and gets some of it, and
    no container is restarted for it."""
    fixed_size = {"max-workers": "1", "max-ps": "1", "min-workers": "0"}
    jobs.apply(elastic(jobs, "held", steps=100_000, at_most=0, cpu_m=200, annotations=fixed_size))
    jobs.wait_for("held", "Running")

    def cpu(kind: str) -> list[int]:
        """Millicores of each replica."""
        pods = jobs.pods("held").values()
        found = [pod["spec"]["containers"][0]["resources"][kind]["cpu"] for pod in pods]
        return [int(1000 * parse_quantity(each)) for each in found]

    lent: list[int] = []
    changed_at = 0.0

    def rests() -> bool:
        """All are lent some, and it stays as much: CPU may come to a pod after it runs."""
        nonlocal changed_at
        before = lent.copy()
        lent[:] = cpu("requests")
        if lent != before:
            changed_at = time.monotonic()
        return 200 not in lent and time.monotonic() - changed_at >= REST_S

    until(rests, 120 + REST_S, lambda: f"requests are {lent}")
    nodes = {pod["spec"]["nodeName"] for pod in jobs.pods("held").values()}
    assert len(nodes) == 1, nodes
    until(
        lambda: set(cpu("limits")) == {sum(cpu("requests"))},
        60,
        lambda: f"they share their node's: of {cpu('requests')} each may use {cpu('limits')}",
    )
    other = sleepers("other", Worker=1)
    other["metadata"]["annotations"] = {f"{PREFIX}placement": "auto"}
    pod = other["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["nodeSelector"] = {"kubernetes.io/hostname": jobs.get("pod", "held-chief-0")["spec"]["nodeName"]}
    pod["containers"][0]["resources"] = {"requests": {"cpu": "300m"}}
    jobs.apply(other)
    jobs.wait_for("other", "Running")
    until(lambda: sum(cpu("requests")) <= sum(lent) - 200, 120, lambda: f"of {lent} there are still {cpu('requests')}")
    jobs.wait_for_words("held", "CPUAdjusted")
    statuses = [pod["status"]["containerStatuses"] for pod in jobs.pods("held").values()]
    assert all(each["restartCount"] == 0 for containers in statuses for each in containers)


@pytest.mark.thorough  # unit/test_annotations.py
@pytest.mark.beside
@pytest.mark.parametrize("wrong", ["many", "99"])
def test_a_size_that_is_not_allowed_is_told_and_changes_nothing(jobs: Jobs, wrong: str) -> None:
    jobs.apply(elastic(jobs, "asked", steps=100_000))
    jobs.wait_for("asked", "Running")
    jobs.kubectl("annotate", "tfjob", "asked", f"{PREFIX}target-workers={wrong}")

    def told() -> str:
        return jobs.kubectl("describe", "tfjob", "asked")

    until(lambda: "InvalidAnnotation" in told(), 120, lambda: "no event:\n" + told())
    assert f"'{wrong}'" in told() or f": {wrong} is ignored" in told()

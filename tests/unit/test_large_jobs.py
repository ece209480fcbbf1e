"""A job of a thousand replicas: how much work a pass is, counted and not timed; what is shared is made once."""

import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.controller.job import pods as pods_module
from elastic_tfjob.controller.job.commands import SharedCommand
from elastic_tfjob.controller.job.context import COMMANDS_INTERVAL_S, COMMANDS_PER_PASS, ReconcileContext
from elastic_tfjob.controller.job.decision import Create, Decision, ReconcileSettings, SendCommand
from elastic_tfjob.controller.job.pods import TFConfigs, general_name, tf_config
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION, STOP_COMMAND, Command, abridged
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.quantities import CpuAsked
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.state import Next, StoredState
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from unit.build import NOW, decide, job, pod, pod_group, replicas, services
from unit.pretend import COMMAND, ELASTIC

WORKERS = 1000
COUNTS = {"PS": 1, "Worker": WORKERS}
IMAGE = ReconcileSettings(image="operator:1")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of replicas that are made: TF_CONFIG has one for each replica."""
    made: list[str] = []

    def counted(*parts: object) -> str:
        made.append(general_name(*parts))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(pods_module, "general_name", counted)
    return made


def rescaled() -> tuple[TFJob, tuple[Pod, ...]]:
    """A job in its third generation, whose pods have yet to hear of it."""
    container = {"name": "tensorflow", "image": "t", "command": COMMAND, "resources": {"requests": {"cpu": "100m"}}}
    state = StoredState("Stable", 3, replicas=COUNTS)
    annotations = {
        **ELASTIC,
        STATE_ANNOTATION: state.to_json(),
        TARGET_ANNOTATION: Target(3, COUNTS, declared=COUNTS).to_json(),
    }
    found = job(
        {name: replicas(count, containers=[container]) for name, count in COUNTS.items()}, annotations=annotations
    )
    return found, tuple(
        replace(pod(name, i), cpu=CpuAsked(100, 0)) for name, count in COUNTS.items() for i in range(count)
    )


def told(decision: Decision) -> dict[str, str]:
    return {action.name: action.command for action in decision.actions if isinstance(action, SendCommand)}


def test_a_pass_creates_some_and_looks_again(names: list[str]) -> None:
    """Nothing is rendered by the decision; the next pass begins at once, and goes on where this one ended."""
    found = job(COUNTS)
    decision = decide(found)
    creations = [action for action in decision.actions if isinstance(action, Create)]
    assert (len(creations), len(names)) == (200, 0)
    assert decision.again_at is not None
    there = {creation.name for creation in creations}
    pods = tuple(
        each for each in (pod(name, i) for name, count in COUNTS.items() for i in range(count)) if each.name in there
    )
    later = decide(found, pods=pods, services=services({"PS": 1}))
    assert not there & {action.name for action in later.actions if isinstance(action, Create)}


def test_all_pods_of_a_large_job_are_created_over_several_passes() -> None:
    """Once each, and then the last pass asks for no other."""
    found, made = job(COUNTS), set[tuple[str, str]]()
    for _ in range(20):
        seen = tuple(pod(name, i) for name, c in COUNTS.items() for i in range(c) if ("Pod", _name(name, i)) in made)
        known = tuple(s for s in services(COUNTS) if ("Service", s.name) in made)
        decision = decide(found, pods=seen, services=known)
        created = {(action.kind, action.name) for action in decision.actions if isinstance(action, Create)}
        assert not created & made
        made |= created
        if not created:
            break
    assert len(made) == 2 * (WORKERS + 1)
    assert decision.again_at is None


def test_the_names_of_all_replicas_are_made_once_for_all_pods(names: list[str]) -> None:
    """And not once for each pod: a thousand times a thousand."""
    decision = decide(job(COUNTS))
    bodies = [action.body for action in decision.actions if isinstance(action, Create) and action.kind == "Pod"]
    assert len(bodies) == 199
    assert len(names) <= 2 * (WORKERS + 1)
    env = bodies[-1]["spec"]["containers"][0]["env"]
    assert len(orjson.loads(env[0]["value"])["cluster"]["worker"]) == WORKERS


def test_a_pass_of_a_rescaled_job_is_linear(names: list[str]) -> None:
    """Commands are made and compared without the names of all replicas in each; some pods a pass are told."""
    found, pods = rescaled()
    decision = decide(found, pods=pods, services=services(COUNTS), settings=IMAGE)
    assert len(told(decision)) == COMMANDS_PER_PASS
    assert decision.again_at is not None
    assert (decision.again_at - NOW).total_seconds() == COMMANDS_INTERVAL_S  # and sooner when pods have heard
    assert len(names) <= 4 * (WORKERS + 1)
    for _ in range(10):
        commands = told(decision)
        pods = tuple(
            replace(each, command=abridged(commands[each.name])) if each.name in commands else each for each in pods
        )
        decision = decide(found, pods=pods, services=services(COUNTS), settings=IMAGE)
        if not told(decision):
            break
    assert all(pod.command for pod in pods)
    assert not told(decision)


def test_a_long_command_is_kept_as_a_digest() -> None:
    """Two thousand pods whose commands name two thousand replicas each had 200 MB of them in memory."""
    _, pods = rescaled()
    wordy = pod("Worker", 0, annotations={COMMAND_ANNOTATION: "x" * 100_000})
    assert sys.getsizeof(wordy.command) < 128
    assert pods[0].command == ""
    assert pod("Worker", 0, annotations={COMMAND_ANNOTATION: STOP_COMMAND}).stopped_by_us


@given(st.text(max_size=3), st.integers(0, 2000), st.sampled_from(["", " "]), st.data())
def test_a_command_is_kept_the_same_in_one_part_or_two(word: str, length: int, space: str, data: st.DataObject) -> None:
    """However it is split; the space that has an equal command seen as new stays."""
    command = word + "x" * length + "}"
    at = data.draw(st.integers(0, len(command) - 1))
    hashes: dict[str, Any] = {}
    whole = abridged(command + space)
    assert abridged(command[at:] + space, command[:at], hashes) == whole
    assert abridged(command[at:] + space, command[:at], hashes) == whole
    assert whole == abridged(command) + space
    assert abridged(f"{command}y") != whole


def test_a_command_that_looks_like_a_digest_is_another_command() -> None:
    """A command whose text is a digest is not the command that has it."""
    long = "x" * 5000
    assert abridged(abridged(long)) != abridged(long)


@pytest.mark.parametrize("space", ["", " "])
def test_a_large_job_that_is_deaf_is_told_again(space: str) -> None:
    """With a space more or less at the end of the command, as it may be seen from its digest."""
    found, pods = rescaled()
    heard = {each.name: text for each in pods for text in ["-"]}
    for _ in range(10):
        commands = told(decide(found, pods=pods, services=services(COUNTS), settings=IMAGE))
        heard |= commands
        pods = tuple(
            replace(each, command=abridged(commands[each.name])) if each.name in commands else each for each in pods
        )
    pods = tuple(replace(each, command=abridged(heard[each.name] + space)) for each in pods)
    report = Report(at=1.0, generation=2, launcher=True)
    state = StoredState.parse(found.annotations[STATE_ANNOTATION])
    assert state is not None
    later = replace(state, since=format_time(NOW - timedelta(seconds=2.6 if space else 5.1)))
    found.annotations[STATE_ANNOTATION] = later.to_json()
    again = told(
        decide(
            found,
            pods=pods,
            services=services(COUNTS),
            settings=IMAGE,
            reports={"j-worker-5": report, "j-worker-6": replace(report, generation=3)},
        )
    )
    assert again == {"j-worker-5": heard["j-worker-5"] + ("" if space else " ")}


def test_the_index_of_pods_by_role_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for each replica's pod goes through all pods once, also where all are prepared for another size."""
    found, pods = rescaled()
    coming = Target(4, {"PS": 1, "Worker": WORKERS - 1}, declared=COUNTS)
    state = StoredState(
        "Preparing",
        3,
        replicas=COUNTS,
        next=Next(4, 1, "overlap", coming.replicas, COUNTS),
    )
    found.annotations.update({STATE_ANNOTATION: state.to_json(), TARGET_ANNOTATION: coming.to_json()})
    looks = 0
    plain = ReconcileContext.__dict__["by_role"].func

    def counted(ctx: ReconcileContext) -> object:
        nonlocal looks
        looks += 1
        return plain(ctx)

    monkeypatch.setattr(ReconcileContext.__dict__["by_role"], "func", counted)
    decide(found, pods=pods, services=services(COUNTS), settings=IMAGE)
    assert looks == 1


@given(st.dictionaries(st.sampled_from(["Chief", "PS", "Worker", "Evaluator"]), st.integers(1, 3)), st.booleans())
def test_a_command_in_parts_is_the_command(types: dict[str, int], sparse: bool) -> None:
    """Byte for byte what the launcher has always been told."""
    found = job(types, enableDynamicWorker=sparse)
    spec = found.spec()
    configs = TFConfigs(found, spec, slot=1)
    order = SharedCommand(Command(2, "prepare", "", "spare", 7.0), configs)
    for name, count in types.items():
        for index in range(count):
            whole = Command(2, "prepare", tf_config(found, spec, name, index, slot=1), "spare", 7.0)
            assert order.text((name, index)) == whole.to_json()
            assert order.kept((name, index)) == abridged(whole.to_json())


def test_more_replicas_than_one_job_may_have() -> None:
    """An event says so, and nothing is created."""
    decision = decide(job({"Worker": 10**6}))
    assert decision.actions == ()
    assert [(event.reason, "2000" in event.message) for event in decision.events] == [("TFJobFailedValidation", True)]


def test_few_of_many_troubles_are_told() -> None:
    """2,000 pods of 16 containers whose images do not exist were 32,000 events in one step, at each change of one."""
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    waiting = [{"name": f"c{i}", "state": state} for i in range(16)]
    pods = tuple(pod("Worker", i, "Pending", status={"containerStatuses": waiting}) for i in range(2000))
    ending = tuple(replace(each, terminating=True) for each in pods[1000:])
    decision = decide(job({"Worker": 2000}), pods=(*pods[:1000], *ending), services=services({"Worker": 2000}))
    told_of = [event for event in decision.events if event.reason == "ImagePullBackOff"]
    assert len(told_of) == 20
    assert "j-worker-0 container c0" in told_of[0].message
    (more,) = [event.message for event in decision.events if event.reason == "MoreTroubles"]
    assert f"{1000 * 16 - 20} more problems" in more


def test_a_state_that_is_too_large_goes_without_nodes() -> None:
    """2,000 replicas with long names of nodes do not fit into annotations thrice: their pods are not pinned then, and
    the same pass is not repeated for ever."""
    counts = {"Worker": 1999}
    nodes = {"Worker": tuple(f"{i:0>44}" for i in range(1999))}
    target = Target(0, counts, nodes, declared=counts).to_json()
    filler = {"example.com/notes": "x" * (256 * 1024 - 2 * len(target))}
    waits = ReconcileSettings(image="operator:1", wait_for_target=True)
    found = job(counts, annotations={**ELASTIC, TARGET_ANNOTATION: target, **filler})
    first = decide(found, settings=waits)
    saved = next(action.annotations for action in first.actions if hasattr(action, "annotations"))
    assert sum(len(k) + len(v or "") for k, v in {**found.annotations, **saved}.items()) <= 256 * 1024
    assert "StateNotStored" in [event.reason for event in first.events]
    found.annotations.update({name: value for name, value in saved.items() if value is not None})
    second = decide(found, settings=waits)
    assert not any(hasattr(action, "annotations") for action in second.actions)
    creations = [action for action in second.actions if isinstance(action, Create)]
    assert creations
    assert "affinity" not in creations[0].body["spec"]


def test_a_job_without_room_for_its_state_runs_without_a_target() -> None:
    """The user's annotations fill what there is: the job runs as one that follows no target."""
    filler = {"example.com/notes": "x" * (256 * 1024 - 1000)}
    waits = ReconcileSettings(image="operator:1", wait_for_target=True)
    decision = decide(job({"Worker": 2}, annotations={**ELASTIC, **filler}), settings=waits)
    assert "StateNotStored" in [event.reason for event in decision.events]
    assert [action.name for action in decision.actions if isinstance(action, Create) and action.kind == "Pod"] == [
        "j-worker-0",
        "j-worker-1",
    ]
    assert not any(hasattr(action, "annotations") for action in decision.actions)


@pytest.mark.parametrize("scheduler", ["volcano", "scheduler-plugins-scheduler"])
def test_a_gang_without_room_for_its_state_starts_as_a_whole(scheduler: str) -> None:
    """It starts as a whole, as any job that follows no target: with its PodGroup, and when the gang scheduler says so.
    Without the group its pods would be bound one by one, or never."""
    filler = {"example.com/notes": "x" * (256 * 1024 - 1000)}
    waits = ReconcileSettings(image="operator:1", wait_for_target=True, gang_scheduler=scheduler)
    found = job({"Worker": 2}, annotations={**ELASTIC, **filler})
    decision = decide(found, settings=waits)
    made = [action for action in decision.actions if isinstance(action, Create)]
    assert made[0].body["spec"]["minMember"] == 2
    assert [each.kind for each in made].count("Pod") == (0 if scheduler == "volcano" else 2)
    admitted = decide(found, settings=waits, pod_group=pod_group(**made[0].body["spec"], phase="Inqueue"))
    assert [action.kind for action in admitted.actions if isinstance(action, Create)].count("Pod") == 2


def _name(replica_type: str, index: int) -> str:
    return general_name("j", replica_type, index)

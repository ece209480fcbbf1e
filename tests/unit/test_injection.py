"""What a job's pods get where the namespace does not admit what is injected as configured.

Refusals of a real API server are in tests/integration/test_namespace_rules.py."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.controller.job.decision import Create, Decision, DeletePod, ReconcileSettings, SaveState, SendCommand
from elastic_tfjob.controller.job.namespace_rules import fitted, room_if_left
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, Injection
from elastic_tfjob.controller.model.pod import EXPORTER, Pod
from elastic_tfjob.controller.model.settings import parse_configuration
from elastic_tfjob.controller.model.state import StoredState
from unit.build import decide, job, pod, replicas, services

ELASTIC = {f"{PREFIX}max-workers": "4", f"{PREFIX}checkpoint-dir": "/c"}
SETTINGS = ReconcileSettings(image="operator:1")
REFUSED = Injection(refused="denied by their webhook")
TRAINS = {"name": "tensorflow", "image": "t", "command": ["python"], "resources": {"requests": {"cpu": "1"}}}
TYPES = {"Worker": replicas(2, "OnFailure", containers=[TRAINS])}
HAS_OURS: dict[str, Any] = {"initContainers": [{"name": EXPORTER}], "nodeName": "n"}


def stable(**fields: Any) -> dict[str, str]:
    return {
        **ELASTIC,
        STATE_ANNOTATION: StoredState(
            "Stable", replicas={"Worker": 2}, since="2026-01-02T03:00:00Z", **fields
        ).to_json(),
    }


def look(annotations: dict[str, str], *there: Pod, **seen: Any) -> tuple[Decision, StoredState]:
    """A decision, and the state once it is carried out."""
    decision = decide(
        job(TYPES, annotations=annotations), settings=SETTINGS, pods=there, services=services({"Worker": 2}), **seen
    )
    stored = {**annotations}
    for action in decision.actions:
        if isinstance(action, SaveState):
            stored |= {name: text for name, text in action.annotations.items() if text is not None}
    state = StoredState.parse(stored[STATE_ANNOTATION])
    assert state is not None
    return decision, state


def made(decision: Decision) -> list[list[str]]:
    """The containers that were added to each pod that is created."""
    bodies = [action.body for action in decision.actions if isinstance(action, Create) and action.kind == "Pod"]
    return [[each["name"] for each in body["spec"].get("initContainers", ())] for body in bodies]


def test_an_injection_is_stored_before_pods_are_made_with_it() -> None:
    """So that another operator goes on with the same."""
    decision, state = look(stable(), injection=REFUSED)
    assert not made(decision)
    assert state.injection is not None
    assert state.injection.refused == REFUSED.refused
    after, state = look(stable(injection=state.injection))
    assert made(after) == [[], []]
    assert REFUSED.refused in next(event.message for event in after.events if event.reason == "LauncherNotInjected")
    [body, _] = [action.body for action in after.actions if isinstance(action, Create) and action.kind == "Pod"]
    [program] = body["spec"]["containers"]
    assert program["command"] == ["python"]
    assert {"name": "ELASTIC_TFJOB_CHECKPOINT_DIR", "value": "/c"} in program["env"]


def test_other_resources_hold_for_all_pods() -> None:
    resources = {"requests": {"cpu": "50m"}, "limits": {"cpu": "100m"}}
    decision, state = look(stable(), injection=Injection(resources, tries=1))
    assert not made(decision)
    after, _ = look(stable(injection=state.injection))
    bodies = [action.body for action in after.actions if isinstance(action, Create) and action.kind == "Pod"]
    assert [body["spec"]["initContainers"][0]["resources"] for body in bodies] == [resources] * 2


def test_pods_of_both_kinds_do_not_stay() -> None:
    """One that has a launcher goes where another could not get it, and no failure is counted."""
    before = pod("Worker", 0, spec=HAS_OURS)
    _, state = look(stable(), before, injection=REFUSED)
    assert state.phase == "Recreating"
    marks, state = look(stable(injection=REFUSED) | {STATE_ANNOTATION: state.to_json()}, before)
    assert any(isinstance(action, SendCommand) for action in marks.actions)
    marked = replace(before, command='{"action":"stop"}')
    goes, state = look({**ELASTIC, STATE_ANNOTATION: state.to_json()}, marked)
    assert [action.name for action in goes.actions if isinstance(action, DeletePod)] or state.phase == "Recreating"
    _, state = look({**ELASTIC, STATE_ANNOTATION: state.to_json()})
    assert (state.phase, state.next, state.replicas) == ("Stable", None, {"Worker": 2})
    assert not state.history
    after, _ = look({**ELASTIC, STATE_ANNOTATION: state.to_json()})
    assert made(after) == [[], []]


def test_a_size_that_is_prepared_is_left_to_roll_back() -> None:
    """Of a job that trains with launchers, some are refused to pods of its next size: it keeps what it has."""
    coming = {"generation": 1, "slot": 1, "mode": "overlap", "replicas": {"Worker": 3}, "before": {"Worker": 2}}
    state = {**orjson.loads(stable()[STATE_ANNOTATION]), "phase": "Preparing", "next": coming}
    there = [pod("Worker", index, spec=HAS_OURS) for index in (0, 1)]
    _, after = look({**ELASTIC, STATE_ANNOTATION: orjson.dumps(state).decode()}, *there, injection=REFUSED)
    assert after.injection is None


@pytest.mark.parametrize(("at", "again"), [("2026-01-02T03:04:00Z", False), ("2026-01-02T02:00:00Z", True)])
def test_a_job_without_pods_tries_again(at: str, *, again: bool) -> None:
    """After five minutes: its namespace may admit more by now."""
    _, state = look(stable(injection=replace(REFUSED, at=at)))
    assert (state.injection is None) == again


def test_a_suspended_job_tries_again() -> None:
    found = job(TYPES, annotations=stable(injection=REFUSED), runPolicy={"suspend": True})
    [saved] = [action for action in decide(found, settings=SETTINGS).actions if isinstance(action, SaveState)]
    state = StoredState.parse(saved.annotations[STATE_ANNOTATION])
    assert state is not None
    assert state.injection is None


@pytest.mark.parametrize(
    "injection",
    [
        {"resources": {"requests": {"cpu": "1 core"}}},
        {"resources": {"requests": {"cpu": "-1"}}},
        {"resources": {"requests": {"cpu": "9" * 100}}},
        {"resources": {}, "refused": ""},
        {"resources": {"requests": {"example.org/gpu": "1"}}, "tries": -1},
        "none",
    ],
)
def test_an_invalid_injection_in_the_state_is_ignored(injection: object) -> None:
    """Anybody may have written it."""
    text = orjson.dumps({**orjson.loads(stable()[STATE_ANNOTATION]), "injection": injection}).decode()
    state = StoredState.parse(text)
    assert state is not None
    assert state.injection is None
    assert state.problems


@pytest.mark.parametrize(
    "refusal",
    [
        "",
        "denied by their webhook",
        "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
        "minimum cpu usage per Container is 600m, but request is 0",
        "maximum cpu usage per Container is , but limit is 1",
        "minimum example.org/gpu usage per Container is 1. No request is specified",
        "must specify requests.nvidia.com/gpu for: tensorflow",
    ],
)
def test_a_refusal_that_no_resources_satisfy_gives_no_proposal(refusal: str) -> None:
    """Or none that a launcher is worth."""
    assert fitted(DEFAULT_RESOURCES, refusal) is None


def test_proposed_requests_are_within_proposed_limits() -> None:
    """No request above its limit, whatever is asked at once."""
    asks = (
        "[minimum memory usage per Container is 200Mi, but request is 32Mi, maximum cpu usage per Container is 300m. "
        "No limit is specified, cpu max limit to request ratio per Container is 4, but no request is specified]"
    )
    found = fitted(DEFAULT_RESOURCES, asks)
    assert found == {
        "requests": {"cpu": "25m", "memory": "209715200"},
        "limits": {"cpu": "100m", "memory": "209715200"},
    }


def test_room_that_other_pods_would_give_up() -> None:
    said = (
        "exceeded quota: q, requested: memory=128Mi,limits.cpu=1, used: memory=320Mi,limits.cpu=2, "
        "limited: memory=384Mi,limits.cpu=3"
    )
    mebibyte = quantity("1Mi")
    assert room_if_left(said, {("requests", "memory"): 64 * mebibyte})
    assert not room_if_left(said, {("requests", "memory"): 63 * mebibyte})
    assert not room_if_left(said, {})
    assert not room_if_left("denied", {("requests", "memory"): 64 * mebibyte})


def test_resources_of_injected_containers_can_be_configured() -> None:
    """Wrong amounts are refused in words."""
    text = "injected: {requests: {cpu: 10m, memory: 40Mi}, limits: {memory: 80Mi}}"
    assert parse_configuration(text).injected.resources == {
        "requests": {"cpu": "10m", "memory": "40Mi"},
        "limits": {"memory": "80Mi"},
    }
    assert parse_configuration("").injected.resources == DEFAULT_RESOURCES
    for wrong, words in (
        ("{requests: {cpu: much}}", "not a quantity"),
        ("{requests: {gpu: '1'}}", "allowed: cpu, memory, ephemeral-storage"),
        ("{requests: {memory: 2Gi}}", "is above limits.memory"),
        ("{cpu: 1}", "injected.cpu is not known; allowed: requests, limits"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_configuration(f"injected: {wrong}")

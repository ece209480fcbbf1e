"""The operator's own annotations, `target` and `state`, as anybody may have written them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from elastic_tfjob.api.annotations import ANNOTATIONS, OPERATOR_ANNOTATIONS, PREFIX
from elastic_tfjob.api.reading import (
    MAX_ANNOTATION_BYTES,
    MAX_ENTRIES,
    MAX_PROBLEMS,
    MAX_REPLICAS,
    MAX_STEPS,
    MAX_TEXT,
    UnknownWord,
)
from elastic_tfjob.controller.model.annotations import RECORD_ANNOTATION
from elastic_tfjob.controller.model.state import Next, Refused, Rescaled, Stop, StoredState
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import UsageRecord
from elastic_tfjob.controller.planning.job_view import view_of
from elastic_tfjob.controller.planning.targets import decide_fixed, released, suspended
from elastic_tfjob.scheduling.plan import Cause
from elastic_tfjob.speed.growth import NOT_REPORTED, Growth
from elastic_tfjob.speed.history import Conditions
from harness.hostile_text import HUGE_NEGATIVE_NUMBERS, HUGE_NUMBERS, NO_JSON_OBJECT, named

from .build import NOW, UID, job
from .pretend import started

TYPES = ("Chief", "PS", "Worker")
SIZE = {"Chief": 1, "PS": 1, "Worker": 2}
NEXT = {"generation": 1, "slot": 1, "mode": "overlap", "replicas": SIZE, "before": SIZE}
DONE = {
    "generation": 1,
    "at": "2026-01-02T03:04:05Z",
    "before": SIZE,
    "after": SIZE,
    "mode": "overlap",
    "downtime_s": None,
    "lost_steps": 0,
    "reason": "",
}

FULL_TARGET = Target(
    3, SIZE, {"Worker": ("a", "b.example.com")}, {"Worker": (1, 10**9)}, "why", SIZE, memory={"a.b": -0.1}
)
FULL_STATE = StoredState(
    "Preparing",
    generation=2,
    slot=1,
    replicas=SIZE,
    nodes={"PS": ("a",)},
    cpu={"Worker": (300, 500)},
    since="2026-01-02T03:04:05Z",
    reason="why",
    next=Next(3, 0, "spare", SIZE, SIZE, {"Worker": ("a",)}, {"PS": (100,)}, "more"),
    refused=Refused(1, "no room", "2026-01-02T03:04:05Z"),
    rescales=2,
    last_downtime_s=-0.5,
    history=(Rescaled(1, "2026-01-02T03:04:05Z", SIZE, SIZE, "recreate", None, None, "because"),),
    step=MAX_STEPS,
    total_steps=MAX_STEPS,
    steps_per_s=0.1,
    eta="9998-12-31T00:00:00Z",
    speeds={"1/2": 10.5},
    speed_conditions={"1/2": Conditions(250.0, 100.0, 0.05)},
    metrics_at="2026-01-02T03:04:05Z",
    starts="exec: no Python program",
)

GROWTH = Growth("finite", ((100.0, 0.5),), 0.01, 0.02, 3, 1_767_323_045.0)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (None, {}),
        ([1], {}),
        ("x", {}),
        ({"las.forgiven": 1, "b": 0.5}, {"las.forgiven": 1.0, "b": 0.5}),
        ({"a": True, "b": "1", "c": None, "d": [], "e": {}, "f": 2.0}, {"f": 2.0}),
        ({"": 1.0, "A": 1.0, "ü": 1.0, "a b": 1.0, "a\n": 1.0, "n" * 33: 1.0, "n" * 32: 1.0}, {"n" * 32: 1.0}),
        ({f"n{k:03}": k for k in range(1000)}, {f"n{k:03}": float(k) for k in range(16)}),
    ],
)
def test_the_memory_of_a_target_is_read_within_its_bounds(written: object, read: dict[str, float]) -> None:
    """What is no memory is forgotten; the rest of the target counts."""
    text = orjson.dumps({"generation": 3, "replicas": SIZE, "memory": written}).decode()
    found = Target.parse(text)
    assert found is not None
    assert dict(found.memory) == read
    assert found.generation == 3
    assert Target.parse(found.to_json()) == found


@pytest.mark.parametrize("number", [*HUGE_NUMBERS, *HUGE_NEGATIVE_NUMBERS], ids=named)
def test_a_number_beyond_floats_is_not_remembered(number: str) -> None:
    try:
        found = Target.parse(f'{{"generation":3,"replicas":{{"PS":1}},"memory":{{"a":{number}}}}}')
    except ValueError:
        return  # no JSON
    assert found is not None
    assert found.memory == {}


def test_a_full_target_and_state_are_read_back() -> None:
    assert Target.parse(FULL_TARGET.to_json()) == FULL_TARGET
    assert StoredState.parse(FULL_STATE.to_json()) == FULL_STATE


@pytest.mark.parametrize(
    ("written", "read", "told"),
    [
        ({"1": "asked"}, {1: "asked"}, False),
        ({"1": "of-tomorrow", "2": "grow", "3": 5, "4": None, "5": ["asked"]}, {2: "grow"}, False),
        (
            {"-1": "asked", "1e3": "asked", "99999999999": "asked", "\u00b2": "asked", "07": "asked"},
            {7: "asked"},
            False,
        ),
        ({str(k): "asked" for k in range(33)}, {}, True),
        ({str(k): "asked" for k in range(32)}, dict.fromkeys(range(32), "asked"), False),
        ([1], {}, True),
        ("nonsense", {}, True),
        (None, {}, False),
    ],
)
def test_causes_are_read_with_their_bounds(written: object, read: dict[int, Cause], told: bool) -> None:
    """Whatever they are, the state is what it is without them."""
    text = orjson.dumps({**orjson.loads(FULL_STATE.to_json()), "causes": written}).decode()
    found = StoredState.parse(text)
    assert found == replace(FULL_STATE, causes=read)
    assert bool(found.problems) is told


def test_causes_are_written_for_the_sizes_that_the_state_remembers() -> None:
    assert "causes" not in orjson.loads(FULL_STATE.to_json())
    state = replace(FULL_STATE, causes={0: "repair", 1: "asked", 3: "deadline", 4: "asked"})
    assert StoredState.parse(state.to_json()) == replace(FULL_STATE, causes={1: "asked", 3: "deadline"})


def test_nobody_but_the_operator_may_write_its_annotations() -> None:
    """The policy names each of them, and none that is the user's."""
    policies = yaml.safe_load_all((Path(__file__).parents[2] / "manifests" / "base" / "policy.yaml").read_text())
    text = next(policies)["spec"]["variables"][0]["expression"]
    assert f".map(name, '{PREFIX}' + name)" in text
    assert set(re.findall(r"'([a-z-]+)'", text.partition("]")[0])) == OPERATOR_ANNOTATIONS - {"command"}
    assert not OPERATOR_ANNOTATIONS & set(ANNOTATIONS)


def test_keys_of_a_newer_operator_are_passed_over() -> None:
    newer: dict[str, Any] = {**orjson.loads(FULL_STATE.to_json()), "something": [{}]}
    newer["next"]["something"] = newer["history"][0]["something"] = 1
    assert StoredState.parse(orjson.dumps(newer).decode()) == FULL_STATE


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"reason": 5}, "reason"),
        ({"generation": "1"}, "generation"),
        ({"generation": 1e308}, "generation"),
        ({"generation": -1}, "generation"),
        ({"generation": True}, "generation"),
        ({"generation": None}, "generation"),
        ({"generation": 2**31 + 1}, "generation"),
        ({"replicas": None}, "replicas"),
        ({"replicas": []}, "replicas"),
        ({"replicas": {"Worker": 10**10}}, "replicas.Worker"),
        ({"replicas": {"Worker": -1}}, "replicas.Worker"),
        ({"replicas": {"Worker": 1.5}}, "replicas.Worker"),
        ({"replicas": {"Worker": MAX_REPLICAS, "PS": 1}}, "replicas"),
        ({"replicas": {"": 1}}, "replicas"),
        ({"replicas": {str(i): 0 for i in range(MAX_ENTRIES + 1)}}, "replicas"),
        ({"declared": {"Worker": "2"}}, "declared.Worker"),
        ({"nodes": {"Worker": ["a", "b", "c"]}}, "nodes.Worker"),
        ({"nodes": {"Worker": ["A"]}}, "nodes.Worker"),
        ({"nodes": {"Worker": [["a"]]}}, "nodes.Worker"),
        ({"nodes": {"Worker": ["a" * 254]}}, "nodes.Worker"),
        ({"nodes": {"Evaluator": ["a"]}}, "nodes.Evaluator"),
        ({"nodes": [["Worker", "a"]]}, "nodes"),
        ({"cpu": {"Worker": [-64000]}}, "cpu.Worker"),
        ({"cpu": {"Worker": [0]}}, "cpu.Worker"),
        ({"cpu": {"Worker": [10**9 + 1]}}, "cpu.Worker"),
        ({"cpu": {"Worker": [1] * (MAX_REPLICAS + 1)}}, "cpu.Worker"),
        ({"cpu": {"Worker": 100}}, "cpu.Worker"),
    ],
)
def test_a_wrong_target_names_the_key(change: dict[str, Any], key: str) -> None:
    text = orjson.dumps({"generation": 0, "replicas": SIZE, **change}).decode()
    with pytest.raises(ValueError, match=f"{PREFIX}target is invalid; only the operator may write it: {key} ?[a-z:]"):
        Target.parse(text)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"phase": "Dancing all day"}, "phase"),
        ({"phase": "D" * 65}, "phase"),
        ({"phase": 5}, "phase"),
        ({"phase": "Dancing", "slot": 2}, "slot"),
        ({"phase": ["Stable"]}, "phase"),
        ({"phase": "Switching"}, "next"),
        ({"slot": "1"}, "slot"),
        ({"slot": 2}, "slot"),
        ({"replicas": {"Worker": 10**10}}, "replicas.Worker"),
        ({"nodes": {"Worker": ["A"]}}, "nodes.Worker"),
        ({"next": {**NEXT, "slot": "1"}}, "next.slot"),
        ({"next": {**NEXT, "mode": ["odd"]}}, "next.mode"),
        ({"next": {**NEXT, "mode": "odd", "slot": 2}}, "next.slot"),
        ({"next": {**NEXT, "before": None}}, "next.before"),
    ],
)
def test_a_wrong_state_names_the_key(change: dict[str, Any], key: str) -> None:
    text = orjson.dumps({"phase": "Stable", "generation": 0, "replicas": SIZE, **change}).decode()
    with pytest.raises(ValueError, match=f"{PREFIX}state is invalid; only the operator may write it: {key} ?[a-z:]"):
        StoredState.parse(text)


@pytest.mark.parametrize(
    ("change", "key", "instead"),
    [
        ({"reason": 5}, "reason", ""),
        ({"since": "x"}, "since", ""),
        ({"since": "2026-01-02T03:04:05"}, "since", ""),
        ({"since": "0001-01-01T00:00:00Z"}, "since", ""),
        ({"since": 5}, "since", ""),
        ({"cpu": {"Worker": [0]}}, "cpu.Worker", {}),
        ({"refused": {"generation": 1, "reason": "", "at": "x"}}, "refused.at", None),
        ({"refused": {"generation": 1, "reason": ""}}, "refused.at", None),
        ({"refused": {"generation": "x", "reason": "", "at": "2026-01-02T03:04:05Z"}}, "refused.generation", None),
        ({"refused": "x"}, "refused", None),
        ({"rescales": "many"}, "rescales", 0),
        ({"last_downtime_s": "long"}, "last_downtime_s", None),
        ({"history": {}}, "history", ()),
        ({"history": [DONE] * (MAX_ENTRIES + 1)}, "history", ()),
        ({"step": "x"}, "step", None),
        ({"step": -1}, "step", None),
        ({"step": 1.5}, "step", None),
        ({"total_steps": "1000"}, "total_steps", None),
        ({"total_steps": [1]}, "total_steps", None),
        ({"steps_per_s": {}}, "steps_per_s", None),
        ({"eta": "soon"}, "eta", None),
        ({"eta": "99999-01-01T00:00:00Z"}, "eta", None),
        ({"eta_earliest": 10}, "eta_earliest", None),
        ({"eta_latest": 10}, "eta_latest", None),
        ({"eta_source": 10}, "eta_source", None),
        ({"speeds": []}, "speeds", {}),
        ({"speeds": {"1/2": 10.5, "1/3": "fast"}}, "speeds.1/3", {"1/2": 10.5}),
        ({"speeds": {"1/2/1": 3.0, "1/2": 10.5}}, "speeds: '1/2/1'", {"1/2": 10.5}),
        ({"speeds": {"": 1.0, "1/2": 10.5}}, "speeds: ''", {"1/2": 10.5}),
        ({"speeds": {"9" * 5000 + "/1": 1.0, "1/2": 10.5}}, "speeds: '9", {"1/2": 10.5}),
        (
            {"speed_conditions": {"1/2": [250, 100, 0.05], "1/4": [1, 2]}},
            "speed_conditions.1/4",
            {"1/2": Conditions(250.0, 100.0, 0.05)},
        ),
        ({"metrics_at": "x"}, "metrics_at", None),
        ({"starts": 5}, "starts", None),
        ({"stop": "x"}, "stop", None),
        ({"stop": {"request": "x"}}, "stop.request", None),
        ({"stop": {"request": 1, "asked": "x", "saved": 5}}, "stop.asked", Stop(1, "", saved=5)),
        ({"stop": {"request": 1, "reached": 1.5, "saved": 5}}, "stop.reached", Stop(1, "", saved=5)),
    ],
)
def test_an_invalid_detail_of_a_state_is_ignored_alone(change: dict[str, Any], key: str, instead: Any) -> None:
    found = StoredState.parse(orjson.dumps({**orjson.loads(FULL_STATE.to_json()), **change}).decode())
    assert found is not None
    assert found == replace(FULL_STATE, **{next(iter(change)): instead})
    assert [problem.startswith(f"{PREFIX}state: ignored: {key}") for problem in found.problems] == [True]
    assert "problems" not in orjson.loads(found.to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"speeds": {"1/2/1": 3.0}},
        {"step": 1.5},
        {"eta": "soon"},
        {"last_downtime_s": "long"},
        {"since": "x"},
        {"cpu": 5},
        {"refused": 5},
        {"stop": {"request": "x"}},
    ],
)
def test_a_wrong_figure_is_told_and_no_pod_is_made_anew(change: dict[str, Any]) -> None:
    cluster = started()
    cluster.target(1, Worker=3)
    cluster.run(30)
    pods, known = {name: pod.uid for name, pod in cluster.pods.items()}, cluster.state
    cluster.annotations[f"{PREFIX}state"] = orjson.dumps({**orjson.loads(known.to_json()), **change}).decode()
    cluster.events.clear()
    cluster.run(20)
    assert {name: pod.uid for name, pod in cluster.pods.items()} == pods
    assert (cluster.state.generation, cluster.state.replicas) == (1, known.replicas)
    (told,) = cluster.events  # once: what is wrong is then written over
    assert told[0] == "InvalidAnnotation"
    assert next(iter(change)) in told[1]


def test_a_phase_of_which_it_is_not_known_since_when_it_lasts_has_a_limit() -> None:
    cluster = started()
    cluster.target(1, Worker=3)
    cluster.until("Preparing")
    cluster.annotations[f"{PREFIX}state"] = cluster.annotations[f"{PREFIX}state"].replace('"since":"2026', '"since":"')
    cluster.reconcile()
    assert (cluster.state.phase, cluster.state.since) == ("Preparing", format_time(cluster.now))


def test_the_first_of_many_problems_are_reported() -> None:
    """Of many sizes the newest 256 are read at all: a tenant may have written tens of thousands."""
    found = StoredState.parse(
        orjson.dumps({"phase": "Stable", "speeds": {f"odd{k}": 1.0 for k in range(1000)}}).decode()
    )
    assert found is not None
    assert len(found.problems) == MAX_PROBLEMS + 1
    assert found.problems[-1].endswith(f"and {MAX_ENTRIES - MAX_PROBLEMS} more problems")


RECORD = UsageRecord(
    "2026-01-02T03:04:05Z", 2, 50.0, 5000.0, 1, "2026-01-02T03:04:06Z", 1, "2026-01-02T03:04:07Z", GROWTH
)


@pytest.mark.parametrize(
    ("change", "instead"),
    [
        ({"placed": "x"}, {"placed": ""}),
        ({"held": 1.5}, {"held": 0}),
        ({"executed_s": "long"}, {"executed_s": 0.0}),
        ({"service": []}, {"service": 0.0}),
        ({"stops": -1}, {"stops": 0}),
        ({"stopped": 5}, {"stopped": ""}),
        ({"moves": "x"}, {"moves": 0}),
        ({"resumed": {}}, {"resumed": ""}),
        ({"loss": "x"}, {"loss": NOT_REPORTED}),
    ],
)
def test_a_wrong_figure_of_the_record_costs_itself_only(change: dict[str, Any], instead: dict[str, Any]) -> None:
    text = orjson.dumps({**orjson.loads(RECORD.to_json()), **change}).decode()
    assert UsageRecord.of({RECORD_ANNOTATION: text}, UID) == replace(RECORD, **instead)


@pytest.mark.parametrize(
    ("change", "instead"),
    [
        ({"state": "levitating"}, {"state": "absent"}),
        ({"step": "x"}, {"recent": ()}),
        ({"per_step": "x"}, {"per_step": 0.0}),
        ({"peak": []}, {"peak": 0.0}),
        ({"readings": 1.5}, {"readings": 0}),
    ],
)
def test_a_wrong_figure_of_the_loss_costs_itself_only(change: dict[str, Any], instead: dict[str, Any]) -> None:
    written = orjson.loads(RECORD.to_json())
    text = orjson.dumps({**written, "loss": {**written["loss"], **change}}).decode()
    assert UsageRecord.of({RECORD_ANNOTATION: text}, UID) == replace(RECORD, loss=replace(GROWTH, **instead))


@pytest.mark.parametrize("text", [*NO_JSON_OBJECT, " " * MAX_ANNOTATION_BYTES + "{}"], ids=named)
def test_a_record_that_cannot_be_read_is_replaced_by_an_empty_one(text: str) -> None:
    assert UsageRecord.of({RECORD_ANNOTATION: text}, UID) == UsageRecord()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": "Handing-over"}, "phase is not Waiting or .* or Recreating: 'Handing-over'"),
        ({"phase": "H" * 64}, "phase is not .*: 'H{60}'… \\(64 characters\\)"),
        ({"next": {**NEXT, "mode": "handover"}}, "next.mode is not live or overlap or spare or recreate: 'handover'"),
        ({"phase": "Handing-over", "next": {"generation": 1, **NEXT, "mode": "handover"}}, "phase is not"),
    ],
)
def test_an_unknown_word_of_a_newer_operator_has_an_error_of_its_own(change: dict[str, Any], message: str) -> None:
    text = orjson.dumps({"phase": "Stable", "generation": 0, "replicas": SIZE, **change}).decode()
    with pytest.raises(UnknownWord, match=f"^{PREFIX}state: {message}"):
        StoredState.parse(text)


@pytest.mark.parametrize("odd", [{**DONE, "mode": "handover"}, {**DONE, "at": "x"}, {**DONE, "after": 3}, {}, 5, None])
def test_unreadable_entries_of_the_history_are_skipped(odd: object) -> None:
    newer = {**orjson.loads(FULL_STATE.to_json()), "stop": {"request": 1, "cause": "handover"}}
    newer["history"] = [odd, *newer["history"], odd]
    assert StoredState.parse(orjson.dumps(newer).decode()) == replace(FULL_STATE, stop=Stop(1, "", cause="preempt"))


def test_the_last_sizes_are_kept_of_a_past_that_cannot_be_read_in_part() -> None:
    newer = {"phase": "Stable", "history": [DONE, *[{**DONE, "mode": "handover"}] * 50]}
    found = StoredState.parse(orjson.dumps(newer).decode())
    assert found is not None
    assert len(found.history) == 1


@pytest.mark.parametrize(
    "change", [{"phase": "Handing-over"}, {"phase": "Switching", "next": {**NEXT, "mode": "handover"}}]
)
def test_a_job_with_a_word_of_a_newer_operator_is_left_as_it_is(change: dict[str, Any]) -> None:
    """Whoever wrote the word: only this job stands still, and goes on where the word is known."""
    cluster = started()
    known = cluster.annotations[f"{PREFIX}state"]
    cluster.annotations[f"{PREFIX}state"] = orjson.dumps({**orjson.loads(known), **change}).decode()
    cluster.target(1, Worker=3)
    annotations, pods, status = dict(cluster.annotations), dict(cluster.pods), dict(cluster.status)
    cluster.events.clear()
    cluster.run(10)
    assert (cluster.annotations, cluster.pods, cluster.status) == (annotations, pods, status)
    assert {reason for reason, _ in cluster.events} == {"UnknownState"}
    assert len(set(cluster.events)) == 1
    cluster.annotations[f"{PREFIX}state"] = known
    cluster.run(30)
    assert (cluster.state.generation, cluster.state.replicas["Worker"]) == (1, 3)
    assert cluster.pods.keys() > pods.keys()


def test_a_job_that_is_left_as_it_is_can_be_suspended() -> None:
    """What a person orders needs no state, and leaves it to the operator that knows it."""
    cluster = started()
    state = cluster.annotations[f"{PREFIX}state"].replace("Stable", "Handing-over")
    cluster.annotations[f"{PREFIX}state"] = state
    cluster.spec = {"runPolicy": {"suspend": True}}
    cluster.run(5)
    assert not cluster.pods
    assert cluster.annotations[f"{PREFIX}state"] == state


def test_scheduling_leaves_a_job_with_a_word_of_a_newer_operator_to_itself() -> None:
    """Its pods take what they take; nothing is decided for it under any profile."""
    annotations = {f"{PREFIX}max-workers": "4", f"{PREFIX}target": Target(0, SIZE).to_json()}
    annotations[f"{PREFIX}state"] = FULL_STATE.to_json().replace("Preparing", "Handing-over")
    found = view_of(job(annotations=annotations), (), nodes={}, now=NOW, all_jobs=True)
    assert found.job is None
    assert not found.followed
    assert decide_fixed(found) is released(found, "las") is suspended(found) is None
    again = view_of(found.source, (), nodes={}, now=NOW, all_jobs=True, before=found)
    assert again.job is None


def test_figures_beyond_their_bounds_are_not_known() -> None:
    """What was only measured is not worth forgetting where the job is."""
    text = b'{"phase":"Stable","step":1e300,"total_steps":9007199254740993,"steps_per_s":1e300,"last_downtime_s":1e99}'
    found = StoredState.parse(text.decode())
    assert found is not None
    assert (found.step, found.total_steps, found.steps_per_s, found.last_downtime_s) == (None,) * 4


def test_texts_and_lists_are_bounded() -> None:
    """Also where the operator itself made them longer, of what a kubelet said."""
    assert Target(0, {}, reason="x" * 10**6).reason == "x" * MAX_TEXT
    found = Target.parse(orjson.dumps({"generation": 0, "replicas": {}, "reason": "é" * 5000}).decode())
    assert found is not None
    assert found.reason == "é" * MAX_TEXT
    many = StoredState("Stable", history=(FULL_STATE.history[0],) * 50, speeds={f"1/{i}": 1.0 for i in range(1000)})
    kept = StoredState.parse(many.to_json())
    assert kept is not None
    assert len(kept.history) == 10
    assert list(kept.speeds)[-1] == "1/999"
    assert len(kept.speeds) == MAX_ENTRIES
    with pytest.raises(ValueError, match=f"at most {MAX_ANNOTATION_BYTES}"):
        StoredState.parse('{"phase":"Stable"}' + " " * MAX_ANNOTATION_BYTES)


@pytest.mark.parametrize("uid", ["", UID])
def test_annotations_without_a_uid_or_with_the_jobs_own_count(uid: str) -> None:
    """Who repairs something by hand need not write the uid."""
    annotations = {f"{PREFIX}target": FULL_TARGET.to_json(uid), f"{PREFIX}state": FULL_STATE.to_json(uid)}
    annotations[RECORD_ANNOTATION] = RECORD.to_json(uid)
    assert Target.of(annotations, UID, TYPES) == FULL_TARGET
    assert StoredState.of(annotations, UID, TYPES) == FULL_STATE
    assert UsageRecord.of(annotations, UID) == RECORD


def test_a_copy_of_another_jobs_annotations_counts_as_none() -> None:
    """`kubectl get -o yaml`, another name, `kubectl apply`. Each of them by itself."""
    annotations = {f"{PREFIX}target": FULL_TARGET.to_json(UID), f"{PREFIX}state": FULL_STATE.to_json(UID)}
    annotations[RECORD_ANNOTATION] = RECORD.to_json(UID)
    assert Target.of(annotations, "another", TYPES) is None
    assert StoredState.of(annotations, "another", TYPES) is None
    assert UsageRecord.of(annotations, "another") == UsageRecord()


@pytest.mark.parametrize("uid", [5, {}, [UID], True])
def test_a_uid_that_is_no_string_is_an_error(uid: object) -> None:
    text = orjson.dumps({**orjson.loads(FULL_STATE.to_json()), "uid": uid}).decode()
    with pytest.raises(ValueError, match="uid is not a string"):
        StoredState.of({f"{PREFIX}state": text}, UID, TYPES)
    assert UsageRecord.of({RECORD_ANNOTATION: orjson.dumps({"held": 3, "uid": uid}).decode()}, UID) == UsageRecord()


def test_a_copy_begins_for_itself_and_what_is_written_is_its_own() -> None:
    """Nothing of the other job's is left in what the reconcile loop writes; a target that was copied stays nobody's."""
    cluster = started()
    copied = replace(FULL_STATE, phase="Stable", next=None, step=8)
    cluster.annotations |= {f"{PREFIX}state": copied.to_json("another"), f"{PREFIX}step": "8", f"{PREFIX}eta": "soon"}
    cluster.annotations[f"{PREFIX}target"] = Target(9, {**SIZE, "Worker": 4}).to_json("another")
    cluster.annotations[RECORD_ANNOTATION] = replace(RECORD, stops=7).to_json("another")
    cluster.run(10)
    for name in ("state", "record"):
        assert orjson.loads(cluster.annotations[PREFIX + name])["uid"] == UID
    assert (cluster.state.generation, cluster.state.replicas) == (0, SIZE)
    assert cluster.annotations[f"{PREFIX}step"] == "100"
    assert UsageRecord.of(cluster.annotations, UID).stops == 0
    assert f"{PREFIX}eta" not in cluster.annotations


def test_types_that_the_spec_does_not_have() -> None:
    """A target for them is nonsense; a state remembers one that an edit has removed, but not only such."""
    with pytest.raises(ValueError, match=r"replicas of 'Boss', which the spec does not have; it has Chief, PS, Worker"):
        Target.of({f"{PREFIX}target": Target(0, {**SIZE, "Boss": 1}).to_json()}, UID, TYPES)
    kept = StoredState("Stable", replicas={**SIZE, "Evaluator": 1})
    assert StoredState.of({f"{PREFIX}state": kept.to_json()}, UID, TYPES) == kept
    with pytest.raises(ValueError, match="replicas of 'Boss'"):
        StoredState.of({f"{PREFIX}state": StoredState("Stable", replicas={"Boss": 1}).to_json()}, UID, TYPES)


@pytest.mark.parametrize("name", ["state", "target"])
@pytest.mark.parametrize(
    "text",
    [
        *NO_JSON_OBJECT,
        '{"generation":0,"replicas":{},"reason":5}',
        '{"generation":1e308,"replicas":{"Worker":1}}',
        '{"generation":7,"replicas":{"Boss":1}}',
        '{"phase":"Stable","replicas":{"Boss":1}}',
        '{"phase":"Dancing","replicas":{"Chief":1,"PS":1,"Worker":2}}',
        '{"phase":"Dancing","generation":5}',
        '{"phase":"Stable","replicas":{"Worker":10000000000}}',
        '{"phase":"Stable","slot":"1","replicas":{"Chief":1,"PS":1,"Worker":2}}',
        '{"phase":"Stable","since":"x","replicas":{"Chief":1,"PS":1,"Worker":2}}',
        '{"phase":"Dancing"}',
        '{"phase":"Switching"}',
    ],
    ids=named,
)
def test_a_job_with_an_invalid_state_or_target_continues_and_gets_an_event(name: str, text: str) -> None:
    cluster = started()
    cluster.annotations[f"{PREFIX}{name}"] = text
    cluster.run(10)
    assert cluster.state.phase == "Stable"
    assert len(cluster.pods) == 4
    assert [message for reason, message in cluster.events if reason == "InvalidAnnotation" and name in message]


@pytest.mark.parametrize(
    "state",
    [
        '{"phase":"Stable","slot":"1","replicas":{"PS":1,"Worker":2}}',
        '{"phase":"Waiting","generation":"x"}',
        '{"phase":"Stable","replicas":{"Worker":10000000000}}',
    ],
)
def test_scheduling_ignores_an_invalid_state(state: str) -> None:
    found = view_of(
        job(annotations={f"{PREFIX}max-workers": "4", f"{PREFIX}state": state}), (), nodes={}, now=NOW, all_jobs=True
    )
    assert found.job is not None
    assert found.state is None

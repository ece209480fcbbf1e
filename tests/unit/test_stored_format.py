"""The stored format of 0.1.0, which every later version reads, and what may be added to it."""

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.annotations import RECORD_ANNOTATION, STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import UsageRecord
from elastic_tfjob.runtime.protocol import LauncherCommand

from .build import UID
from .pretend import Cluster
from .stored_format import SITUATIONS, SIZE, stored

Json = dict[str, Any]

RECORDED: dict[str, Json] = json.loads((Path(__file__).parent / "data" / "stored-0.1.0.json").read_text())

PHASES = {
    "stable": "Stable",
    "waiting": "Waiting",
    "preparing": "Preparing",
    "preparing, told": "Preparing",
    "checkpointing": "Checkpointing",
    "switching": "Switching",
    "rolling back": "RollingBack",
    "refused": "Stable",
    "recreating": "Recreating",
    "generation 2": "Stable",
    "moving": "Preparing",
    "moved": "Stable",
    "saving": "Recreating",
    "ending": "Recreating",
    "stopped": "Waiting",
}


def test_each_phase_is_recorded() -> None:
    assert {name: json.loads(known["state"])["phase"] for name, known in RECORDED.items()} == PHASES
    states = [json.loads(known["state"]) for known in RECORDED.values()]
    parts = ("next", "refused", "history", "stop", "indexes", "causes", "outcomes", "trained", "eta_source", "speeds")
    assert [part for part in parts if not any(state.get(part) for state in states)] == []
    targets = [json.loads(known["target"]) for known in RECORDED.values()]
    asked = ("nodes", "cpu", "cause", "memory", "expects", "uid")
    assert [part for part in asked if not any(target.get(part) for target in targets)] == []


@pytest.mark.parametrize("name", PHASES)
def test_recorded_annotations_are_read_and_written_unchanged(name: str) -> None:
    known = RECORDED[name]
    annotations = {PREFIX + key: text for key, text in known.items() if key != "commands"}
    state, target = StoredState.of(annotations, UID, SIZE), Target.of(annotations, UID, SIZE)
    assert state is not None
    assert target is not None
    again = {"state": state.to_json(UID), "target": target.to_json(UID)}
    again["record"] = UsageRecord.of(annotations, UID).to_json(UID)
    assert {key: json.loads(text) for key, text in again.items()} == {key: json.loads(known[key]) for key in again}
    assert state.problems == ()
    assert [LauncherCommand.parse(text).generation >= 0 for text in known["commands"].values()].count(False) == 0


@pytest.mark.parametrize("name", PHASES)
def test_this_version_writes_all_that_it_wrote(name: str) -> None:
    """A later one may add keys, which readers pass over; one that goes, or has another kind, needs a reader here."""
    now, known = stored(_situation(name)), RECORDED[name]
    assert known["commands"].keys() == now["commands"].keys()
    for key in ("state", "target", "record"):
        _has_all(json.loads(now[key]), json.loads(known[key]), key)


def _has_all(now: Any, known: Any, where: str) -> None:
    assert type(now) is type(known), where
    if isinstance(known, dict):
        for key, value in known.items():
            assert key in now, f"{where}.{key}"
            _has_all(now[key], value, f"{where}.{key}")
    elif isinstance(known, list) and known:
        _has_all(now[0], known[0], f"{where}[0]")


def _ends(job: Cluster) -> tuple[Any, ...]:
    """What becomes of a job."""
    begun = {name: pod.uid for name, pod in job.pods.items()}
    job.run(20)
    kept = {name for name, pod in job.pods.items() if begun.get(name) == pod.uid}
    record = UsageRecord.of(job.annotations, UID)
    return job.state.phase, job.state.generation, dict(job.state.replicas), job.running, kept, record


@cache
def _made(name: str) -> Cluster:
    return SITUATIONS[name]()


def _situation(name: str) -> Cluster:
    return deepcopy(_made(name))


@cache
def _plain_ends(name: str) -> tuple[Any, ...]:
    return _ends(_situation(name))


def _edit(job: Cluster, annotation: str, **changes: Any) -> None:
    job.annotations[annotation] = json.dumps({**json.loads(job.annotations[annotation]), **changes})


def _with_more(value: Any) -> Any:
    """One more key in each object but those whose keys are data."""
    if isinstance(value, list):
        return [_with_more(each) for each in value]
    if not isinstance(value, dict) or not value or next(iter(value))[0].isupper() or next(iter(value))[0].isdecimal():
        return value
    return {**{key: _with_more(each) for key, each in value.items()}, "of_tomorrow": {"a": [1]}}


@pytest.mark.parametrize("name", PHASES)
class TestNewer:
    """What a version that is newer than this one may have added is passed over: else none could add anything."""

    def test_unknown_keys(self, name: str) -> None:
        job = _situation(name)
        for annotation in (STATE_ANNOTATION, TARGET_ANNOTATION, RECORD_ANNOTATION):
            job.annotations[annotation] = json.dumps(_with_more(json.loads(job.annotations[annotation])))
        assert _ends(job) == _plain_ends(name)

    def test_unknown_words_of_what_is_only_told(self, name: str) -> None:
        job = _situation(name)
        (past,) = (each for each in json.loads(RECORDED["generation 2"]["state"])["history"] if each["generation"] == 1)
        history = json.loads(job.annotations[STATE_ANNOTATION])["history"]
        odd = [{**past, "mode": "of-tomorrow"}, *history, {"of_tomorrow": 1}]
        _edit(job, STATE_ANNOTATION, history=odd, causes={"1": "of-tomorrow"}, eta_source="of-tomorrow")
        _edit(
            job, TARGET_ANNOTATION, cause=json.loads(job.annotations[TARGET_ANNOTATION]).get("cause") or "of-tomorrow"
        )
        assert _ends(job) == _plain_ends(name)
        assert not [event for event in job.events if event[0].startswith("Invalid")]

    def test_figures_of_another_kind(self, name: str) -> None:
        """What was measured is forgotten, each of it with an event; the job goes on with the pods that it has."""
        job = _situation(name)
        other = {"of_tomorrow": 1}
        figures = {"step": other, "steps_per_s": [1.0], "eta": other, "speeds": {"1/2/1": 3.0}, "metrics_at": 0}
        _edit(job, STATE_ANNOTATION, outcomes=5, **figures)
        job.events.clear()
        assert _ends(job) == _plain_ends(name)
        assert len({event for event in job.events if event[0].startswith("Invalid")}) == len(figures) + 1

    @pytest.mark.parametrize("word", ["phase", "mode"])
    def test_unknown_words_that_matter(self, name: str, word: str) -> None:
        """The job is left as it is till an operator that knows the word is back, and goes on there."""
        job = _situation(name)
        before = job.annotations[STATE_ANNOTATION]
        coming = json.loads(before)["next"]
        if word == "mode" and coming is None:
            return  # it is on its way to no other size
        _edit(
            job, STATE_ANNOTATION, **{"phase": "Of-tomorrow"} if word == "phase" else {"next": {**coming, "mode": "x"}}
        )
        annotations, status, pods = dict(job.annotations), dict(job.status), dict(job.pods)
        job.events.clear()
        for _ in range(10):
            job.reconcile()
        assert (job.annotations, job.status, job.pods) == (annotations, status, pods)
        assert {reason for reason, _ in job.events} == {"UnknownState"}
        job.annotations[STATE_ANNOTATION] = before
        assert _ends(job) == _plain_ends(name)

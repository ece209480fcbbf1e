"""A reason in the target and the state: its code and facts, whoever wrote them, and words where people read them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.api.reading import MAX_TEXT
from elastic_tfjob.api.words import REASON_CODES
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.state import Next, Refused, Rescaled, Stop, StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.scheduling.reasons import Code, Reason, Why

from .build import UID
from .pretend import started

SHORT = Reason("short", {"cpu": 2500, "cpu_free": 400.5})
FULL = Reason(
    "lost", {"gone": ("a", "b"), "was": {"Worker": 3}, "now": {"Worker": 1}, "expects": 0.25, "expects_by": "fitted"}
)
SIZE = {"Worker": 2}


def read(reason: object) -> Why:
    found = Target.parse(json.dumps({"generation": 0, "replicas": {}, "reason": reason}))
    assert found is not None
    return found.reason


@pytest.mark.parametrize("reason", [SHORT, FULL, Reason("behind"), "words of a profile's own", ""])
def test_a_stored_reason_is_read_back(reason: Why) -> None:
    target = Target(1, SIZE, reason=reason)
    assert Target.parse(target.to_json()) == target
    at = "2026-01-02T03:04:05Z"
    state = StoredState(
        "Preparing",
        reason=reason,
        replicas=SIZE,
        next=Next(3, 1, "overlap", SIZE, SIZE, reason=reason),
        refused=Refused(2, reason, at),
        history=(Rescaled(1, at, SIZE, SIZE, "overlap", None, None, reason),),
        stop=Stop(1, at, reason=reason),
    )
    assert StoredState.parse(state.to_json(UID), UID) == state


def test_a_code_has_its_facts_beside_it() -> None:
    written = json.loads(Target(1, SIZE, reason=SHORT).to_json())["reason"]
    assert written == {"code": "short", "facts": {"cpu": 2500, "cpu_free": 400.5}}
    assert json.loads(Target(1, SIZE, reason=Reason("own", {"words": "mine"})).to_json())["reason"] == "mine"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"code": "of-tomorrow", "facts": {"x": 1}}, "a reason of a newer version: 'of-tomorrow'"),
        ({"code": "x" * 10**5}, f"a reason of a newer version: {'x' * 60!r}\u2026 (64 characters)"),
        ({}, "a reason of a newer version: ''"),
        ({"code": "behind", "facts": 5}, "earlier jobs leave no room for it"),
        ({"code": "behind", "of_tomorrow": [1]}, "earlier jobs leave no room for it"),
        (
            {"code": "waits-behind", "facts": {"job": ["a"], "of_tomorrow": {"a": []}}},
            "waits behind job , which does not",
        ),
        ({"code": "short", "facts": {"cpu": 10**30}}, "needs "),
    ],
)
def test_a_reason_that_others_wrote_is_read_within_its_bounds(written: object, words: str) -> None:
    assert str(read(written)).startswith(words)


@pytest.mark.parametrize("written", [5, [], True, {"code": 5}])
def test_an_invalid_reason_is_an_error(written: object) -> None:
    with pytest.raises(ValueError, match="reason"):
        read(written)


def test_facts_that_are_too_large_become_words_and_the_code_stays() -> None:
    found = Target(1, SIZE, reason=Reason("lost", {"gone": tuple(f"node-{k}" for k in range(500))})).reason
    assert isinstance(found, Reason)
    assert found.code == "lost"
    assert str(found).startswith("node-0 and node-1")
    assert len(json.dumps(found.facts)) <= MAX_TEXT
    assert Target.parse(Target(1, SIZE, reason=found).to_json()) == Target(1, SIZE, reason=found)


NUMBERS = st.integers() | st.floats()
FACTS = st.dictionaries(
    st.sampled_from(["was", "now", "words", "cpu", "cpu_free", "use", "had", "has", "job", "by", "gone", "largest"])
    | st.text(max_size=70),
    NUMBERS
    | st.text(max_size=2000)
    | st.booleans()
    | st.none()
    | st.lists(st.text(max_size=300) | NUMBERS, max_size=20)
    | st.dictionaries(st.sampled_from(["PS", "Worker", "x"]), NUMBERS | st.text(max_size=3), max_size=4),
    max_size=20,
)


@given(code=st.sampled_from(REASON_CODES), facts=FACTS)
def test_any_facts_have_words(code: Code, facts: dict[str, Any]) -> None:
    """A tenant may have written them: no pass fails at them, and nothing grows."""
    reason = Target(1, SIZE, reason=Reason(code, facts)).reason
    assert len(str(reason)) <= MAX_TEXT
    assert len(json.dumps(getattr(reason, "facts", {}))) <= 4 * MAX_TEXT
    assert Target(1, SIZE, reason=reason).reason == reason
    text = Target(1, SIZE, reason=reason).to_json()
    assert Target.parse(text) == Target(1, SIZE, reason=reason)


def test_a_job_tells_words_and_keeps_the_code() -> None:
    job = started()
    job.annotations[TARGET_ANNOTATION] = Target(1, {**job.types, "Worker": 3}, reason=SHORT).to_json(UID)
    job.run(30)
    assert (
        "Rescaling",
        f"From 1 chief + 1 PS + 2 workers to 1 chief + 1 PS + 3 workers (overlap): {SHORT}",
    ) in job.events
    assert job.state.reason == job.state.history[0].reason == SHORT
    assert json.loads(job.annotations[STATE_ANNOTATION])["reason"]["code"] == "short"


def test_a_job_that_waits_is_told_anew_only_where_the_words_are_others() -> None:
    job = started()
    job.annotations[TARGET_ANNOTATION] = Target(1, {}, reason=SHORT).to_json(UID)
    job.run(30)
    assert job.state.phase == "Waiting"
    job.events.clear()
    for facts, told in (({"cpu": 2500, "cpu_free": 400.5001}, 0), ({"cpu": 2500, "cpu_free": 900}, 1)):
        job.annotations[TARGET_ANNOTATION] = replace(
            Target(1, {}, reason=SHORT), reason=Reason("short", facts)
        ).to_json(UID)
        job.run(2)
        assert [reason for reason, _ in job.events].count("Waiting") == told

"""What finished jobs teach: by whom, about whom, and how much of it is kept."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.controller.model.lessons import MAX_HISTORY_BYTES, read_history, write_history
from elastic_tfjob.speed.history import (
    LESSONS,
    NAMES,
    ONE_SEEN,
    SCOPES_NAMES,
    SIZES,
    SPREAD,
    Conditions,
    History,
    Lesson,
    Past,
    sighted,
    stem,
)
from harness.hostile_text import NO_JSON_OBJECT, named


def lesson(id_: str, steps: float | None = 100.0, **more: object) -> Lesson:
    return Lesson(id_, steps, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits-7", "digits"),
        ("digits-2026-11-23", "digits"),
        ("digits-x4f2k", "digits"),
        ("digits-a1b2c3d-3", "digits"),
        ("resnet-50", "resnet"),
        ("resnet_v2", "resnet_v"),
        ("train-large", "train-large"),
        ("job", "job"),
        ("7", "7"),
        ("", ""),
    ],
)
def test_a_stem_is_without_numbers_and_hashes(name: str, expected: str) -> None:
    assert stem(name) == expected


def test_a_scope_learns_nothing_from_another() -> None:
    known = History().learned("mine", "digits", lesson("a"))
    assert known.past("mine", "digits") is not None
    assert known.past("yours", "digits") is None
    assert known.past("", "digits") is None


def test_a_lesson_is_learned_once() -> None:
    known = History().learned("ns", "digits", lesson("a"))
    assert known.learned("ns", "digits", lesson("a", 900.0)) is known
    assert known.knows("ns", "digits", "a")
    assert not known.knows("ns", "digits", "b")


def test_a_lesson_without_content_is_not_kept() -> None:
    assert len(History().learned("ns", "digits", Lesson("a"))) == 0
    assert len(History().learned("ns", "", lesson("a"))) == 0


def test_the_history_is_bounded_and_the_oldest_lessons_go_first() -> None:
    known = History()
    for k in range(LESSONS + 3):
        known = known.learned("ns", "digits", lesson(str(k)))
    past = known.past("ns", "digits")
    assert past is not None
    assert [each.id for each in past.lessons] == [str(k) for k in range(3, LESSONS + 3)]
    for k in range(NAMES):
        known = known.learned("ns", f"name{k}x", lesson(str(k)))
    assert known.past("ns", "digits") is None
    assert len(known) == NAMES


def test_a_tenant_with_many_names_pushes_out_its_own() -> None:
    known = History()
    scopes = SCOPES_NAMES - NAMES
    for k in range(scopes):
        known = known.learned(f"small{k}", "only", lesson("a"))
    for k in range(2 * NAMES):
        known = known.learned("greedy", f"n{k}x", lesson("a"))
    for k in range(NAMES // 2):
        known = known.learned(f"late{k}", "only", lesson("a"))
    assert len(known) <= SCOPES_NAMES
    assert all(known.past(f"small{k}", "only") is not None for k in range(scopes))


def test_a_lesson_has_a_bounded_number_of_possible_sizes() -> None:
    rates = {(1, w): float(w) for w in range(1, SIZES + 5)}
    bounded = Lesson("a", float("nan"), -1.0, {**rates, (1, 0): 3.0, (2, 1): float("inf")}).bounded()
    assert len(bounded.rates) == SIZES
    assert (bounded.steps, bounded.duration_s) == (None, None)
    assert (1, SIZES + 4) in bounded.rates
    assert (2, 1) not in bounded.rates


def test_the_median_and_how_far_they_lie_apart() -> None:
    past = Past(tuple(lesson(str(k), steps) for k, steps in enumerate((90.0, 100.0, 400.0))))
    assert past.steps is not None
    assert past.steps.value == 100.0
    assert past.steps.relative_error > 0.5
    alike = Past((lesson("a"), lesson("b")))
    assert alike.steps is not None
    assert alike.steps.relative_error == SPREAD
    once = Past((lesson("a"),))
    assert once.steps is not None
    assert once.steps.relative_error == ONE_SEEN


def test_the_spread_of_a_speed_follows_its_changes_with_the_same_cpu() -> None:
    under = Conditions(1000.0, 500.0)
    assert sighted(None, 4.0, under) == under
    calm = sighted((4.0, under), 4.0, under)
    restless = sighted((4.0, under), 2.0, under)
    assert calm.spread == 0.0
    assert 0.2 < restless.spread < 0.4
    for _ in range(20):
        restless = sighted((4.0, restless), 4.0, under)
    assert restless.spread < 0.02
    assert sighted((4.0, under), 8.0, Conditions(2000.0, 500.0)).spread == 0.0


SIZES_OF = st.tuples(st.integers(0, 9), st.integers(1, 9))
COUNTS = st.integers(0, 10**6).map(float)
LESSON = st.builds(
    Lesson,
    st.text("abc123", min_size=1, max_size=8),
    st.none() | st.floats(1, 1e9),
    st.none() | st.floats(1, 1e6),
    st.dictionaries(SIZES_OF, st.sampled_from([0.5, 2.25, 1234.0]), max_size=5),
    st.dictionaries(SIZES_OF, st.builds(Conditions, COUNTS, COUNTS, st.sampled_from([0.0, 0.12])), max_size=5),
)
LESSONS_OF = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), LESSON), max_size=20)


@given(LESSONS_OF)
def test_a_written_history_is_read_back(taught: list[tuple[str, str, Lesson]]) -> None:
    known = History()
    for scope, name, each in taught:
        known = known.learned(scope, name, each.bounded())
    assert read_history(write_history(known)) == known


@pytest.mark.parametrize(
    "text",
    [
        *NO_JSON_OBJECT,
        '{"ns": 3}',
        '{"ns": {"x": [{"id": 3}]}}',
        '{"ns": {"x": [{"id": "a", "steps": -1}]}}',
        '{"ns": {"x": [{"id": "a", "sizes": {"1/2": "fast"}}]}}',
        '{"ns": {"x": [{"id": "a", "sizes": {"1/2": [3, 1, 2]}}]}}',
        '{"ns": {"x": [{"id": "a", "sizes": {"1/2": [3, 1, 2, -1]}}]}}',
        " " * (MAX_HISTORY_BYTES + 1),
    ],
    ids=named,
)
def test_a_history_that_cannot_be_read_is_empty(text: str) -> None:
    assert len(read_history(text)) == 0


def test_what_stands_before_an_error_in_a_history_is_kept() -> None:
    sizes = '{"1/2": [3, 0, 0, 0], "1/99999": 3, "9999/9999": [1, 0, 0, 0], "a/b": 2}'
    good = '"x": [{"id": "a", "steps": 5, "sizes": ' + sizes + "}]"
    known = read_history('{"ns": {' + good + ', "y": 3}}')
    past = known.past("ns", "x")
    assert past is not None
    assert past.lessons == (Lesson("a", 5.0, None, {(1, 2): 3.0}),)


def test_the_text_fits_a_config_map_however_much_is_known() -> None:
    known = History()
    rates = {(k, k + 1): 1234.5678 for k in range(SIZES)}
    for k in range(SCOPES_NAMES):
        for each in range(LESSONS):
            taught = Lesson(
                f"{k:018}{each:018}", 1e9, 1e6, rates, dict.fromkeys(rates, Conditions(12345.0, 12345.0, 0.12))
            )
            known = known.learned("n" * 55 + str(k), "m" * 60 + str(k), taught)
    text = write_history(known)
    assert len(text) <= MAX_HISTORY_BYTES
    assert len(read_history(text)) == SCOPES_NAMES


def test_the_newest_names_of_each_scope_stay_where_there_is_no_room_for_all() -> None:
    sizes = [(k, 1000 + k) for k in range(1, 17)]
    lesson = Lesson(
        "0" * 36,
        123456.0,
        98765.4,
        dict.fromkeys(sizes, 123.4567),
        dict.fromkeys(sizes, Conditions(16000.0, 16000.0, 0.12)),
    )
    names = [f"{'n' * 235}-{k:02}" for k in range(32)]
    history = History({f"team-{s:02}": dict.fromkeys(names, Past((lesson,))) for s in range(32)})
    text = write_history(history)
    assert MAX_HISTORY_BYTES * 0.9 < len(text) <= MAX_HISTORY_BYTES
    read = json.loads(text)
    kept = {len(found) for found in read.values()}
    assert len(read) == 32
    assert max(kept) - min(kept) <= 1
    for found in read.values():
        assert list(found) == names[-len(found) :]

"""What a profile remembers of a job is small, and says nothing by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.api.reading import MAX_MEMORY_NAME, MAX_MEMORY_NUMBERS
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Snapshot, readable, with_number

from .build import job, node

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=40), inner, max_size=40),
    max_leaves=60,
)


@given(JSON)
def test_any_value_is_read_as_a_bounded_memory(raw: object) -> None:
    found = readable(raw)
    assert len(found) <= MAX_MEMORY_NUMBERS
    assert all(
        type(value) is float and abs(value) <= 1.8e308 and len(name) <= MAX_MEMORY_NAME for name, value in found.items()
    )
    assert readable(found) == found


@pytest.mark.parametrize("name", ["", "A", "a b", "1", "n" * (MAX_MEMORY_NAME + 1)])
def test_a_name_that_is_none_is_a_bug_of_the_profile(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        with_number({}, name, 1.0)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_is_not_finite_is_a_bug_of_the_profile(value: float) -> None:
    with pytest.raises(ValueError, match=r"x: .* is not finite"):
        with_number({}, "x", value)


def test_numbers_of_others_make_room_for_one_of_the_profiles_own() -> None:
    full = {f"z{k:02}": 1.0 for k in range(MAX_MEMORY_NUMBERS)}
    found = with_number(full, "a", 2.0)
    assert (len(found), found["a"], "z00" in found) == (MAX_MEMORY_NUMBERS, 2.0, False)
    assert with_number(found, "a", 3.0) == {**found, "a": 3.0}


def test_a_round_remembers_what_is_new() -> None:
    known = job("j", memory={"p.late": 1.0})
    round_ = Round(Snapshot(0.0, {"a": node("a")}, {"j": known}), build("fifo", parse_profile("fifo", {})))
    round_.remember(known, "p.late", 1)
    assert round_.plan().memory == {}
    round_.remember(known, "p.late", 2)
    round_.remember(known, "p.at", 7.5)
    assert round_.memory(known) == {"p.late": 2.0, "p.at": 7.5}
    assert round_.plan().memory == {"j": {"p.late": 2.0, "p.at": 7.5}}
    round_.remember(known, "p.late", 1)
    round_.remember(known, "p.at", None)
    assert round_.plan().memory == {}, "as before: nothing to write"
    round_.remember(known, "p.late", None)
    assert round_.plan().memory == {"j": {}}

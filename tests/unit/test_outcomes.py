"""What sizes are expected to bring and what came of them, in the operator's annotations."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from elastic_tfjob.api.reading import MAX_RATE
from elastic_tfjob.controller.job.decision import Count
from elastic_tfjob.controller.job.progress import MOST_RATIO, with_outcome
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.state import Outcome, Rescaled, StoredState
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.speed.model import SETTLED_S

from .build import NOW

SIZE = {"Worker": 2}
SINCE = format_time(NOW)
GROWN = Rescaled(1, SINCE, {"Worker": 1}, SIZE, "overlap", 0.2, 0, "more")
STATE = StoredState("Stable", generation=1, replicas=SIZE, since=SINCE, history=(GROWN,))
TARGET = Target(1, SIZE, expects=10.0)
REPORT = Report(200.0, generation=1, first_step_at=100.0, last_step_at=200.0, steps_per_s=9.0, received_at_s=200.0)
LATER = NOW + timedelta(seconds=SETTLED_S)


def told(
    state: StoredState = STATE, target: Target | None = TARGET, report: Report = REPORT, late_s: float = 0.0
) -> StoredState:
    return with_outcome(state, target, report, LATER + timedelta(seconds=late_s))[0]


def test_the_speed_check_of_a_size_is_stored_and_counted_by_cause() -> None:
    state, counts = with_outcome(STATE, TARGET, REPORT, LATER)
    assert state.outcomes == {1: Outcome(10.0, 9.0)}
    assert counts == (Count("speed_ratio", 0.9, "grow"),)


def test_an_odd_expectation_is_not_the_whole_sum_of_the_metric() -> None:
    state, counts = with_outcome(STATE, replace(TARGET, expects=1e-9), REPORT, LATER)
    assert state.outcomes[1].measured == 9.0
    assert counts == (Count("speed_ratio", MOST_RATIO, "grow"),)


def test_a_speed_check_is_made_once() -> None:
    assert with_outcome(told(), TARGET, replace(REPORT, steps_per_s=1.0), LATER) == (told(), ())


@pytest.mark.parametrize(("generation", "cause"), [(0, "start"), (3, "resume")])
def test_a_size_that_no_rescale_led_to_is_of_a_start(generation: int, cause: str) -> None:
    state = replace(STATE, generation=generation)
    target, report = replace(TARGET, generation=generation), replace(REPORT, generation=generation)
    assert [each.label for each in with_outcome(state, target, report, LATER)[1]] == [cause]


@pytest.mark.parametrize(
    ("state", "target", "report", "late_s"),
    [
        (STATE, TARGET, REPORT, -1.0),
        (STATE, None, REPORT, 0.0),
        (STATE, replace(TARGET, expects=None), REPORT, 0.0),
        (STATE, replace(TARGET, generation=2), REPORT, 0.0),
        (STATE, TARGET, replace(REPORT, generation=0), 0.0),
        (STATE, TARGET, replace(REPORT, steps_per_s=0.0), 0.0),
        (replace(STATE, phase="Waiting", replicas={}), TARGET, REPORT, 0.0),
        (replace(STATE, since=""), TARGET, REPORT, 0.0),
    ],
    ids=[
        "early",
        "no target",
        "nothing expected",
        "of another size",
        "not there yet",
        "stands still",
        "waits",
        "when?",
    ],
)
def test_nothing_is_told_of(state: StoredState, target: Target | None, report: Report, late_s: float) -> None:
    assert told(state, target, report, late_s) == state


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"1": {"expected": 2.0, "measured": 1.5}}, {1: Outcome(2.0, 1.5)}),
        ({"1": {"expected": 2, "measured": 1, "of_tomorrow": []}, "x": 5, "2": 7, "3": {}}, {1: Outcome(2.0, 1.0)}),
        ({"1": {"expected": 0, "measured": 1.5}}, {}),
        ({"1": {"expected": -1, "measured": 1.5}}, {}),
        ({"1": {"expected": "fast", "measured": 1.5}, "2": {"expected": 2.0, "measured": 1.5}}, {2: Outcome(2.0, 1.5)}),
        ({"1": {"expected": 2 * MAX_RATE, "measured": 1.0}}, {}),
        ({str(k): {"expected": 1.0, "measured": 1.0} for k in range(33)}, {}),
        ([1], {}),
        (None, {}),
    ],
)
def test_outcomes_are_read_with_their_bounds(written: object, read: dict[int, Outcome]) -> None:
    found = StoredState.parse(json.dumps({**json.loads(STATE.to_json()), "outcomes": written}))
    assert found == replace(STATE, outcomes=read)


def test_outcomes_are_written_for_the_sizes_that_the_state_remembers() -> None:
    assert "outcomes" not in json.loads(STATE.to_json())
    state = replace(STATE, outcomes={0: Outcome(1.0, 1.0), 1: Outcome(10.00004, 9.0)})
    assert StoredState.parse(state.to_json()) == replace(state, outcomes={1: Outcome(10.0, 9.0)})
    later = replace(STATE, generation=2, history=(replace(GROWN, generation=0),))
    text = replace(later, outcomes=state.outcomes).to_json()
    assert StoredState.parse(text) == replace(later, outcomes={0: Outcome(1.0, 1.0)})


@pytest.mark.parametrize(
    ("written", "read"),
    [(10, 10.0), (9.5, 9.5), (0, None), (-1, None), (2 * MAX_RATE, None), ("fast", None), ([], None), (None, None)],
)
def test_the_expected_speed_of_a_target_is_read_within_its_bounds(written: object, read: float | None) -> None:
    """Nonsense costs nothing else of the target."""
    found = Target.parse(json.dumps({**json.loads(TARGET.to_json()), "expects": written}))
    assert found == TARGET
    assert found.expects == read


@pytest.mark.parametrize(
    ("expects", "written"), [(10.00004, 10.0), (None, None), (0.0, None), (2 * MAX_RATE, None), (float("nan"), None)]
)
def test_the_expected_speed_of_a_target_is_written_where_it_is_valid(
    expects: float | None, written: float | None
) -> None:
    target = replace(TARGET, expects=expects)
    assert json.loads(target.to_json()).get("expects") == written


def test_a_reason_says_what_is_expected() -> None:
    reason = Reason("marginal-gain", {"expects": 41.234, "expects_by": "fitted"})
    assert str(reason) == "this job gains most speed (marginal gain) (expects 41.2 steps/s, fitted)"

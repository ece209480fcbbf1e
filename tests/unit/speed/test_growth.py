"""How the loss falls: per step, told apart from a loss that is none."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.speed.growth import NOT_REPORTED, READING_S, RECENT, Growth


def follow(*readings: tuple[float, float | None]) -> Growth:
    """Readings of step and loss, each late enough."""
    growth = NOT_REPORTED
    for k, (step, loss) in enumerate(readings):
        growth = growth.read(step, loss, k * READING_S)
    return growth


def test_growth_is_per_step_and_its_peak_stays() -> None:
    """From 4 to 2 in 10 steps 0.2 a step; then to 1.9 in 20: the mean of 0.2 and 0.005."""
    first = follow((0, 4.0), (10, 2.0))
    assert (first.per_step, first.peak, first.of_peak, first.readings) == (0.2, 0.2, 1.0, 1)
    then = follow((0, 4.0), (10, 2.0), (30, 1.9))
    assert then.per_step == pytest.approx((0.2 + 0.005) / 2)
    assert then.of_peak == pytest.approx(0.5125)
    assert then.loss == 1.9


def test_a_job_that_is_slowed_down_does_not_converge() -> None:
    """The same losses at the same steps, in twice the time."""
    growth = NOT_REPORTED
    for k, (step, loss) in enumerate(((0, 4.0), (10, 2.0), (20, 1.0))):
        growth = growth.read(step, loss, 2 * k * READING_S)
    assert growth.of_peak == follow((0, 4.0), (10, 2.0), (20, 1.0)).of_peak


def test_a_loss_that_is_no_number_is_told_apart_and_changes_nothing_else() -> None:
    good = follow((0, 4.0), (10, 2.0))
    for loss, state in ((None, "absent"), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "inf")):
        after = good.read(20, loss, 100.0)
        assert after.state == state
        assert (after.recent, after.per_step, after.peak) == (good.recent, good.per_step, good.peak)
    assert NOT_REPORTED.state == "absent"
    assert NOT_REPORTED.of_peak is None
    again = good.read(20, math.nan, 100.0).read(30, 1.0, 200.0)
    assert (again.state, again.loss) == ("finite", 1.0)


def test_a_rising_loss_is_no_growth() -> None:
    growth = follow((0, 4.0), (10, 2.0), (20, 9.0))
    assert growth.per_step < 0
    assert growth.of_peak == 0.0


def test_readings_too_early_or_of_no_new_step_say_nothing() -> None:
    good = follow((0, 4.0), (10, 2.0))
    assert good.read(11, 0.0, READING_S + 1) == good
    assert good.read(10, 0.0, 1e6) == good


def test_after_a_checkpoint_the_next_growth_is_counted_from_there() -> None:
    good = follow((0, 4.0), (10, 2.0))
    back = good.read(5, 3.0, 1e3)
    assert (back.per_step, back.peak, back.readings) == (good.per_step, good.peak, good.readings)
    assert back.read(10, 2.0, 2e3).per_step == pytest.approx(0.2)


@given(st.lists(st.tuples(st.floats(0, 1e15), st.none() | st.floats(allow_nan=True, allow_infinity=True)), max_size=20))
def test_growth_is_a_number_whatever_is_reported(readings: list[tuple[float, float | None]]) -> None:
    growth = follow(*readings)
    assert math.isfinite(growth.per_step)
    assert math.isfinite(growth.peak)
    assert len(growth.recent) <= RECENT
    assert growth.of_peak is None or 0 <= growth.of_peak <= 1

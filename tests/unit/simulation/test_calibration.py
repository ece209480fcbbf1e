"""What came of changes in the simulation: the speed expected beside the one measured."""

from dataclasses import astuple

import pytest

from elastic_tfjob.simulation.report import errors_cdf
from elastic_tfjob.simulation.result import Compared, RunResult
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.summary import summarise
from elastic_tfjob.simulation.utilisation import by_cause

from .build import simulate, work

TOLD = {"oracle": True}


def causes(outcome: RunResult) -> dict[str, int]:
    return {cause: found.count for cause, found in by_cause(outcome.compared).items()}


def test_an_oracle_expects_what_comes() -> None:
    outcome = simulate("srtf", [work("a", 0, 600)], parameters=TOLD)
    assert [(each.cause, each.source) for each in outcome.compared] == [("start", "oracle")]
    assert summarise(outcome, 1).calibration["start"]["error"] == pytest.approx(0.0)


def test_a_job_that_trains_for_less_than_a_minute_is_not_compared() -> None:
    assert causes(simulate("srtf", [work("a", 0, 59)], parameters=TOLD)) == {}


def test_a_speed_of_which_nothing_is_known_is_not_compared() -> None:
    assert causes(simulate("fifo", [work("a", 0, 600)])) == {}


def test_each_change_is_compared_with_what_the_job_does_until_the_next_one() -> None:
    jobs = [work("long", 0, 2000, gpus=2, low=1, high=2), work("short", 500, 300, gpus=2, low=1, high=2)]
    outcome = simulate("optimus", jobs, gpus=2, speed_model=LINEAR, parameters=TOLD)
    assert causes(outcome)["all"] == sum(n for cause, n in causes(outcome).items() if cause != "all") > 2
    assert all(each.measured_steps_per_s == pytest.approx(each.expected_steps_per_s) for each in outcome.compared)


def test_calibration_is_by_cause_and_of_all() -> None:
    compared = [Compared("grow", "fitted", 10.0, 11.0, 0.1), Compared("grow", "fitted", 10.0, 7.0, 0.1)]
    found = by_cause([*compared, Compared("start", "prior", 1.0, 2.0, 0.6)])
    assert astuple(found["grow"]) == pytest.approx((0.2, 0.9, 2, 0.5))
    assert astuple(found["all"]) == pytest.approx((0.3, 1.1, 3, 2 / 3))


def test_the_plot_rises_to_all_changes_and_ends_at_twice_the_speed() -> None:
    points = errors_cdf([Compared("grow", "fitted", 10.0, 11.0, 0.1), Compared("grow", "prior", 1.0, 9.0, 0.1)])
    assert (points[0][1], points[-1]) == (0.0, (100.0, 1.0))
    assert errors_cdf([]) == []

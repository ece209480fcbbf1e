"""What bench-rescale makes of a program's lines."""

import pytest

from harness.rescale_cost import Rescale, cost_of, step_at, summary
from harness.training import Line


def line(at: float, step: int, resumed_at: int = 0) -> Line:
    return Line(at, "chief", {"step": step, "resumed_at": resumed_at})


STEADY = [line(at / 10, at) for at in range(101)]
"""Ten steps a second until second 10."""


def changed(*after: Line) -> Rescale:
    return cost_of([*STEADY, *after], 10.0, 20.0, before_s=6, change="Worker 1->2", grows=True)


def test_training_lost_is_the_time_without_new_steps() -> None:
    outage = changed(line(19.0, 101, 100), line(21.0, 121, 100))
    assert outage.downtime_s == 9.0
    assert outage.training_lost_s == pytest.approx(8.9), "eleven of a hundred steps were made"
    assert outage.prepare_s == 0
    assert outage.lost_steps == 0


def test_slow_training_while_it_prepares_is_lost_too() -> None:
    slow = [line(10 + at, 100 + 5 * at) for at in range(1, 10)]
    result = changed(*slow, line(19.2, 146, 145), line(20.0, 154, 145))
    assert result.downtime_s == pytest.approx(0.2)
    assert result.worst_gap_s == pytest.approx(1.0), "the pause is none of them"
    assert result.rate_while == pytest.approx(5.0)
    assert result.prepare_s == pytest.approx(9.0)
    assert result.training_lost_s == pytest.approx(10 - 5.4)


def test_steps_that_are_made_twice_are_lost() -> None:
    result = changed(line(11.0, 60, 50), line(20.0, 150, 50))
    assert result.lost_steps == 50
    assert result.training_lost_s == pytest.approx(5.0)


def test_between_two_programs_nothing_is_done() -> None:
    lines = [line(0.0, 0), line(1.0, 10), line(5.0, 11, 10)]
    assert [step_at(lines, at) for at in (0.5, 1.0, 4.9, 5.0, 9.0)] == [5, 10, 10, 11, 11]
    with pytest.raises(ValueError, match="no line"):
        step_at(lines, -1.0)
    with pytest.raises(ValueError, match="no line of the new size"):
        cost_of(STEADY, 5.0, 9.0, before_s=2, change="", grows=False)


def test_each_key_has_its_percentiles() -> None:
    def rescale(grows: bool, lost: float, **cpu: list[float]) -> Rescale:
        return Rescale("", grows, 0.2, 0, 3.0, 100.0, 50.0, 0.3, lost, cpu)

    result = summary([rescale(True, 2.0, kept=[1.0, 3.0], added=[10.0]), rescale(False, 1.0, kept=[2.0])])
    assert result["training_lost_s"] == {"p50": 1.5, "p90": 1.9}
    assert result["prepare_cpu_s"]["p50"] == 2.0
    assert result["prepare_cpu_added_s"] == {"p50": 10.0, "p90": 10.0}
    assert result["grow"]["training_lost_s"]["p50"] == 2.0
    assert (result["n"], result["grow"]["n"], result["shrink"]["n"]) == (2, 1, 1)
    assert "prepare_cpu_added_s" not in result["shrink"]

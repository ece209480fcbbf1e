"""What Pollux and Sia have in common: choices of sizes, and what a change costs."""

from dataclasses import replace

import pytest

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER
from elastic_tfjob.scheduling.steps.goodput import choices_of, most_workers, restart_factor, within_reach
from elastic_tfjob.speed.model import Table
from elastic_tfjob.speed.optimus import OnlineSpeed, believe

from .build import job, rates, servers, workers

TOTAL = Resources(100_000, 0, 100)


def test_sizes_that_are_no_faster_are_no_choices() -> None:
    known = choices_of(job("j", workers(1, 1, 4), speed=rates(1.0, 2.0, 2.0, 3.0)), TOTAL)
    assert known.workers.tolist() == [1, 2, 4]
    assert known.rates.tolist() == [1.0, 2.0, 3.0]
    assert known.demand[:, 2].tolist() == [1, 2, 4]


def test_a_size_is_a_choice_if_none_with_as_few_replicas_is_as_fast() -> None:
    speed = Table({(1, 1): 1.0, (2, 1): 1.5, (1, 2): 2.0, (2, 2): 2.0, (1, 3): 3.0})
    known = choices_of(job("j", servers(1, 1, 2), workers(1, 1, 3), speed=speed), TOTAL)
    assert list(known.sizes) == [{PS: 1, WORKER: 1}, {PS: 1, WORKER: 2}, {PS: 1, WORKER: 3}]


def test_a_job_of_unknown_speed_has_its_minimum() -> None:
    known = choices_of(job("j", servers(1, 1, 2), workers(2, 2, 4)), TOTAL)
    assert list(known.sizes) == [{PS: 1, WORKER: 2}]


def test_sizes_above_the_measured_ones_are_believed_to_scale_up_to_twice_as_many() -> None:
    """The prior of both papers; the ratio of workers to parameter servers stays."""
    speed = believe({(1, 2): 2.0})
    assert isinstance(speed, OnlineSpeed)
    known = choices_of(job("j", servers(1, 1, 9), workers(2, 2, 9), speed=speed), TOTAL)
    assert list(known.sizes) == [{PS: 1, WORKER: 2}, {PS: 2, WORKER: 3}, {PS: 2, WORKER: 4}]
    assert known.rates.tolist() == [2.0, 3.0, 4.0]


def test_a_present_size_that_is_no_choice_is_believed_as_fast_as_the_next_smaller_one() -> None:
    running = job("j", workers(1, 1, 4), speed=rates(1.0, 2.0, 2.0, 3.0), on={WORKER: ("n",) * 3})
    known = within_reach(choices_of(running, TOTAL), running, 9)
    assert known.workers.tolist() == [1, 2, 3, 4]
    assert known.rates.tolist() == [1.0, 2.0, 2.0, 3.0]
    assert within_reach(known, running, 2).workers.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("changes", "part"), [(0, 270 / 300), (3, 180 / 300), (100, 0.0)])
def test_a_change_costs_more_the_more_there_were(changes: int, part: float) -> None:
    """(T - n R) / (T + R) with T = 270 s and R = 30 s."""
    running = job("j", at=0.0, on={WORKER: ("n",)}, memory={"pollux.changes": float(changes)})
    assert restart_factor(running, 30.0, "pollux", 270.0) == pytest.approx(part)
    assert restart_factor(job("j"), 30.0, "pollux", 270.0) == 1.0


def test_a_job_may_double_the_most_that_it_had() -> None:
    waiting = job("j", workers(2, 1, 64))
    assert most_workers(waiting, 2, "sia") == 1
    assert most_workers(waiting, 0, "sia") == 64
    running = replace(waiting, placement={WORKER: ("n",) * 3}, phase="running")
    assert most_workers(running, 2, "sia") == 6
    assert most_workers(replace(waiting, memory={"sia.most": 8.0}), 2, "sia") == 16

"""What Pollux and Sia have in common: choices of sizes, what a change costs, and plans."""

from dataclasses import replace

import pytest

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER
from elastic_tfjob.scheduling.steps.goodput import choices_of, most_workers, restart_factor, within_reach
from elastic_tfjob.speed.model import Table
from elastic_tfjob.speed.optimus import OnlineSpeed, believe

from .build import job, node, plan, rates, servers, sizes, workers

TOTAL = Resources(100_000, 0, 100)
LINEAR = rates(*(float(n) for n in range(1, 17)))
SUBLINEAR = rates(*(n**0.7 for n in range(1, 17)))
OLD = 100_000.0


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


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_equal_jobs_share_equally(policy: str) -> None:
    jobs = [job(f"j{k}", workers(1, 1, 8), steps=1e6, speed=SUBLINEAR) for k in range(2)]
    assert sizes(plan(policy, [node("n", gpus=8)], jobs, growth=0)) == {"j0": 4, "j1": 4}


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_a_job_starts_small_and_doubles(policy: str) -> None:
    nodes = [node("n", gpus=8)]
    waiting = job("j", workers(4, 1, 8), steps=1e6, speed=LINEAR)
    assert sizes(plan(policy, nodes, [waiting])) == {"j": 1}
    running = replace(waiting, placement={WORKER: ("n",)}, phase="running")
    found = plan(policy, nodes, [running], now=OLD)
    assert sizes(found) == {"j": 2}
    assert found.memory["j"] == {f"{policy}.most": 2.0, f"{policy}.changes": 1.0}


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_a_young_job_is_not_changed(policy: str) -> None:
    """A change would cost it 30 s, as much as its age: half of its speed, for twice as many workers."""
    young = job("j", workers(1, 1, 2), at=OLD - 29, steps=1e6, speed=LINEAR, on={WORKER: ("n",)})
    assert plan(policy, [node("n", gpus=2)], [young], now=OLD).changes == {}
    assert sizes(plan(policy, [node("n", gpus=2)], [young], now=OLD, restart_s=1.0)) == {"j": 2}

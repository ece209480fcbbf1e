"""The profile `sia`: the best configurations, by an integer program."""

import random
from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp

from elastic_tfjob.scheduling.profiles.sia import STATES, UNITS, Option, best_options, units_of
from elastic_tfjob.scheduling.snapshot import WORKER

from .build import job, node, plan, rates, sizes, workers

LINEAR = rates(*(float(n) for n in range(1, 17)))
SUBLINEAR = rates(*(n**0.7 for n in range(1, 17)))
OLD = 100_000.0
UNSERVED = 1.1

Options = Sequence[Sequence[Option]]


def cost(chosen: Sequence[Option | None]) -> float:
    return sum(UNSERVED if option is None else option.cost for option in chosen)


def taken(chosen: Sequence[Option | None], type_: int) -> int:
    return sum(option.takes for option in chosen if option is not None and option.type_ == type_)


@given(
    costs=st.lists(st.lists(st.tuples(st.integers(0, 7), st.floats(0.01, 2.0)), max_size=4), min_size=1, max_size=4),
    capacity=st.integers(0, 12),
)
def test_on_one_type_the_program_is_solved_exactly(costs: list[list[tuple[int, float]]], capacity: int) -> None:
    options = [[Option(k, 0, takes, c) for k, (takes, c) in enumerate(each)] for each in costs]
    found = best_options(options, [capacity], UNSERVED)
    assert taken(found, 0) <= capacity
    every = (each for each in product(*([*each, None] for each in options)) if taken(each, 0) <= capacity)
    assert cost(found) == pytest.approx(min(cost(each) for each in every))


def integer_program(options: Options, capacity: Sequence[int]) -> float:
    """The least cost, by HiGHS."""
    flat = [(j, option) for j, each in enumerate(options) for option in each]
    one_each = np.array([[float(j == k) for j, _ in flat] for k in range(len(options))])
    use = np.array([[option.takes * float(option.type_ == t) for _, option in flat] for t in range(len(capacity))])
    found = milp(
        [option.cost - UNSERVED for _, option in flat],
        constraints=[LinearConstraint(one_each, ub=1), LinearConstraint(use, ub=capacity)],
        integrality=np.ones(len(flat)),
        bounds=(0, 1),
    )
    return float(found.fun) + UNSERVED * len(options)


def drawn(seed: int) -> tuple[Options, list[int]]:
    """Jobs with configurations on three types of nodes, as Sia has them."""
    draw = random.Random(seed)
    capacity = [16, 16, 32]
    options: list[list[Option]] = []
    for _ in range(draw.randint(5, 30)):
        speed = [1.0, draw.uniform(0.4, 1.0), draw.uniform(0.1, 0.5)]
        scales = draw.uniform(0.5, 1.0)
        rate = {(t, n): speed[t] * n**scales for t in range(3) for n in (1, 2, 4, 8)}
        least = min(rate.values())
        options.append([Option(0, t, n, (each / least) ** -0.5) for (t, n), each in rate.items()])
    return options, capacity


@pytest.mark.parametrize("seed", range(10))
def test_on_several_types_the_program_is_solved_exactly(seed: int) -> None:
    options, capacity = drawn(seed)
    found = best_options(options, capacity, UNSERVED)
    assert all(taken(found, t) <= there for t, there in enumerate(capacity))
    assert cost(found) == pytest.approx(integer_program(options, capacity), rel=1e-6)


def test_many_states_are_counted_in_larger_units() -> None:
    options = [[Option(t, t, n, 1 / (n + t)) for t in range(3) for n in (1, 2, 3, 4)] for _ in range(90)]
    capacity = [101, 103, 107]
    assert prod(there // unit + 1 for there, unit in zip(capacity, units_of(options, capacity), strict=True)) <= STATES
    found = best_options(options, capacity, UNSERVED)
    assert all(0 < taken(found, t) <= there for t, there in enumerate(capacity))


def test_capacity_holds_where_amounts_have_no_common_unit() -> None:
    options = [[Option(0, 0, 10_007 + 13 * j, 0.1)] for j in range(9)]
    capacity = 3 * 10_100 + 1
    assert capacity > UNITS
    found = best_options(options, [capacity], UNSERVED)
    assert 0 < taken(found, 0) <= capacity


def test_sizes_are_powers_of_two_or_whole_nodes() -> None:
    j = job("j", workers(1, 1, 16), steps=1e6, speed=LINEAR)
    for gpus, expected in ((3, 2), (7, 4), (8, 8)):
        assert sizes(plan("sia", [node("n", gpus=gpus)], [j], growth=0)) == {"j": expected}
    assert sizes(plan("sia", [node(f"n{k}", gpus=4) for k in range(3)], [j], growth=0)) == {"j": 12}


def test_small_jobs_make_room_on_a_node() -> None:
    """The third job needs a whole node, and one small job is on each."""
    jobs = [
        job("a", workers(1, 1, 1), steps=1e6, speed=LINEAR, on={WORKER: ("n0",)}),
        job("b", workers(1, 1, 1), steps=1e6, speed=LINEAR, on={WORKER: ("n1",)}),
        job("c", workers(4, 4, 4), steps=1e6, speed=LINEAR),
    ]
    found = plan("sia", [node("n0", gpus=4), node("n1", gpus=4)], jobs, now=OLD)
    assert sizes(found) == {"a": 1, "b": 1, "c": 4}
    assert len({name for key in ("a", "b") for name in found.targets[key].nodes[WORKER]}) == 1
    assert len(set(found.targets["c"].nodes[WORKER])) == 1


def test_a_job_without_room_waits() -> None:
    jobs = [job(f"j{k}", workers(1, 1, 4), steps=1e6, speed=SUBLINEAR) for k in range(3)]
    found = plan("sia", [node("n", gpus=2)], jobs)
    assert sorted(sizes(found).values()) == [1, 1]
    assert len(found.waiting) == 1


def test_each_job_is_on_one_type_of_nodes_the_fast_one_first() -> None:
    nodes = [node("slow", gpus=4, accelerator_speed=0.5), node("fast", gpus=4)]
    jobs = [job(f"j{k}", workers(1, 1, 8), steps=1e6, speed=LINEAR) for k in range(2)]
    one = plan("sia", nodes, jobs[:1], growth=0)
    assert one.targets["j0"].nodes[WORKER] == ("fast",) * 4
    two = plan("sia", nodes, jobs, growth=0)
    assert {len(set(target.nodes[WORKER])) for target in two.targets.values()} == {1}
    assert sum(sizes(two).values()) == 8

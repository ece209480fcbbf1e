"""The bound of mean completion time against all schedules of tiny inputs."""

from collections.abc import Sequence
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.effort import effort
from jct_bounds import Kind, Training, least_total_jct

MOST_SLOTS = 12


def best_total(jobs: Sequence[Training], kinds: Sequence[Kind], capacity: Sequence[float]) -> float:
    """The least sum of completion times over all schedules that change sizes at whole seconds."""

    @cache
    def go(now: int, left: tuple[float, ...]) -> float:
        if not any(left):
            return 0.0
        if now >= MOST_SLOTS:
            return float("inf")
        choices = [
            [(None, 0.0)] if not rest or job.at_s > now else [(None, 0.0), *enumerate(kinds[job.kind].rates)]
            for job, rest in zip(jobs, left, strict=True)
        ]
        best = float("inf")
        for chosen in product(*choices):
            held = [kinds[job.kind].demand[s] for job, (s, _) in zip(jobs, chosen, strict=True) if s is not None]
            if any(sum(each) > most for each, most in zip(zip(*held, strict=True), capacity, strict=False)):
                continue
            rests, ended = [], 0.0
            for job, rest, (_, rate) in zip(jobs, left, chosen, strict=True):
                after = max(0.0, rest - rate)
                ended += now + rest / rate - job.at_s if rest and after < 1e-9 else 0.0
                rests.append(after if after >= 1e-9 else 0.0)
            if tuple(rests) != left or any(job.at_s > now for job in jobs):
                best = min(best, ended + go(now + 1, tuple(rests)))
        return best

    return go(0, tuple(job.steps for job in jobs))


def bound(jobs: Sequence[Training], kinds: Sequence[Kind], capacity: Sequence[float], reached_s: float) -> float:
    return least_total_jct(jobs, kinds, capacity, slot_s=1.0, slots=MOST_SLOTS, reached_s=reached_s, attempts=150)


LINEAR = Kind([[1.0], [2.0]], [1.0, 2.0])


@pytest.mark.parametrize(
    ("jobs", "capacity", "expected"),
    [
        ([Training(0.0, 4.0, 0)], [2.0], 2.0),
        ([Training(0.0, 4.0, 0)], [1.0], 4.0),
        ([Training(0.0, 2.0, 0), Training(0.0, 4.0, 0)], [2.0], 1.0 + 3.0),
        ([Training(0.0, 2.0, 0), Training(3.0, 4.0, 0)], [2.0], 1.0 + 2.0),
    ],
)
def test_the_bound_is_reached_where_shortest_first_is_optimal(
    jobs: list[Training], capacity: list[float], expected: float
) -> None:
    assert best_total(jobs, [LINEAR], capacity) == pytest.approx(expected)
    assert expected * 0.97 <= bound(jobs, [LINEAR], capacity, expected) <= expected * (1 + 1e-9)


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    """Up to three sizes of two resources, of which none need help."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=3, unique=True))
    rates = draw(st.lists(st.integers(1, 5), min_size=len(sizes), max_size=len(sizes)))
    return Kind([[1.0, 0.0], *((float(a), float(b)) for a, b in sizes)], [1.0, *map(float, rates)])


@settings(max_examples=effort(8, 25), deadline=None)
@given(
    st.lists(kinds(), min_size=2, max_size=2),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(0, 1)), min_size=1, max_size=2),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
)
def test_no_schedule_is_below_the_bound(
    kinds: list[Kind], drawn: list[tuple[int, int, int]], capacity: tuple[int, int]
) -> None:
    jobs = [Training(float(at), float(steps), kind) for at, steps, kind in drawn]
    best = best_total(jobs, kinds, capacity)
    assert best < float("inf"), "each runs at one unit"
    found = bound(jobs, kinds, capacity, best)
    assert found <= best * (1 + 1e-9)
    assert found >= 0.5 * best, "it says something"


def test_a_job_that_fits_at_no_size_is_told() -> None:
    with pytest.raises(ValueError, match="fits at no size"):
        bound([Training(0.0, 1.0, 0)], [Kind([[2.0]], [1.0])], [1.0], 1.0)

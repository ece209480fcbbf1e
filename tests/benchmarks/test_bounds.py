"""The bound of benchmarks/bounds.py: worked examples, and never below what the best of all schedules meets."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bounds import Work, hull, most_met
from harness.effort import effort

LINEAR = {1: 1.0, 2: 2.0, 3: 3.0}


def best(jobs: list[Work], accelerators: int, horizon: int) -> int:
    """The most jobs that any schedule in whole seconds, with whole accelerators, has done in time: all are tried."""
    choices = list(product(*([0, *job.rates] for job in jobs)))
    choices = [each for each in choices if sum(each) <= accelerators]
    reached = {tuple(0.0 for _ in jobs)}
    for second in range(horizon):
        reached = {
            tuple(
                done + (job.rates.get(n, 0.0) if job.from_s <= second < job.by_s else 0.0)
                for done, job, n in zip(state, jobs, sizes, strict=True)
            )
            for state in reached
            for sizes in choices
        }
    return max(sum(done >= job.steps for done, job in zip(state, jobs, strict=True)) for state in reached)


@pytest.mark.parametrize(
    ("jobs", "accelerators", "met"),
    [
        ([Work(0, 10, 10, LINEAR)], 1, 1),
        ([Work(0, 10, 11, LINEAR)], 1, 0),
        ([Work(0, 10, 10, LINEAR), Work(0, 10, 10, LINEAR)], 1, 1),
        ([Work(0, 10, 10, LINEAR), Work(0, 20, 10, LINEAR)], 1, 2),
        ([Work(0, 10, 10, LINEAR), Work(5, 10, 6, LINEAR)], 1, 1),
        ([Work(0, 10, 20, {1: 1.0, 2: 1.5})], 8, 0),
        ([Work(0, 10, 20, {1: 1.0, 4: 2.0})], 4, 1),
        ([Work(0, 10, 20, {1: 1.0, 4: 2.0})], 3, 0),
        ([Work(0, 10, 0, LINEAR)], 1, 1),
        ([], 1, 0),
    ],
    ids=[
        "fits",
        "too long",
        "one of two",
        "one after the other",
        "comes later",
        "no size",
        "a size",
        "cut off",
        "done",
        "none",
    ],
)
def test_worked_examples(jobs: list[Work], accelerators: int, met: int) -> None:
    assert most_met(jobs, accelerators) == met


def test_jobs_that_count_in_part_loosen_the_bound() -> None:
    """Of two jobs that need six of ten seconds, one fits; in part, 1.67 do, and twice that is 3.33."""
    jobs = [Work(begin, begin + 10, 6, {1: 1.0}) for begin in (0, 0, 10, 10)]
    assert most_met(jobs, 1) == 3
    assert most_met(jobs, 1, whole_s=10) == 2


def test_the_hull_leaves_out_what_another_mix_does_better() -> None:
    assert hull({1: 1.0, 2: 1.1, 4: 4.0, 8: 4.0, 16: 5.0}) == [(4, 4.0), (16, 5.0)]


def best_with_pauses(jobs: list[Work], accelerators: int, horizon: int) -> int:
    """As `best`, where a job stands still for a second at each size that it goes to, and holds that size meanwhile."""
    choices = [sizes for sizes in product(*([0, *job.rates] for job in jobs)) if sum(sizes) <= accelerators]
    nothing = tuple(0 for _ in jobs)
    reached = {(tuple(0.0 for _ in jobs), nothing)}
    for second in range(horizon):
        reached = {
            (
                tuple(
                    done + (job.rates.get(n, 0.0) if n == had and job.from_s <= second < job.by_s else 0.0)
                    for done, job, n, had in zip(state, jobs, sizes, before, strict=True)
                ),
                # Before it comes a job holds nothing, and so cannot have its pause behind it.
                tuple(n if job.from_s <= second else 0 for job, n in zip(jobs, sizes, strict=True)),
            )
            for state, before in reached
            for sizes in choices
        }
    return max(sum(done >= job.steps for done, job in zip(state, jobs, strict=True)) for state, _ in reached)


@pytest.mark.parametrize(("by_s", "met"), [(12, 1), (11, 0), (24, 2), (23, 1)])
def test_each_job_stands_still_once(by_s: float, met: int) -> None:
    """10 s of training and a pause of 2 s, on one accelerator: one after the other, with a pause each."""
    assert most_met([Work(0, by_s, 10, {1: 1.0}, pause_s=2)] * 2, 1) == met


_JOBS = st.lists(
    st.builds(
        lambda begin, lasts, steps, more: Work(begin, begin + lasts, steps, {1: 1.0, 2: 1.0 + more}),
        st.integers(0, 2),
        st.integers(1, 3),
        st.integers(1, 5),
        st.sampled_from([0.0, 0.5, 1.0]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=effort(20, 60), deadline=None)
@given(_JOBS, st.integers(1, 3))
def test_no_schedule_meets_more_deadlines_than_the_bound(jobs: list[Work], accelerators: int) -> None:
    least = best(jobs, accelerators, 5)
    assert least <= most_met(jobs, accelerators) <= len(jobs)
    assert most_met(jobs, accelerators) <= most_met(jobs, accelerators, most_intervals=2)


@settings(max_examples=effort(20, 40), deadline=None)
@given(_JOBS, st.integers(1, 3))
def test_no_schedule_with_pauses_meets_more_deadlines_than_the_bound(jobs: list[Work], accelerators: int) -> None:
    paused = [replace(job, pause_s=1.0) for job in jobs]
    assert best_with_pauses(paused, accelerators, 5) <= most_met(paused, accelerators) <= most_met(jobs, accelerators)


def test_the_bound_is_tight() -> None:
    """Ten jobs of 10 s each on one accelerator, all due after 35 s: three; the bound says no more."""
    assert most_met([Work(0, 35, 10, {1: 1.0})] * 10, 1) == 3

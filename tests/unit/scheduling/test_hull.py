"""The profile `hull`: sizes by the speed that they add per replica, past those that add little."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER
from elastic_tfjob.scheduling.steps.hull import HullRule, corners
from elastic_tfjob.speed.model import Speed, Table, counts_between, known_sizes
from elastic_tfjob.speed.optimus import Mode, OptimusFit, believe

from .build import job, node, plan, rates, servers, sizes, workers

TOTAL = Resources(100_000, 0, 100)


def test_a_size_that_helps_little_does_not_end_the_search() -> None:
    """A second worker makes the job slower, a third makes it three times as fast."""
    j = job("j", workers(1, 1, 4), steps=100, speed=rates(1.0, 0.9, 3.0, 3.0))
    assert sizes(plan("optimus", [node("n", gpus=8)], [j])) == {"j": 1}
    assert sizes(plan("hull", [node("n", gpus=8)], [j])) == {"j": 3}


def test_the_gain_per_replica_decides() -> None:
    """The example of docs/profiles/hull.md: a's two workers more give (sqrt(4) - sqrt(1)) / 2 = 0.5 each, b's first
    sqrt(1.44) - 1 = 0.2, whatever is left to do."""
    jobs = [
        job("b", workers(1, 1, 3), steps=10_000, speed=rates(1.0, 1.44, 1.69)),
        job("a", workers(1, 1, 3), steps=100, speed=rates(1.0, 1.1, 4.0), at=1),
    ]
    for gpus, expected in ((2, {"a": 1, "b": 1}), (4, {"a": 3, "b": 1}), (5, {"a": 3, "b": 2}), (9, {"a": 3, "b": 3})):
        assert sizes(plan("hull", [node("n", gpus=gpus)], jobs)) == expected


def test_speed_counts_relative_to_the_smallest_size() -> None:
    """The same job with other units of work gets no more for it."""
    jobs = [
        job("slow", workers(1, 1, 2), steps=10, speed=rates(0.01, 0.019)),
        job("fast", workers(1, 1, 2), steps=10, speed=rates(100.0, 150.0), at=1),
    ]
    assert sizes(plan("hull", [node("n", gpus=3)], jobs)) == {"slow": 2, "fast": 1}


def test_a_faster_size_before_the_corner_is_given_where_the_corner_does_not_fit() -> None:
    j = job("j", workers(1, 1, 4), steps=10, speed=rates(1.0, 1.1, 1.05, 4.0))
    assert sizes(plan("hull", [node("n", gpus=4)], [j])) == {"j": 4}
    assert sizes(plan("hull", [node("n", gpus=3)], [j])) == {"j": 2}


def test_ps_are_exchanged_for_workers_on_the_way() -> None:
    """The best three replicas are 2 PS and 1 worker, the best four 1 PS and 3 workers."""
    speed = Table({(1, 1): 1.0, (1, 2): 1.1, (2, 1): 2.0, (2, 2): 2.1, (1, 3): 3.0})
    j = job("j", servers(1, 1, 2), workers(1, 1, 3, gpus=0, cpus=1), steps=100, speed=speed)
    for cpus, expected in ((3, {PS: 2, WORKER: 1}), (4, {PS: 1, WORKER: 3}), (9, {PS: 1, WORKER: 3})):
        assert plan("hull", [node("n", cpus=cpus)], [j]).changes["j"].replicas == expected


def test_gain_per_share_where_that_is_asked_for() -> None:
    """A worker makes it twice as fast for 6 CPUs, a PS 1.5 times for one."""
    speed = Table({(1, 1): 1.0, (1, 2): 2.0, (2, 1): 1.5})
    j = job("j", servers(1, 1, 2), workers(1, 1, 2, gpus=0, cpus=6), steps=100, speed=speed)
    other = job("o", workers(1, 1, 2, gpus=0, cpus=5), steps=100, speed=rates(1.0, 1.7), at=1)
    nodes = [node("n", cpus=13 + 5)]
    per_replica = plan("hull", nodes, [j, other])
    assert per_replica.changes["j"].replicas == {PS: 1, WORKER: 2}
    per_share = plan("hull", nodes, [j, other], per_resource=True)
    assert per_share.changes["j"].replicas == {PS: 2, WORKER: 1}
    assert per_share.changes["o"].replicas == {WORKER: 2}


@pytest.mark.parametrize("speed", [None, Table({}), Table({(0, 3): 9.0}), believe({}), believe({(0, 3): 9.0})])
def test_unknown_speed_stays_at_the_minimum(speed: Speed | None) -> None:
    assert sizes(plan("hull", [node("n", gpus=8)], [job("j", workers(1, 1, 4), speed=speed)])) == {"j": 1}


def test_only_measured_sizes_count_where_there_is_no_fit() -> None:
    """The nearest measured size speaks for (0, 2): as fast as three workers, which nobody has seen."""
    speed = believe({(0, 1): 1.0, (0, 3): 3.0})
    assert speed.steps_per_s({WORKER: 2}) == 1.0
    assert speed.steps_per_s({WORKER: 4}) == 3.0
    known = known_sizes(speed, (0, 0), (1, 4))
    assert known.workers.tolist() == [1, 3]


def test_a_fit_speaks_for_sizes_not_measured_and_a_measured_one_for_itself() -> None:
    seen = {(p, w): 1 / (1 / w + 0.1 + 0.2 * w / p) for p in (1, 2, 4) for w in (1, 2, 4)}
    speed = believe(seen | {(2, 2): 0.9 * seen[2, 2]})
    known = known_sizes(speed, (1, 6), (1, 6))
    found = dict(zip(zip(known.ps.tolist(), known.workers.tolist(), strict=True), known.steps_per_s, strict=True))
    assert len(found) == 36
    assert found == pytest.approx({(p, w): speed.steps_per_s({PS: p, WORKER: w}) for p, w in found})


@given(st.sampled_from(["sync", "async"]), st.lists(st.floats(0, 10), min_size=5, max_size=5), st.data())
def test_many_sizes_at_once_are_each_by_itself(mode: Mode, coefficients: list[float], draw: st.DataObject) -> None:
    fit = OptimusFit(mode, tuple(coefficients[: 5 if mode == "sync" else 4]), 9, 0.1)
    some = draw.draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=9))
    found = fit.predict_all(np.array([p for p, _ in some]), np.array([w for _, w in some]))
    assert found.tolist() == pytest.approx([fit.predict(p, w) for p, w in some])


@given(st.integers(0, 50), st.integers(0, 100_000))
def test_few_of_many_counts_are_tried(least: int, more: int) -> None:
    counts = counts_between(least, least + more)
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (least, least + more)
    assert len(counts) <= 80


TABLES = st.dictionaries(
    st.tuples(st.integers(1, 4), st.integers(1, 4)), st.floats(0.01, 100), min_size=1, max_size=16
).map(lambda found: Table({(1, 1): 1.0} | found))


@given(TABLES, st.booleans())
def test_increments_are_the_best_of_their_cost_and_gains_fall(speed: Table, per_resource: bool) -> None:
    j = job("j", servers(1, 1, 4, cpus=3), workers(1, 1, 4, cpus=1), steps=10, speed=speed)
    rule = HullRule(per_resource)
    increments = rule.sizes_of(j, TOTAL)
    assert (np.diff(increments.keys[1:]) >= 0).all()
    assert (increments.keys[1:] < 0).all()
    assert increments.demand.cumsum(axis=0).tolist() == [list(j.spec.demand(size)) for size in increments.sizes]
    points = rule.front(j, TOTAL)
    assert [size for _, _, size in points] == list(increments.sizes)
    edge = [points[k] for k in corners(points)]
    for (p, w), rate in speed.rates.items():
        share, least = (j.spec.demand(size).dominant_share(TOTAL) for size in ({PS: p, WORKER: w}, j.spec.minimum))
        cost = share - least if per_resource else p + w - 2
        assert any(c <= cost + 1e-12 and r >= rate * (1 - 1e-5) for c, r, _ in points), "nothing beats it"
        line = np.interp(cost, [c for c, _, _ in edge], [r for _, r, _ in edge])
        assert rate <= line * (1 + 1e-5), "the hull is above every size"


@given(TABLES, st.floats(1, 1e6), st.floats(1, 1e6))
def test_the_remaining_steps_do_not_change_the_sizes(speed: Table, steps: float, other: float) -> None:
    a = job("a", servers(1, 1, 4), workers(1, 1, 4), steps=steps, speed=speed)
    b = job("b", servers(1, 1, 4), workers(1, 1, 4), steps=99, speed=Table({(1, 1): 1.0, (2, 2): 3.0}), at=1)
    nodes = [node("n", gpus=5, cpus=20)]
    changed = replace(a, spec=replace(a.spec, total_steps=other))
    assert sizes(plan("hull", nodes, [a, b])) == sizes(plan("hull", nodes, [changed, b]))

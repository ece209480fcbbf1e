"""Forecasts of a plan: when jobs end, start, and meet their deadlines; worked examples, and what holds for all."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.forecasts import UNKNOWN, forecast, prediction_of
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Job, Snapshot
from elastic_tfjob.speed.history import History, Lesson
from harness.effort import effort

from .build import job, node, plan, rates, servers, snapshot, workers
from .recorded import built, read


def running(key: str = "a", *, steps: float = 100.0, rate: float = 2.0, **more: Any) -> Job:
    return job(key, workers(1), steps=steps, on={WORKER: ("n0",)}, steps_per_s=rate, **more)


def test_a_job_that_runs_ends_when_its_steps_are_done() -> None:
    """100 steps, 20 done at 10, 2 a second: at 50; a rescale that is under way until 15 moves that by 5 s."""
    made = running(steps=100.0, observed_s=10.0).spec
    there = Job(made, {WORKER: ("n0",)}, "running", 20.0, 10.0, 2.0)
    found = forecast(there, 10.0)
    assert found.finish is not None
    assert found.finish.expected_s == 50.0
    assert found.finish.earliest_s < 50.0 < found.finish.latest_s
    assert (found.start_s, found.slack_s, found.meets) == (None, None, None)
    paused = forecast(replace(there, observed_s=15.0), 10.0)
    assert paused.finish is not None
    assert paused.finish.expected_s == 55.0


@pytest.mark.parametrize(
    ("deadline", "slack", "meets", "at_risk"),
    [(60.0, 10.0, True, False), (50.5, 0.5, True, True), (40.0, -10.0, False, False)],
)
def test_the_deadline_and_the_slack(deadline: float, slack: float, meets: bool, at_risk: bool) -> None:
    found = forecast(running(deadline=deadline), 0.0)
    assert (found.slack_s, found.meets, found.at_risk) == (slack, meets, at_risk)


def test_a_job_that_the_plan_starts_or_resizes_is_forecast_at_that_size() -> None:
    """Two GPUs and speeds of 1 and 3 steps/s: DRF gives both to the one job, so its 90 steps take 30 s."""
    waits = job("a", workers(1, 1, 2), steps=90.0, speed=rates(1.0, 3.0))
    made = plan("drf", [node("n0", gpus=2)], [waits], 7.0)
    found = made.forecasts["a"]
    assert made.changes["a"].replicas == {WORKER: 2}
    assert found.finish is not None
    assert (found.finish.expected_s, found.start_s) == (37.0, 7.0)


def test_jobs_that_wait_start_in_order_when_others_end() -> None:
    """One GPU, held until 50: b from 50 to 60, c from 60 to 80."""
    jobs = [
        running(),
        job("b", workers(1), at=1, steps=10.0, speed=rates(1.0), deadline=55.0),
        job("c", workers(1), at=2, steps=20.0, speed=rates(1.0)),
    ]
    found = plan("fifo", [node("n0", gpus=1)], jobs).forecasts
    assert [found[key].start_s for key in "abc"] == [None, 50.0, 60.0]
    assert [f.expected_s for key in "abc" if (f := found[key].finish) is not None] == [50.0, 60.0, 80.0]
    assert found["b"].meets is False
    assert list(found) == ["a", "b", "c"]


def test_behind_a_job_of_unknown_end_no_start_is_known() -> None:
    unknown = job("a", workers(1), on={WORKER: ("n0",)})
    found = plan("fifo", [node("n0", gpus=1)], [unknown, job("b", workers(1), at=1, duration=5.0)]).forecasts
    assert found["a"] == UNKNOWN
    assert (found["b"].start_s, found["b"].finish) == (None, None)


def test_a_job_that_can_never_run_holds_up_nobody() -> None:
    jobs = [job("wide", workers(4), duration=5.0), running("a"), job("b", workers(1), at=2, duration=5.0)]
    found = plan("fifo-backfill", [node("n0", gpus=1)], jobs).forecasts
    assert found["wide"].start_s is None
    assert found["b"].start_s == 50.0


def test_a_job_without_steps_is_forecast_by_earlier_jobs_of_its_name() -> None:
    spec = replace(job("ns/digits-9", workers(1)).spec, model="digits")
    history = History()
    for k in range(3):
        history = history.learned("ns", "digits", Lesson(str(k), 100.0, 80.0, {(0, 1): 2.0}))
    there = Job(spec, {WORKER: ("n0",)}, "running", since_s=0.0)
    nodes = {"n0": node("n0", gpus=1)}
    of = {spec.key: there}
    fixed = build("fifo", parse_profile("fifo", {}))
    found = schedule(Snapshot(0.0, nodes, of, history=history), fixed).forecasts[spec.key]
    assert found.finish is not None
    assert (found.finish.expected_s, found.source) == (50.0, "history")
    elsewhere = History().learned("other", "digits", Lesson("a", 100.0, 80.0, {(0, 1): 2.0}))
    assert schedule(Snapshot(0.0, nodes, of, history=elsewhere), fixed).forecasts[spec.key] == UNKNOWN
    short = History().learned("ns", "digits", Lesson("a", None, 80.0))
    found = schedule(Snapshot(20.0, nodes, of, history=short), fixed).forecasts[spec.key]
    assert found.finish is not None
    assert found.finish.expected_s == 80.0


def test_prediction_sees_cpu_and_accelerators() -> None:
    nodes = {"n0": node("n0", gpus=1, accelerator_speed=0.5), "n1": node("n1", gpus=1)}
    there = job("a", servers(1), workers(1, cpus=1.0), steps=100.0, on={PS: ("n1",), WORKER: ("n0",)}, steps_per_s=2.0)
    known = prediction_of(replace(there, cpu={WORKER: (1500,)}), None, nodes)
    assert known.usable == {PS: 1000.0, WORKER: 1500.0}
    assert known.accelerator == 0.5
    moved = forecast(there, 0.0, placement={PS: ("n1",), WORKER: ("n1",)}, cpu={}, nodes=nodes)
    assert moved.finish is not None
    assert moved.finish.expected_s == 25.0


@pytest.mark.parametrize(("limited", "expected_s"), [(True, 25.0), (False, 50.0)])
def test_a_weight_says_nothing_of_how_fast_a_job_will_be(limited: bool, expected_s: float) -> None:
    """Of a limit twice as large a worker that uses all it has gets twice as much; a tenth of a weight slows down nobody
    who is alone."""
    there = replace(running(), cpu={WORKER: (1000,)}, cpu_use={WORKER: 1.0}, cpu_limited=limited)
    found = forecast(there, 0.0, placement=there.placement, cpu={WORKER: (2000,)})
    assert found.finish is not None
    assert found.finish.expected_s == pytest.approx(expected_s)
    less = forecast(there, 0.0, placement=there.placement, cpu={WORKER: (100,)})
    same = forecast(there, 0.0, placement=there.placement, cpu=there.cpu)
    assert less.finish is not None
    assert same.finish is not None
    assert (less.finish.expected_s == pytest.approx(50.0)) is not limited
    assert less.finish.latest_s - less.finish.earliest_s > same.finish.latest_s - same.finish.earliest_s


def all_of(made: Plan) -> dict[str, Any]:
    return dict(made.forecasts)


@pytest.mark.parametrize("profile", ["kips", "drf", "fifo-backfill", "srtf", "edf"])
def test_an_unchanged_world_has_the_same_plan_and_the_same_forecasts(profile: str) -> None:
    """On every recorded Snapshot: asking twice, with views or without, in any order, gives the same; and every job has
    one, with an interval in order."""
    chosen = build(profile, parse_profile(profile, {}))
    for each in read()[: effort(15, 60)]:
        shared = built(each["snapshot"])
        first, again = schedule(shared, chosen), schedule(shared, chosen)
        anew = schedule(built(each["snapshot"]), chosen)
        assert first == again == anew
        found = all_of(first)
        assert found == all_of(again) == {key: anew.forecasts[key] for key in reversed(list(shared.jobs))}
        assert found.keys() == shared.jobs.keys()
        for key, one in found.items():
            job_ = shared.jobs[key]
            target = first.changes.get(key)
            holds = job_.placement if target is None else target.nodes
            if one.finish is not None:
                assert one.finish.earliest_s <= one.finish.expected_s <= one.finish.latest_s
                assert one.finish.expected_s >= shared.now
            if one.start_s is not None:
                assert one.start_s >= shared.now
                assert not job_.placement or not holds


@settings(max_examples=effort(15, 60), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, 10.0, 500.0]), st.booleans()), min_size=1, max_size=8),
    st.floats(0, 1000),
)
def test_time_alone_moves_no_finish(wanted: list[tuple[int, float | None, bool]], later: float) -> None:
    """While a job does what was forecast, its finish stays where it was; one whose end has passed ends now."""
    jobs = []
    for k, (n, steps, speaks) in enumerate(wanted):
        on = {WORKER: (f"n{k}",) * n}
        jobs.append(job(f"j{k}", workers(n), steps=steps, on=on, steps_per_s=2.0 if speaks else 0.0))
    first = snapshot([node(f"n{k}", gpus=3) for k in range(len(wanted))], jobs)
    fifo = build("fifo", parse_profile("fifo", {}))
    before = all_of(schedule(first, fifo))
    after = all_of(schedule(Snapshot(later, first.nodes, first.jobs), fifo))
    for key, one in before.items():
        if one.finish is None:
            assert after[key].finish is None
        else:
            assert after[key].finish.expected_s == pytest.approx(max(one.finish.expected_s, later))


def test_nothing_is_computed_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def predicted(*arguments: object, **_: object) -> float:
        asked.append(arguments)
        return math.inf

    monkeypatch.setattr("elastic_tfjob.scheduling.forecasts.predict", predicted)
    made = plan("fifo", [node("n0", gpus=1)], [running()])
    assert made.forecasts is not None
    assert asked == []
    finish: object = made.forecasts["a"].finish
    assert finish == math.inf
    assert len(asked) == 1

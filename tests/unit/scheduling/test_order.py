"""Who goes first: each Order on cases worked out by hand."""

import pytest

from elastic_tfjob.scheduling.orders import FORGIVEN, LeastAttainedService
from elastic_tfjob.scheduling.reasons import Reason

from .build import job, node, plan, sizes, workers

ONE = [node("a", gpus=1)]
FOUR = [node("a", gpus=4)]


def test_fifo_starts_by_arrival() -> None:
    assert sizes(plan("fifo", ONE, [job("late", at=2), job("early", at=1)])) == {"early": 1}


def test_fifo_head_of_line_holds_back_what_would_fit() -> None:
    decided = plan("fifo", FOUR, [job("wide", workers(8), at=1), job("small", at=2)])
    assert sizes(decided) == {}
    assert decided.waiting == {
        "wide": Reason("short", {"accelerators": 8, "accelerators_free": 4}),
        "small": Reason("waits-behind", {"job": "wide"}),
    }


def test_backfill_starts_what_fits() -> None:
    jobs = [job("wide", workers(8), at=1), job("a", workers(3), at=2), job("b", workers(2), at=3), job("c", at=4)]
    assert sizes(plan("fifo-backfill", FOUR, jobs)) == {"a": 3, "c": 1}


def test_priority_goes_before_arrival() -> None:
    assert sizes(plan("fifo", ONE, [job("first", at=1), job("urgent", at=2, priority=5)])) == {"urgent": 1}


def test_sjf_takes_the_shortest_and_puts_unknown_ones_last() -> None:
    jobs = [job("long", duration=50, at=0), job("unknown", at=0), job("short", duration=10, at=5)]
    two = [node("a", gpus=2)]
    assert list(plan("sjf", two, jobs, now=5).changes) == ["short", "long"]


def test_sjf_ties_go_by_arrival() -> None:
    assert sizes(plan("sjf", ONE, [job("b", duration=10, at=2), job("a", duration=10, at=1)], now=3)) == {"a": 1}


def test_sjf_does_not_preempt() -> None:
    running = job("long", duration=100, on={"Worker": ("a",)}, steps_per_s=1.0)
    assert plan("sjf", ONE, [running, job("short", duration=1)]).changes == {}


@pytest.mark.parametrize(("left", "expected"), [(9.0, {"new": 1}), (11.0, {"old": 1})])
def test_srtf_preempts_only_for_less_remaining_time(left: float, expected: dict[str, int]) -> None:
    """`old` ran 90 of 100 s at 1 step/s, so 10 s are left."""
    old = job("old", duration=100, on={"Worker": ("a",)}, steps=100, steps_per_s=1.0, observed_s=0.0)
    decided = plan("srtf", ONE, [old, job("new", duration=left, at=90)], now=90)
    assert sizes(decided) == expected


def test_srtf_counts_the_pause_of_a_job_that_is_starting() -> None:
    """`old` needs 10 s of work but its first step comes 5 s from now: 15 s, more than 12."""
    old = job("old", duration=10, on={"Worker": ("a",)}, steps_per_s=1.0, observed_s=5.0)
    assert sizes(plan("srtf", ONE, [old, job("new", duration=12)])) == {"new": 1}


def test_preemption_skips_what_does_not_fit_and_keeps_smaller_jobs() -> None:
    """Totals 4: short(3) goes in, wide(2) does not fit any more and is preempted, small(1) stays."""
    wide = job("wide", workers(2), duration=20, on={"Worker": ("a", "a")}, steps_per_s=1.0)
    small = job("small", duration=30, on={"Worker": ("a",)}, steps_per_s=1.0)
    decided = plan("srtf", FOUR, [wide, small, job("short", workers(3), duration=5)])
    assert sizes(decided) == {"short": 3, "small": 1}
    assert decided.waiting == {"wide": Reason("others-first")}


def test_edf_goes_by_deadline_and_puts_jobs_without_one_last() -> None:
    jobs = [job("none", at=0), job("later", deadline=90, at=0), job("soon", deadline=50, at=1)]
    assert sizes(plan("edf", [node("a", gpus=2)], jobs)) == {"soon": 1, "later": 1}


class TestLeastAttainedService:
    """Thresholds 100 and 200 accelerator-seconds."""

    order = LeastAttainedService((100.0, 200.0))

    @pytest.mark.parametrize(("service", "level"), [(0, 0), (99, 0), (100, 1), (199, 1), (200, 2), (900, 2)])
    def test_a_job_sinks_at_each_threshold(self, service: float, level: int) -> None:
        assert self.order.key(job("j", service=service), 0.0)[0] == level

    def test_service_grows_with_the_accelerators_held(self) -> None:
        running = job("j", workers(4), on={"Worker": ("a",) * 4}, since_s=10.0)
        assert self.order.key(running, 34.0)[0] == 0
        assert self.order.key(running, 35.0)[0] == 1
        assert self.order.next_jump_s(running, 10.0) == 35.0
        assert self.order.next_jump_s(running, 35.0) == 60.0
        assert self.order.next_jump_s(running, 60.0) is None

    def test_turn_runs_running_then_preempted_last_first_then_entered(self) -> None:
        keys = {
            "running": self.order.key(job("r", on={"Worker": ("a",)}, since_s=5.0, service=120.0), 20.0),
            "preempted late": self.order.key(job("p", service=150.0, since_s=18.0), 20.0),
            "preempted early": self.order.key(job("q", service=150.0, since_s=3.0), 20.0),
            "waits since it sank": self.order.key(job("s", service=100.0, since_s=1.0), 20.0),
            "sinks now": self.order.key(job("t", on={"Worker": ("a",)}, since_s=0.0, service=80.0), 20.0),
        }
        assert sorted(keys, key=keys.__getitem__) == list(keys)

    def test_arrival_keeps_a_queue_first_in_first_out(self) -> None:
        order = LeastAttainedService((100.0,), within="arrival")
        assert order.key(job("r", on={"Worker": ("a",)}), 1.0) == order.key(job("w"), 1.0) == (0,)

    def test_the_knob_brings_a_starving_job_back_and_its_service_counts_anew(self) -> None:
        """It ran 60 s; with knob 2 it is promoted after waiting 120 s."""
        order = LeastAttainedService((100.0,), promote_knob=2.0)
        starved = job("s", service=120.0, executed_s=60.0, since_s=1000.0)
        assert order.next_jump_s(starved, 1000.0) == 1120.0
        assert [order.promotes(starved, t) for t in (1119.0, 1120.0)] == [False, True]
        decided = plan("las", ONE, [starved], now=1120.0, thresholds=(100,), promote_knob=2)
        assert decided.memory == {"s": {FORGIVEN: starved.service}}
        runs = job("s", on={"Worker": ("a",)}, service=120.0, since_s=1120.0, memory=decided.memory["s"])
        assert order.key(runs, 1120.0)[0] == 0
        assert order.next_jump_s(runs, 1120.0) == 1220.0
        assert order.key(runs, 1221.0)[0] == 1

    @pytest.mark.parametrize(("written", "counts"), [(-1e300, 120.0), (50.0, 70.0), (1e300, 0.0)])
    def test_no_more_is_forgiven_than_a_job_has_had(self, written: float, counts: float) -> None:
        order = LeastAttainedService((100.0,), promote_knob=2.0)
        assert order.attained(job("s", service=120.0, memory={FORGIVEN: written})) == counts

    def test_a_new_job_preempts_one_that_has_sunk(self) -> None:
        sunk = job("sunk", on={"Worker": ("a",)}, service=150.0)
        decided = plan("las", ONE, [sunk, job("new", at=1)], now=1, thresholds=(100, 200))
        assert sizes(decided) == {"new": 1}

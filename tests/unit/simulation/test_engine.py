"""The engine: timelines worked out by hand."""

import math
from random import Random

import pytest

from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.simulation.live_job import Costs, Noise
from elastic_tfjob.simulation.live_jobs import arrive
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.scenario import HOUR_S, InferencePool
from elastic_tfjob.simulation.speed_models.base import FIXED, LINEAR, SpeedModel
from elastic_tfjob.simulation.speed_models.cpu import CPU_SHARE
from elastic_tfjob.simulation.summary import summarise

from .build import finishes, no_violation, simulate, work


def test_fifo_on_one_gpu() -> None:
    """a 0-10, b 10-15, c 15-16; b waits 8, c 12."""
    outcome = simulate("fifo", [work("a", 0, 10), work("b", 2, 5), work("c", 3, 1)], check=no_violation)
    assert finishes(outcome) == {"a": 10, "b": 15, "c": 16}
    summary = summarise(outcome, 3)
    assert summary.avg_jct_s == pytest.approx(36 / 3)
    assert summary.avg_queue_s == pytest.approx(20 / 3)
    assert summary.makespan_s == 16
    assert summary.gpu_utilisation == 1.0
    assert summary.cpu_utilisation is None
    assert summary.deadline_met is None


def test_srtf_preempts_and_pays_for_the_restart() -> None:
    """a runs 0-4, b 4-7, a resumes at 7 with a pause of 2 and its last 6 s: 15."""
    outcome = simulate("srtf", [work("a", 0, 10), work("b", 4, 3)], costs=Costs(restart_s=((math.inf, 2),)))
    assert finishes(outcome) == {"a": 15, "b": 7}
    assert [r.preemptions for r in outcome.records] == [1, 0]
    assert [r.queue_s for r in outcome.records] == [3, 0]


def test_work_since_the_last_checkpoint_is_lost() -> None:
    """Checkpoints every 3 s: of the 4 s that a ran, 1 is lost, so it needs 7 more from 7 on."""
    outcome = simulate("srtf", [work("a", 0, 10), work("b", 4, 3)], costs=Costs(checkpoint_interval_s=3))
    assert finishes(outcome) == {"a": 14, "b": 7}
    assert outcome.records[0].lost_steps == 1


def test_restart_costs_go_by_accelerators() -> None:
    costs = Costs(restart_s=((1, 7), (8, 30), (math.inf, 60)))
    assert [costs.restart(n) for n in (1, 2, 8, 9)] == [7, 30, 30, 60]


def test_a_start_pause_delays_the_first_step() -> None:
    assert finishes(simulate("fifo", [work("a", 0, 10)], costs=Costs(start_s=5))) == {"a": 15}


def test_las_sinks_a_job_at_its_threshold_without_any_event() -> None:
    """Threshold 5: at 5 a sinks below b, which came at 1; b sinks at 10, a goes on 10-15, then b 15-20."""
    outcome = simulate("las", [work("a", 0, 10), work("b", 1, 10)], parameters={"thresholds": "5"})
    assert finishes(outcome) == {"a": 15, "b": 20}


def test_an_interval_without_on_change_waits_for_its_multiple() -> None:
    outcome = simulate("fifo", [work("a", 1, 10), work("b", 2, 3)], parameters={"interval_s": 60, "on_change": False})
    assert finishes(outcome) == {"a": 70, "b": 123}


def test_an_elastic_job_grows_when_another_ends_and_pays_for_it() -> None:
    """Linear, 2 GPUs. Both run on 1; b ends at 10, a has 10 of 20 left, pauses 1 and runs at 2/s: 16."""
    jobs = [work("a", 0, 20, high=2), work("b", 0, 10, high=2)]
    outcome = simulate("drf", jobs, gpus=2, speed_model=LINEAR, costs=Costs(rescale_s=1), check=no_violation)
    assert finishes(outcome) == {"a": 16, "b": 10}
    assert sum(r.rescales for r in outcome.records) == 1


def test_a_change_during_a_pause_does_not_end_that_pause() -> None:
    """b ends at 3: a, which has yet to start until 12, grows to 2 GPUs then. A pause of 1 s would end at 4."""
    jobs = [work("a", 0, 20, high=2), work("b", -11, 2, high=1)]
    outcome = simulate(
        "drf", jobs, gpus=2, speed_model=LINEAR, costs=Costs(start_s=12, rescale_s=1), check=no_violation
    )
    assert finishes(outcome) == {"a": 12 + 10, "b": 3}


def test_a_change_at_the_end_of_a_pause_ends_with_its_own() -> None:
    """b ends at 11.5, when a has half a second of its start left: the change takes a second from then."""
    jobs = [work("a", 0, 20, high=2), work("b", -2.5, 2, high=1)]
    outcome = simulate("drf", jobs, gpus=2, speed_model=LINEAR, costs=Costs(start_s=12, rescale_s=1))
    assert finishes(outcome) == {"a": 12.5 + 10, "b": 11.5}


def test_deadlines_are_counted_of_all_jobs_that_have_one() -> None:
    jobs = [work("a", 0, 10, deadline_s=10), work("b", 0, 10, deadline_s=19), work("c", 0, 10)]
    assert summarise(simulate("fifo", jobs), 3).deadline_met == 0.5


def test_contending_containers_share_the_cpus() -> None:
    """1 CPU; a alone 0-2, then with b at half speed. b wants 2 s: done at 6 (a has then done 4 of 5), a at 7."""
    jobs = [work("a", 0, 5, cpu=100, cpu_demand=1.0), work("b", 2, 2, cpu=100, cpu_demand=1.0)]
    outcome = simulate("fixed", jobs, gpus=2, cpus=1, speed_model=CPU_SHARE)
    assert finishes(outcome) == {"a": 7, "b": 6}


def test_a_job_that_never_fits_is_reported_as_unfinished() -> None:
    summary = summarise(simulate("fifo-backfill", [work("wide", 0, 1, gpus=9), work("ok", 1, 1)]), 2)
    assert (summary.finished, summary.jobs) == (1, 2)


def test_noise_changes_speeds_and_the_seed_repeats_it() -> None:
    def run(seed: int, sigma: float) -> float | None:
        return finishes(simulate("fifo", [work("a", 0, 100)], noise=Noise(speed=sigma), seed=seed))["a"]

    assert run(1, 0.0) == 100
    assert run(1, 0.3) == run(1, 0.3) != run(2, 0.3)


def test_estimate_noise_misleads_the_policy_not_the_jobs() -> None:
    jobs = [work(f"j{k}", 0, 10 + k) for k in range(20)]
    true, misled = (simulate("sjf", jobs, noise=Noise(estimate=s), seed=3) for s in (0.0, 1.0))
    for outcome in (true, misled):
        assert {r.key: r.executed_s for r in outcome.records} == {f"j{k}": 10 + k for k in range(20)}
    assert [r.key for r in sorted(true.records, key=lambda r: r.start_s or 0.0)] == [f"j{k}" for k in range(20)]
    assert finishes(true) != finishes(misled)


def test_estimate_noise_is_in_the_steps_that_a_policy_is_told() -> None:
    """Optimus goes by steps and speeds. What jobs really need stays."""
    jobs = [work(f"j{k}", 0, 100 + 10 * k, high=8) for k in range(8)]

    def run(sigma: float) -> RunResult:
        noise = Noise(estimate=sigma)
        told = {"oracle": True}
        return simulate("optimus", jobs, nodes=2, gpus=8, speed_model=LINEAR, parameters=told, noise=noise, seed=3)

    true, misled, again = run(0.0), run(1.0), run(1.0)
    assert finishes(true) != finishes(misled) == finishes(again)
    rigid = [work("a", 0, 100)]
    assert finishes(simulate("optimus", rigid, noise=Noise(estimate=1.0), seed=3)) == {"a": 100}


@pytest.mark.parametrize("oracle", [True, False])
def test_stated_steps_and_duration_have_the_same_error(oracle: bool) -> None:
    live = arrive(
        work("a", 0, 100, estimated_s=70),
        0,
        speed_model=FIXED,
        profile=build("sjf", parse_profile("sjf", {"oracle": oracle})),
        noise=Noise(estimate=0.5),
        random=Random(1),
        now=0.0,
    )
    assert live.spec.total_steps != 100 == live.true_speed.total_steps
    assert live.spec.duration_s == (live.spec.total_steps if oracle else 70)


@pytest.mark.parametrize("speed_model", [FIXED, CPU_SHARE])
def test_speeds_that_stray_every_so_often_even_out(speed_model: SpeedModel) -> None:
    """A thousand draws are as fast as their mean, exp(sigma^2 / 2), and the same under each profile."""

    def took(noise: Noise, profile: str = "fifo", seed: int = 1) -> float:
        jobs = [work("a", 3, 1000, cpu=100)]
        outcome = simulate(profile, jobs, cpus=1, speed_model=speed_model, noise=noise, seed=seed)
        return (finishes(outcome)["a"] or math.nan) - 3

    every = Noise(speed=0.5, speed_every_s=took(Noise()) / 1000)
    assert took(every) == took(every, "srtf") != took(every, seed=2)
    assert took(every) == pytest.approx(took(Noise()) / math.exp(0.125), rel=0.06)
    assert abs(took(Noise(speed=0.5)) / took(Noise()) - 1) > 0.2


def test_speeds_stray_from_the_next_multiple_on() -> None:
    """As drawn for the job until 10; then by one factor per 10 s."""
    noise = Noise(speed=0.5, speed_every_s=10)
    (once, strayed) = (
        simulate("fifo", [work("a", 2, 14)], noise=n, seed=5).records[0].finish_s or 0.0
        for n in (Noise(speed=0.5), noise)
    )
    first = 14 / (once - 2)
    done, at = 8 * first, 10.0
    while True:
        factor = Random(f"speed-5-a-{at}").lognormvariate(0.0, 0.5)
        if done + 10 * factor >= 14:
            break
        done, at = done + 10 * factor, at + 10
    assert strayed == pytest.approx(at + (14 - done) / factor)


def test_a_run_ends_though_speeds_stray_for_ever() -> None:
    jobs = [work("wide", 0, 1, gpus=9), work("ok", 1, 1)]
    outcome = simulate("fifo-backfill", jobs, noise=Noise(speed=0.1, speed_every_s=1))
    assert finishes(outcome)["wide"] is None
    assert finishes(outcome)["ok"] is not None


def test_profiles_bear_estimates_and_speeds_that_are_far_off() -> None:
    """Jobs go on long after the end that they were told to have."""
    jobs = [work(f"j{k}", 5 * k, 50, cpu=100, high=3, deadline_s=5 * k + 90) for k in range(10)]
    noise = Noise(speed=0.5, speed_every_s=7, estimate=1.0)
    for profile in PROFILES:
        outcome = simulate(profile, jobs, nodes=2, gpus=2, cpus=4, speed_model=LINEAR, noise=noise, check=no_violation)
        assert None not in finishes(outcome).values(), profile


def test_without_the_oracle_a_policy_does_not_see_durations() -> None:
    jobs = [work("first", 0, 5), work("long", 1, 50), work("short", 2, 5)]
    assert finishes(simulate("sjf", jobs))["short"] == 10
    assert finishes(simulate("sjf", jobs, parameters={"oracle": False}))["short"] == 60
    told = [work("first", 0, 5), work("long", 1, 50, estimated_s=50), work("short", 2, 5, estimated_s=4)]
    assert finishes(simulate("sjf", told, parameters={"oracle": False}))["short"] == 10


def test_gantt_and_samples_cover_what_ran() -> None:
    outcome = simulate("fifo", [work("a", 0, 10, gpus=2), work("b", 0, 5)], gpus=2, trace=True)
    assert [(i.key, i.start_s, i.end_s, i.replicas) for i in outcome.intervals] == [("a", 0, 10, 2), ("b", 10, 15, 1)]
    assert [(s.time_s, s.waiting, s.running, s.accelerators) for s in outcome.samples] == [
        (0, 1, 1, 2),
        (10, 0, 1, 1),
        (15, 0, 0, 0),
    ]


class TestInference:
    pool = InferencePool(10, Resources(accelerators=8), noise=0.0)

    def test_demand_swings_over_the_day(self) -> None:
        """u(21 h) = 0.95: ceil(10 (0.95 + 0.02)) = 10 nodes, none to spare; at 9 h 0.42: 5 needed, 5 spare."""
        assert self.pool.utilisation(21 * HOUR_S) == pytest.approx(0.95)
        assert self.pool.utilisation(9 * HOUR_S) == pytest.approx(0.42)
        assert [self.pool.spare(h * HOUR_S) for h in (21, 9)] == [0, 5]

    def test_weekends_need_less(self) -> None:
        assert self.pool.utilisation((5 * 24 + 21) * HOUR_S) == pytest.approx(0.95 * 0.95)

    def test_a_loanable_job_runs_on_borrowed_nodes_and_gives_them_back(self) -> None:
        """It comes at 9 h, when nodes are spare, and works for 12 h. Fewer than the two that it needs are spare while
        u > 0.78: within acos((0.78 - 0.685) / 0.265) / 2 pi of a day around 21 h, which is from 16.4 h to 25.6 h."""
        jobs = [work("j", 9 * HOUR_S, 12 * HOUR_S, gpus=16, loanable=True)]
        outcome = simulate("fifo", jobs, inference=self.pool, parameters={"lend": "offered"}, check=no_violation)
        record = outcome.records[0]
        assert record.start_s == 9 * HOUR_S
        assert record.executed_s == 12 * HOUR_S
        assert record.queue_s == pytest.approx(9.2 * HOUR_S, abs=HOUR_S / 4)
        assert record.finish_s == 9 * HOUR_S + record.executed_s + record.queue_s

    def test_without_lending_it_never_starts(self) -> None:
        jobs = [work("j", 9 * HOUR_S, HOUR_S, gpus=16, loanable=True), work("k", 9 * HOUR_S, HOUR_S)]
        outcome = simulate("fifo-backfill", jobs, inference=self.pool)
        assert finishes(outcome) == {"j": None, "k": 10 * HOUR_S}

    def test_slow_accelerators_slow_the_job(self) -> None:
        slow = InferencePool(10, Resources(accelerators=8), accelerator_speed=0.5, noise=0.0)
        jobs = [work("j", 9 * HOUR_S, HOUR_S, gpus=8, loanable=True)]
        outcome = simulate("fifo", jobs, nodes=1, gpus=0, inference=slow, parameters={"lend": "offered"})
        assert finishes(outcome) == {"j": 11 * HOUR_S}

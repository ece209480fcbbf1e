"""Speed that follows CPU: the speed model against its formula, and the engine's timelines worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, JobSpec, Placement, ReplicaGroup
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs, LiveJob, Noise
from elastic_tfjob.simulation.live_jobs import LiveJobs
from elastic_tfjob.simulation.result import JobRecord
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.cpu import BOOT_CORES, PS_CPU, Boots, PsCpuTrueSpeed, pools
from elastic_tfjob.simulation.speed_models.ps import MODELS
from elastic_tfjob.simulation.summary import summarise
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.optimus import OnlineSpeed

from ..scheduling.invariants import violations
from .build import finishes, simulate


def job(
    key: str = "j", at: float = 0, steps: float = 100, *, model: str = "digits", cpu: int = 500, **more: Any
) -> WorkloadJob:
    groups = (
        ReplicaGroup(PS, Resources(cpu), 1, 1, 1),
        ReplicaGroup(WORKER, Resources(cpu), more.pop("workers", 1), 1, more.pop("high", 1)),
    )
    return WorkloadJob(key, at, groups, total_steps=steps, model=model, **more)


def true_speed(**more: Any) -> PsCpuTrueSpeed:
    made = PS_CPU.true_speed(job(**more))
    assert isinstance(made, PsCpuTrueSpeed)
    return made


def no_violation(plan: object) -> None:
    assert violations(plan) == []  # type: ignore[arg-type]


def test_speeds_that_stray_every_so_often_even_out() -> None:
    """A thousand draws are as fast as their mean, exp(sigma^2 / 2), also while another program starts beside a job."""

    def took(noise: Noise) -> float:
        jobs = [job(steps=1e5, high=4), job("k", 50, 1e3)]
        costs = Costs(boot_cpu_s=12.0, rescale_s=1.0)
        outcome = simulate("drf", jobs, nodes=2, gpus=0, cpus=2, speed_model=PS_CPU, costs=costs, noise=noise)
        return finishes(outcome)["j"] or 0.0

    every = Noise(speed=0.5, speed_every_s=took(Noise()) / 1000)
    assert took(every) == took(every) == pytest.approx(took(Noise()) / math.exp(0.125), rel=0.06)


def test_with_the_cpu_of_the_measurement_it_is_the_speed_model_ps() -> None:
    made = true_speed(model="resnet-50", cpu=2000)
    assert made.steps_per_s({PS: 1, WORKER: 1}) == pytest.approx(MODELS["resnet-50"].samples_per_s(1, 1))


def test_half_the_cpu_takes_twice_as_long_for_what_is_computed_and_not_for_the_network() -> None:
    form = MODELS["vgg-16"]
    whole, half = true_speed(model="vgg-16", cpu=2000), true_speed(model="vgg-16", cpu=1000)
    added = 1 / half.steps_per_s({PS: 1, WORKER: 2}) - 1 / whole.steps_per_s({PS: 1, WORKER: 2})
    assert added == pytest.approx(form.a / 2 + form.b + form.c * 2)


def test_synchronous_workers_go_at_the_pace_of_the_slowest_others_each_at_its_own() -> None:
    sync, own = true_speed(model="resnet-50", cpu=2000, cpu_demand=4.0), true_speed(cpu_demand=1.0)
    assert sync.pace({PS: [2], WORKER: [2, 4]}).steps_per_s == sync.pace({PS: [2], WORKER: [2, 2]}).steps_per_s
    assert own.pace({PS: [1], WORKER: [0.2, 0.6]}).steps_per_s == own.pace({PS: [1], WORKER: [0.4, 0.4]}).steps_per_s


def test_use_is_the_cpu_time_of_a_step_over_what_is_held() -> None:
    """digits: a step takes 0.08 CPU-seconds of a worker and 0.008 of the PS; with 0.5 CPUs each 0.16 s + 0.016 s."""
    pace = true_speed().pace({PS: [0.5], WORKER: [0.5]})
    assert pace.steps_per_s == pytest.approx(1 / 0.176)
    assert pace.use == {WORKER: pytest.approx(0.16 / 0.176), PS: pytest.approx(0.016 / 0.176)}


def test_no_replica_uses_more_cpu_than_its_demand() -> None:
    made = true_speed(cpu_demand=0.5)
    assert made.pace({PS: [2], WORKER: [2]}).steps_per_s == made.pace({PS: [0.5], WORKER: [0.5]}).steps_per_s
    assert made.pace({PS: [2], WORKER: [2]}).use[WORKER] == pytest.approx(0.16 / 0.176 / 4)


def test_a_start_takes_the_cpu_time_of_a_process() -> None:
    """5 CPU-seconds at 0.5 CPUs are 10 s; then 100 steps of 0.176 s. The CPU of both replicas is used in the start."""
    outcome = simulate("fixed", [job()], cpus=1, speed_model=PS_CPU, costs=Costs(boot_cpu_s=5))
    assert finishes(outcome)["j"] == pytest.approx(10 + 17.6)
    assert summarise(outcome, 1).cpu_used == pytest.approx((10 + 100 * 0.088) / 27.6)


def test_workers_join_a_running_program_that_trains_on() -> None:
    """A worker comes when another job has ended. As a new program, all replicas start, with 5 CPU-s at half of their
    CPU, and training has the other half. In a program that stays, only the added worker starts."""

    def took(**more: Any) -> tuple[float, float]:
        jobs = [job("first", steps=50), job("j", 1, steps=400, high=2)]
        costs = Costs(boot_cpu_s=5.0, rescale_s=3.0, **more)
        outcome = simulate("drf", jobs, cpus=2, speed_model=PS_CPU, costs=costs, check=no_violation)
        [rescales] = [each.rescales for each in outcome.records if each.key == "j"]
        return finishes(outcome)["j"] or 0.0, rescales

    (slow_s, slow), (live_s, live) = took(), took(live_pause_s=0.1)
    assert slow == live == 1
    assert 5 < slow_s - live_s < 15


@pytest.mark.parametrize(
    ("new", "start", "takes_s"),
    [
        ({PS: ("n",), WORKER: ("n", "n", "n")}, 2, 10.0),  # one starts, with its 0.5 CPUs
        ({PS: ("n",), WORKER: ("n",)}, 2, 0.0),
        ({PS: ("n",), WORKER: ("n", "m")}, 0, 20.0),  # two of which one moves: the other half of the CPU trains
        ({PS: ("n", "m"), WORKER: ("n", "n")}, None, 20.0),
    ],
)
def test_only_workers_that_join_or_move_start(new: Placement, start: int | None, takes_s: float) -> None:
    groups = (ReplicaGroup(PS, Resources(500), 1, 1, 2), ReplicaGroup(WORKER, Resources(500), 2, 1, 3))
    before: Placement = {PS: ("n",), WORKER: ("n", "n")}
    boots = Boots(5.0)
    boot = boots.begin(before, {}, new, 0.1, 0.0, workers_from=start)
    busy = {PS: 1.0, WORKER: 1.0}
    assert boots.foresee(boot, groups=groups, placement=new, cpu={}, use=busy, shared=False, now=0.0) == takes_s
    assert boots.cores(boot, pools(groups, new, {}, shared=False), busy) == (0.0 if start is not None else BOOT_CORES)


def test_kips_lends_idle_cpu_in_place() -> None:
    """2 CPUs: started with 1 each, then (PS 9 % busy) the worker could use 1: 5 + 100 (0.08 + 0.016) s."""
    outcome = simulate(
        "kips",
        [job(cpu_demand=1.0)],
        cpus=2,
        speed_model=PS_CPU,
        costs=Costs(boot_cpu_s=5),
        check=no_violation,
    )
    end_s = finishes(outcome)["j"]
    assert end_s is not None
    assert end_s < 5 + 100 * 0.096 + 1
    assert (outcome.records[0].rescales, outcome.records[0].migrations) == (0, 0)


def test_training_goes_on_beside_what_a_rescale_starts() -> None:
    """2 CPUs in all, replicas of 0.5. a ends at 17.6: DRF gives b its second worker. That boots at half of the kept
    worker's CPU for 5 / 0.25 = 20 s, in which b goes on at 0.5 / (10/11) = 0.55 of its pace; then a pause of 1 s and
    0.08 + 0.032 s a step."""
    jobs = [job("a", high=1), job("b", steps=1000, high=2)]
    outcome = simulate(
        "drf", jobs, cpus=2, speed_model=PS_CPU, costs=Costs(boot_cpu_s=5, rescale_s=1), check=no_violation
    )
    assert finishes(outcome)["a"] == pytest.approx(27.6)
    done = 100 + 20 / 0.176 * 0.55
    assert finishes(outcome)["b"] == pytest.approx(27.6 + 20 + 1 + (1000 - done) * 0.112)
    assert outcome.records[1].rescales == 1


@pytest.mark.parametrize("boot_cpu_s", [5, 12])
def test_no_job_loses_steps_when_the_one_it_waits_for_ends(boot_cpu_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """a ends while it shrinks, and b while it prepares to grow into that trains on."""
    finish, trained = LiveJobs.finish, list[float]()

    def watched(jobs: LiveJobs, ended: LiveJob, now: float) -> None:
        before = {key: live.steps_at(now) for key, live in jobs.by_key.items()}
        finish(jobs, ended, now)
        trained.extend(before[key] - live.steps_at(now) for key, live in jobs.by_key.items())

    monkeypatch.setattr(LiveJobs, "finish", watched)
    jobs = [job("a", 5, 400, high=3), job("b", 5, 800, high=4)]
    simulate(
        "optimus",
        jobs,
        cpus=3,
        speed_model=PS_CPU,
        costs=Costs(boot_cpu_s=boot_cpu_s, rescale_s=1),
        parameters={"interval_s": 5},
    )
    assert trained
    assert trained == pytest.approx([0.0] * len(trained))


def test_a_replica_that_stays_may_start_its_next_program_for_less() -> None:
    """As above, but where a replica stays its start costs 1 CPU-second. The added worker boots for 5 / 0.5 = 10 s, in
    which the kept one has on average 0.1 CPU less: 0.8 / (10/11) of its pace."""
    jobs = [job("a", high=1), job("b", steps=1000, high=2)]
    costs = Costs(boot_cpu_s=5, boot_kept_cpu_s=1, rescale_s=1)
    outcome = simulate("drf", jobs, cpus=2, speed_model=PS_CPU, costs=costs, check=no_violation)
    assert finishes(outcome)["a"] == pytest.approx(27.6)
    done = 100 + 10 / 0.176 * 0.88
    assert finishes(outcome)["b"] == pytest.approx(27.6 + 10 + 1 + (1000 - done) * 0.112)


def test_equal_start_costs_for_all_replicas_change_nothing() -> None:
    jobs = [job("a", high=1), job("b", steps=1000, high=2)]
    one, other = (
        simulate("drf", jobs, cpus=2, speed_model=PS_CPU, costs=costs)
        for costs in (Costs(boot_cpu_s=0, rescale_s=1), Costs(boot_cpu_s=0, boot_kept_cpu_s=0, rescale_s=1))
    )
    assert finishes(one) == finishes(other)


@pytest.mark.parametrize(
    ("costs", "starts_s"),
    [(Costs(start_s=12, rescale_s=1), 12), (Costs(boot_cpu_s=5, rescale_s=1), 3 + 10 + 1)],
    ids=["pause", "program"],
)
def test_a_change_during_a_start_does_not_have_the_job_train_before(costs: Costs, starts_s: float) -> None:
    """b ends at 3, while a starts (a pause until 12, or a program until 10), and a gets its second worker. The pause
    goes on; the program starts anew, and nothing trains beside it."""
    jobs = [job("a", steps=1000, high=2), job("b", at=-100, steps=1, high=1)]
    jobs[1] = replace(jobs[1], submit_s=3 - (12 if costs.start_s else 10) - 0.176)
    outcome = simulate("drf", jobs, cpus=2, speed_model=PS_CPU, costs=costs, check=no_violation)
    ends = finishes(outcome)
    assert ends["b"] == pytest.approx(3)
    assert ends["a"] == pytest.approx(starts_s + 1000 * 0.112)
    assert next(r for r in outcome.records if r.key == "a").rescales == 1


def test_a_policy_that_is_told_speeds_still_knows_them_once_the_job_runs() -> None:
    """dssm is fastest with 7 workers and one PS: more are slower, and the job never gets them."""
    groups = (ReplicaGroup(WORKER, Resources(2000), 2, 1, 32), ReplicaGroup(PS, Resources(2000), 1, 1, 4))
    work = WorkloadJob("j", 0.0, groups, total_steps=1e6, model="dssm", deadline_s=1200.0)
    profile = build("deadline", parse_profile("deadline", {"place": "count", "oracle": True}))
    outcome = Simulation(SimulationInput([work], uniform_cluster(8, 0, 16, 0), PS_CPU), profile).run()
    best = PS_CPU.true_speed(work).steps_per_s({WORKER: 7, PS: 1})
    assert best is not None
    assert outcome.records[0].rescales == 0
    assert outcome.records[0].finish_s == pytest.approx(1e6 / best)


def test_capacity_of_a_shrinking_job_is_free_when_its_rescale_is_done() -> None:
    """b comes at 30 to a full node, and takes one of a's workers after 20 s; it starts 10 s after that."""
    jobs = [job("a", steps=2000, workers=3, high=3), job("b", at=30, steps=100)]
    outcome = simulate(
        "kips",
        jobs,
        cpus=2.0,
        speed_model=PS_CPU,
        costs=Costs(boot_cpu_s=5, rescale_s=1),
        parameters={"patience_s": 0, "prepare_cpu_s": 5},
        check=no_violation,
    )
    b = next(r for r in outcome.records if r.key == "b")
    assert b.finish_s is not None
    assert b.start_s is not None
    assert b.finish_s - b.start_s > 20 + 10 + 100 * 0.096


def test_capacity_of_a_shrinking_job_is_free_when_it_ends_before_its_rescale() -> None:
    """b comes at 30 and gets one of a's workers; a would give it up after 20 s, but ends before, and b starts then."""
    outcome = simulate(
        "drf",
        [job("a", steps=320, workers=3, high=3), job("b", at=30, steps=100)],
        cpus=2.0,
        speed_model=PS_CPU,
        costs=Costs(boot_cpu_s=5, rescale_s=1),
        check=no_violation,
    )
    a, b = outcome.records
    assert a.rescales == 1
    assert a.finish_s is not None
    assert 30 < a.finish_s < 50
    assert b.finish_s == pytest.approx(a.finish_s + 10 + 17.6)


@pytest.mark.parametrize(("silent", "grows"), [(0.0, True), (1.0, False)])
def test_the_progress_of_a_silent_job_is_unknown_while_it_trains(silent: float, *, grows: bool) -> None:
    """It trains all the same, and ends when it is done; what it uses is not heard of, so it does not grow for that."""
    heard: list[tuple[float, float, int]] = []

    class Watched(Simulation):
        def _decide(self, now: float) -> None:
            heard.extend((job.steps, job.steps_per_s, len(job.cpu_use)) for job in self.snapshot.jobs.values())
            super()._decide(now)

    groups = (ReplicaGroup(PS, Resources(500), 1, 1, 1), ReplicaGroup(WORKER, Resources(500), 1, 1, 8))
    jobs = [WorkloadJob("a", 0.0, groups, duration_s=5000.0, model="digits")]
    kips = build("kips", parse_profile("kips", {}))
    noise = Noise(silent=silent)
    outcome = Watched(SimulationInput(jobs, uniform_cluster(8, 0, 1, 64), PS_CPU, noise=noise), kips).run()
    assert outcome.records[0].finish_s is not None
    assert (outcome.changes["grow"] > 0) is grows
    assert any(any(each) for each in heard) is grows


def test_the_same_speed_with_other_cpu_is_learned() -> None:
    """That more CPU makes a size no faster is news: else it would for ever count as one that was not tried with it."""
    made = job()
    live = LiveJob(made, JobSpec("j", 0.0, made.groups), true_speed(), JobRecord("j", 0, None), 1.0, None)
    live.bound, live.placement, live.steps_per_s = true_speed(), {PS: ("x",), WORKER: ("x",)}, 1.0
    for held in (1000, 2000):
        live.cpu_held = {WORKER: (held,)}
        live.observe()
        assert isinstance(live.speed, OnlineSpeed)
        assert live.speed.conditions[1, 1].worker_millicores == held

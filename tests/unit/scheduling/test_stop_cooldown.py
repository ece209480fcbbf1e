"""A job that was stopped is not resumed, and one that was resumed is not stopped again, for a while."""

from dataclasses import replace

import pytest

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Job, JobSpec, Node, Snapshot, fixed_group
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.workload import WorkloadJob

ONE = Resources(1000, 0, 1, pods=1)
NODE = Node("n", ONE, ONE)
COOLDOWN_S = 60.0
PREEMPTIVE = ("las", "srtf", "edf", "drf")


def spec(key: str, priority: int = 0) -> JobSpec:
    return JobSpec(key, 0.0, (fixed_group(WORKER, ONE, 1),), priority=priority, total_steps=1e4, duration_s=1e4)


def snapshot(now: float, *jobs: Job) -> Snapshot:
    return Snapshot(now, {"n": NODE}, {job.key: job for job in jobs})


def round_at(now: float, *jobs: Job, profile: str = "las", cooldown_s: float = COOLDOWN_S) -> Round:
    made = build(profile, parse_profile(profile, {"stop_cooldown_s": cooldown_s}))
    return Round(snapshot(now, *jobs), made)


STOPPED = Job(spec("a"), stops=1, stopped_s=100.0)
RESUMED = Job(spec("a"), {WORKER: ("n",)}, "running", stops=1, stopped_s=50.0, resumed_s=100.0, since_s=100.0)


@pytest.mark.parametrize(("now", "starts"), [(159.0, False), (160.0, True)])
def test_a_stopped_job_is_not_resumed_at_once(now: float, starts: bool) -> None:
    round_ = round_at(now, STOPPED)
    assert round_.start(STOPPED, {WORKER: 1}, "test") == starts
    assert round_at(now, STOPPED, cooldown_s=0.0).start(STOPPED, {WORKER: 1}, "test")


@pytest.mark.parametrize(("now", "stops"), [(159.0, False), (160.0, True)])
def test_a_resumed_job_is_not_stopped_again_at_once(now: float, stops: bool) -> None:
    round_ = round_at(now, RESUMED)
    assert round_.stop(RESUMED, "test") == stops
    assert round_.kept == ({} if stops else {"a": Reason("cools", {"done": "resumed", "cooldown_s": 60.0})})
    assert round_.plan().kept == round_.kept


def test_a_job_without_checkpoints_says_so() -> None:
    job = replace(RESUMED, spec=replace(RESUMED.spec, stoppable=False), stops=0)
    round_ = round_at(500.0, job)
    assert not round_.stop(job, "test")
    assert round_.kept == {"a": Reason("no-checkpoint")}


def test_a_node_that_goes_back_does_not_wait() -> None:
    assert round_at(101.0, RESUMED).stop(RESUMED, "test", "reclaim")


def test_a_job_that_never_was_stopped_is_as_ever() -> None:
    job = replace(RESUMED, stops=0)
    assert round_at(101.0, job).stop(job, "test")


@pytest.mark.parametrize("profile", [*PREEMPTIVE, "kips", "fifo", "sjf-backfill", "tetris", "optimus"])
def test_a_job_that_cools_holds_nobody_back(profile: str) -> None:
    """The room that it may not have yet goes to the one behind it."""
    first = replace(STOPPED, spec=replace(STOPPED.spec, deadline_s=2e4))
    behind = Job(replace(spec("b"), arrival_s=5.0, deadline_s=3e4))
    made = build(profile, parse_profile(profile, {"stop_cooldown_s": COOLDOWN_S}))
    plan = schedule(snapshot(110.0, first, behind), made)
    assert set(plan.targets) == {"b"}
    assert plan.waiting["a"] == Reason("cools", {"done": "stopped", "cooldown_s": 60.0})


@pytest.mark.parametrize("profile", PREEMPTIVE)
def test_a_job_that_was_resumed_keeps_its_room(profile: str) -> None:
    urgent = Job(replace(spec("b", priority=9), deadline_s=1e4))
    made = build(profile, parse_profile(profile, {"stop_cooldown_s": COOLDOWN_S}))
    assert set(schedule(snapshot(110.0, RESUMED, urgent), made).targets) == {"a"}
    assert set(schedule(snapshot(161.0, RESUMED, urgent), made).targets) == {"b"}


def simulated(cooldown_s: float) -> RunResult:
    """A long job, and short ones that go before it, every 30 s."""
    groups = (fixed_group(WORKER, ONE, 1),)
    jobs = [WorkloadJob("long", 0.0, groups, total_steps=300.0, duration_s=300.0)]
    jobs += [WorkloadJob(f"short-{k}", 10.0 + 30 * k, groups, total_steps=5.0, duration_s=5.0) for k in range(6)]
    made = build("srtf", parse_profile("srtf", {"stop_cooldown_s": cooldown_s}))
    return Simulation(SimulationInput(jobs, [NODE], LINEAR), made).run()


def test_the_simulator_keeps_to_it() -> None:
    """Rounds come when the time is over, though nothing else happens then."""
    without, with_cooldown = simulated(0.0), simulated(COOLDOWN_S)
    assert without.records[0].preemptions == 6
    assert 1 <= with_cooldown.records[0].preemptions <= 3
    assert all(record.finish_s is not None for record in with_cooldown.records)

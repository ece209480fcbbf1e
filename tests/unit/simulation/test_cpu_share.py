"""Containers that share their node's CPUs, in proportion to the CPU that they hold."""

from dataclasses import replace
from math import inf

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import WORKER, JobSpec, fixed_group
from elastic_tfjob.simulation.live_job import Costs, LiveJob
from elastic_tfjob.simulation.result import JobRecord
from elastic_tfjob.simulation.speed_models.base import FixedTrueSpeed
from elastic_tfjob.simulation.speed_models.cpu import CPU_SHARE, shared_out

from .build import finishes, simulate, work


def test_a_job_that_holds_more_gets_more_of_a_crowded_node() -> None:
    """1 CPU, which both could use: 3 shares to 1. a is done at 4; b has had 1, and is alone for the other 3."""
    jobs = [work("a", 0, 3, cpu=750, cpu_demand=1.0), work("b", 0, 4, cpu=250, cpu_demand=1.0)]
    outcome = simulate("fixed", jobs, gpus=2, cpus=1, speed_model=CPU_SHARE)
    assert finishes(outcome) == {"a": 4, "b": 7}


def test_cpu_that_one_job_cannot_use_goes_to_the_others() -> None:
    """Of 2 CPUs a can use a half, however much it holds; b and c share the rest 1 to 2."""
    assert shared_out(2.0, [(0.5, 9.0), (4.0, 1.0), (4.0, 2.0)]) == [0.5, 0.5, 1.0]


def test_a_job_without_a_request_weighs_what_it_can_use() -> None:
    """4 CPUs are wanted of 1: a quarter of the speed each, whatever they want."""
    jobs = [work("a", 0, 2, cpu=0, cpu_demand=1.0), work("b", 0, 2, cpu=0, cpu_demand=3.0)]
    outcome = simulate("fixed", jobs, gpus=2, cpus=1, speed_model=CPU_SHARE)
    assert finishes(outcome) == {"a": 8, "b": 8}


def test_jobs_that_request_nothing_start_on_all_nodes() -> None:
    """Four jobs that can use a node each, on four nodes: nobody is slowed down."""
    jobs = [
        replace(work(f"j{k}", 0, 10, cpu_demand=4.0), groups=(fixed_group(WORKER, Resources(), 1),)) for k in range(4)
    ]
    for profile in ("fixed", "specon", "rebalance"):
        outcome = simulate(profile, jobs, nodes=4, gpus=0, cpus=4, speed_model=CPU_SHARE)
        assert finishes(outcome) == {f"j{k}": 10 for k in range(4)}


def test_cpu_that_kips_lends_makes_jobs_faster() -> None:
    """Eight jobs that could use four times what they request, on three nodes: what a job holds more is a weight."""
    jobs = [work(f"j{k}", 10 * k, 500, cpu=1000, cpu_demand=4.0) for k in range(8)]
    lending, not_lending = (
        simulate("kips", jobs, nodes=3, gpus=8, cpus=8, speed_model=CPU_SHARE, parameters=said)
        for said in ({}, {"min_idle": 1.0})
    )
    assert (lending.changes["cpu"] > 0, not_lending.changes["cpu"]) == (True, 0)
    assert sum(r.finish_s or inf for r in lending.records) < 0.95 * sum(r.finish_s or inf for r in not_lending.records)


def test_a_move_loses_what_was_trained_last() -> None:
    live = LiveJob(work("a", 0, 5), JobSpec("a", 0.0, ()), FixedTrueSpeed(5.0), JobRecord("a", 0, None), 1.0, None)
    live.placement, live.steps, live.steps_per_s = {WORKER: ("x",)}, 1.0, 0.5
    assert live.change_to({WORKER: ("y",)}, Costs(migrate_s=1.0, migrate_lost_s=0.5), 0.0) == 1.0
    assert (live.steps, live.record.lost_steps, live.record.migrations) == (0.75, 0.25, 1)

"""What a change costs a job."""

from dataclasses import replace

import pytest

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec, ReplicaGroup
from elastic_tfjob.scheduling.steps.sizes import ChangeCosts

COSTS = ChangeCosts(pause_s=1.0, start_cpu_s=12.0, start_kept_cpu_s=1.0)
GROUPS = (ReplicaGroup(WORKER, Resources(500), 1, 1, 4),)
TRAINS = Job(JobSpec("j", 0.0, GROUPS, total_steps=1000.0), {WORKER: ("n",)}, "running", steps_per_s=10.0)


@pytest.mark.parametrize(
    ("job", "saved", "costs_s"),
    [
        # Half of what is trained in 12 / 0.5 = 24 s, and of the other half what the new size would have saved.
        (TRAINS, 0.0, 1 + 12),
        (TRAINS, 0.5, 1 + 18),
        (replace(TRAINS, steps_per_s=0.0), 0.0, 1 + 24),
        # The replica that stays needs 2 s; the new size saves nothing in the 22 s that an added one needs longer.
        (replace(TRAINS, warm_start=True), 0.0, 1 + 1),
        (replace(TRAINS, warm_start=True), 0.5, 1 + 1.5 + 11),
        (replace(TRAINS, warm_start=True, steps_per_s=0.0), 0.0, 1 + 2),
    ],
)
def test_a_warm_start_costs_only_what_replicas_that_stay_need(job: Job, saved: float, costs_s: float) -> None:
    assert COSTS.rescale_s(job, saved) == pytest.approx(costs_s)


def test_a_rescale_is_worth_it_sooner_with_a_warm_start() -> None:
    """90 steps are left, for 9 s: giving a replica away costs 2 s of that instead of 13 s."""
    job = replace(TRAINS, steps=910.0)
    assert not COSTS.worth(job, 0.0, 0.0)
    assert COSTS.worth(replace(job, warm_start=True), 0.0, 0.0)


WITH_PS = JobSpec("j", 0.0, (ReplicaGroup(PS, Resources(500), 1, 1, 4), *GROUPS), total_steps=1000.0)
LIVE = replace(TRAINS, spec=WITH_PS, placement={PS: ("n",), WORKER: ("n", "n")}, live_workers=True)


@pytest.mark.parametrize(
    ("job", "counts", "costs_s"),
    [
        (LIVE, {PS: 1, WORKER: 1}, 0.1),
        # Nothing that trains starts anew; the new size is late by the 24 s of an added replica's start.
        (LIVE, {PS: 1, WORKER: 3}, 0.1 + 12),
        (LIVE, {PS: 2, WORKER: 2}, 1 + 18),
        (LIVE, {PS: 1, WORKER: 0}, 1 + 18),
        (LIVE, None, 1 + 18),
        (replace(LIVE, live_workers=False), {PS: 1, WORKER: 1}, 1 + 18),
    ],
)
def test_workers_that_join_and_leave_a_running_program_cost_next_to_nothing(
    job: Job, counts: Counts | None, costs_s: float
) -> None:
    assert COSTS.rescale_s(job, 0.5, counts) == pytest.approx(costs_s)


def test_a_stop_starts_everything_anew() -> None:
    assert COSTS.stop_s(replace(TRAINS, warm_start=True)) == COSTS.stop_s(TRAINS) == 1 + 24

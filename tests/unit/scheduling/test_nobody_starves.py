"""Nobody starves under `deadline`, `specon`, `hull` and `dl2`: every job ends, however hopeless, and waits no longer
than the others take one after the other. (`aryl`: test_aryl.py.)
"""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import WORKER, ReplicaGroup
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.workload import WorkloadJob
from harness.effort import effort

PAUSE_S = 1.0
ACCELERATORS = 4
STOP_COOLDOWN_S = 60.0
"""The default of `deadline`: so long a job that was stopped is not resumed."""


@st.composite
def workloads(draw: st.DrawFn) -> list[WorkloadJob]:
    """Up to a dozen jobs: without a deadline, with one that is hopeless, tight or loose."""
    jobs = []
    for k in range(draw(st.integers(1, 12))):
        at, seconds = float(draw(st.integers(0, 600))), float(draw(st.integers(1, 400)))
        least = draw(st.integers(1, 2))
        count = draw(st.integers(least, 3))
        group = ReplicaGroup(WORKER, Resources(1000, 0, 1), count, least, draw(st.integers(count, 4)))
        within = draw(st.sampled_from([None, 0.01, 0.5, 1.5, 5.0]))
        deadline_s = None if within is None else at + within * seconds
        jobs.append(WorkloadJob(f"j{k}", at, (group,), seconds, deadline_s=deadline_s))
    return jobs


def simulated(profile: str, jobs: list[WorkloadJob], *, oracle: bool) -> RunResult:
    costs = Costs(PAUSE_S, ((inf, PAUSE_S),), PAUSE_S, PAUSE_S)
    made = build(profile, parse_profile(profile, {"oracle": oracle}))
    cluster = uniform_cluster(2, ACCELERATORS // 2, 8, 0)
    return Simulation(SimulationInput(jobs, cluster, LINEAR, costs=costs), made).run()


def at_its_least_s(job: WorkloadJob) -> float:
    """How long a job trains with the fewest workers."""
    assert job.duration_s is not None
    return job.duration_s * job.groups[0].count / job.groups[0].minimum


@pytest.mark.parametrize(
    ("profile", "oracle"),
    [(name, oracle) for name in ("deadline", "hull", "dl2") for oracle in (True, False)] + [("specon", False)],
)
@settings(max_examples=effort(15, 60), deadline=None)
@given(workloads())
def test_every_job_ends_and_waits_no_longer_than_the_others_take_one_by_one(
    profile: str, oracle: bool, jobs: list[WorkloadJob]
) -> None:
    """While a job waits, another one trains, at its least size or faster, or stands still after the change of some
    round; or the job itself was stopped a moment ago."""
    outcome = simulated(profile, jobs, oracle=oracle)
    assert {record.key for record in outcome.records if record.finish_s is not None} == {job.key for job in jobs}
    all_s = sum(map(at_its_least_s, jobs)) + PAUSE_S * outcome.rounds
    for record, job in zip(outcome.records, sorted(jobs, key=lambda job: job.submit_s), strict=True):
        assert record.key == job.key
        cools_s = STOP_COOLDOWN_S * record.preemptions
        assert record.queue_s <= all_s - at_its_least_s(job) + cools_s + 1e-6

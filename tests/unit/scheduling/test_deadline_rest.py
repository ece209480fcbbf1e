"""Sharing the rest, with most turns at once and again after some jobs may get less: the same as turn by turn."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.deadline import DeadlineParameters
from elastic_tfjob.scheduling.profiles.deadline.deadline_round import DeadlineRound, JobCase
from elastic_tfjob.scheduling.profiles.deadline.spare_capacity import SpareCapacity
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Snapshot
from elastic_tfjob.simulation.speed_models.ps import MODELS, PsTrueSpeed
from harness.effort import effort

from .build import node, servers, workers


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Jobs of many sizes and lengths, of which some run, in a cluster that is too small for all at their largest."""
    jobs = []
    for k in range(draw(st.integers(1, 12))):
        steps = draw(st.sampled_from([100.0, 1000.0, 20000.0]))
        group = servers(1) if draw(st.booleans()) else servers(1, 1, 3)
        spec = JobSpec(
            f"j{k:02}",
            -float(draw(st.integers(0, 500))),
            (group, workers(1, 1, draw(st.integers(1, 5)), gpus=draw(st.sampled_from([0, 1])))),
            total_steps=steps,
        )
        job = Job(spec, speed=PsTrueSpeed(steps, MODELS[draw(st.sampled_from(sorted(MODELS)))]))
        if draw(st.booleans()):
            placement = {"PS": ("n",), "Worker": ("n",)}
            job = replace(job, placement=placement, phase="running", steps_per_s=1.0, since_s=-100.0)
        jobs.append(job)
    nodes = {"n": node("n", gpus=draw(st.integers(1, 12)), cpus=draw(st.integers(12, 60)))}
    return Snapshot(0.0, nodes, {job.key: job for job in jobs})


def one_by_one(deadline_round: DeadlineRound) -> None:
    """What `share` has to come to, without its arrays."""
    rest = SpareCapacity(deadline_round)
    rest._look(None)
    free = rest._free()
    entries = [rest._next(k, free) for k, increments in enumerate(rest._increments) if len(increments)]
    rest._one_by_one([entry for entry in entries if entry is not None], free)


@settings(max_examples=effort(13, 40), deadline=None)
@given(world=worlds(), draw=st.data())
def test_spare_capacity_computed_at_once_is_the_same_as_one_by_one(world: Snapshot, draw: Any) -> None:
    """Some rounds, as where one size after the other finds no nodes."""
    round_ = Round(world, build("deadline", parse_profile("deadline", {})))
    deadline_round = DeadlineRound(round_, DeadlineParameters())
    cases = deadline_round.cases
    bases = [job_case.row for job_case in cases]
    rest = SpareCapacity(deadline_round)
    rest.share()
    for _ in range(4):
        shared = [job_case.row for job_case in cases]
        back(cases, bases)
        one_by_one(deadline_round)
        assert shared == [job_case.row for job_case in cases]
        grown = [n for n, job_case in enumerate(cases) if job_case.row > bases[n]]
        if not grown:
            return
        lowered = draw.draw(st.lists(st.sampled_from(grown), min_size=1, max_size=3, unique=True))
        for n in lowered:
            cases[n].most = draw.draw(st.integers(bases[n], cases[n].row - 1))
        back(cases, bases)
        rest.share(lowered)


def back(cases: list[JobCase], rows: list[int]) -> None:
    for job_case, row in zip(cases, rows, strict=True):
        job_case.row = row

"""What becomes of live jobs: the simulator goes on from a Snapshot as the operator has it."""

from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.scheduling.profiles import parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Node, ReplicaGroup
from elastic_tfjob.simulation.foresee import COSTS, ForecastRun, World, foresee
from elastic_tfjob.speed.history import Conditions, History, Lesson
from elastic_tfjob.speed.optimus import believe

NOW = 1_000_000.0
BOOT_S = COSTS.boot_cpu_s
"""Of a replica with one CPU."""


def spec(name: str, *, workers: int = 1, most: int | None = None, **more: Any) -> JobSpec:
    each = Resources(1000, 0, 0, 1)
    groups = (ReplicaGroup("PS", each, 1, 1, 1), ReplicaGroup("Worker", each, workers, workers, most or workers))
    return JobSpec(f"ns/{name}", more.pop("arrival_s", NOW), groups, **more)


def runs(name: str, *, rate: float, total: float | None, nodes: tuple[str, ...] = ("n0",), **more: Any) -> Job:
    """At step 100 since a minute, with one PS on the first node and a worker on each."""
    job = Job(
        spec(name, workers=len(nodes), total_steps=total, arrival_s=NOW - 100, **more),
        {"PS": nodes[:1], "Worker": nodes},
        "running",
        steps=100.0,
        observed_s=NOW,
        steps_per_s=rate,
        since_s=NOW - 60,
    )
    return replace(job, speed=believe({(1, len(nodes)): rate})) if rate else job


def world(*jobs: Job, nodes: int = 1, cpu: int = 2, profile: str = "fifo", **parameters: Any) -> World:
    size = Resources(1000 * cpu, 1 << 40, 0, 100)
    return World(
        NOW,
        {f"n{i}": Node(f"n{i}", size, size) for i in range(nodes)},
        {job.key: job for job in jobs},
        parameters.pop("history", History()),
        profile,
        parse_profile(profile, parameters),
    )


def fate(course: ForecastRun, name: str) -> tuple[float | None, float | None]:
    """Start and end, in seconds from now."""
    found = course.fates[f"ns/{name}"]
    return (
        None if found.start_s is None else found.start_s - NOW,
        None if found.finish_s is None else round(found.finish_s - NOW, 3),
    )


def test_a_job_that_runs_ends_at_its_present_speed() -> None:
    course = foresee(world(runs("a", rate=5, total=600)), 60)
    assert fate(course, "a") == (None, 100)
    assert (course.fates["ns/a"].source, course.until_s) == ("measured", None)


def test_a_waiting_job_starts_when_the_other_has_ended() -> None:
    waiting = Job(spec("w", total_steps=300, duration_s=60))
    course = foresee(world(runs("a", rate=5, total=600), waiting), 60)
    assert fate(course, "w") == (100, 100 + BOOT_S + 60)
    assert course.fates["ns/w"].source == "estimated"


def test_a_waiting_job_is_as_fast_as_earlier_jobs_of_its_name() -> None:
    lesson = Lesson("u", 1000.0, 100.0, {(1, 1): 10.0}, {(1, 1): Conditions(1000.0, 1000.0)})
    history = History().learned("ns", "w", lesson)
    waiting = Job(spec("w", model="w", total_steps=500))
    course = foresee(world(waiting, history=history), 60)
    assert fate(course, "w") == (0, BOOT_S + 50)
    assert course.fates["ns/w"].source == "history"


def test_an_end_that_nobody_knows_is_not_invented_and_its_place_stays_taken() -> None:
    silent, endless = runs("a", rate=0, total=None), runs("b", rate=3, total=None, nodes=("n1",))
    waiting = Job(spec("w", total_steps=300, duration_s=60))
    course = foresee(world(silent, endless, waiting, nodes=2), 60)
    assert [fate(course, name) for name in "abw"] == [(None, None)] * 3
    assert [course.fates[f"ns/{name}"].source for name in "abw"] == [None, None, "estimated"]


def test_a_job_with_a_duration_alone_ends_after_it() -> None:
    assert fate(foresee(world(runs("a", rate=0, total=None, duration_s=90)), 60), "a") == (None, 30)


@pytest.mark.parametrize("profile", ["deadline", "kips", "las", "optimus", "aryl", "specon", "hull", "rebalance"])
def test_every_profile_comes_to_an_end_where_some_job_never_does(profile: str) -> None:
    jobs = [runs("a", rate=5, total=600), runs("b", rate=0, total=None, nodes=("n1",))]
    waits = Job(spec("w", most=3, total_steps=300, duration_s=60))
    course = foresee(world(*jobs, waits, nodes=2, cpu=3, profile=profile), 20)
    assert (course.fates["ns/a"].finish_s is not None, course.until_s) == (True, None)


def test_kips_lends_cpu_and_the_job_is_faster_by_it() -> None:
    busy = replace(runs("a", rate=5, total=5100), cpu_use={"PS": 0.2, "Worker": 1.0})
    alone = foresee(world(busy, cpu=2), 60)
    with_more = foresee(world(busy, cpu=8, profile="kips"), 60)
    assert fate(alone, "a") == (None, 1000)
    end = fate(with_more, "a")[1]
    assert end is not None
    assert 1000 / 8 < end < 1000 / 4


def test_out_of_time_it_says_until_when_it_looked() -> None:
    jobs = [runs("a", rate=5, total=600), *(Job(spec(f"w{k}", total_steps=9, duration_s=60)) for k in range(20))]
    course = foresee(world(*jobs), 0.0)
    assert course.until_s is not None
    assert course.fates["ns/w19"].finish_s is None

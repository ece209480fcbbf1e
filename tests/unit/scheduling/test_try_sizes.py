"""Sizes that nobody measured are tried by profiles that go by speed: while nobody waits, one at a time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.reasons import as_reason
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.speed.optimus import believe

from .build import job, node, plan, rates, servers, workers

Seen = Mapping[tuple[int, int], float]
NOW = 1000.0
COOLDOWN = {"cooldown_s": 60.0}


def running(size: tuple[int, int], seen: Seen, *, steps: float = 1e6, **more: Any) -> Job:
    """At so many PSs and workers, and measured at these sizes."""
    on = {"PS": ("n",) * size[0], "Worker": ("n",) * size[1]}
    speed = more.pop("speed", believe(seen))
    groups = servers(1, 1, 2), workers(1, 1, 3)
    return job("j", *groups, steps=steps, on=on, speed=speed, steps_per_s=seen.get(size, 0.0), observed_s=NOW, **more)


def decided(j: Job, *others: Job, profile: str = "hull", cpus: float = 64, **settings: Any) -> Plan:
    cluster = [node("n", gpus=8, cpus=cpus)]
    return plan(profile, cluster, [j, *others], now=NOW, **{**COOLDOWN, "oracle": False, **settings})


def tried(found: Plan) -> tuple[int, int] | None:
    target = found.changes.get("j")
    if target is None or as_reason(target.reason).code != "tries-size":
        return None
    return target.replicas.get("PS", 0), target.replicas.get("Worker", 0)


@pytest.mark.parametrize("profile", ["hull", "dl2", "optimus"])
def test_twice_the_ps_are_tried_then_the_workers_then_both_and_then_it_is_decided(profile: str) -> None:
    known = {(1, 1): 1.0}
    for size, rate in (((2, 1), 0.9), ((1, 2), 0.8), ((2, 2), 0.7)):
        assert tried(decided(running((1, 1), known), profile=profile)) == size
        known[size] = rate
    assert not decided(running((1, 1), known), profile=profile).changes
    assert decided(running((1, 1), {**known, (1, 2): 1.9}), profile=profile).changes["j"].replicas["Worker"] == 2


def test_the_next_size_is_twice_the_fastest_up_to_the_maximum() -> None:
    groups = servers(1, 1, 8), workers(1, 1, 3)
    known = {(1, 1): 1.0, (2, 1): 1.5, (4, 1): 1.2, (2, 2): 2.0}
    j = replace(running((2, 2), known), spec=job("j", *groups, steps=1e6).spec)
    assert tried(decided(j)) == (2, 3)
    assert tried(decided(replace(j, speed=believe({**known, (2, 3): 1.9})))) is None, "five are known"


def test_a_size_that_has_no_room_leaves_the_others() -> None:
    j = running((1, 1), {(1, 1): 1.0})
    held = j.spec.demand({"PS": 1, "Worker": 2}).cpu_millicores / 1000
    assert tried(decided(j, cpus=held)) in ((2, 1), (1, 2))


def test_a_job_without_ps_tries_workers() -> None:
    j = job("j", workers(1, 1, 4), steps=1e6, on={"Worker": ("n",)}, speed=believe({(0, 1): 1.0}), steps_per_s=1.0)
    assert decided(replace(j, observed_s=NOW)).changes["j"].replicas == {"Worker": 2}


@pytest.mark.parametrize(
    ("changed", "settings"),
    [
        ({"steps": 600.0, "since_s": NOW - 60}, {}),
        ({"rescaled_s": NOW - 10}, {}),
        ({"since_s": NOW - 10}, {}),
        ({"speed": rates(1.0)}, {}),
        ({"speed": None}, {}),
        ({"memory": {"tries": 5.0}}, {}),
        ({}, {"cooldown_s": 50.0}),
        ({}, {"try_sizes": 0}),
        ({}, {"try_sizes": 1}),
        ({}, {"try_part": 0.0}),
    ],
    ids=[
        "nearly done",
        "just resized",
        "just begun",
        "told",
        "nothing known",
        "in vain",
        "short",
        "off",
        "enough",
        "no part",
    ],
)
def test_a_job_tries_no_other_size(changed: dict[str, Any], settings: dict[str, Any]) -> None:
    base = running((1, 1), {(1, 1): 1.0})
    assert tried(decided(base)) == (2, 1)
    steps = changed.pop("steps", None)
    j = replace(base, **changed) if steps is None else running((1, 1), {(1, 1): 1.0}, steps=steps, **changed)
    assert tried(decided(j, **settings)) is None


def test_no_size_is_tried_where_a_job_waits() -> None:
    wide = job("wide", workers(100), steps=10)
    assert tried(decided(running((1, 1), {(1, 1): 1.0}), wide)) is None


def test_no_other_size_is_tried_before_the_present_one_is_measured() -> None:
    """Not even that is known yet."""
    assert tried(decided(running((1, 2), {(1, 1): 1.0}))) is None


@pytest.mark.parametrize("part", [0.05, 0.1, 0.5])
def test_tries_take_at_most_their_part_of_the_job_even_if_it_stands_still_meanwhile(part: float) -> None:
    """Each try may last until the round after its cooldown: 60 s and 15 s here."""
    for tries in range(4):
        for steps in (500.0, 2000.0, 20_000.0):
            base = running((1, 1), {(1, 1): 1.0}, steps=steps, memory={"tries": float(tries)})
            if tried(decided(base, try_part=part, try_sizes=9)) is not None:
                assert (tries + 1) * 75.0 <= part * (steps + NOW)


def test_tries_are_counted() -> None:
    """So that a job which reports nothing is not resized for ever."""
    found = decided(running((1, 1), {(1, 1): 1.0}, memory={"tries": 2.0}))
    assert found.memory["j"] == {"tries": 3.0}


def test_a_few_jobs_try_at_once_and_only_where_there_is_room() -> None:
    known = {(1, 1): 1.0}
    jobs = [replace(j, spec=replace(j.spec, key=f"j{k}")) for k in range(20) for j in [running((1, 1), known)]]
    cpus = sum(j.spec.demand(j.counts).cpu_millicores for j in jobs[:8]) / 1000
    assert not decided(*jobs[:8], cpus=cpus).changes, "8 jobs hold all CPU"
    cluster = [node("n", gpus=64, cpus=64)]
    found = plan("hull", cluster, jobs, now=NOW, **COOLDOWN)
    assert len(found.changes) == 8
    assert {as_reason(target.reason).code for target in found.changes.values()} == {"tries-size"}

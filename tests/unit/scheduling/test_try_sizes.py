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
def test_a_worker_is_tried_then_a_ps_and_then_it_is_decided(profile: str) -> None:
    assert tried(decided(running((1, 1), {(1, 1): 1.0}), profile=profile)) == (1, 2)
    assert tried(decided(running((1, 1), {(1, 1): 1.0, (1, 2): 0.9}), profile=profile)) == (2, 1)
    known = {(1, 1): 1.0, (1, 2): 0.9, (2, 1): 0.8}
    assert not decided(running((1, 1), known), profile=profile).changes
    assert decided(running((1, 1), {**known, (1, 2): 1.9}), profile=profile).changes["j"].replicas["Worker"] == 2


@pytest.mark.parametrize(
    ("changed", "settings"),
    [
        ({"steps": 299.0}, {}),
        ({"rescaled_s": NOW - 10}, {}),
        ({"since_s": NOW - 10}, {}),
        ({"speed": rates(1.0)}, {}),
        ({"speed": None}, {}),
        ({"memory": {"tries": 5.0}}, {}),
        ({}, {"cooldown_s": 50.0}),
        ({}, {"try_sizes": 0}),
        ({}, {"try_sizes": 1}),
    ],
    ids=["nearly done", "just resized", "just begun", "told", "nothing known", "in vain", "short", "off", "enough"],
)
def test_a_job_tries_no_other_size(changed: dict[str, Any], settings: dict[str, Any]) -> None:
    base = running((1, 1), {(1, 1): 1.0})
    assert tried(decided(base)) == (1, 2)
    steps = changed.pop("steps", None)
    j = replace(base, **changed) if steps is None else running((1, 1), {(1, 1): 1.0}, steps=steps)
    assert tried(decided(j, **settings)) is None


def test_no_size_is_tried_where_a_job_waits() -> None:
    wide = job("wide", workers(100), steps=10)
    assert tried(decided(running((1, 1), {(1, 1): 1.0}), wide)) is None


def test_no_other_size_is_tried_before_the_present_one_is_measured() -> None:
    """Not even that is known yet."""
    assert tried(decided(running((1, 2), {(1, 1): 1.0}))) is None


def test_tries_are_counted() -> None:
    """So that a job which reports nothing is not resized for ever."""
    found = decided(running((1, 1), {(1, 1): 1.0}, memory={"tries": 2.0}))
    assert found.memory["j"] == {"tries": 3.0}


def test_a_few_jobs_try_at_once_and_only_where_there_is_room() -> None:
    known = {(1, 1): 1.0}
    jobs = [replace(j, spec=replace(j.spec, key=f"j{k}")) for k in range(20) for j in [running((1, 1), known)]]
    assert not decided(*jobs[:8]).changes, "8 workers hold all accelerators"
    cluster = [node("n", gpus=64, cpus=64)]
    found = plan("hull", cluster, jobs, now=NOW, **COOLDOWN)
    assert len(found.changes) == 8
    assert {as_reason(target.reason).code for target in found.changes.values()} == {"tries-size"}

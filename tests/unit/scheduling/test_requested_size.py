"""The size that a person requests: what a plan says of one that has no room."""

from dataclasses import replace

import pytest

from elastic_tfjob.scheduling.profiles import PROFILES
from elastic_tfjob.scheduling.snapshot import Job

from .build import job, node, plan, servers, workers


def asked(ps: int, count: int, *, cpu: dict[str, tuple[int, ...]] | None = None) -> Job:
    """One PS and one worker on node a, of which a person wants more."""
    on: dict[str, tuple[str, ...]] = {"PS": ("a",), "Worker": ("a",)}
    made = job("j", servers(1, ps, ps, cpus=1), workers(1, count, count, cpus=1, gpus=0), on=on, cpu=cpu or {})
    return replace(made, spec=replace(made.spec, asked="wanted"))


@pytest.mark.parametrize(
    ("ps", "count", "free", "said"),
    [
        (1, 4, 2, "no room for the requested 4 workers; there is room for 3 workers"),
        (1, 4, 0, "no room for the requested 4 workers; there is room for 1 worker"),
        (3, 3, 2, "no room for the requested 3 PS + 3 workers; there is room for 2 PS + 2 workers"),
        (1, 4, 3, None),
        (1, 1, 0, None),
    ],
)
@pytest.mark.parametrize("profile", ["fifo", "fixed", "kips", "elastic"])
def test_a_plan_says_how_much_of_a_requested_size_has_room(
    profile: str, ps: int, count: int, free: int, said: str | None
) -> None:
    nodes = [node("a", cpus=2 + free, gpus=0)]
    decided = plan(profile, nodes, [asked(ps, count)])
    reason = decided.sizes_without_room.get("j")
    assert (str(reason) if reason is not None else None) == said
    if said is not None:
        assert decided.targets["j"].replicas == {"PS": 1, "Worker": 1}


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_cpu_that_is_lent_makes_room_for_a_requested_size(profile: str) -> None:
    """Also where no job could give replicas."""
    lent = job("k", workers(1, 1, 1, cpus=1, gpus=0), on={"Worker": ("a",)}, cpu={"Worker": (2000,)})
    decided = plan(profile, [node("a", cpus=4, gpus=0)], [asked(1, 2), lent])
    assert decided.targets["j"].replicas == {"PS": 1, "Worker": 2}
    assert decided.targets["k"].cpu == {}
    assert not decided.sizes_without_room


def test_what_a_job_would_give_up_for_its_size_is_no_room_for_another_one() -> None:
    """Of three PS each keeps one, so that two workers more have room, beside two for which there is room anyway."""
    nodes = [node("a", cpus=5, gpus=0), node("b", cpus=5, gpus=0)]
    jobs = [
        job(key, servers(3, 1, 1, cpus=1), workers(1, 9, 9, cpus=1, gpus=0), on={"PS": (at,) * 3, "Worker": (at,)})
        for key, at in (("j", "a"), ("k", "b"))
    ]
    found = plan("fifo", nodes, jobs).sizes_without_room
    assert [found[key].facts["fits"] for key in ("j", "k")] == [{"Worker": 5}, {"Worker": 5}]


def test_lent_cpu_counts_as_room() -> None:
    lent = job("k", workers(1, 1, 1, cpus=1, gpus=0), on={"Worker": ("a",)}, cpu={"Worker": (2000,)})
    reason = plan("kips", [node("a", cpus=4, gpus=0)], [asked(1, 9), lent]).sizes_without_room["j"]
    assert reason.facts["fits"] == {"Worker": 2}

"""Every profile decides as it did when recorded_plans.json.gz was written. What is to change is recorded anew, with
the reason in the commit's message (see recorded.py)."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from harness.effort import effort

from .recorded import CASES, applies, built, decided, read

SAME = {
    ("fixed", "fifo-backfill spread"),
    ("fifo-backfill", "fifo-backfill best-fit"),
    ("drf", "drf best-fit"),
}
"""Two names of one thing: the placement is the default, and `fixed` differs in what the operator does of it."""


@pytest.fixture(scope="module")
def known() -> list[dict[str, Any]]:
    return read()


@pytest.mark.parametrize("case", CASES)
def test_plans_stay_as_they_were(case: str, known: list[dict[str, Any]]) -> None:
    compared, first = 0, list(CASES).index(case)
    for each in known[first % effort(2, 1) :: effort(2, 1)]:  # two profiles that follow each other see all of them
        snapshot = built(each["snapshot"])
        if applies(case, snapshot):
            compared += 1
            assert decided(case, snapshot) == each["plans"][case], f"seed {each['snapshot']['seed']}"
    assert compared > effort(5, 10)


@pytest.mark.parametrize("case", CASES)
def test_the_memory_of_other_profiles_changes_no_plan(case: str, known: list[dict[str, Any]]) -> None:
    """A profile goes by what it remembers itself."""
    for each in known[: effort(7, 20)]:
        snapshot = built(each["snapshot"])
        if applies(case, snapshot):
            jobs = [replace(job, memory={"other.number": 1.0}) for job in snapshot.jobs.values()]
            plan = decided(case, snapshot.evolve(snapshot.now, changed=jobs))
            for memory in plan.get("memory", {}).values():
                assert memory.pop("other.number") == 1.0, "what others remember is kept"
            assert plan == each["plans"][case]


def test_the_recorded_plans_change_something_under_each_profile(known: list[dict[str, Any]]) -> None:
    """Each profile changes something, and the snapshots have what new profiles work on."""
    for case in CASES:
        assert sum(len(each["plans"].get(case, {"changes": ()})["changes"]) for each in known) > 10, case
    nodes = [node for each in known for node in each["snapshot"]["nodes"]]
    jobs = [job for each in known for job in each["snapshot"]["jobs"]]
    assert {node["loan"] for node in nodes} == {"own", "busy", "offered", "loaned", "reclaiming"}
    assert len({node["accelerator_speed"] for node in nodes}) > 1
    assert {"running", "rescaling"} <= {job.get("phase") for job in jobs}
    assert any(job.get("cpu") for job in jobs)
    for past in ("loss", "memory", "stops", "stopped_s", "migrations", "model"):
        assert any(job.get(past) for job in jobs), past
    assert any(each["snapshot"].get("history") for each in known)
    assert not all(job.get("movable", True) for job in jobs)


def test_each_case_decides_otherwise_than_every_other_one(known: list[dict[str, Any]]) -> None:
    """A profile that decides as another one on all snapshots could lose what is its own unseen."""
    alike = set()
    for pair in combinations(CASES, 2):
        both = [tuple(each["plans"][case] for case in pair) for each in known if set(pair) <= each["plans"].keys()]
        if both and all(one == other for one, other in both):
            alike.add(pair)
    assert alike == SAME

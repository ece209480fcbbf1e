"""Each change of a plan has a cause."""

from dataclasses import replace

import pytest

from elastic_tfjob.scheduling.plan import CAUSES, STOPS, STORED_CAUSES, cause_of
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job, Snapshot

from .build import job, node, plan, servers, workers

NODES = [node(name, cpus=8) for name in ("a", "b")]
ON = {"PS": ("a",), "Worker": ("a", "a")}


def round_of(known: Job) -> Round:
    nodes = {each.name: each for each in NODES}
    return Round(Snapshot(0.0, nodes, {known.key: known}), build("fifo", parse_profile("fifo", {})))


def running() -> Job:
    return job("j", servers(1, 1, 2, cpus=1), workers(2, 1, 4, cpus=1, gpus=0), on=ON)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"Worker": 1}, "start"),
        ({"Worker": 1}, {}, "preempt"),
        ({"Worker": 1}, {"Worker": 0}, "preempt"),
        ({"Worker": 1}, {"Worker": 2}, "grow"),
        ({"Worker": 1}, {"Worker": 2, "PS": 1}, "grow"),
        ({"Worker": 2}, {"Worker": 1}, "shrink"),
        ({"Worker": 2, "PS": 1}, {"Worker": 2}, "shrink"),
        ({"Worker": 2, "PS": 1}, {"Worker": 1, "PS": 2}, "reshape"),
        ({"Worker": 2}, {"Worker": 2, "PS": 0}, "cpu"),
    ],
)
def test_sizes_tell_a_cause(before: dict[str, int], after: dict[str, int], told: str) -> None:
    assert cause_of(before, after, moved=False, stopped=False) == told


def test_stops_and_moves_have_causes_of_their_own() -> None:
    assert cause_of({}, {"Worker": 1}, moved=True, stopped=True) == "resume"
    assert cause_of({"Worker": 1}, {"Worker": 1}, moved=True, stopped=True) == "migrate"
    assert set(STOPS) < STORED_CAUSES < set(CAUSES)


def test_a_round_names_the_cause_of_each_change() -> None:
    known = running()

    def cause(act: str, *args: object) -> str | None:
        round_ = round_of(known)
        getattr(round_, act)(known, *args)
        return round_.changes["j"].cause

    assert cause("resize", {"PS": 1, "Worker": 3}, "why") == "grow"
    assert cause("resize", {"PS": 1, "Worker": 1}, "why", "deadline") == "deadline"
    assert cause("move", ("Worker", 1), "b", "why") == "migrate"
    assert cause("grant", {"PS": (1500,)}, "why") == "cpu"
    assert cause("stop", "why") == "preempt"
    assert cause("stop", "why", "deadline") == "deadline"


def test_cpu_that_is_granted_beside_a_change_is_not_its_cause() -> None:
    round_, known = round_of(running()), running()
    round_.resize(known, {"PS": 1, "Worker": 1}, "why", "deadline")
    round_.grant(known, {"PS": (1500,)}, "CPU")
    assert (round_.changes["j"].cause, str(round_.changes["j"].reason)) == ("deadline", "why")


def test_the_cause_is_resume_for_a_job_that_was_stopped() -> None:
    waits = job("j", workers(1, cpus=1, gpus=0), stops=1, stopped_s=-100.0)
    assert plan("fifo", NODES, [waits]).changes["j"].cause == "resume"
    assert plan("fifo", NODES, [replace(waits, stops=0)]).changes["j"].cause == "start"


def test_a_lost_node_and_what_a_person_asks_are_causes() -> None:
    lost = job("j", workers(1, cpus=1, gpus=0), on={"Worker": ("gone",)})
    assert plan("fifo", NODES, [lost]).changes["j"].cause == "repair"
    fewer = job("j", workers(1, 1, 1, cpus=1, gpus=0), on={"Worker": ("a", "a")})
    assert plan("fifo", NODES, [replace(fewer, spec=replace(fewer.spec, asked="scaled"))]).changes["j"].cause == "asked"

"""A plan that cannot be carried out is refused, whatever the steps of a profile do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.validation import InvalidPlanError

from .build import job, node, snapshot, workers

Act = Callable[[Round, Job], Any]

RUNS = job("a", workers(2, 1, 4, gpus=0, cpus=1), on={"Worker": ("n", "n")})
SMALL = job("a", workers(2, 1, 4, gpus=0, cpus=1), on={"Worker": ("n",)})
FIXED = job("a", workers(2, gpus=0, cpus=1), on={"Worker": ("n", "n")})
FINAL = replace(RUNS, spec=replace(RUNS.spec, stoppable=False))
WAITS = job("a", workers(2, 1, 4, gpus=0, cpus=1))


def planned(found: Job, act: Act, cpus: float = 8) -> Any:
    def step(round_: Round) -> None:
        act(round_, found)

    profile = replace(build("fifo", parse_profile("fifo", {})), name="bad", steps=(step,))
    return schedule(snapshot([node("n", cpus=cpus), node("m", cpus=1)], [found]), profile)


@pytest.mark.parametrize(
    ("found", "act", "says"),
    [
        (RUNS, lambda r, j: r.resize(j, {"Worker": 5}, "x"), "5 replicas of Worker; allowed: 1 to 4"),
        (SMALL, lambda r, j: r.resize(j, {"Worker": -1}, "x"), "0 replicas of Worker; allowed: 1 to 4"),
        (FIXED, lambda r, j: r.resize(j, {"Worker": 3}, "x"), "3 replicas of Worker; allowed: 2 to 2"),
        (WAITS, lambda r, j: r.start(j, {"Worker": 5}, "x"), "5 replicas of Worker; allowed: 1 to 4"),
        (WAITS, lambda r, j: r.assign(j, {"Worker": ("mars",)}, "x"), "node 'mars', which does not exist"),
        (WAITS, lambda r, j: r.assign(j, {"Worker": ("m", "m")}, "x"), "node 'm', which has no room"),
        (FINAL, lambda r, j: r.assign(j, {}, "x"), "has no checkpoint"),
        (RUNS, lambda r, j: r.assign(j, {"Worker": ("m",)}, "x", "whim"), "cause 'whim'"),
    ],
)
def test_it_is_refused_by_profile_job_and_what_is_allowed(found: Job, act: Act, says: str) -> None:
    with pytest.raises(InvalidPlanError, match="profile bad: job a: ") as raised:
        planned(found, act)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("found", "act", "counts"),
    [
        (RUNS, lambda r, j: r.resize(j, {"Worker": 4}, "x"), {"Worker": 4}),
        (WAITS, lambda r, j: r.start(j, {"Worker": 1}, "x"), {"Worker": 1}),
        (RUNS, lambda r, j: r.stop(j, "x"), {}),
    ],
)
def test_what_a_job_allows_is_planned(found: Job, act: Act, counts: dict[str, int]) -> None:
    assert planned(found, act).changes["a"].replicas == counts


def test_a_job_that_holds_more_than_its_node_has_may_stay_there() -> None:
    made = planned(RUNS, lambda r, j: r.resize(j, {"Worker": 1}, "x"), cpus=0.5)
    assert made.changes["a"].nodes == {"Worker": ("n",)}


def test_a_step_that_ends_the_program_does_not_end_the_operator() -> None:
    def exits(_: Round, __: Job) -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="profile bad: a step ended the program"):
        planned(RUNS, exits)

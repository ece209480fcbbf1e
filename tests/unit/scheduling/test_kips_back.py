"""kips goes back from sizes that turned out slower, and then waits longer and longer before it grows again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.kips import LONGEST_WAIT_S, UNTIL, WAIT
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Job, Snapshot
from elastic_tfjob.speed.history import Conditions
from elastic_tfjob.speed.optimus import believe

from .build import job, node, servers, snapshot, workers

COOLDOWN_S = 30.0
NOW = 1000.0


def kips(snapshot_: Snapshot) -> Plan:
    return schedule(snapshot_, build("kips", parse_profile("kips", {"cooldown_s": COOLDOWN_S})))


def trains(
    workers_: int, seen: Mapping[int, float], use: float = 0.5, with_cpu: Mapping[int, float] | None = None, **more: Any
) -> Job:
    """A PS and workers of 1 CPU on node `n`, for a long time, with the speeds seen by workers."""
    trained = job(
        "a",
        servers(1),
        workers(1, 1, 8, gpus=0, cpus=1),
        steps=1e6,
        on={PS: ("n",), WORKER: ("n",) * workers_},
        steps_per_s=more.pop("steps_per_s", seen.get(workers_, 0.0)),
        observed_s=more.pop("observed_s", NOW),
        cpu_use=more.pop("cpu_use", {PS: 0.1, WORKER: use}),
        speed=believe(
            {(1, n): rate for n, rate in seen.items()},
            conditions={(1, n): Conditions(held) for n, held in (with_cpu or {}).items()},
        ),
    )
    return replace(trained, **more)


def has(plan: Plan) -> int:
    """Workers after the plan."""
    return plan.targets["a"].replicas[WORKER]


def decided(trained: Job, cpus: float = 16) -> Plan:
    return kips(snapshot([node("n", cpus=cpus)], [trained], NOW))


@pytest.mark.parametrize("use", [0.2, 0.5, 0.95])
def test_a_slower_size_is_left_however_busy_the_job_is(use: float) -> None:
    """Four workers that wait for the network are less busy than one was."""
    plan = decided(trains(4, {1: 10.0, 4: 8.0}, use))
    assert has(plan) == 1
    assert plan.changes["a"].why.code == "slower"


def test_a_size_that_is_hardly_slower_stays() -> None:
    assert has(decided(trains(4, {1: 10.0, 4: 9.8}))) == 4


def test_a_speed_that_is_only_expected_is_not_judged() -> None:
    """The job pauses for its rescale to four workers, whose speed is known from before."""
    assert has(decided(trains(4, {1: 10.0, 4: 8.0}, observed_s=NOW + 60))) == 4


def test_a_smaller_size_with_more_cpu_was_no_better() -> None:
    """One worker was faster with 9 CPUs than four are with one each."""
    assert has(decided(trains(4, {1: 10.0, 4: 8.0}, with_cpu={1: 9000.0, 4: 1000.0}))) == 4


def test_each_time_it_waits_twice_as_long() -> None:
    trained, waits = trains(4, {1: 10.0, 4: 8.0}), []
    for _ in range(3):
        plan = decided(trained)
        waits.append(plan.memory["a"][WAIT])
        trained = replace(trained, memory=plan.memory["a"])
    assert waits == [2 * COOLDOWN_S, 4 * COOLDOWN_S, 8 * COOLDOWN_S]


def test_a_faster_size_that_the_bounds_forbid_hides_no_other() -> None:
    trained = trains(4, {1: 10.0, 2: 9.5, 4: 5.0})
    spec = job("a", servers(1), workers(2, 2, 8, gpus=0, cpus=1), steps=1e6).spec
    assert has(decided(replace(trained, spec=spec))) == 2


@pytest.mark.parametrize(("left_s", "grows"), [(1.0, False), (0.0, True), (-100.0, True)])
def test_a_job_that_shrank_again_grows_only_after_its_backoff(left_s: float, *, grows: bool) -> None:
    trained = trains(1, {1: 10.0}, 0.95, memory={WAIT: 120.0, UNTIL: NOW + left_s})
    nodes = [node("n", cpus=2), node("m", cpus=8)]  # with no CPU in place left, which would come first
    assert (has(kips(snapshot(nodes, [trained], NOW))) > 1) is grows


def test_types_that_work_at_once_do_not_keep_cpu_from_the_one_that_sets_the_pace() -> None:
    """The worker is at its limit all the time; the PS uses a quarter of what it was lent, beside it."""
    held: dict[str, Any] = {"cpu_use": {PS: 0.25, WORKER: 1.0}, "cpu": {PS: (4000,)}}
    cpu = decided(trains(1, {1: 10.0}, **held), cpus=5).targets["a"].cpu
    assert cpu[WORKER][0] > 3000


@pytest.mark.parametrize("said", [1e308, -1e308])
def test_a_backoff_that_others_write_is_bounded(said: float) -> None:
    plan = decided(trains(4, {1: 10.0, 4: 8.0}, memory={WAIT: said, UNTIL: said}))
    assert 2 * COOLDOWN_S <= plan.memory["a"][WAIT] <= LONGEST_WAIT_S
    nodes = [node("n", cpus=2), node("m", cpus=8)]
    assert has(kips(snapshot(nodes, [trains(1, {1: 10.0}, 0.95, memory={UNTIL: said})], NOW))) > 1


def grown(trained: Job) -> int:
    """Workers after a round with room for eight, and no CPU in place left, which would come first."""
    there = 1 + len(trained.placement[WORKER])
    return has(kips(snapshot([node("n", cpus=there), node("m", cpus=8)], [trained], NOW)))


ALIKE = {1: 1000.0, 2: 1000.0, 4: 1000.0}


def test_a_size_that_was_slower_is_not_tried_again_nor_one_on_the_way_to_it() -> None:
    """A busy worker says that four are faster. They were not, and nothing has changed since."""
    trained = trains(1, {1: 4.0, 4: 2.7}, 1.0, with_cpu=ALIKE)
    for now_s in (NOW, NOW + 3600, NOW + 86400):
        assert grown(replace(trained, observed_s=now_s)) == 1
    assert grown(trains(1, {1: 4.0}, 1.0, with_cpu=ALIKE)) == 2


def test_a_size_that_was_slower_with_less_cpu_is_tried_again() -> None:
    less_then = {1: 1000.0, 4: 200.0}
    assert grown(trains(1, {1: 4.0, 4: 2.7}, 1.0, with_cpu=less_then)) == 2
    # Two were slower, too, and that with CPU like now: so it stays.
    assert grown(trains(1, {1: 4.0, 2: 3.0, 4: 2.7}, 1.0, with_cpu={**less_then, 2: 1000.0})) == 1


def test_a_trial_at_most_doubles_the_replicas_of_a_type() -> None:
    assert grown(trains(2, {1: 4.0, 2: 7.8}, 1.0, with_cpu=ALIKE)) == 4
    assert grown(trains(4, {1: 4.0, 4: 15.0}, 1.0, with_cpu=ALIKE)) == 8
    assert grown(trains(4, {1: 4.0, 2: 4.2, 4: 4.3}, 1.0, with_cpu=ALIKE)) == 4

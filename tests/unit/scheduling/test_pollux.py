"""The profile `pollux`: an evolutionary search for fair speedups."""

import random
from itertools import product
from typing import Any

import numpy as np
import pytest

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.pollux import MOST_CELLS, FairSpeedups, Search
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Job, Snapshot
from elastic_tfjob.scheduling.steps.goodput import open_with_choices

from .build import job, node, plan, rates, sizes, snapshot, workers

LINEAR = rates(*(float(n) for n in range(1, 9)))
SUBLINEAR = rates(*(n**0.7 for n in range(1, 9)))
OLD = 100_000.0
FREE: dict[str, Any] = {"growth": 0}


def distributed_on(found: Plan) -> dict[str, int]:
    """How many jobs of several nodes are on each node."""
    there: dict[str, int] = {}
    for target in found.targets.values():
        nodes = {name for names in target.nodes.values() for name in names}
        for name in nodes if len(nodes) > 1 else ():
            there[name] = there.get(name, 0) + 1
    return there


def drawn(seed: int, nodes: int = 4, gpus: int = 4) -> Snapshot:
    """Jobs of several sizes and ages, of which some run."""
    draw = random.Random(seed)
    free = {f"n{k}": gpus for k in range(nodes)}
    jobs: list[Job] = []
    for k in range(draw.randint(2, 8)):
        speed = rates(*(n ** draw.uniform(0.4, 1.0) for n in range(1, 9)))
        name = draw.choice(sorted(free))
        n = min(draw.randint(0, 3), free[name])
        free[name] -= n
        on = {WORKER: (name,) * n} if n else None
        jobs.append(job(f"j{k}", workers(1, 1, 8), at=draw.uniform(0, OLD), steps=1e6, speed=speed, on=on))
    return snapshot([node(name, gpus=gpus) for name in (f"n{k}" for k in range(nodes))], jobs, now=OLD)


def test_a_job_that_fits_one_node_is_not_spread() -> None:
    """Four free GPUs on two nodes, two on each; the running job moves over to make room."""
    jobs = [
        job("a", workers(1, 1, 2), steps=1e6, speed=LINEAR, on={WORKER: ("n0", "n0")}),
        job("b", workers(1, 1, 2), steps=1e6, speed=LINEAR, on={WORKER: ("n1", "n1")}),
        job("c", workers(4, 4, 4), steps=1e6, speed=LINEAR),
    ]
    found = plan("pollux", [node("n0", gpus=4), node("n1", gpus=4)], jobs, now=OLD, **FREE)
    assert sizes(found) == {"a": 2, "b": 2, "c": 4}
    assert len(set(found.targets["c"].nodes[WORKER])) == 1


def test_without_repack_replicas_stay_on_their_nodes() -> None:
    """As on a live cluster: `place` chooses nodes for what is added."""
    jobs = [
        job("a", workers(1, 1, 2), steps=1e6, speed=LINEAR, on={WORKER: ("n0",)}),
        job("b", workers(1, 1, 8), steps=1e6, speed=LINEAR, on={WORKER: ("n1",)}),
    ]
    found = plan("pollux", [node("n0", gpus=4), node("n1", gpus=4)], jobs, now=OLD, repack=False, **FREE)
    assert sizes(found)["a"] == 2
    assert all(found.targets[key].nodes[WORKER][0] == name for key, name in (("a", "n0"), ("b", "n1")))


@pytest.mark.parametrize("seed", range(12))
def test_at_most_one_distributed_job_is_on_a_node(seed: int) -> None:
    start = drawn(seed, nodes=5, gpus=3)
    found = schedule(start, build("pollux", parse_profile("pollux", FREE)))
    assert all(number == 1 for number in distributed_on(found).values())
    free = dict.fromkeys(start.nodes, 3)
    for target in found.targets.values():
        for name in target.nodes[WORKER]:
            free[name] -= 1
    assert min(free.values()) >= 0


def test_a_plan_depends_on_the_seed_alone() -> None:
    start = drawn(3)
    profile = build("pollux", parse_profile("pollux", {"generations": 3, "population": 4, **FREE}))
    plans = [
        schedule(Snapshot(start.now, start.nodes, start.jobs, seed), profile).changes for seed in (0, 0, *range(1, 9))
    ]
    assert plans[0] == plans[1]
    assert any(found != plans[0] for found in plans[2:])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fairness", [-1.0, 0.0, 1.0])
def test_the_search_ends_near_the_best_allocation_of_one_node(seed: int, fairness: float) -> None:
    """Compared with all allocations, whether a job changes or not."""
    start = drawn(seed, nodes=1, gpus=6)
    rule = FairSpeedups(fairness=fairness, growth=0)
    round_ = Round(start, build("pollux", parse_profile("pollux", FREE)))
    search = Search(rule, open_with_choices(round_, rule, rule.growth, "pollux"), round_)
    every = [each for each in product(*(range(int(most) + 1) for most in np.minimum(search.most, 6))) if sum(each) <= 6]
    best = search.value(np.array(every)[:, :, None]).max()
    found = search.value(search.run(np.random.default_rng(1))[None])[0]
    assert found == pytest.approx(best, abs=0.02 * abs(best))


def test_many_jobs_and_nodes_get_a_smaller_search() -> None:
    rule = FairSpeedups(population=100, generations=100)
    jobs = [job(f"j{k}", workers(1, 1, 2), steps=1e6, speed=LINEAR) for k in range(400)]
    start = snapshot([node(f"n{k}", gpus=4) for k in range(100)], jobs)
    round_ = Round(start, build("pollux", parse_profile("pollux", {})))
    population, generations = Search(rule, open_with_choices(round_, rule, rule.growth, "pollux"), round_).effort
    assert population == MOST_CELLS // 40_000 == 25
    assert generations == 100


def test_too_many_jobs_and_nodes_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_tfjob.scheduling.profiles.pollux.MOST_CELLS", 3)
    jobs = [job("a", workers(1, 1, 4), steps=1e6, speed=LINEAR, on={WORKER: ("n", "n")}), job("b", workers(1, 1, 4))]
    assert sizes(plan("pollux", [node("n", gpus=4)], jobs, now=OLD)) == {"a": 2, "b": 1}

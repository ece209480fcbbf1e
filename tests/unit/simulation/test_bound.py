"""What no schedule's mean completion time is below."""

from itertools import permutations
from random import Random

import pytest

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, ReplicaGroup
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import SpeedModel
from elastic_tfjob.simulation.speed_models.catalogue import speed_model_named
from elastic_tfjob.simulation.speed_models.ps import MODELS
from elastic_tfjob.simulation.summary import least_mean_jct_s, least_total_s
from elastic_tfjob.simulation.workload import WorkloadJob

GPU = Resources(1000, 1 << 30, 1)


def rigid(key: str, submit_s: float, duration_s: float, gpus: int = 1) -> WorkloadJob:
    return WorkloadJob(key, submit_s, (ReplicaGroup(WORKER, GPU, gpus, gpus, gpus),), duration_s=duration_s)


def elastic(key: str, submit_s: float, steps: float, model: str) -> WorkloadJob:
    request = Resources(1000, 1 << 30, int(MODELS[model].accelerator))
    groups = (ReplicaGroup(PS, Resources(1000, 1 << 30), 1, 1, 4), ReplicaGroup(WORKER, request, 1, 1, 4))
    return WorkloadJob(key, submit_s, groups, total_steps=steps, model=model)


def test_the_bound_for_two_jobs_one_after_the_other_is_exact() -> None:
    """Two jobs of 100 and 10 s that come at once to one GPU: 10 and 110 s."""
    nodes, fixed = uniform_cluster(1, 1, 8, 64), speed_model_named("fixed")
    assert least_mean_jct_s([rigid("a", 0, 100), rigid("b", 0, 10)], nodes, fixed) == pytest.approx(60)
    # on two GPUs each runs alone, and one machine of two GPUs would be faster than that
    assert least_mean_jct_s([rigid("a", 0, 100), rigid("b", 0, 10)], uniform_cluster(2, 1, 8, 64), fixed) == 55
    # a job of 1 s comes while one of 100 s runs, and goes first
    assert least_mean_jct_s([rigid("a", 5, 100), rigid("b", 55, 1)], nodes, fixed) == pytest.approx((101 + 1) / 2)


def test_the_sum_is_that_of_the_best_order() -> None:
    random = Random(1)
    for _ in range(30):
        lengths = [random.uniform(0, 10) for _ in range(5)]
        best = min(sum(sum(order[: k + 1]) for k in range(len(order))) for order in permutations(lengths))
        assert least_total_s([3.0] * 5, lengths) == pytest.approx(best)


def test_the_bound_is_unknown_without_jobs_or_where_one_does_not_fit() -> None:
    nodes = uniform_cluster(1, 1, 8, 64)
    assert least_mean_jct_s([], nodes, speed_model_named("fixed")) is None
    assert least_mean_jct_s([rigid("wide", 0, 100, gpus=2)], nodes, speed_model_named("fixed")) is None
    assert least_mean_jct_s([rigid("a", 0, 100)], nodes, speed_model_named("cpu-share")) is None


@pytest.mark.parametrize("world", ["fixed", "linear", "ps", "ps-measured"])
@pytest.mark.parametrize("profile", ["fifo", "srtf", "hull", "optimus", "kips", "elastic"])
def test_no_profile_is_below_the_bound(world: str, profile: str) -> None:
    for seed in range(3):
        random = Random(seed)
        nodes, model = uniform_cluster(3, 2, 8, 64), speed_model_named(world)
        jobs = [drawn(f"job-{k}", random, world, model) for k in range(12)]
        simulation = Simulation(
            SimulationInput(jobs, nodes, model, seed=seed), build(profile, parse_profile(profile, {}))
        )
        times = [record.jct_s for record in simulation.run().records if record.jct_s is not None]
        assert len(times) == len(jobs)
        bound = least_mean_jct_s(jobs, nodes, model)
        assert bound is not None
        assert 0 < bound <= sum(times) / len(times) + 1e-6


def drawn(key: str, random: Random, world: str, model: SpeedModel) -> WorkloadJob:
    submit_s = random.uniform(0, 500)
    if not world.startswith("ps"):
        return rigid(key, submit_s, random.uniform(10, 500), random.choice((1, 2, 4)))
    name = random.choice(sorted(MODELS))
    once = elastic(key, submit_s, 1.0, name)
    rate = model.true_speed(once).steps_per_s({PS: 1, WORKER: 1})
    assert rate
    return elastic(key, submit_s, rate * random.uniform(10, 500), name)

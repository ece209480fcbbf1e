"""Scenarios: what they draw."""

import random
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.api.scenario import Arrivals, Distribution, parse_scenario
from elastic_tfjob.simulation.formats import WorkloadError
from elastic_tfjob.simulation.scenario import arrival_times, draw, generate, own_pool, read_scenario

KIND: dict[str, Any] = {"name": "k", "workers": {"count": 2, "max": 5, "gpus": 1}, "duration_s": 100}


def test_the_same_seed_draws_the_same_jobs() -> None:
    scenario = parse_scenario({"jobs": 20, "mix": [{**KIND, "duration_s": {"lognormal": {"median": 60, "sigma": 1}}}]})
    assert generate(scenario, 1) == generate(scenario, 1) != generate(scenario, 2)


def test_groups_deadlines_and_pool() -> None:
    scenario = parse_scenario(
        {
            "jobs": 1,
            "arrivals": {"kind": "burst"},
            "mix": [{**KIND, "ps": {"cpus": 2}, "deadline_factor": 1.5, "loss": {"b0": 0.1, "b1": 1}}],
            "inference": {"nodes": 3, "gpus_per_node": 4},
        }
    )
    (job,) = generate(scenario, 0)
    assert [(g.type, g.count, g.minimum, g.maximum) for g in job.groups] == [("Worker", 2, 2, 5), ("PS", 1, 1, 1)]
    assert (job.submit_s, job.deadline_s) == (0, 150)
    assert job.loss is not None
    pool = own_pool(scenario)
    assert pool is not None
    assert (pool.nodes, pool.each.accelerators) == (3, 4)


@pytest.mark.parametrize("kind", ["poisson", "diurnal"])
def test_poisson_arrivals_have_their_rate(kind: Any) -> None:
    times = arrival_times(Arrivals(kind=kind, per_hour=60), 5000, random.Random(0))
    assert times == sorted(times)
    assert 5000 / (times[-1] / 3600) == pytest.approx(60, rel=0.15)


def test_fixed_and_uniform_arrivals() -> None:
    assert arrival_times(Arrivals(kind="fixed", every_s=5), 3, random.Random(0)) == [0, 5, 10]
    assert all(0 <= t <= 9 for t in arrival_times(Arrivals(kind="uniform", window_s=9), 50, random.Random(0)))


def test_distributions() -> None:
    rng = random.Random(0)
    assert draw(7.0, rng) == 7.0
    assert draw(Distribution(choice=(4.0,)), rng) == 4.0
    assert 1 <= draw(Distribution(uniform=(1, 2)), rng) <= 2
    mean = sum(draw(Distribution(exponential=10), rng) for _ in range(4000)) / 4000
    assert mean == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"duration_s": None}, "give duration_s or steps"),
        ({"duration_s": {"uniform": [1, 2], "exponential": 3}}, "exactly one of uniform"),
        ({"workers": {"min": 3, "max": 2}}, "min 3 is above max 2"),
        ({"weight": float("nan")}, "weight should be a finite number"),
        ({"workers": {"cpus": 1e300}}, "workers.cpus.*1000000"),
        ({"duration_s": {"lognormal": {"median": 1, "sigma": 1e9}}}, "sigma should be less than or equal to 10"),
        ({"duration_s": None, "steps": 5, "deadline_factor": 2}, "deadline_factor needs duration_s"),
    ],
)
def test_an_invalid_mix_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_scenario({"jobs": 1, "mix": [{**KIND, **change}]})


def test_more_replicas_than_a_job_may_have_are_refused() -> None:
    scenario = parse_scenario({"jobs": 1, "mix": [{**KIND, "workers": {"count": 1e300}}]})
    with pytest.raises(WorkloadError, match=r"1e\+300 Worker replicas drawn; at most 2000 are allowed"):
        generate(scenario, 0)


def test_a_file_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("jobs: 1\njobs: 2\n")
    with pytest.raises(WorkloadError, match="the key 'jobs' is given twice"):
        read_scenario(file)


def test_the_old_name_of_the_speed_model_is_still_read() -> None:
    content = {"jobs": 1, "mix": [KIND]}
    assert parse_scenario({**content, "world": "ps"}).speed_model == "ps"
    assert parse_scenario({**content, "speed_model": "ps"}).speed_model == "ps"
    with pytest.raises(ValueError, match="world is not known"):
        parse_scenario({**content, "speed_model": "ps", "world": "ps"})


@pytest.mark.parametrize(
    ("mix", "more", "said"),
    [
        (
            {"name": "a", "wokers": {}},
            {},
            "mix.0.wokers is not known. Did you mean workers?",
        ),
        ({"name": "a", "workers": {"cont": 1}}, {}, "mix.0.workers.cont is not known (found 1). Did you mean count?"),
        ({"name": "a", "workers": {}}, {"arivals": {}}, "Did you mean arrivals?"),
        ({"name": "a", "workers": {}}, {"arrivals": {"kind": "poison"}}, "Did you mean poisson?"),
        ({"name": "a", "workers": {}, "duration_s": {"unifrm": [1, 2]}}, {}, "mix.0.duration_s.unifrm is not known"),
    ],
)
def test_a_wrong_scenario_is_told_in_plain_words(mix: dict[str, object], more: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as told:
        parse_scenario({"jobs": 1, "mix": [{"duration_s": 1, **mix}], **more})
    assert said in str(told.value)
    assert not [word for word in ("Tuple", "function-", "validation", "float") if word in str(told.value)]

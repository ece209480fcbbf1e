"""An autoscaler in the simulator: timelines worked out by hand, and that each run ends."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elastic_tfjob.api.scenario import Autoscaling, parse_scenario
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.resources import Constraints
from elastic_tfjob.simulation.command import simulate as command
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import FIXED, LINEAR
from elastic_tfjob.simulation.summary import over_time, summarise
from elastic_tfjob.simulation.workload import WorkloadJob

from .build import finishes, no_violation, simulate, work

TEMPLATE: dict[str, Any] = {"name": "gpu", "gpus": 1, "lead_s": 50, "price": 3600}
"""One accelerator, ready after 50 s; the price is 1 per second."""


def scaled(
    profile: str,
    jobs: list[WorkloadJob],
    *templates: dict[str, Any],
    scaling: dict[str, Any] | None = None,
    **more: Any,
) -> RunResult:
    """A run on a cluster that has no node at the beginning. Rounds without a change are rare, so that a run of a day is
    short."""
    given = {"templates": [TEMPLATE | each for each in templates or ({},)], **(scaling or {})}
    more.setdefault("check", no_violation)
    more.setdefault("parameters", {"interval_s": 600})
    return simulate(profile, jobs, **{"nodes": 0, "autoscaling": Autoscaling.model_validate(given), **more})


def lives(outcome: RunResult) -> list[tuple[str, float, float, float]]:
    return [(life.name, life.from_s, life.ready_s, life.until_s) for life in outcome.lives]


@pytest.mark.parametrize("profile", ["fixed", "fifo", "elastic"])
def test_a_node_is_added_for_a_job_and_removed_when_it_is_empty(profile: str) -> None:
    """Launched 1 s after the job came, ready 50 s later; the job ends at 61, the node at 76: 75 s of it are paid."""
    outcome = scaled(profile, [work("a", 0, 10)], costs=Costs(start_s=2))
    summary = summarise(outcome, 1)
    assert finishes(outcome) == {"a": 63}
    assert lives(outcome) == [("auto-gpu-0", 1, 51, 78)]
    assert (summary.first_step_s, summary.cost, summary.cost_per_job) == (53, 77, 77)
    assert summary.node_hours == pytest.approx(77 / 3600)
    assert (summary.most_nodes, summary.nodes_added, summary.failed_orders, summary.lost_steps) == (1, 1, 0, 0)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_starts_from_no_node(profile: str) -> None:
    jobs = [work(f"job-{k}", 20 * k, 100, gpus=2, low=1, high=4) for k in range(4)]
    outcome = scaled(profile, jobs, speed_model=LINEAR)
    assert None not in finishes(outcome).values()
    assert all(life.until_s < math.inf for life in outcome.lives)


def test_pods_that_come_together_are_batched() -> None:
    """Each new pod puts the launch off by a second, but not beyond 10 s after the first."""
    jobs = [work(f"job-{k}", 0.9 * k, 10) for k in range(14)]
    outcome = scaled("fixed", jobs)
    assert sorted({from_s for _, from_s, _, _ in lives(outcome)}) == pytest.approx([10, 12.7])


def test_replicas_are_packed_and_the_cheapest_template_is_taken() -> None:
    """Three replicas fit on one node of 4 accelerators, and the two of the next job on one of 2, which is cheaper."""
    templates = ({"name": "two", "gpus": 2, "price": 2}, {"name": "four", "gpus": 4, "price": 5})
    assert [name for name, *_ in lives(scaled("fixed", [work("a", 0, 9, gpus=3)], *templates))] == ["auto-four-0"]
    assert [name for name, *_ in lives(scaled("fixed", [work("a", 0, 9, gpus=2)], *templates))] == ["auto-two-0"]


def test_no_node_is_added_for_what_fits_on_a_coming_one() -> None:
    jobs = [work("a", 0, 10), work("b", 30, 10)]
    assert len(scaled("fixed", jobs, {"gpus": 2}).lives) == 1


def test_a_template_has_a_limit() -> None:
    outcome = scaled("fifo", [work("a", 0, 10), work("b", 0, 10)], {"most": 1})
    assert finishes(outcome) == {"a": 61, "b": 71}
    assert summarise(outcome, 2).most_nodes == 1


def test_a_job_that_needs_more_nodes_than_there_may_be_ends_the_run() -> None:
    """Its pods hold the only node, as real ones would, until the simulation gives up after a day."""
    outcome = scaled("fixed", [work("a", 0, 10, gpus=2)], {"most": 1})
    assert finishes(outcome) == {"a": None}
    assert len(outcome.lives) == 1


@pytest.mark.parametrize("profile", ["fixed", "fifo", "elastic"])
def test_launches_that_always_fail_end_the_run(profile: str) -> None:
    outcome = scaled(profile, [work("a", 0, 10)], {"fails": 1})
    assert finishes(outcome) == {"a": None}
    assert outcome.lives == []
    assert outcome.failed_launches > 100
    assert (outcome.failed_orders > 10) == (profile != "fixed")


def test_without_orders_a_job_waits_for_ever_and_the_run_ends() -> None:
    never = {"order": {"when": "never"}}
    assert finishes(scaled("elastic", [work("a", 0, 10)], scaling=never)) == {"a": None}
    assert finishes(scaled("fixed", [work("a", 0, 10)], scaling=never)) == {"a": 61}


def test_without_capacity_launches_are_tried_again() -> None:
    """At 1 and 61 they fail; at 121 there is capacity."""
    away = {"no_capacity": [{"from_s": 0, "until_s": 100}]}
    outcome = scaled("fifo", [work("a", 0, 10)], {"retry_s": 60}, scaling=away)
    assert finishes(outcome) == {"a": 181}
    assert outcome.failed_launches == 2


def test_another_template_is_taken_meanwhile() -> None:
    templates = ({"name": "cheap", "price": 1}, {"name": "dear", "price": 2})
    away = {"no_capacity": [{"from_s": 0, "until_s": 100, "templates": ["cheap"]}]}
    outcome = scaled("fifo", [work("a", 0, 10)], *templates, scaling=away)
    assert [name for name, *_ in lives(outcome)] == ["auto-dear-0"]
    assert finishes(outcome) == {"a": 61}


def test_an_order_that_is_not_filled_is_given_up_for_a_while_and_others_order() -> None:
    """One job may order at a time. The first order finds no node with its label; after 100 s the other job's turn
    comes, and after 50 s more the first one orders again."""
    first = WorkloadJob("a", 0, work("a", 0, 10).groups, 10, constraints=Constraints((("zone", "x"),)))
    order = {"jobs": 1, "timeout_s": 100, "retry_s": 50}
    outcome = scaled("fifo-backfill", [first, work("b", 0, 10)], scaling={"order": order})
    assert finishes(outcome) == {"a": None, "b": 161}
    assert outcome.failed_orders > 2


def test_a_node_without_the_label_is_no_place_for_a_job() -> None:
    group = work("a", 0, 10).groups
    jobs = [WorkloadJob("a", 0, group, 10, constraints=Constraints((("zone", "x"),))), work("b", 0, 10)]
    templates = ({"name": "plain", "price": 1}, {"name": "x", "price": 2, "labels": {"zone": "x"}})
    outcome = scaled("fifo-backfill", jobs, *templates, trace=True)
    assert {(i.node, i.key) for i in outcome.intervals} == {("auto-plain-0", "b"), ("auto-x-0", "a")}


def test_consolidation_stops_a_job_that_fits_elsewhere() -> None:
    """Two nodes of two accelerators for three replicas. Job a ends at 61, so that b fits beside c: 15 s later its node
    is removed. b has trained for 25 s, and its checkpoint is of 20."""
    jobs = [work("a", 0, 10), work("b", 0, 100), work("c", 0, 100), work("d", 0, 10)]
    costs = Costs(checkpoint_interval_s=20)
    plain = scaled("fixed", jobs, {"gpus": 2}, costs=costs)
    outcome = scaled("fixed", jobs, {"gpus": 2}, costs=costs, scaling={"consolidate": True})
    assert finishes(plain) == {"a": 61, "b": 151, "c": 151, "d": 61}
    assert sorted(finishes(outcome).values(), key=str) == [151, 156, 61, 61]
    assert summarise(outcome, 4).lost_steps == 5
    assert (summarise(outcome, 4).cost or 0) < (summarise(plain, 4).cost or 0)


def test_a_spot_node_is_taken_away_and_its_job_resumes_on_another() -> None:
    spot = {"spot": {"mean_life_s": 300, "notice_s": 0}}
    outcome = scaled("fifo", [work("a", 0, 1000)], spot, costs=Costs(checkpoint_interval_s=100), seed=4)
    (record,) = outcome.records
    assert record.finish_s is not None
    assert record.lost_nodes > 0
    assert record.lost_steps > 0
    assert len(outcome.lives) == record.lost_nodes + 1


def test_an_order_for_replicas_on_a_lost_node() -> None:
    """The only node is lost for good: the job's replicas found no room, and it orders others."""
    ordered: list[dict[str, int]] = []

    def check(plan: Plan) -> None:
        ordered.extend(dict(each) for each in plan.orders.values())

    spot = {"spot": {"mean_life_s": 300, "notice_s": 0}}
    scaled("elastic", [work("a", 0, 1000, gpus=2, low=1)], spot, speed_model=LINEAR, check=check, seed=4)
    assert len(ordered) > 1


@pytest.mark.parametrize("profile", ["elastic", "kips"])
def test_a_job_starts_small_and_takes_the_room_that_it_ordered(profile: str) -> None:
    """One of two accelerators is free. Job b starts with one worker, and has its two when the node is ready, at 51: it
    has then done 51 / 2 of its 100 s of work."""
    jobs = [work("a", 0, 500), work("b", 0, 100, gpus=2, low=1)]
    outcome = scaled(profile, jobs, nodes=1, gpus=2, speed_model=LINEAR)
    (record,) = (each for each in outcome.records if each.key == "b")
    assert (record.start_s, record.rescales, record.finish_s) == (0, 1, 51 + 100 - 51 / 2)
    assert len([life for life in outcome.lives if life.name.startswith("auto")]) == 1


def test_the_same_seed_gives_the_same_run() -> None:
    jobs = [work(f"job-{k}", 7 * k, 50, gpus=2, low=1, high=3) for k in range(10)]
    template = {"lead_s": {"uniform": [10, 200]}, "fails": 0.3, "spot": {"mean_life_s": 500}}
    first, again, other = (
        lives(scaled("elastic", jobs, template, speed_model=LINEAR, check=None, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_priced_cluster_without_an_autoscaler_has_a_cost() -> None:
    nodes = [replace(node, price=36.0) for node in uniform_cluster(2, 1, 0, 0)]
    outcome = Simulation(
        SimulationInput([work("a", 5, 10)], nodes, FIXED), build("fifo", parse_profile("fifo", {}))
    ).run()
    assert summarise(outcome, 1).cost == pytest.approx(2 * 10 * 0.01)
    assert summarise(outcome, 1).nodes_added is None
    assert over_time(outcome.lives) == [(5, 2), (15, 0)]


# -- The scenario ------------------------------------------------------------------------------------------------------

KIND: dict[str, Any] = {"name": "k", "workers": {"count": 1, "gpus": 1}, "duration_s": 100}


@pytest.mark.parametrize(
    ("autoscaling", "said"),
    [
        ({"templates": []}, "autoscaling.templates: tuple should have at least 1 item"),
        (
            {"templates": [{"price": -1}]},
            "autoscaling.templates.0.price should be greater than or equal to 0 (found -1)",
        ),
        ({"templates": [{"most": 0}]}, "autoscaling.templates.0.most should be greater than or equal to 1 (found 0)"),
        ({"templates": [{"lead_s": math.nan}]}, "autoscaling.templates.0.lead_s should be a finite number"),
        ({"templates": [{"lead_s": {"uniform": [-5, 5]}}]}, "lead_s has -5; allowed: 0 or more"),
        ({"templates": [{"lead_s": -1}]}, "lead_s has -1; allowed: 0 or more"),
        ({"templates": [{"fails": 1.5}]}, "autoscaling.templates.0.fails should be less than or equal to 1"),
        ({"templates": [{"gpus": 0}]}, "give cpus, memory_gib or gpus above 0"),
        ({"templates": [{"name": "A/B"}]}, "autoscaling.templates.0.name: String should match pattern"),
        ({"templates": [{}, {}]}, "the name gpu is there twice"),
        ({"templates": [{"spot": {"mean_life_s": 0}}]}, "spot.mean_life_s should be greater than 0"),
        ({"no_capacity": [{"from_s": 5, "until_s": 5}]}, "until_s 5 is not after from_s 5"),
        ({"no_capacity": [{"from_s": 0, "until_s": 5, "templates": ["x"]}]}, "is no template; allowed: gpu"),
        ({"order": {"pods": 0}}, "autoscaling.order.pods should be greater than or equal to 1"),
        ({"order": {"when": "auto"}}, "autoscaling.order.when should be 'always' or 'never'"),
        ({"batch_s": 20}, "batch_most_s 10 is below batch_s 20"),
        ({"batch_s": 0}, "autoscaling.batch_s should be greater than or equal to 0.1"),
        ({"templates": [{"prize": 1}]}, "did you mean price"),
    ],
)
def test_a_wrong_autoscaler_is_refused_with_the_field(autoscaling: dict[str, Any], said: str) -> None:
    templates = [{"name": "gpu", "gpus": 1, **each} for each in autoscaling.get("templates", [{}])]
    with pytest.raises(ValueError, match="autoscaling") as refused:
        parse_scenario({"jobs": 1, "mix": [KIND], "autoscaling": {**autoscaling, "templates": templates}})
    assert said.lower() in str(refused.value).lower()


def run_command(folder: Path, scenario: dict[str, Any], *arguments: str) -> tuple[int, str]:
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(scenario))
    found = CliRunner().invoke(command, [str(path), *arguments], env={"COLUMNS": "300"})
    return found.exit_code, found.output


SCENARIO: dict[str, Any] = {"jobs": 3, "mix": [KIND], "autoscaling": {"templates": [TEMPLATE], "node_price": 1}}


def test_a_scenario_from_no_node(tmp_path: Path) -> None:
    json_file, html_file = tmp_path / "runs.json", tmp_path / "report.html"
    arguments = ("--jobs", "1", "--nodes", "0", "--profile", "fixed", "--profile", "elastic")
    status, said = run_command(tmp_path, SCENARIO, *arguments, "--json", str(json_file), "--html", str(html_file))
    assert status == 0, said
    assert "cost/job" in said
    for run in json.loads(json_file.read_text())["runs"]:
        assert run["finished"] == 3
        assert run["nodes_added"] > 0
        assert run["cost"] > 0
    assert '"size":[[0.0' in html_file.read_text()


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({"autoscaling": None}, ["--nodes", "0"], "a cluster needs a node, or a scenario with autoscaling"),
        ({}, ["--nodes", "0", "--place", "count"], "fifo.place=count uses no nodes"),
        (
            {"autoscaling": {"templates": [{"name": "cpu", "cpus": 4}]}},
            ["--nodes", "1"],
            "autoscaling.templates.0: no replica fits on cpu (4 CPUs, 0 GiB, 0 GPUs, labels {}); replicas: k 0 CPUs",
        ),
        (
            {"mix": [KIND, KIND | {"name": "z", "node_selector": {"zone": "x"}}]},
            ["--nodes", "1"],
            "mix.1.node_selector: no node has {'zone': 'x'}; gpu has {}",
        ),
        (  # that no replica fits follows from it
            {"mix": [KIND | {"node_selector": {"zone": "x"}}]},
            ["--nodes", "1"],
            "mix.0.node_selector: no node has {'zone': 'x'}; gpu has {}",
        ),
        ({"nodes": [{"node": "n", "added_s": 5}]}, ["--nodes", "0"], "a cluster without nodes has none to lose"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(
    tmp_path: Path, changes: dict[str, Any], arguments: list[str], said: str
) -> None:
    scenario = {key: value for key, value in {**SCENARIO, **changes}.items() if value is not None}
    status, words = run_command(tmp_path, scenario, "--profile", "fifo", *arguments)
    assert status
    assert said in " ".join(words.split())

"""Which jobs order nodes from an autoscaler, and for which replicas."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.snapshot import ClusterRules, Job, Node, OrderRules, Snapshot
from harness.effort import effort

from .build import job, node, servers, workers


def plan(nodes: list[Node], found: list[Job], *, profile: str = "fifo-backfill", **rules: Any) -> Plan:
    ordering = ClusterRules(OrderRules(**rules) if rules else None)
    given_ = Snapshot(100.0, {n.name: n for n in nodes}, {j.key: j for j in found}, cluster_rules=ordering)
    settings_ = {"lend": "none"} if profile == "elastic" else {}
    return schedule(given_, build(profile, parse_profile(profile, settings_)))


def cpu_job(key: str, n: int, **more: Any) -> Job:
    return job(key, workers(n, more.pop("low", n), more.pop("high", n), gpus=0, cpus=1), **more)


def test_without_an_autoscaler_nothing_is_ordered() -> None:
    assert plan([], [cpu_job("a", 3)]).orders == {}


@pytest.mark.parametrize("profile", ["elastic", "kips", "fifo-backfill", "deadline", "las", "drf"])
def test_jobs_without_any_node_order_their_declared_size(profile: str) -> None:
    settings_ = {"lend": "none"} if profile == "elastic" else {}
    found = Snapshot(
        100.0, {}, {k: cpu_job(k, 3) for k in ("a", "b")}, cluster_rules=ClusterRules(OrderRules(pods=200))
    )
    made = schedule(found, build(profile, parse_profile(profile, settings_)))
    assert made.orders == {"a": {"Worker": 3}, "b": {"Worker": 3}}


def test_what_fits_is_started_and_orders_nothing() -> None:
    made = plan([node("n", cpus=4)], [cpu_job("a", 3), cpu_job("b", 3, at=1)], pods=200)
    assert made.changes["a"].replicas == {"Worker": 3}
    assert made.orders == {"b": {"Worker": 3}}


def test_a_job_that_starts_small_orders_the_rest_of_its_declared_size() -> None:
    small = job("a", workers(4, 1, 8, gpus=0, cpus=1), servers(1), on={"PS": ("n",), "Worker": ("n",)})
    made = plan([node("n", cpus=2)], [small], pods=200)
    assert made.orders == {"a": {"Worker": 3}}


def test_growth_beyond_the_declared_size_orders_nothing() -> None:
    large = job("a", workers(2, 1, 8, gpus=0, cpus=1), on={"Worker": ("n", "n")})
    assert plan([node("n", cpus=2)], [large], pods=200, profile="kips").orders == {}


def test_the_smallest_size_is_ordered_where_the_rules_say_so() -> None:
    assert plan([], [job("a", workers(4, 2, 8, gpus=0, cpus=1))], size="smallest").orders == {"a": {"Worker": 2}}


@pytest.mark.parametrize(
    ("rules", "ordered"),
    [
        ({"jobs": 1}, {"a"}),
        ({"pods": 4}, {"a", "c"}),  # b needs 3 more, c 1
        ({"cpu_millicores": 4000}, {"a", "c"}),
        ({"pods": 2}, {"c"}),
        ({"pods": 200, "failed": frozenset({"a"})}, {"b", "c"}),
    ],
)
def test_orders_keep_to_their_limits_and_a_smaller_one_may_pass(rules: dict[str, Any], ordered: set[str]) -> None:
    jobs = [cpu_job("a", 3), cpu_job("b", 3, at=1), cpu_job("c", 1, at=2)]
    assert plan([], jobs, **rules).orders.keys() == ordered


@pytest.mark.parametrize(
    ("rules", "limits"),
    [
        ({"jobs": 1}, {"b": "jobs", "c": "jobs"}),
        ({"pods": 4}, {"b": "pods"}),
        ({"cpu_millicores": 4000}, {"b": "cpu"}),
        ({"pods": 200, "failed": frozenset({"a"})}, {}),
    ],
)
@pytest.mark.parametrize("profile", ["fifo-backfill", "fifo", "elastic"])
def test_a_waiting_job_is_told_which_limit_its_order_would_exceed(
    profile: str, rules: dict[str, Any], limits: dict[str, str]
) -> None:
    jobs = [cpu_job("a", 3), cpu_job("b", 3, at=1), cpu_job("c", 1, at=2)]
    waiting = plan([], jobs, profile=profile, **rules).waiting
    assert {key: why.facts["order_limit"] for key, why in waiting.items() if "order_limit" in why.facts} == limits
    for key, limit in limits.items():
        assert str(waiting[key]).endswith(f"; orders no nodes, because they would exceed autoscaling.order.{limit}")


def test_jobs_that_have_nothing_come_first() -> None:
    short = job("a", workers(4, 1, 4, gpus=0, cpus=1), on={"Worker": ("n",)})
    made = plan([node("n", cpus=1)], [short, cpu_job("b", 2, at=50)], jobs=1)
    assert made.orders == {"b": {"Worker": 2}}


SIZES = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 4), st.booleans())


@settings(max_examples=effort(40, 300), deadline=None)
@given(st.lists(SIZES, max_size=6), st.lists(st.integers(1, 6), max_size=3))
def test_orders_change_no_other_decision(sizes: list[tuple[int, int, int, bool]], cpus: list[int]) -> None:
    nodes = [node(f"n{k}", cpus=n) for k, n in enumerate(cpus)]
    jobs = []
    for k, (n, low, more, runs) in enumerate(sizes):
        least = max(1, n - low)
        on = {"Worker": ("n0",) * least} if runs and nodes and least <= cpus[0] // 2 else None
        jobs.append(job(f"j{k}", workers(n, least, n + more, gpus=0, cpus=1), at=float(k), on=on))
    for profile in ("fifo-backfill", "kips", "drf"):
        without, with_ = (plan(nodes, jobs, profile=profile, **rules) for rules in ({}, {"pods": 200}))
        assert (without.changes, without.waiting, without.memory) == (with_.changes, with_.waiting, with_.memory)
        for key, counts in with_.orders.items():
            target = with_.changes.get(key)
            held = target.replicas if target is not None else with_.snapshot.jobs[key].counts
            total = {t: n + held.get(t, 0) for t, n in counts.items()}
            declared = with_.snapshot.jobs[key].spec.declared
            assert all(total[t] == declared[t] for t in total), "an order is what lacks of the declared size"


@pytest.mark.parametrize("profile", ["kips", "elastic"])
@pytest.mark.parametrize(("until_s", "ordered"), [(0.0, True), (400.0, False)])
def test_a_job_whose_growth_did_not_pay_orders_nothing(profile: str, until_s: float, ordered: bool) -> None:
    """Until it may try again; the nodes would come and go without a replica."""
    small = job(
        "a",
        workers(4, 1, 8, gpus=0, cpus=1),
        servers(1),
        on={"PS": ("n",), "Worker": ("n",)},
        memory={"kips.until_s": until_s},
    )
    rules = ClusterRules(OrderRules())
    found = Snapshot(100.0, {"n": node("n", cpus=2)}, {"a": small}, cluster_rules=rules)
    made = schedule(found, build(profile, parse_profile(profile, {"lend": "none"})))
    assert (made.orders == {"a": {"Worker": 3}}) == ordered
    assert bool(made.orders) == ordered


def test_a_job_that_orders_nodes_starts_when_they_usually_come() -> None:
    known = {"steps": 1000.0, "duration": 500.0}
    waiting_ = [cpu_job("a", 3, deadline=2000.0, **known), cpu_job("b", 3, at=1, **known)]
    found = plan([], waiting_, since_s={"a": 70.0}, lead_s=80.0).forecasts
    assert (found["a"].start_s, found["b"].start_s) == (150, 180)
    assert found["a"].finish is not None
    assert found["a"].finish.expected_s == 650
    assert found["a"].meets
    assert plan([], waiting_).forecasts["a"].finish is None, "no autoscaler"
    late = plan([], waiting_, since_s={"a": 0.0}, lead_s=80.0).forecasts
    assert late["a"].start_s == 100, "a start is never in the past"


@pytest.mark.parametrize(("n", "lacks"), [(5, False), (4, True)])
def test_a_job_that_can_never_order_keeps_no_node_of_others(n: int, lacks: bool) -> None:
    """Jobs leave nodes only while none lacks room, so one hopeless job would keep all nodes for ever."""
    assert plan([], [cpu_job("a", n)], pods=4).lacks_room == lacks
    assert plan([], [cpu_job("a", n)], cpu_millicores=4000).lacks_room == lacks

"""Which nodes jobs leave to an autoscaler, and what they give up for it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.given_up import CompactionTimes, GivenUpNodes
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.snapshot import ClusterRules, CompactionRules, Job, Node, OrderRules, Placement, Snapshot
from harness.effort import effort

from .build import job, node, workers


def bought(name: str, cpus: float = 4, **more: Any) -> Node:
    return node(name, cpus=cpus, autoscaled=True, **more)


def plan(nodes: list[Node], found: list[Job], *, profile: str = "las", headroom: int = 0, due: bool = True) -> Plan:
    rules = ClusterRules(OrderRules(), CompactionRules(due, headroom))
    given_ = Snapshot(1000.0, {n.name: n for n in nodes}, {j.key: j for j in found}, cluster_rules=rules)
    return schedule(given_, build(profile, parse_profile(profile, {"lend": "none"})))


def cpu_job(key: str, n: int, low: int, high: int, on: str, **more: Any) -> Job:
    """A job with one CPU per worker, on these nodes."""
    return job(key, workers(n, low, high, gpus=0, cpus=1), on={"Worker": tuple(on)}, **more)


def test_an_empty_node_is_given_up() -> None:
    made = plan([bought("a"), bought("b")], [cpu_job("j", 2, 1, 2, "aa")])
    assert (set(made.given_up), dict(made.changes)) == ({"b"}, {})


@pytest.mark.parametrize("due", [True, False])
def test_replicas_move_together_and_their_node_is_given_up(due: bool) -> None:
    made = plan([bought("a"), bought("b")], [cpu_job("j", 2, 2, 2, "aa"), cpu_job("k", 1, 1, 1, "b")], due=due)
    if due:
        assert made.given_up == {"b"}
        assert made.changes["k"].nodes == {"Worker": ("a",)}
        assert (made.changes["k"].cause, str(made.changes["k"].reason)) == (
            "compact",
            "leaves b, so that an autoscaler can remove it",
        )
    else:
        assert (set(made.given_up), dict(made.changes)) == (set(), {})


def test_growth_keeps_no_node() -> None:
    """Nothing moves: only replicas beyond the declared size go."""
    made = plan([bought("a", 2), bought("b", 2)], [cpu_job("j", 2, 1, 4, "aabb")], profile="fifo-backfill")
    assert made.given_up == {"b"}
    assert made.changes["j"].nodes == {"Worker": ("a", "a")}


def test_growth_makes_room_for_what_has_to_move() -> None:
    jobs = [cpu_job("grown", 1, 1, 4, "aaa"), cpu_job("k", 2, 2, 2, "bb")]
    made = plan([bought("a", 3), bought("b", 3)], jobs, profile="fifo-backfill")
    assert made.given_up in ({"a"}, {"b"})
    after = [name for placement in after_(made, jobs).values() for name in placement["Worker"]]
    assert len(after) == 3
    assert not made.given_up.intersection(after)


def after_(made: Plan, jobs: list[Job]) -> dict[str, Placement]:
    """Where the jobs are after the plan."""
    return {each.key: made.changes[each.key].nodes if each.key in made.changes else each.placement for each in jobs}


@pytest.mark.parametrize(
    "why",
    ["no room", "not movable", "own node", "headroom", "ends soon", "rescaling", "waiting job", "below declared"],
)
def test_a_node_is_kept(why: str) -> None:
    nodes = [bought("a"), bought("b")]
    j, k = cpu_job("j", 2, 2, 2, "aa"), cpu_job("k", 1, 1, 1, "b")
    headroom, more = 0, []
    if why == "no room":
        k = cpu_job("k", 3, 3, 3, "bbb")
    elif why == "not movable":
        j, k = (replace(each, spec=replace(each.spec, movable=False)) for each in (j, k))
    elif why == "own node":
        nodes = [node("a", cpus=4), node("b", cpus=4)]
    elif why == "headroom":
        headroom = 2
    elif why == "ends soon":
        j, k = (
            replace(each, spec=replace(each.spec, total_steps=100.0), steps=50.0, steps_per_s=1.0, observed_s=1000.0)
            for each in (j, k)
        )
    elif why == "rescaling":
        j, k = (replace(each, phase="rescaling") for each in (j, k))
    elif why == "waiting job":
        more = [job("w", workers(9, gpus=0, cpus=1))]
    elif why == "below declared":
        j = cpu_job("j", 9, 2, 9, "aa")
    made = plan(nodes, [j, k, *more], headroom=headroom, profile="fifo-backfill")
    assert made.given_up == set()
    assert all(target.cause != "compact" for target in made.changes.values())


def test_a_job_whose_order_has_failed_keeps_no_node() -> None:
    rules = ClusterRules(OrderRules(failed=frozenset({"w"})), CompactionRules(due=True))
    jobs = [cpu_job("j", 1, 1, 1, "a"), job("w", workers(9, gpus=0, cpus=1))]
    found = Snapshot(1000.0, {n: bought(n) for n in "ab"}, {j.key: j for j in jobs}, cluster_rules=rules)
    made = schedule(found, build("fifo-backfill", parse_profile("fifo-backfill", {})))
    assert (set(made.given_up), made.lacks_room) == ({"b"}, False)


def test_a_leader_is_moved_last() -> None:
    leads = job("j", workers(2, gpus=0, cpus=1), on={"Worker": ("a", "b")})
    assert plan([bought("a"), bought("b")], [leads]).changes["j"].nodes == {"Worker": ("a", "a")}


def test_the_dearest_node_goes_first() -> None:
    nodes = [bought("a", price=1.0), bought("b", price=3.0), bought("c", price=2.0)]
    jobs = [cpu_job("i", 1, 1, 1, "a"), cpu_job("j", 1, 1, 1, "b"), cpu_job("k", 1, 1, 1, "c")]
    assert plan(nodes, jobs).given_up == {"b"}


def test_lent_cpu_keeps_no_node() -> None:
    """All CPU is lent to the jobs that are there, under a profile that lends."""
    jobs = [
        cpu_job("j", 2, 2, 2, "aa", cpu={"Worker": (2000, 2000)}),
        cpu_job("k", 1, 1, 1, "b", cpu={"Worker": (4000,)}),
    ]
    made = plan([bought("a"), bought("b")], jobs, profile="kips")
    assert made.given_up == {"b"}
    assert made.changes["k"].nodes == {"Worker": ("a",)}


def test_lent_cpu_orders_nothing() -> None:
    held = cpu_job("j", 1, 1, 1, "a", cpu={"Worker": (4000,)}, rescaled_s=999.0)
    small = cpu_job("k", 2, 1, 2, "b", rescaled_s=999.0)
    made = plan([bought("a"), bought("b", 1)], [held, small], profile="kips", due=False)
    assert made.orders == {}


def test_a_node_that_is_given_up_is_not_used() -> None:
    """No growth goes there, and a replica that could not leave yet stays."""
    nodes = [bought("a", 1), bought("b", given_up=True)]
    made = plan(nodes, [cpu_job("j", 1, 1, 4, "b")], profile="kips", due=False)
    assert made.given_up == {"b"}
    assert "b" not in [name for each in made.changes.values() for name in each.nodes["Worker"][1:]]


def test_a_waiting_job_takes_the_node_back_before_it_orders_one() -> None:
    nodes = [bought("a", 1), bought("b", given_up=True)]
    made = plan(nodes, [cpu_job("j", 1, 1, 1, "a"), job("w", workers(3, gpus=0, cpus=1))], profile="fifo")
    assert (set(made.given_up), dict(made.orders), made.lacks_room) == (set(), {}, True)
    huge = plan(nodes, [cpu_job("j", 1, 1, 1, "a"), job("w", workers(9, gpus=0, cpus=1))], profile="fifo")
    assert (set(huge.given_up), dict(huge.orders)) == ({"b"}, {"w": {"Worker": 9}})


@settings(deadline=None, max_examples=effort(30, 150))
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 3), st.lists(st.integers(0, 4), min_size=1, max_size=5)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["las", "fifo-backfill", "kips", "elastic", "drf"]),
)
def test_no_job_falls_below_its_declared_size_and_no_node_is_overfull(
    drawn: list[tuple[int, int, list[int]]], profile: str
) -> None:
    nodes = [bought(f"n{k}", 25) for k in range(5)]
    jobs = [
        job(
            f"j{k}",
            workers(min(n, len(on)), 1, len(on) + more, gpus=0, cpus=1),
            on={"Worker": tuple(f"n{i}" for i in on)},
        )
        for k, (n, more, on) in enumerate(drawn)
    ]
    made = plan(nodes, jobs, profile=profile)
    after = after_(made, jobs)
    for each in jobs:
        if made.changes.get(each.key) is not None and made.changes[each.key].cause == "compact":
            assert len(after[each.key]["Worker"]) >= min(each.spec.declared["Worker"], len(each.placement["Worker"]))
    used = [name for placement in after.values() for name in placement["Worker"]]
    assert all(used.count(each.name) <= 25 for each in nodes)
    moved = {key for key, change in made.changes.items() if change.cause == "compact"}
    assert all(not made.given_up.intersection(after[key]["Worker"]) for key in moved)
    new = [name for each in jobs for name in after[each.key]["Worker"][len(each.placement["Worker"]) :]]
    assert not made.given_up.intersection(new)


# -- What is remembered between rounds ---------------------------------------------------------------------------------

TIMES = CompactionTimes(after_s=100, every_s=30, forget_s=900)


def made(*names: str, lacks_room: bool = False) -> Plan:
    return Plan(Snapshot(0.0, {}, {}), {}, given_up=frozenset(names), lacks_room=lacks_room)


def test_a_node_is_given_up_when_nobody_has_lacked_room_for_a_while() -> None:
    memory = GivenUpNodes()
    assert not memory.rules(TIMES, 1e9).due
    memory.follow(made(lacks_room=True), 1000)
    memory.follow(made(), 1010)
    assert not memory.rules(TIMES, 1109).due
    assert memory.next_s(TIMES, 1010) == 100
    assert memory.rules(TIMES, 1110).due
    memory.follow(made(lacks_room=True), 1110)
    memory.follow(made(), 1111)
    assert not memory.rules(TIMES, 1210).due


def test_one_node_at_a_time() -> None:
    memory = GivenUpNodes()
    memory.follow(made(), 0)
    assert memory.rules(TIMES, 100).due
    assert not memory.follow(made("a"), 100)
    assert memory.names({"a", "b"}, TIMES, 101) == {"a"}
    assert not memory.rules(TIMES, 129).due
    assert memory.rules(TIMES, 130).due


def test_a_node_that_its_autoscaler_keeps_is_used_again() -> None:
    memory = GivenUpNodes()
    memory.follow(made("a"), 100)
    assert memory.names({"a"}, TIMES, 999) == {"a"}
    assert memory.names({"a"}, TIMES, 1000) == frozenset()
    assert list(memory.kept) == ["a"]
    assert memory.names({"a"}, TIMES, 1000 + 8 * 900) == frozenset()
    assert list(memory.kept) == []


def test_a_node_that_is_gone_or_taken_back_is_forgotten() -> None:
    memory = GivenUpNodes()
    memory.follow(made("a", "b"), 100)
    assert memory.names({"b"}, TIMES, 110) == {"b"}
    assert memory.follow(made(), 120)
    assert memory.names({"b"}, TIMES, 121) == frozenset()

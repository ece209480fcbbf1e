"""Jobs leave nodes that are taken away: by a move, with fewer replicas, or after a save. And which nodes leaders
get."""

from dataclasses import replace
from typing import Any

import pytest

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Assignment, Plan, substitutes
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import (
    CHIEF,
    OUTGROWN,
    PS,
    WORKER,
    Job,
    Node,
    Placement,
    ReplicaGroup,
    Snapshot,
    fixed_group,
)
from elastic_tfjob.scheduling.steps.leave import next_chance_s

from .build import job, node, servers, workers

NOW = 100.0


def plan(job_: Job, nodes: list[Node], left_s: float, *, profile: str = "fifo-backfill", gone: str = "gone") -> Plan:
    """What happens to a job when `gone`, which is none of the nodes, goes in `left_s` seconds."""
    found = Snapshot(NOW, {n.name: n for n in nodes}, {job_.key: job_}, leaving={gone: NOW + left_s})
    return schedule(found, build(profile, parse_profile(profile, {})))


def change(job_: Job, nodes: list[Node], left_s: float, **more: Any) -> Assignment | None:
    return plan(job_, nodes, left_s, **more).changes.get(job_.key)


def elastic(*names: str, low: int = 1, **more: Any) -> Job:
    """Workers of 1 CPU on these nodes, the first of which leads."""
    what = {name: more.pop(name) for name in ("stoppable", "movable", "resizable") if name in more}
    state = {"warm_start": True, **more}
    made = job("a", workers(len(names), low, 8, gpus=0, cpus=1), on={WORKER: names}, **state)
    return replace(made, spec=replace(made.spec, **what))


def test_with_time_and_room_replicas_move() -> None:
    found = change(elastic("n", "gone", "n", prepare_s=20.0), [node("n", cpus=2), node("m", cpus=1)], 110)
    assert found is not None
    assert (found.nodes, found.cause) == ({WORKER: ("n", "m", "n")}, "repair")
    assert str(found.why) == "gone is taken away in 110 s"


@pytest.mark.parametrize(
    ("left_s", "prepare_s", "free"), [(110, 20.0, 0), (110, 100.0, 1), (45, None, 1), (15, 0.5, 1)]
)
def test_without_room_or_time_the_job_shrinks_away(left_s: float, prepare_s: float | None, free: int) -> None:
    """The last replica that stays takes the index of the one that goes, so only one changes its own."""
    held = elastic("n", "gone", "n", "m", prepare_s=prepare_s)
    found = change(held, [node("n", cpus=2), node("m", cpus=1 + free)], left_s, profile="elastic")
    assert found is not None
    assert (found.nodes, found.cause) == ({WORKER: ("n", "m", "n")}, "repair")
    assert found.why.facts["was"] == {WORKER: 4}


@pytest.mark.parametrize(
    ("left_s", "warm", "prepare_s", "cause"),
    [(15, True, None, "repair"), (15, False, None, "notice"), (15, False, 8.0, "repair"), (9, True, 1.0, "notice")],
)
def test_a_program_that_cannot_be_forked_in_time_saves_and_restarts_with_fewer(
    left_s: float, warm: bool, prepare_s: float | None, cause: str
) -> None:
    held = elastic("n", "gone", "n", warm_start=warm, prepare_s=prepare_s)
    found = change(held, [node("n", cpus=2)], left_s)
    assert found is not None
    assert (found.nodes, found.cause) == ({WORKER: ("n", "n")}, cause)


@pytest.mark.parametrize(("left_s", "live", "cause"), [(6, True, "repair"), (6, False, "notice"), (4, True, "notice")])
def test_workers_leave_a_running_program_in_seconds(left_s: float, live: bool, cause: str) -> None:
    held = elastic("n", "gone", "n", warm_start=True, live_workers=live)
    found = change(held, [node("n", cpus=2)], left_s)
    assert found is not None
    assert (found.nodes, found.cause) == ({WORKER: ("n", "n")}, cause)


def test_parameter_servers_shrink_away_too() -> None:
    held = job(
        "a",
        servers(3, 1, 4),
        workers(2, 1, 8, gpus=0, cpus=1),
        on={PS: ("gone", "n", "n"), WORKER: ("n", "n")},
    )
    found = change(held, [node("n", cpus=40)], 15)
    assert found is not None
    assert {t: len(names) for t, names in found.nodes.items()} == {PS: 2, WORKER: 2}
    assert "gone" not in found.nodes[PS]


@pytest.mark.parametrize(("left_s", "cause"), [(110, "repair"), (50, "notice")])
def test_the_leader_moves_if_there_is_time_and_restarts_elsewhere_if_not(left_s: float, cause: str) -> None:
    found = change(elastic("gone", "n", "n"), [node("n", cpus=2), node("m", cpus=1)], left_s)
    assert found is not None
    assert (found.nodes, found.cause) == ({WORKER: ("m", "n", "n")}, cause)


def test_the_leader_takes_the_room_of_another_replica() -> None:
    found = change(elastic("gone", "n", "n"), [node("n", cpus=2)], 15)
    assert found is not None
    assert (found.nodes, found.cause) == ({WORKER: ("n", "n")}, "notice")
    assert "no room for as many replicas" in str(found.why)


def test_within_its_bounds_a_job_that_may_not_shrink_restarts_elsewhere() -> None:
    found = change(elastic("n", "gone", low=2), [node("n", cpus=1), node("m", cpus=1)], 15)
    assert found is not None
    assert (found.nodes, found.cause) == ({WORKER: ("n", "m")}, "notice")


@pytest.mark.parametrize("held", [("n", "gone"), ("gone", "n")])
def test_without_room_a_job_stops_at_the_last_chance_and_not_before(held: tuple[str, ...]) -> None:
    stuck = elastic(*held, low=2)
    assert change(stuck, [node("n", cpus=1)], 110) is None
    found = change(stuck, [node("n", cpus=1)], 30)
    assert found is not None
    assert (found.nodes, found.cause) == ({}, "notice")


def test_a_job_that_was_just_resumed_stops_all_the_same() -> None:
    found = Snapshot(
        NOW,
        {},
        {"a": elastic("gone", low=1, stops=1, resumed_s=NOW - 1)},
        leaving={"gone": NOW + 20},
    )
    made = schedule(found, build("las", parse_profile("las", {"stop_cooldown_s": 600})))
    assert made.changes["a"].cause == "notice"


def test_without_a_checkpoint_a_job_is_repaired_as_ever() -> None:
    found = change(elastic("gone", stoppable=False, movable=False, resizable=False), [node("n", cpus=1)], 20)
    assert found is not None
    assert (found.nodes, found.why.code) == ({WORKER: ("n",)}, "lost")


@pytest.mark.parametrize("profile", sorted(set(PROFILES) - {"fixed"}))
def test_no_step_grows_a_job_in_the_round_in_which_it_shrinks_away(profile: str) -> None:
    made = build(profile, parse_profile(profile, {}))
    if made.repack or made.place.totals_only:
        pytest.skip("places the whole job again, or nothing")
    found = change(elastic("n", "gone", "n"), [node("n", cpus=2), node("m", cpus=8)], 15, profile=profile)
    assert found is not None
    assert set(found.nodes[WORKER]) == {"n"}


def test_a_node_of_which_no_time_is_known_is_left_as_a_cordoned_one() -> None:
    held = elastic("n", "gone", "n")
    cordoned = Snapshot(NOW, {"n": node("n", cpus=2)}, {"a": held})
    found = schedule(cordoned, build("fifo", parse_profile("fifo", {}))).changes["a"]
    assert (found.why.code, found.cause) == ("lost", "repair")


def test_the_next_chance_is_the_first_one_to_come() -> None:
    assert next_chance_s({"a": 150.0, "b": 140.0, "c": 120.0}, NOW) == 110.0
    assert next_chance_s({"c": 120.0}, NOW) is None


def test_a_dropped_replica_on_the_node_takes_over_but_never_the_leader() -> None:
    assert substitutes({WORKER: ("a", "b", "c", "d")}, {WORKER: ("a", "d", "c")}) == {(WORKER, 1): 3}
    assert substitutes({WORKER: ("a", "b", "c")}, {WORKER: ("a", "b", "c")}) == {}
    assert substitutes({WORKER: ("a", "b")}, {WORKER: ("b",)}) == {}


# -- Where replicas go -------------------------------------------------------------------------------------------------


def spot(name: str, **more: Any) -> Node:
    return node(name, spot=True, **more)


def started(job_: Job, nodes: list[Node], **more: Any) -> Placement:
    found = plan(job_, nodes, 1e9, gone="other", **more).changes[job_.key]
    return found.nodes


@pytest.mark.parametrize("place", ["best-fit", "spread", "even", "pack", "apart", "pack-apart"])
def test_leaders_and_servers_are_on_nodes_that_stay(place: str) -> None:
    waiting = job(
        "a", fixed_group(CHIEF, workers(1, gpus=0, cpus=1).request, 1), servers(2), workers(3, gpus=0, cpus=1)
    )
    nodes = [spot("s1", cpus=4), spot("s2", cpus=4), node("n", cpus=4)]
    found = Snapshot(NOW, {n.name: n for n in nodes}, {"a": waiting})
    made = schedule(found, build("fifo-backfill", parse_profile("fifo-backfill", {"place": place}))).changes["a"]
    assert set(made.nodes[CHIEF]) | set(made.nodes[PS]) == {"n"}
    assert len(made.nodes[WORKER]) == 3


def test_the_first_worker_leads_where_there_is_no_chief() -> None:
    made = started(job("a", workers(3, gpus=0, cpus=1)), [spot("s", cpus=8), node("n", cpus=1)])
    assert made == {WORKER: ("n", "s", "s")}


def test_workers_go_to_spot_nodes_if_all_else_is_equal() -> None:
    starts = job("a", workers(2, gpus=0, cpus=1))
    made = started(starts, [node("lead", cpus=1), node("n", cpus=2), spot("s", cpus=2)])
    assert made == {WORKER: ("lead", "s")}


def test_a_preference_never_lets_a_job_wait() -> None:
    made = started(job("a", servers(1), workers(2, gpus=0, cpus=1)), [spot("s", cpus=8), spot("t", cpus=8)])
    assert set(made[PS]) <= {"s", "t"}


def test_a_node_to_avoid_gets_replicas_only_if_no_other_has_room() -> None:
    nodes = [node("full", cpus=2, avoid=True), node("n", cpus=8)]
    assert started(job("a", workers(2, gpus=0, cpus=1)), nodes) == {WORKER: ("n", "n")}
    assert set(started(job("a", workers(9, gpus=0, cpus=1)), nodes)[WORKER]) == {"full", "n"}


@pytest.mark.parametrize("profile", ["kips", "elastic"])
@pytest.mark.parametrize("room", [True, False])
def test_a_replica_leaves_a_node_without_memory_for_it_only_if_there_is_another(profile: str, room: bool) -> None:
    """Fewer workers would not help it, and would cost the job a part of its speed."""
    nodes = [node("a", cpus=4, memory_gib=2), node("b", cpus=3 if room else 2, memory_gib=8)]
    held = {PS: (f"a{OUTGROWN}",), WORKER: ("b", "b")}
    large = ReplicaGroup(PS, Resources(1000, 4 << 30), 1, 1, 1)
    before = job("j", large, workers(2, low=1, gpus=0, cpus=1), on=held)
    found = Snapshot(NOW, {each.name: each for each in nodes}, {"j": before})
    made = schedule(found, build(profile, parse_profile(profile, {})))
    if room:
        assert made.targets["j"].nodes[PS] == ("b",)
        assert made.targets["j"].replicas == {PS: 1, WORKER: 2}
    else:
        assert "j" not in made.changes

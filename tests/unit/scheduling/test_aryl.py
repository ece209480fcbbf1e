"""The profile aryl: base demands first, flexible replicas after, own and lent nodes apart."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from elastic_tfjob.scheduling import contract
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.aryl import Item, allot
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Job, Node, ReplicaGroup, Snapshot
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.scenario import InferencePool
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.summary import Summary, summarise
from elastic_tfjob.simulation.workload import WorkloadJob
from harness.effort import effort

from .build import job, node, plan, rates, servers, workers
from .invariants import violations
from .test_properties import carried_out, snapshots


def optimum(groups: Sequence[Sequence[Item]], capacity: int) -> float:
    """The most time saved, by the dynamic program over whole weights."""
    best = [0.0] * (capacity + 1)
    for items in groups:
        best = [
            max([best[g], *(best[g - int(weight)] + value for weight, value in items if weight <= g)])
            for g in range(capacity + 1)
        ]
    return best[-1]


def drawn(seed: int) -> tuple[list[list[Item]], int]:
    """Jobs of up to 8 workers beyond their minimum, whose time falls as workers grow."""
    draw = random.Random(seed)
    groups = []
    for _ in range(draw.randint(1, 20)):
        least, each, left = draw.randint(1, 8), draw.choice([1, 1, 2, 4]), draw.uniform(600, 90_000)
        groups.append([(float(k * each), left * k / (least + k)) for k in range(1, least + 1)])
    return groups, draw.randint(1, 120)


class TestKnapsack:
    def test_greedy_is_close_to_the_optimum(self) -> None:
        reached = best = 0.0
        for seed in range(60):
            groups, capacity = drawn(seed)
            chosen = allot(groups, capacity)
            assert sum(groups[g][k - 1][0] for g, k in enumerate(chosen) if k) <= capacity
            value = sum(groups[g][k - 1][1] for g, k in enumerate(chosen) if k)
            most = optimum(groups, capacity)
            assert value <= most * (1 + 1e-9)
            assert value >= 0.95 * most
            reached, best = reached + value, best + most
        assert reached >= 0.998 * best

    def test_past_a_size_that_helps_little(self) -> None:
        assert allot([[(1.0, 1.0), (2.0, 100.0)], [(1.0, 10.0)]], 2.0) == [2, 0]
        assert allot([[(1.0, 1.0), (2.0, 100.0)], [(1.0, 10.0)]], 1.0) == [0, 1]

    def test_a_size_that_saves_nothing_is_not_given(self) -> None:
        assert allot([[(1.0, 5.0), (2.0, 5.0)]], 9.0) == [1]
        assert allot([], 4.0) == []


ELASTIC = workers(2, 2, 4)


def on(*names: str) -> dict[str, tuple[str, ...]]:
    return {WORKER: names}


def lent(name: str, speed: float = 1.0, **more: Any) -> Node:
    return replace(node(name, pool="inference", loan="loaned", **more), accelerator_speed=speed)


class TestTwoPhases:
    def test_waiting_jobs_come_before_growth(self) -> None:
        jobs = [job("long", ELASTIC, duration=9000), job("short", workers(1), duration=60)]
        found = plan("aryl", [node("n", gpus=4)], jobs)
        assert {key: len(t.nodes[WORKER]) for key, t in found.targets.items()} == {"long": 3, "short": 1}
        assert found.changes["long"].why.code == "time-saved"

    def test_room_comes_from_flexible_replicas_and_no_more_than_needed(self) -> None:
        running = job("e", ELASTIC, duration=9000, on=on("n", "n", "n", "n"))
        found = plan("aryl", [node("n", gpus=4)], [running, job("w", workers(1), duration=60)])
        assert found.changes["e"].nodes == on("n", "n", "n")
        assert (found.changes["e"].why.code, found.changes["w"].why.code) == ("makes-room", "given-room")
        assert found.changes["w"].nodes == on("n")

    def test_no_job_shrinks_where_the_waiting_job_would_still_not_fit(self) -> None:
        running = job("e", ELASTIC, duration=9000, on=on("n", "n", "n", "n"))
        assert plan("aryl", [node("n", gpus=4)], [running, job("w", workers(3), duration=60)]).changes == {}

    def test_no_job_shrinks_for_a_lower_priority_or_in_its_cooldown(self) -> None:
        running = job("e", ELASTIC, duration=9000, on=on("n", "n", "n", "n"), priority=1)
        waits = job("w", workers(1), duration=60)
        assert plan("aryl", [node("n", gpus=4)], [running, waits]).changes == {}
        cooling = replace(running, spec=replace(running.spec, priority=0), rescaled_s=-1.0)
        assert plan("aryl", [node("n", gpus=4)], [cooling, waits]).changes == {}

    def test_spare_capacity_goes_where_it_saves_most(self) -> None:
        jobs = [job(key, ELASTIC, duration=s, on=on(n, n)) for key, s, n in (("a", 100, "m"), ("b", 9000, "m"))]
        found = plan("aryl", [node("m", gpus=6)], jobs)
        assert {key: len(t.nodes[WORKER]) for key, t in found.targets.items()} == {"a": 2, "b": 4}

    def test_a_size_that_is_not_faster_is_not_taken(self) -> None:
        slow = job("e", ELASTIC, duration=9000, on=on("n", "n"), speed=rates(1, 2, 1.9, 1.8))
        assert plan("aryl", [node("n", gpus=4)], [slow]).changes == {}

    def test_a_job_that_ends_soon_neither_grows_nor_shrinks(self) -> None:
        """Another worker's program starts within 24 s on half a core, and saves a third of the time that is left."""
        some = ReplicaGroup(WORKER, Resources(500), 2, 1, 3)
        nodes = [node("n", cpus=1.5)]

        def sizes(left_s: float, *others: Job, **said: Any) -> dict[str, int]:
            runs = job("e", some, duration=1000, on=on("n", "n"))
            runs = replace(runs, steps=1000 - left_s, steps_per_s=1.0)
            changes = plan("aryl", nodes, [runs, *others], **said).changes
            return {key: target.replicas[WORKER] for key, target in changes.items()}

        assert sizes(120) == {"e": 3}
        assert sizes(20) == {}
        assert sizes(20, prepare_cpu_s=1, prepare_kept_cpu_s=1) == {"e": 3}
        waits = job("w", ReplicaGroup(WORKER, Resources(1000), 1, 1, 1), duration=60)
        assert sizes(120, waits) == {"e": 1, "w": 1}
        assert sizes(10, waits) == {}

    def test_without_scaling_jobs_have_what_they_declare(self) -> None:
        found = plan("aryl", [node("n", gpus=9)], [job("e", workers(3, 2, 6), duration=9000)], scaling=False)
        assert found.changes["e"].nodes == on("n", "n", "n")


class TestApart:
    def test_own_nodes_first_then_lent_ones_as_a_whole(self) -> None:
        nodes = [node("own", gpus=2), lent("x", gpus=4, speed=0.5)]
        jobs = [job(k, workers(2), duration=60, loanable=True) for k in "ab"]
        found = plan("aryl", nodes, jobs, scaling=False)
        assert {key: set(t.nodes[WORKER]) for key, t in found.changes.items()} == {"a": {"own"}, "b": {"x"}}
        wide = [job("w", workers(4), duration=60, loanable=True), job("c", workers(3), duration=60)]
        assert {k: set(t.nodes[WORKER]) for k, t in plan("aryl", nodes, wide).changes.items()} == {"w": {"x"}}

    def test_a_job_that_runs_without_workers_gets_some(self) -> None:
        """How much faster that is nothing tells: it is worth a rescale whatever that has to gain."""
        few = ReplicaGroup(WORKER, Resources(1000), 1, 0, 3)
        waits = job("w", servers(1, cpus=1), few, duration=9000, on={PS: ("o",)})
        found = plan("aryl", [node("o", cpus=8)], [waits], min_gain=0.5)
        assert found.changes["w"].replicas == {PS: 1, WORKER: 3}

    def test_a_job_grows_onto_lent_nodes_that_are_as_fast(self) -> None:
        grows = job("e", servers(1, cpus=1), ELASTIC, duration=9000, loanable=True, on={PS: ("o",), WORKER: ("o", "o")})
        own = node("o", gpus=2, cpus=1)
        found = plan("aryl", [own, lent("x", gpus=1, cpus=8), lent("y", gpus=2, cpus=8)], [grows])
        assert found.changes["e"].nodes == {PS: ("o",), WORKER: ("o", "o", "y", "y")}, "the tail is together"
        assert plan("aryl", [own, lent("y", gpus=2, cpus=8, speed=0.5)], [grows]).changes == {}

    def test_servers_are_on_lent_nodes_only_with_the_whole_job(self) -> None:
        waits = job("e", servers(1, cpus=1), workers(2), duration=60, loanable=True)
        assert plan("aryl", [node("o", gpus=2), lent("x", cpus=8)], [waits]).changes == {}
        whole = plan("aryl", [node("o", gpus=2), lent("x", cpus=8, gpus=2)], [waits])
        assert whole.changes["e"].nodes == {PS: ("x",), WORKER: ("x", "x")}


def rests(start: Snapshot, rounds: int = 10) -> None:
    """Within a few rounds there is nothing more to do, and it stays so."""
    profile = build("aryl", parse_profile("aryl", {}))
    snapshot, still = start, 0
    for _ in range(rounds + 6):
        decided = schedule(snapshot, profile)
        assert violations(decided) == []
        assert servers_apart(decided.targets, snapshot) == []
        still = still + 1 if not (decided.changes or decided.loans or decided.memory) else 0
        snapshot = carried_out(snapshot, decided, snapshot.now)
    assert still >= rounds, "an unchanged world, another plan"


def servers_apart(targets: Any, snapshot: Snapshot) -> list[str]:
    """Jobs that have been put on nodes by this plan with a parameter server on a lent node, and other replicas not."""
    broken = []
    for key, target in targets.items():
        kinds = {
            type_: {snapshot.nodes[name].loan != "own" for name in names if name in snapshot.nodes}
            for type_, names in target.nodes.items()
        }
        before: Job = snapshot.jobs[key]
        if not before.placement and True in kinds.get(PS, ()) and any(False in kind for kind in kinds.values()):
            broken.append(key)
    return broken


@settings(max_examples=effort(8, 25), suppress_health_check=[HealthCheck.too_slow])
@given(start=snapshots())
def test_an_unchanged_world_gives_no_other_plan(start: Snapshot) -> None:
    rests(start)


def simulated(jobs: Sequence[WorkloadJob], pool: InferencePool | None = None, **said: Any) -> Summary:
    profile = build("aryl", parse_profile("aryl", said))
    nodes = [node(f"n{k}", gpus=8) for k in range(2)]
    outcome = Simulation(SimulationInput(jobs, nodes, LINEAR, inference=pool), profile, check=holds).run()
    return summarise(outcome, len(jobs))


def holds(decided: Plan) -> None:
    assert violations(decided) == []


def test_a_wide_job_starts_though_small_jobs_keep_coming() -> None:
    """Small short jobs keep both servers busy for ever; one that needs both runs all the same."""
    small = [WorkloadJob(f"s{k}", 600.0 * k, (workers(8),), 2000.0) for k in range(400)]
    wide = WorkloadJob("wide", 1000.0, (workers(2, gpus=8),), 3000.0)
    nodes = [node(f"n{k}", gpus=8) for k in range(2)]
    starts = {}
    for patience in (10.0, 1e6):
        made = build("aryl", parse_profile("aryl", {"patience": patience, "lend": "none"}))
        run = Simulation(SimulationInput([*small, wide], nodes, LINEAR), made, check=holds).run()
        starts[patience] = next(r.start_s for r in run.records if r.key == "wide") or 0.0
    assert starts[10.0] < 1000 + 86400 + 2 * 2000 < starts[1e6]


def test_a_simulation_tells_what_loans_did() -> None:
    draw = random.Random(5)
    jobs = []
    for k in range(250):
        gpus = draw.choice([1, 2, 4, 8])
        group = workers(gpus, gpus, 2 * gpus) if k % 4 == 0 else workers(1, gpus=gpus)
        jobs.append(WorkloadJob(f"j{k}", 900.0 * k, (group,), draw.uniform(600, 20_000), loanable=k % 2 == 0))
    pool = InferencePool(4, Resources(accelerators=8), 0.5)
    told = simulated(jobs, pool).as_dict()
    assert told["finished"] == 250
    assert told["loaned_node_hours"] > told["loaned_used_hours"] > 0  # type: ignore[operator]
    assert told["reclaim_preemptions"] == told["preemptions"]
    assert told["unmet_inference"] == 0, "a simulated node goes back at once"
    assert simulated(jobs[:20], lend="none").as_dict()["loaned_node_hours"] is None


def test_a_world_without_loans_refuses_it_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the contract says of loans, and nothing else."""
    for live in ("", "somehow"):
        loans = contract.NEEDS["loans"]._replace(live=live, why="nobody lends")
        monkeypatch.setattr(contract, "NEEDS", {**contract.NEEDS, "loans": loans})
        assert contract.refusals("aryl", {}) == ([] if live else ["profiles.aryl: nobody lends"])
        assert contract.refusals("aryl", {"lend": "none"}) == []


ORDERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"order": "fifo", "backfill": False}, []),
    ({"order": "fifo"}, ["b", "c"]),
    ({}, ["c", "d"]),
]


@pytest.mark.parametrize(("said", "start"), ORDERS)
def test_orders(said: dict[str, Any], start: list[str]) -> None:
    """The first that does not fit holds back all behind it, or who fits starts; the shortest goes first."""
    jobs = [
        job("a", workers(5), duration=50, at=0.0),
        job("b", workers(2), duration=900, at=1.0),
        job("c", workers(2), duration=60, at=2.0),
        job("d", workers(2), duration=70, at=3.0),
    ]
    assert sorted(plan("aryl", [node("n", gpus=4)], jobs, now=5.0, **said).changes) == start

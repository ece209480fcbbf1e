"""The profiles `specon` and `rebalance`: who gets a crowded node's CPU, and who moves."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Job, JobSpec, ReplicaGroup, Snapshot
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.cpu import CPU_SHARE
from elastic_tfjob.simulation.workload import LossCurve, WorkloadJob
from elastic_tfjob.speed.growth import Growth
from harness.effort import effort

from .build import node, servers, workers
from .invariants import violations

NOW = 1000.0
FALLING, FLAT = (0.5, 1.0), (0.01, 1.0)
"""Growth of the loss per step now, and at its peak."""


def job(  # noqa: PLR0917
    key: str,
    where: str,
    left: float = 1000.0,
    uses: float = 1.0,
    rate: float = 1.0,
    loss: tuple[float, float] | None = None,
    readings: int = 5,
    **more: Any,
) -> Job:
    """One worker that requests 100m, uses so many CPUs and makes a step a second: `left` is in CPU seconds if it uses
    1."""
    spec = JobSpec(key, 0.0, (workers(1, gpus=0, cpus=0.1),), total_steps=left + more.pop("steps", 0.0))
    spec = replace(spec, **{name: more.pop(name) for name in ("movable", "resizable", "fixed_cpu") if name in more})
    growth = Growth() if loss is None else Growth("finite", ((1.0, 1.0),), loss[0], loss[1], readings, NOW)
    state: dict[str, Any] = {"since_s": 0.0, "observed_s": NOW, "steps_per_s": rate, "loss": growth, **more}
    use = {WORKER: 1000 * uses / state.get("cpu", {}).get(WORKER, (100,))[0]} if uses else {}
    return Job(spec, {WORKER: (where,)}, "running", cpu_use=use, **state)


def on_servers(key: str, where: str, left: float = 1000.0, **uses: float) -> Job:
    """A worker and a PS that request 100m each; `uses`: CPUs of each type, whose sum is what a step takes."""
    groups = (workers(1, gpus=0, cpus=0.1), servers(1, cpus=0.1))
    spec = JobSpec(key, 0.0, groups, total_steps=left / sum(uses.values()))
    use = {type_: 10 * cpus for type_, cpus in uses.items()}
    return Job(spec, dict.fromkeys((PS, WORKER), (where,)), "running", cpu_use=use, steps_per_s=1.0, observed_s=NOW)


def decide(jobs: list[Job], nodes: int = 2, now: float = NOW, profile: str = "specon", **params: Any) -> Plan:
    cluster = {f"n{k}": node(f"n{k}", cpus=4) for k in range(nodes)}
    made = schedule(Snapshot(now, cluster, {j.key: j for j in jobs}), build(profile, parse_profile(profile, params)))
    assert violations(made) == []
    return made


def cpu(plan: Plan) -> dict[str, int]:
    return {key: target.cpu[WORKER][0] for key, target in plan.changes.items() if target.cpu}


def moved(plan: Plan) -> dict[str, str]:
    jobs = plan.snapshot.jobs
    return {key: t.nodes[WORKER][0] for key, t in plan.changes.items() if t.nodes != jobs[key].placement}


def crowd(*left: float, on: str = "n0", **more: Any) -> list[Job]:
    """Jobs that use a node's 4 CPUs up together."""
    return [job(f"{on}-{k}", on, cpu_s / (4 / len(left)), 4 / len(left), **more) for k, cpu_s in enumerate(left)]


class TestWeights:
    def test_the_job_with_the_least_work_left_holds_the_most_cpu(self) -> None:
        held = cpu(decide(crowd(900, 100, 500, 700), 1, critical=0))
        assert held["n0-1"] > held["n0-2"] > held["n0-3"] >= held["n0-0"]

    def test_the_example_of_the_documentation(self) -> None:
        assert cpu(decide(crowd(900, 100, 500), 1)) == {"n0-0": 410, "n0-1": 2670, "n0-2": 860}

    def test_each_keeps_its_floor_and_all_is_within_the_node(self) -> None:
        held = cpu(decide(crowd(900, 100, 500, 700), 1))
        assert min(held.values()) >= 0.2 * 4000 / 4
        assert 3500 < sum(held.values()) <= 4000

    def test_within_a_job_who_uses_most_holds_most(self) -> None:
        """Else the first in order had the weight where it has nothing to do, and its worker shared as before."""
        jobs = [on_servers(f"n0-{k}", "n0", left, Worker=1.9, PS=0.1) for k, left in enumerate((100, 900))]
        first, second = (decide(jobs, 1).changes[j.key].cpu for j in jobs)
        assert first[WORKER][0] > 10 * first[PS][0]
        assert first[WORKER][0] > 2 * second[WORKER][0]

    def test_floors_and_order_are_those_of_jobs_not_of_replicas(self) -> None:
        jobs = [on_servers(f"n0-{k}", "n0", left, Worker=1.9, PS=0.1) for k, left in enumerate((100, 900))]
        held = {key: sum(sum(each) for each in target.cpu.values()) for key, target in decide(jobs, 1).changes.items()}
        assert held == cpu(decide(crowd(100, 900), 1))

    def test_a_job_that_has_only_a_ps_there_goes_first(self) -> None:
        """While that waits its worker's node is idle. It gets half of an equal share, the others the rest in order."""
        apart = replace(
            guest := on_servers("a", "n0", 9000, Worker=1.0, PS=0.3), placement={PS: ("n0",), WORKER: ("n1",)}
        )
        others = [job(f"n0-{k}", "n0", left, 3.6 / 2) for k, left in enumerate((900, 100))]
        changes = decide([apart, *others], moves=0).changes
        assert changes["a"].cpu == {PS: (660,)}
        assert str(changes["a"].reason).endswith("1 of 3 on n0 (its workers are on other nodes)")
        assert changes["n0-1"].cpu[WORKER][0] > 2 * changes["n0-0"].cpu[WORKER][0]
        assert decide([guest, *others], moves=0).changes["a"].cpu != changes["a"].cpu

    def test_a_job_that_cannot_get_cpu_does_not_lower_the_share_of_others(self) -> None:
        """A PS of a job that cannot be resized is beside two jobs: the first of those gets most, as without it."""
        apart = replace(on_servers("a", "n0", 9000, Worker=1.0, PS=0.3), placement={PS: ("n0",), WORKER: ("n1",)})
        fixed = replace(apart, spec=replace(apart.spec, resizable=False))
        others = [job(f"n0-{k}", "n0", left, 3.6 / 2) for k, left in enumerate((900, 100))]
        held = cpu(decide([fixed, *others], moves=0))
        assert held["n0-1"] > 0.6 * 4000

    def test_a_job_that_alone_takes_as_long_as_all_goes_first(self) -> None:
        """2,800 CPU seconds on 1 CPU that it can use, where the two nodes need 425 s for all."""
        held = cpu(decide(crowd(2800, 100, 200, 300), 2, moves=0))
        assert held["n0-0"] == max(held.values())
        assert held["n0-1"] > held["n0-3"]

    def test_work_is_by_what_a_step_was_measured_to_cost(self) -> None:
        """Not by the speed of a moment: this job was just given less CPU, and seems to need nine times as long."""
        slowed = job("n0-0", "n0", 300, 4 / 3, rate=4 / 27, step_cpu_s=1.0)
        held = cpu(decide([slowed, job("n0-1", "n0", 700, 4 / 3), job("n0-2", "n0", 900, 4 / 3)], 1))
        assert held["n0-0"] > held["n0-1"] > held["n0-2"]

    @pytest.mark.parametrize(("settled", "first"), [(True, "n0-3"), (False, "n0-0")])
    def test_cpu_that_was_just_given_does_not_count_as_the_jobs_limit(self, settled: bool, first: str) -> None:
        """The first holds 3 CPUs and uses 1: all that it can, unless it was given them a moment ago. With 1 CPU the
        last would be critical, with the whole node nobody is."""
        jobs = [job(f"n0-{k}", "n0", left, 1.0) for k, left in enumerate((100, 200, 300, 900))]
        jobs[0] = job("n0-0", "n0", 100, 1.0, cpu={WORKER: (3000,)}, cpu_settled=settled)
        held = cpu(decide(jobs, 1, moves=0))
        assert max(held, key=lambda key: held[key]) == first

    @pytest.mark.parametrize(("settled", "first"), [(True, "n0-1"), (False, "n0-0")])
    def test_the_order_stays_until_all_have_shown_what_they_use_now(self, settled: bool, first: str) -> None:
        """By what is left the second would go first, but one of them was given its CPU a moment ago."""
        held = {"n0-0": 2000, "n0-1": 1000, "n0-2": 900}
        left = {"n0-0": 900, "n0-1": 100, "n0-2": 500}
        jobs = [job(key, "n0", left[key], 4 / 3, cpu={WORKER: (held[key],)}) for key in held]
        jobs[2] = replace(jobs[2], cpu_settled=settled)
        found = cpu(decide(jobs, 1, moves=0, critical=0))
        now = {key: found.get(key, millicores) for key, millicores in held.items()}
        assert max(now, key=lambda key: now[key]) == first

    def test_a_node_that_is_nearly_full_shows_no_bound(self) -> None:
        """Two jobs use 82 % of a node: little less than makes it crowded. Were 1.6 CPUs all that a replica can use, the
        first job of the other node would be critical."""
        jobs = [*crowd(700, 100, 200), *(job(f"n1-{k}", "n1", 100, 1.64) for k in range(2))]
        held = cpu(decide(jobs, 2, moves=0))
        assert held["n0-0"] == min(held.values())

    @pytest.mark.parametrize("more", [{}, {"uses": 0.0}, {"cpu": {WORKER: (2000,)}, "cpu_settled": False}])
    def test_a_node_of_which_too_little_is_known_shows_no_bound(self, more: dict[str, Any]) -> None:
        """One job uses 1.6 of 4 CPUs of the second node, what another one uses there is not known, or was before it
        changed. Were 1.6 CPUs all that a replica can use, the first of the first node would be critical; it is where
        the other one is known to use little."""
        second = [job("n1-0", "n1", 100, 1.6), job("n1-1", "n1", 100, **{"uses": 0.4, **more})]
        held = cpu(decide([*crowd(700, 100, 200), *second], 2, moves=0))
        assert (held["n0-0"] == min(held[f"n0-{k}"] for k in range(3))) is bool(more)

    @pytest.mark.parametrize(("ps", "least"), [("n0", True), ("n1", False)])
    def test_a_worker_that_waits_for_a_ps_on_a_crowded_node_shows_no_bound(self, ps: str, least: bool) -> None:
        """It is alone with 1.6 of 4 CPUs. Were that all that a replica can use, the first of the node would be
        critical; with its PS beside it it is all."""
        waits = on_servers("a", "n1", 400, Worker=1.6, PS=0.2)
        waits = replace(waits, placement={PS: (ps,), WORKER: ("n1",)})
        jobs = [waits, *crowd(700, 100, 200)]
        changes = decide(jobs, 2, moves=0).changes
        held = {key: changes[key].cpu[WORKER][0] for key in ("n0-0", "n0-1", "n0-2")}
        assert (held["n0-0"] == min(held.values())) is least

    def test_alone_a_job_takes_as_long_as_its_heaviest_replica(self) -> None:
        """1,000 CPU seconds, of which 700 in the worker, on 1 CPU that a replica can use; 845 would be critical."""
        jobs = [on_servers("a", "n0", 1000, Worker=0.7, PS=0.3)]
        jobs += [job(f"{name}-{k}", name, 700) for name in ("n0", "n1") for k in range(3)]
        plan = decide(jobs, 2, moves=0)
        assert str(plan.changes["a"].reason).endswith("4 of 4 on n0 (by remaining work)")
        whole = [replace(on_servers("a", "n0", 1000, Worker=1.0), cpu_use={WORKER: 10.0, PS: 0.0}), *jobs[1:]]
        assert "critical: it takes longest even alone" in str(decide(whole, 2, moves=0).changes["a"].reason)

    def test_nothing_changes_where_no_job_is_slowed_down(self) -> None:
        assert decide([job("a", "n0"), job("b", "n0")]).changes == {}

    @pytest.mark.parametrize(("shares", "changed"), [(2, False), (1, True), (0, True)])
    def test_jobs_that_share_what_they_hold_do_not_crowd_a_node(self, shares: int, changed: bool) -> None:
        """They use all of it, and no more; one that is only bound by its weight takes from the others."""
        jobs = [replace(each, cpu_shared=k < shares) for k, each in enumerate(crowd(900, 500))]
        assert bool(decide(jobs, moves=0).changes) is changed

    def test_jobs_on_two_nodes_keep_all_that_they_hold_until_it_has_shown_what_it_does(self) -> None:
        """Whatever they seem to use meanwhile; what a job holds on one node says nothing of its place on another."""
        apart = [
            replace(on_servers(key, "n0", left, Worker=1.9, PS=0.1), placement={PS: (ps,), WORKER: (worker,)})
            for key, left, ps, worker in (("a", 900, "n0", "n1"), ("b", 500, "n1", "n1"), ("c", 700, "n1", "n0"))
        ]
        jobs = {job.spec.key: job for job in (*apart, on_servers("d", "n0", 300, Worker=1.9, PS=0.1))}
        first = decide(list(jobs.values()), moves=0).changes
        assert first.keys() == jobs.keys()
        for use in (0.3, 0.9):
            after = [
                replace(
                    job, cpu=first[key].cpu, cpu_settled=key not in {"b", "d"}, cpu_use={WORKER: use, PS: 1.0 - use}
                )
                for key, job in jobs.items()
            ]
            assert decide(after, moves=0).changes == {}

    def test_weights_stay_while_a_job_moves_away(self) -> None:
        jobs = [job(f"n0-{k}", "n0", left, 4 / 3) for k, left in enumerate((900, 100, 500))]
        held = cpu(decide(jobs, 1, moves=0))
        stay = [replace(job, cpu={WORKER: (held[job.spec.key],)}) for job in jobs[:2]]
        seem = [replace(job, cpu_use={WORKER: use}) for job, use in zip(stay, (0.1, 9.0), strict=True)]
        moves = replace(jobs[2], phase="rescaling", cpu_use={})
        assert decide([*seem, moves], 1, moves=0).changes == {}

    def test_weights_stay_while_it_is_not_known_what_one_of_the_jobs_uses(self) -> None:
        """As while it moves away: that the others use two thirds of the node does not mean that it is theirs."""
        jobs = [job(f"n0-{k}", "n0", left, 4 / 3) for k, left in enumerate((900, 100))]
        held = cpu(decide([*jobs, job("n0-2", "n0", 500, 4 / 3)], 1, moves=0))
        later = [replace(each, cpu={WORKER: (held[each.spec.key],)}) for each in jobs]
        assert decide([*later, job("n0-2", "n0", 500, uses=0)], 1, moves=0).changes.keys() <= {"n0-2"}

    def test_a_node_is_full_though_its_jobs_do_not_use_all_of_it(self) -> None:
        """Kubelet, exporters and the kernel's throttling keep a tenth: three jobs that fought for half a core on a kind
        node used 0.44 of it together."""
        jobs = [job(f"n0-{k}", "n0", left, 0.88 * 4 / 3) for k, left in enumerate((900, 100, 500))]
        held = cpu(decide(jobs, 1))
        assert held["n0-1"] > held["n0-2"] > held["n0-0"]

    def test_cpu_goes_back_where_the_crowd_is_gone(self) -> None:
        plan = decide([job("a", "n0", cpu={WORKER: (2000,)}), job("b", "n0")])
        assert plan.changes["a"].cpu == {}

    def test_a_small_change_of_a_measurement_changes_nothing(self) -> None:
        jobs = crowd(500, 505, 900)
        held = cpu(decide(jobs, 1, critical=0))
        again = [
            job(j.key, "n0", left * 0.75, 4 / 3, cpu={WORKER: (held[j.key],)})
            for j, left in zip(jobs, (505, 495, 890), strict=True)
        ]
        assert decide(again, 1, critical=0).changes == {}

    def test_a_job_of_unknown_length_counts_as_half_done(self) -> None:
        jobs = crowd(100, 800, 5000)
        unknown = replace(jobs[0], spec=replace(jobs[0].spec, total_steps=None))  # ran 1,000 s
        held = cpu(decide([unknown, *jobs[1:]], 1, critical=0))
        assert held["n0-1"] > held["n0-0"] > held["n0-2"] - 1

    @pytest.mark.parametrize("fixed", [{"resizable": False}, {"fixed_cpu": True}])
    def test_a_job_that_may_not_get_a_different_cpu_share_keeps_its_own(self, fixed: dict[str, Any]) -> None:
        jobs = crowd(100, 200, 300)
        jobs[0] = replace(jobs[0], spec=replace(jobs[0].spec, **fixed))
        assert set(cpu(decide(jobs, 1))) == {"n0-1", "n0-2"}


@pytest.mark.parametrize("profile", ["specon", "rebalance"])
class TestMoves:
    def test_from_a_crowded_node_to_idle_cpu_the_longest_first(self, profile: str) -> None:
        assert moved(decide(crowd(900, 2000, 500), profile=profile)) == {"n0-1": "n1"}

    def test_also_where_a_server_uses_less_than_it_holds(self, profile: str) -> None:
        """It waits for its worker, and says nothing of what that could use elsewhere."""
        jobs = [on_servers(f"n0-{k}", "n0", 3000, Worker=1.28, PS=0.06) for k in range(3)]
        moves = [t.nodes for t in decide(jobs, profile=profile).changes.values() if t.nodes[WORKER] == ("n1",)]
        assert moves == [{PS: ("n0",), WORKER: ("n1",)}]

    def test_each_node_gets_at_most_one_job_a_round(self, profile: str) -> None:
        assert len(moved(decide(crowd(900, 2000, 500, 800), nodes=3, profile=profile))) == 2

    @pytest.mark.parametrize(
        "more", [{"migrations": 2}, {"movable": False}, {"observed_s": NOW + 5}], ids=["often", "fixed", "paused"]
    )
    def test_a_job_that_moved_often_or_cannot_move_stays(self, profile: str, more: dict[str, Any]) -> None:
        assert moved(decide(crowd(900, 2000, 500, **more), profile=profile)) == {}

    def test_a_job_with_little_work_left_stays(self, profile: str) -> None:
        assert moved(decide(crowd(90, 70, 50), profile=profile)) == {}

    def test_no_job_moves_to_a_node_of_unknown_use(self, profile: str) -> None:
        silent = job("new", "n1", uses=0)
        assert moved(decide([*crowd(900, 2000, 500), silent], profile=profile)) == {}

    def test_from_a_node_that_strangers_fill(self, profile: str) -> None:
        """Of its CPU nothing is left for jobs: who waits there longest goes."""
        full = {"n0": node("n0", cpus=4, free=Resources(0)), "n1": node("n1", cpus=4)}
        jobs = {each.key: each for each in crowd(900, 2000, 500)}
        assert moved(schedule(Snapshot(NOW, full, jobs), build(profile, parse_profile(profile, {})))) == {"n0-1": "n1"}

    def test_no_job_moves_to_cpu_that_is_idle_for_a_moment(self, profile: str) -> None:
        """The node is as full as the other one would be without it: one of its jobs hardly uses its part now, as while
        it changes its size."""
        there = [job("n1-0", "n1", 8000, 2.0), job("n1-1", "n1", 40000, 0.2)]
        assert moved(decide([*crowd(2000, 2000, 2000), *there], profile=profile)) == {}
        assert len(moved(decide([*crowd(2000, 2000, 2000), there[0]], profile=profile))) == 1

    def test_beside_a_single_job_that_fills_its_node(self, profile: str) -> None:
        """Else it would have a node, and three another one. Not beside two jobs, nor back."""
        crowded = crowd(2000, 2000, 2000)
        beside = decide([*crowded, job("n1-0", "n1", 500, 4.0)], profile=profile)
        assert len(moved(beside)) == 1
        assert moved(decide([*crowded, *(job(f"n1-{k}", "n1", 250, 2.0) for k in range(2))], profile=profile)) == {}
        after = [*crowd(2000, 2000), job("n0-2", "n1", 1000, 2.0, migrations=1), job("n1-0", "n1", 250, 2.0)]
        assert moved(decide(after, profile=profile)) == {}

    def test_no_job_moves_between_two_crowded_nodes(self, profile: str) -> None:
        both = [*crowd(900, 2000, 500), *crowd(800, 300, on="n1")]
        assert moved(decide(both, profile=profile)) == {}


class TestPublished:
    def of(self, jobs: list[Job], **more: Any) -> Plan:
        return decide(jobs, published=True, **more)

    def test_the_slowest_converged_goes_where_fewest_progress(self) -> None:
        done = {"watched": 3, "converged": 1}
        jobs = [
            job("a", "n0", loss=FALLING),
            job("b", "n0", loss=(0.05, 1.0), memory=done),
            job("c", "n0", loss=FLAT, memory=done),
            job("d", "n1", loss=FALLING),
        ]
        plan = self.of(jobs)
        assert moved(plan) == {"c": "n1"}
        assert "converged" in str(plan.changes["c"].reason)

    def test_two_slow_readings_in_a_row(self) -> None:
        """One has it watched; the same one again changes nothing; the next has it converged."""
        beside = [job("a", "n0", loss=FALLING), job("b", "n0", loss=FALLING)]
        slow = job("c", "n0", loss=FLAT, readings=5)
        first = self.of([*beside, slow])
        assert (first.changes, first.memory) == ({}, {"c": {"watched": 5}})
        watched = replace(slow, memory=first.memory["c"])
        again = self.of([*beside, watched])
        assert (again.changes, again.memory) == ({}, {})
        later = replace(watched, loss=replace(slow.loss, readings=6))
        assert moved(self.of([*beside, later])) == {"c": "n1"}

    def test_a_job_that_resumes_is_known_by_its_loss_from_the_start(self) -> None:
        slow = job("c", "n0", loss=FLAT, readings=5)
        waits = replace(slow, placement={}, phase="waiting", steps_per_s=0.0, cpu_use={})
        first = self.of([waits])
        assert (set(first.changes), first.memory) == ({"c"}, {"c": {"watched": 5}})
        assert self.of([replace(slow, memory=first.memory["c"])]).memory == {}, "nothing is left for the next plan"

    def test_a_job_whose_loss_falls_fast_again_progresses_again(self) -> None:
        plan = self.of([job("a", "n0", loss=FALLING, memory={"watched": 3, "converged": 1})])
        assert plan.memory == {"a": {}}

    @pytest.mark.parametrize("state", ["nan", "inf", "absent"])
    def test_a_loss_that_is_no_number_moves_nobody(self, state: Any) -> None:
        flat = job("c", "n0", loss=FLAT)
        jobs = [job("a", "n0", loss=FALLING), job("b", "n0"), replace(flat, loss=replace(flat.loss, state=state))]
        for _ in range(3):
            plan = self.of(jobs)
            assert (plan.changes, plan.memory) == ({}, {})

    def test_one_move_in_a_period_and_one_of_a_job(self) -> None:
        done = {"watched": 3, "converged": 1}
        jobs = [job("a", "n0", loss=FALLING), *(job(k, "n0", loss=FLAT, memory=done) for k in "bcd")]
        just = job("m", "n1", loss=FLAT, migrations=1, since_s=NOW - 20)
        assert moved(self.of([*jobs, just])) == {}
        assert len(moved(self.of([*jobs, replace(just, since_s=NOW - 30)]))) == 1
        assert moved(self.of([jobs[0], *(replace(j, migrations=1) for j in jobs[1:])])) == {}


@st.composite
def crowds(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for k in range(draw(st.integers(0, 12))):
        cpus = draw(st.sampled_from([0.0, 0.3, 1.0, 2.0]))
        left, where = draw(st.sampled_from([1.0, 300.0, 5000.0])), draw(st.sampled_from(["n0", "n1", "n2"]))
        slow = draw(st.sampled_from([None, FALLING, FLAT]))
        moves = draw(st.integers(0, 2))
        jobs.append(job(f"j{k:02}", where, left, cpus, loss=slow, migrations=moves))
    return jobs


@pytest.mark.parametrize(("profile", "more"), [("specon", {}), ("specon", {"published": True}), ("rebalance", {})])
@settings(max_examples=effort(7, 20), deadline=None)
@given(jobs=crowds())
def test_an_unchanged_world_gives_an_unchanged_plan(profile: str, more: dict[str, Any], jobs: list[Job]) -> None:
    """What uses how much stays as it was, and memory is fed back. One replica goes to a node at a time: in few rounds
    all moves are made, and then nothing changes for ten."""
    changes = []
    for _ in range(20):
        plan = decide(jobs, 3, profile=profile, **more)
        changes.append(dict(plan.changes))
        jobs = [carried_out(j, plan) for j in jobs]
    assert not any(changes[10:])


def carried_out(before: Job, plan: Plan) -> Job:
    """The job once the plan is carried out, with what was remembered; it uses what it used before."""
    target = plan.changes.get(before.key)
    after = replace(before, memory=plan.memory.get(before.key, before.memory))
    if target is None:
        return after
    uses = before.cpu_use.get(WORKER, 0.0) * before.held_cpu(WORKER)
    moves = target.nodes != before.placement
    after = replace(after, placement=target.nodes, cpu=target.cpu, migrations=before.migrations + moves)
    use = {WORKER: uses / after.held_cpu(WORKER)} if uses else {}
    return replace(after, cpu_use=use, since_s=NOW if moves else before.since_s)


@st.composite
def floods(draw: st.DrawFn) -> list[WorkloadJob]:
    """More jobs than fit at once come within some minutes to two nodes of 4 CPUs and 4 places: they crowd both."""
    made = []
    for k in range(draw(st.integers(1, 24))):
        group = ReplicaGroup(WORKER, Resources(draw(st.sampled_from([500, 1000, 2000]))), 1, 1, 1)
        lasts = draw(st.sampled_from([5.0, 60.0, 400.0]))
        at = draw(st.sampled_from([0.0, 30.0, 90.0]))
        loss = LossCurve(draw(st.sampled_from([0.001, 0.1])), 1.0, 0.1)
        made.append(
            WorkloadJob(f"j{k:02}", at, (group,), lasts, cpu_demand=draw(st.sampled_from([1.0, 4.0])), loss=loss)
        )
    return made


@pytest.mark.parametrize("more", [{}, {"published": True}], ids=["specon", "published"])
@settings(max_examples=effort(4, 12), deadline=None)
@given(jobs=floods())
def test_no_job_waits_more_than_three_times_as_long_as_under_fifo(
    more: dict[str, Any], jobs: list[WorkloadJob]
) -> None:
    """Compared with the longest wait under first come, first served, as for the other profiles."""

    def waits(profile: str, said: dict[str, Any]) -> list[float]:
        made = build(profile, parse_profile(profile, said))
        cluster = uniform_cluster(2, 0, 4, 64)
        outcome = Simulation(SimulationInput(jobs, cluster, CPU_SHARE, costs=Costs(migrate_s=10.0)), made).run()
        assert all(record.finish_s is not None for record in outcome.records)
        return [record.queue_s for record in outcome.records]

    assert max(waits("specon", more)) <= 3 * max(60.0, *waits("fifo", {}))

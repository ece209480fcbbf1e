"""How many replicas: each Allocate on cases worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources, Taint
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import CHIEF, PS, WORKER, Counts, ReplicaGroup
from elastic_tfjob.scheduling.steps.sizes import EACH_OF, Downward, largest
from elastic_tfjob.simulation.speed_models.elasticflow import TabledTrueSpeed
from elastic_tfjob.speed.history import Conditions
from elastic_tfjob.speed.model import Table
from elastic_tfjob.speed.optimus import believe

from .build import GIB, job, node, plan, rates, servers, sizes, snapshot, workers


def group(cpus: int, memory_gib: int, high: int) -> ReplicaGroup:
    return ReplicaGroup(WORKER, Resources(cpus * 1000, memory_gib * GIB), 1, 1, high)


class TestDrf:
    def test_the_example_of_the_paper(self) -> None:
        """9 CPUs and 18 GB; A asks <1 CPU, 4 GB>, B <3 CPU, 1 GB>: A gets 3 tasks, B 2 (NSDI'11, section 4.1)."""
        jobs = [job("A", group(1, 4, 10)), job("B", group(3, 1, 10))]
        assert sizes(plan("drf", [node("n", cpus=9, memory_gib=18)], jobs)) == {"A": 3, "B": 2}

    def test_a_bundle_is_a_ps_and_a_worker_until_one_is_at_its_maximum(self) -> None:
        j = job("j", servers(1, 1, 2), workers(1, 1, 4, gpus=0, cpus=1))
        assert plan("drf", [node("n", cpus=100)], [j]).changes["j"].replicas == {PS: 2, WORKER: 4}

    def test_next_lets_others_go_on_where_stop_ends(self) -> None:
        """Of 10 CPUs each job has its minimum (4 + 1); then wide, with share 0.4, does not fit its second unit."""
        jobs = [job("wide", group(4, 0, 9)), job("thin", group(1, 0, 9), at=1)]
        one = [node("n", cpus=7)]
        assert sizes(plan("drf", one, jobs)) == {"wide": 1, "thin": 3}
        assert sizes(plan("drf", [node("n", cpus=6)], [jobs[0], job("x", group(4, 0, 9), at=1), jobs[1]])) == {
            "wide": 1,
            "thin": 2,
        }
        assert sizes(
            plan(
                "drf",
                [node("n", cpus=6)],
                [jobs[0], job("x", group(4, 0, 9), at=1), job("thin", group(1, 0, 9), at=2)],
                on_full="stop",
            )
        ) == {"wide": 1}

    def test_jobs_without_room_for_their_minimum_wait(self) -> None:
        jobs = [job(f"j{k}", workers(2, 2, 4), at=k) for k in range(3)]
        decided = plan("drf", [node("n", gpus=5)], jobs)
        assert sizes(decided) == {"j0": 3, "j1": 2}
        assert set(decided.waiting) == {"j2"}

    def test_a_newcomer_shrinks_those_that_have_more(self) -> None:
        big = job("big", workers(1, 1, 4), on={"Worker": ("n",) * 4})
        decided = plan("drf", [node("n", gpus=4)], [big, job("new", workers(1, 1, 4), at=1)])
        assert sizes(decided) == {"big": 2, "new": 2}
        assert decided.changes["big"].reason == Reason("dominant-share", {"was": {"Worker": 4}, "now": {"Worker": 2}})
        assert decided.changes["big"].nodes == {"Worker": ("n", "n")}

    def test_a_job_that_cannot_be_rescaled_keeps_its_size(self) -> None:
        big = job("big", workers(1, 1, 4), on={"Worker": ("n",) * 4})
        stiff = replace(big, spec=replace(big.spec, resizable=False))
        assert sizes(plan("drf", [node("n", gpus=4)], [stiff, job("new", at=1)])) == {"big": 4}

    def test_cooldown_and_a_rescale_under_way_leave_a_job_alone(self) -> None:
        new = job("new", at=1)
        big = job("big", workers(1, 1, 4), on={"Worker": ("n",) * 4})
        for busy in (replace(big, rescaled_s=50.0), replace(big, phase="rescaling")):
            decided = plan("drf", [node("n", gpus=4)], [busy, new], now=100, cooldown_s=60)
            assert sizes(decided) == {"big": 4}, busy
        assert sizes(
            plan("drf", [node("n", gpus=4)], [job("big", workers(1, 1, 4), on={"Worker": ("n",) * 4}), new])
        ) == {
            "big": 3,
            "new": 1,
        }

    def test_growth_below_the_least_gain_is_left(self) -> None:
        j = job("j", workers(1, 1, 2), on={"Worker": ("n",)}, speed=rates(1.0, 1.05))
        assert plan("drf", [node("n", gpus=2)], [j], min_gain=0.1).changes == {}
        assert sizes(plan("drf", [node("n", gpus=2)], [j], min_gain=0.04)) == {"j": 2}


class TestOptimus:
    def test_the_unit_goes_to_the_largest_gain(self) -> None:
        """600 steps each. a: 1/1 - 1/2 saves 300 s, then 100 s; b: 1/1 - 1/1.2 saves 100 s. 4 GPUs: a 3, b 1
        (the tie at 100 s goes to the earlier job)."""
        jobs = [
            job("a", workers(1, 1, 4), steps=600, speed=rates(1.0, 2.0, 3.0, 3.1)),
            job("b", workers(1, 1, 4), steps=600, speed=rates(1.0, 1.2, 1.3, 1.4), at=1),
        ]
        assert sizes(plan("optimus", [node("n", gpus=4)], jobs)) == {"a": 3, "b": 1}

    def test_more_work_left_weighs_more(self) -> None:
        jobs = [
            job("a", workers(1, 1, 2), steps=100, speed=rates(1.0, 2.0)),
            job("b", workers(1, 1, 2), steps=1000, speed=rates(1.0, 1.5), at=1),
        ]
        assert sizes(plan("optimus", [node("n", gpus=3)], jobs)) == {"a": 1, "b": 2}

    def test_no_worker_is_added_that_slows_the_job_down(self) -> None:
        j = job("j", workers(1, 1, 4), steps=100, speed=rates(1.0, 1.5, 1.2, 9.0))
        assert sizes(plan("optimus", [node("n", gpus=8)], [j])) == {"j": 2}

    def test_ps_or_worker_whichever_helps_more(self) -> None:
        speed = Table({(1, 1): 1.0, (1, 2): 1.1, (2, 1): 1.5, (2, 2): 2.0})
        j = job("j", servers(1, 1, 2), workers(1, 1, 2, gpus=0, cpus=1), steps=100, speed=speed)
        assert plan("optimus", [node("n", cpus=3)], [j]).changes["j"].replicas == {PS: 2, WORKER: 1}

    def test_gain_counts_per_dominant_share_unless_told_otherwise(self) -> None:
        """A worker saves 50 s for 8 of 16 CPUs, a PS 34 s for 1 of 16."""
        speed = Table({(1, 1): 1.0, (1, 2): 2.0, (2, 1): 1.5})
        j = job("j", servers(1, 1, 2), workers(1, 1, 2, gpus=0, cpus=6), steps=100, speed=speed)
        nodes = [node("n", cpus=13.5)]
        assert plan("optimus", nodes, [j]).changes["j"].replicas == {PS: 2, WORKER: 1}
        assert plan("optimus", nodes, [j], per_resource=False).changes["j"].replicas == {PS: 1, WORKER: 2}

    def test_unknown_speed_stays_at_the_minimum(self) -> None:
        assert sizes(plan("optimus", [node("n", gpus=8)], [job("j", workers(1, 1, 4), steps=100)])) == {"j": 1}

    @pytest.mark.parametrize(("gpus", "size"), [(3, 2), (7, 4), (8, 8)])
    def test_a_table_without_the_next_size_leads_to_the_one_after(self, gpus: int, size: int) -> None:
        """Speeds at 1, 2, 4 and 8: from 2 the next is 4, which takes two more."""
        speed = TabledTrueSpeed(100.0, {1: 1.0, 2: 1.9, 4: 3.5, 8: 6.0})
        j = job("j", workers(1, 1, 8), speed=speed, steps=100)
        assert sizes(plan("optimus", [node("n", gpus=gpus)], [j])) == {"j": size}


class TestTetris:
    def test_alignment_prefers_the_demand_that_matches_what_is_free(self) -> None:
        """Free 16 CPUs but of memory only 2 of 64 GB: the CPU-heavy job aligns better although it came later."""
        busy = job("busy", group(0, 62, 1), on={"Worker": ("n",)})
        jobs = [busy, job("memory", group(9, 2, 1), at=1), job("cpu", group(10, 0, 1), at=2)]
        assert "cpu" in plan("tetris", [node("n", cpus=16, memory_gib=64)], jobs, now=3, shortness_weight=0).changes

    def test_shortness_decides_between_equal_demands(self) -> None:
        jobs = [job("long", duration=1000), job("short", duration=10, at=1)]
        assert sizes(plan("tetris", [node("n", gpus=1)], jobs, now=1)) == {"short": 1}

    def test_nothing_is_taken_from_a_running_job(self) -> None:
        running = job("r", workers(1, 1, 4), duration=1000, on={"Worker": ("n",) * 4}, steps_per_s=1.0)
        assert plan("tetris", [node("n", gpus=4)], [running, job("short", duration=1, at=1)], now=1).changes == {}

    def test_running_jobs_grow_into_spare_capacity(self) -> None:
        running = job("r", workers(1, 1, 3), duration=1000, on={"Worker": ("n",)}, steps_per_s=1.0)
        assert sizes(plan("tetris", [node("n", gpus=4)], [running])) == {"r": 3}


class TestEdfSizes:
    """A job whose fourth worker slows it down, on 4 GPUs."""

    jobs = (
        job("soon", workers(1, 1, 4), deadline=10, speed=rates(1.0, 1.8, 2.2, 2.0)),
        job("later", workers(1, 1, 4), deadline=20, speed=rates(1.0, 1.8, 2.2, 2.0)),
    )

    @pytest.mark.parametrize(("size", "expected"), [("useful", {"soon": 3, "later": 1}), ("largest", {"soon": 4})])
    def test_size(self, size: str, expected: dict[str, int]) -> None:
        assert sizes(plan("edf", [node("n", gpus=4)], list(self.jobs), size=size)) == expected

    def test_sizes_without_a_measured_speed_are_passed_over(self) -> None:
        j = job("j", workers(1, 1, 4), speed=Table({(0, 1): 1.0, (0, 2): 2.0}))
        assert sizes(plan("edf", [node("n", gpus=4)], [j])) == {"j": 2}

    def test_a_job_of_fixed_size_gets_it_or_waits_and_the_next_goes_on(self) -> None:
        jobs = [job("wide", workers(8), deadline=1), job("thin", deadline=2)]
        assert sizes(plan("edf", [node("n", gpus=4)], jobs)) == {"thin": 1}


def test_repack_places_a_resized_job_anew() -> None:
    """Grown from 2 to 4 it fits one node, where it was split over two."""
    split = job("j", workers(1, 1, 4), steps=100, on={"Worker": ("a", "b")}, speed=rates(1, 2, 3, 4))
    nodes = [node("a", gpus=4), node("b", gpus=4)]
    assert plan("optimus", nodes, [split], place="pack").changes["j"].nodes == {"Worker": ("a",) * 4}
    kept = plan("optimus", nodes, [split], place="pack", repack=False).changes["j"].nodes["Worker"]
    assert kept[:2] == ("a", "b")


def test_a_size_that_fits_no_nodes_gives_way_to_the_largest_that_does() -> None:
    """5 GPUs are free in total, but whole replicas of 2 GPUs fit only 1 + 1."""
    j = job("j", workers(1, 1, 3, gpus=2))
    nodes = [node("a", gpus=3), node("b", gpus=3)]
    assert plan("drf", nodes, [j]).changes["j"].replicas == {WORKER: 2}


class TestKips:
    def test_a_job_that_starts_leaves_room_for_one_that_has_waited_too_long(self) -> None:
        """Rather than start with 2 workers now and be shrunk to 1 in the next round. 4 CPUs; patience is 30 s."""
        one = workers(1, 1, 1, gpus=0, cpus=1)
        jobs = [job("a", one), job("b", one), job("wide", workers(2, 1, 2, gpus=0, cpus=1)), job("last", one, at=1)]
        decided = plan("kips", [node("n", cpus=4)], jobs, now=100)
        assert sizes(decided) == {"a": 1, "b": 1, "wide": 1, "last": 1}
        assert decided.changes["wide"].reason == Reason("makes-room", {"job": "last", "waits_s": 99.0})

    def test_the_reason_of_a_start_is_only_why_that_size(self) -> None:
        """The size is said by who carries the plan out."""
        two = workers(2, 1, 2, gpus=0, cpus=1)
        nodes = [node("n", cpus=3)]
        decided = plan("kips", nodes, [job("first", two), job("second", two, at=1)])
        assert {key: target.reason for key, target in decided.changes.items()} == {
            "first": Reason("as-declared"),
            "second": Reason("less-room", {"declared": {"Worker": 2}}),
        }
        wide = job("wide", workers(2, 1, 3, gpus=0, cpus=1), on={"Worker": ("n",) * 3}, duration=1e6, steps_per_s=1.0)
        decided = plan("kips", nodes, [wide, job("new", workers(1, gpus=0, cpus=1))])
        assert decided.changes["new"].reason == Reason("given-room")
        sizes_ = {"was": {"Worker": 3}, "now": {"Worker": 2}}
        assert decided.changes["wide"].reason == Reason("makes-room", {"job": "new", "waits_s": 0.0, **sizes_})
        assert str(decided.changes["wide"].reason) == "Worker 3 -> 2: makes room for new, which has waited for 0 s"

    def test_a_job_whose_steps_are_done_is_lent_no_cpu_to_start_with(self) -> None:
        """Both make no step: one has yet to make its first, the other has made its last."""
        one = workers(1, gpus=0, cpus=1)
        jobs = [
            job("starts", one, steps=100, on={"Worker": ("a",)}),
            replace(job("done", one, steps=100, on={"Worker": ("b",)}), steps=100.0),
        ]
        decided = plan("kips", [node("a", cpus=4), node("b", cpus=4)], jobs)
        assert {key: dict(target.cpu) for key, target in decided.changes.items()} == {"starts": {WORKER: (4000,)}}

    def test_types_that_take_turns_get_cpu_by_the_root_of_their_work(self) -> None:
        """PS and worker together use 80 % of the time: PS 0.64 of a CPU, worker 0.16, whose roots are as 2 to 1."""
        types = (servers(1), workers(1, gpus=0, cpus=1))
        turns = job("turns", *types, steps=1e6, on={"PS": ("n",), "Worker": ("n",)}, steps_per_s=1.0)
        turns = replace(turns, cpu_use={PS: 0.64, WORKER: 0.16})
        decided = plan("kips", [node("n", cpus=9)], [turns])
        assert dict(decided.changes["turns"].cpu) == {PS: (4000,), WORKER: (2000,)}

    def test_a_type_at_its_limit_gets_what_there_is(self) -> None:
        types = (servers(1), workers(1, gpus=0, cpus=1))
        bound = job("bound", *types, steps=1e6, on={"PS": ("n",), "Worker": ("n",)}, steps_per_s=1.0)
        bound = replace(bound, cpu_use={PS: 0.64, WORKER: 0.9})
        decided = plan("kips", [node("n", cpus=4)], [bound])
        assert dict(decided.changes["bound"].cpu) == {WORKER: (3000,)}

    def test_types_without_cpu_of_their_own_want_none(self) -> None:
        types = (servers(1, cpus=0), workers(1, gpus=1))
        turns = job("turns", *types, steps=1e6, on={"PS": ("n",), "Worker": ("n",)}, steps_per_s=1.0)
        turns = replace(turns, cpu_use={PS: 0.5, WORKER: 0.4})
        assert not plan("kips", [node("n", gpus=1, cpus=4)], [turns]).changes

    @pytest.mark.parametrize(("millicores", "workers_then"), [(2000, 1), (3000, 2)])
    def test_a_larger_size_is_left_where_the_smaller_one_was_faster_with_no_more_cpu(
        self, millicores: int, workers_then: int
    ) -> None:
        """Two workers of 1 CPU each make 13 steps a second; one made 16 with as much as both have, or with more."""
        types = (servers(1), workers(1, 1, 2, gpus=0, cpus=1))
        seen = believe(
            {(1, 1): 16.0, (1, 2): 13.0}, conditions={(1, 1): Conditions(millicores), (1, 2): Conditions(1000)}
        )
        two = job("two", *types, steps=1e6, on={"PS": ("n",), "Worker": ("n", "n")}, steps_per_s=13.0, speed=seen)
        two = replace(two, cpu_use={PS: 0.2, WORKER: 0.9})
        decided = plan("kips", [node("n", cpus=3)], [two], now=1000)
        assert decided.targets["two"].replicas[WORKER] == workers_then

    def test_a_good_speed_with_more_cpu_counts_where_workers_do_not_use_theirs(self) -> None:
        """The PS is the bottleneck; but two workers were seen twice as fast, with twice the CPU each."""
        types = (servers(1), workers(1, 1, 2, gpus=0, cpus=1))
        seen = believe({(1, 1): 10.0, (1, 2): 20.0}, conditions={(1, 1): Conditions(1000), (1, 2): Conditions(2000)})
        one = job("one", *types, steps=1e6, on={"PS": ("n",), "Worker": ("n",)}, steps_per_s=10.0, speed=seen)
        one = replace(one, cpu_use={PS: 1.0, WORKER: 0.5})
        decided = plan("kips", [node("n", cpus=2), node("m", cpus=1)], [one], now=1000)
        assert decided.targets["one"].replicas[WORKER] == 2

    def test_idle_is_only_what_the_job_may_use(self) -> None:
        types = (servers(1), workers(1, 1, 2, gpus=0, cpus=1))
        one = job("one", *types, steps=1e6, on={"PS": ("n",), "Worker": ("n",)}, steps_per_s=1.0)
        one = replace(one, cpu_use={PS: 0.2, WORKER: 1.0})
        other = node("control-plane", cpus=8, taints=(Taint("role"),))
        decided = plan("kips", [node("n", cpus=2), node("m", cpus=1), other], [one], now=1000)
        why = decided.changes["one"].why
        assert (why.code, why.facts["use"], why.facts["idle_millicores"]) == ("busy", {WORKER: 1.0}, 1000)

    def test_cpu_of_replicas_that_leave_is_lent_to_nobody_yet(self) -> None:
        """Four hold a node of 1 CPU; a PS is to come before two workers may go, so that five have to fit."""
        types = (servers(2, cpus=0.1), workers(1, gpus=0, cpus=0.1))
        on = {"PS": ("n",), "Worker": ("n",) * 3}
        held = {"PS": (250,), "Worker": (250,) * 3}
        changing = job("j", *types, steps=1e6, on=on, steps_per_s=1.0, cpu=held, cpu_use={PS: 0.9, WORKER: 0.9})
        target = plan("kips", [node("n", cpus=1)], [changing], now=1000).changes["j"]
        assert target.replicas == {PS: 2, WORKER: 1}
        lent = [*target.cpu.get(PS, (100, 100)), *target.cpu.get(WORKER, (100,))]
        assert 300 < sum(lent) <= 1000 - 2 * 100

    def test_a_job_without_workers_grows_where_its_ps_lack_cpu(self) -> None:
        """A chief and a PS: of workers there is neither CPU nor speed to tell."""
        chief = ReplicaGroup(CHIEF, Resources(1000), 1, 1, 1)
        on: dict[str, tuple[str, ...]] = {CHIEF: ("n",), PS: ("n",)}
        alone = job("alone", chief, servers(1, 1, 3), steps=1e6, on=on, steps_per_s=1.0)
        alone = replace(alone, cpu_use={CHIEF: 0.3, PS: 1.0})
        decided = plan("kips", [node("n", cpus=2), node("m", cpus=2)], [alone], now=1000)
        assert decided.changes["alone"].replicas == {CHIEF: 1, PS: 2}

    def test_workers_that_request_no_cpu_and_lose_what_they_were_lent(self) -> None:
        """No CPU tells no speed: the round ends, and what the node does not have any more is taken back."""
        types = (servers(1, 1, 3, cpus=0.5), workers(1, 1, 3, gpus=0, cpus=0))
        lent = {WORKER: (500,), PS: (1000,)}
        slow = job("slow", *types, steps=1e6, on={PS: ("n",), WORKER: ("n",)}, steps_per_s=1.0, cpu=lent)
        slow = replace(slow, cpu_use={WORKER: 0.9, PS: 0.9})
        full = node("n", cpus=4, free=Resources(500))
        decided = plan("kips", [full, node("m", cpus=2)], [slow], now=1000)
        assert WORKER not in decided.changes["slow"].cpu

    @pytest.mark.parametrize(("steps_per_s", "workers_then"), [(0.0, 2), (1.0, 1)])
    def test_workers_that_wait_for_the_first_step_are_not_idle(self, steps_per_s: float, workers_then: int) -> None:
        two = job("two", workers(2, 1, 2, gpus=0, cpus=1), steps=1e6, on={"Worker": ("n", "n")}, since_s=0.0)
        two = replace(two, steps_per_s=steps_per_s, cpu_use={WORKER: 0.2})
        decided = plan("kips", [node("n", cpus=2)], [two, job("new", workers(1, gpus=0, cpus=1), at=9)], now=10)
        assert decided.targets["two"].replicas[WORKER] == workers_then


def test_sizes_below_one_that_is_wanted() -> None:
    usual = job("usual", workers(600, 1, 600), servers(3, 1, 3))
    sizes_ = Downward(usual, usual.spec.declared)
    assert [sizes_[k] for k in range(len(sizes_))] == [{WORKER: 600 - k, PS: max(1, 3 - k)} for k in range(600)]


@given(st.integers(1, 2000), st.data())
def test_the_largest_size_that_finds_nodes(most: int, data: st.DataObject) -> None:
    """It is found, and stands; a dozen tries do for thousands of sizes."""
    fits = data.draw(st.integers(0, most))
    wide = job("wide", workers(most, 1, most))
    round_ = Round(snapshot([node("n", gpus=fits)], [wide]), build("fifo", parse_profile("fifo", {})))
    tried: list[int] = []

    def start(counts: Counts) -> bool:
        tried.append(counts[WORKER])
        return round_.start(wide, counts, Reason("fits"))

    found = largest(round_, wide, Downward(wide, wide.spec.declared), start)
    assert round_.placement(wide) == ({WORKER: ("n",) * fits} if fits else {})
    assert found == (most - fits if fits else -1)
    assert round_.room.free_accelerators == 0
    assert len(tried) <= EACH_OF + 2 + most.bit_length()


@pytest.mark.parametrize("profile", ["srtf", "las"])
def test_capacity_on_unusable_nodes_does_not_prevent_a_preemption(profile: str) -> None:
    """As a control plane's node: it counted, so who needed more than the other nodes had waited for ever."""
    control = node("control", gpus=4, taints=(Taint("control-plane", "", "NoSchedule"),))
    low = job("low", workers(3), duration=1000.0, on={WORKER: ("n",) * 3})
    high = job("high", workers(2), duration=10.0, priority=1, at=1.0)
    decided = plan(profile, [node("n", gpus=4), control], [low, high], now=2.0)
    assert sizes(decided) == {"high": 2}
    small = job("small", workers(1), duration=10.0, priority=1, at=1.0)
    assert sizes(plan(profile, [node("n", gpus=4), control], [low, small], now=2.0)) == {"low": 3, "small": 1}


@pytest.mark.parametrize("profile", ["srtf", "las"])
def test_capacity_held_on_unusable_nodes_is_not_freed_by_a_preemption(profile: str) -> None:
    """The first in order wants 3 of the 2 GPUs that are left: what others hold on a node that is gone, or whose taint
    nobody tolerates, would not be free for it if they were stopped."""
    runs: dict[str, Any] = {"since_s": 0.0, "service": 9.0, "steps_per_s": 1.0}
    away, here = (
        job(key, workers(n), duration=900.0, on={"Worker": (name,) * n}, **runs)
        for key, name, n in (("a", "x", 1), ("b", "n", 2))
    )
    first = job("first", workers(3), duration=1.0, at=1.0)
    settings = {"thresholds": (5, 100)} if profile == "las" else {}
    for more in ([], [node("x", 4, taints=(Taint("control-plane"),))]):
        made = plan(profile, [node("n", 2), *more], [away, here, first], 1.0, **settings)
        assert made.changes == {}, "who is stopped is stopped in vain"
    made = plan(profile, [node("n", 2), node("x", 4)], [away, here, first], 1.0, **settings)
    assert sizes(made) == {"first": 3, "a": 1, "b": 2}


@pytest.mark.parametrize("profile", ["srtf", "las"])
def test_a_preempted_job_frees_only_the_replicas_that_it_has(profile: str) -> None:
    """One that lost nodes goes on with 2 of 3 workers: it would be stopped in vain for one that wants 3."""
    fewer = job("fewer", workers(3, 1, 3), duration=900.0, on={WORKER: ("n", "n")}, service=9.0, steps_per_s=1.0)
    first = job("first", workers(3), duration=1.0, at=1.0)
    settings = {"thresholds": (5, 100)} if profile == "las" else {}
    assert plan(profile, [node("n", 2)], [fewer, first], 1.0, **settings).changes == {}
    assert sizes(plan(profile, [node("n", 3)], [fewer, first], 1.0, **settings)) == {"first": 3}


def test_a_job_that_lacks_room_is_told_of_nodes_where_it_may_run() -> None:
    control = node("control", gpus=4, taints=(Taint("control-plane", "", "NoSchedule"),))
    decided = plan("fifo", [node("n", gpus=4), control], [job("wide", workers(5))])
    assert decided.waiting["wide"] == Reason("short", {"accelerators": 5, "accelerators_free": 4})

"""Which nodes: each Place on cases worked out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tfjob.scheduling.resources import Constraints, Requirement, Resources, Taint, Toleration
from elastic_tfjob.scheduling.room import FreeCapacity
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Job, Node, fixed_group

from .build import job, node, plan, servers, workers


def where(place: str, nodes: list[Node], jobs: list[Job], **settings: Any) -> dict[str, dict[str, tuple[str, ...]]]:
    return {k: dict(t.nodes) for k, t in plan("fifo", nodes, jobs, place=place, **settings).changes.items()}


def with_free(**free: int) -> tuple[list[Node], list[Job]]:
    """8-GPU nodes with this many GPUs left by jobs that run there."""
    nodes = [node(name, gpus=8) for name in free]
    busy = [job(f"on-{n}", workers(8 - f), on={"Worker": (n,) * (8 - f)}) for n, f in free.items() if f < 8]
    return nodes, busy


def test_count_looks_at_totals_only() -> None:
    nodes, busy = with_free(a=1, b=1, c=1)
    assert where("count", nodes, [job("j", workers(3))])["j"] == {"Worker": ("*",) * 3}
    assert where("consolidate", nodes, [*busy, job("j", workers(3))]) == {}


class TestConsolidate:
    def test_the_fullest_node_that_holds_it(self) -> None:
        nodes, busy = with_free(a=8, b=5, c=4, d=3)
        assert where("consolidate", nodes, [*busy, job("j", workers(4))]) == {"j": {"Worker": ("c",) * 4}}

    def test_ties_go_to_the_first_node(self) -> None:
        nodes, busy = with_free(a=4, b=4)
        assert where("consolidate", nodes, [*busy, job("j", workers(2))]) == {"j": {"Worker": ("a", "a")}}

    def test_a_job_that_fits_one_node_is_never_split(self) -> None:
        nodes, busy = with_free(a=4, b=4)
        assert where("consolidate", nodes, [*busy, job("j", workers(8))]) == {}

    def test_a_large_job_takes_whole_nodes_and_best_fit_for_the_rest(self) -> None:
        nodes, busy = with_free(a=5, b=8, c=4, d=8)
        assert where("consolidate", nodes, [*busy, job("j", workers(20))]) == {
            "j": {"Worker": ("b",) * 8 + ("d",) * 8 + ("c",) * 4}
        }

    def test_a_job_grows_on_a_node_it_has_or_not_at_all(self) -> None:
        running = job("j", workers(1, 1, 3), on={"Worker": ("a",)})
        nodes = [node("a", gpus=2), node("b", gpus=8)]
        target = plan("drf", nodes, [running], place="consolidate").changes["j"]
        assert target.nodes == {"Worker": ("a", "a")}

    def test_a_large_job_waits_for_whole_nodes(self) -> None:
        nodes, busy = with_free(a=7, b=7, c=7)
        assert where("consolidate", nodes, [*busy, job("j", workers(16))]) == {}


def test_best_fit_fills_the_fullest_node_first_and_goes_on() -> None:
    nodes, busy = with_free(a=8, b=2, c=3)
    assert where("best-fit", nodes, [*busy, job("j", workers(6))]) == {"j": {"Worker": ("b", "b", "c", "c", "c", "a")}}


def test_spread_takes_the_least_allocated_node_each_time() -> None:
    nodes, busy = with_free(a=4, b=6)
    assert where("spread", nodes, [*busy, job("j", workers(4))]) == {"j": {"Worker": ("b", "b", "a", "b")}}


def test_spread_counts_what_kube_scheduler_counts_for_replicas_that_request_no_cpu() -> None:
    """100m each, which one that requests as much weighs as well; but they fit where no CPU is left."""
    nodes, idle = [node(name, cpus=8) for name in "abc"], workers(1, gpus=0, cpus=0)
    jobs = [job(f"j{k}", idle) for k in range(6)]
    placed = where("spread", nodes, jobs)
    assert [placed[f"j{k}"]["Worker"] for k in range(6)] == [("a",), ("b",), ("c",)] * 2
    busy = job("busy", workers(1, gpus=0, cpus=8), on={"Worker": ("a",)})
    assert where("spread", nodes, [busy, job("j", workers(3, gpus=0, cpus=0))]) == {"j": {"Worker": ("b", "c", "b")}}
    assert where("spread", nodes[:1], [busy, job("j", idle)]) == {"j": {"Worker": ("a",)}}


def test_even_uses_the_fewest_nodes_that_hold_an_equal_split() -> None:
    """2 PS + 4 workers of 1 CPU: one node of 4 is too small, two take 1 PS + 2 workers each."""
    nodes = [node("a", cpus=4), node("b", cpus=4), node("c", cpus=4)]
    placed = where("even", nodes, [job("j", servers(2), workers(4, gpus=0, cpus=1))])["j"]
    assert placed == {"PS": ("a", "b"), "Worker": ("a", "a", "b", "b")}


def test_even_falls_back_to_best_fit_when_no_equal_split_fits() -> None:
    nodes = [node("a", cpus=5), node("b", cpus=1)]
    placed = where("even", nodes, [job("j", workers(6, gpus=0, cpus=1))])["j"]
    assert sorted(placed["Worker"]) == ["a"] * 5 + ["b"]


class TestApart:
    def test_replicas_of_several_types_start_on_one_node_if_one_holds_them(self) -> None:
        """Else a lent node that goes back would stop the jobs of two."""
        nodes, busy = (
            [node("a", cpus=4), node("b", cpus=4)],
            job("busy", workers(3, gpus=0, cpus=1), on={"Worker": ("a",) * 3}),
        )
        placed = where("apart", nodes, [busy, job("j", servers(1), workers(2, gpus=0, cpus=1))])["j"]
        assert placed == {"PS": ("b",), "Worker": ("b", "b")}

    def test_best_fit_chooses_where_no_node_holds_all(self) -> None:
        nodes, busy = (
            [node("a", cpus=4), node("b", cpus=4)],
            job("busy", workers(3, gpus=0, cpus=1), on={"Worker": ("a",) * 3}),
        )
        placed = where("apart", nodes, [busy, job("j", servers(1), workers(4, gpus=0, cpus=1))])["j"]
        assert sorted([*placed["PS"], *placed["Worker"]]) == ["a", "b", "b", "b", "b"]

    def test_a_job_waits_for_a_lent_node_that_would_hold_all_of_it(self) -> None:
        def placed(own: Node, workers_: int) -> set[str] | None:
            lent = [node(name, cpus=4, pool="inference", loan="loaned") for name in "bc"]
            busy = [job(f"on-{n}", workers(2, gpus=0, cpus=1), on={"Worker": (n, n)}, loanable=True) for n in "bc"]
            waits = job("j", servers(1), workers(workers_, gpus=0, cpus=1), loanable=True)
            given = where("apart", [own, *lent], [*busy, waits])
            return {name for names in given["j"].values() for name in names} if given else None

        assert placed(node("a"), 2) is None
        assert placed(node("a", cpus=4), 2) == {"a"}
        assert placed(node("a"), 3) is None, "two have room for it together"

    def test_replicas_of_one_type_fill_the_fullest_node_first(self) -> None:
        nodes, busy = with_free(a=8, b=2)
        assert where("apart", nodes, [*busy, job("j", workers(3))]) == {"j": {"Worker": ("b", "b", "a")}}


class TestPack:
    def test_one_node_for_all_if_one_holds_it(self) -> None:
        nodes = [node("a", cpus=4), node("b", cpus=8)]
        placed = where("pack", nodes, [job("j", servers(1), workers(4, gpus=0, cpus=1))])["j"]
        assert placed == {"PS": ("b",), "Worker": ("b",) * 4}

    def test_ps_of_different_jobs_stay_apart(self) -> None:
        nodes = [node("a", cpus=16), node("b", cpus=12)]
        jobs = [job(f"j{k}", servers(1), workers(1, gpus=0, cpus=1), at=k) for k in range(2)]
        placed = where("pack", nodes, jobs)
        assert [placed["j0"]["PS"], placed["j1"]["PS"]] == [("a",), ("b",)]

    def test_added_workers_go_beside_their_ps(self) -> None:
        """The job grows by DRF; node b is freer, but its PS is on a."""
        nodes = [node("a", cpus=8), node("b", cpus=32)]
        groups = (servers(1), workers(1, 1, 3, gpus=0, cpus=1))
        running = job("j", *groups, on={"PS": ("a",), "Worker": ("a",)})
        target = plan("drf", nodes, [running], place="pack").changes["j"]
        assert target.nodes == {"PS": ("a",), "Worker": ("a", "a", "a")}

    def test_two_small_jobs_start_on_two_nodes(self) -> None:
        """So that each can be lent the CPU of its own."""
        small = (servers(1, cpus=0.06), workers(1, gpus=0, cpus=0.06))
        nodes = [node(name, cpus=0.48) for name in ("a", "b", "c")]
        decided = plan("kips", nodes, [job("one", *small), job("two", *small, at=1)]).changes
        assert [set(sum(decided[key].nodes.values(), ())) for key in ("one", "two")] == [{"a"}, {"b"}]

    def test_a_worker_is_added_where_cpu_idles_not_where_its_job_was_lent_it_all(self) -> None:
        """Its job holds all 300 millicores of a; one more there would only take from the others."""
        groups = (servers(1, cpus=0.06), workers(1, 1, 2, gpus=0, cpus=0.06))
        running = job(
            "j",
            *groups,
            steps=1e6,
            on={"PS": ("a",), "Worker": ("a",)},
            steps_per_s=1.0,
            cpu={"Worker": (240,)},
            cpu_use={"PS": 0.2, "Worker": 1.0},
        )
        nodes = [node("a", cpus=0.3), node("b", cpus=0.48)]
        assert plan("kips", nodes, [running], now=1000).changes["j"].nodes == {"PS": ("a",), "Worker": ("a", "b")}

    def test_a_job_too_large_for_one_node_fills_node_after_node_ps_first(self) -> None:
        nodes = [node("a", cpus=3), node("b", cpus=4)]
        placed = where("pack", nodes, [job("j", servers(1), workers(5, gpus=0, cpus=1))])["j"]
        assert placed == {"PS": ("b",), "Worker": ("b", "b", "b", "a", "a")}

    def test_a_large_worker_gets_the_node_that_holds_it(self) -> None:
        """Its PS, placed first, would take the CPU of the freer node b."""
        nodes = [node("a", cpus=0.4), node("b", cpus=0.9)]
        placed = where("pack", nodes, [job("j", servers(1, cpus=0.1), workers(1, gpus=0, cpus=0.85))])["j"]
        assert placed == {"PS": ("a",), "Worker": ("b",)}

    def test_ps_leave_the_cpu_beside_accelerators_to_who_needs_both(self) -> None:
        nodes = [node("a", cpus=2), node("b", gpus=2, cpus=2)]
        placed = where("pack", nodes, [job("j", servers(2), workers(1, gpus=1, cpus=1))])["j"]
        assert placed == {"PS": ("b", "a"), "Worker": ("b",)}


requests = st.builds(Resources, *(st.integers(0, most) for most in (6, 6, 2, 2, 2)))


@given(
    nodes=st.lists(st.builds(Resources, *(st.integers(0, most) for most in (9, 9, 4, 6, 6))), min_size=1),
    taken=st.lists(st.tuples(st.integers(0, 99), requests, st.sampled_from([PS, WORKER]))),
    kept=st.integers(0, 99),
    demand=requests,
)
def test_nodes_found_by_what_they_have_free_are_those_that_a_look_at_all_finds(
    nodes: list[Resources], taken: list[tuple[int, Resources, str]], kept: int, demand: Resources
) -> None:
    room = FreeCapacity([Node(f"n{k}", free, free) for k, free in enumerate(nodes)], "fewest-ps")
    for k, (i, request, type_) in enumerate(taken):
        if k == kept:
            mark = room.mark()
        room.take_replicas(i % len(nodes), fixed_group(type_, request, 1), 1)
    if kept < len(taken):
        room.rollback(mark)
    all_ = sorted(range(len(nodes)), key=lambda i: (room.counted[i], -room.accelerators[i], -room.cpu_millicores[i], i))
    holding = [i for i in all_ if room.holds(i, demand)]
    assert list(room.holding(demand)) == holding
    assert room.first(demand, None) == next(iter(holding), None)
    odd = frozenset(range(1, len(nodes), 2))
    assert room.first(demand, odd) == next((i for i in holding if i in odd), None)


@pytest.mark.parametrize("place", ["consolidate", "best-fit", "spread", "even", "pack"])
class TestConstraints:
    def test_taints_need_a_toleration(self, place: str) -> None:
        nodes = [node("tainted", gpus=8, taints=(Taint("team", "a"),)), node("plain", gpus=4)]
        tolerant = Constraints(tolerations=(Toleration("team", "Equal", "a"),))
        assert where(place, nodes, [job("j", workers(6))]) == {}
        assert "tainted" in where(place, nodes, [job("j", workers(6), constraints=tolerant)])["j"]["Worker"]

    def test_selector_and_affinity_are_required(self, place: str) -> None:
        nodes = [
            node("a", gpus=8, labels={"zone": "x", "mem": "64"}),
            node("b", gpus=4, labels={"zone": "y", "mem": "8"}),
        ]
        y = Constraints(selector=(("zone", "y"),))
        small = Constraints(affinity=((Requirement("mem", "Lt", ("10",)),),))
        for constraints in (y, small):
            assert where(place, nodes, [job("j", workers(2), constraints=constraints)])["j"] == {"Worker": ("b", "b")}
            assert where(place, nodes, [job("j", workers(5), constraints=constraints)]) == {}


@pytest.mark.parametrize(
    ("operator", "values", "matching"),
    [
        ("In", ("x", "y"), {"x", "y"}),
        ("NotIn", ("x",), {"y", "-"}),
        ("Exists", (), {"x", "y"}),
        ("DoesNotExist", (), {"-"}),
    ],
)
def test_label_operators(operator: Any, values: tuple[str, ...], matching: set[str]) -> None:
    labels = {"x": {"k": "x"}, "y": {"k": "y"}, "-": {}}
    requirement = Requirement("k", operator, values)
    assert {name for name, have in labels.items() if requirement.matches(have)} == matching


def test_gt_and_lt_compare_whole_numbers_and_refuse_words() -> None:
    assert Requirement("k", "Gt", ("5",)).matches({"k": "6"})
    assert not Requirement("k", "Gt", ("5",)).matches({"k": "5"})
    assert not Requirement("k", "Lt", ("5",)).matches({"k": "many"})
    assert not Requirement("k", "Lt", ()).matches({"k": "1"})
    assert Requirement("k", "Gt", (f"-{2**63}",)).matches({"k": f"+{2**63 - 1}"})
    for no_int64 in (str(2**63), "9" * 4300, "1_0", " 1", "\u0661", ""):
        assert not Requirement("k", "Lt", (no_int64,)).matches({"k": "-5"})
        assert not Requirement("k", "Gt", ("-5",)).matches({"k": no_int64})


def test_an_empty_toleration_with_exists_tolerates_everything_and_a_soft_taint_needs_none() -> None:
    everything = Constraints(tolerations=(Toleration(operator="Exists"),))
    assert everything.admit({}, (Taint("a"), Taint("b", effect="NoExecute")))
    assert Constraints().admit({}, (Taint("a", effect="PreferNoSchedule"),))
    assert not Constraints(tolerations=(Toleration("a", effect="NoExecute"),)).admit({}, (Taint("a"),))

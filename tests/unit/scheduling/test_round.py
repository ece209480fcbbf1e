"""What steps may do in a round."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Loan, Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import Reason, as_reason
from elastic_tfjob.scheduling.round import EndlessRoundError, Round
from elastic_tfjob.scheduling.snapshot import Job, Node, Pool, Snapshot
from elastic_tfjob.scheduling.steps.declared_size import FixedSize
from elastic_tfjob.scheduling.steps.sizes import apply_sizes

from .build import job, node, plan, servers, snapshot, workers
from .invariants import violations


def decided(nodes: list[Node], jobs: list[Job], *steps: Callable[[Round], object], **more: Any) -> Plan:
    """What these steps decide, in order of arrival and by best fit."""

    def run(round_: Round) -> None:
        for step in steps:
            step(round_)

    fifo: Profile = replace(build("fifo", parse_profile("fifo", {})), steps=(run,), **more)
    plan = schedule(Snapshot(100.0, {n.name: n for n in nodes}, {j.key: j for j in jobs}), fifo)
    assert violations(plan) == []
    return plan


def on(*names: str) -> dict[str, tuple[str, ...]]:
    return {"Worker": names}


class TestMove:
    nodes = [node("a", gpus=2, cpus=4), node("b", gpus=1, cpus=4), node("c")]  # noqa: RUF012
    runs = job("j", workers(2, cpus=1), on=on("a", "a"), cpu={"Worker": (1000, 1500)})

    def moved(self, role: tuple[str, int], to: str) -> Plan:
        return decided(self.nodes, [self.runs], lambda r: r.move(r.job("j"), role, to, "closer"), needs={"cpu"})

    def test_one_replica_goes_and_the_others_stay(self) -> None:
        target = self.moved(("Worker", 0), "b").changes["j"]
        assert (target.nodes, target.cpu, str(target.reason)) == (on("b", "a"), {"Worker": (1000, 1500)}, "closer")

    def test_a_replica_that_moves_holds_its_request(self) -> None:
        target = self.moved(("Worker", 1), "b").changes["j"]
        assert (target.nodes, target.cpu) == (on("a", "b"), {})

    @pytest.mark.parametrize(("role", "to"), [(("Worker", 0), "a"), (("Worker", 0), "c"), (("Worker", 0), "gone")])
    def test_nothing_moves_to_where_it_is_or_has_no_room(self, role: tuple[str, int], to: str) -> None:
        assert self.moved(role, to).changes == {}

    def test_a_job_that_cannot_be_moved_stays_and_says_why(self) -> None:
        stays = replace(self.runs, spec=replace(self.runs.spec, movable=False))
        plan = decided(self.nodes, [stays], lambda r: r.move(r.job("j"), ("Worker", 0), "b", "closer"), needs={"cpu"})
        assert plan.changes == {}
        assert plan.kept["j"] == Reason("not-movable", {"type": "Worker", "index": 0})

    @pytest.mark.parametrize("role", [("Worker", 2), ("PS", 0)])
    def test_a_replica_that_does_not_exist_is_not_moved(self, role: tuple[str, int]) -> None:
        assert self.moved(role, "b").changes == {}


class TestRequeue:
    def test_a_requeued_job_waits_in_order_and_may_start_elsewhere_in_the_same_round(self) -> None:
        first = job("first", workers(1), at=0, on=on("b"))
        plan = decided(
            [node("a", gpus=1), node("b", gpus=2)],
            [first, job("wide", workers(2), at=1)],
            lambda r: r.requeue(r.job("first"), "makes room"),
            FixedSize(backfill=True),
        )
        assert {key: target.nodes for key, target in plan.changes.items()} == {"first": on("a"), "wide": on("b", "b")}

    def test_a_requeued_job_that_does_not_fit_waits(self) -> None:
        plan = decided(
            [node("a", gpus=1)],
            [job("first", at=0), job("later", at=1, on=on("a"))],
            lambda r: r.requeue(r.job("later"), "first come, first served"),
            FixedSize(),
        )
        assert set(plan.targets) == {"first"}
        assert set(plan.waiting) == {"later"}


@dataclass(frozen=True)
class ScaleInFirst:
    """Returns the nodes with the fewest replicas, and shrinks jobs rather than to stop them."""

    def __call__(self, round_: Round) -> None:
        for name, pool in round_.snapshot.pools.items():
            lent = [n.name for n in round_.nodes.values() if n.pool == name and n.loan == "loaned"]
            jobs = round_.running_in_order()
            count = {n: sum(names.count(n) for j in jobs for names in j.placement.values()) for n in lent}
            chosen = sorted(lent, key=lambda n: count[n])[: pool.wanted]
            for j in jobs:
                stays = sum(n not in chosen for n in j.placement["Worker"])
                if j.spec.elastic and stays:
                    round_.resize(j, {"Worker": stays}, "a node goes back")
            round_.give_back(chosen, "the pool wants one")


def test_the_policy_chooses_the_node_to_return_and_may_scale_in_first() -> None:
    lent = [node(n, gpus=2, pool="inference", loan="loaned") for n in ("x", "y")]
    nodes = {n.name: n for n in (node("own", gpus=1), *lent)}
    runs = job("j", workers(4, 1, 4), loanable=True, on=on("own", "x", "x", "y"))
    fifo = replace(build("fifo", parse_profile("fifo", {})), lend=ScaleInFirst())
    plan = schedule(Snapshot(0.0, nodes, {"j": runs}, pools={"inference": Pool(wanted=1)}), fifo)
    assert plan.loans == (Loan("y", "return", as_reason("the pool wants one")),)
    assert plan.changes["j"].nodes == on("own", "x", "x")
    baseline = replace(build("fifo", parse_profile("fifo", {"lend": "offered"})))
    plan = schedule(Snapshot(0.0, nodes, {"j": runs}, pools={"inference": Pool(wanted=1)}), baseline)
    assert plan.loans == (Loan("x", "return", Reason("pool-wants")),)
    assert plan.waiting == {"j": Reason("node-returns")}


def test_a_pool_lends_no_more_than_it_can_spare() -> None:
    nodes = {n: node(n, gpus=1, pool="inference", loan="offered") for n in ("x", "y")}
    waits = job("j", workers(2), loanable=True)
    baseline = build("fifo", parse_profile("fifo", {"lend": "offered"}))
    plan = schedule(Snapshot(0.0, nodes, {"j": waits}, pools={"inference": Pool(spare=1)}), baseline)
    assert [loan.node for loan in plan.loans] == ["x"]
    assert plan.changes == {}


class TestJobsThatCannotBeStopped:
    """They have nowhere to go on from: nobody gets their room, and nobody waits for it."""

    def test_preemption_goes_past_them(self) -> None:
        nodes = [node("n1", gpus=1), node("n2", gpus=1)]
        stays = job("stays", duration=900, on={"Worker": ("n1",)})
        stays = replace(stays, spec=replace(stays.spec, stoppable=False))
        goes = job("goes", duration=800, on={"Worker": ("n2",)})
        short = [job(name, duration=10, at=1.0 * k) for k, name in enumerate(("a", "b"))]
        made = plan("srtf", nodes, [stays, goes, *short])
        assert {key: dict(target.nodes) for key, target in made.changes.items()} == {
            "goes": {},
            "a": {"Worker": ("n2",)},
        }
        assert set(made.refusals) == {"b"}

    def test_a_node_is_returned_when_they_have_ended(self) -> None:
        nodes = [node(name, gpus=1, pool="inference", loan="reclaiming") for name in ("n1", "n2")]
        jobs = [job(name, loanable=True, on={"Worker": (on,)}) for name, on in (("stays", "n1"), ("goes", "n2"))]
        jobs[0] = replace(jobs[0], spec=replace(jobs[0].spec, stoppable=False))
        made = plan("fifo-backfill", nodes, jobs, lend="offered")
        assert [loan.node for loan in made.loans] == ["n2"]
        assert {key: dict(target.nodes) for key, target in made.changes.items()} == {"goes": {}}


ENDLESS: dict[str, Callable[[Round], object]] = {
    "starts": lambda r: r.start(r.job("b"), {"Worker": 9}, "too large"),
    "resizes": lambda r: r.resize(r.job("a"), {"Worker": 9}, "too large"),
    "repairs": lambda r: r.set_size(r.job("a"), {"Worker": 9}, "too large"),
    "moves": lambda r: r.move(r.job("a"), ("Worker", 0), "gone", "nowhere"),
    "stops": lambda r: r.stop(r.job("a"), "for ever"),
    "requeues": lambda r: r.requeue(r.job("a"), "for ever"),
    "assigns": lambda r: r.assign(r.job("a"), on("n"), "for ever"),
    "grants": lambda r: r.grant(r.job("a"), {}, "for ever"),
    "acts by itself": lambda r: r.act(r.job("b")),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ENDLESS)
def test_a_round_that_would_never_end_is_an_error_that_says_of_whom(what: str) -> None:
    def never_ends(round_: Round) -> None:
        while True:
            ENDLESS[what](round_)

    jobs = [job("a", workers(1), on=on("n")), job("b", workers(1, 0, 8))]
    with pytest.raises(EndlessRoundError) as raised:
        decided([node("n", gpus=2)], jobs, never_ends)
    assert str(raised.value) == "fifo: the round did not end after 11,100 actions"
    assert raised.value.profile == "fifo"
    assert raised.value.job in ("a", "b")
    assert raised.value.__notes__ == [f"the last one was on {raised.value.job}"]


def test_the_limit_grows_with_jobs_and_the_replicas_that_they_may_have() -> None:
    """A thousand tries for a job of ten replicas are no endless round, however many such jobs there are."""
    for n in (1, 40):
        jobs = [job(f"j{k}", workers(1, 1, 10)) for k in range(n)]

        def a_thousand_each(round_: Round) -> None:
            for each in round_.snapshot.jobs.values():
                for _ in range(1000):
                    round_.start(each, {"Worker": 9}, "too large")

        assert decided([node("n", gpus=2)], jobs, a_thousand_each).changes == {}


def test_failed_starts_are_retried_only_after_capacity_was_freed() -> None:
    """Growth takes, found room or not; a smaller size gives back."""
    runs = job("j", workers(2, 1, 9), on=on("a", "a"))
    given: list[int] = []

    def step(round_: Round) -> None:
        for size in (9, 3, 1):
            round_.resize(round_.job("j"), {"Worker": size}, "toy")
            given.append(round_.gave_back)

    decided([node("a", gpus=4)], [runs], step)
    assert given == [0, 0, 1]


def test_a_size_that_a_job_has_already_is_no_progress() -> None:
    """Where one of its larger sizes has fewer of a type, it is tried; again and again, the round would not end."""
    has: dict[str, tuple[str, ...]] = {"PS": ("n", "n"), "Worker": ("n", "n")}
    runs = job("a", servers(2, 1, 4), workers(1, 1, 4, gpus=0, cpus=1), on=has)
    round_ = Round(snapshot([node("n", cpus=4)], [runs]), build("deadline", parse_profile("deadline", {})))
    sizes = [{"PS": 4, "Worker": 2}, {"PS": 2, "Worker": 2}, {"PS": 3, "Worker": 1}, {"PS": 1, "Worker": 1}]
    apply_sizes(round_, [runs], sizes[:1], "more", below=lambda *_: sizes)
    assert round_.placement(runs) == has

"""The round as a whole: loans, reasons, views, and what a Snapshot keeps."""

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Loan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, Job, Node, ReplicaGroup

from .build import GIB, job, node, plan, sizes, snapshot, workers

FIFO = build("fifo", parse_profile("fifo", {}))


def foreign(name: str, loan: str) -> Node:
    return node(name, gpus=8, pool="inference", loan=loan)


class TestLoans:
    own = node("own", gpus=1)

    def test_offered_nodes_are_borrowed_for_a_loanable_job_and_used_at_once(self) -> None:
        decided = plan(
            "fifo", [self.own, foreign("i", "offered")], [job("j", workers(4), loanable=True)], lend="offered"
        )
        assert decided.loans == (Loan("i", "borrow", Reason("offered")),)
        assert decided.changes["j"].nodes == {"Worker": ("own", "i", "i", "i")}

    def test_jobs_that_are_not_loanable_never_run_there(self) -> None:
        nodes = [self.own, foreign("i", "loaned")]
        assert sizes(plan("fifo", nodes, [job("j", workers(4))], lend="offered")) == {}

    def test_busy_and_offered_nodes_are_nobodys_without_a_loan(self) -> None:
        nodes = [self.own, foreign("i", "offered"), foreign("k", "busy")]
        assert sizes(plan("fifo", nodes, [job("j", workers(4), loanable=True)])) == {}

    def test_a_node_wanted_back_is_returned_and_its_jobs_are_preempted(self) -> None:
        running = job("j", workers(4), loanable=True, on={"Worker": ("i",) * 4})
        decided = plan("fifo", [self.own, foreign("i", "reclaiming")], [running], lend="offered")
        assert decided.loans == (Loan("i", "return", Reason("pool-wants")),)
        assert decided.waiting == {"j": Reason("node-returns")}

    def test_an_idle_loan_is_kept_until_its_pool_wants_it(self) -> None:
        assert plan("fifo", [self.own, foreign("i", "loaned")], [job("j")], lend="offered").loans == ()


def test_every_job_has_a_target_or_a_reason() -> None:
    jobs = [
        job("runs", on={"Worker": ("n",)}),
        job("starts", at=1),
        job("waits", workers(3), at=2),
        job("behind", at=3),
    ]
    decided = plan("fifo", [node("n", gpus=3)], jobs)
    assert set(decided.targets) | set(decided.waiting) == {j.key for j in jobs}
    assert decided.targets["runs"].reason == Reason("keeps")
    assert decided.targets["starts"].reason == Reason("fits")
    assert decided.waiting["behind"] == Reason("waits-behind", {"job": "waits"})


def test_capacity_that_others_use_on_a_node_is_not_given_out() -> None:
    nodes = [node("n", gpus=8, free=node("x", gpus=2).capacity)]
    assert sizes(plan("fifo", nodes, [job("j", workers(3))])) == {}


def test_a_round_leaves_the_snapshot_as_it_was() -> None:
    before = snapshot([node("n", gpus=2)], [job("a"), job("b", at=1), job("c", at=2)])
    assert schedule(before, FIFO) == schedule(before, FIFO)


def test_an_evolved_snapshot_and_its_parent_can_both_be_decided_on() -> None:
    before = snapshot([node("n", gpus=1)], [job("a", at=1)])
    first = schedule(before, FIFO)
    after = before.evolve(1.0, changed=[job("b", at=0)])
    assert set(schedule(after, FIFO).changes) == {"b"}
    assert schedule(before, FIFO) == first


def test_evolve_sees_requests_that_change_in_place() -> None:
    """Memory is raised where a replica runs: 3 of 4 GiB leave no room for 2."""

    def at(gib: int) -> Job:
        return job("a", ReplicaGroup(PS, Resources(0, gib * GIB), 1, 1, 1), on={PS: ("n",)})

    waits = job("b", ReplicaGroup(PS, Resources(0, 2 * GIB), 1, 1, 1))
    before = snapshot([node("n", memory_gib=4)], [at(1)])
    assert schedule(before, FIFO).changes == {}
    raised = before.evolve(1.0, changed=[at(3), waits])
    assert schedule(raised, FIFO).changes == {}
    assert list(schedule(raised.evolve(2.0, changed=[at(2)]), FIFO).changes) == ["b"]


def test_evolve_with_other_nodes_sees_them() -> None:
    before = snapshot([node("n", gpus=1)], [job("a", workers(2))])
    assert schedule(before, FIFO).changes == {}
    after = before.evolve(1.0, nodes={"n": node("n", gpus=2)})
    assert sizes(schedule(after, FIFO)) == {"a": 2}


def test_a_rescaling_job_holds_its_room_and_is_left_alone() -> None:
    from dataclasses import replace  # noqa: PLC0415

    rescaling = replace(job("r", duration=99, on={"Worker": ("n",)}), phase="rescaling")
    assert plan("srtf", [node("n", gpus=1)], [rescaling, job("short", duration=1)]).changes == {}


class TestLostNodes:
    nodes = (node("n1", gpus=4),)

    def test_room_that_the_steps_make_serves_replicas_of_lost_nodes_in_the_same_round(self) -> None:
        lost = job("lost", workers(2), on={"Worker": ("n0", "n0")})
        large = job("large", workers(4, low=1), on={"Worker": ("n1",) * 4})
        decided = plan("drf", self.nodes, [lost, large])
        assert decided.changes["lost"].nodes == {"Worker": ("n1", "n1")}
        assert decided.changes["lost"].cause == "repair"
        assert decided.changes["large"].nodes == {"Worker": ("n1", "n1")}

    def test_a_job_that_a_step_makes_smaller_leaves_its_lost_node(self) -> None:
        lost = job("lost", workers(3, low=1), on={"Worker": ("n0",) * 3})
        large = job("large", workers(4, low=1), on={"Worker": ("n1",) * 4})
        decided = plan("drf", self.nodes, [lost, large])
        assert decided.changes["lost"].nodes == {"Worker": ("n1", "n1")}
        assert decided.changes["large"].nodes == {"Worker": ("n1", "n1")}

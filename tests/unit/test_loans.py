"""Loans of nodes: what is decided for pools and their nodes, and what is written, whatever others do meanwhile."""

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from elastic_tfjob.api.annotations import Elasticity
from elastic_tfjob.controller.job.decision import Create, Event, ReconcileSettings
from elastic_tfjob.controller.kube.errors import Conflict, Invalid
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION, TARGET_ANNOTATION
from elastic_tfjob.controller.model.cluster import (
    LOAN_ANNOTATION,
    LOANED_TAINT,
    POOL_LABEL,
    ForeignPod,
    KubeNode,
    NodeLoan,
    PendingPod,
    parse_wants,
)
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.settings import Configuration, PoolSettings, parse_configuration
from elastic_tfjob.controller.model.state import Phase, StoredState
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.lending import (
    MAX_PODS,
    MAX_SHAPES,
    MAX_TERMS,
    Lending,
    LendingInput,
    LoanWrite,
    ReclaimTimeout,
    asked_by_plan,
    concerned,
    lending,
)
from elastic_tfjob.controller.planning.round import assemble, plan_round
from elastic_tfjob.controller.schedule import loans as loans_module
from elastic_tfjob.controller.schedule import loop
from elastic_tfjob.controller.schedule.loans import Loans, patch_of
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Loan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Pool, ReplicaGroup, fixed_group
from harness.hostile_text import NO_JSON_OBJECT, named

from . import test_scheduler
from .build import UID, condition, job, pod, raw_node, replicas
from .build import decide as reconciled

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NOW_S = NOW.timestamp()
POOLS = {"serve": PoolSettings(namespaces=("serving",), headroom=0, hold_s=600, grace_s=120)}
TAINT = {"key": LOANED_TAINT, "effect": "NoSchedule"}
DISRUPTED = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
FOREIGN_TAINT = {"key": "example.com/mine", "value": "x", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


def ago(seconds: float) -> str:
    return format_time(NOW - timedelta(seconds=seconds))


def raw_pool_node(
    name: str,
    stage: str = "",
    *,
    pool: str | None = "serve",
    since_s: float = 0.0,
    taint: bool | None = None,
    loan_of: str = "serve",
    version: int = 1,
    **spec: Any,
) -> dict[str, Any]:
    """A node of 4 cores of the pool; with a stage, as the operator leaves it."""
    tainted = stage in ("loaned", "recalled") if taint is None else taint
    loan = {LOAN_ANNOTATION: NodeLoan(stage, loan_of, ago(since_s)).to_json()} if stage else {}  # type: ignore[arg-type]
    labels = {POOL_LABEL: pool} if pool is not None else {}
    raw = raw_node(name, labels=labels, annotations=loan, **{"taints": [TAINT] if tainted else [], **spec})
    raw["metadata"]["resourceVersion"] = str(version)
    raw["status"]["allocatable"]["pods"] = "10"
    return raw


def node(name: str, stage: str = "", **said: Any) -> KubeNode:
    return KubeNode.parse(raw_pool_node(name, stage, **said))


def server(on: str, cpu: int = 1, namespace: str = "serving", *, daemon: bool = False) -> ForeignPod:
    return ForeignPod(namespace, f"s-{on}", f"s-{on}", 1, on, Resources(cpu * 1000, pods=1), daemon)


def raw_pending(name: str, cpu: str, namespace: str = "serving", **spec: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    status |= spec.pop("status", {})
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": name, "resourceVersion": "1"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], **spec},
        "status": status,
    }


def pending(name: str, cpu: str, namespace: str = "serving", **spec: Any) -> PendingPod:
    return PendingPod.parse(raw_pending(name, cpu, namespace, **spec))


def look(*nodes: KubeNode, pools: Mapping[str, PoolSettings] = POOLS, **said: Any) -> Lending:
    return lending(LendingInput({each.name: each for each in nodes if concerned(each, pools)}, pools, **said), NOW_S)


def written(found: Lending) -> dict[str, tuple[str, bool]]:
    return {write.seen.name: (write.stage, write.tainted) for write in found.writes}


def states(found: Lending) -> dict[str, str]:
    return {name: standing.loan for name, standing in found.nodes.items()}


class TestWhatAPoolOffers:
    def test_idle_nodes_beyond_the_headroom(self) -> None:
        nodes = [node("a"), node("b"), node("c")]
        pools = {"serve": PoolSettings(namespaces=("serving",), headroom=1)}
        found = look(*nodes, foreign=(server("a"), server("b", daemon=True)), pools=pools)
        assert found.pools == {"serve": Pool(wanted=0, spare=1)}
        assert states(found) == {"a": "busy", "b": "offered", "c": "offered"}

    @pytest.mark.parametrize(
        ("said", "why"),
        [
            ({"foreign": (server("a", namespace="other"),)}, "somebody's pod is there"),
            ({"trained": {"a": Resources(1, pods=1)}}, "a TFJob's pod is there"),
            ({"promised": frozenset("a")}, "a job is on its way there"),
            ({"pending": (pending("p", "2"),)}, "a pod of the pool has room there"),
            ({"wants": {"serve": 1}}, "somebody says that the pool wants it"),
            ({"refused": frozenset("a")}, "it could not be written"),
            ({"may_lend": False}, "the right is missing, or not all is read yet"),
        ],
    )
    def test_a_pool_does_not_offer_an_unusable_node(self, said: dict[str, Any], why: str) -> None:
        assert look(node("a")).pools["serve"].spare == 1
        assert look(node("a"), **said).pools["serve"].spare == 0, why

    def test_a_pool_does_not_offer_a_returned_node_during_the_hold(self) -> None:
        assert look(node("a", "returned", since_s=599)).pools["serve"].spare == 0
        assert look(node("a", "returned", since_s=601)).pools["serve"].spare == 1

    def test_a_cordoned_or_unlabelled_node_is_not_lent(self) -> None:
        assert look(node("a", unschedulable=True)).pools["serve"].spare == 0
        other = look(node("a", pool="other"), node("b", pool=None))
        assert (other.nodes, other.pools["serve"]) == ({}, Pool())


class TestWhatAPoolWantsBack:
    def test_a_pod_that_waits_and_would_fit(self) -> None:
        found = look(node("a", "loaned"), node("b", "loaned"), pending=(pending("p", "3"),))
        assert found.pools["serve"] == Pool(wanted=1)
        assert set(states(found).values()) == {"loaned"}, "which one is the policy's choice"
        assert found.pending == {("serve", "room"): 0, ("serve", "recall"): 1, ("serve", "nowhere"): 0}

    def test_pods_share_a_node_where_they_fit(self) -> None:
        nodes = [node(name, "loaned") for name in "abc"]
        assert look(*nodes, pending=tuple(pending(f"p{i}", "2") for i in range(3))).pools["serve"].wanted == 2

    @pytest.mark.parametrize(
        ("pod", "why"),
        [
            (pending("p", "5"), "it fits nowhere"),
            (pending("p", "1", namespace="tenant"), "it is not of the pool's namespaces"),
            (pending("p", "1", nodeSelector={"zone": "elsewhere"}), "it may not run there"),
            (pending("p", "1", status={"conditions": []}), "kube-scheduler has not looked yet"),
            (pending("p", "1", status={"nominatedNodeName": "x"}), "kube-scheduler makes room for it"),
        ],
    )
    def test_a_pool_does_not_want_a_node_for_a_pod_it_cannot_help(self, pod: PendingPod, why: str) -> None:
        assert look(node("a", "loaned"), pending=(pod,)).pools["serve"].wanted == 0, why

    def test_a_pool_with_room_or_a_returning_node_wants_none(self) -> None:
        nodes = [node("a", "loaned"), node("b")]
        assert look(*nodes, pending=(pending("p", "3"),)).pools["serve"].wanted == 0
        nodes = [node("a", "loaned"), node("b", "recalled")]
        said: dict[str, Any] = {"trained": {"b": Resources(4000, pods=1)}, "pending": (pending("p", "3"),)}
        assert look(*nodes, **said).pools["serve"].wanted == 0

    def test_the_very_node_where_no_other_would_do(self) -> None:
        nodes = [node("a", "loaned"), node("b", "loaned")]
        one = pending("p", "1", affinity=_only("b"))
        found = look(*nodes, pending=(one,))
        assert states(found) == {"a": "loaned", "b": "reclaiming"}
        assert found.pools["serve"].wanted == 1

    def test_a_lent_node_where_a_pod_of_the_pool_runs(self) -> None:
        found = look(node("a", "loaned"), node("b", "loaned"), foreign=(server("b"),))
        assert (found.pools["serve"].wanted, states(found)["b"]) == (1, "reclaiming")

    def test_headroom_and_what_somebody_says(self) -> None:
        pools = {"serve": PoolSettings(namespaces=("serving",), headroom=2)}
        nodes = [node(name, "loaned") for name in "abc"] + [node("d")]
        assert look(*nodes, pools=pools).pools["serve"].wanted == 1
        assert look(*nodes, wants={"serve": 3}).pools["serve"].wanted == 2
        assert look(*nodes, wants={"serve": 99}).pools["serve"].wanted == 3

    def test_a_flood_of_pods_costs_no_more_than_is_lent(self) -> None:
        many = tuple(pending(f"p{i}", f"{1000 + i % 200}m") for i in range(MAX_PODS + 500))
        found = look(node("a", "loaned"), node("b", "loaned"), pending=many)
        assert found.pools["serve"] == Pool(wanted=2)
        assert found.pending["serve", "nowhere"] + found.pending["serve", "recall"] == len(many)
        assert len({(pod.requests, pod.constraints) for pod in many}) > MAX_SHAPES

    def test_a_pod_that_goes_by_too_much_is_not_looked_at(self) -> None:
        """Each label and value is held against each node."""
        values = [f"v{i}" for i in range(MAX_TERMS)]
        term = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": values}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        found = look(node("a", "loaned"), pending=(pending("p", "1", affinity=affinity),))
        assert (found.pools["serve"], found.pending["serve", "nowhere"]) == (Pool(wanted=0), 1)
        values.pop()
        assert look(node("a", "loaned"), pending=(pending("p", "1", affinity=affinity),)).pools["serve"].wanted == 1

    def test_a_node_that_does_not_come_back_is_no_room(self) -> None:
        """Its jobs did not go in time, and may never: another node is wanted back for the pod that waits."""
        held = {"late": Resources(4000, pods=1)}
        stuck = node("late", "recalled", since_s=10_000, taint=False)
        coming = node("late", "recalled", since_s=10)
        for late, wanted in ((stuck, 1), (coming, 0)):
            found = look(late, node("b", "loaned"), trained=held, pending=(pending("p", "3"),))
            assert found.pools["serve"].wanted == wanted

    def test_a_pod_counts_in_one_pool_only(self) -> None:
        pools = {name: PoolSettings(namespaces=("serving",), headroom=0) for name in ("serve", "train")}
        nodes = [node("a", "loaned"), node("b", "loaned", pool="train", loan_of="train")]
        found = look(*nodes, pools=pools, pending=(pending("p", "3"),))
        assert sorted(pool.wanted for pool in found.pools.values()) == [0, 1]


def _only(name: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


class TestWhatIsFound:
    """Nothing that others do to a node is more than a recall, and the end of each is a node without our taint."""

    def test_a_loan_stands(self) -> None:
        assert look(node("a", "loaned"), trained={"a": Resources(1, pods=1)}).writes == ()

    @pytest.mark.parametrize(
        ("found", "why"),
        [
            (node("a", "loaned", taint=False), "the taint was removed"),
            (node("a", "loaned", pool="other"), "its label is now other"),
            (node("a", "loaned", pool=None), "its label is now empty"),
            (node("a", "loaned", loan_of="gone", pool="gone"), "no longer lends"),
            (node("a", "loaned", unschedulable=True), "cordoned"),
            (node("a", "loaned", taints=[TAINT, DISRUPTED]), "it is being drained (karpenter.sh/disrupted)"),
            (node("a", taint=True), "was not lent"),
            (node("a", "returned", taint=True), "was not lent"),
        ],
    )
    def test_is_recalled(self, found: KubeNode, why: str) -> None:
        (write,) = look(found).writes
        assert (write.stage, write.tainted) == ("recalled", found.tainted)
        assert why in write.why

    def test_a_taint_of_that_name_elsewhere_is_not_ours(self) -> None:
        assert look(node("a", pool=None, taint=True)).writes == ()

    def test_goes_back_when_nothing_of_a_job_is_there_or_comes(self) -> None:
        found = node("a", "recalled", since_s=5)
        assert written(look(found)) == {"a": ("returned", False)}
        assert written(look(found, trained={"a": Resources(1, pods=1)})) == {}
        assert written(look(found, promised=frozenset("a"))) == {}

    def test_a_recalled_node_is_returned_without_its_pool_label_or_taint(self) -> None:
        for found in (
            node("a", "recalled", pool="other"),
            node("a", "recalled", taint=False),
            node("a", "recalled", unschedulable=True),
        ):
            assert written(look(found, pools={})) == {"a": ("returned", False)}

    def test_jobs_that_are_late_are_stopped_and_in_the_end_not_waited_for(self) -> None:
        there = {"a": Resources(1, pods=1)}
        assert look(node("a", "recalled", since_s=119), trained=there).overdue == frozenset()
        late = look(node("a", "recalled", since_s=121), trained=there)
        assert (late.overdue, late.writes) == (frozenset("a"), ())
        hard = look(node("a", "recalled", since_s=301), trained=there)
        assert written(hard) == {"a": ("recalled", False)}
        assert hard.writes[0].late
        assert look(node("a", "recalled", since_s=301, taint=False), trained=there).writes == ()

    def test_a_job_that_comes_to_a_node_that_was_given_back_is_sent_away(self) -> None:
        assert written(look(node("a", "returned"), promised=frozenset("a"))) == {"a": ("recalled", False)}

    def test_a_lent_node_that_was_deleted_and_has_come_again_goes_back(self) -> None:
        """Taint and annotation are gone with the old one, and its jobs' pods come to its name."""
        assert written(look(node("a"), promised=frozenset("a"))) == {"a": ("recalled", False)}
        assert look(node("a")).writes == ()

    @pytest.mark.parametrize("text", [*NO_JSON_OBJECT, '{"stage":"mine"}', '{"stage":"loaned","pool":"/"}'], ids=named)
    def test_an_annotation_that_cannot_be_read_is_no_loan(self, text: str) -> None:
        raw = raw_pool_node("a")
        raw["metadata"]["annotations"] = {LOAN_ANNOTATION: text}
        assert KubeNode.parse(raw).loan is None

    def test_a_time_to_come_is_now(self) -> None:
        loan = node("a", "recalled", since_s=-10_000).loan
        assert loan is not None
        assert loan.age_s(NOW_S) == 0


def test_a_node_that_was_lent_once_is_as_others_when_its_pool_is_gone() -> None:
    """A job that is placed on it stays there."""
    for gone in (
        look(node("a", "returned"), pools={}, promised=frozenset("a")),
        look(node("a", "returned", pool=None)),
    ):
        assert (gone.writes, gone.nodes) == ((), {})
    assert not concerned(node("a", "returned"), {})
    assert concerned(node("a", "loaned"), {})


class TestSpeed:
    """How fast a pool's accelerators are is in the Snapshot, and a plan goes by it."""

    @pytest.mark.parametrize("stage", ["", "loaned"])
    def test_the_speed_of_a_pools_nodes_is_as_configured(self, stage: str) -> None:
        nodes = {
            name: node(name, stage if name == "a" else "", pool=pool) for name, pool in (("a", "serve"), ("o", None))
        }
        for busy in (False, True):
            found = look(*nodes.values(), pools=slow(0.5), foreign=(server("a"),) if busy else ())
            snapshot = assemble([], nodes, [], NOW_S, lending=found)
            assert {name: each.accelerator_speed for name, each in snapshot.nodes.items()} == {"a": 0.5, "o": 1.0}
            assert snapshot.nodes["a"].pool == "serve"

    @pytest.mark.parametrize(("speed", "grows"), [(0.5, False), (1.0, True), (2.0, True)])
    def test_a_job_grows_onto_nodes_that_are_as_fast(self, speed: float, grows: bool) -> None:
        nodes = {"o": node("o", pool=None), "a": node("a", "loaned")}
        found = look(*nodes.values(), pools=slow(speed))
        size = ReplicaGroup("Worker", Resources(1000, pods=1), 4, 1, 6)
        runs = Job(
            JobSpec("default/j", NOW_S - 9000, (size,), loanable=True, duration_s=90_000.0),
            {"Worker": ("o",) * 4},
            phase="running",
            since_s=NOW_S - 9000,
        )
        snapshot = assemble([], nodes, [], NOW_S, lending=found).evolve(NOW_S, changed=[runs])
        plan = schedule(snapshot, build("aryl", parse_profile("aryl", {})))
        assert {key: len(each.nodes["Worker"]) for key, each in plan.changes.items()} == (
            {"default/j": 6} if grows else {}
        )


def slow(speed: float) -> dict[str, PoolSettings]:
    return {"serve": PoolSettings(namespaces=("serving",), headroom=0, accelerator_speed=speed)}


class TestFollowingAPlan:
    def test_a_node_with_jobs_is_recalled_and_an_idle_one_goes_back_at_once(self) -> None:
        nodes = {name: node(name, stage) for name, stage in (("a", "loaned"), ("b", "loaned"), ("c", ""))}
        cluster = LendingInput(nodes, POOLS, trained={"a": Resources(1, pods=1)})
        why = Reason("pool-wants")
        loans = [Loan("a", "return", why), Loan("b", "return", why), Loan("c", "borrow", Reason("offered"))]
        found = asked_by_plan([*loans, Loan("gone", "return", why)], lending(cluster, NOW_S), cluster)
        assert [(w.seen.name, w.stage, w.tainted) for w in found] == [
            ("a", "recalled", True),
            ("b", "returned", False),
            ("c", "loaned", True),
        ]

    def test_nothing_is_promised_on_a_node_before_it_is_lent(self) -> None:
        """The plan counts on it; the job's target waits until the node says so."""
        asks: dict[str, Any] = {
            "containers": [{"name": "tensorflow", "image": "i", "resources": {"requests": {"cpu": "1"}}}]
        }
        loanable = {"elastic.kubeflow.org/loanable": "true", "elastic.kubeflow.org/checkpoint-dir": "/c"}
        guest = job({"Worker": replicas(2, **asks)}, annotations=loanable)
        profile = build("fifo", parse_profile("fifo", {"lend": "offered"}))
        for stage, stored in (("", {}), ("loaned", {"Worker": 2})):
            there = {"a": node("a", stage)}
            made = {"ns/j": view_of(guest, (), nodes=there, now=NOW)}
            planned = plan_round(
                made,
                there,
                (),
                profile,
                now_s=NOW_S,
                previous=None,
                history=assemble([], {}, [], NOW_S).history,
                cluster=LendingInput(there, POOLS),
            )
            assert [loan.action for loan in planned.plan.loans] == ([] if stage else ["borrow"])
            assert planned.targets["ns/j"].replicas == stored

    @pytest.mark.parametrize(
        ("since_s", "phase", "stopped"),
        [
            (119, "Preparing", False),
            (121, "Preparing", True),
            (121, "Stable", True),
            (121, "Checkpointing", False),
            (121, "Recreating", False),
            (121, "Switching", False),
        ],
    )
    def test_a_job_that_prepares_to_move_away_is_late_and_one_that_goes_is_not(
        self, since_s: float, phase: Phase, stopped: bool
    ) -> None:
        nodes = {"a": node("a", "recalled", since_s=since_s), "b": node("b", pool=None)}
        spec = JobSpec("ns/j", 0.0, (fixed_group("Worker", Resources(1000, pods=1), 1),))
        moves = JobView(
            None,
            Job(spec, {"Worker": ("b",)}, "rescaling"),
            state=StoredState(phase, replicas={"Worker": 1}),
            other_usage={"a": Resources(1000, pods=1)},
        )
        planned = plan_round(
            {"ns/j": moves},
            nodes,
            (),
            build("fifo", parse_profile("fifo", {})),
            now_s=NOW_S,
            previous=None,
            history=assemble([], {}, [], NOW_S).history,
            cluster=LendingInput(nodes, POOLS),
        )
        assert bool(planned.plan.changes) == stopped

    def test_late_jobs_are_stopped_whatever_the_profile(self) -> None:
        spec = JobSpec("ns/j", 0.0, (fixed_group("Worker", Resources(1000, pods=1), 1),))
        runs = Job(spec, {"Worker": ("a",)}, "running")
        snapshot = assemble([], {"b": node("b", pool=None)}, [], NOW_S).evolve(NOW_S, changed=[runs])
        profile = build("fifo", parse_profile("fifo", {}))
        late = replace(profile, lend=ReclaimTimeout(profile.lend, frozenset("a")))
        assert schedule(snapshot, late).changes["ns/j"].cause == "reclaim"

    def test_a_late_job_is_stopped_also_while_it_moves_away(self) -> None:
        """It holds another node by then; its pods are on the one that is recalled until it has moved."""
        spec = JobSpec("ns/j", 0.0, (fixed_group("Worker", Resources(1000, pods=1), 1),))
        nodes = {name: node(name, pool=None) for name in "bc"}
        moves = Job(spec, {"Worker": ("b",)}, "rescaling")
        stopping = replace(moves, spec=replace(spec, key="ns/stops"), placement={})
        snapshot = assemble([], nodes, [], NOW_S).evolve(NOW_S, changed=[moves, stopping])
        profile = build("fifo", parse_profile("fifo", {}))
        for leaving, stopped in (({"ns/j", "ns/stops"}, {"ns/j": "reclaim"}), ({"ns/stops"}, {})):
            late = replace(profile, lend=ReclaimTimeout(profile.lend, frozenset("a"), frozenset(leaving)))
            changes = schedule(snapshot, late).changes
            assert {key: change.cause for key, change in changes.items()} == stopped


class TestPods:
    def pods(self, **said: str) -> list[dict[str, Any]]:
        notes = {f"elastic.kubeflow.org/{name}": text for name, text in {"checkpoint-dir": "/c", **said}.items()}
        size: dict[str, Any] = {"replicas": {"Worker": 1}, "nodes": {"Worker": ("a",)}}
        notes |= {
            TARGET_ANNOTATION: Target(0, **size, declared={"Worker": 1}).to_json(UID),
            STATE_ANNOTATION: StoredState("Stable", **size, since=format_time(NOW)).to_json(UID),
        }
        made = reconciled(job({"Worker": 1}, annotations=notes), settings=ReconcileSettings(wait_for_target=True))
        return [each.render() for each in made.actions if isinstance(each, Create) and each.kind == "Pod"]

    def test_only_pods_of_loanable_jobs_tolerate_the_taint(self) -> None:
        (plain,), (guest,) = self.pods(), self.pods(loanable="true")
        assert "tolerations" not in plain["spec"]
        assert guest["spec"]["tolerations"] == [{"key": LOANED_TAINT, "operator": "Exists", "effect": "NoSchedule"}]

    def test_a_job_that_cannot_be_stopped_is_not_loanable(self) -> None:
        found = job({"Worker": 1}, annotations={"elastic.kubeflow.org/loanable": "true"})
        elasticity = Elasticity.parse(found.annotations, found.spec())
        assert not elasticity.loanable
        assert "checkpoint-dir" in elasticity.problems[0]


class TestConfiguration:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("profile: kips\npools: {serve: {namespaces: [s]}}", "borrows no node"),
            ("pools: {serve: {namespaces: [s]}}", "borrows no node"),
            ("profile: kips\nprofiles: {kips: {lend: offered}}", "borrowing needs pools"),
            ("profile: kips\nprofiles: {kips: {reclaim: cost}}", "borrowing needs pools"),
            ("profile: kips\nprofiles: {kips: {reclaim: cost}}\npools: {serve: {namespaces: [s]}}", "borrows no node"),
            ("profile: kips\nprofiles: {kips: {lend: offered}}\npools: {serve: {}}", "namespaces"),
            ("profile: kips\nprofiles: {kips: {lend: offered}}\npools: {training: {namespaces: [s]}}", "other than"),
            (
                "profile: kips\nprofiles: {kips: {lend: offered}}\npools: {a/b: {namespaces: [s]}}",
                "a pool name must be a value of the label",
            ),
            ("profile: kips\nprofiles: {kips: {lend: offered}}\npools: {a: {namespaces: [s], hold: 1}}", "hold_s"),
            *(
                (f"profile: aryl\npools: {{a: {{namespaces: [s], accelerator_speed: {speed}}}}}", "accelerator_speed")
                for speed in ("0", "0.009", "101", "-1", ".nan", ".inf", "fast", "[1]")
            ),
        ],
    )
    def test_is_refused_in_words(self, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            parse_configuration(text)

    def test_is_read(self) -> None:
        text = "profile: kips\nprofiles: {kips: {lend: offered}}\npools: {serve: {namespaces: [s]}}"
        assert parse_configuration(text).pools == {"serve": PoolSettings(namespaces=("s",))}

    def test_says_how_fast_its_nodes_are(self) -> None:
        text = "profile: aryl\npools: {a: {namespaces: [s], accelerator_speed: 0.5}, b: {namespaces: [s]}}"
        assert {name: each.accelerator_speed for name, each in parse_configuration(text).pools.items()} == {
            "a": 0.5,
            "b": 1.0,
        }

    def test_stated_demand_is_parsed_and_problems_are_counted(self) -> None:
        wants, problems = parse_wants("serve=3, other=1,serve=x,=4,-1=2,a=1e3")
        assert wants == {"serve": 3, "other": 1}
        assert len(problems) == 4
        assert parse_wants("x" * 10_000)[0] == {}

    @given(st.text(max_size=40))
    def test_any_text_of_demand_is_parsed_within_bounds(self, text: str) -> None:
        wants, _ = parse_wants(text)
        assert all(0 <= number < 10**9 for number in wants.values())


class Server:
    """Nodes as the API server has them: a patch of another version than the present one is a conflict."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.nodes = {each["metadata"]["name"]: each for each in nodes}
        self.meddle: Any = None
        self.forbids = False
        self.patches: list[dict[str, Any]] = []
        self.deleted: list[tuple[str, str, int]] = []

    async def delete(self, path: str, *, uid: str, gracePeriodSeconds: int) -> None:
        self.deleted.append((path, uid, gracePeriodSeconds))

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        if self.forbids:
            raise Invalid("GET", 403, "Forbidden", "nodes is forbidden")
        return copy.deepcopy(self.nodes[path.rpartition("/")[2]])

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = self.nodes[path.rpartition("/")[2]]
        if self.meddle is not None:
            self.meddle(found)
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise Conflict("PATCH", 409, "Conflict", "it has changed")
        self.patches.append(body)
        found["metadata"]["annotations"] |= body["metadata"]["annotations"]
        found["metadata"]["resourceVersion"] = str(int(found["metadata"]["resourceVersion"]) + 1)
        found["spec"] |= body.get("spec", {})
        return copy.deepcopy(found)


def owned(pod: Pod) -> bool:
    """The one job that there is owns it."""
    return pod.owner == UID


class World:
    """The writer, its server and what it says."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.server = Server(*nodes)
        self.events: list[Event] = []
        self.subjects: list[str] = []
        api: Any = self.server
        recorder: Any = self
        self.nodes: Informer[KubeNode] = Informer(api, "/nodes", KubeNode.parse, lambda _: None)
        for each in nodes:
            self.nodes.written(copy.deepcopy(each))
        self.pods: tuple[Pod, ...] = ()
        self.candidates: tuple[JobView, ...] = ()
        self.loans = Loans(api, self.nodes, recorder, wants=dict, owned=owned, touched=lambda _: None)

    def record(self, subject: KubeNode | PendingPod, event: Event) -> None:
        self.subjects.append(subject.name)
        self.events.append(event)

    async def round(self, loans: tuple[Loan, ...] = (), configuration: Configuration | None = None) -> Lending:
        made = configuration or parse_configuration(
            "profile: kips\nprofiles: {kips: {lend: offered}}\npools: {serve: {namespaces: [serving], headroom: 0}}"
        )
        cluster = self.loans.cluster(made, (), self.pods, self.candidates)
        assert cluster is not None
        found = lending(cluster, datetime.now(UTC).timestamp())
        self.loans.decided(cluster, found, loans)
        async with asyncio.TaskGroup() as group:
            self.loans.write(group)
        return found

    def stage(self, name: str) -> tuple[str, bool]:
        found = KubeNode.parse(self.server.nodes[name])
        return (found.loan.stage if found.loan is not None else ""), found.tainted


BORROW, RETURN = Loan("a", "borrow", Reason("offered")), Loan("a", "return", Reason("pool-wants"))


class TestWriter:
    async def test_lends_and_gives_back_and_leaves_the_taints_of_others(self) -> None:
        raw = raw_pool_node("a")
        raw["spec"]["taints"] = [FOREIGN_TAINT]
        world = World(raw)
        await world.round((BORROW,))
        assert world.stage("a") == ("loaned", True)
        assert world.server.nodes["a"]["spec"]["taints"] == [FOREIGN_TAINT, TAINT]
        await world.round((RETURN,))
        assert world.stage("a") == ("returned", False)
        assert world.server.nodes["a"]["spec"]["taints"] == [FOREIGN_TAINT]
        assert [event.reason for event in world.events] == ["NodeLent", "NodeReturned"]
        assert (await world.round()).pools["serve"].spare == 0, "it is held back"

    def test_a_pod_that_fits_on_no_node_is_told_once_until_there_is_none(self) -> None:
        world = World(raw_pool_node("a", "loaned"))
        large, small = pending("p", "5"), pending("s", "1")
        for pods in ((small,), (large, pending("q", "6"), small), (large,), (), (large,)):
            found = look(node("a", "loaned"), pending=pods)
            assert found.unplaced == tuple(pod for pod in pods if pod is not small)[::-1]
            world.loans.decided(None, found, ())
        assert world.subjects == ["q", "p"]
        assert {event.reason for event in world.events} == {"FitsNoPoolNode"}
        assert world.events[0].message.endswith("no node is recalled for it, nor for 1 more of this namespace")
        assert world.events[1].message.endswith("no node is recalled for it")

    def test_only_pending_pods_of_pools_get_events(self) -> None:
        assert not look(node("a"), pending=(pending("p", "5", namespace="tenant"),)).unplaced

    @pytest.mark.parametrize("owner", [UID, "", "of-a-job-that-is-gone"])
    async def test_a_recalled_node_waits_for_pods_that_a_job_owns_and_for_no_others(self, owner: str) -> None:
        """Anybody can make a pod with the operator's label, which no job's stop ends."""
        world = World(raw_pool_node("a"))
        await world.round((BORROW,))
        world.pods = (replace(pod("worker", 0), owner=owner, node="a", requests=Resources(1000, pods=1)),)
        await world.round((RETURN,))
        assert world.stage("a") == (("recalled", True) if owner == UID else ("returned", False))
        found = await world.round()
        assert found.counts["serve", "offered"] == 0, "it is not idle"
        assert found.counts["serve", "recalled"] == (owner == UID)

    async def test_a_guest_that_no_plan_can_stop_is_deleted_in_the_end(self) -> None:
        """Its job has lost its checkpoint-dir, or cannot be read any more, so that it is not among the loanable."""
        world = World(raw_pool_node("a"))
        await world.round((BORROW,))
        world.pods = (replace(pod("worker", 0), node="a", pinned="a", requests=Resources(1000, pods=1), grace_s=9999),)
        world.candidates = (JobView(job({"Worker": 1})),)
        found = await world.round()
        assert world.stage("a") == ("recalled", True)
        assert (found.evicted, world.server.deleted) == ((), [])
        world.nodes.written(raw_pool_node("a", "recalled", since_s=1e5, version=9))
        world.server.nodes["a"] = raw_pool_node("a", "recalled", since_s=1e5, version=9)
        with capture_logs():
            await world.round()
            await world.round()  # it is still there, and has been told
        (there,) = world.pods
        path = f"/api/v1/namespaces/{there.namespace}/pods/{there.name}"
        assert world.server.deleted == [(path, there.uid, 30)]
        assert world.stage("a") == ("recalled", False)

    @pytest.mark.parametrize("plans", [True, False])
    def test_only_pods_that_the_operator_placed_count_as_guests(self, plans: bool) -> None:
        world = World(raw_pool_node("a", "loaned"))
        world.pods = (replace(pod("worker", 0), node="a", requests=Resources(1000, pods=1)),)
        made = parse_configuration(
            "profile: kips\nprofiles: {kips: {lend: offered}}\npools: {serve: {namespaces: [a]}}"
        )
        cluster = world.loans.cluster(made, (), world.pods, (), plans=plans)
        assert cluster is not None
        assert (cluster.guests, cluster.staying) == ({}, frozenset())
        put = (replace(world.pods[0], pinned="a"),)
        cluster = world.loans.cluster(made, (), put, (JobView(job({"Worker": 1})),), plans=plans)
        assert cluster is not None
        assert (cluster.guests, cluster.staying) == (({"a": put}, {"a"}) if plans else ({}, frozenset()))

    @pytest.mark.parametrize(
        "leaves",
        [
            {"status": {"conditions": [condition("Succeeded")]}},
            {"runPolicy": {"suspend": True}},
            {"deleting": True},
            {},  # the operator has just started, and does not know the job yet
        ],
        ids=["ended", "suspended", "deleted", "unknown"],
    )
    def test_a_guest_that_goes_by_itself_keeps_the_loan(self, leaves: dict[str, Any]) -> None:
        world, deleted = World(raw_pool_node("a", "loaned")), leaves.pop("deleting", False)
        made = parse_configuration(
            "profile: kips\nprofiles: {kips: {lend: offered}}\npools: {serve: {namespaces: [a]}}"
        )
        put = (replace(pod("worker", 0), node="a", pinned="a", requests=Resources(1000, pods=1)),)
        source = replace(job({"Worker": 1}, **leaves), deleting=deleted)
        known = (view_of(source, put, nodes={}, now=NOW, all_jobs=True),) if leaves or deleted else ()
        cluster = world.loans.cluster(made, (), put, known)
        assert cluster is not None
        assert cluster.staying == frozenset()

    async def test_the_room_of_pods_that_no_job_owns_is_taken(self) -> None:
        world = World(raw_pool_node("a"))
        found = await world.round()
        assert found.pools["serve"].spare == 1
        world.pods = (replace(pod("worker", 0), owner="", node="a", requests=Resources(1000, pods=1)),)
        assert (await world.round()).pools["serve"].spare == 0

    async def test_a_node_that_has_changed_is_decided_for_anew(self) -> None:
        world = World(raw_pool_node("a"))
        world.server.nodes["a"]["spec"]["unschedulable"] = True  # the informer does not know yet
        world.server.nodes["a"]["metadata"]["resourceVersion"] = "2"
        await world.round((BORROW,))
        assert world.server.patches == []
        assert (await world.round()).pools["serve"].spare == 0, "and the next round knows"

    async def test_a_node_that_changes_meanwhile_is_not_written(self) -> None:
        world = World(raw_pool_node("a"))
        world.server.meddle = lambda found: found["metadata"].update(resourceVersion="9")
        await world.round((BORROW,))
        assert (world.stage("a"), world.events) == (("", False), [])

    async def test_without_the_right_nothing_is_offered_for_a_while(self) -> None:
        world = World(raw_pool_node("a"), raw_pool_node("b"))
        world.server.forbids = True
        with capture_logs():
            await world.round((BORROW,))
        assert [event.reason for event in world.events] == ["LoansForbidden"]
        assert (await world.round()).pools["serve"].spare == 0

    async def test_a_stage_keeps_its_time_where_only_the_taint_goes(self) -> None:
        there = node("a", "recalled", since_s=500)
        late = LoanWrite(there, "recalled", False, "serve", "w", late=True)
        body = patch_of(late, raw_pool_node("a", "recalled", since_s=500), NOW)
        assert NodeLoan.of(body["metadata"]["annotations"]) == NodeLoan("recalled", "serve", ago(500), "w")


class LoopServer(test_scheduler.Server):
    """An API server with one node, of the pool, and pods that wait when they are pushed."""

    def __init__(self, jobs: list[dict[str, Any]]) -> None:
        super().__init__(jobs)
        self.node = raw_pool_node("a")
        self.stages: list[tuple[str, bool]] = []
        self.pods: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        if path.endswith("/nodes/a"):
            return copy.deepcopy(self.node)
        items = [copy.deepcopy(self.node)] if path.endswith("/nodes") else []
        return {"items": items, "metadata": {"resourceVersion": "1"}}

    async def watch(self, path: str, **_: Any) -> AsyncIterator[dict[str, Any]]:
        while path != "/api/v1/namespaces/serving/pods":
            await asyncio.Event().wait()
        while True:
            yield {"type": "ADDED", "object": await self.pods.get()}

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "/nodes/" not in path:
            return await super().patch(path, body)
        metadata = self.node["metadata"]
        assert body["metadata"]["resourceVersion"] == metadata["resourceVersion"]
        metadata["annotations"] |= body["metadata"]["annotations"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        self.node["spec"] |= body.get("spec", {})
        found = KubeNode.parse(self.node)
        assert found.loan is not None
        self.stages.append((found.loan.stage, found.tainted))
        return copy.deepcopy(self.node)


async def test_the_loop_lends_a_node_and_gives_it_back_to_a_pod_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_scheduler, "Server", LoopServer)
    monkeypatch.setattr(loop, "_SPACING_S", 0.01)
    configuration = parse_configuration(
        "profile: fifo\nprofiles: {fifo: {lend: offered}}\npools: {serve: {namespaces: [serving], headroom: 0}}"
    )
    guest = test_scheduler.tfjob("guest", loanable="true", checkpoint_dir="/c")
    with capture_logs():
        world = test_scheduler.World([guest], configuration=configuration)
        server: Any = world.server
        async with world.running(), asyncio.timeout(60):
            while "guest" not in server.targets or not server.targets["guest"].replicas:
                await asyncio.sleep(0.02)
            assert server.stages == [("loaned", True)], "the node is lent before anything is promised there"
            assert server.targets["guest"].nodes == {"Worker": ("a",)}
            await server.pods.put(raw_pending("p", "3"))
            while server.stages[-1] != ("returned", False):
                await asyncio.sleep(0.02)
            assert server.targets["guest"].replicas == {}
    assert {"NodeLent", "NodeRecalled", "NodeReturned"} <= {event.reason for _, event in world.events}


class SlowServer(Server):
    """Lists the pods of a namespace when it is let."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        super().__init__(*nodes)
        self.let = asyncio.Event()

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        if not path.endswith("/pods"):
            return await super().get(path)
        await self.let.wait()
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    async def watch(self, path: str, **_: Any) -> AsyncIterator[dict[str, Any]]:
        await asyncio.Event().wait()
        yield {}


def loans_of(server: Server) -> Loans:
    api: Any = server
    nodes: Informer[KubeNode] = Informer(api, "/nodes", KubeNode.parse, lambda _: None)
    for each in server.nodes.values():
        nodes.written(copy.deepcopy(each))
    recorder: Any = None
    return Loans(api, nodes, recorder, wants=dict, owned=owned, touched=lambda _: None)


LENDS = parse_configuration("profile: fifo\nprofiles: {fifo: {lend: offered}}\npools: {serve: {namespaces: [serving]}}")


def may_lend(loans: Loans) -> bool:
    cluster = loans.cluster(LENDS, (), (), ())
    assert cluster is not None
    return cluster.may_lend


async def test_a_new_leader_knows_the_pods_that_wait_before_its_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else that round offers nothing, and a job that would have waited for a node on loan starts with less."""
    monkeypatch.setattr(loans_module, "_READ_S", 1000.0)
    server = SlowServer(raw_pool_node("a"))
    loans = loans_of(server)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        asyncio.get_running_loop().call_later(0.05, server.let.set)
        await loans.follow(LENDS, group)
        assert may_lend(loans)
        await loans.follow(parse_configuration("profile: fifo"), group)  # ends the task that reads them


async def test_a_namespace_that_cannot_be_read_holds_up_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loans_module, "_READ_S", 0.05)
    loans = loans_of(SlowServer(raw_pool_node("a")))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        await loans.follow(LENDS, group)
        assert not may_lend(loans)
        monkeypatch.setattr(loans_module, "_READ_S", 1000.0)
        await loans.follow(LENDS, group)  # not a second time
        await loans.follow(parse_configuration("profile: fifo"), group)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["pod", "gone", "label", "taint", "untaint", "cordon", "delete", "wipe", "lend", "wait", "job"]
        ),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["written", "lost"]),
    ),
    max_size=12,
)


@given(ACTIONS)
def test_loans_settle_whatever_others_do_and_whichever_writes_are_lost(
    actions: list[tuple[str, str, str]],
) -> None:
    """A plan is followed, or its write lost as by a crash. No node is lent twice within the hold, no node with a pod is
    lent, and when others rest, nothing more is written and no taint is left on a node that is not lent."""
    nodes = {name: raw_pool_node(name) for name in "abc"}
    pods: dict[str, ForeignPod] = {}
    waits: dict[str, PendingPod] = {}
    trained: dict[str, Resources] = {}
    borrows, now_s, returned_s = False, NOW_S, dict[str, float]()

    def one_round(fate: str) -> int:
        seen = {name: KubeNode.parse(raw) for name, raw in nodes.items()}
        cluster = LendingInput(
            {name: each for name, each in seen.items() if concerned(each, POOLS)},
            POOLS,
            tuple(pods.values()),
            tuple(waits.values()),
            {name: held for name, held in trained.items() if name in seen},
        )
        found = lending(cluster, now_s)
        pool = found.pools["serve"]
        lent = [name for name, standing in found.nodes.items() if standing.loan in ("loaned", "reclaiming")]
        offered = [name for name, standing in found.nodes.items() if standing.loan == "offered"]
        assert 0 <= pool.wanted <= len(lent)
        assert 0 <= pool.spare <= len(offered)
        loans = [Loan(name, "return", Reason("pool-wants")) for name in lent[: pool.wanted]]
        loans += [Loan(name, "borrow", Reason("offered")) for name in offered[: pool.spare] if borrows]
        writes = (*found.writes, *asked_by_plan(loans, found, cluster))
        assert len({write.seen.name for write in writes}) == len(writes)
        for write in writes:
            name = write.seen.name
            if write.stage == "loaned":
                assert name not in pods
                assert now_s - returned_s.get(name, float("-inf")) >= POOLS["serve"].hold_s
            if fate == "lost":
                continue
            body = patch_of(write, nodes[name], datetime.fromtimestamp(now_s, UTC))
            nodes[name]["metadata"]["annotations"] = dict(body["metadata"]["annotations"])
            nodes[name]["spec"] |= body.get("spec", {})
            if write.stage == "returned":
                returned_s[name] = now_s
            if write.stage == "recalled":
                trained.pop(name, None)  # its jobs leave
        return len(writes)

    for what, name, fate in actions:
        now_s += 30
        there = nodes.get(name)
        match what:
            case "pod":
                waits[name] = pending(name, "3")
            case "gone":
                waits.pop(name, None)
                pods.pop(name, None)
            case "lend":
                borrows = not borrows
            case "wait":
                now_s += 700
            case "delete":
                nodes.pop(name, None)
                pods.pop(name, None)
                trained.pop(name, None)
            case _ if there is None:
                nodes[name] = raw_pool_node(name)
                returned_s.pop(name, None)
            case "label":
                there["metadata"]["labels"] = {} if there["metadata"]["labels"] else {POOL_LABEL: "serve"}
            case "taint":
                there["spec"]["taints"] = [TAINT]
            case "untaint":
                there["spec"]["taints"] = []
            case "cordon":
                there["spec"]["unschedulable"] = not there["spec"].get("unschedulable")
            case "wipe":
                there["metadata"]["annotations"] = {}
                returned_s.pop(name, None)
            case "job" if KubeNode.parse(there).loan is not None and KubeNode.parse(there).loan.stage == "loaned":  # type: ignore[union-attr]
                trained[name] = Resources(4000, pods=1)
        one_round(fate)
    borrows = False
    rounds = [one_round("written") for _ in range(6)]
    assert rounds[-1] == 0, rounds
    for raw in nodes.values():
        found = KubeNode.parse(raw)
        if found.pool == "serve" or found.loan is not None:
            assert found.tainted == (found.loan is not None and found.loan.stage == "loaned")

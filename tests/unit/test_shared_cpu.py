"""CPU that the replicas of a job share: who may use how much, and that both worlds follow a profile that says so."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job import cpu as cpu_module
from elastic_tfjob.controller.job.decision import ReconcileSettings
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.quantities import CpuAsked, cpu_of
from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.model.speed_conditions import cpu_shared, present_conditions
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.scheduling.forecasts import expected_rate
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.shared_cpu import usable_cpu, usable_types, use_in_turn
from elastic_tfjob.scheduling.snapshot import CHIEF, EVALUATOR, PS, WORKER, Job, JobSpec, ReplicaGroup
from elastic_tfjob.scheduling.steps.cpu_in_place import BusyJobs
from elastic_tfjob.simulation.foresee import present
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.speed_models.cpu import PS_CPU, CpuBound, usable_cores
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.history import Conditions
from elastic_tfjob.speed.optimus import believe

from .pretend import ELASTIC, Cluster, started
from .simulation.build import finishes, simulate

GROUPS = (
    ReplicaGroup(CHIEF, Resources(50), 1, 1, 1),
    ReplicaGroup(PS, Resources(50), 1, 1, 2),
    ReplicaGroup(WORKER, Resources(100), 2, 1, 4),
)
HERE = {CHIEF: ("a",), PS: ("a",), WORKER: ("a", "a")}
APART = {CHIEF: ("a",), PS: ("b",), WORKER: ("a", "b")}


def job(**more: Any) -> Job:
    """One that holds 300 millicores of a node and makes 2 steps a second."""
    spec = JobSpec("ns/j", 0.0, GROUPS, total_steps=1000.0)
    known: dict[str, Any] = {"placement": HERE, "phase": "running", "steps_per_s": 2.0, "cpu_shared": True}
    return Job(spec, **{**known, **more})


class TestUsable:
    """What replicas can use."""

    def test_each_what_it_holds(self) -> None:
        found = usable_cpu(GROUPS, HERE, {WORKER: (100, 150)}, shared=False)
        assert found == {CHIEF: (50,), PS: (50,), WORKER: (100, 150)}

    def test_usable_cpu_is_what_the_job_holds_on_the_node(self) -> None:
        found = usable_cpu(GROUPS, HERE, {WORKER: (100, 150)}, shared=True)
        assert found == {CHIEF: (350,), PS: (350,), WORKER: (175, 175)}

    def test_cpu_held_on_other_nodes_is_not_usable(self) -> None:
        assert usable_cpu(GROUPS, APART, {}, shared=True) == {CHIEF: (150,), PS: (150,), WORKER: (150, 150)}

    def test_an_evaluator_shares_nothing(self) -> None:
        groups, there = (*GROUPS, ReplicaGroup(EVALUATOR, Resources(400), 1, 1, 1)), {**HERE, EVALUATOR: ("a",)}
        assert usable_cpu(groups, there, {}, shared=True) == {
            CHIEF: (300,),
            PS: (300,),
            WORKER: (150, 150),
            EVALUATOR: (400,),
        }

    def test_how_busy_types_are_is_of_that(self) -> None:
        """The worker runs for 60 % of the time, though it uses twice what it holds; chief and PS for 10 and 20 %."""
        shares = job(cpu_use={CHIEF: 0.6, PS: 1.2, WORKER: 0.9})
        assert usable_types(shares) == {CHIEF: 300, PS: 300, WORKER: 300}
        assert use_in_turn(shares) == pytest.approx({CHIEF: 0.1, PS: 0.2, WORKER: 0.6})
        assert use_in_turn(replace(shares, cpu_shared=False)) == shares.cpu_use

    def test_a_job_is_busy_by_the_time_in_which_one_of_its_types_computes(self) -> None:
        busy = job(cpu_use={CHIEF: 0.7, PS: 1.3, WORKER: 0.75})
        idle = job(cpu_use={CHIEF: 0.3, PS: 0.6, WORKER: 0.3})
        assert BusyJobs(0.8, [busy]).uses["ns/j"] == use_in_turn(busy)
        assert not BusyJobs(0.8, [idle]).uses
        assert set(BusyJobs(0.8, [replace(idle, cpu_shared=False)]).uses) == {"ns/j"}

    def test_a_job_whose_workers_can_use_no_more_than_they_request_is_busy_too(self) -> None:
        """As a program of one thread: more CPU does not help it, and more workers may."""
        bound = job(cpu_use={CHIEF: 0.1, PS: 0.1, WORKER: 0.95})
        assert BusyJobs(0.8, [bound]).uses["ns/j"] == pytest.approx(
            {CHIEF: 0.1 / 1.15, PS: 0.1 / 1.15, WORKER: 0.95 / 1.15}
        )

    def test_cpu_that_one_type_gets_is_more_for_all(self) -> None:
        """A third more of the node's: a third more steps where nothing waits."""
        shares = job(cpu_use={CHIEF: 0.6, PS: 1.2, WORKER: 1.05})
        rate = expected_rate(shares, placement=HERE, cpu={WORKER: (150, 150)})
        assert rate is not None
        assert rate.steps_per_s == pytest.approx(2 * 4 / 3)

    def test_more_cpu_for_the_faster_worker_alone_is_no_faster(self) -> None:
        """The other one, on a node that gets none, is waited for in each step."""
        rate = expected_rate(job(placement=APART, cpu_use={WORKER: 0.9}), placement=APART, cpu={WORKER: (200, 100)})
        assert rate is not None
        assert rate.steps_per_s == 2

    def test_one_worker_more_adds_what_it_requests(self) -> None:
        """A third more CPU for all. The chief and the workers compute for 10 and 60 % of the time, the PS for 20 %: it
        serves half as many workers more, and each worker has a ninth less. What of their work is split is half."""
        shares = job(cpu_use={CHIEF: 0.6, PS: 1.2, WORKER: 0.9})
        rate = expected_rate(shares, placement={**HERE, WORKER: ("a", "a", "a")}, cpu={})
        assert rate is not None
        assert rate.steps_per_s == pytest.approx(
            2 / (0.1 + 0.1 * 3 / 4 + 0.2 * 3 / 2 * 3 / 4 + 0.6 * 9 / 8 * (1 / 2 + 1 / 2 * 2 / 3))
        )

    def test_a_size_that_was_measured_with_as_much_cpu_is_as_fast_again(self) -> None:
        seen = believe(
            {(1, 1): 4.0, (1, 2): 2.0}, conditions={(1, 1): Conditions(200.0, 200.0), (1, 2): Conditions(150.0, 300.0)}
        )
        shares = job(cpu_use={CHIEF: 0.6, PS: 0.6, WORKER: 0.9}, speed=seen)
        rate = expected_rate(shares, placement={**HERE, WORKER: ("a",)}, cpu={})
        assert rate is not None
        assert rate.source == "measured"
        assert rate.steps_per_s == pytest.approx(4.0, rel=0.05)


class TestSimulated:
    """The speed model ps-cpu, under a profile that shares and one that does not."""

    @pytest.mark.parametrize(("shares", "trains_s"), [(True, 8.8), (False, 17.6)])
    @pytest.mark.parametrize(("boot_cpu_s", "starts_s"), [(0.0, 0.0), (12.0, 24.0)])
    def test_starts_and_steps_take_the_cpu_of_all(
        self, shares: bool, trains_s: float, boot_cpu_s: float, starts_s: float
    ) -> None:
        """A step takes 0.08 CPU-s of the worker and 0.008 of the PS, which hold half of the node's one CPU each."""
        groups = (ReplicaGroup(PS, Resources(500), 1, 1, 1), ReplicaGroup(WORKER, Resources(500), 1, 1, 1))
        work = WorkloadJob("j", 0.0, groups, total_steps=100, model="digits", cpu_demand=4.0)
        model, said = PS_CPU, {"share_cpu": shares}
        costs = Costs(boot_cpu_s=boot_cpu_s)
        outcome = simulate("kips", [work], gpus=0, cpus=1, speed_model=model, parameters=said, costs=costs)
        assert finishes(outcome) == {"j": pytest.approx(starts_s + trains_s)}

    def test_a_forecast_begins_at_the_present_speed(self) -> None:
        shares = job(cpu_use={CHIEF: 0.6, PS: 1.2, WORKER: 1.05})
        live, _ = present(shares, 0.0)
        assert live.cpu_shared
        assert isinstance(live.true_speed, CpuBound)
        pace = live.true_speed.pace(usable_cores(GROUPS, HERE, {}, shared=True))
        assert pace.steps_per_s == pytest.approx(2)
        assert pace.use == pytest.approx(use_in_turn(shares))


def placed(**options: Any) -> Cluster:
    """A chief, a PS and two workers that hold 100 millicores each, the second worker on a node of its own."""
    cluster = started(settings=ReconcileSettings(image="operator:1", shares_cpu=True), **options)
    return aimed(cluster, {})


def aimed(cluster: Cluster, cpu: dict[str, tuple[int, ...]]) -> Cluster:
    nodes = {"Chief": ("a",), "PS": ("a",), "Worker": ("a", "b")}
    for name, pod in cluster.pods.items():
        cluster.pods[name] = replace(pod, node="b" if name == "j-worker-1" else "a")
    target = Target(0, {"Chief": 1, "PS": 1, "Worker": 2}, nodes, cpu, "idle capacity")
    cluster.annotations[TARGET_ANNOTATION] = target.to_json()
    cluster.run(5)
    return cluster


def held(cluster: Cluster) -> dict[str, CpuAsked]:
    return {name.removeprefix("j-"): pod.cpu for name, pod in sorted(cluster.pods.items())}


class TestLive:
    """The limits of running pods."""

    def test_the_limit_of_each_is_all_that_the_job_holds_there(self) -> None:
        cluster = placed()
        assert held(cluster) == {
            "chief-0": (100, 300),
            "ps-0": (100, 300),
            "worker-0": (100, 300),
            "worker-1": (100, 100),
        }
        assert {action.change for action in cluster.resized} == {"share"}
        names = ("chief-0", "ps-0", "worker-0", "worker-1")
        assert cpu_shared(cluster.pods[f"j-{name}"] for name in names)
        by_type = {
            type_: [cluster.pods[f"j-{name}"] for name in names if name.startswith(type_.lower())]
            for type_ in (CHIEF, PS, WORKER)
        }
        # One PS and a worker share the node with the chief; the other worker has its own 100 millicores.
        assert present_conditions(by_type) == Conditions(100.0, 300.0)

    def test_without_it_no_job_shares(self) -> None:
        cluster = aimed(started(), {})
        assert set(held(cluster).values()) == {(100, 100)}
        assert not cpu_shared([cluster.pods["j-chief-0"]])

    def test_cpu_lent_to_one_replica_counts_for_all_on_the_node(self) -> None:
        cluster = aimed(placed(), {"Worker": (250, 100)})
        assert held(cluster) == {
            "chief-0": (100, 450),
            "ps-0": (100, 450),
            "worker-0": (250, 450),
            "worker-1": (100, 100),
        }
        assert set(held(aimed(cluster, {})).values()) == {(100, 300), (100, 100)}

    def test_another_profile_takes_it_back(self) -> None:
        cluster = placed()
        cluster.settings = replace(cluster.settings, shares_cpu=False)
        cluster.run(3)
        assert set(held(cluster).values()) == {(100, 100)}

    def test_a_namespace_that_does_not_allow_it_still_lends(self) -> None:
        cluster = started(settings=ReconcileSettings(image="operator:1", shares_cpu=True))
        cluster.refused = {(pod.uid, "share"): cluster.now + timedelta(days=1) for pod in cluster.pods.values()}
        aimed(cluster, {"Worker": (250, 100)})
        assert held(cluster)["worker-0"] == (250, 250)
        assert held(cluster)["ps-0"] == (100, 100)

    def test_cpu_is_asked_for_before_it_is_shared(self) -> None:
        """Where a namespace does not allow a limit, that must not cost what is lent."""
        cluster = aimed(
            started(settings=ReconcileSettings(image="operator:1", shares_cpu=True)), {"Worker": (250, 100)}
        )
        first = [
            (each.request_millicores, each.limit_millicores, each.change)
            for each in cluster.resized
            if each.name == "j-worker-0"
        ]
        assert first == [(250, 250, "more"), (250, 450, "share")]

    @pytest.mark.parametrize(
        "options",
        [
            {"cpu_limit": "2"},
            {"queue": "team"},
            {"annotations": {**ELASTIC, f"{PREFIX}inject": "launcher"}},
        ],
    )
    def test_limits_of_ones_own_and_those_that_others_know_stay(self, options: dict[str, Any]) -> None:
        cluster = placed(**options)
        assert {limit for _, limit in held(cluster).values()} == {2000 if "cpu_limit" in options else 100}

    def test_added_pods_share_once_their_size_runs(self) -> None:
        cluster = placed()
        nodes = {"Chief": ("a",), "PS": ("a",), "Worker": ("a", "b", "a")}
        target = Target(1, {"Chief": 1, "PS": 1, "Worker": 3}, nodes, {}, "busy", {"Chief": 1, "PS": 1, "Worker": 2})
        cluster.annotations[TARGET_ANNOTATION] = target.to_json()
        cluster.until("Switching")
        assert held(cluster)["worker-2"] == (100, 100)
        cluster.run(20)
        assert held(cluster)["worker-2"] == held(cluster)["ps-0"] == (100, 400)


@pytest.mark.parametrize(
    ("said", "shares"),
    [
        ({"profile": "fixed"}, False),
        ({"profile": "kips"}, True),
        ({"profile": "kips", "profiles": {"kips": {"share_cpu": False}}}, False),
    ],
)
def test_the_profile_says_so(said: dict[str, Any], shares: bool) -> None:
    assert Configuration.model_validate(said).shares_cpu == shares


def test_a_pass_reads_what_a_replica_asks_for_no_more_than_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    def counted(spec: Any, *names: str) -> CpuAsked:
        looked.append(1)
        return cpu_of(spec, *names)

    types = {"Chief": 1, "PS": 1, "Worker": 300}
    cluster = started(types=types, settings=ReconcileSettings(image="operator:1", shares_cpu=True))
    nodes = {name: ("any",) * count for name, count in types.items()}
    cluster.annotations[TARGET_ANNOTATION] = Target(0, types, nodes, {}, "idle capacity").to_json()
    cluster.run(1)
    monkeypatch.setattr(cpu_module, "cpu_of", counted)
    cluster.run(1)
    assert {pod.cpu for pod in cluster.pods.values()} == {(100, 30_200)}
    assert len(looked) < 3 * len(cluster.pods)

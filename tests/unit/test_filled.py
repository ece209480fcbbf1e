"""What the contract says that a world fills, it does fill: somewhere in a rich story the field is not its default.

The table names who fills a field; that names are there says nothing of whether anybody does it.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, replace
from typing import Any, Final

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.scenario import Autoscaling
from elastic_tfjob.controller.model.annotations import RECORD_ANNOTATION
from elastic_tfjob.controller.model.cluster import KubeNode as LiveNode
from elastic_tfjob.controller.model.quantities import CpuAsked
from elastic_tfjob.controller.model.reports import CpuUse, Report
from elastic_tfjob.controller.model.usage import UsageRecord
from elastic_tfjob.controller.planning.job_view import view_of
from elastic_tfjob.controller.planning.lending import Lending, lending
from elastic_tfjob.controller.planning.lending import LendingInput as Pools
from elastic_tfjob.controller.planning.round import NodeMarks, assemble
from elastic_tfjob.scheduling import contract
from elastic_tfjob.scheduling import snapshot as core
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources, Taint
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.event_queue import NodeChange
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.scenario import InferencePool
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.speed_models.cpu import CPU_SHARE, PS_CPU
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.growth import NOT_REPORTED
from elastic_tfjob.speed.history import History, Lesson

from .build import NOW, job
from .scheduling.build import servers, workers
from .test_both_worlds import calm
from .test_loans import POOLS, raw_pool_node
from .test_snapshot import PODS, elastic_job, node, state, target

pytestmark = pytest.mark.xdist_group("worlds")  # two long stories, each played once

AS_BY_DEFAULT: Final = {
    f"JobSpec.{name}"
    for name in (
        *("resizable", "stoppable", "movable", "reports"),
        *("fixed_cpu", "constraints", "constraints_by_type", "asked"),
    )
} | {"Job.step_cpu_s", "Job.cpu_settled"}
"""Of a simulation the table says that these are always, or never, what the default is."""
ALWAYS_LIVE: Final = {"Snapshot.seed", "JobSpec.sequence"}
"""Of the operator the table says so of these."""
AFTER_SPEED_S: Final = 10.0


def filled(snapshots: Iterable[core.Snapshot]) -> set[str]:
    """The fields that differ from their defaults in any of these; those that have no default always do."""
    found: set[str] = set()
    for snapshot in snapshots:
        empty = core.Snapshot(0.0, {}, {})
        found |= {f"Snapshot.{n}" for n in contract.FIELDS["Snapshot"] if getattr(snapshot, n) != getattr(empty, n)}
        jobs = snapshot.jobs.values()
        values: tuple[core.Node | core.Job | core.JobSpec | core.ClusterRules, ...]
        values = (*snapshot.nodes.values(), *jobs, *(each.spec for each in jobs), snapshot.cluster_rules)
        for value in values:
            found |= {
                f"{type(value).__name__}.{each.name}"
                for each in fields(value)
                if _default(each) is MISSING or getattr(value, each.name) != _default(each)
            }
    return found


def _default(of: Field[Any]) -> Any:
    return of.default_factory() if of.default_factory is not MISSING else of.default


def claimed(world: str) -> set[str]:
    return {f"{k}.{name}" for k, known in contract.FIELDS.items() for name, b in known.items() if getattr(b, world)}


# Live


def stories() -> Iterator[core.Snapshot]:
    """A job that has a past, one that waits and may not be changed, and nodes of another pool."""
    annotations = {"deadline": "1h", "total-steps": "900", "estimated-duration": "10m", "loanable": "true"}
    seen = state(1, 1, speeds={"1/1": 5.0, "1/2": 9.0})
    rich = replace(
        elastic_job(
            target=target(1, cpu={"Worker": [1500]}, memory={"las.forgiven": 3.0}),
            state=seen,
            said={**annotations, "target-workers": "2", "inject": "exporter"},
            priorityClassName="high",
            nodeSelector={"zone": "1"},
        ),
        created="2026-01-02T03:00:00Z",
    )
    loss = NOT_REPORTED.read(0.0, 5.0, 1.0).read(100.0, 4.0, 20.0)
    past = "2026-01-02T03:03:00Z"
    record = UsageRecord(past, 2, 50.0, 5000.0, 1, past, 1, past, loss)
    rich.annotations[RECORD_ANNOTATION] = record.to_json()
    told = Report(
        at=1.0,
        generation=1,
        step=120,
        steps_per_s=7.0,
        mean_cores=0.25,
        mean_steps_per_s=6.0,
        first_step_at=100.0,
        last_step_at=100.0 + AFTER_SPEED_S,
        received_at_s=NOW.timestamp(),
        cpu=CpuUse(use_cores=0.25),
        starts="fork",
        modes=("live", "overlap"),
    )
    nodes = {"n1": node("n1"), "n2": node("n2", taints=[{"key": "t", "effect": "NoSchedule"}])}
    lent = loaned()
    unlimited = tuple(replace(each, cpu=CpuAsked(1000, 0)) for each in PODS)
    lighter = replace(rich, annotations={**rich.annotations, PREFIX + "target": json.dumps(target(1))})
    before = view_of(lighter, unlimited, nodes=nodes, now=NOW)
    reports = {"j-worker-0": told, "j-ps-0": replace(told, generation=0)}
    about: dict[str, Any] = {"nodes": nodes, "now": NOW, "reports": reports, "priorities": {"high": 7}}
    yield assemble(
        [view_of(rich, unlimited, before=before, **about)],
        {**nodes, **lent[0]},
        [],
        NOW.timestamp(),
        history=History().learned("ns", "j", Lesson("done", 900.0)),
        lending=lent[1],
    )
    spot = replace(node("n3"), labels={"karpenter.sh/capacity-type": "spot"}).configured({}, "")
    soon = node("n4", taints=[{"key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule"}])
    prepared = state(1, 1, prepare_s=12.0)
    yield assemble(
        [view_of(elastic_job(target=target(1), state=prepared), PODS, nodes=nodes, now=NOW)],
        {**nodes, "n3": spot, "n4": soon},
        [],
        NOW.timestamp(),
        leaving={"n5": NOW.timestamp() + 30},
        cluster_rules=core.ClusterRules(core.OrderRules(), core.CompactionRules()),
        marks=NodeMarks(frozenset(nodes), frozenset({"n2"}), {"n1": 0.5}),
    )
    sharing = tuple(replace(each, cpu=CpuAsked(1000, 2000)) for each in PODS)
    yield assemble([view_of(rich, sharing, nodes=nodes, now=NOW)], nodes, [], NOW.timestamp())
    apart = {
        name: {
            "replicas": 1,
            "template": {"spec": {"containers": [{"name": "tensorflow", "image": "i"}], "nodeSelector": where}},
        }
        for name, where in (("PS", {"zone": "1"}), ("Worker", {"zone": "2"}))
    }
    plain = job(apart, annotations={f"{PREFIX}placement": "operator", f"{PREFIX}inject": "none"})
    yield assemble([view_of(plain, (), nodes=nodes, now=NOW, all_jobs=True)], nodes, [], NOW.timestamp())


def loaned() -> tuple[dict[str, LiveNode], Lending]:
    """A node that a pool has lent and one that it can spare."""
    nodes = [LiveNode.parse(raw_pool_node("p1", "loaned")), LiveNode.parse(raw_pool_node("p2"))]
    known = {each.name: each for each in nodes}
    return known, lending(
        Pools(known, {"serve": POOLS["serve"].model_copy(update={"accelerator_speed": 0.5})}), NOW.timestamp()
    )


@pytest.fixture(scope="module")
def seen_live() -> set[str]:
    return filled([*stories(), *calm()[0].values()])


@pytest.mark.parametrize("field", sorted(claimed("live") - ALWAYS_LIVE))
def test_the_operator_fills_it(seen_live: set[str], field: str) -> None:
    assert field in seen_live


def test_the_operator_fills_nothing_that_the_table_denies(seen_live: set[str]) -> None:
    assert seen_live <= claimed("live") - ALWAYS_LIVE


# Simulated


def watched(jobs: list[WorkloadJob], nodes: list[core.Node], profile: str, **more: Any) -> list[core.Snapshot]:
    """All Snapshots that the profile decided on."""
    seen: list[core.Snapshot] = []
    made = build(profile, parse_profile(profile, more.pop("said", {})))
    model = more.pop("speed_model", LINEAR)
    Simulation(SimulationInput(jobs, nodes, model, **more), made, check=lambda plan: seen.append(plan.snapshot)).run()
    return seen


@pytest.fixture(scope="module")
def seen_simulated() -> set[str]:
    cpu = WorkloadJob("ns/digits-1", 0, (servers(1), workers(1, 1, 2, gpus=0, cpus=1)), total_steps=100, model="digits")
    two = [cpu, replace(cpu, key="ns/digits-2", submit_s=50.0, priority=1, deadline_s=900.0, estimated_s=60.0)]
    each = Resources(4000, pods=110)
    own = core.Node("n", each, each, labels={"zone": "1"}, taints=(Taint("t"),))
    costs = Costs(boot_cpu_s=12.0, boot_kept_cpu_s=1.0, live_pause_s=0.1)
    by_cpu = watched(two, [replace(own, name="free", taints=()), own], "kips", speed_model=PS_CPU, costs=costs, seed=3)
    lends = [WorkloadJob(f"ns/l-{k}", 3600.0 * k, (workers(8),), 9000.0, loanable=True) for k in range(4)]
    pool = InferencePool(10, Resources(0, 0, 8, pods=110), 0.5, noise=0.0)
    lent = watched(lends, [], "fifo", said={"lend": "offered"}, inference=pool)
    shared = [WorkloadJob("ns/d", 0, (workers(1, gpus=0, cpus=1),), 60.0)]
    by_weight = watched(shared, [own], "fixed", speed_model=CPU_SHARE)
    kinds = [replace(own, name="spot", taints=(), spot=True), replace(own, name="soon", taints=(), avoid=True)]
    notices = [NodeChange(200, "spot", notice_s=120), NodeChange(300, "spot", kinds[0])]
    moves = replace(cpu, key="ns/digits-3", groups=(servers(1), workers(5, gpus=0, cpus=1)), total_steps=90000)
    room = [*kinds, replace(own, name="free", taints=())]
    taken = watched([moves], room, "fixed", speed_model=PS_CPU, costs=costs, node_changes=notices)
    template = {"name": "auto", "cpus": 4, "lead_s": 50, "price": 0.8, "remove_after_s": 600}
    comes = Autoscaling.model_validate({"templates": [template], "compact": {"after_s": 10, "every_s": 5}})
    ends = [WorkloadJob(f"ns/e-{k}", 0, (workers(1, gpus=0, cpus=3),), 60.0 + 600 * k) for k in range(2)]
    left = watched(ends, [], "las", said={"interval_s": 30}, autoscaling=comes)
    return filled([*by_cpu, *lent, *by_weight, *taken, *left, *calm()[1].values()])


@pytest.mark.parametrize("field", sorted(claimed("simulated") - AS_BY_DEFAULT))
def test_the_simulation_fills_it(seen_simulated: set[str], field: str) -> None:
    assert field in seen_simulated


def test_constant_fields_of_a_simulation_are_the_defaults(seen_simulated: set[str]) -> None:
    assert not seen_simulated & AS_BY_DEFAULT

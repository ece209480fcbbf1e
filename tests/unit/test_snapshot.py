"""From caches to Snapshot, and from Plan to targets."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from elastic_tfjob.api.reading import MAX_ANNOTATION_BYTES
from elastic_tfjob.controller.model.annotations import RECORD_ANNOTATION
from elastic_tfjob.controller.model.cluster import DRAINING_TAINTS, ForeignPod, KubeNode
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.quantities import CpuAsked
from elastic_tfjob.controller.model.reports import CpuUse, Report
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.model.usage import UsageRecord
from elastic_tfjob.controller.planning.core_job import RejectedNodes, active, judge, verdict_due_s
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.round import assemble
from elastic_tfjob.controller.planning.targets import decide, decide_fixed, released, suspended
from elastic_tfjob.scheduling import plan as core
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.reasons import Reason, as_reason
from elastic_tfjob.scheduling.resources import Resources, Taint
from elastic_tfjob.scheduling.snapshot import Job as CoreJob
from elastic_tfjob.speed.growth import Growth
from harness.hostile_text import NO_JSON_OBJECT

from .build import NOW, UID, job, pod, raw_node

PREFIX = "elastic.kubeflow.org/"
GI = 2**30


def node(name: str, cpu: str = "4", **fields: Any) -> KubeNode:
    """A node with two GPUs; `ready` is its condition."""
    spec = {key: fields.pop(key) for key in ("taints", "unschedulable") if key in fields}
    raw = raw_node(name, cpu, labels={"zone": name[-1]}, **spec)
    raw["status"]["allocatable"]["nvidia.com/gpu"] = "2"
    raw["status"]["conditions"][0]["status"] = fields.get("ready", "True")
    return KubeNode.parse(raw)


NODES = {name: node(name) for name in ("n1", "n2")}


def elastic_job(
    *,
    target: Any = None,
    state: Any = None,
    said: dict[str, str] | None = None,
    workers: int = 1,
    **pod_spec: Any,
) -> TFJob:
    """1 PS and workers between 1 and 4, of one core each."""
    asks = {"containers": [{"name": "tensorflow", "image": "i", "resources": {"requests": {"cpu": "1"}}}], **pod_spec}
    annotations = {"max-workers": "4", "min-workers": "1", "checkpoint-dir": "/c", "inject": "none", **(said or {})}
    annotations = {PREFIX + name: text for name, text in annotations.items()}
    for name, value in (("target", target), ("state", state)):
        if value is not None:
            annotations[PREFIX + name] = value if isinstance(value, str) else json.dumps(value)
    types = {"PS": {"replicas": 1}, "Worker": {"replicas": workers}}
    return job({name: {**each, "template": {"spec": asks}} for name, each in types.items()}, annotations=annotations)


def target(generation: int = 0, workers: int = 1, **fields: Any) -> dict[str, Any]:
    nodes = {"PS": ["n1"], "Worker": ["n1"] * workers}
    sizes = {"replicas": {"PS": 1, "Worker": workers}, "declared": {"PS": 1, "Worker": 1}}
    return {"generation": generation, "nodes": nodes, "reason": "r", **sizes, **fields}


def state(generation: int = 0, workers: int = 1, phase: str = "Stable", **fields: Any) -> dict[str, Any]:
    return {"phase": phase, "generation": generation, "replicas": {"PS": 1, "Worker": workers}, **fields}


def bound(kind: str, index: int, name: str = "n1", cpu: int = 1000, **fields: Any) -> Pod:
    return replace(pod(kind, index), node=name, requests=Resources(cpu, pods=1), cpu=CpuAsked(cpu, 0), **fields)


PODS = (bound("ps", 0), bound("worker", 0))


def look(found: TFJob | None, pods: tuple[Pod, ...] = (), **fields: Any) -> JobView:
    return view_of(found, pods, nodes=fields.pop("nodes", NODES), now=fields.pop("now", NOW), **fields)


def described(found: TFJob, pods: tuple[Pod, ...] = (), **fields: Any) -> CoreJob:
    made = look(found, pods, **fields).job
    assert made is not None
    return made


# What a job is


def test_groups_from_template_and_annotations() -> None:
    ps, worker = described(elastic_job(workers=2)).spec.groups
    assert (ps.type, ps.minimum, ps.maximum, ps.request) == ("PS", 1, 1, Resources(1000, pods=1))
    assert (worker.count, worker.minimum, worker.maximum) == (2, 1, 4)


def test_injected_containers_are_counted() -> None:
    plain, injected = (
        described(elastic_job(said={"inject": what})).spec.groups[0].request for what in ("none", "both")
    )
    assert injected.cpu_millicores == plain.cpu_millicores  # a pod that asks for all of a node's CPU still fits there
    assert injected.memory_bytes > plain.memory_bytes


def test_a_limit_without_a_request_is_the_request() -> None:
    limits = {"limits": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": 1}}
    containers = [{"name": "tensorflow", "image": "i", "resources": limits}]
    assert described(elastic_job(containers=containers)).spec.groups[0].request == Resources(500, GI, 1, 1)


def test_without_checkpoint_dir_it_has_only_its_declared_size() -> None:
    found = elastic_job(workers=2)
    found.annotations.pop(f"{PREFIX}checkpoint-dir")
    spec = described(found).spec
    assert (spec.groups[1].minimum, spec.groups[1].maximum, spec.resizable) == (2, 2, False)


@pytest.mark.parametrize(
    ("said", "may"),
    [
        ({"max-workers": "4"}, (True, True, True)),
        ({"max-workers": "2"}, (False, True, True)),
        ({"max-workers": "4", "rescale": "never"}, (False, False, False)),
        ({"max-workers": "4", "rescale": "never", "inject": "sidecar"}, (False, False, True)),
        ({"max-workers": "2", "inject": "none"}, (False, True, False)),
    ],
)
def test_a_jobs_annotations_say_which_changes_are_allowed(said: dict[str, str], may: tuple[bool, bool, bool]) -> None:
    """With somewhere to go on from it can be stopped and tell its progress, whatever its bounds are."""
    found = elastic_job(workers=2)
    for name in ("min-workers", "inject"):
        found.annotations.pop(f"{PREFIX}{name}", None)
    found.annotations.update({f"{PREFIX}{name}": value for name, value in said.items()})
    spec = described(found).spec
    assert (spec.resizable, spec.stoppable, spec.reports) == may


def test_service_is_what_the_record_says() -> None:
    """So that LAS means live what it means in simulation: a job that has had more goes behind one that has had less."""
    placed = format_time(NOW - timedelta(seconds=100))
    record = UsageRecord(placed=placed, held=2, executed_s=50.0, service=5000.0)
    found = elastic_job(target=target(), state=state())
    found.annotations[RECORD_ANNOTATION] = record.to_json()
    made = described(found, PODS)
    assert (made.executed_s, made.service) == (50.0, 5000.0)
    assert made.service_at(NOW.timestamp()) == 5000.0 + 2 * 100
    found.annotations[RECORD_ANNOTATION] = "nonsense"
    assert described(found, PODS).service == 0.0


def test_asked_sizes_are_pinned() -> None:
    spec = described(elastic_job(said={"target-workers": "3"})).spec
    assert (spec.groups[1].minimum, spec.groups[1].maximum) == (3, 3)


def test_an_edit_of_the_spec_asks_until_a_target_has_followed_it() -> None:
    running = {"target": target(1), "state": state(1)}
    edited = described(elastic_job(workers=3, **running), PODS).spec.groups[1]
    assert (edited.minimum, edited.maximum) == (3, 3)
    followed = target(1, declared={"PS": 1, "Worker": 3})
    after = described(elastic_job(workers=3, target=followed, state=state(1)), PODS).spec.groups[1]
    assert (after.minimum, after.maximum) == (1, 4)


def test_times_and_steps() -> None:
    made = replace(
        elastic_job(said={"deadline": "1h", "total-steps": "500", "estimated-duration": "10m"}),
        created="2026-01-02T03:00:00Z",
    )
    spec = described(made).spec
    assert spec.deadline_s is not None
    assert (spec.deadline_s - spec.arrival_s, spec.total_steps, spec.duration_s) == (3600, 500, 600)
    assert NOW.timestamp() - spec.arrival_s == 245


def test_constraints() -> None:
    wants = {"key": "zone", "operator": "In", "values": ["2"]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [wants]}]}
    }
    made = described(
        elastic_job(nodeSelector={"a": "b"}, affinity={"nodeAffinity": affinity}, tolerations=[{"operator": "Exists"}])
    )
    constraints = made.spec.constraints_of("Worker")
    taint = (Taint("t"),)
    assert constraints.admit({"a": "b", "zone": "2"}, taint)
    assert not constraints.admit({"a": "b", "zone": "1"}, taint)
    assert not constraints.admit({"zone": "2"}, taint)


@pytest.mark.parametrize(
    "found",
    [
        job({"Worker": 1}),
        job({"Worker": 1}, annotations={f"{PREFIX}placement": "none"}),
        job({"Worker": 1}, annotations={f"{PREFIX}placement": "auto"}, runPolicy={"suspend": True}),
        job(
            {"Worker": 1},
            annotations={f"{PREFIX}placement": "auto"},
            runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"},
        ),
        job(
            {"Worker": 1},
            annotations={f"{PREFIX}placement": "auto"},
            status={"conditions": [{"type": "Succeeded", "status": "True"}]},
        ),
    ],
    ids=["plain", "placement-none", "suspended", "of-another", "finished"],
)
def test_a_job_that_is_not_scheduled_counts_as_usage(found: TFJob) -> None:
    made = look(found, (bound("worker", 0), bound("worker", 1, phase="Succeeded")))
    assert made.job is None
    assert made.other_usage == {"n1": Resources(1000, pods=1)}


def test_scope_all_decides_for_plain_jobs() -> None:
    assert look(job({"Worker": 1}), all_jobs=True).job is not None


# Where it stands


def test_new_job_waits() -> None:
    made = described(elastic_job())
    assert (made.phase, dict(made.placement)) == ("waiting", {})


def test_bound_pods_say_where_it_is() -> None:
    made = described(elastic_job(target=target(), state=state()), (bound("ps", 0, "n2"), bound("worker", 0)))
    assert made.placement == {"PS": ("n2",), "Worker": ("n1",)}
    assert made.phase == "running"


def test_the_target_is_the_placement_until_pods_are_bound() -> None:
    found = look(elastic_job(target=target(), state=state()), (bound("ps", 0),))
    assert found.job is not None
    assert (found.job.placement, found.job.phase) == ({"PS": ("n1",), "Worker": ("n1",)}, "rescaling")
    assert found.reserved == {"n1": Resources(2000, pods=2)}


def test_a_replica_promised_to_a_lost_node_may_be_placed_anew() -> None:
    made = described(elastic_job(target=target(), state=state()), nodes={"n2": NODES["n2"]})
    assert (made.phase, made.placement["PS"]) == ("running", ("n1",))


@pytest.mark.parametrize("phase", ["Preparing", "Checkpointing", "Switching", "RollingBack", "Recreating"])
def test_between_two_targets(phase: str) -> None:
    coming = {"generation": 1, "slot": 1, "mode": "overlap", "replicas": {"PS": 1, "Worker": 1}, "before": {}}
    now = state(0, 3, phase, next=coming)
    found = look(elastic_job(target=target(1, 1), state=now), (*PODS, bound("worker", 1), bound("worker", 2, "n2")))
    assert found.job is not None
    assert (found.job.phase, found.job.counts) == ("rescaling", {"PS": 1, "Worker": 1})
    told = Report(at=1.0, received_at_s=NOW.timestamp(), cpu=CpuUse(use_cores=0.25))
    reports = {"j-ps-0": told, "j-worker-0": told}
    assert described(elastic_job(target=target(1, 1), state=now), PODS, reports=reports).cpu_use == {}
    each = Resources(1000, pods=1)
    assert found.other_usage == {"n1": each, "n2": each}  # what it has not given up yet


def test_a_new_target_is_a_rescale_before_the_state_says_so_and_a_refused_one_is_none() -> None:
    coming = described(elastic_job(target=target(1, 3), state=state(0, 1)), PODS)
    assert (coming.phase, coming.counts) == ("rescaling", {"PS": 1, "Worker": 3})
    refused = state(0, 1, refused={"generation": 1, "reason": "no", "at": "2026-01-02T03:00:00Z"})
    stays = described(elastic_job(target=target(1, 3), state=refused), PODS)
    assert (stays.phase, stays.counts) == ("running", {"PS": 1, "Worker": 1})
    assert stays.rescaled_s > 0


def test_a_job_that_returned_has_the_size_and_nodes_of_its_state() -> None:
    """Its target says another size, and where the pods of that one would be."""
    undone = {"generation": 1, "reason": "no step", "at": "2026-01-02T03:00:00Z"}
    returned = state(2, 1, refused=undone, nodes={"PS": ["n1"], "Worker": ["n1"]})
    there = {"PS": ("n2",), "Worker": ("n2", "n2", "n2")}
    found = look(elastic_job(target=target(1, 3, nodes=there), state=returned), PODS[:1])
    assert found.job is not None
    assert found.job.counts == {"PS": 1, "Worker": 1}
    assert set(found.pending.values()) == {"n1"}


def test_progress_speed_and_cpu_use() -> None:
    told = Report(
        at=225.0,
        generation=0,
        step=120,
        steps_per_s=7.03,
        total_steps=900,
        first_step_at=100.0,
        last_step_at=105.0,
        received_at_s=NOW.timestamp(),
        cpu=CpuUse(use_cores=0.25),
    )
    seen = state(0, 1, speeds={"1/1": 5.0, "1/2": 9.0})
    made = described(elastic_job(target=target(), state=seen), PODS, reports={"j-worker-0": told})
    assert (made.steps, made.steps_per_s, made.spec.total_steps) == (120, 7.03, 900)
    assert made.speed is not None
    assert made.speed.steps_per_s({"PS": 1, "Worker": 1}) == 7.0
    assert made.speed.steps_per_s({"PS": 1, "Worker": 2}) == 9.0
    early = described(
        elastic_job(target=target(), state=seen), PODS, reports={"j-worker-0": replace(told, last_step_at=104.0)}
    )
    assert early.speed is not None
    assert early.speed.steps_per_s({"PS": 1, "Worker": 1}) == 5.0, "it has hardly begun"
    assert (early.steps, early.steps_per_s) == (120, 0.0)
    assert made.cpu_use == {"Worker": 0.25}


@pytest.mark.parametrize(("limit", "used_m"), [(0, 250), (1000, 500)])
def test_cpu_use_while_a_pod_does_not_hold_yet_what_it_is_promised(limit: int, used_m: int) -> None:
    """Twice as much is promised. By its weight (no limit) it uses what it used; up to a limit, as much as it may."""
    told = Report(at=200.0, first_step_at=1.0, generation=0, received_at_s=1.0, cpu=CpuUse(use_cores=0.25))
    raised = elastic_job(target=target(cpu={"Worker": [2000]}), state=state())
    worker = replace(PODS[1], cpu=CpuAsked(1000, limit))
    found = described(raised, (PODS[0], worker), reports={"j-worker-0": told})
    assert found.cpu == {"Worker": (2000,)}
    assert found.cpu_use["Worker"] * found.held_cpu("Worker") == used_m


def test_the_cost_of_a_step_comes_from_one_window() -> None:
    """Of CPU and speed over the same time, once all replicas have said; not of the speed of the last seconds."""

    def told(cores: float | None, **fields: Any) -> Report:
        return Report(at=1.0, generation=0, received_at_s=NOW.timestamp(), mean_cores=cores, **fields)

    trained = {"first_step_at": 1.0, "last_step_at": 7.0}
    worker = told(0.3, step=10, steps_per_s=50.0, mean_steps_per_s=4.0, **trained)
    seen = elastic_job(target=target(), state=state())
    both = {"j-ps-0": told(0.1), "j-worker-0": worker}
    assert described(seen, PODS, reports=both).step_cpu_s == pytest.approx(0.1)
    few = {**both, "j-worker-0": replace(worker, step=9)}
    silent = {**both, "j-worker-0": told(0.3, **trained)}
    for reports in ({"j-worker-0": worker}, {**both, "j-ps-0": told(None)}, silent, few):
        assert described(seen, PODS, reports=reports).step_cpu_s == 0.0


def test_without_limits_what_a_start_uses_counts_for_nothing() -> None:
    """An import takes all the CPU there is, and first steps trace and compile: by these, jobs of one kind would seem to
    need up to ten times as much as each other. With limits it counts: to such a start CPU is lent."""
    free = tuple(replace(each, cpu=CpuAsked(1000, 0)) for each in PODS)
    limited = tuple(replace(each, cpu=CpuAsked(1000, 1000)) for each in PODS)
    seen = elastic_job(target=target(), state=state())
    seen.annotations[RECORD_ANNOTATION] = UsageRecord(placed=format_time(NOW)).to_json()
    imports = Report(at=100.0, generation=0, received_at_s=1.0, cpu=CpuUse(use_cores=0.5), mean_cores=0.5)
    first = replace(imports, step=3, first_step_at=90.0, last_step_at=99.0, mean_steps_per_s=0.1)
    later = replace(first, at=120.0, step=40, last_step_at=119.0, mean_steps_per_s=2.0)

    def use(pods: tuple[Pod, ...], chief: Report, **more: Any) -> Mapping[str, float]:
        return described(seen, pods, reports={"j-ps-0": imports, "j-worker-0": chief}, **more).cpu_use

    both = {"PS": 0.5, "Worker": 0.5}
    assert use(free, imports) == use(free, first) == {}
    assert use(limited, imports) == use(limited, first) == use(free, later) == use(limited, later) == both
    long = replace(first, at=211.0)
    assert use(free, long) == both, "it takes long for each step"
    assert use(free, imports, now=NOW + timedelta(seconds=121)) == both, "it may never report one"


@pytest.mark.parametrize(("limit", "settled"), [(0, False), (1000, True)])
def test_cpu_use_is_settled_when_the_same_weight_was_promised_for_a_whole_window(limit: int, settled: bool) -> None:
    """With a limit it is at once: what is used is measured anew then."""
    pods = tuple(replace(each, cpu=CpuAsked(1000, limit)) for each in PODS)

    def after(seconds: float, cpu: int, before: JobView | None) -> JobView:
        seen = elastic_job(target=target(cpu={"Worker": [cpu]}), state=state())
        return view_of(seen, pods, nodes=NODES, now=NOW + timedelta(seconds=seconds), before=before)

    def told(found: JobView) -> bool:
        assert found.job is not None
        assert found.job.cpu_limited is bool(limit)
        return found.job.cpu_settled

    begun = after(0, 1500, None)
    assert told(begun)
    raised = after(10, 2000, begun)
    assert told(raised) is settled
    same = after(35, 2000, raised)
    assert told(same) is settled
    assert told(after(45, 2000, same))


def test_a_target_and_a_state_that_cannot_be_read_are_ignored() -> None:
    for text in NO_JSON_OBJECT:
        assert described(elastic_job(target=text, state=text)).phase == "waiting"


def test_annotations_are_read_once_of_the_same_object() -> None:
    """And of one that could not be described before, or is another object, anew."""
    found = elastic_job(target=target(), state=state())
    first = look(found, PODS)
    again = look(found, PODS, before=first)
    assert again.target is first.target
    assert again.state is first.state
    assert again == first
    failed = replace(look(None, PODS), source=found)
    assert look(found, PODS, before=failed) == first
    newer = look(elastic_job(target=target(1, 2), state=state()), PODS, before=first).target
    assert newer is not None
    assert newer.generation == 1


# The cluster


def test_free_is_what_others_leave() -> None:
    foreign = ForeignPod("kube-system", "p", "u", 1, "n1", Resources(500, GI, 1, 1))
    plain = look(job({"Worker": 1}), (bound("worker", 0),))
    ours = look(elastic_job(target=target(), state=state()), PODS)
    made = assemble([plain, ours], NODES, [foreign], 1.0)
    assert made.nodes["n1"].capacity == Resources(4000, 8 * GI, 2, 110)
    assert made.nodes["n1"].free == Resources(2500, 7 * GI, 1, 108)
    assert set(made.jobs) == {"ns/j"}


@pytest.mark.parametrize("fields", [{"ready": "False"}, {"ready": "Unknown"}, {"unschedulable": True}])
def test_nodes_that_take_no_pods(fields: dict[str, Any]) -> None:
    assert not node("n", **fields).usable
    assert node("n", taints=[{"key": "k", "effect": "NoSchedule"}]).usable


def test_evolved_equals_built_anew() -> None:
    first = assemble([look(elastic_job())], NODES, [], 1.0)
    later = [look(elastic_job(target=target(), state=state()), PODS)]
    evolved, anew = assemble(later, NODES, [], 2.0, first), assemble(later, NODES, [], 2.0)
    assert (evolved.jobs, evolved.nodes, evolved.now) == (anew.jobs, anew.nodes, anew.now)
    assert evolved.nodes is first.nodes
    assert assemble([], NODES, [], 3.0, evolved).jobs == {}


# From plan to targets


def planned(found: JobView, change: core.Assignment | None = None, **others: JobView) -> dict[str, Target]:
    everything = {"ns/j": found, **others}
    made = assemble(everything.values(), NODES, [], NOW.timestamp())
    return decide(core.Plan(made, {"ns/j": change} if change else {}), everything)


START = core.Assignment({"PS": ("n1",), "Worker": ("n1", "n2")}, "fits")


def test_first_start_is_generation_0_however_long_it_waited() -> None:
    waited = {"generation": 0, "replicas": {}, "reason": "no room", "declared": {"PS": 1, "Worker": 1}}
    for before in (None, waited):
        made = planned(look(elastic_job(target=before)), START)["ns/j"]
        assert (made.generation, made.replicas, made.declared) == (0, {"PS": 1, "Worker": 2}, {"PS": 1, "Worker": 1})
        assert made.nodes == START.nodes
        assert Target.parse(made.to_json()) == made


LOST = Reason("lost", {"gone": ("n1",)})
MOVED = core.Assignment({"PS": ("n1",), "Worker": ("n2",)}, "moved: n1 is gone")


def test_another_size_or_a_replica_on_another_node_is_one_generation_more() -> None:
    found = look(elastic_job(target=target(), state=state()), PODS)
    assert planned(found, START)["ns/j"].generation == 1
    assert planned(found, MOVED)["ns/j"].generation == 1


KNOWN = {"las.forgiven": 120.5}


def remembered(found: JobView, change: core.Assignment | None = None, **numbers: float) -> Target | None:
    """The target, if any, of a plan that remembers these numbers."""
    made = assemble([found], NODES, [], NOW.timestamp())
    plan = core.Plan(made, {"ns/j": change} if change else {}, memory={"ns/j": numbers})
    return decide(plan, {"ns/j": found}).get("ns/j")


def test_a_profiles_memory_is_written_with_the_target_only() -> None:
    found = look(elastic_job(target={**target(), "memory": KNOWN}, state=state()), PODS)
    assert found.job is not None
    assert found.job.memory == KNOWN
    assert found.target is not None
    assert planned(found) == {}, "nothing new, nothing to write"
    made = remembered(found, x=2.0)
    assert made == replace(found.target, memory={"x": 2.0})
    assert remembered(found) == replace(found.target, memory={})
    assert planned(found, START)["ns/j"].memory == KNOWN, "what a plan does not name stays"
    begun = remembered(found, START, x=3.0)
    assert begun is not None
    assert (begun.generation, begun.memory) == (1, {"x": 3.0})


def test_no_memory_is_stored_for_a_change_that_cannot_be_carried_out() -> None:
    found = look(elastic_job(target={**target(), "memory": KNOWN}, state=state()), PODS)
    nodes = {"n1": replace(NODES["n1"], allocatable=Resources(100, 0, 0, pods=9))}
    made = assemble([found], nodes, [], NOW.timestamp())
    grows = core.Assignment({"PS": ("n1",), "Worker": ("n1", "n1")}, "grows")
    assert decide(core.Plan(made, {"ns/j": grows}, memory={"ns/j": {"x": 1.0}}), {"ns/j": found}) == {}


def test_a_waiting_job_is_remembered_too() -> None:
    waits = {"generation": 0, "replicas": {}, "reason": "no room", "declared": {"PS": 1, "Worker": 1}}
    found = look(elastic_job(target=waits))
    made = assemble([found], NODES, [], NOW.timestamp())
    plan = core.Plan(made, {}, refusals={"ns/j": as_reason("no room")}, memory={"ns/j": KNOWN})
    assert decide(plan, {"ns/j": found})["ns/j"].memory == KNOWN


def test_suspending_a_job_forgets_nothing() -> None:
    types = {"PS": 1, "Worker": 1}
    known = elastic_job(target={**target(), "memory": KNOWN}, state=state())
    made = suspended(look(job(types, annotations=dict(known.annotations), runPolicy={"suspend": True}), PODS))
    assert made is not None
    assert (made.replicas, made.memory) == ({}, KNOWN)


def test_lost_replicas_are_recreated_in_the_same_generation() -> None:
    known: dict[str, Any] = {"target": target(), "state": state()}
    lost = look(elastic_job(**known), PODS, nodes={"n2": NODES["n2"]})
    assert planned(lost, MOVED)["ns/j"].generation == 0
    stays = look(elastic_job(**known, said={"rescale": "never"}), PODS)
    assert planned(stays, MOVED)["ns/j"].generation == 0


def test_a_replica_leaves_a_cordoned_node() -> None:
    """Its pod runs there, so that it is moved and not made anew."""
    found = look(elastic_job(target=target(), state=state()), PODS, nodes={"n2": NODES["n2"]}, cordoned={"n1": ""})
    made = planned(found, core.Assignment({"PS": ("n2",), "Worker": ("n2",)}, LOST))["ns/j"]
    assert (made.generation, str(made.reason)) == (1, "n1 is cordoned")


def test_a_replica_leaves_a_node_that_an_autoscaler_drains() -> None:
    drained = {"n1": "karpenter.sh/disrupted"}
    found = look(elastic_job(target=target(), state=state()), PODS, nodes={"n2": NODES["n2"]}, cordoned=drained)
    made = planned(found, core.Assignment({"PS": ("n2",), "Worker": ("n2",)}, LOST))["ns/j"]
    assert (made.generation, str(made.reason)) == (1, "n1 is being drained")


@pytest.mark.parametrize("key", DRAINING_TAINTS)
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_taint_of_an_autoscaler_or_of_a_notice_cordons_its_node(key: str, effect: str) -> None:
    found = node("n1", taints=[{"key": "other", "effect": effect}, {"key": key, "effect": effect}])
    assert (found.usable, found.cordoned, found.draining) == (False, True, key)
    gone = node("n1", taints=[{"key": key, "effect": effect}], ready="False")
    assert (gone.usable, gone.cordoned) == (False, False)


def test_a_deleted_node_that_a_finalizer_keeps_is_drained() -> None:
    """Its pods still run: Karpenter deletes a node first, and evicts them then."""
    raw = raw_node("n1", "4")
    raw["metadata"] |= {"deletionTimestamp": "2026-11-29T00:00:00Z", "finalizers": ["karpenter.sh/termination"]}
    found = KubeNode.parse(raw)
    assert (found.usable, found.cordoned, found.draining) == (False, True, "deletionTimestamp")
    assert found.configured({}, "") == found
    raw["spec"]["taints"] = [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]
    assert KubeNode.parse(raw).draining == "karpenter.sh/disrupted"


@pytest.mark.parametrize(
    "taint",
    [
        {"key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule"},
        {"key": "karpenter.sh/disrupted", "effect": "PreferNoSchedule"},
        {"key": "example.com/maintenance", "effect": "NoSchedule"},
    ],
)
def test_other_taints_cordon_no_node(taint: dict[str, str]) -> None:
    assert node("n1", taints=[taint]).usable


def test_the_configuration_names_more_taints_that_drain_a_node() -> None:
    found = node("n1", taints=[{"key": "example.com/maintenance", "effect": "NoSchedule"}])
    drained = found.configured({"example.com/maintenance": 600}, "")
    assert (drained.cordoned, drained.draining, drained.notice_s) == (True, "example.com/maintenance", 600)
    assert drained.configured({}, "") == found


def test_a_replica_whose_move_was_refused_is_moved_again() -> None:
    """Its pod is still on the cordoned node, whatever the target says."""
    nodes = {"PS": ["n2"], "Worker": ["n2"]}
    refused = {"generation": 1, "reason": "no checkpoint", "at": format_time(NOW)}
    known: dict[str, Any] = {"target": target(1, nodes=nodes), "state": state(refused=refused)}
    found = look(elastic_job(**known), PODS, nodes={"n2": NODES["n2"]}, cordoned={"n1": ""})
    assert found.job is not None
    assert (found.job.phase, found.job.placement["Worker"]) == ("running", ("n1",))
    again = core.Assignment({"PS": ("n2",), "Worker": ("n2",)}, LOST)
    assert planned(found, again)["ns/j"].generation == 2


def test_a_moving_job_holds_both_places_and_is_left_alone() -> None:
    nodes = {"PS": ["n1"], "Worker": ["n2"]}
    known: dict[str, Any] = {"target": target(1, nodes=nodes), "state": state(nodes={"PS": ["n1"], "Worker": ["n1"]})}
    found = look(elastic_job(**known), PODS)
    assert found.job is not None
    assert found.job.phase == "rescaling"
    assert {name: taken.cpu_millicores for name, taken in found.reserved.items()} == {"n1": 2000, "n2": 1000}
    there = look(
        elastic_job(
            target=target(1, nodes=nodes),
            state=state(1, nodes=nodes, indexes={"Worker": [1]}),
        ),
        (bound("ps", 0), bound("worker", 1, "n2")),
    )
    assert there.job is not None
    assert (there.job.phase, there.job.placement["Worker"]) == ("running", ("n2",))


def test_room_for_a_move_is_looked_for() -> None:
    full = node("n2", cpu="500m")
    found = look(elastic_job(target=target(), state=state()), PODS, nodes={**NODES, "n2": full})
    made = assemble([found], {**NODES, "n2": full}, [], NOW.timestamp())
    assert decide(core.Plan(made, {"ns/j": MOVED}), {"ns/j": found}) == {}


def test_a_waiting_job_is_told_why_and_only_once() -> None:
    told = planned(look(elastic_job()))["ns/j"]
    assert (told.generation, told.replicas) == (0, {})
    assert told.reason
    assert planned(look(elastic_job(target=told.to_json()))) == {}


def test_an_unchanged_job_is_not_written() -> None:
    assert planned(look(elastic_job(target=target(), state=state()), PODS)) == {}


def test_room_that_is_not_given_up_yet_is_not_promised() -> None:
    """The other job shall shrink from 3 workers to none of them: its pods are there still."""
    pods = tuple(replace(bound("worker", i, "n2"), name=f"k{i}", uid=f"k{i}") for i in range(3))
    leaving = look(None, pods)
    found = look(elastic_job())
    snapshot = assemble([found], NODES, [], 1.0)  # what the core was told: all of n2 will be free
    change = core.Assignment({"PS": ("n2",), "Worker": ("n2",)}, "fits")
    assert decide(core.Plan(snapshot, {"ns/j": change}), {"ns/j": found})["ns/j"].replicas
    held = decide(core.Plan(assemble([found, leaving], NODES, [], 1.0), {"ns/j": change}), {"ns/j": found})["ns/j"]
    assert held.replicas == {}
    assert "n2" in str(held.reason)


def test_a_job_that_runs_without_target_gets_its_size() -> None:
    made = planned(look(elastic_job(), PODS))["ns/j"]
    assert (made.generation, made.replicas, made.nodes) == (
        0,
        {"PS": 1, "Worker": 1},
        {"PS": ("n1",), "Worker": ("n1",)},
    )


def test_only_a_job_that_can_resume_is_stopped() -> None:
    stop = core.Assignment({}, "preempted")
    running = look(elastic_job(target=target(), state=state()), PODS)
    assert (planned(running, stop)["ns/j"].replicas, planned(running, stop)["ns/j"].generation) == ({}, 1)
    stiff = elastic_job(target=target(), state=state())
    stiff.annotations.pop(f"{PREFIX}checkpoint-dir")
    assert planned(look(stiff, PODS), stop) == {}


# Profile fixed


def test_fixed_follows_a_person_and_nothing_else() -> None:
    assert decide_fixed(look(elastic_job(state=state()))) is None
    asked = decide_fixed(look(elastic_job(state=state(), said={"target-workers": "3"})))
    assert asked is not None
    assert (asked.generation, asked.replicas, asked.nodes) == (1, {"PS": 1, "Worker": 3}, {})
    edited = decide_fixed(look(elastic_job(state=state(), workers=2)))
    assert edited is not None
    assert (edited.replicas, edited.declared) == ({"PS": 1, "Worker": 2}, {"PS": 1, "Worker": 1})
    under_way = elastic_job(target=edited.to_json(), state=state(phase="Preparing", next=_next(1, 2)), workers=2)
    assert decide_fixed(look(under_way)) is None
    done = decide_fixed(look(elastic_job(target=edited.to_json(), state=state(1, 2), workers=2)))
    assert done == replace(edited, declared={"PS": 1, "Worker": 2})
    assert decide_fixed(look(elastic_job(target=done.to_json(), state=state(1, 2), workers=2))) is None


def _next(generation: int, workers: int) -> dict[str, Any]:
    sizes = {"replicas": {"PS": 1, "Worker": workers}, "before": {"PS": 1, "Worker": 1}}
    return {"generation": generation, "slot": 1, "mode": "overlap", **sizes}


REFUSED = {"generation": 1, "reason": "the new worker-1 ended", "at": "2026-01-02T03:04:00Z"}


@pytest.mark.parametrize("profile", ["fixed", "kips", "las", "elastic", "released"])
@pytest.mark.parametrize("has_target", [True, False])
def test_an_edit_that_could_not_be_followed_is_asked_for_again(profile: str, has_target: bool) -> None:
    """As `target-workers` is, until the job has what it asks for: under each profile, and where none decides."""
    said = {"placement": "none"} if profile == "released" else {}
    known: dict[str, Any] = {"target": target()} if has_target else {}
    pods: tuple[Pod, ...] = PODS

    def next_target(**written: Any) -> Target | None:
        found = elastic_job(workers=2, said=said, **written)
        if profile == "fixed":
            return decide_fixed(look(found, pods))
        if profile == "released":
            return released(look(found, pods), "kips")
        targets: dict[str, Target] = replanned(found, pods, profile=profile)[0]
        return targets.get("ns/j")

    first = next_target(state=state(), **known)
    assert first is not None
    assert (first.generation, first.replicas) == (1, {"PS": 1, "Worker": 2})
    asked = json.loads(first.to_json())
    assert next_target(state=state(phase="Preparing", next=_next(1, 2)), target=asked) is None
    again = next_target(state=state(refused=REFUSED), target=asked)
    assert again is not None
    assert (again.generation, again.replicas) == (2, {"PS": 1, "Worker": 2})
    # Once it has that size, and for good: what the profile does then it does by itself.
    pods = (*PODS, bound("worker", 1, first.nodes["Worker"][1] if first.nodes else "n1"))
    has = next_target(state=state(2, 2), target=json.loads(again.to_json()))
    assert has is not None
    assert (has.generation, has.declared) == (2, {"PS": 1, "Worker": 2})
    assert next_target(state=state(2, 2), target=json.loads(has.to_json())) is None


@pytest.mark.parametrize("profile", ["fixed", "kips", "las", "elastic", "aryl", "released", "stop"])
def test_a_size_requested_during_a_roll_back_gets_a_newer_generation(profile: str) -> None:
    """Generation 1 made no step, and 2 was asked for meanwhile: the job has returned as generation 3."""
    workers = 0 if profile == "stop" else 3
    replicas = {"PS": 1, "Worker": 3} if workers else {}
    known = {"generation": 2, "replicas": replicas, "declared": {"PS": 1, "Worker": 1}}
    said = {"placement": "none"} if profile == "released" else {}
    returned = elastic_job(workers=workers or 1, said=said, target=known, state=state(3, 1, refused=REFUSED))
    made: Target | None
    if profile == "fixed":
        made = decide_fixed(look(returned, PODS))
    elif profile == "released":
        made = released(look(returned, PODS), "kips")
    elif profile == "stop":
        made = planned(look(returned, PODS), core.Assignment({}, "preempted"))["ns/j"]
    else:
        made = replanned(returned, PODS, profile=profile)[0]["ns/j"]
    assert made is not None
    assert (made.generation, made.replicas) == (4, replicas)


def test_fixed_starts_what_another_profile_left_waiting() -> None:
    waiting = {"generation": 0, "replicas": {}, "reason": "no room"}
    made = decide_fixed(
        look(job({"Worker": 2}, annotations={f"{PREFIX}placement": "auto", f"{PREFIX}target": json.dumps(waiting)}))
    )
    assert made is not None
    assert (made.generation, made.replicas) == (0, {"Worker": 2})


# What does not come true


def refused_pod(kind: str, index: int, name: str = "n1", waited_s: float = 11.0, **fields: Any) -> Pod:
    at = format_time(NOW - timedelta(seconds=waited_s))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: too many"}
    made = pod(kind, index, "Pending", status={"conditions": [{**condition, "lastTransitionTime": at}]})
    return replace(made, pinned=name, **fields)


def rejected_nodes_of(
    *pods: Pod, known: dict[Any, RejectedNodes] | None = None, later_s: float = 0.0
) -> dict[Any, RejectedNodes]:
    return judge(known or {}, pods, NOW.timestamp() + later_s)


def test_a_refused_node_is_left_alone_for_longer_each_time() -> None:
    young, old = refused_pod("worker", 0, waited_s=9), refused_pod("worker", 0)
    assert rejected_nodes_of(young) == {}
    assert verdict_due_s([young], NOW.timestamp()) == 1.0
    first = rejected_nodes_of(old)
    assert list(active(first, NOW.timestamp())) == [("worker", "n1")]
    assert active(first, NOW.timestamp() + 60) == {}
    again = rejected_nodes_of(old, known=first, later_s=60)
    assert again["worker", "n1"].delay_s == 2 * first["worker", "n1"].delay_s
    assert rejected_nodes_of(bound("worker", 0), known=again) == {}, "it got the node after all"
    assert rejected_nodes_of(known=first, later_s=121) == {}, "forgotten"
    assert rejected_nodes_of(replace(old, pinned="")) == {}, "kube-scheduler chooses, and goes on looking"
    for no_time in ("1700-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "soon"):
        assert rejected_nodes_of(replace(old, unschedulable_at=no_time)) == {}


def replanned(found: TFJob, pods: tuple[Pod, ...], nodes: Any = NODES, profile: str = "kips") -> tuple[Any, JobView]:
    """The targets that the profile comes to, and the candidate that they are for."""
    made = look(found, pods, nodes=nodes, rejected_nodes=active(rejected_nodes_of(*pods), NOW.timestamp()))
    plan = schedule(
        assemble([made], nodes, [], NOW.timestamp()),
        replace(build(profile, parse_profile(profile, {})), repack=False),
    )
    return decide(plan, {"ns/j": made}), made


@pytest.mark.parametrize("profile", ["kips", "fifo", "drf", "tetris", "edf"])
@pytest.mark.parametrize("short", ["pods", "storage_bytes"])
def test_no_more_is_planned_than_nodes_admit(profile: str, short: str) -> None:
    """Of pods and of ephemeral storage: both nodes have CPU for much more. kube-scheduler would leave the rest Pending
    on the nodes that they are pinned to."""
    asks = {"requests": {"cpu": "100m", "ephemeral-storage": "1Gi"}}
    found = elastic_job(workers=4, containers=[{"name": "tensorflow", "image": "i", "resources": asks}])
    left = {"pods": 3, "storage_bytes": 3 * GI}[short]
    plenty = Resources(4000, 8 * GI, 0, 110, 110 * GI)
    nodes = {name: replace(NODES[name], allocatable=plenty._replace(**{short: left})) for name in NODES}
    targets, _ = replanned(found, (), nodes, profile)
    placed = [node for names in targets["ns/j"].nodes.values() for node in names]
    assert len(placed) == 5
    assert max(placed.count(name) for name in NODES) == 3
    other = ForeignPod("kube-system", "p", "u", 1, "n1", Resources(pods=1, storage_bytes=GI))
    assert getattr(assemble([], nodes, [other], 1.0).nodes["n1"].free, short) == left - left // 3


@pytest.mark.parametrize("profile", ["kips", "fifo", "optimus", "drf"])
@pytest.mark.parametrize("elastic", [True, False])
def test_a_job_that_kube_scheduler_refuses_gets_other_nodes(elastic: bool, profile: str) -> None:
    found = elastic_job(target=target(), state=state())
    if not elastic:
        found.annotations.pop(f"{PREFIX}checkpoint-dir")
    for pods in (
        (refused_pod("ps", 0), refused_pod("worker", 0)),
        (bound("ps", 0), refused_pod("worker", 0)),
    ):
        made, _ = replanned(found, pods, profile=profile)
        assert made["ns/j"].nodes["Worker"][0] == "n2", pods
        assert made["ns/j"].replicas["PS"] == 1
        if pods[0].node:
            assert made["ns/j"].nodes["PS"] == ("n1",)
            assert "too many" in str(made["ns/j"].reason)


def test_without_another_node_it_waits_where_it_is_and_reserves_nothing() -> None:
    only = {"n1": NODES["n1"]}
    found = elastic_job(target=target(), state=state())
    for pods in ((refused_pod("ps", 0), refused_pod("worker", 0)), (bound("ps", 0), refused_pod("worker", 0))):
        made, candidate_ = replanned(found, pods, only, "fifo")
        assert made == {}
        assert candidate_.refused == "0/2 nodes: too many"
        taken = Resources(1000, pods=1) if pods[0].node else Resources()
        assert candidate_.reserved.get("n1", Resources()) == taken, "what is not there takes no room"


def test_a_placeholder_is_never_written() -> None:
    pods = (bound("ps", 0), refused_pod("worker", 0))
    made = look(elastic_job(target=target(), state=state()), pods, rejected_nodes={("worker", "n1"): "no"})
    assert made.job is not None
    lends = core.Assignment(made.job.placement, "CPU", {"PS": (1500,)})
    assert planned(made, lends)["ns/j"].nodes == {"PS": ("n1",), "Worker": ("n1",)}


def test_room_that_nobody_moves_into_is_given_to_others() -> None:
    found, when = elastic_job(target=target(), state=state()), NOW
    before = None
    for after_s, reserved in ((0, 2000), (299, 2000), (300, 1000), (400, 1000)):
        now = when + timedelta(seconds=after_s)
        before = view_of(found, (bound("ps", 0),), nodes=NODES, now=now, before=before)
        together = before.other_usage.get("n1", Resources()).plus(before.reserved.get("n1", Resources()))
        assert together == Resources(reserved, pods=reserved // 1000), after_s
    there = view_of(found, PODS, nodes=NODES, now=when + timedelta(seconds=401), before=before)
    assert there.job is not None, "it came after all"
    assert there.job.phase == "running"


@pytest.mark.parametrize("profile", ["optimus", "fifo"])
def test_a_person_may_ask_for_fewer_where_pods_do_not_come(profile: str) -> None:
    """A quota admits one worker of three: who asks for one then gets it, though the job's room was given to others."""
    pods = (bound("ps", 0), bound("worker", 0))
    before = None
    for after_s in (0, 301):
        found = elastic_job(target=target(workers=3), state=state(workers=3))
        before = view_of(found, pods, nodes=NODES, now=NOW + timedelta(seconds=after_s), before=before)
    assert before is not None
    assert before.job is None
    asks = elastic_job(target=target(workers=3), state=state(workers=3), said={"target-workers": "1"})
    made = view_of(asks, pods, nodes=NODES, now=NOW + timedelta(seconds=302), before=before)
    plan = schedule(
        assemble([made], NODES, [], NOW.timestamp()),
        replace(build(profile, parse_profile(profile, {})), repack=False),
    )
    assert decide(plan, {"ns/j": made})["ns/j"].replicas == {"PS": 1, "Worker": 1}
    more = elastic_job(target=target(workers=3), state=state(workers=3), said={"target-workers": "4"})
    made = view_of(more, pods, nodes=NODES, now=NOW + timedelta(seconds=302), before=before)
    assert made.job is None, "more needs room, of which it has had enough"


def test_cpu_that_is_not_given_back_is_not_waited_for() -> None:
    """A resize that was refused: the pod still holds two cores, the target says one."""
    found, pods, before = (
        elastic_job(target=target(), state=state()),
        (bound("ps", 0), bound("worker", 0, cpu=2000)),
        None,
    )
    for after_s, others in ((0, 0), (59, 0), (60, 1000)):
        before = view_of(found, pods, nodes=NODES, now=NOW + timedelta(seconds=after_s), before=before)
        assert before.other_usage.get("n1", Resources()) == Resources(others), after_s
        assert before.other_usage.get("n1", Resources()).plus(before.reserved["n1"]) == Resources(3000, pods=2)
    given = view_of(found, PODS, nodes=NODES, now=NOW + timedelta(seconds=61), before=before)
    assert (given.other_usage, given.overdue_since_s) == ({}, None)


@pytest.mark.parametrize("written", [1, 500, 10**6, 10**9])
def test_absurd_cpu_counts_as_the_request(written: int) -> None:
    found = elastic_job(target=target(cpu={"Worker": [written]}), state=state())
    made = look(found, (bound("ps", 0),))
    assert made.job is not None
    assert made.reserved == {"n1": Resources(2000, pods=2)}
    assert made.job.cpu == {}
    lent = look(elastic_job(target=target(cpu={"Worker": [1500]}), state=state()), (bound("ps", 0),))
    assert lent.reserved == {"n1": Resources(2500, pods=2)}


# Who waits for whom


@pytest.mark.parametrize("waits", [None, {"generation": 0, "replicas": {}, "reason": "no room"}])
@pytest.mark.parametrize("said", [{}, {"placement": "none"}])
def test_a_job_that_no_profile_decides_for_any_more_starts(waits: Any, said: dict[str, str]) -> None:
    annotations = {PREFIX + name: text for name, text in said.items()}
    annotations[PREFIX + "state"] = json.dumps({"phase": "Waiting", "generation": 0})
    if waits is not None:
        annotations[PREFIX + "target"] = json.dumps(waits)
    left = look(job({"Worker": 2}, annotations=annotations))
    assert (left.job, left.followed) == (None, False)
    for made in (released(left, "kips"), decide_fixed(left)):
        assert made is not None
        assert (made.generation, made.replicas, made.nodes) == (0, {"Worker": 2}, {})
    running = {
        **annotations,
        PREFIX + "state": json.dumps({"phase": "Stable", "generation": 0, "replicas": {"Worker": 2}}),
    }
    running.pop(PREFIX + "target", None)
    assert released(look(job({"Worker": 2}, annotations=running)), "kips") is None


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"placement": "none"},
        {"placement": "none", "max-workers": "4", "checkpoint-dir": "/c"},
    ],
)
@pytest.mark.parametrize("has_target", [True, False])
def test_a_job_that_no_profile_decides_for_any_more_follows_edits(said: dict[str, str], has_target: bool) -> None:
    annotations = {PREFIX + name: text for name, text in said.items()}
    annotations[PREFIX + "state"] = json.dumps({"phase": "Stable", "generation": 0, "replicas": {"Worker": 2}})
    if has_target:
        seen = {"replicas": {"Worker": 2}, "declared": {"Worker": 2}}
        annotations[PREFIX + "target"] = json.dumps({"generation": 0, **seen})
    assert released(look(job({"Worker": 2}, annotations=annotations)), "kips") is None
    edited = look(job({"Worker": 3}, annotations=annotations))
    assert (edited.job, edited.followed) == (None, False)
    for made in (released(edited, "kips"), decide_fixed(edited)):
        assert made is not None
        assert (made.generation, made.replicas, made.declared) == (1, {"Worker": 3}, {"Worker": 2})


def test_a_target_that_is_too_large_goes_without_nodes() -> None:
    """Beside what its user wrote; and not another one in each round."""
    large = elastic_job(said={"note": "x" * (MAX_ANNOTATION_BYTES - 450)})
    made, _ = replanned(large, ())
    wanted = made["ns/j"]
    assert (wanted.replicas, wanted.nodes) == ({"PS": 1, "Worker": 1}, {})
    assert "no room for their names" in str(wanted.reason)
    again = elastic_job(said={"note": "x" * (MAX_ANNOTATION_BYTES - 450)}, target=json.loads(wanted.to_json()))
    assert replanned(again, ())[0] == {}
    small, _ = replanned(elastic_job(said={"note": "x"}), ())
    assert set(small["ns/j"].nodes) == {"PS", "Worker"}


def test_a_job_that_is_only_placed_follows_edits() -> None:
    placed = elastic_job(workers=3, target=target(), state=state())
    placed.annotations.pop(f"{PREFIX}checkpoint-dir")
    made, found = replanned(placed, PODS)
    assert (made["ns/j"].generation, made["ns/j"].replicas) == (1, {"PS": 1, "Worker": 3})
    assert made["ns/j"].declared == {"PS": 1, "Worker": 1}
    assert "requested size" in str(made["ns/j"].reason)
    fixed = decide_fixed(found)
    assert fixed is not None
    assert (fixed.generation, fixed.replicas) == (1, {"PS": 1, "Worker": 3})
    unedited = elastic_job(target=target(), state=state())
    unedited.annotations.pop(f"{PREFIX}checkpoint-dir")
    assert replanned(unedited, PODS)[0] == {}
    assert decide_fixed(look(unedited, PODS)) is None


@pytest.mark.parametrize("profile", ["kips", "fifo"])
def test_room_that_is_promised_to_a_job_is_no_reason_to_refuse_it_less(profile: str) -> None:
    """Its two last workers never came; it is asked to do without them, and kips lends what they leave."""
    asks = elastic_job(target=target(workers=3), state=state(workers=3), said={"target-workers": "1"})
    made = view_of(asks, PODS, nodes=NODES, now=NOW + timedelta(seconds=302))
    core_profile = replace(build(profile, parse_profile(profile, {})), repack=False)
    plan = schedule(assemble([made], NODES, [], NOW.timestamp()), core_profile)
    assert decide(plan, {"ns/j": made})["ns/j"].replicas == {"PS": 1, "Worker": 1}


def test_cpu_that_a_replica_gives_back_makes_room_for_another_of_its_job() -> None:
    """The PS holds 1500m of n1 and is to hold 1000m: so the worker that is added fits, and no one else need wait."""
    pods = (bound("ps", 0, cpu=1500), bound("worker", 0))
    found = look(elastic_job(target=target(), state=state()), pods)
    nodes = {"n1": replace(NODES["n1"], allocatable=NODES["n1"].allocatable._replace(cpu_millicores=3000))}
    grown = core.Assignment({"PS": ("n1",), "Worker": ("n1", "n1")}, "grows")
    made = assemble([found], nodes, [], NOW.timestamp())
    assert decide(core.Plan(made, {"ns/j": grown}), {"ns/j": found})["ns/j"].replicas == {"PS": 1, "Worker": 2}


def test_a_target_of_another_job_is_none() -> None:
    for uid, known in (("another", False), (UID, True), (None, True)):
        assert (look(elastic_job(target=target(uid=uid))).target is not None) == known


def test_kueues_jobs_stay_within_what_was_admitted() -> None:
    queued = replace(elastic_job(workers=2, said={"target-workers": "3"}), queue="team-a")
    found = look(queued)
    assert found.job is not None
    assert found.request is not None
    worker = found.job.spec.groups[1]
    assert (worker.minimum, worker.maximum, found.job.spec.fixed_cpu) == (1, 2, True)
    assert "Kueue admitted only 2 workers (queue team-a)" in found.request.problems[0]
    fewer = look(replace(elastic_job(workers=2, said={"target-workers": "1"}), queue="team-a"))
    assert fewer.job is not None
    assert fewer.request is not None
    assert (fewer.job.spec.groups[1].maximum, fewer.request.problems) == (1, [])
    metadata = {"labels": {"kueue.x-k8s.io/queue-name": "q"}, "namespace": "n", "name": "j", "uid": "u"}
    assert TFJob.parse({"metadata": {**metadata, "resourceVersion": "1"}}).queue == "q"


def test_a_waiting_job_is_as_old_as_its_wait() -> None:
    created = "2026-01-02T03:00:00Z"
    new = replace(elastic_job(), created=created)
    assert NOW.timestamp() - described(new).since_s == 245
    stopped = state(1, phase="Waiting", replicas={}, since="2026-01-02T03:04:00Z", step=100, steps_per_s=2.0)
    stopped["replicas"] = {}
    waits = {"generation": 1, "replicas": {}, "reason": "preempted"}
    old = job(
        {"Worker": 1}, annotations=elastic_job(target=waits, state=stopped).annotations, status={"startTime": created}
    )
    assert NOW.timestamp() - described(replace(old, created=created)).since_s == 5
    assert described(old).steps_at(NOW.timestamp() + 340) == 100, "nothing is trained meanwhile"


def test_sizes_are_bounded() -> None:
    with pytest.raises(ValueError, match="2001 replicas"):
        look(elastic_job(workers=2000))
    wide = described(elastic_job(said={"max-workers": "1000000000", "target-workers": "1000000000"}))
    assert wide.spec.groups[1].maximum <= 2000
    assert isinstance(described(elastic_job(said={"total-steps": "9" * 401})).spec.total_steps, float | None)


def test_a_job_that_is_recreated_under_its_name_begins_without_readings_of_its_loss() -> None:
    read = Growth().read(100.0, 5.0, 100.0).read(200.0, 4.0, 200.0)
    old = elastic_job(target=target(), state=state())
    before = look(old, PODS)
    assert before.job is not None
    before = replace(before, job=replace(before.job, loss=read))
    for uid, known in ((old.uid, read), ("another", Growth())):
        made = replace(old, uid=uid)
        found = look(made, tuple(replace(pod, owner=uid) for pod in PODS), before=before)
        assert found.job is not None
        assert found.job.loss == known

"""A round of any profile ends, and serves the others, whatever one job asks for."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import numpy as np
import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.cluster import ForeignPod, KubeNode
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.round import assemble
from elastic_tfjob.controller.planning.targets import decide
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job as CoreJob
from elastic_tfjob.scheduling.snapshot import Snapshot
from elastic_tfjob.scheduling.steps.open_jobs import Terms
from elastic_tfjob.scheduling.steps.sizes import EACH_OF, Increments, OnFull, OpenIncrements, fill
from elastic_tfjob.speed.model import speedup

from .build import pod, raw_node
from .scheduling.build import job as core_job
from .scheduling.build import node as core_node
from .scheduling.build import servers, snapshot, workers

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NODES = {name: KubeNode.parse(raw_node(name, cpu="8", memory="32Gi")) for name in ("n0", "n1", "n2")}


def built(profile: str) -> Profile:
    """That decides alone: without loans, and without looking for a better packing."""
    settings = {"lend": "none"} if profile == "aryl" else {}
    return replace(build(profile, parse_profile(profile, settings)), repack=False)


DECIDING = [name for name in PROFILES if name != "fixed"]

NOBODY = {"checkpoint-dir": "/c", "min-workers": "0", "max-workers": "2"}
HOSTILE: dict[str, tuple[dict[str, str], dict[str, int], dict[str, str]]] = {
    "no-workers-declared": ({"checkpoint-dir": "/c"}, {"Worker": 0}, {"cpu": "100m"}),
    "no-room-and-nobody-will-do": (NOBODY, {"Worker": 1}, {"cpu": "9"}),
    "nobody-asked-for": ({**NOBODY, "target-workers": "0"}, {"Worker": 1}, {"cpu": "1"}),
    "more-memory-than-64-bits": ({"checkpoint-dir": "/c", "max-workers": "4"}, {"Worker": 2}, {"memory": "8Ei"}),
    "more-storage-than-64-bits": ({"max-workers": "1900"}, {"Worker": 2}, {"ephemeral-storage": "8Ei"}),
    "no-worker-type": ({"checkpoint-dir": "/c", "max-ps": "3"}, {"Chief": 1, "PS": 1}, {"cpu": "1"}),
}

HEAD_OF_LINE = ("fifo", "sjf")
"""Under these the first job that does not fit holds the others back: what they are for."""
FIT_NOWHERE = ("no-room-and-nobody-will-do", "more-memory-than-64-bits", "more-storage-than-64-bits")


def job(name: str, annotations: dict[str, str], types: dict[str, int], requests: dict[str, str]) -> TFJob:
    container = {"name": "tensorflow", "image": "i", "command": ["a"], "resources": {"requests": requests}}
    template = {"spec": {"containers": [container]}}
    metadata: dict[str, Any] = {
        "namespace": "ns",
        "name": name,
        "uid": name,
        "resourceVersion": "1",
        "annotations": {f"{PREFIX}{key}": value for key, value in annotations.items()},
        "creationTimestamp": "2026-01-02T03:04:00Z",
    }
    replicas = {type_: {"replicas": count, "template": template} for type_, count in types.items()}
    return TFJob.parse({"metadata": metadata, "spec": {"tfReplicaSpecs": replicas}, "status": {}})


@pytest.mark.timeout(120)
@pytest.mark.parametrize("profile", DECIDING)
@pytest.mark.parametrize("asks", HOSTILE)
def test_the_round_ends_and_the_other_job_starts(profile: str, asks: str) -> None:
    found = {
        f"ns/{made.name}": view_of(made, (), nodes=NODES, now=NOW, all_jobs=True, reports={})
        for made in (
            job("a-hostile", *HOSTILE[asks]),
            job("good", {"checkpoint-dir": "/c", "max-workers": "3"}, {"PS": 1, "Worker": 1}, {"cpu": "1"}),
        )
    }
    plan = schedule(assemble(found.values(), NODES, [], NOW.timestamp()), built(profile))
    if profile not in HEAD_OF_LINE or asks not in FIT_NOWHERE:
        assert sum(plan.changes["ns/good"].replicas.values()) >= 2
    decide(plan, {key: each for key, each in found.items() if each.job is not None})


@pytest.mark.timeout(120)
@pytest.mark.parametrize("profile", DECIDING)
def test_a_hundred_jobs_that_ask_for_all_there_can_be_hold_up_nobody(profile: str) -> None:
    """Each asks for 2,000 replicas of 64 TiB: what they ask for together is more than 64 bits hold."""
    most = {"checkpoint-dir": "/c", "min-workers": "1999", "max-workers": "2000"}
    many = [job(f"a-{k}", most, {"Worker": 2000}, {"memory": "64Ti"}) for k in range(100)]
    good = job("good", {"checkpoint-dir": "/c", "max-workers": "3"}, {"PS": 1, "Worker": 1}, {"cpu": "1"})
    found = [view_of(made, (), nodes=NODES, now=NOW, all_jobs=True, reports={}) for made in (*many, good)]
    plan = schedule(assemble(found, NODES, [], NOW.timestamp()), built(profile))
    assert set(plan.changes) == (set() if profile in HEAD_OF_LINE else {"ns/good"})


def large_on_lost_nodes(profile: str, ps_cpus: int) -> Plan:
    """Of a job of 2,000 replicas, which may run with 2, on a cluster of one node with 32 CPUs."""
    gone = {"PS": ("gone",), "Worker": ("gone",) * 1999}
    large = core_job("large", workers(1999, 1, 1999, gpus=0, cpus=0.01), servers(1, cpus=ps_cpus), on=gone)
    return schedule(snapshot([core_node("n", cpus=32)], [large], now=1000.0), built(profile))


@pytest.mark.parametrize("profile", DECIDING)
@pytest.mark.parametrize("ps_cpus", [40, 30], ids=["nowhere", "with-fewer-workers"])
def test_a_large_job_on_lost_nodes_costs_a_round_few_actions(
    profile: str, ps_cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may write that it runs there; each of its 1,999 sizes was tried anew in each round."""
    acted: list[str] = []
    monkeypatch.setattr(Round, "act", lambda _, on: acted.append(on.key))
    large_on_lost_nodes(profile, ps_cpus)
    assert len(acted) <= 2 * (EACH_OF + 2 + (2000).bit_length())


def test_a_large_job_on_lost_nodes_goes_on_with_what_there_is_room_for() -> None:
    assert large_on_lost_nodes("fifo", 30).targets["large"].replicas == {"PS": 1, "Worker": 200}


def test_a_node_that_has_too_little_is_relieved_by_one_change_of_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not by one for each of the 1,488 replicas that leave it."""
    acted: list[str] = []
    monkeypatch.setattr(Round, "act", lambda _, on: acted.append(on.key))
    there = {"PS": ("n",), "Worker": ("n",) * 1999}
    large = core_job("large", workers(1999, 1, 1999, gpus=0, cpus=0.01), servers(1), on=there, steps=1e6)
    nodes = [core_node("n", cpus=64, free=Resources(6120)), core_node("m", cpus=64)]
    plan = schedule(snapshot(nodes, [large], now=1000.0), built("kips"))
    assert plan.targets["large"].replicas == {"PS": 1, "Worker": 512}
    assert len(acted) <= 3


def test_a_large_job_gives_what_it_can_spare_in_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 1,998 replicas are taken from it in vain, since what else is on its node stays there."""
    acted: list[str] = []
    monkeypatch.setattr(Round, "act", lambda _, on: acted.append(on.key))
    donor = core_job("donor", workers(1, 1, 1999, gpus=0, cpus=0.02), on={"Worker": ("n",) * 1999}, steps=1e6)
    stays = core_job("stays", workers(1, gpus=0, cpus=2), on={"Worker": ("n",)})
    waits = core_job("waits", workers(1, gpus=0, cpus=63))
    nodes = [core_node("n", cpus=64), core_node("m", cpus=10)]
    plan = schedule(snapshot(nodes, [donor, stays, waits], now=1000.0), built("kips"))
    assert "waits" not in plan.changes
    assert acted.count("donor") <= 500


def test_no_job_is_preempted_for_a_replica_that_fits_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[str] = []
    monkeypatch.setattr(Round, "act", lambda _, on: acted.append(on.key))
    donor = core_job("donor", workers(1, 1, 9, gpus=0, cpus=1), on={"Worker": ("n",) * 9}, steps=1e6)
    waits = core_job("waits", workers(1, gpus=0, cpus=12))
    nodes = [core_node("n", cpus=10), core_node("m", cpus=10)]
    schedule(snapshot(nodes, [donor, waits], now=1000.0), build("kips", parse_profile("kips", {})))
    assert acted.count("donor") <= 1, "it is lent CPU at most"


@pytest.mark.parametrize("on_full", get_args(OnFull))
@pytest.mark.parametrize("step", [2**46, 2**57, 2**61, 2**62, 2**63 - 1])
@pytest.mark.parametrize("free", [5, 2**62, 2**63 - 1])
def test_steps_of_any_size_wrap_no_sum(step: int, free: int, on_full: OnFull) -> None:
    """In order of their keys: an honest job, ninety-nine that ask for `step` bytes, and an honest one."""
    asks = [1, *[step] * 99, 1]
    jobs = [core_job(f"j{k:03}", workers(1)) for k in range(len(asks))]

    def sizes_of(of: CoreJob, total: Resources) -> Increments:
        return Increments(
            [of.spec.minimum], np.zeros(1), np.array([(0, asks[int(of.key[1:])], 0, 0, 0)], dtype=np.int64)
        )

    increments = OpenIncrements(Fifo(), Terms(0.0), sizes_of, Resources(memory_bytes=free))
    increments.fill(Snapshot(0.0, {}, {each.key: each for each in jobs}))
    got = fill(increments, increments.keys, Resources(memory_bytes=free), on_full)
    assert sum(ask for ask, granted in zip(asks, got, strict=True) if granted) <= free
    assert got[0] == 1
    assert got[-1] == (on_full == "next" or sum(asks) <= free)


def test_a_type_that_would_get_no_cpu_tells_no_speed() -> None:
    assert speedup({"Worker": 0.9}, {"Worker": 0.0}) == 1


# Pods of others that no node holds


def running(name: str, node: str) -> JobView:
    """A job of one PS and four workers of a CPU each, all on that node."""
    size = {"PS": 1, "Worker": 4}
    nodes = {type_: [node] * count for type_, count in size.items()}
    target = {"generation": 0, "replicas": size, "declared": size, "nodes": nodes, "reason": "r"}
    state = {"phase": "Stable", "generation": 0, "replicas": size, "nodes": nodes, "since": "2026-01-02T03:04:00Z"}
    said = {"checkpoint-dir": "/c", "min-workers": "1", "max-workers": "6", "inject": "none"}
    made = job(name, {**said, "target": json.dumps(target), "state": json.dumps(state)}, size, {"cpu": "1"})
    container = {"name": "tensorflow", "resources": {"requests": {"cpu": "1"}}}
    pods = [
        pod(type_, index, owner=name, spec={"nodeName": node, "containers": [container]})
        for type_, count in size.items()
        for index in range(count)
    ]
    return view_of(made, pods, nodes=NODES, now=NOW, reports={})


def refused_pod(node: str, cpu: str) -> ForeignPod:
    """Whose author has chosen its node: bound at once, whatever the node has."""
    metadata = {"namespace": "evil", "name": node, "uid": node, "resourceVersion": "9"}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    spec = {"nodeName": node, "containers": [container]}
    return ForeignPod.parse({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})


@pytest.mark.parametrize("profile", DECIDING)
def test_a_pod_that_no_node_holds_takes_nothing_from_those_that_run(profile: str) -> None:
    found = {f"ns/{name}": running(name, node) for name, node in zip("ab", NODES, strict=False)}
    assert all(each.job is not None and each.job.phase == "running" for each in found.values())
    workers_of: list[dict[str, int]] = []
    for cpu in ("0", "1000"):
        foreign = [refused_pod(node, cpu) for node in NODES]
        targets = decide(schedule(assemble(found.values(), NODES, foreign, NOW.timestamp()), built(profile)), found)
        workers_of.append({key: targets[key].replicas.get("Worker", 0) if key in targets else 4 for key in found})
    without, beside = workers_of
    assert all(beside[key] >= min(without[key], 4) for key in found)


def test_a_resize_that_exceeds_the_node_does_not_count() -> None:
    """It ran with little, and was told to grow (`pods/resize`) beyond its node."""
    metadata = {"namespace": "evil", "name": "p", "uid": "p", "resourceVersion": "9"}
    asks = {name: {"name": name, "resources": {"requests": {"cpu": "1000"}}} for name in ("a", "b", "side")}
    spec = {"nodeName": "n0", "containers": [asks["a"], asks["b"]]}
    spec["initContainers"] = [{**asks["side"], "restartPolicy": "Always"}]
    has = {"resources": {"requests": {"cpu": "100m"}}}
    status: dict[str, Any] = {
        "phase": "Running",
        "containerStatuses": [{"name": "a", **has}, {"name": "b"}],
        "initContainerStatuses": [{"name": "side", **has}],
    }
    for reason, millicores in (("Infeasible", 1_000_200), ("Deferred", 3_000_000), (None, 3_000_000)):
        conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
        raw = {"metadata": metadata, "spec": spec, "status": {**status, "conditions": conditions}}
        assert ForeignPod.parse(raw).requests.cpu_millicores == millicores


def test_free_capacity_of_a_node_is_at_least_what_our_pods_request() -> None:
    """All that others do not take; and no less than what its jobs' pods request there."""
    found = running("a", "n0")
    for cpu, left in (("1", 3000), ("4", 0), ("1000", 0)):
        node = assemble([], NODES, [refused_pod("n0", cpu)], NOW.timestamp()).nodes["n0"]
        assert node.free.cpu_millicores == max(left, NODES["n0"].allocatable.cpu_millicores - int(cpu) * 1000)
        node = assemble([found], NODES, [refused_pod("n0", cpu)], NOW.timestamp()).nodes["n0"]
        assert node.free.cpu_millicores == max(5000, NODES["n0"].allocatable.cpu_millicores - int(cpu) * 1000)

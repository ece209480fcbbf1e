"""Jobs that grow within a real Kueue's quota (`make test-kueue`): to the quota and no further, preempted replica by
replica, and without quota that is left behind."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import kueue
from harness.api import Api, Object, events, pods, tfjobs
from harness.controlplane import ControlPlane
from harness.operators import Operator, install, service_account

from .fake_nodes import HOME, NAME, PREFIX, configure, target_of
from .running import running
from .test_kueue import apply, cluster, event_is, job_is, queued, suspended
from .test_loans import component
from .workload import JOB

WORKLOADS = f"{kueue.API}/namespaces/default/workloads"
GROWTH = f"{PREFIX}growth-of"
_WITHIN_S = 60.0

pytestmark = [pytest.mark.kueue, pytest.mark.timeout(600)]


@dataclass
class Ledger:
    """All changes of pods and Workloads, by resource version, which orders them across resources."""

    changes: dict[int, tuple[str, str, Object]] = field(default_factory=dict)
    now: dict[str, Object] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def follow(self, api: Api, path: str) -> None:
        async for kind, found in api.follow(path):
            what = "Workload" if path == WORKLOADS else "Pod"
            async with self.changed:
                self.changes[int(found["metadata"]["resourceVersion"])] = (kind, what, found)
                if kind == "DELETED":
                    self.now.pop(found["metadata"]["uid"], None)
                else:
                    self.now[found["metadata"]["uid"]] = {**found, "kind": what}
                self.changed.notify_all()

    def growth(self, job: str) -> list[Object]:
        return [w for w in self.now.values() if w["kind"] == "Workload" and _growth_of(w) == job]

    def pods(self, job: str) -> list[Object]:
        return [p for p in self.now.values() if p["kind"] == "Pod" and _job_of(p) == job]

    async def until(self, what: Callable[[], Any], why: str, within_s: float = _WITHIN_S) -> None:
        try:
            async with asyncio.timeout(within_s), self.changed:
                await self.changed.wait_for(what)
        except TimeoutError:
            shown = [(w["metadata"]["name"], conditions(w)) for w in self.now.values() if w["kind"] == "Workload"]
            there = [(p["metadata"]["name"], p["status"].get("phase")) for p in self.now.values() if p["kind"] == "Pod"]
            raise AssertionError(f"{why}: {shown}; {there}") from None

    async def runs(self, job: str, replicas: int, within_s: float = _WITHIN_S) -> None:
        """The job has so many pods, and all run."""

        def runs() -> bool:
            found = self.pods(job)
            return len(found) == replicas and all(pod["status"].get("phase") == "Running" for pod in found)

        await self.until(runs, f"{job} has not {replicas} pods", within_s)

    def never_beyond_quota(self) -> None:
        """At no change had a job more pods than replicas with quota. Kueue frees the quota of a deleted job at once,
        while its pods still end."""
        there: dict[str, tuple[str, Object]] = {}
        for version in sorted(self.changes):
            kind, what, found = self.changes[version]
            if kind == "DELETED":
                there.pop(found["metadata"]["uid"], None)
            else:
                there[found["metadata"]["uid"]] = what, found
            quota: Counter[str] = Counter()
            held: Counter[str] = Counter()
            exist = {_base_of(each) for of, each in there.values() if of == "Workload"}
            for of, each in there.values():
                if of == "Workload":
                    quota[_growth_of(each) or _base_of(each)] += _admitted(each)
                elif each["status"].get("phase") not in ("Succeeded", "Failed"):
                    held[_job_of(each)] += 1
            for job, n in held.items():
                if job not in exist:
                    continue
                assert n <= quota[job], f"{job} has {n} pods and quota for {quota[job]} at version {version}"


def conditions(found: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", ())}


def _job_of(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(JOB, ""))


def _growth_of(workload: Object) -> str:
    return str((workload["metadata"].get("labels") or {}).get(GROWTH, ""))


def _base_of(workload: Object) -> str:
    return next((o["name"] for o in workload["metadata"].get("ownerReferences") or () if o["kind"] == "TFJob"), "")


def _admitted(workload: Object) -> int:
    status = workload.get("status", {})
    if not status.get("admission"):
        return 0
    returned = sum(int(each["count"]) for each in status.get("reclaimablePods") or ())
    return sum(int(each["count"]) for each in workload["spec"]["podSets"]) - returned


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with _plane(tmp_path_factory.mktemp("kueue-growth")) as started:
        yield started


@contextlib.contextmanager
def _plane(folder: Path, **configuration: Any) -> Iterator[ControlPlane]:
    with ControlPlane(folder / "plane", scheduler=True, controller_manager=True) as started:
        install("ours", started.kubeconfig)
        service_account("ours", started.kubeconfig)
        with kueue.running(started, folder / "kueue", **configuration):
            yield started


@contextlib.asynccontextmanager
async def operator(plane: ControlPlane, folder: Path) -> AsyncIterator[Operator]:
    identity = await asyncio.to_thread(service_account, "ours", plane.kubeconfig)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    arguments = [f"--config-map={HOME}/{NAME}", "--image=operator"]
    async with running("ours", plane.kubeconfig, folder, arguments=arguments, identity=identity) as started:
        yield started


@contextlib.asynccontextmanager
async def growing(
    plane: ControlPlane, folder: Path, *queues: list[Object], nodes: int = 4, rights: bool = True, **settings: Any
) -> AsyncIterator[tuple[Api, Ledger]]:
    """A cluster of nodes with four cores, on which a profile gives each job all that there is; growth is turned on."""
    async with cluster(plane, folder, nodes, *queues) as api:
        if rights:
            await apply(plane, *yaml.safe_load_all(component("role.yaml", of="kueue-growth")))
        await configure(api, profile="drf", kueue={"growth": "workloads", **settings})
        ledger = Ledger()
        tasks = [asyncio.create_task(ledger.follow(api, path)) for path in (WORKLOADS, pods("default"))]
        try:
            yield api, ledger
            for task in tasks:
                assert not task.done(), task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def used(api: Api, queue: str) -> str:
    """The CPU that is reserved in a ClusterQueue."""
    found = await api.get(f"{kueue.API}/clusterqueues/{queue}")
    reserved = found["status"].get("flavorsReservation") or [{"resources": [{"name": "cpu", "total": "0"}]}]
    return str(next(each["total"] for each in reserved[0]["resources"] if each["name"] == "cpu"))


async def used_is(api: Api, queue: str, cpu: str) -> None:
    async with asyncio.timeout(_WITHIN_S):
        while (found := await used(api, queue)) != cpu:
            await asyncio.sleep(0.3)
    assert found == cpu


async def said(api: Api, name: str) -> list[str]:
    """The reasons of a job's events."""
    found, _ = await api.items(events("default"))
    return [each["reason"] for each in found if each["involvedObject"]["name"] == name]


def growth_told(found: Object) -> Object:
    """What the operator tells of a job's growth."""
    return dict(json.loads((found["metadata"].get("annotations") or {}).get(f"{PREFIX}growth", "{}")))


def workers(found: Object) -> int:
    target = target_of(found)
    return target["replicas"].get("Worker", 0) if target else 0


async def test_a_job_grows_to_the_quota_and_a_second_one_takes_back_exactly_what_it_needs(
    plane: ControlPlane, tmp_path: Path
) -> None:
    quota = kueue.queue("grow-a", "default", cpu="6", memory="8Gi")
    async with growing(plane, tmp_path, quota) as (api, ledger), operator(plane, tmp_path):
        await api.create(tfjobs("default"), queued("first", "grow-a", PS=1, Worker=2))
        await ledger.runs("first", 6)
        assert len(ledger.growth("first")) == 3
        assert "GrowthAdmitted" in await said(api, "first")
        # It would have a sixth worker, for which there is room, but no quota.
        waits = await event_is(api, "first", "GrowthWaits")
        assert waits.endswith("(queue grow-a): its queue has no free quota")
        await asyncio.sleep(5)
        assert len(ledger.pods("first")) == 6
        first = await job_is(api, "first", lambda found: "reason" in growth_told(found))
        assert growth_told(first) == {
            "admitted": {"PS": 1, "Worker": 5},
            "uid": first["metadata"]["uid"],
            "reason": {"code": "quota", "facts": {"because": "no-quota", "more": {"Worker": 1}, "queue": "grow-a"}},
        }
        await ledger.until(
            lambda: all(conditions(w).get("PodsReady") == "True" for w in ledger.growth("first")), "ready"
        )
        _, since = await api.items(tfjobs("default"))
        await api.create(tfjobs("default"), queued("second", "grow-a", Worker=2))
        await ledger.runs("second", 2)
        await ledger.runs("first", 4)
        assert len(ledger.growth("first")) == 1
        assert "GrowthEvicted" in await said(api, "first")
        shrunk = await job_is(api, "first", lambda found: workers(found) == 3, since=since)
        assert not suspended(shrunk)
        await used_is(api, "grow-a", "6")
        ledger.never_beyond_quota()


async def test_an_operator_that_is_killed_while_growth_is_evicted_leaves_no_quota_behind(
    plane: ControlPlane, tmp_path: Path
) -> None:
    quota = kueue.queue("grow-b", "default", cpu="6", memory="8Gi")
    async with growing(plane, tmp_path, quota) as (api, ledger):
        async with operator(plane, tmp_path / "first") as killed:
            await api.create(tfjobs("default"), queued("first", "grow-b", PS=1, Worker=2))
            await ledger.runs("first", 6)
            await api.create(tfjobs("default"), queued("second", "grow-b", Worker=2))
            await ledger.until(
                lambda: any(conditions(w).get("Evicted") == "True" for w in ledger.growth("first")), "evicted"
            )
            await asyncio.to_thread(killed.kill)
        evicted = [w for w in ledger.growth("first") if conditions(w).get("Evicted") == "True"]
        async with operator(plane, tmp_path / "second"):
            await ledger.runs("second", 2)
            await ledger.runs("first", 4)
            kept = {w["metadata"]["uid"] for w in ledger.growth("first")}
            assert kept.isdisjoint(w["metadata"]["uid"] for w in evicted), "an evicted one is left"
            await used_is(api, "grow-b", "6")
        ledger.never_beyond_quota()


async def test_growth_that_is_turned_off_while_no_operator_runs_is_returned(
    plane: ControlPlane, tmp_path: Path
) -> None:
    quota = kueue.queue("grow-off", "default", cpu="6", memory="8Gi")
    async with growing(plane, tmp_path, quota) as (api, ledger):
        async with operator(plane, tmp_path / "first"):
            await api.create(tfjobs("default"), queued("first", "grow-off", PS=1, Worker=2))
            await ledger.runs("first", 6)
            await job_is(api, "first", lambda found: "admitted" in growth_told(found))
        await configure(api, profile="drf")
        async with operator(plane, tmp_path / "second"):
            await ledger.runs("first", 3)
            await used_is(api, "grow-off", "3")
            await job_is(api, "first", lambda found: not growth_told(found))
        ledger.never_beyond_quota()


@pytest.mark.parametrize("how", ["deleted", "finished", "suspended", "edited"])
async def test_a_job_that_ends_or_changes_leaves_no_quota_behind(plane: ControlPlane, tmp_path: Path, how: str) -> None:
    name = f"grow-c-{how}"
    quota = kueue.queue(name, "default", cpu="5", memory="8Gi")
    async with growing(plane, tmp_path, quota) as (api, ledger), operator(plane, tmp_path):
        where = f"{tfjobs('default')}/first"
        await api.create(tfjobs("default"), queued("first", name, PS=1, Worker=2))
        await ledger.runs("first", 5)
        if how == "deleted":
            await api.delete(where)
        elif how == "finished":
            for pod in ledger.pods("first"):
                done = {"phase": "Succeeded", "containerStatuses": [_ended(0)]}
                await api.merge(f"{pods('default')}/{pod['metadata']['name']}/status", {"status": done})
        elif how == "suspended":
            base = next(w for w in ledger.now.values() if w["kind"] == "Workload" and _base_of(w) == "first")
            await api.merge(f"{WORKLOADS}/{base['metadata']['name']}", {"spec": {"active": False}})
        else:
            await api.merge(where, {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}})
            await ledger.runs("first", 5)  # 4 declared, and 1 of growth
        growth = 1 if how == "edited" else 0
        await ledger.until(lambda: len(ledger.growth("first")) == growth, f"growth of a job that was {how}")
        await used_is(api, name, "5" if how == "edited" else "0")


def _ended(code: int) -> Object:
    state = {"terminated": {"exitCode": code}}
    return {"name": "tensorflow", "image": "fake", "imageID": "", "ready": False, "restartCount": 0, "state": state}


async def test_growth_borrows_from_a_cohort_and_gives_back_what_its_owner_needs(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Growth in one queue uses the quota of the other until a job there needs it."""
    more = {"cohortName": "both", "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}}
    mine = kueue.queue("grow-d", "default", flavor_name="shared", more=more, cpu="4", memory="8Gi")
    theirs = kueue.queue("grow-e", "default", flavor_name="shared", more=more, cpu="3", memory="8Gi")
    async with growing(plane, tmp_path, mine, theirs) as (api, ledger), operator(plane, tmp_path):
        await api.create(tfjobs("default"), queued("first", "grow-d", PS=1, Worker=2))
        await ledger.runs("first", 7)
        await used_is(api, "grow-d", "7")
        await api.create(tfjobs("default"), queued("owner", "grow-e", said={"max-workers": "2"}, Worker=2))
        await ledger.runs("owner", 2)
        await ledger.runs("first", 5)
        await used_is(api, "grow-e", "2")
        await api.delete(f"{tfjobs('default')}/first")
        await used_is(api, "grow-d", "0")
        ledger.never_beyond_quota()


async def test_growth_evicts_no_job_that_borrows(plane: ControlPlane, tmp_path: Path) -> None:
    """Its own quota is free, but another queue borrows it: Kueue would evict that job for it."""
    more = {"cohortName": "lends", "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}}
    mine = kueue.queue("grow-f", "default", flavor_name="lent", more=more, cpu="4", memory="8Gi")
    theirs = kueue.queue("grow-g", "default", flavor_name="lent", more=more, cpu="1", memory="8Gi")
    async with growing(plane, tmp_path, mine, theirs) as (api, ledger), operator(plane, tmp_path):
        await api.create(tfjobs("default"), queued("guest", "grow-g", said={"max-workers": "3"}, Worker=3))
        await ledger.runs("guest", 3)
        await api.create(tfjobs("default"), queued("first", "grow-f", Worker=2))
        await ledger.runs("first", 2)
        assert "no free quota" in await event_is(api, "first", "GrowthWaits")
        await asyncio.sleep(5)
        await ledger.runs("guest", 3)
        assert ledger.growth("first") == []
        ledger.never_beyond_quota()


async def test_quota_of_a_small_job_lets_a_waiting_one_in(plane: ControlPlane, tmp_path: Path) -> None:
    quota = kueue.queue("grow-h", "default", cpu="5", memory="8Gi")
    async with (
        growing(plane, tmp_path, quota, reclaim_after_s=8) as (api, ledger),
        operator(plane, tmp_path),
    ):
        await api.create(tfjobs("default"), queued("small", "grow-h", said={"target-workers": "1"}, PS=1, Worker=4))
        await ledger.runs("small", 2)
        await api.create(tfjobs("default"), queued("waits", "grow-h", Worker=3))
        await ledger.runs("waits", 3)
        assert "QuotaReturned" in await said(api, "small")
        await used_is(api, "grow-h", "5")
        # Its own quota is gone until it is admitted anew: it grows by Workloads only.
        await api.merge(f"{tfjobs('default')}/small", {"metadata": {"annotations": {f"{PREFIX}target-workers": "3"}}})
        assert "no free quota" in await event_is(api, "small", "GrowthWaits")
        await api.delete(f"{tfjobs('default')}/waits")
        await ledger.runs("small", 4)
        assert len(ledger.growth("small")) == 2
        ledger.never_beyond_quota()


async def test_without_the_rights_jobs_keep_their_declared_size_and_are_told(
    plane: ControlPlane, tmp_path: Path
) -> None:
    quota = kueue.queue("grow-i", "default", cpu="5", memory="8Gi")
    role = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/elastic-tfjob-operator-kueue-growth"
    async with growing(plane, tmp_path, quota, rights=False) as (api, ledger):
        with contextlib.suppress(Exception):  # no test before this one has given them
            await api.delete(role)
        async with operator(plane, tmp_path):
            await api.create(tfjobs("default"), queued("first", "grow-i", PS=1, Worker=2))
            await ledger.runs("first", 3)
            told = await event_is(api, "first", "GrowthRefused")
            assert "workloads.kueue.x-k8s.io is forbidden" in told
            assert "manifests/components/kueue-growth" in told
            await asyncio.sleep(3)
            assert len(ledger.pods("first")) == 3


async def test_wait_for_pods_ready_evicts_no_growth_that_runs(tmp_path: Path) -> None:
    """Kueue evicts what is not ready in 10 s, and admits nothing else until it is."""
    requeuing = {"backoffBaseSeconds": 1, "backoffMaxSeconds": 1}  # on a busy machine declared pods may take 10 s
    ready = {"waitForPodsReady": {"timeout": "10s", "blockAdmission": True, "requeuingStrategy": requeuing}}
    with _plane(tmp_path / "kueue", **ready) as plane:
        quota = kueue.queue("grow-j", "default", cpu="5", memory="8Gi")
        async with growing(plane, tmp_path, quota) as (api, ledger), operator(plane, tmp_path):
            await api.create(tfjobs("default"), queued("first", "grow-j", PS=1, Worker=2))
            await ledger.runs("first", 5)
            await ledger.until(
                lambda: all(conditions(w).get("PodsReady") == "True" for w in ledger.growth("first")), "ready"
            )
            await asyncio.sleep(12)
            assert len(ledger.pods("first")) == 5
            assert "GrowthEvicted" not in await said(api, "first")
            await api.create(tfjobs("default"), queued("second", "grow-j", Worker=1))
            await ledger.runs("second", 1)
            await ledger.runs("first", 4)
            ledger.never_beyond_quota()

"""The scheduling loop with an API server of our own: whatever is wrong with one job, the others get their targets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube import supervise
from elastic_tfjob.controller.kube.errors import Invalid, Unavailable
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.settings import Configuration, parse_configuration
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning import round as round_
from elastic_tfjob.controller.planning import targets
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.controller.planning.round import describe_all
from elastic_tfjob.controller.schedule import fallback_planning, job_entry, loop, profile_reload, writers
from elastic_tfjob.controller.schedule.fallback_planning import SearchBudget, Searched, bisect_failing_jobs
from elastic_tfjob.controller.schedule.job_entry import JobEntry
from elastic_tfjob.controller.schedule.loop import Scheduler
from elastic_tfjob.controller.schedule.writers import AnnotationWriter, TargetWriter
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import build
from elastic_tfjob.scheduling.round import Round

from .build import raw_node


@pytest.fixture(autouse=True)
def logs() -> Iterator[Any]:
    """What is logged as data: drawing a traceback with all that the loop holds takes longer than the tests."""
    with capture_logs() as entries:
        yield entries


PREFIX = "elastic.kubeflow.org/"
Object = dict[str, Any]


def large_node() -> Object:
    return raw_node("n1", cpu="64", memory="64Gi")


def tfjob(name: str, namespace: str = "ns", **annotations: Any) -> Object:
    """A job of one worker of one core that is placed."""
    asks = {"containers": [{"name": "tensorflow", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}
    said = {"placement": "auto", **annotations}
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"{name}-uid",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "annotations": {
                PREFIX + key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
                for key, value in said.items()
            },
        },
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": {"spec": asks}}}},
    }


class Server:
    """What of the API the loop uses: lists of nodes and pods, watches in which nothing happens, patches of jobs."""

    def __init__(self, jobs: list[Object]) -> None:
        self.jobs = {job["metadata"]["name"]: job for job in jobs}
        self.targets: dict[str, Target] = {}
        self.node = large_node()

    async def get(self, path: str, **_: Any) -> Object:
        return {"items": [self.node] if path.endswith("nodes") else [], "metadata": {"resourceVersion": "1"}}

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Object]:
        await asyncio.Event().wait()
        yield {}

    async def patch(self, path: str, body: Object) -> Object:
        job = self.jobs[path.rpartition("/")[2]]
        metadata = job["metadata"]
        metadata["annotations"] |= body["metadata"]["annotations"]
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        written = Target.parse(metadata["annotations"][TARGET_ANNOTATION])
        assert written is not None
        self.targets[metadata["name"]] = written
        return job


class World:
    """The loop, what it reads and what it says."""

    def __init__(self, jobs: list[Object], profile: str = "kips", configuration: Configuration | None = None) -> None:
        self.server = Server(jobs)
        self.events: list[tuple[str, Event]] = []
        self.failing: list[str | None] = []
        api: Any = self.server
        self.jobs: Informer[TFJob] = Informer(api, "/jobs", TFJob.parse, lambda _: None, touched=self._touched)
        self.pods: Informer[Pod] = Informer(api, "/pods", Pod.parse, lambda _: None, touched=self._touched)
        reports: Any = self
        recorder: Any = self
        self.configuration = Configuration(profile=profile) if configuration is None else configuration
        self.scheduler = Scheduler(
            api,
            self.jobs,
            self.pods,
            reports=reports,
            recorder=recorder,
            configuration=lambda: self.configuration,
            profile_failing=self.failing.append,
        )
        for job in jobs:
            self.jobs.written(job)

    def _touched(self, key: Key) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.touched(key)

    def renewed(self) -> set[Key]:
        return set()

    def of_job(self, _: Key) -> dict[str, Any]:
        return {}

    def record(self, job: TFJob, event: Event) -> None:
        self.events.append((job.name, event))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.scheduler.run(lambda: True))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def until(self, holds: Callable[[], bool], within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.02)

    @property
    def left_out(self) -> set[str]:
        return {name for name, event in self.events if (event.type, event.reason) == ("Warning", "NotScheduled")}


GOOD = {f"good-{k}" for k in range(6)}


def crowd(**bad: Any) -> list[Object]:
    return [*(tfjob(name) for name in sorted(GOOD)), tfjob("bad", **bad)]


def break_for_bad(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, is_bad: Callable[..., bool]) -> None:
    works = getattr(where, name)

    def breaks(*args: Any, **named: Any) -> Any:
        if is_bad(*args, **named):
            raise RuntimeError("a bug")
        return works(*args, **named)

    monkeypatch.setattr(where, name, breaks)


STAGES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "describing": (round_, "view_of", lambda job, *_, **__: job is not None and job.name == "bad"),
    "refusals": (TargetWriter, "note_refusal", lambda _, entry, __: entry.key[1] == "bad"),
    "core": (round_, "schedule", lambda snapshot, _: "ns/bad" in snapshot.jobs),
    "needs": (targets, "_needed", lambda found, _: found.source.name == "bad"),
    "words": (targets, "_holds", lambda found, *_: found.source.name == "bad"),
    "timing": (TargetWriter, "_may_write", lambda _, entry, *__: entry.key[1] == "bad"),
    "storing": (AnnotationWriter, "_store", lambda _, write: write.job.name == "bad"),
}


@pytest.mark.parametrize("stage", STAGES)
async def test_a_job_that_fails_is_left_out_and_the_others_get_their_targets(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_for_bad(monkeypatch, *STAGES[stage])
    world = World(crowd())
    async with world.running():
        await world.until(lambda: set(world.server.targets) >= GOOD)
        await world.until(lambda: bool(world.left_out))
    assert all(world.server.targets[name].replicas == {"Worker": 1} for name in GOOD)
    assert world.left_out == {"bad"}
    assert "bad" not in world.server.targets


async def test_a_taint_drains_nodes_as_soon_as_the_configuration_names_it() -> None:
    job = tfjob("one")
    asks = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    asks["tolerations"] = [{"key": "a.b/c", "operator": "Exists"}]  # else the taint alone would keep it away
    world = World([job], configuration=parse_configuration("{profile: kips, autoscaling: {draining: {a.b/c: null}}}"))
    world.server.node["spec"]["taints"] = [{"key": "a.b/c", "effect": "NoSchedule"}]
    async with world.running():
        await world.until(lambda: "one" in world.server.targets)
        assert world.server.targets["one"].replicas == {}
        world.configuration = parse_configuration("profile: kips")
        world.scheduler.configured()
        await world.until(lambda: world.server.targets["one"].replicas == {"Worker": 1})


async def test_the_expected_speed_of_a_plan_is_written_with_the_target() -> None:
    world = World([tfjob("good", total_steps="6000", estimated_duration="10m")])
    async with world.running():
        await world.until(lambda: "good" in world.server.targets and bool(world.server.targets["good"].replicas))
    text = world.server.jobs["good"]["metadata"]["annotations"][TARGET_ANNOTATION]
    assert json.loads(text)["expects"] == 10.0
    assert str(world.server.targets["good"].reason).endswith(" (expects 10 steps/s, estimated)")


@pytest.mark.parametrize("profile", ["kips", "fixed", "fifo", "specon"])
@pytest.mark.parametrize(
    "bad",
    [
        {"state": {"phase": "Waiting", "generation": 0, "refused": {"generation": "x", "reason": 5, "at": "x"}}},
        {"state": {"phase": "Stable", "generation": 0, "replicas": {"Worker": 1}, "total_steps": "many", "step": "x"}},
        {"target": {"generation": 0, "replicas": {"Worker": 1}, "reason": 5, "nodes": {"Worker": ["n1"]}}},
        {"target": {"generation": 0, "replicas": {"Worker": 10**10}}},
        {"target": {"generation": 1e308, "replicas": {"": 1}}},
    ],
    ids=["refused", "numbers", "reason", "replicas", "generation"],
)
async def test_invalid_annotations_of_one_job_do_not_stop_the_others(bad: Object, profile: str) -> None:
    """With what waits under `fixed`, since that profile decides nothing else."""
    jobs = crowd(**bad)
    for job in jobs[:-1]:
        waits = {"generation": 0, "replicas": {}, "reason": "no room"}
        job["metadata"]["annotations"][TARGET_ANNOTATION] = json.dumps(waits)
    world = World(jobs, profile)
    async with world.running():
        await world.until(lambda: set(world.server.targets) >= GOOD)
    assert all(world.server.targets[name].replicas == {"Worker": 1} for name in GOOD)


async def test_a_write_that_hangs_holds_up_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook that does not answer for one job: others get their targets in later rounds, that job is written once
    at a time and looked at again after it, and nothing is left when the loop ends."""
    world = World([tfjob("slow"), tfjob("good-0")])
    answer, works, asked = asyncio.Event(), world.server.patch, []

    async def patch(path: str, body: Object) -> Object:
        asked.append(path.rpartition("/")[2])
        if asked[-1] == "slow" and not answer.is_set():
            await answer.wait()
            raise Unavailable(f"PATCH {path}", 504, "Timeout", "a webhook")
        return await works(path, body)

    monkeypatch.setattr(world.server, "patch", patch)
    async with world.running():
        for name in ("good-1", "good-2"):
            await world.until(lambda: "good-0" in world.server.targets and "slow" in asked)
            late = tfjob(name)
            world.server.jobs[name] = late
            world.jobs.written(late)
            await world.until(lambda name=name: name in world.server.targets)  # type: ignore[misc]
        assert asked.count("slow") == 1
        answer.set()
        await world.until(lambda: "slow" in world.server.targets)
        answer.clear()
        stuck = tfjob("slow")
        stuck["metadata"] |= {"name": "slow", "uid": "another", "resourceVersion": "99"}
        world.server.jobs["slow"] = stuck
        world.jobs.written(stuck)
        written = asked.count("slow")
        await world.until(lambda: asked.count("slow") > written)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("target-")]
    assert not len(world.scheduler._writer._writer)


@pytest.mark.parametrize("which", ["_nodes", "_foreign"])
async def test_a_watch_of_the_cluster_that_ends_is_begun_anew(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """Cancelled by something that it waited for: the loop would plan with the nodes of that moment for ever."""
    monkeypatch.setattr(supervise, "_BACKOFF_S", 0.01)
    world = World([tfjob("good")])
    informer = getattr(world.scheduler, which)
    run, breaks = informer.run, asyncio.Event()
    begun: list[None] = []

    async def cancelled_once() -> None:
        begun.append(None)
        if len(begun) > 1:
            await run()
        informer.synced.set()
        await breaks.wait()
        raise asyncio.CancelledError

    monkeypatch.setattr(informer, "run", cancelled_once)
    task = asyncio.create_task(supervise.Supervisor().keep("scheduler", lambda: world.scheduler.run(lambda: True)))
    await world.until(lambda: len(begun) == 1)
    breaks.set()
    await world.until(lambda: len(begun) == 2 and "good" in world.server.targets)
    task.cancel()
    await asyncio.wait([task])


async def test_a_write_that_is_cancelled_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By something that it waited for; the job is left out for a while, as with any error."""
    monkeypatch.setattr(job_entry, "_FIRST_DELAY_S", 0.5)
    world = World([tfjob("bad")])
    patch, asked = world.server.patch, []

    async def cancelled_once(path: str, body: Object) -> Object:
        asked.append(path)
        if len(asked) == 1:
            raise asyncio.CancelledError
        return await patch(path, body)

    monkeypatch.setattr(world.server, "patch", cancelled_once)
    async with world.running():
        await world.until(lambda: world.left_out == {"bad"})
        await asyncio.sleep(0.5)
        world.scheduler.touched(("ns", "other"))
        await world.until(lambda: "bad" in world.server.targets)


async def test_a_skipped_job_returns_when_it_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    break_for_bad(monkeypatch, *STAGES["core"])
    world = World(crowd())
    async with world.running():
        await world.until(lambda: world.left_out == {"bad"})
        monkeypatch.undo()
        bad = world.server.jobs["bad"]
        bad["metadata"]["annotations"][PREFIX + "deadline"] = "1h"
        bad["metadata"]["resourceVersion"] = "100"
        world.jobs.written(bad)
        await world.until(lambda: "bad" in world.server.targets)


async def test_a_skipped_job_is_retried_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_entry, "_FIRST_DELAY_S", 1.0)
    break_for_bad(monkeypatch, *STAGES["core"])
    world = World(crowd())
    async with world.running():
        await world.until(lambda: world.left_out == {"bad"})
        monkeypatch.undo()
        world.scheduler.touched(("ns", "good-0"))
        await asyncio.sleep(1.1)
        world.scheduler.touched(("ns", "good-0"))
        await world.until(lambda: "bad" in world.server.targets)


async def test_a_target_that_is_refused_for_good_keeps_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The annotations of the first job are full, say. The next one gets the room, and the first one's owner a word."""
    first, second = tfjob("bad"), tfjob("good")
    for job in (first, second):
        job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["resources"] = {
            "requests": {"cpu": "50"}
        }
    second["metadata"]["creationTimestamp"] = "2026-01-02T03:04:06Z"
    world = World([first, second])
    patch = world.server.patch

    async def refuse(path: str, body: Object) -> Object:
        if path.endswith("/bad"):
            raise Invalid("PATCH", 422, "Invalid", "metadata.annotations: Too long")
        return await patch(path, body)

    monkeypatch.setattr(world.server, "patch", refuse)
    async with world.running():
        await world.until(lambda: "bad" in world.left_out)
        world.scheduler.touched(("ns", "good"))
        await world.until(lambda: bool(world.server.targets.get("good") and world.server.targets["good"].replicas))


async def test_a_namespace_that_writes_slowly_holds_up_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook that does not answer: jobs that come later get their targets."""
    monkeypatch.setattr(writers, "_WRITE_S", 0.2)
    world = World([tfjob("bad")])
    patch, asked = world.server.patch, asyncio.Event()

    async def hang(path: str, body: Object) -> Object:
        if path.endswith("/bad"):
            asked.set()
            await asyncio.Event().wait()
        return await patch(path, body)

    monkeypatch.setattr(world.server, "patch", hang)
    async with world.running():
        await asked.wait()
        world.server.jobs["later"] = later = tfjob("later")
        world.jobs.written(later)
        await world.until(lambda: "later" in world.server.targets)


# The search

Numbered = tuple[str, int]
"""A job of a namespace."""


def many(namespaces: int, each: int) -> dict[str, list[Numbered]]:
    return {f"ns-{k}": [(f"ns-{k}", n) for n in range(each)] for k in range(namespaces)}


def flat(jobs: dict[str, list[Numbered]]) -> list[Numbered]:
    return [key for keys in jobs.values() for key in keys]


def everybody(*groups: dict[str, list[Numbered]]) -> set[Numbered]:
    return {key for group in groups for keys in group.values() for key in keys}


class Core:
    """What cannot bear some jobs, and takes its time: `fails` says of which set. Time passes only here."""

    def __init__(self, fails: Callable[[set[Numbered]], bool], cost_s: Callable[[set[Numbered]], float]) -> None:
        self.fails, self.cost_s = fails, cost_s
        self.now, self.sizes = 0.0, list[int]()

    async def __call__(self, keys: Any) -> frozenset[Numbered]:
        assert len(keys) == len(set(keys))
        self.now += self.cost_s(set(keys))
        self.sizes.append(len(keys))
        if self.fails(set(keys)):
            raise ValueError("no")
        return frozenset(keys)

    async def search(
        self, *groups: dict[str, list[Numbered]], tries: int = 2000, seconds: float = 6.0
    ) -> Searched[Numbered, frozenset[Numbered]]:
        found = await bisect_failing_jobs(list(map(flat, groups)), self, SearchBudget(tries, seconds, lambda: self.now))
        parts = [found.result, set(found.failed), set(found.not_tried)]
        assert sum(map(len, parts)) == len(everybody(*groups)), "each job is in one of the three"
        assert set().union(*parts) == everybody(*groups)
        assert not self.fails(set(found.result))
        return found


def alone(bad: set[Numbered]) -> Callable[[set[Numbered]], bool]:
    return lambda keys: bool(bad & keys)


@pytest.mark.parametrize("bad", [set(), {0}, {999}, {3, 400, 401, 998}], ids=str)
async def test_offenders_are_found_in_few_attempts(bad: set[int]) -> None:
    core = Core(alone({("ns-0", k) for k in bad}), lambda _: 0.001)
    found = await core.search(many(1, 1000))
    assert set(found.failed) == {("ns-0", k) for k in bad}
    assert not found.not_tried
    assert len(core.sizes) <= 2 + 20 * len(bad)
    assert sum(size > 500 for size in core.sizes) <= 2 + len(bad), "most attempts are of few jobs"


def one_namespace(k: int) -> Numbered:
    return "ns-7", k


def five_namespaces(k: int) -> Numbered:
    return f"ns-{5 * (k % 5)}", k // 5


def all_namespaces(k: int) -> Numbered:
    return f"ns-{k % 28}", 7 * (k // 28)


@pytest.mark.parametrize("where", [one_namespace, five_namespaces, all_namespaces])
async def test_after_a_restart_sixty_bad_jobs_are_told_from_five_hundred_good_ones_at_once(
    where: Callable[[int], Numbered],
) -> None:
    """No job is known to work. An attempt takes 2 ms, and 1 ms for each 10 jobs."""
    jobs = many(28, 20)
    if where is one_namespace:
        jobs["ns-7"] = [("ns-7", k) for k in range(60)]
    bad = {where(k) for k in range(60)}
    assert len(bad) == 60
    core = Core(alone(bad), lambda keys: 0.002 + 0.0001 * len(keys))
    found = await core.search(jobs)
    assert set(found.failed) == bad
    assert found.result == everybody(jobs) - bad
    assert core.now < 6


async def test_a_tenant_with_more_bad_jobs_than_there_is_time_for_delays_its_own_jobs_only() -> None:
    """Round after round: what was not tried is no offender, comes first in the next round, and all are decided."""
    jobs = many(20, 20)
    jobs["ns-7"] = [("ns-7", k) for k in range(1000)]
    bad = {("ns-7", k) for k in range(0, 1000, 2)} | {("ns-9", 3)}
    core = Core(alone(bad), lambda _: 0.002)
    found = await core.search(jobs, tries=200)
    assert set(found.failed) <= bad
    assert {namespace for namespace, _ in found.not_tried} == {"ns-7"}
    assert {("ns-9", k) for k in range(20) if k != 3} <= found.result
    assert ("ns-9", 3) in found.failed
    offenders, rounds = set(found.failed), 1
    while found.not_tried:
        known = {"all": sorted(found.result)}
        found = await core.search(known, {"ns-7": sorted(found.not_tried)}, tries=200)
        assert found.failed or not found.not_tried
        offenders |= set(found.failed)
        rounds += 1
    assert offenders == bad
    assert rounds < 50


async def test_time_ends_a_search_and_each_comes_on() -> None:
    """Attempts that fail go on for as long as there are jobs, as those do of a core that is stopped at its limit."""
    jobs = many(8, 500)
    bad = {(f"ns-{k}", 10 * k) for k in range(4)}
    core = Core(alone(bad), lambda keys: 0.01 * len(keys) if bad & keys else 0.0001 * len(keys))
    groups: list[dict[str, list[Numbered]]] = [jobs]
    offenders = set[Numbered]()
    for _ in range(len(bad)):
        core.now = 0.0
        found = await core.search(*groups)
        assert found.failed or not found.not_tried, "a search that finds nobody would find nobody the next time"
        assert core.now < 12 * 0.01 * 4000
        offenders |= set(found.failed)
        if not found.not_tried:
            break
        untried: dict[str, list[Numbered]] = {}
        for key in sorted(found.not_tried):
            untried.setdefault(key[0], []).append(key)
        groups = [{"all": sorted(found.result)}, untried]
    assert offenders == bad


@pytest.mark.parametrize("pair", [(("ns-0", 1), ("ns-0", 2)), (("ns-0", 1), ("ns-5", 7))], ids=["one", "two"])
async def test_one_of_the_jobs_that_fail_only_together_is_skipped(pair: tuple[Numbered, Numbered]) -> None:
    """It is that of the more suspected group where they differ in that."""
    core = Core(lambda keys: set(pair) <= keys, lambda _: 0.001)
    jobs = many(8, 50)
    found = await core.search(jobs)
    assert len(set(found.failed) & set(pair)) == 1
    assert len(found.failed) == 1
    assert not found.not_tried
    assert len(core.sizes) < 60
    known = {namespace: [key for key in keys if key != pair[0]] for namespace, keys in jobs.items()}
    assert set((await core.search(known, {pair[0][0]: [pair[0]]})).failed) == {pair[0]}


async def test_a_core_that_never_works_is_no_jobs_fault() -> None:
    core = Core(lambda _: True, lambda _: 0.001)
    with pytest.raises(ValueError, match="no"):
        await bisect_failing_jobs([flat(many(1, 8))], core, SearchBudget(10, 6.0))
    found = await Core(bool, lambda _: 0.0).search(many(1, 1))
    assert set(found.failed) == {("ns-0", 0)}
    assert not found.result


async def test_after_a_restart_with_bad_jobs_good_ones_get_their_targets_in_the_first_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the bad ones are left out, and when one more comes, no round of all fails."""
    failures: list[int] = []

    def is_bad(snapshot: Any, _: Any) -> bool:
        fails = any("/bad-" in key for key in snapshot.jobs)
        if fails:
            failures.append(len(snapshot.jobs))
        return fails

    break_for_bad(monkeypatch, round_, "schedule", is_bad)
    good = [tfjob(f"good-{k}", f"ns-{k % 20}") for k in range(100)]
    bad = [tfjob(f"bad-{k}", f"ns-{k % 2}") for k in range(12)]
    world = World([*good, *bad])
    names = {job["metadata"]["name"] for job in good}
    async with world.running():
        await world.until(lambda: len(world.server.targets) + len(world.left_out) == len(good) + len(bad))
        assert world.left_out == {job["metadata"]["name"] for job in bad}
        assert set(world.server.targets) <= names
        assert failures[0] == len(good) + len(bad)
        failures.clear()
        for name, namespace in (("bad-late", "ns-0"), ("good-late", "ns-1")):
            late = tfjob(name, namespace)
            world.server.jobs[name] = late
            world.jobs.written(late)
        await world.until(lambda: "bad-late" in world.left_out and "good-late" in world.server.targets)
        assert max(failures) <= 12, "only of jobs in the namespaces that had bad ones"


async def test_a_job_whose_time_aside_ends_within_a_round_is_not_one_that_the_last_round_bore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the round has looked whose time is over: by then it is tried with the others."""
    search = fallback_planning.plan_with_fallback
    tries: list[bool] = []
    break_for_bad(monkeypatch, *STAGES["core"])
    world = World(crowd())
    describe = world.scheduler._describe

    async def describe_for_long(*args: Any) -> None:
        await describe(*args)
        if (quarantine := world.scheduler._entries["ns", "bad"].quarantine) is not None:
            quarantine.until_s = 0.0

    async def searching(plan: Any, jobs: Any, tried: set[Key], **named: Any) -> Any:
        if world.left_out and ("ns", "bad") in tried:
            tries.append(("ns", "bad") in named["changed"])
        return await search(plan, jobs, tried, **named)

    monkeypatch.setattr(loop, "plan_with_fallback", searching)
    async with world.running():
        await world.until(lambda: bool(world.left_out))
        monkeypatch.setattr(world.scheduler, "_describe", describe_for_long)
        monkeypatch.setattr(JobEntry, "retried", lambda *_: False)
        world.scheduler.touched(("ns", "good-0"))
        await world.until(lambda: bool(tries))
    assert tries[0]


async def test_a_round_that_one_job_keeps_from_ending_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a step that tries the same for ever; the others get their targets."""

    def never_ends(decision: Round) -> None:
        while "ns/bad" in decision.snapshot.jobs:
            decision.start(decision.job("ns/bad"), {"Worker": 10**6}, "too large")

    def built(*args: Any) -> Profile:
        profile = build(*args)
        return replace(profile, steps=(never_ends, *profile.steps))

    monkeypatch.setattr(profile_reload, "build", built)
    world = World(crowd())
    async with world.running():
        await world.until(lambda: set(world.server.targets) >= GOOD and bool(world.left_out))
    assert world.left_out == {"bad"}
    (told,) = {event.message for name, event in world.events if name == "bad" and event.reason == "NotScheduled"}
    error = "profile kips: EndlessRoundError: kips: the round did not end after 10,200 actions"
    assert told == f"Skipped by the scheduler, retry in 30 s: {error}"
    assert world.failing == [], "it decides for the others"


async def test_jobs_that_there_was_no_time_to_try_come_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are not left out as the bad ones are."""
    monkeypatch.setattr(fallback_planning, "_BUDGET", SearchBudget(attempts=24, seconds=60.0))
    break_for_bad(monkeypatch, round_, "schedule", lambda snapshot, _: any("/bad-" in key for key in snapshot.jobs))
    jobs = [tfjob(f"{'bad' if k % 4 == 0 else 'good'}-{k}") for k in range(16)]
    world = World(jobs)
    names = {job["metadata"]["name"] for job in jobs}
    async with world.running():
        await world.until(lambda: set(world.server.targets) | world.left_out == names)
    assert world.left_out == {name for name in names if name.startswith("bad")}
    quarantined = [entry for entry in world.scheduler._entries.values() if entry.quarantine is not None]
    assert len(quarantined) == len(world.left_out)


async def test_a_round_looks_at_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at every job at every interval: those that said how far they are, and those that wait for something. All
    are looked at when a node is another one."""
    monkeypatch.setattr(loop, "_SPACING_S", 0.1)
    monkeypatch.setattr(JobView, "may_change", property(lambda _: False))  # they do wait: for their pods
    world = World(crowd(), configuration=parse_configuration("profile: kips\nprofiles: {kips: {interval_s: 0.1}}"))
    looks: list[set[str]] = []
    works = describe_all

    def counted(seen: Any, *args: Any, **options: Any) -> Any:
        looks.append({name for _, name in seen})
        return works(seen, *args, **options)

    monkeypatch.setattr(loop, "describe_all", counted)
    async with world.running():
        await world.until(lambda: len(world.server.targets) == len(GOOD) + 1)
        world.renewed = lambda: {("ns", "good-0")}  # type: ignore[method-assign]
        await world.until(lambda: {"good-0"} in looks)
        looks.clear()
        await world.until(lambda: len(looks) >= 2)
        assert looks == [{"good-0"}] * len(looks)
        larger = large_node()
        larger["metadata"]["resourceVersion"] = "2"
        larger["status"]["allocatable"]["cpu"] = "128"
        world.scheduler._nodes.written(larger)
        await world.until(lambda: looks[-1] >= GOOD)

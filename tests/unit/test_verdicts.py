"""Deadlines in the scheduling loop, with an API server of our own: what is written, told and counted, and how often."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube.errors import Unavailable
from elastic_tfjob.controller.model.annotations import NOTICES_ANNOTATION, TARGET_ANNOTATION, VERDICT_ANNOTATION
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.planning.deadlines import Judged, judge_all
from elastic_tfjob.controller.schedule import job_events
from elastic_tfjob.controller.schedule.job_events import DeadlineEvents
from elastic_tfjob.controller.schedule.writers import AnnotationWriter, round_robin

from . import test_scheduler as loop
from .test_scheduler import PREFIX, Object, tfjob


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def in_namespace(namespace: str, job: Object) -> Object:
    metadata = {**job["metadata"], "namespace": namespace, "uid": f"{namespace}-{job['metadata']['uid']}"}
    return {**job, "metadata": metadata}


def ago(seconds: float) -> str:
    return format_time(datetime.now(UTC) - timedelta(seconds=seconds))


class Server(loop.Server):
    """Also takes writes that are of deadlines only; `refuses` are names of jobs for which it fails."""

    def __init__(self, jobs: list[Object]) -> None:
        super().__init__(jobs)
        self.refuses: set[str] = set()
        self.writes: list[Object] = []

    async def patch(self, path: str, body: Object) -> Object:
        if TARGET_ANNOTATION in body["metadata"]["annotations"]:
            return await super().patch(path, body)
        name = path.rpartition("/")[2]
        if name in self.refuses:
            raise Unavailable("PATCH", 503, "ServiceUnavailable", "no")
        self.writes.append(body)
        metadata = self.jobs[name]["metadata"]
        merged = {**metadata["annotations"], **body["metadata"]["annotations"]}
        metadata["annotations"] = {key: text for key, text in merged.items() if text is not None}
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        return self.jobs[name]


class Desk:
    """Verdicts and what they say, without a loop. It is their informer, too."""

    def __init__(self, *jobs: Object, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(job_events, "_LOOK_S", 0.0)
        self.server = Server(list(jobs))
        self.events: list[tuple[str, str]] = []
        api: Any = self.server
        me: Any = self
        self.known: dict[Key, TFJob] = {}
        self.verdicts = DeadlineEvents(me, me, AnnotationWriter(api, self.seen, "notices"))
        for job in jobs:
            self.follow(job)

    def follow(self, raw: Object) -> None:
        self.seen(raw)
        job = TFJob.parse(raw)
        self.verdicts.follow(job.key, job)

    def seen(self, raw: Mapping[str, Any]) -> None:
        job = TFJob.parse(raw)
        self.known[job.key] = job

    def of_job(self, key: Key) -> tuple[TFJob, ...]:
        return (self.known[key],)

    def record(self, job: TFJob, event: Event) -> None:
        self.events.append((job.name, event.reason))

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            async with asyncio.TaskGroup() as group:
                await self.verdicts.look(None, group)


async def test_a_deadline_that_has_passed_is_told_and_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = value("elastic_tfjob_deadlines_total", result="missed")
    desk = Desk(tfjob("late", deadline=ago(5)), tfjob("plain"), monkeypatch=monkeypatch)
    await desk.look(3)
    assert desk.events == [("late", "DeadlineMissed")]
    assert value("elastic_tfjob_deadlines_total", result="missed") == before + 1
    assert value("elastic_tfjob_deadline_jobs", verdict="missed") == 1
    assert desk.server.jobs["late"]["metadata"]["annotations"][VERDICT_ANNOTATION] == "missed"
    assert desk.server.writes[0]["metadata"]["uid"] == "late-uid"
    another = Desk(*desk.server.jobs.values(), monkeypatch=monkeypatch)
    await another.look(2)
    assert (another.events, another.server.writes) == ([], [])
    assert value("elastic_tfjob_deadlines_total", result="missed") == before + 1


async def test_a_round_that_read_the_job_before_its_verdict_was_stored_tells_it_no_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(tfjob("late", deadline=ago(5)), monkeypatch=monkeypatch)
    before = desk.known[("ns", "late")]
    await desk.look()
    desk.verdicts.follow(before.key, before)
    await desk.look()
    assert (desk.events, len(desk.server.writes)) == ([("late", "DeadlineMissed")], 1)


async def test_no_event_is_sent_for_a_verdict_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tfjob("late", deadline=ago(5)), tfjob("other", deadline=ago(5)), monkeypatch=monkeypatch)
    desk.server.refuses.add("late")
    await desk.look(2)
    assert desk.events == [("other", "DeadlineMissed")]
    desk.server.refuses.clear()
    await desk.look(2)
    assert desk.events == [("other", "DeadlineMissed"), ("late", "DeadlineMissed")]


async def test_a_deadline_that_is_taken_away_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tfjob("late", deadline=ago(5)), monkeypatch=monkeypatch)
    await desk.look()
    metadata = desk.server.jobs["late"]["metadata"]
    del metadata["annotations"][PREFIX + "deadline"]
    desk.follow(desk.server.jobs["late"])
    await desk.look(2)
    assert not {NOTICES_ANNOTATION, VERDICT_ANNOTATION} & metadata["annotations"].keys()
    assert len(desk.server.writes) == 2


async def test_jobs_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "_AT_ONCE", 3)

    def two_of_them(jobs: Any, plan: Any, now_s: float, failed: Any, _: Callable[[], bool]) -> dict[str, Judged]:
        return judge_all(jobs, plan, now_s, failed, iter((False, False, True)).__next__)

    monkeypatch.setattr(job_events, "judge_all", two_of_them)
    monkeypatch.setattr(job_events, "_WRITES", 2)
    names = [f"late-{k}" for k in range(7)]
    desk = Desk(*(tfjob(name, deadline=ago(5)) for name in names), monkeypatch=monkeypatch)
    await desk.look(12)
    assert sorted(desk.events) == [(name, "DeadlineMissed") for name in names]


async def test_namespaces_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a thousand late jobs has them judged and written a few at a time, beside one of each other tenant."""
    monkeypatch.setattr(job_events, "_AT_ONCE", 12)
    monkeypatch.setattr(job_events, "_WRITES", 6)
    many = [tfjob(f"many-{k}", deadline=ago(5)) for k in range(1000)]
    few = [in_namespace(f"tenant-{k}", tfjob(f"late-{k}-{n}", deadline=ago(5))) for k in range(3) for n in range(2)]
    desk = Desk(*many, *few, monkeypatch=monkeypatch)
    await desk.look()
    assert [name for name, _ in desk.events] == ["many-0", "late-0-0", "late-1-0", "late-2-0", "many-1", "late-0-1"]
    await desk.look()
    told = [name for name, _ in desk.events[6:]]
    assert {"late-1-1", "late-2-1"} < set(told[:3]), "of those that wait, one of each again"
    assert len([name for name in told if name.startswith("many-")]) == 4


async def test_more_namespaces_than_one_look_writes_for_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "_AT_ONCE", 4)
    monkeypatch.setattr(job_events, "_WRITES", 2)
    jobs = [in_namespace(f"tenant-{k}", tfjob(f"late-{k}-{n}", deadline=ago(5))) for k in range(6) for n in range(9)]
    desk = Desk(*jobs, monkeypatch=monkeypatch)
    for round_ in range(2):
        await desk.look(3)
        told = [name.split("-")[1] for name, _ in desk.events[6 * round_ :]]
        assert sorted(told) == ["0", "1", "2", "3", "4", "5"], "one of each"


def test_namespaces_without_a_recent_turn_come_first() -> None:
    keys = [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1"), ("c", "2")]
    assert round_robin(keys, {}) == [("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"), ("c", "2"), ("a", "3")]
    assert round_robin(keys, {"a": 4, "b": 3, "c": 4})[:3] == [("b", "1"), ("a", "1"), ("c", "1")]
    assert round_robin(keys, {"a": 0})[:3] == [("b", "1"), ("c", "1"), ("a", "1")], "who had none comes first"
    assert round_robin([], {"a": 1}) == []


async def test_a_job_whose_verdict_is_reverted_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "_WRITES", 1)
    jobs = [tfjob("changed-back", deadline=ago(5)), tfjob("late", deadline=ago(5))]
    desk = Desk(*jobs, monkeypatch=monkeypatch)
    for _ in range(4):
        await desk.look()
        metadata = desk.server.jobs["changed-back"]["metadata"]
        for name in (NOTICES_ANNOTATION, VERDICT_ANNOTATION):
            metadata["annotations"].pop(name, None)
        desk.follow(desk.server.jobs["changed-back"])
    assert ("late", "DeadlineMissed") in desk.events


async def test_deadlines_that_are_taken_away_are_no_storm_of_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "_WRITES", 2)
    jobs = [tfjob(f"late-{k}", deadline=ago(5)) for k in range(4)]
    desk = Desk(*jobs, monkeypatch=monkeypatch)
    await desk.look(2)
    for raw in desk.server.jobs.values():
        del raw["metadata"]["annotations"][PREFIX + "deadline"]
        desk.follow(raw)
    desk.server.writes.clear()
    await desk.look()
    assert len(desk.server.writes) == 2
    await desk.look()
    assert len(desk.server.writes) == 4


async def test_a_verdict_that_changes_back_and_forth_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("elastic_tfjob.controller.schedule.job_events.time.monotonic", lambda: now_s[0])
    turns = iter(range(10**6))

    def wavers(jobs: Any, *_: Any) -> dict[str, Judged]:
        event = Event("Warning", "DeadlineAtRisk" if next(turns) % 2 else "DeadlineLimited", "words")
        return {name: Judged("at-risk", annotations={VERDICT_ANNOTATION: "at-risk"}, events=(event,)) for name in jobs}

    monkeypatch.setattr(job_events, "judge_all", wavers)
    desk = Desk(tfjob("j", deadline=ago(-500)), monkeypatch=monkeypatch)
    for _ in range(100):
        await desk.look()
        now_s[0] += 12.5
    told = [reason for _, reason in desk.events]
    assert (told.count("DeadlineAtRisk"), told.count("DeadlineLimited")) == (2 + 1, 50)


async def test_jobs_that_go_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tfjob("late", deadline=ago(5)), monkeypatch=monkeypatch)
    desk.verdicts.follow(("ns", "late"), None)
    await desk.look()
    assert desk.server.writes == []


@pytest.mark.parametrize("profile", ["kips", "fifo", "fixed"])
async def test_verdicts_are_written_by_the_scheduling_loop(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a job that is late: one without a deadline, and one whose annotation is nonsense."""
    late = tfjob("late", deadline=ago(5), checkpoint_dir="/c", total_steps="10")
    jobs = [late, tfjob("plain"), tfjob("wrong", deadline="soon")]
    monkeypatch.setattr(loop, "Server", Server)
    world = loop.World(jobs, profile)
    async with world.running():
        await world.until(lambda: any(event.reason == "DeadlineMissed" for _, event in world.events))
    told = [(name, event.reason) for name, event in world.events if event.reason.startswith("Deadline")]
    assert told == [("late", "DeadlineMissed")]


async def test_a_job_waiting_for_a_size_that_does_not_fit_gets_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's forecasts reach the verdict: 65 cores are wanted where there are 64."""
    monkeypatch.setattr(job_events, "_LOOK_S", 0.0)
    monkeypatch.setattr("elastic_tfjob.controller.planning.deadlines.HOLDS_S", 0.0)
    big = tfjob("big", deadline=ago(-3600), estimated_duration="10m", total_steps="600")
    big["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "65"
    monkeypatch.setattr(loop, "Server", Server)
    world = loop.World([big, tfjob("good-0")], "kips")
    async with world.running():
        await world.until(lambda: VERDICT_ANNOTATION in world.server.jobs["big"]["metadata"]["annotations"])
        await world.until(lambda: any(event.reason == "DeadlineUnattainable" for _, event in world.events))
    assert world.server.jobs["big"]["metadata"]["annotations"][VERDICT_ANNOTATION] == "unattainable"
    words = [event.message for _, event in world.events if event.reason == "DeadlineUnattainable"]
    assert len(words) == 1
    assert "1 worker would meet it (more than fit the cluster" in words[0]


async def test_a_bug_in_what_is_told_of_deadlines_fails_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that fails throws away all that is known."""
    before = value("elastic_tfjob_scheduling_failures_total")
    looked: list[None] = []

    def fails(_: DeadlineEvents) -> None:
        looked.append(None)
        raise RuntimeError

    monkeypatch.setattr(DeadlineEvents, "_measure", fails)
    monkeypatch.setattr(loop, "Server", Server)
    world = loop.World([tfjob("late", deadline=ago(5))], "kips")
    async with world.running():
        await world.until(lambda: bool(looked))
        await asyncio.sleep(0.05)
    assert value("elastic_tfjob_scheduling_failures_total") == before

"""What a job is told of its loss under a profile that goes by it, and specon in the loop."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from typing import Any, cast

import pytest

from elastic_tfjob.api.reading import MAX_ANNOTATION_BYTES
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.model import job as objects
from elastic_tfjob.controller.model.annotations import NOTICES_ANNOTATION, VERDICT_ANNOTATION
from elastic_tfjob.controller.model.deadline_status import NoticesSent
from elastic_tfjob.controller.model.job import Key
from elastic_tfjob.controller.model.settings import parse_configuration
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.controller.schedule import job_events as notices_module
from elastic_tfjob.controller.schedule.job_events import (
    PATIENCE_S,
    DeadlineEvents,
    JobEvents,
    LossEvents,
    unadjusted,
    unusable,
)
from elastic_tfjob.controller.schedule.writers import AnnotationWriter
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import WORKER, Job, JobSpec, ReplicaGroup
from elastic_tfjob.speed.growth import NOT_REPORTED, Growth
from harness.hostile_text import NO_JSON_OBJECT, named

from . import test_scheduler as loop
from .test_scheduler import GOOD, Object, World, crowd, tfjob
from .test_verdicts import Server, ago

NOW = 1000.0
KEY = ("ns", "j")
SPEC = JobSpec("ns/j", 0.0, (ReplicaGroup(WORKER, Resources(1000), 1, 1, 1),))


def trains(loss: Growth = NOT_REPORTED, **more: Any) -> Job:
    """A job that has trained for a while."""
    state: dict[str, Any] = {"since_s": NOW - PATIENCE_S, "steps": 100.0, "placement": {WORKER: ("n1",)}, **more}
    return Job(SPEC, phase=state.pop("phase", "running"), loss=loss, **state)


def read(*reports: float | None) -> Growth:
    growth = NOT_REPORTED
    for k, loss in enumerate(reports):
        growth = growth.read(float(k), loss, 20.0 * k)
    return growth


@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ((), "absent"),
        ((None,), "absent"),
        ((2.0,), None),
        ((2.0, nan), "nan"),
        ((inf,), "inf"),
        ((2.0, None), None),
        ((1.0, 2.0, 3.0, 4.0), None),
        ((1.0, 2.0, 3.0, 4.0, 5.0), "never-fell"),
        ((1.0, 2.0, 3.0, 2.9, 5.0), None),
        ((9.0, 1.0, 2.0, 3.0, 4.0, 5.0), "rises"),
        ((9.0, 1.0, 2.0, 3.0, 4.0, nan), "nan"),
    ],
)
def test_an_unusable_loss_has_a_code(reports: tuple[float | None, ...], state: str | None) -> None:
    """One that was reported before, and not this time, is not missed. One that jitters does not rise."""
    assert unusable(trains(read(*reports)), NOW) == (state and f"loss-{state}")


@pytest.mark.parametrize(
    "more",
    [{"steps": 0.0}, {"since_s": NOW - PATIENCE_S + 1}, {"phase": "rescaling"}, {"placement": {}, "phase": "waiting"}],
    ids=["no step", "just started", "rescaling", "waiting"],
)
def test_a_job_that_has_had_no_time_to_report_gets_no_notice(more: dict[str, Any]) -> None:
    assert unusable(trains(**more), NOW) is None


@pytest.mark.parametrize(
    ("spec", "state", "topics"),
    [
        ({"total_steps": 500.0}, {}, []),
        ({}, {}, ["work-unknown"]),
        ({}, {"steps": 0.0}, []),
        ({}, {"since_s": NOW - PATIENCE_S + 1}, []),
        ({"total_steps": 500.0, "resizable": False}, {}, ["cpu-kept"]),
        ({"total_steps": 500.0, "fixed_cpu": True}, {}, ["cpu-kept"]),
        # It is moved by what it has left.
        ({"fixed_cpu": True}, {}, ["cpu-kept", "work-unknown"]),
        ({"resizable": False, "movable": False}, {}, ["all-kept"]),
        ({"movable": False}, {"phase": "rescaling"}, []),
        ({"movable": False}, {"placement": {}, "phase": "waiting"}, []),
    ],
)
def test_obstacles_to_more_cpu_are_named(spec: dict[str, Any], state: dict[str, Any], topics: list[str]) -> None:
    assert [*unadjusted(replace(trains(**state), spec=replace(SPEC, **spec)), NOW)] == topics


@pytest.mark.parametrize(
    ("profile", "settings", "movable", "reasons"),
    [
        ("specon", {}, True, ["NotAdjusted"]),
        ("specon", {}, False, ["NotAdjusted"]),
        ("specon", {"published": True}, True, ["LossUnusable"]),
        ("specon", {"published": True}, False, ["LossUnusable", "NotAdjusted"]),
        ("rebalance", {}, True, []),
        ("kips", {}, True, []),
        ("elastic", {}, True, []),
        ("deadline", {}, True, []),
    ],
)
async def test_notices_match_the_inputs_of_the_profile(
    profile: str, settings: dict[str, Any], movable: bool, reasons: list[str]
) -> None:
    """A job that says neither its steps nor its loss, and may have no checkpoint-dir."""
    operator = Operator(Server([tfjob("j")]))
    me = cast("Any", operator)
    notices = JobEvents(me, me, me, {})
    notices._losses = operator.losses
    source = operator.one(KEY)
    job = replace(trains(), spec=replace(SPEC, movable=movable))
    for _ in range(3):
        needs = build(profile, parse_profile(profile, settings)).needs
        notices.by_needs(KEY, JobView(source, job), NOW, needs)
        async with asyncio.TaskGroup() as group:
            operator.losses.send_due(group)
        source = operator.one(KEY)
    assert [event.reason for event in operator.events] == reasons


class Operator:
    """What is told of losses by one process of the operator, which reads and writes the jobs of `server`."""

    def __init__(self, server: Server) -> None:
        self.events: list[Event] = []
        self.server = server
        api: Any = server
        me: Any = self
        self.writer = AnnotationWriter(api, self.seen, "notices")
        self.losses = LossEvents(me, me, self.writer)

    def record(self, _: Any, event: Event) -> None:
        self.events.append(event)

    def seen(self, raw: Mapping[str, Any]) -> None:
        assert raw["metadata"]["annotations"]

    def one(self, key: Key) -> objects.TFJob | None:
        raw = self.server.jobs.get(key[1])
        return objects.TFJob.parse(raw) if raw is not None else None

    def of_job(self, key: Key) -> tuple[objects.TFJob, ...]:
        return tuple(filter(None, [self.one(key)]))

    async def look(self, *reports: float | None) -> None:
        source = self.one(KEY)
        self.losses.look(KEY, JobView(source, trains(read(*reports))), NOW)
        async with asyncio.TaskGroup() as group:
            self.losses.send_due(group)

    @property
    def sent(self) -> list[str]:
        assert {(event.type, event.reason) for event in self.events} <= {
            ("Warning", "LossUnusable"),
            ("Warning", "LossRises"),
        }
        words = {"NaN": "nan", "infinite": "inf", "reports none": "absent"}
        words |= {"has only risen so far": "never-fell", "has risen in the last": "rises"}
        return [state for event in self.events for word, state in words.items() if word in event.message]


async def test_each_thing_is_told_once_and_another_operator_tells_it_no_second_time() -> None:
    server = Server([tfjob("j")])
    first = Operator(server)
    for reports in ((2.0, nan), (2.0, nan), (2.0, 1.0), (2.0, nan), (2.0, inf)):
        await first.look(*reports)
    assert first.sent == ["nan", "inf"]
    second = Operator(server)
    for loss in (nan, inf):
        await second.look(2.0, loss)
    await second.look(None)
    assert second.sent == ["absent"]
    assert len(server.writes) == 3
    server.jobs["j"]["metadata"]["uid"] = "another job of the name, with a copy of the annotations"
    await second.look(2.0, nan)
    assert second.sent == ["absent", "nan"]


async def test_a_loss_that_rises_is_told_with_what_the_job_counts_as() -> None:
    """The class that the event names is the one that SpeCon gives the job."""
    operator = Operator(Server([tfjob("j")]))
    rising = (1.0, 2.0, 3.0, 4.0, 5.0)
    for reports in (rising, rising, (9.0, *rising)):
        await operator.look(*reports)
    assert operator.sent == ["never-fell", "rises"]
    assert ["falls fast" in event.message for event in operator.events] == [True, False]
    assert read(*rising).of_peak is None
    assert read(9.0, *rising).of_peak == 0


async def test_a_notice_that_cannot_be_stored_is_sent_later() -> None:
    server = Server([tfjob("j")])
    operator = Operator(server)
    server.refuses.add("j")
    await operator.look(nan)
    assert operator.sent == []
    server.refuses.clear()
    async with asyncio.TaskGroup() as group:
        operator.losses.send_due(group)
    assert operator.sent == ["nan"]


async def test_a_job_that_is_gone_or_has_no_room_left_is_told_nothing() -> None:
    server = Server([tfjob("j", note="x" * MAX_ANNOTATION_BYTES)])
    operator = Operator(server)
    await operator.look(nan)
    server.jobs.clear()
    operator.losses.look(KEY, JobView(objects.TFJob.parse(tfjob("j")), trains(read(nan))), NOW)
    async with asyncio.TaskGroup() as group:
        operator.losses.send_due(group)
    assert (operator.events, server.writes) == ([], [])


async def test_thousands_of_jobs_without_a_loss_are_no_storm_of_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices_module, "_AT_ONCE", 2)
    jobs = [tfjob(f"j-{k}") for k in range(5)]
    operator = Operator(Server(jobs))
    for raw in jobs:
        job = objects.TFJob.parse(raw)
        operator.losses.look(job.key, JobView(job, trains(read(nan))), NOW)
    told = []
    for _ in range(3):
        async with asyncio.TaskGroup() as group:
            operator.losses.send_due(group)
            operator.losses.send_due(group)
        told.append(len(operator.events))
    assert told == [2, 4, 5]


class SlowServer(Server):
    """The webhook of one tenant never answers."""

    async def patch(self, path: str, body: Object) -> Object:
        if "/slow/" in path:
            self.writes.append(body)
            await asyncio.Event().wait()
        return await super().patch(path, body)


def crowded(server: Server) -> Operator:
    """All jobs of the server are to be told of their loss, in this order."""
    operator = Operator(server)
    for raw in server.jobs.values():
        job = objects.TFJob.parse(raw)
        operator.losses.look(job.key, JobView(job, trains(read(nan))), NOW)
    return operator


async def test_a_tenant_of_many_jobs_does_not_hold_up_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices_module, "_AT_ONCE", 2)
    server = Server([*(tfjob(f"many-{k}", "a") for k in range(9)), *(tfjob(f"few-{k}", "b") for k in range(2))])
    operator = crowded(server)
    for _ in range(2):
        async with asyncio.TaskGroup() as group:
            operator.losses.send_due(group)
    told_ = [body["metadata"]["uid"] for body in server.writes]
    assert told_ == ["many-0-uid", "few-0-uid", "many-1-uid", "few-1-uid"]


async def test_a_tenant_whose_writes_never_end_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices_module, "_AT_ONCE", 4)
    monkeypatch.setattr(notices_module, "_OF_ONE", 3)
    server = SlowServer([*(tfjob(f"slow-{k}", "slow") for k in range(9)), *(tfjob(f"few-{k}", "b") for k in range(2))])
    operator = crowded(server)

    async def rounds() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                operator.losses.send_due(group)
                await asyncio.sleep(0.01)

    telling = asyncio.create_task(rounds())
    async with asyncio.timeout(60):
        while len(server.writes) < 5:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # and no more
    assert not telling.done()
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    told_ = sorted(body["metadata"]["uid"] for body in server.writes)
    assert told_ == ["few-0-uid", "few-1-uid", "slow-0-uid", "slow-1-uid", "slow-2-uid"]


async def test_verdicts_and_losses_share_an_annotation_and_neither_loses_what_the_other_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job of which one of them is being written is told the rest later, whichever comes first."""
    monkeypatch.setattr(notices_module, "_LOOK_S", 0.0)
    server = Server([tfjob("j", deadline=ago(5))])
    operator = Operator(server)
    me: Any = operator
    verdicts = DeadlineEvents(me, me, operator.writer)
    for loss, look_first in ((nan, True), (inf, False), (None, True)):
        job = operator.one(KEY)
        assert job is not None
        verdicts.follow(KEY, job)
        operator.losses.look(KEY, JobView(job, trains(read(loss))), NOW)
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                if look_first:
                    await verdicts.look(None, group)
                operator.losses.send_due(group)
                if not look_first:
                    await verdicts.look(None, group)
    written = server.jobs["j"]["metadata"]["annotations"]
    found = NoticesSent.of(written, "j-uid")
    assert found.judged is not None
    assert (found.judged.verdict, written[VERDICT_ANNOTATION]) == ("missed", "missed")
    assert found.sent == {"loss-nan", "loss-inf", "loss-absent"}
    assert [event.reason for event in operator.events] == ["DeadlineMissed", *["LossUnusable"] * 3]


@pytest.mark.parametrize(
    "text",
    [
        *NO_JSON_OBJECT,
        "{}",
        '{"uid":5}',
        '{"uid":"u","sent":5}',
        '{"uid":"u","sent":[["loss-nan"],{},"tomorrow"]}',
        '{"uid":"u","judged":{"verdict":["met"],"sent":[[],{}]}}',
        '{"uid":"u","judged":"met"}',
        '{"uid":"v","sent":["loss-nan"]}',
        '{"sent":["loss-nan"]}',
    ],
    ids=named,
)
def test_notices_that_cannot_be_read_are_none(text: str) -> None:
    assert NoticesSent.of({NOTICES_ANNOTATION: text}, "u") == NoticesSent()


def test_notices_that_were_sent_are_read_back() -> None:
    both = NoticesSent(sent=frozenset({"loss-inf", "loss-nan"}))
    assert NoticesSent.of({NOTICES_ANNOTATION: both.to_json("u") or ""}, "u") == both
    newer = '{"uid":"u","sent":["of-tomorrow","loss-nan"],"more":1}'
    assert NoticesSent.of({NOTICES_ANNOTATION: newer}, "u").sent == {"loss-nan"}


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("profile: specon\nprofiles: {specon: {published: true}}", True),
        ("profile: specon", False),
        ("profile: kips", False),
    ],
    ids=["published", "specon", "kips"],
)
async def test_the_operator_runs_specon_and_tells_who_reports_no_loss(
    text: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job's loss is NaN: it is told so where the profile goes by the loss, and all get their targets."""
    monkeypatch.setattr(notices_module, "unusable", lambda job, _: "loss-nan" if job.key == "ns/bad" else None)
    monkeypatch.setattr(loop, "Server", Server)
    world = World([*crowd(), tfjob("other")], configuration=parse_configuration(text))
    async with world.running():
        await world.until(lambda: set(world.server.targets) >= {*GOOD, "bad", "other"})
        if warned:
            await world.until(lambda: any(event.reason == "LossUnusable" for _, event in world.events))
    assert all(target.replicas == {"Worker": 1} for target in world.server.targets.values())
    assert {name for name, event in world.events if event.reason == "LossUnusable"} == ({"bad"} if warned else set())
    assert not world.left_out


def test_a_profile_of_live_jobs_may_be_specon() -> None:
    found = parse_configuration("profile: specon\nprofiles: {specon: {published: true, moves: 3}}")
    assert (found.profile, found.parameters.model_dump()["moves"]) == ("specon", 3)
    with pytest.raises(ValueError, match=r"specon\.place"):
        parse_configuration("profile: specon\nprofiles: {specon: {place: count}}")

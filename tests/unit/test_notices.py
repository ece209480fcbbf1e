"""What the scheduling loop tells a job that its profile would stop or move, and may not."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.controller.planning.request import job_request
from elastic_tfjob.controller.schedule import job_events
from elastic_tfjob.controller.schedule.job_entry import JobEntry
from elastic_tfjob.controller.schedule.job_events import JobEvents
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.snapshot import Snapshot

from .build import job

KEY = ("ns", "j")
NO_CHECKPOINT = Reason("no-checkpoint")


class Loop:
    """Rounds of the scheduling loop, and the events of its jobs."""

    def __init__(self) -> None:
        me: Any = self
        self.events: list[Event] = []
        self.jobs: dict[Key, TFJob] = {KEY: replace(job(), namespace="ns", name="j")}
        self.entries = {KEY: JobEntry(KEY)}
        self.notices = JobEvents(me, me, me, self.entries)

    def record(self, _: TFJob, event: Event) -> None:
        self.events.append(event)

    def one(self, key: Key) -> TFJob | None:
        return self.jobs.get(key)

    def seen(self, _: Any) -> None: ...

    def round(self, *why: Reason, name: str = "ns/j", pending: Reason | None = None, planned: bool = True) -> list[str]:
        """What is told in a round that keeps the job for this reason; `pending`: and why it does not get its size.
        `planned`: the round has a plan."""

        async def look() -> None:
            unmet = {name: pending} if pending is not None else {}
            kept = dict.fromkeys([name], why[0]) if why else {}
            plan = Plan(Snapshot(0.0, {}, {}), {}, kept=kept, sizes_without_room=unmet)
            async with asyncio.TaskGroup() as group:
                await self.notices.look(plan if planned else None, group)

        before = len(self.events)
        asyncio.run(look())
        assert {(event.type, event.reason) for event in self.events} <= {
            ("Normal", "NotStopped"),
            ("Normal", "RescalePending"),
        }
        return [event.message for event in self.events[before:]]


def test_why_a_job_keeps_what_it_has_is_told_once() -> None:
    loop = Loop()
    assert loop.round() == []
    assert loop.round(NO_CHECKPOINT) == [
        "The profile wanted to stop or move this job, but cannot: it has no checkpoint to resume from"
    ]
    assert loop.round(NO_CHECKPOINT) == []
    assert loop.round() == []
    assert loop.round(NO_CHECKPOINT) == []
    [other] = loop.round(Reason("not-movable", {"type": "Worker", "index": 1}))
    assert other.endswith("Worker 1 stays on its node: the job cannot be moved without a checkpoint")
    assert loop.round(Reason("not-movable", {"type": "Worker", "index": 2})) == []


def test_another_job_of_its_name_is_told_too() -> None:
    loop = Loop()
    assert loop.round(NO_CHECKPOINT)
    loop.jobs[KEY] = replace(loop.jobs[KEY], uid="another")
    assert loop.round(NO_CHECKPOINT)
    loop.notices.follow(loop.entries[KEY], None)
    assert loop.round(NO_CHECKPOINT)


def test_a_job_that_is_gone_meanwhile_is_passed_over() -> None:
    assert Loop().round(NO_CHECKPOINT, name="ns/gone") == []


def described(name: str, place: str | None, uid: str = "") -> JobView:
    """A job with its checkpoints there."""
    source = replace(job(), namespace="ns", name=name, uid=uid or f"uid-{name}")
    return JobView(source, request=replace(job_request(source), place=place))


def test_jobs_with_one_checkpoint_directory_are_both_told_once() -> None:
    loop = Loop()
    told: list[tuple[str, str]] = []

    def entry(found: JobView) -> JobEntry:
        assert found.source is not None
        return loop.entries.setdefault(found.source.key, JobEntry(found.source.key))

    def see(found: JobView) -> list[tuple[str, str]]:
        told.clear()
        assert found.source is not None
        loop.jobs[found.source.key] = found.source
        loop.notices.described(entry(found), found)
        return told

    loop.record = lambda to, event: told.append((to.name, f"{event.reason}: {event.message}"))  # type: ignore[assignment,method-assign]
    assert see(described("a", "claim data, folder /x")) == []
    assert see(described("b", "claim data, folder /y")) == []
    assert see(described("c", None)) == see(described("d", None)) == []
    first, second = see(described("b", "claim data, folder /x"))
    assert first[0] == "b"
    assert second[0] == "a"
    assert first[1].startswith(
        "CheckpointDirShared: TFJob a writes its checkpoints to the same place (claim data, folder"
    )
    assert "TFJob b writes" in second[1]
    assert see(described("b", "claim data, folder /x")) == see(described("a", "claim data, folder /x")) == []
    assert len(see(described("b", "claim data, folder /x", uid="another"))) == 2
    loop.notices.follow(loop.entries["ns", "b"], None)
    ended = JobView(loop.jobs["ns", "a"])
    loop.notices.described(entry(ended), ended)
    assert see(described("b", "claim data, folder /x")) == []
    with_place = [each for each in loop.entries.values() if each.checkpoints is not None]
    assert (len(loop.notices._places), len(with_place)) == (1, 1)


def test_why_a_requested_size_is_pending_is_told_when_the_reason_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now = Loop(), SimpleNamespace(s=1000.0)
    monkeypatch.setattr(job_events, "time", SimpleNamespace(monotonic=lambda: now.s))

    def told(fits: int, after_s: float = 10.0) -> list[str]:
        now.s += after_s
        return loop.round(pending=Reason("size-no-room", {"wanted": {"Worker": 4}, "fits": {"Worker": fits}}))

    said = "The job keeps its size: no room for the requested 4 workers; there is room for {} workers"
    assert (told(2), told(2), told(3)) == ([said.format(2)], [], [said.format(3)])
    assert loop.round() == []
    assert told(3) == [said.format(3)]
    assert (told(2, 1), told(3, 1), told(2, 1)) == ([], [], []), "room may change in each round"
    assert (told(2, 7), told(2, 599), told(2, 1)) == ([said.format(2)], [], [said.format(2)])
    now.s += 600
    assert loop.round(planned=False) == [said.format(2)], "the API server deletes events, also while nothing changes"
    loop.jobs[KEY] = replace(loop.jobs[KEY], uid="another")
    assert told(2, 1) == [said.format(2)]
    loop.jobs.clear()
    assert told(2, 600) == []

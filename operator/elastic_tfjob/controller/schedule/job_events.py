"""Sends the scheduling loop's events for jobs: about deadlines, the training loss, and why a job is not scheduled,
stopped or moved.

Nothing is decided here, and no error here delays a target.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from statistics import median
from typing import Final

import structlog

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import excerpt, trace
from elastic_tfjob.controller.model import job as objects
from elastic_tfjob.controller.model.annotations import NOTICES_ANNOTATION, VERDICT_ANNOTATION
from elastic_tfjob.controller.model.deadline_status import (
    VERDICTS,
    NoticesSent,
    Topic,
    Verdict,
    deadline_of,
    room_for_notices,
)
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.planning.deadlines import Doubt, Judged, judge_all
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.controller.planning.request import JobRequest
from elastic_tfjob.controller.schedule.job_entry import JobEntry
from elastic_tfjob.controller.schedule.writers import AnnotationWrite, AnnotationWriter, WriteFailure, round_robin
from elastic_tfjob.scheduling.forecasts import Forecast
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile_errors import ProfileError
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.snapshot import Job as CoreJob
from elastic_tfjob.speed.growth import RECENT, LossState

__all__ = ["DeadlineEvents", "JobEvents", "LossEvents", "unadjusted", "unusable"]

# -- Events about the training loss and the work left ------------------------------------------------------------------
# A job gets such an event if the profile decides by the training loss and the loss is unusable (it is missing, not a
# number, or rising), or if the profile decides by the remaining work and the amount is unknown or the job's resources
# cannot be changed.
#
# Each event is sent once, after an annotation has recorded it, so that no other replica of the operator sends it again.

PATIENCE_S: Final = 60.0
"""Seconds that a job gets to report its loss after it has started to train and to report steps."""
# Maximum number of concurrent writes, in all namespaces and in one: a profile that decides by the loss may find
# thousands of jobs that report none, and one namespace's webhook may be slow.
_AT_ONCE: Final = 100
_OF_ONE: Final = 20

_NUMBERS: Final[Mapping[LossState, Topic]] = {"nan": "loss-nan", "inf": "loss-inf"}
_FALLS: Final = "it is treated like a job whose loss falls fast, and is not moved to make room for others"
_LOSS: Final[Mapping[Topic, str]] = {
    "loss-absent": f"this job reports none. Until it does, {_FALLS}",
    "loss-nan": f"this job's loss is NaN. Until the job reports a number, {_FALLS}",
    "loss-inf": f"this job's loss is infinite. Until the job reports a finite number, {_FALLS}",
    "loss-never-fell": f"this job's loss has only risen so far. Until the loss falls, {_FALLS}",
    "loss-rises": f"this job's loss has risen in the last {RECENT} readings. Until the loss falls again, the job is "
    "treated as converged, and may be moved to make room for others",
}

_WORK: Final[Mapping[Topic, str]] = {
    "work-unknown": "this job's number of steps is unknown. The operator assumes that it will run as long as it has "
    "run so far. Set the annotation total-steps",
    "cpu-kept": "this job keeps the CPU that it requests, because its bounds (min-workers, max-workers) allow no "
    "change, or because Kueue has admitted it",
}
_ALL_KEPT: Final = (
    "This job keeps its nodes and the CPU that it requests, because it has no checkpoint-dir, or rescale is never, or "
    "enableDynamicWorker is set"
)


def unadjusted(job: CoreJob, now_s: float) -> Iterator[Topic]:
    """The known reasons why a profile that decides by the remaining work cannot do more for a running job."""
    if not job.placement or job.phase != "running":
        return
    if not job.spec.movable:
        yield "all-kept"
        return  # so the remaining work does not matter
    if not job.spec.resizable or job.spec.fixed_cpu:
        yield "cpu-kept"
    if job.spec.total_steps is None and job.steps > 0 and now_s - job.since_s >= PATIENCE_S:
        yield "work-unknown"


def unusable(job: CoreJob, now_s: float) -> Topic | None:
    """What is wrong with a running job's loss; `loss-absent`: the job has never reported one. None: nothing is wrong,
    or it is not known yet."""
    loss = job.loss
    if not job.placement or job.phase != "running":
        return None
    if loss.state == "finite":
        if not loss.rises:
            return None
        return "loss-rises" if loss.peak > 0 else "loss-never-fell"
    if loss.state != "absent":
        return _NUMBERS[loss.state]
    silent = not loss.recent and not loss.readings
    return "loss-absent" if silent and job.steps > 0 and now_s - job.since_s >= PATIENCE_S else None


class LossEvents:
    """Sends events about the loss and the remaining work. `look` must be called with each new or changed job, and
    `send_due` in each round. `writer` is shared with DeadlineEvents: both write the same annotation, and a job can have
    only one write at a time."""

    def __init__(self, jobs: Informer[objects.TFJob], recorder: EventRecorder, writer: AnnotationWriter) -> None:
        self._jobs = jobs
        self._recorder = recorder
        self._writer = writer
        # Jobs with a pending write of this object.
        self._writing: set[Key] = set()
        self._due: dict[Key, Topic] = {}
        # The last turn of each namespace.
        self._served: dict[str, int] = {}
        self._turns = 0

    def look(self, key: Key, found: JobView, now_s: float, *, by_loss: bool = True) -> None:
        """Finds the next event that the job should get. `by_loss`: the profile decides by the loss; else by the
        remaining work."""
        job, source = found.job, found.source
        topics = [*_topics(job, now_s, by_loss=by_loss)] if job is not None else []
        known = _topics_sent(source) if source is not None and topics else frozenset()
        topic = next((topic for topic in topics if topic not in known), None)
        if topic is None or source is None:
            self._due.pop(key, None)
        else:
            self._due[key] = topic

    def forget(self, key: Key) -> None:
        """Drops a job that no longer exists."""
        self._due.pop(key, None)

    def send_due(self, group: asyncio.TaskGroup) -> None:
        """Sends the events that are due, in turn for each namespace. The writes may last beyond this round."""
        under_way = Counter(namespace for namespace, _ in self._writing)
        free = _AT_ONCE - len(self._writing)
        if free <= 0 or not self._due:
            return
        present = {namespace for namespace, _ in self._due}
        self._served = {name: turn for name, turn in self._served.items() if name in present}
        self._turns += 1
        for key in round_robin((key for key in self._due if key not in self._writer), self._served):
            namespace = key[0]
            if not free:
                return
            if under_way[namespace] >= _OF_ONE:
                continue
            self._served[namespace] = self._turns
            topic = self._due.pop(key)
            # Read the job as it is now: an earlier round's write may have recorded the event in the meantime.
            job = self._jobs.one(key)
            if job is None or topic in _topics_sent(job) or not room_for_notices(job.annotations):
                continue
            sent = NoticesSent.of(job.annotations, job.uid)
            text = replace(sent, sent=sent.sent | {topic}).to_json(job.uid)
            # Without the resourceVersion: only this operator writes this annotation.
            write = AnnotationWrite(job, {NOTICES_ANNOTATION: text}, versioned=False)
            self._writing.add(key)
            self._writer.begin(write, partial(self._written, job, topic), group, partial(self._writing.discard, key))
            under_way[namespace] += 1
            free -= 1

    def _written(self, job: objects.TFJob, topic: Topic, failure: WriteFailure | None) -> None:
        if failure is None:
            self._recorder.record(job, _event(topic))
        elif failure.kind not in ("conflict", "gone"):  # these only mean that the job was deleted or recreated
            bug = "bug: " if failure.kind == "bug" else ""
            log.warning(f"{bug}notices not written", job=job.key, error=excerpt(failure.error))
            if failure.kind == "failed":
                self._due.setdefault(job.key, topic)


def _topics(job: CoreJob, now_s: float, *, by_loss: bool) -> Iterator[Topic]:
    """The events that the job could get, the most important first. A profile that decides by loss also moves jobs."""
    if not by_loss:
        yield from unadjusted(job, now_s)
        return
    if (topic := unusable(job, now_s)) is not None:
        yield topic
    yield from (kept for kept in unadjusted(job, now_s) if kept == "all-kept")


def _event(topic: Topic) -> Event:
    if topic == "all-kept":
        return Event("Normal", "NotAdjusted", _ALL_KEPT)
    if topic in _WORK:
        return Event("Normal", "NotAdjusted", f"The profile shares CPU by the jobs' remaining work, but {_WORK[topic]}")
    says = f"The profile uses the training loss, but {_LOSS[topic]}"
    rises = topic in ("loss-never-fell", "loss-rises")
    return Event("Warning", "LossRises", says) if rises else Event("Warning", "LossUnusable", says)


def _topics_sent(job: objects.TFJob) -> frozenset[Topic]:
    return NoticesSent.of(job.annotations, job.uid).sent


# -- Annotations, events and metrics about deadlines -------------------------------------------------------------------
# They are written without delaying the rounds of scheduling.
#
# The event of a verdict is sent after the verdict is stored, so that no operator sends it twice. An operator that is
# killed in between never sends the event; the annotation still has the text.

# Seconds between two checks of deadlines.
_LOOK_S: Final = 10.0
# Maximum seconds of one check: a job takes 0.3 ms, a late one 2 ms. Jobs that it does not reach come first in the next.
_MOST_S: Final = 0.2
# Maximum number of jobs in one check, chosen from the namespaces in turn; and of its writes.
_VERDICTS_AT_ONCE: Final = 1000
_WRITES: Final = 100
# Minimum seconds between two events about a verdict that may change back and forth; the annotation has the newest text.
_AGAIN_S: Final = 600.0
_WAVERS: Final = ("DeadlineAtRisk", "DeadlineUnattainable")


@dataclass(slots=True)
class _Followed:
    """A job with a deadline (Unix time). `deadline_s` None: its user has removed the deadline, so the verdict's
    annotation must be removed, too."""

    job: TFJob
    deadline_s: float | None
    doubt: Doubt | None = None
    verdict: Verdict | None = None
    slack_s: float | None = None
    event_at_s: dict[str, float] = field(default_factory=dict)
    """When an event with each reason was last sent (monotonic seconds)."""

    def event_due(self, reason: str) -> bool:
        """Whether an event with this reason may be sent now. If so, the event counts as sent."""
        now = time.monotonic()
        if reason in _WAVERS and now < self.event_at_s.get(reason, -inf) + _AGAIN_S:
            return False
        self.event_at_s[reason] = now
        return True


class DeadlineEvents:
    """Keeps the verdicts on deadlines up to date. `follow` must be called with each new or changed job, and `look` in
    each round with its plan."""

    def __init__(self, jobs: Informer[TFJob], recorder: EventRecorder, writer: AnnotationWriter) -> None:
        self._jobs = jobs
        self._writer = writer
        self._recorder = recorder
        self._followed: dict[Key, _Followed] = {}
        self._next_s = 0.0
        # The number of the last check in which each namespace had a turn.
        self._served: dict[str, int] = {}
        self._looks = 0

    def follow(self, key: Key, job: TFJob | None) -> None:
        """Takes the job as it is now; None: it no longer exists."""
        deadline_s = deadline_of(job) if job is not None and not job.deleting else None
        if job is None or job.deleting or (deadline_s is None and VERDICT_ANNOTATION not in job.annotations):
            self._followed.pop(key, None)
            return
        known = self._followed.get(key)
        if known is not None and known.job.uid == job.uid:
            known.job = job
            if known.deadline_s != deadline_s:
                known.deadline_s, known.doubt = deadline_s, None
        elif deadline_s is None or not _closed(job):
            self._followed[key] = _Followed(job, deadline_s)

    async def look(self, plan: Plan | None, group: asyncio.TaskGroup) -> None:
        """Judges the jobs whose turn it is by this round's plan (None: there is none), and writes changes in `group`.
        The writes may last beyond this round."""
        now = time.monotonic()
        if not self._followed or now < self._next_s:
            return
        present = {namespace for namespace, _ in self._followed}
        self._served = {name: look for name, look in self._served.items() if name in present}
        self._looks += 1
        chosen = round_robin((key for key in self._followed if key not in self._writer), self._served)[
            :_VERDICTS_AT_ONCE
        ]
        turn = {key: self._followed[key] for key in chosen}
        for key, each in turn.items():
            # Use the newest job: an older one may lack the last write of its verdict, so that its event would be sent
            # twice.
            each.job = next((job for job in self._jobs.of_job(key) if job.uid == each.job.uid), each.job)
        asked = {f"{key[0]}/{key[1]}": (key, each) for key, each in turn.items() if each.deadline_s is not None}
        jobs = {name: (each.job, each.deadline_s or 0.0, each.doubt) for name, (_, each) in asked.items()}
        failed: dict[str, Exception] = {}
        enough = now + _MOST_S
        found = await asyncio.to_thread(
            judge_all, jobs, plan, time.time(), failed.__setitem__, lambda: time.monotonic() > enough
        )
        self._next_s = time.monotonic() + _LOOK_S
        for name, error in failed.items():
            log.warning("deadline not checked", job=name, error=excerpt(error))
        due = {asked[name][0]: judged for name, judged in found.items()}
        for key, each in turn.items():
            if each.deadline_s is None:
                due[key] = Judged(annotations=_without_verdict(each.job), final=True)
        begun, postponed = self._take_in(turn, due, group)
        # These jobs come last in the next check; among them, jobs whose write was postponed come first.
        looked_at = [*(asked[name][0] for name in failed), *due]
        for key in dict.fromkeys((*postponed, *looked_at)):
            if self._followed.get(key) is turn[key]:
                self._followed[key] = self._followed.pop(key)
        # A namespace that needed writes and got none keeps its place in the order.
        missed = {namespace for namespace, _ in postponed} - {namespace for namespace, _ in begun}
        self._served |= {namespace: self._looks for namespace, _ in looked_at if namespace not in missed}
        self._measure()

    def _take_in(
        self, turn: Mapping[Key, _Followed], due: Mapping[Key, Judged], group: asyncio.TaskGroup
    ) -> tuple[list[Key], list[Key]]:
        """Stores the results, and writes changes in turn for each namespace; within one, new verdicts and removals come
        first. Returns the jobs that are written, and the jobs that exceed the number of writes."""
        there = [key for key in due if self._followed.get(key) is turn[key]]  # without jobs deleted in the meantime
        writes = [key for key in there if due[key].annotations or turn[key].deadline_s is None]
        writes.sort(key=lambda key: not (due[key].reached or turn[key].deadline_s is None))
        writes = round_robin(writes, self._served)
        begun, postponed = writes[:_WRITES], writes[_WRITES:]
        unwritten = frozenset(postponed)
        for key in there:
            each, judged = turn[key], due[key]
            if key in unwritten or each.deadline_s is None:
                continue
            each.doubt, each.verdict, each.slack_s = judged.doubt, judged.verdict, judged.slack_s
            if judged.final and not judged.annotations:
                del self._followed[key]
        for key in begun:
            self._begin_write(key, turn[key], due[key], group)
        return begun, postponed

    def _begin_write(self, key: Key, each: _Followed, judged: Judged, group: asyncio.TaskGroup) -> None:
        # Without the resourceVersion: only this operator writes these annotations.
        write = AnnotationWrite(each.job, judged.annotations, versioned=False)
        self._writer.begin(write, partial(self._written, key, each, judged), group)

    def _written(self, key: Key, each: _Followed, judged: Judged, failure: WriteFailure | None) -> None:
        if failure is not None:
            if failure.kind not in ("conflict", "gone"):  # these only mean that the job was deleted or recreated
                bug = "bug: " if failure.kind == "bug" else ""
                log.warning(f"{bug}deadline not written", job=key, error=excerpt(failure.error))
            return
        for event in judged.events:
            if each.event_due(event.reason):
                self._recorder.record(each.job, event)
        if judged.reached in ("met", "missed"):
            metrics.DEADLINES.labels(judged.reached).inc()
        if judged.final and self._followed.get(key) is each:
            del self._followed[key]

    def _measure(self) -> None:
        verdicts = Counter(each.verdict for each in self._followed.values())
        for verdict in VERDICTS:
            metrics.DEADLINE_JOBS.labels(verdict).set(verdicts[verdict])
        slacks = [each.slack_s for each in self._followed.values() if each.slack_s is not None]
        for name, value in (("least", min(slacks, default=0.0)), ("median", median(slacks) if slacks else 0.0)):
            metrics.DEADLINE_SLACK.labels(name).set(value)


def _closed(job: TFJob) -> bool:
    """Whether a finished job has its final verdict already."""
    known = NoticesSent.of(job.annotations, job.uid).judged
    return known is not None and known.verdict in ("met", "missed") and job.status().finished


def _without_verdict(job: TFJob) -> dict[str, str | None]:
    """The annotations to write for a job that no longer has a deadline."""
    sent = replace(NoticesSent.of(job.annotations, job.uid), judged=None)
    return {name: text for name, text in sent.to_annotations(job.uid).items() if job.annotations.get(name) != text}


log = structlog.get_logger(__name__)

# A job in an error message, as namespace and name.
_NAMED: Final = re.compile(r"([a-z0-9-]+)/([a-z0-9.-]+)")
# Maximum characters of an error in an event.
_WORDS: Final = 500
# Seconds for which a plan's forecasts are shown: some profiles plan only every half hour.
_BELIEVED_S: Final = 3600.0
# Least seconds between two events about a requested size of one job: with the same reason, and with different ones, as
# the room for it may change in each round.
_UNMET_AGAIN_S: Final = 600.0
_UNMET_CHANGED_S: Final = 10.0


class JobEvents:
    """Sends all events of the scheduling loop. `follow` must be called with each new or changed job, and `look` in each
    round. `entries` record which events jobs have got."""

    def __init__(
        self, api: ApiClient, jobs: Informer[TFJob], recorder: EventRecorder, entries: Mapping[Key, JobEntry]
    ) -> None:
        self._jobs = jobs
        self._recorder = recorder
        self._entries = entries
        writer = AnnotationWriter(api, jobs.seen, "notices")
        self._verdicts = DeadlineEvents(jobs, recorder, writer)
        self._losses = LossEvents(jobs, recorder, writer)
        # By namespace and checkpoint place: the jobs that use the place, with their uids.
        self._places: dict[tuple[str, str], dict[Key, str]] = {}
        self._plan: Plan | None = None
        self._unmet: Mapping[str, Reason] = {}
        """By job, why the last plan does not give it the size that a person requests."""
        self._unmet_told: dict[str, tuple[str, Reason, float]] = {}
        """By job, the UID and the reason in its last event of this, and when that was recorded."""

    def follow(self, entry: JobEntry, job: TFJob | None) -> None:
        """Takes the job as it is now; None: it no longer exists."""
        self._verdicts.follow(entry.key, job)
        if job is None:
            self._losses.forget(entry.key)
            entry.notices_sent = None
            self._leave_place(entry)

    def described(self, entry: JobEntry, view: JobView) -> None:
        """Sends the events that follow from a job's description."""
        if view.source is not None:
            self._take_place(entry, view.source, view.request)
        if view.source is None or not view.followed:
            return
        for problem in view.request.problems if view.request is not None else ():
            self._recorder.record(view.source, Event("Warning", "KueueQuota", problem))
        if view.job is None and view.pending_since_s is not None:
            nodes = ", ".join(sorted({node for node in view.pending.values() if node})) or "any node"
            message = (
                f"Its pods did not start on {nodes} in time, so the capacity reserved for them is given to other jobs"
            )
            self._recorder.record(view.source, Event("Warning", "NotScheduled", message))

    def _take_place(self, entry: JobEntry, job: TFJob, request: JobRequest | None) -> None:
        """Sends one event to each of two jobs in a namespace that write their checkpoints to the same place."""
        place = request.place if request is not None else None
        if place is None or job.deleting:
            self._leave_place(entry)
            return
        where = job.namespace, place
        if entry.checkpoints != where:
            self._leave_place(entry)
        there = self._places.setdefault(where, {})
        if there.get(job.key) == job.uid:
            return
        there[job.key], entry.checkpoints = job.uid, where
        others = [other for key in there if key != job.key and (other := self._jobs.one(key)) is not None]
        for one, other in [(job, other) for other in others[:1]] + [(other, job) for other in others[:1]]:
            message = (
                f"TFJob {other.name} writes its checkpoints to the same place ({place[:_WORDS]}). Give each job its "
                "own checkpoint-dir: while one of them trains, the program of the other one ends with an error"
            )
            self._recorder.record(one, Event("Warning", "CheckpointDirShared", message))

    def _leave_place(self, entry: JobEntry) -> None:
        where, entry.checkpoints = entry.checkpoints, None
        if where is not None:
            there = self._places[where]
            there.pop(entry.key, None)
            if not there:
                del self._places[where]

    def by_needs(self, key: Key, found: JobView, now_s: float, needs: Set[str]) -> None:
        """Notes events about the loss or the remaining work, if the profile decides by one of these. `needs`: the
        actions and observations that the profile needs."""
        if "loss" in needs or ({"use", "move", "cpu"} <= needs and "deadline" not in needs):
            self._losses.look(key, found, now_s, by_loss="loss" in needs)

    def skipped(self, job: TFJob, error: BaseException, retry_s: float) -> None:
        """Sends the event that the scheduler skips the job for `retry_s` seconds because of this error."""
        why = self._for_owner(job, error) if isinstance(error, ProfileError) else str(error) or type(error).__name__
        message = f"Skipped by the scheduler, retry in {retry_s:.0f} s: {why}"[:_WORDS]
        self._recorder.record(job, Event("Warning", "NotScheduled", message))

    def _for_owner(self, job: TFJob, error: ProfileError) -> str:
        """The words of a profile's error; only its type if the message names another job, whose owner may be another
        person."""
        named = set(_NAMED.findall(error.what)) - {job.key}
        if named.isdisjoint(self._entries):
            return error.for_owner
        return f"profile {error.profile}: {error.what.partition(':')[0]}"

    def forecast(self, key: Key) -> Forecast | None:
        """The last plan's forecast for a job that holds nodes. None: the plan does not include the job, or it is older
        than an hour because rounds fail."""
        plan = self._plan
        if plan is None or time.time() - plan.snapshot.now > _BELIEVED_S:
            return None
        try:
            return plan.forecasts.of_holder(f"{key[0]}/{key[1]}")
        except Exception as error:
            log.error("bug: forecast failed", job=key, error=excerpt(error), trace=trace(error))
            return None

    async def look(self, plan: Plan | None, group: asyncio.TaskGroup) -> None:
        """Sends the events that follow from this round's plan (None: there is none), with writes in `group`."""
        self._plan = plan
        try:
            self._record_kept(plan.kept if plan is not None else {})
            if plan is not None:
                self._unmet = plan.sizes_without_room
            self._record_unmet()
            # A job whose verdict is being written gets its other events in a later round: these are not urgent.
            await self._verdicts.look(plan, group)
            self._losses.send_due(group)
        except Exception as error:
            log.error("bug: job events not sent", error=excerpt(error), trace=trace(error))

    def _record_kept(self, kept: Mapping[str, Reason]) -> None:
        """Sends events about jobs that the profile wanted to stop or move but cannot; each reason once per job."""
        for name, why in kept.items():
            namespace, _, job_name = name.partition("/")
            key = namespace, job_name
            job, entry = self._jobs.one(key), self._entries.get(key)
            if job is None or entry is None:
                continue
            if entry.notices_sent is None or entry.notices_sent[0] != job.uid:
                entry.notices_sent = job.uid, set()
            if why.code not in (sent := entry.notices_sent[1]):
                sent.add(why.code)
                message = f"The profile wanted to stop or move this job, but cannot: {why}"
                self._recorder.record(job, Event("Normal", "NotStopped", message))

    def _record_unmet(self) -> None:
        """Sends events about jobs that do not get the size that a person requests: when the reason changes, and again
        while it holds. The API server deletes events after an hour, and the recorder leaves out one that it has just
        written, also if another reason held meanwhile."""
        for name in self._unmet_told.keys() - self._unmet.keys():
            del self._unmet_told[name]
        now_s = time.monotonic()
        for name, why in self._unmet.items():
            namespace, _, job_name = name.partition("/")
            job = self._jobs.one((namespace, job_name))
            if job is None:
                continue
            uid, said, at_s = self._unmet_told.get(name, ("", why, 0.0))
            if uid == job.uid and now_s - at_s < (_UNMET_AGAIN_S if said == why else _UNMET_CHANGED_S):
                continue
            self._unmet_told[name] = job.uid, why, now_s
            self._recorder.record(job, Event("Normal", "RescalePending", f"The job keeps its size: {why}"))

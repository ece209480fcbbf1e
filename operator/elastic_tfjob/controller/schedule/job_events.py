"""The events that the scheduling loop sends to jobs: about deadlines, the training loss, and why a job is not
scheduled, stopped or moved.

Nothing is decided here, and no error here delays a target.
"""

import asyncio
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
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.snapshot import Job as CoreJob
from elastic_tfjob.speed.growth import RECENT, LossState

__all__ = ["DeadlineEvents", "JobEvents", "LossEvents", "unadjusted", "unusable"]

# -- Events about the training loss and the work left ------------------------------------------------------------------
# A job gets them where the profile decides by its training loss (there is none, it is no number, or it rises), or by
# the work that it has left (the amount is unknown, or the job's resources cannot be changed).
#
# Each event is sent once, after an annotation has recorded it: so another operator does not send it again.

PATIENCE_S: Final = 60.0
"""Seconds after which a job that trains and reports its steps has had the time to report its loss."""
# Writes that are under way at once, of all namespaces and of one: a profile that goes by the loss may come to thousands
# of jobs that report none, and the webhook of one tenant may be slow.
_AT_ONCE: Final = 100
_OF_ONE: Final = 20

_NUMBERS: Final[Mapping[LossState, Topic]] = {"nan": "loss-nan", "inf": "loss-inf"}
_FALLS: Final = "it is treated like a job whose loss falls fast, and is not moved to make room for others"
_SAYS: Final[Mapping[Topic, str]] = {
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
    """What keeps a profile that decides by the work left from doing more for a running job, as far as it is known."""
    if not job.placement or job.phase != "running":
        return
    if not job.spec.movable:
        yield "all-kept"
        return  # so it does not matter what it has left
    if not job.spec.resizable or job.spec.fixed_cpu:
        yield "cpu-kept"
    if job.spec.total_steps is None and job.steps > 0 and now_s - job.since_s >= PATIENCE_S:
        yield "work-unknown"


def unusable(job: CoreJob, now_s: float) -> Topic | None:
    """What is wrong with the loss of a job that trains, `loss-absent` where it has never reported one; None: nothing,
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
    """`look` is given each job that is new or has changed, and `tell` called in each round. `writer` is that of the
    verdicts, too: one write of a job at a time, as they share an annotation."""

    def __init__(self, jobs: Informer[objects.TFJob], recorder: EventRecorder, writer: AnnotationWriter) -> None:
        self._jobs = jobs
        self._recorder = recorder
        self._writer = writer
        # Jobs of which a write of this one's is under way.
        self._writing: set[Key] = set()
        self._due: dict[Key, Topic] = {}
        # By namespace the last turn that it had.
        self._served: dict[str, int] = {}
        self._turns = 0

    def look(self, key: Key, found: JobView, now_s: float, *, by_loss: bool = True) -> None:
        """Find the event that the job is to get, where the profile decides by the loss, or else by the work left."""
        job, source = found.job, found.source
        topics = [*_topics(job, now_s, by_loss=by_loss)] if job is not None else []
        known = _told(source) if source is not None and topics else frozenset()
        topic = next((topic for topic in topics if topic not in known), None)
        if topic is None or source is None:
            self._due.pop(key, None)
        else:
            self._due[key] = topic

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._due.pop(key, None)

    def tell(self, group: asyncio.TaskGroup) -> None:
        """Send the events that are due, beside later rounds: one job of each namespace after the other."""
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
            # The job as it is now: another round may have recorded the event meanwhile.
            job = self._jobs.one(key)
            if job is None or topic in _told(job) or not room_for_notices(job.annotations):
                continue
            sent = NoticesSent.of(job.annotations, job.uid)
            text = replace(sent, told=sent.told | {topic}).to_json(job.uid)
            # Without its version: nobody else writes this annotation.
            write = AnnotationWrite(job, {NOTICES_ANNOTATION: text}, versioned=False)
            self._writing.add(key)
            self._writer.begin(write, partial(self._written, job, topic), group, partial(self._writing.discard, key))
            under_way[namespace] += 1
            free -= 1

    def _written(self, job: objects.TFJob, topic: Topic, failure: WriteFailure | None) -> None:
        if failure is None:
            self._recorder.record(job, _event(topic))
        elif failure.kind not in ("conflict", "gone"):  # which mean another job of its name at most
            bug = "bug: " if failure.kind == "bug" else ""
            log.warning(f"{bug}notices not written", job=job.key, error=excerpt(failure.error))
            if failure.kind == "failed":
                self._due.setdefault(job.key, topic)


def _topics(job: CoreJob, now_s: float, *, by_loss: bool) -> Iterator[Topic]:
    """What the job can be told, the most important first. A profile that decides by the loss moves jobs, too."""
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
    says = f"The profile uses the training loss, but {_SAYS[topic]}"
    rises = topic in ("loss-never-fell", "loss-rises")
    return Event("Warning", "LossRises", says) if rises else Event("Warning", "LossUnusable", says)


def _told(job: objects.TFJob) -> frozenset[Topic]:
    return NoticesSent.of(job.annotations, job.uid).told


# -- Keeps what people see of deadlines up to date ---------------------------------------------------------------------
# Annotations, events and metrics, beside the rounds of scheduling.
#
# A verdict is told once it is stored, so that no operator tells it a second time; one that is killed between the two
# leaves the event out, and the annotation has the words.

_LOOK_S: Final = 10.0
# Seconds that a look takes at most: a job takes 0.3 ms, a late one 2 ms. Jobs that it does not reach come first next.
_MOST_S: Final = 0.2
# Jobs of one look, one of each namespace after the other; and its writes at most.
_VERDICTS_AT_ONCE: Final = 1000
_WRITES: Final = 100
# Least seconds between two events of a verdict that may change back and forth; the annotation has the newest words.
_AGAIN_S: Final = 600.0
_WAVERS: Final = ("DeadlineAtRisk", "DeadlineUnattainable")


@dataclass(slots=True)
class _Followed:
    """A job with a deadline (Unix time). `deadline_s` None: its user has taken the deadline away, and what was written
    about it is to go."""

    job: TFJob
    deadline_s: float | None
    doubt: Doubt | None = None
    verdict: Verdict | None = None
    slack_s: float | None = None
    told_s: dict[str, float] = field(default_factory=dict)
    """When events of these reasons were told last (monotonic seconds)."""

    def may_tell(self, reason: str) -> bool:
        """Whether an event of this reason is due, which it then counts as."""
        now = time.monotonic()
        if reason in _WAVERS and now < self.told_s.get(reason, -inf) + _AGAIN_S:
            return False
        self.told_s[reason] = now
        return True


class DeadlineEvents:
    """`follow` is given each job that is new or has changed, and `look` is called in each round with its plan."""

    def __init__(self, jobs: Informer[TFJob], recorder: EventRecorder, writer: AnnotationWriter) -> None:
        self._jobs = jobs
        self._writer = writer
        self._recorder = recorder
        self._followed: dict[Key, _Followed] = {}
        self._next_s = 0.0
        # By namespace the last look that had a turn for it.
        self._served: dict[str, int] = {}
        self._looks = 0

    def follow(self, key: Key, job: TFJob | None) -> None:
        """The job as it is now; None: it is gone."""
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
        """Judge the jobs whose turn it is, by the plan of this round (None: there is none), and write what is new in
        `group`, beside later rounds."""
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
            # A round may have read the job before the last write of its verdict, which it would tell once more.
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
        # They come last the next time, and of them first those for which there was no write left.
        looked_at = [*(asked[name][0] for name in failed), *due]
        for key in dict.fromkeys((*postponed, *looked_at)):
            if self._followed.get(key) is turn[key]:
                self._followed[key] = self._followed.pop(key)
        # A namespace that needed writes and had none comes first again.
        missed = {namespace for namespace, _ in postponed} - {namespace for namespace, _ in begun}
        self._served |= {namespace: self._looks for namespace, _ in looked_at if namespace not in missed}
        self._measure()

    def _take_in(
        self, turn: Mapping[Key, _Followed], due: Mapping[Key, Judged], group: asyncio.TaskGroup
    ) -> tuple[list[Key], list[Key]]:
        """Keep what was found, and write what is new: one job of each namespace after the other, and of each first what
        is reached or is to go. Gives the jobs that are written, and those for which there was no write left."""
        there = [key for key in due if self._followed.get(key) is turn[key]]  # others went meanwhile
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
        # Without its version: nobody else writes these annotations.
        write = AnnotationWrite(each.job, judged.annotations, versioned=False)
        self._writer.begin(write, partial(self._written, key, each, judged), group)

    def _written(self, key: Key, each: _Followed, judged: Judged, failure: WriteFailure | None) -> None:
        if failure is not None:
            if failure.kind not in ("conflict", "gone"):  # which mean another job of its name at most
                bug = "bug: " if failure.kind == "bug" else ""
                log.warning(f"{bug}deadline not written", job=key, error=excerpt(failure.error))
            return
        for event in judged.events:
            if each.may_tell(event.reason):
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
    """Whether all has been said of a job that has ended."""
    known = NoticesSent.of(job.annotations, job.uid).judged
    return known is not None and known.verdict in ("met", "missed") and job.status().finished


def _without_verdict(job: TFJob) -> dict[str, str | None]:
    """What to write where a job has no deadline any more."""
    sent = replace(NoticesSent.of(job.annotations, job.uid), judged=None)
    return {name: text for name, text in sent.to_annotations(job.uid).items() if job.annotations.get(name) != text}


log = structlog.get_logger(__name__)

# Characters of an error in an event.
_WORDS: Final = 500
# Seconds for which a plan's forecasts are shown: some profiles plan every half hour only.
_BELIEVED_S: Final = 3600.0


class JobEvents:
    """`follow` is given each job that is new or has changed, and `look` is called in each round. What jobs were told is
    in their `entries`."""

    def __init__(
        self, api: ApiClient, jobs: Informer[TFJob], recorder: EventRecorder, entries: Mapping[Key, JobEntry]
    ) -> None:
        self._jobs = jobs
        self._recorder = recorder
        self._entries = entries
        writer = AnnotationWriter(api, jobs.seen, "notices")
        self._verdicts = DeadlineEvents(jobs, recorder, writer)
        self._losses = LossEvents(jobs, recorder, writer)
        # The jobs, with their uids, that have their checkpoints in a place of a namespace.
        self._places: dict[tuple[str, str], dict[Key, str]] = {}
        self._plan: Plan | None = None

    def follow(self, entry: JobEntry, job: TFJob | None) -> None:
        """The job as it is now; None: it is gone."""
        self._verdicts.follow(entry.key, job)
        if job is None:
            self._losses.forget(entry.key)
            entry.notices_sent = None
            self._leave_place(entry)

    def described(self, entry: JobEntry, scheduled: JobView) -> None:
        """Send the events that follow from a job's description."""
        if scheduled.source is not None:
            self._take_place(entry, scheduled.source, scheduled.terms)
        if scheduled.source is None or not scheduled.followed:
            return
        for problem in scheduled.terms.problems if scheduled.terms is not None else ():
            self._recorder.record(scheduled.source, Event("Warning", "KueueQuota", problem))
        if scheduled.job is None and scheduled.pending_since_s is not None:
            nodes = ", ".join(sorted({node for node in scheduled.pending.values() if node})) or "any node"
            message = (
                f"Its pods did not start on {nodes} in time, so the capacity reserved for them is given to other jobs"
            )
            self._recorder.record(scheduled.source, Event("Warning", "NotScheduled", message))

    def _take_place(self, entry: JobEntry, job: TFJob, terms: JobRequest | None) -> None:
        """Tell both jobs, once, where two of a namespace write their checkpoints to one place."""
        place = terms.place if terms is not None else None
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
        """Note events about the loss or the work left, where the profile decides by these."""
        if "loss" in needs or ({"use", "move", "cpu"} <= needs and "deadline" not in needs):
            self._losses.look(key, found, now_s, by_loss="loss" in needs)

    def skipped(self, job: TFJob, error: BaseException, retry_s: float) -> None:
        """Nothing is decided for the job for this time."""
        message = f"Skipped by the scheduler, retry in {retry_s:.0f} s: {str(error) or type(error).__name__}"[:_WORDS]
        self._recorder.record(job, Event("Warning", "NotScheduled", message))

    def forecast(self, key: Key) -> Forecast | None:
        """The last plan's forecast for a job that holds nodes. None: no plan has the job, or the last plan is old since
        rounds fail."""
        plan = self._plan
        if plan is None or time.time() - plan.snapshot.now > _BELIEVED_S:
            return None
        try:
            return plan.forecasts.of_holder(f"{key[0]}/{key[1]}")
        except Exception as error:
            log.error("bug: forecast failed", job=key, error=excerpt(error), trace=trace(error))
            return None

    async def look(self, plan: Plan | None, group: asyncio.TaskGroup) -> None:
        """Send what is new by the plan of this round (None: there is none), with writes in `group`."""
        self._plan = plan
        try:
            self._tell_kept(plan.kept if plan is not None else {})
            # A job of which a verdict is being written is told the rest in a later round: that can wait.
            await self._verdicts.look(plan, group)
            self._losses.tell(group)
        except Exception as error:
            log.error("bug: job events not sent", error=excerpt(error), trace=trace(error))

    def _tell_kept(self, kept: Mapping[str, Reason]) -> None:
        """Each reason once."""
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

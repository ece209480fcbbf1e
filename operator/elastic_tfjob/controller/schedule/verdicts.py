"""Keeps what people see of deadlines up to date: annotations, events and metrics, beside the rounds of scheduling.

A verdict is told once it is stored, so that no operator tells it a second time; one that is killed between the two
leaves the event out, and the annotation has the words.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from math import inf
from statistics import median
from typing import Final

import structlog

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.events import Recorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.objects.verdict import DEADLINE_ANNOTATION, VERDICTS, DeadlineStatus, Verdict, deadline_of
from elastic_tfjob.controller.schedule.annotation_writer import AnnotationWriter, Failure, Write
from elastic_tfjob.controller.schedule.deadlines import Doubt, Judged, judge_all
from elastic_tfjob.scheduling.plan import Plan

__all__ = ["Verdicts"]

log = structlog.get_logger(__name__)

_LOOK_S: Final = 10.0
# So long a look takes at most: a job takes 0.3 ms, one that is late 2 ms. Those that it does not come to are next.
_MOST_S: Final = 0.2
# Jobs that one look is about, in turn; and what it writes at most.
_AT_ONCE: Final = 1000
_WRITES: Final = 100
# What may change back and forth is told of a job no more often than this; its annotation has the newest words.
_AGAIN_S: Final = 600.0
_WAVERS: Final = ("DeadlineAtRisk", "DeadlineUnattainable")


@dataclass(slots=True)
class _Followed:
    """A job with a deadline (Unix time). `deadline_s` None: its user has taken the deadline away, and what was written
    about it is to go."""

    job: Job
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


class Verdicts:
    """`follow` is told of each job that is new or has changed, `look` called in each round with its plan."""

    def __init__(self, api: ApiClient, jobs: Informer[Job], recorder: Recorder) -> None:
        self._jobs = jobs
        self._writer = AnnotationWriter(api, jobs.seen, "deadline")
        self._recorder = recorder
        self._followed: dict[Key, _Followed] = {}
        self._next_s = 0.0

    def follow(self, key: Key, job: Job | None) -> None:
        """The job as it is now; None: it is gone."""
        deadline_s = deadline_of(job) if job is not None and not job.deleting else None
        if job is None or job.deleting or (deadline_s is None and DEADLINE_ANNOTATION not in job.annotations):
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
        chosen = [key for key in self._followed if key not in self._writer][:_AT_ONCE]
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
            log.warning("deadline not judged", job=name, error=excerpt(error))
        writes = _WRITES
        postponed: list[Key] = []
        for name, judged in sorted(found.items(), key=lambda item: not item[1].reached):
            key, each = asked[name]
            if self._followed.get(key) is not each:
                continue  # it went meanwhile
            if judged.annotations and not writes:
                postponed.append(key)
                continue
            each.doubt, each.verdict, each.slack_s = judged.doubt, judged.verdict, judged.slack_s
            if judged.annotations:
                writes -= 1
                self._begin_write(key, each, judged, group)
            elif judged.final:
                del self._followed[key]
        for key, each in turn.items():
            if each.deadline_s is not None or self._followed.get(key) is not each:
                continue
            if not writes:
                postponed.append(key)
                continue
            writes -= 1
            nothing: dict[str, str | None] = dict.fromkeys(DeadlineStatus.names(each.job.annotations))
            self._begin_write(key, each, Judged(annotations=nothing, final=True), group)
        # They come last the next time, and of them first those for which there was no write left.
        for key in dict.fromkeys([*postponed, *(asked[name][0] for name in (*found, *failed))]):
            if self._followed.get(key) is turn[key]:
                self._followed[key] = self._followed.pop(key)
        self._measure()

    def _begin_write(self, key: Key, each: _Followed, judged: Judged, group: asyncio.TaskGroup) -> None:
        # Without its version: nobody else writes these annotations.
        write = Write(each.job, judged.annotations, versioned=False)
        self._writer.begin(write, partial(self._written, key, each, judged), group)

    def _written(self, key: Key, each: _Followed, judged: Judged, failure: Failure | None) -> None:
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


def _closed(job: Job) -> bool:
    """Whether all has been said of a job that has ended."""
    known = DeadlineStatus.of(job.annotations, job.uid)
    return known is not None and known.verdict in ("met", "missed") and job.status().finished

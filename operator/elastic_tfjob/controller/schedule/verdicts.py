"""Keeps what people see of deadlines up to date: annotations, events and metrics, beside the rounds of scheduling.

A verdict is told once it is stored, so that no operator tells it a second time; one that is killed between the two
leaves the event out, and the annotation has the words.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
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
from elastic_tfjob.controller.schedule.turns import in_turn
from elastic_tfjob.scheduling.plan import Plan

__all__ = ["Verdicts"]

log = structlog.get_logger(__name__)

_LOOK_S: Final = 10.0
# So long a look takes at most: a job takes 0.3 ms, one that is late 2 ms. Those that it does not come to are next.
_MOST_S: Final = 0.2
# Jobs that one look is about, namespace after namespace in turn; and what it writes at most.
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
        # By namespace the last look that had a turn for it.
        self._served: dict[str, int] = {}
        self._looks = 0

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
        present = {namespace for namespace, _ in self._followed}
        self._served = {name: look for name, look in self._served.items() if name in present}
        self._looks += 1
        chosen = in_turn((key for key in self._followed if key not in self._writer), self._served)[:_AT_ONCE]
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
        due = {asked[name][0]: judged for name, judged in found.items()}
        for key, each in turn.items():
            if each.deadline_s is None:
                nothing: dict[str, str | None] = dict.fromkeys(DeadlineStatus.names(each.job.annotations))
                due[key] = Judged(annotations=nothing, final=True)
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
        writes = in_turn(writes, self._served)
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

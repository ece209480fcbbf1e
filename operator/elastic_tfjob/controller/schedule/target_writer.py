"""Targets as they are written: when, and what follows where one cannot be."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.objects.annotations import TARGET_ANNOTATION, claim
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.outcomes import EXPECTS_ANNOTATION
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.objects.status import parse_time
from elastic_tfjob.controller.objects.target import Target
from elastic_tfjob.controller.schedule.annotation_writer import AnnotationWriter, Failure, Write
from elastic_tfjob.controller.schedule.scheduled_job import ScheduledJob

__all__ = ["TargetWriter"]

log = structlog.get_logger(__name__)

# Why a job waits may be worded with figures that change all the time, and a profile may remember such figures.
_REASON_S: Final = 10.0
# So long a size that a job could not get is left alone. The first time it was mostly by chance: a program crashed.
_REFUSED_S: Final = 10.0
_REFUSED_AGAIN_S: Final = 120.0
_MAX_REFUSED_S: Final = 3600.0


@dataclass(slots=True)
class _Refusal:
    """A size that a job could not get. `until` is Unix time."""

    generation: int
    replicas: Mapping[str, int]
    delay_s: float
    until: float


class TargetWriter:
    """Writes targets. `known` gives what is known of a job; `touched` has the next round decide anew for one, `later`
    some later round, and `leave_out` none for a while, for the error that says why."""

    def __init__(
        self,
        api: ApiClient,
        jobs: Informer[Job],
        *,
        known: Callable[[Key], ScheduledJob | None],
        touched: Callable[[Key], None],
        later: Callable[[Key], None],
        leave_out: Callable[[Key, BaseException], None],
    ) -> None:
        self._writer = AnnotationWriter(api, jobs.seen, "target")
        self._known = known
        self._touched = touched
        self._later = later
        self._leave_out = leave_out
        self._refusals: dict[Key, _Refusal] = {}
        self._reasoned_at: dict[Key, float] = {}
        # Jobs whose target is being written, and for which a round has decided again meanwhile.
        self._overtaken: set[Key] = set()

    def forget(self, key: Key) -> None:
        """A job is gone."""
        self._refusals.pop(key, None)
        self._reasoned_at.pop(key, None)

    def begin(self, key: Key, target: Target, now: float, group: asyncio.TaskGroup) -> "asyncio.Task[None] | None":
        """Write a target, beside later rounds if it takes long. None: it is too early for it, or the job's last write
        is still under way; when that has ended the job is looked at again."""
        if key in self._writer:
            self._overtaken.add(key)
            return None
        try:
            write = self._make(key, target, now)
        except Exception as error:  # which touches no other job
            self._leave_out(key, error)
            return None
        if write is None:
            return None
        return self._writer.begin(write, partial(self._ended, key, target), group, partial(self._freed, key))

    def _freed(self, key: Key) -> None:
        if key in self._overtaken:
            self._overtaken.discard(key)
            self._touched(key)

    def note_refusal(self, key: Key, found: ScheduledJob) -> None:
        """Remember a size that the job could not get, so that it is not tried again at once."""
        target, state = found.target, found.state
        if target is None or state is None or state.refused is None or state.refused.generation != target.generation:
            return
        known = self._refusals.get(key)
        if known is not None and known.generation == target.generation:
            return
        # One that was committed has cost a pause, and another one to return from it.
        delay_s = _REFUSED_S if state.generation < target.generation else _REFUSED_AGAIN_S
        if known is not None and known.replicas == target.replicas:
            delay_s = min(max(2 * known.delay_s, _REFUSED_AGAIN_S), _MAX_REFUSED_S)
        until = parse_time(state.refused.at).timestamp() + delay_s
        self._refusals[key] = _Refusal(target.generation, target.replicas, delay_s, until)

    def _may_write(self, key: Key, before: Target | None, target: Target, now: float) -> bool:
        known = self._refusals.get(key)
        if known is not None and known.replicas == target.replicas and now < known.until:
            self._later(key)
            return False
        if before is not None and (
            not (before.replicas or target.replicas)
            or replace(before, reason=target.reason, memory=target.memory) == target
        ):
            if now - self._reasoned_at.get(key, 0.0) < _REASON_S:
                self._later(key)
                return False
            self._reasoned_at[key] = now
        return True

    def _make(self, key: Key, target: Target, now: float) -> Write | None:
        """What to store; None: it is too early for it."""
        scheduled = self._known(key)
        job = scheduled.source if scheduled is not None else None
        if scheduled is None or job is None or not self._may_write(key, scheduled.target, target, now):
            return None
        written = {**claim(job.annotations, job.uid), TARGET_ANNOTATION: target.to_json()}
        if job.annotations.get(EXPECTS_ANNOTATION) != target.expects_json:
            written[EXPECTS_ANNOTATION] = target.expects_json
        return Write(job, written, versioned=True)

    def _ended(self, key: Key, target: Target, failure: Failure | None) -> None:
        where = {"namespace": key[0], "job": key[1]}
        if failure is None:
            metrics.TARGETS.labels("ok").inc()
            log.info(
                "target",
                **where,
                generation=target.generation,
                replicas=dict(target.replicas),
                nodes=sorted({node for names in target.nodes.values() for node in names}),
                reason=target.reason,
            )
            return
        match failure.kind:
            case "conflict":
                metrics.TARGETS.labels("conflict").inc()
                self._touched(key)  # it has changed since: the next round decides anew
            case "gone":
                metrics.TARGETS.labels("gone").inc()
            case "refused":
                # It would be in each plan, and others would wait for room that it never takes.
                metrics.TARGETS.labels("failed").inc()
                self._leave_out(key, failure.error)
            case "failed":
                metrics.TARGETS.labels("failed").inc()
                log.warning("target not written", **where, error=excerpt(failure.error))
                self._later(key)
            case "bug":
                self._leave_out(key, failure.error)

"""Targets as they are written: when, and what follows where one cannot be."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import structlog

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Invalid, NotFound
from elastic_tfjob.controller.kube.informer import Informer, jobs_path
from elastic_tfjob.controller.kube.supervise import cancels, excerpt
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.status import parse_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.controller.planning.job_view import JobView

__all__ = ["AnnotationWrite", "AnnotationWriter", "TargetWriter", "WriteFailure", "in_turn"]

# -- Annotations of jobs as the scheduling loop writes them ------------------------------------------------------------
# One patch each, beside later rounds where that takes long.
#
# What is written, and what follows from it, is for those who use it (targets, deadlines, what a job was told). Here is
# only how: one write of a job at a time, a limit on how long it takes, and one way to tell errors from each other.

# A write that is not stored after so long is left to a later round: the next one must not wait for a webhook that is
# slow in one namespace.
_WRITE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class AnnotationWrite:
    """Annotations for a job; None takes one away. `versioned`: only if nobody has changed the job since it was read."""

    job: TFJob
    annotations: Mapping[str, str | None]
    versioned: bool


@dataclass(frozen=True, slots=True)
class WriteFailure:
    """Why a write was not stored. `conflict`: the job has changed since it was read, or is another one; `gone`: there
    is none; `refused`: asking again will not help; `failed`: it may help; `bug`: something of ours is wrong."""

    kind: Literal["conflict", "gone", "refused", "failed", "bug"]
    error: BaseException


Ended = Callable[[WriteFailure | None], None]
"""Is told how a write ended; None: it is stored."""


class AnnotationWriter:
    """Writes annotations for one purpose, `what`. `seen` gets the API server's answers."""

    def __init__(self, api: ApiClient, seen: Callable[[Mapping[str, Any]], None], what: str) -> None:
        self._api = api
        self._seen = seen
        self._what = what
        self._writing: set[Key] = set()

    def __len__(self) -> int:
        """How many writes are under way."""
        return len(self._writing)

    def __iter__(self) -> Iterator[Key]:
        """The jobs of which a write is under way."""
        return iter(self._writing)

    def __contains__(self, key: Key) -> bool:
        """Whether a write of this job is under way: the next one has to wait for it."""
        return key in self._writing

    def begin(
        self, write: AnnotationWrite, ended: Ended, group: asyncio.TaskGroup, freed: Callable[[], None] = lambda: None
    ) -> "asyncio.Task[None]":
        """Write in `group`. `ended` is told how that ended; an error of its own is a `bug`, too. `freed` is called when
        the job's next write may begin. Whatever goes wrong touches no other job."""
        key = write.job.key
        self._writing.add(key)
        task = group.create_task(self._write(write, ended), name=f"{self._what}-{key[0]}-{key[1]}")

        # Not in the task itself, which may be cancelled before it begins.
        def done(_: "asyncio.Task[None]") -> None:
            self._writing.discard(key)
            freed()

        task.add_done_callback(done)
        return task

    async def _write(self, write: AnnotationWrite, ended: Ended) -> None:
        try:
            ended(await self._store(write))
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            ended(WriteFailure("bug", error))

    async def _store(self, write: AnnotationWrite) -> WriteFailure | None:
        job = write.job
        version = {"resourceVersion": str(job.version)} if write.versioned else {}
        body = {"metadata": {"uid": job.uid, **version, "annotations": dict(write.annotations)}}
        try:
            async with asyncio.timeout(_WRITE_S):
                answer = await self._api.patch(f"{jobs_path(job.namespace)}/{job.name}", body)
            self._seen(answer)
        except Conflict as error:
            return WriteFailure("conflict", error)
        except NotFound as error:
            return WriteFailure("gone", error)
        except Invalid as error:
            return WriteFailure("refused", error)
        except (ApiError, TimeoutError) as error:
            return WriteFailure("failed", error)
        return None


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
        jobs: Informer[TFJob],
        *,
        known: Callable[[Key], JobView | None],
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

    def note_refusal(self, key: Key, found: JobView) -> None:
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

    def _make(self, key: Key, target: Target, now: float) -> AnnotationWrite | None:
        """What to store; None: it is too early for it."""
        scheduled = self._known(key)
        job = scheduled.source if scheduled is not None else None
        if scheduled is None or job is None or not self._may_write(key, scheduled.target, target, now):
            return None
        return AnnotationWrite(job, {TARGET_ANNOTATION: target.to_json(job.uid)}, versioned=True)

    def _ended(self, key: Key, target: Target, failure: WriteFailure | None) -> None:
        where = {"namespace": key[0], "job": key[1]}
        if failure is None:
            metrics.TARGETS.labels("ok").inc()
            log.info(
                "target",
                **where,
                generation=target.generation,
                replicas=dict(target.replicas),
                nodes=sorted({node for names in target.nodes.values() for node in names}),
                reason=str(target.reason),
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


# -- Whose turn it is, where there is more to do for jobs than is done at once -----------------------------------------


def in_turn(keys: Iterable[Key], served: Mapping[str, int]) -> list[Key]:
    """These jobs so that one of each namespace comes after the other: however many jobs a tenant has, those of others
    do not wait for all of them. Within a namespace their order stays. `served` says when a namespace had a turn last,
    by a number that grows; whose turn is the longest ago (or who had none) comes first."""
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, int, Key]] = []
    for n, key in enumerate(keys):
        ranked.append((seen[key[0]], served.get(key[0], -1), n, key))
        seen[key[0]] += 1
    return [key for *_, key in sorted(ranked)]

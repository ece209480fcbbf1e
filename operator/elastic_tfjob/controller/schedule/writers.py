"""Writes annotations of jobs for the scheduling loop: decides when to write a target, and handles errors."""

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
from elastic_tfjob.controller.schedule.job_entry import JobEntry, RefusedSize

__all__ = ["AnnotationWrite", "AnnotationWriter", "TargetWriter", "WriteFailure", "round_robin"]

# -- Writing annotations -----------------------------------------------------------------------------------------------
# One patch per job, with a time limit; it may last beyond its round. A job has only one write at a time. All errors are
# classified in one place. The callers decide what to write and how to react to the result.

# Seconds after which a write is left to a later round, so that a slow webhook of one namespace delays no round.
_WRITE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class AnnotationWrite:
    """Annotations for a job; None removes one. `versioned`: the API server rejects the write if the job has changed
    since it was read."""

    job: TFJob
    annotations: Mapping[str, str | None]
    versioned: bool


@dataclass(frozen=True, slots=True)
class WriteFailure:
    """Why a write was not stored. `conflict`: the job has changed since it was read, or was recreated; `gone`: it does
    not exist; `refused`: a retry will not help; `failed`: a retry may help; `bug`: the operator has a bug."""

    kind: Literal["conflict", "gone", "refused", "failed", "bug"]
    error: BaseException


Ended = Callable[[WriteFailure | None], None]
"""A function that is called when a write has ended; None: it was stored."""


class AnnotationWriter:
    """Writes annotations for one purpose, named `what`. `seen` is called with the API server's answers."""

    def __init__(self, api: ApiClient, seen: Callable[[Mapping[str, Any]], None], what: str) -> None:
        self._api = api
        self._seen = seen
        self._what = what
        self._writing: set[Key] = set()

    def __len__(self) -> int:
        """The number of unfinished writes."""
        return len(self._writing)

    def __iter__(self) -> Iterator[Key]:
        """The jobs with an unfinished write."""
        return iter(self._writing)

    def __contains__(self, key: Key) -> bool:
        """Whether this job has an unfinished write, for which its next write must wait."""
        return key in self._writing

    def begin(
        self, write: AnnotationWrite, ended: Ended, group: asyncio.TaskGroup, freed: Callable[[], None] = lambda: None
    ) -> "asyncio.Task[None]":
        """Starts a write in `group`. `ended` is called with the result, and once more with a `bug` if it raises an
        error itself. `freed` is called when the job's next write may start. An error affects no other job."""
        key = write.job.key
        self._writing.add(key)
        task = group.create_task(self._write(write, ended), name=f"{self._what}-{key[0]}-{key[1]}")

        # Not in the task itself, which may be cancelled before it starts.
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

# Minimum seconds between two writes that change only the reason or the profile's memory: these may change constantly.
_REASON_S: Final = 10.0
# Seconds until a size to which a resize failed is tried again. A first failure is mostly chance (a program crashed).
_REFUSED_S: Final = 10.0
_REFUSED_AGAIN_S: Final = 120.0
_MAX_REFUSED_S: Final = 3600.0


class TargetWriter:
    """Writes the targets of the jobs in `entries`. `touched` makes the next round decide again for a job and wakes the
    loop; `later` does so without waking it. `failed` is called with an error because of which nothing should be decided
    for the job for a while."""

    def __init__(
        self,
        api: ApiClient,
        jobs: Informer[TFJob],
        *,
        entries: Mapping[Key, JobEntry],
        touched: Callable[[Key], None],
        later: Callable[[Key], None],
        failed: Callable[[Key, BaseException], None],
    ) -> None:
        self._writer = AnnotationWriter(api, jobs.seen, "target")
        self._entries = entries
        self._touched = touched
        self._later = later
        self._failed = failed

    def begin(self, key: Key, target: Target, now: float, group: asyncio.TaskGroup) -> "asyncio.Task[None] | None":
        """Starts writing a target; the write may last beyond this round. Returns None if it is too early for the write,
        or if the job's last write is unfinished; a round decides again for the job once that write has ended."""
        if (entry := self._entries.get(key)) is None:
            return None
        if key in self._writer:
            entry.overtaken = True
            return None
        try:
            write = self._make(entry, target, now)
        except Exception as error:  # affects only this job
            self._failed(key, error)
            return None
        if write is None:
            return None
        return self._writer.begin(write, partial(self._ended, key, target), group, partial(self._freed, key))

    def is_writing(self, key: Key) -> bool:
        """Whether a write for this job is unfinished."""
        return key in self._writer

    def _freed(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.overtaken:
            entry.overtaken = False
            self._touched(key)

    def note_refusal(self, entry: JobEntry, view: JobView) -> None:
        """Notes a size to which the job's resize failed, so that it is not tried again at once."""
        target, state = view.target, view.state
        if target is None or state is None or state.refused is None or state.refused.generation != target.generation:
            return
        known = entry.refused_size
        if known is not None and known.generation == target.generation:
            return
        # A resize that failed after its switch has cost two pauses: one for the switch and one for the rollback.
        delay_s = _REFUSED_S if state.generation < target.generation else _REFUSED_AGAIN_S
        if known is not None and known.replicas == target.replicas:
            delay_s = min(max(2 * known.delay_s, _REFUSED_AGAIN_S), _MAX_REFUSED_S)
        until = parse_time(state.refused.at).timestamp() + delay_s
        entry.refused_size = RefusedSize(target.generation, target.replicas, delay_s, until)

    def _may_write(self, entry: JobEntry, before: Target | None, target: Target, now: float) -> bool:
        known = entry.refused_size
        if known is not None and known.replicas == target.replicas and now < known.until_s:
            self._later(entry.key)
            return False
        if before is not None and (
            not (before.replicas or target.replicas or dict(before.orders) != dict(target.orders))
            or replace(before, reason=target.reason, memory=target.memory) == target
        ):
            if now - entry.reasoned_at_s < _REASON_S:
                self._later(entry.key)
                return False
            entry.reasoned_at_s = now
        return True

    def _make(self, entry: JobEntry, target: Target, now: float) -> AnnotationWrite | None:
        """The write of a target; None: it is too early for it."""
        view = entry.view
        job = view.source if view is not None else None
        if view is None or job is None or not self._may_write(entry, view.target, target, now):
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
                self._touched(key)  # the job has changed: the next round decides again
            case "gone":
                metrics.TARGETS.labels("gone").inc()
            case "refused":
                # Otherwise each plan would reserve capacity for a job that can never get it.
                metrics.TARGETS.labels("failed").inc()
                self._failed(key, failure.error)
            case "failed":
                metrics.TARGETS.labels("failed").inc()
                log.warning("target not written", **where, error=excerpt(failure.error))
                self._later(key)
            case "bug":
                self._failed(key, failure.error)


# -- The order of jobs if a round cannot serve all of them -------------------------------------------------------------


def round_robin(keys: Iterable[Key], served: Mapping[str, int]) -> list[Key]:
    """Orders these jobs with one job of each namespace in turn, so that no namespace waits for all jobs of another one.
    Jobs of the same namespace keep their order. `served` has the number of each namespace's last turn, and these
    numbers grow; the namespace with the smallest number, or with none, comes first."""
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, int, Key]] = []
    for n, key in enumerate(keys):
        ranked.append((seen[key[0]], served.get(key[0], -1), n, key))
        seen[key[0]] += 1
    return [key for *_, key in sorted(ranked)]

"""The scheduling loop's writes to annotations of jobs: when a target is written, and what follows from an error."""

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
# One patch for each job, beside later rounds where it takes long: one write of a job at a time, each with a time limit,
# and one classification of errors. The callers decide what is written and what follows from it.

# Seconds after which a write is left to a later round: no round waits for a webhook that is slow in one namespace.
_WRITE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class AnnotationWrite:
    """Annotations for a job; None removes one. `versioned`: refused if the job has changed since it was read."""

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
"""Is called when a write has ended; None: it is stored."""


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
        """Whether a write of this job is under way, for which the next one has to wait."""
        return key in self._writing

    def begin(
        self, write: AnnotationWrite, ended: Ended, group: asyncio.TaskGroup, freed: Callable[[], None] = lambda: None
    ) -> "asyncio.Task[None]":
        """Write in `group`. `ended` gets the result; an error of its own is a `bug`, too. `freed` is called when the
        job's next write may begin. An error affects no other job."""
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

# Least seconds between two writes that change only the reason or the memory, whose figures may change all the time.
_REASON_S: Final = 10.0
# Seconds until a size that a job could not get is tried again. The first failure was mostly chance: a program crashed.
_REFUSED_S: Final = 10.0
_REFUSED_AGAIN_S: Final = 120.0
_MAX_REFUSED_S: Final = 3600.0


class TargetWriter:
    """Writes targets of the jobs in `entries`. `touched` has the next round decide again for a job, `later` some later
    round; `failed` is called with an error after which nothing is to be decided for the job for a while."""

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
        """Write a target, beside later rounds if it takes long. None: it is too early, or the job's last write is still
        under way; when that has ended, the job is decided for again."""
        if (entry := self._entries.get(key)) is None:
            return None
        if key in self._writer:
            entry.overtaken = True
            return None
        try:
            write = self._make(entry, target, now)
        except Exception as error:  # which touches no other job
            self._failed(key, error)
            return None
        if write is None:
            return None
        return self._writer.begin(write, partial(self._ended, key, target), group, partial(self._freed, key))

    def _freed(self, key: Key) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.overtaken:
            entry.overtaken = False
            self._touched(key)

    def note_refusal(self, entry: JobEntry, view: JobView) -> None:
        """Note a size that the job could not get, so that it is not tried again at once."""
        target, state = view.target, view.state
        if target is None or state is None or state.refused is None or state.refused.generation != target.generation:
            return
        known = entry.refused_size
        if known is not None and known.generation == target.generation:
            return
        # One that was committed has cost a pause, and another one to return from it.
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
            not (before.replicas or target.replicas)
            or replace(before, reason=target.reason, memory=target.memory) == target
        ):
            if now - entry.reasoned_at_s < _REASON_S:
                self._later(entry.key)
                return False
            entry.reasoned_at_s = now
        return True

    def _make(self, entry: JobEntry, target: Target, now: float) -> AnnotationWrite | None:
        """What to store; None: it is too early for it."""
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
                # Else each plan would reserve capacity for a job that never gets it.
                metrics.TARGETS.labels("failed").inc()
                self._failed(key, failure.error)
            case "failed":
                metrics.TARGETS.labels("failed").inc()
                log.warning("target not written", **where, error=excerpt(failure.error))
                self._later(key)
            case "bug":
                self._failed(key, failure.error)


# -- The order of jobs, where a round cannot serve all -----------------------------------------------------------------


def round_robin(keys: Iterable[Key], served: Mapping[str, int]) -> list[Key]:
    """These jobs in an order with one job of each namespace after the other, so that no tenant waits for all jobs of
    another. Within a namespace their order stays. `served` has a growing number for the last turn of each namespace;
    the namespace with the smallest number, or none, comes first."""
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, int, Key]] = []
    for n, key in enumerate(keys):
        ranked.append((seen[key[0]], served.get(key[0], -1), n, key))
        seen[key[0]] += 1
    return [key for *_, key in sorted(ranked)]

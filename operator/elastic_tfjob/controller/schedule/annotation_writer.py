"""Annotations of jobs as the scheduling loop writes them: one patch each, beside later rounds where that takes long.

What is written, and what follows from it, is for those who use it (targets, deadlines, what a job was told). Here is
only how: one write of a job at a time, a limit on how long it takes, and one way to tell errors from each other.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from elastic_tfjob.controller.kube.caches import jobs_path
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Invalid, NotFound
from elastic_tfjob.controller.kube.supervise import cancels
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.parsing import Key

__all__ = ["AnnotationWriter", "Failure", "Write"]

# A write that is not stored after so long is left to a later round: the next one must not wait for a webhook that is
# slow in one namespace.
_WRITE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Write:
    """Annotations for a job; None takes one away. `versioned`: only if nobody has changed the job since it was read."""

    job: Job
    annotations: Mapping[str, str | None]
    versioned: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a write was not stored. `conflict`: the job has changed since it was read, or is another one; `gone`: there
    is none; `refused`: asking again will not help; `failed`: it may help; `bug`: something of ours is wrong."""

    kind: Literal["conflict", "gone", "refused", "failed", "bug"]
    error: BaseException


Ended = Callable[[Failure | None], None]
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
        self, write: Write, ended: Ended, group: asyncio.TaskGroup, freed: Callable[[], None] = lambda: None
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

    async def _write(self, write: Write, ended: Ended) -> None:
        try:
            ended(await self._store(write))
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            ended(Failure("bug", error))

    async def _store(self, write: Write) -> Failure | None:
        job = write.job
        version = {"resourceVersion": str(job.version)} if write.versioned else {}
        body = {"metadata": {"uid": job.uid, **version, "annotations": dict(write.annotations)}}
        try:
            async with asyncio.timeout(_WRITE_S):
                answer = await self._api.patch(f"{jobs_path(job.namespace)}/{job.name}", body)
            self._seen(answer)
        except Conflict as error:
            return Failure("conflict", error)
        except NotFound as error:
            return Failure("gone", error)
        except Invalid as error:
            return Failure("refused", error)
        except (ApiError, TimeoutError) as error:
            return Failure("failed", error)
        return None

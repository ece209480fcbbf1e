"""Events for `kubectl describe`: written in the background, and never at the cost of the work itself."""

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog
from aiolimiter import AsyncLimiter

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, GROUP, KIND, VERSION
from elastic_tfjob.controller import metrics
from elastic_tfjob.controller.client import ApiClient, ApiError, NotFound
from elastic_tfjob.controller.cluster import ConfigMap
from elastic_tfjob.controller.decision import Event
from elastic_tfjob.controller.observed import Job
from elastic_tfjob.controller.status import format_time

__all__ = ["Recorder"]

log = structlog.get_logger(__name__)

_WRITERS: Final = 2
# What the API server can do goes to pods first: so many events a second, and a pause before each while jobs wait.
_PER_S: Final = 50
_PAUSE_S: Final = 0.1
_QUEUE: Final = 100_000
_REMEMBERED: Final = 20_000
# The same event of the same job is written once and then at most so often, with a count: reconciling sees a pod that
# cannot be scheduled many times a minute.
_REPEAT_S: Final = 300.0
_MESSAGE: Final = 1024


Subject = Job | ConfigMap
_TFJOB: Final = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
_CONFIG_MAP: Final = {"apiVersion": "v1", "kind": "ConfigMap"}


class _Seen:
    __slots__ = ("count", "name", "written_at")

    def __init__(self, name: str, written_at: float) -> None:
        self.name = name
        self.count = 1
        self.written_at = written_at


class Recorder:
    """Writes events about jobs, slowly while `busy()`."""

    def __init__(self, api: ApiClient, busy: Callable[[], bool]) -> None:
        self._api = api
        self._busy = busy
        self._queue: asyncio.Queue[tuple[Subject, Event, str, int]] = asyncio.Queue(_QUEUE)
        self._seen: OrderedDict[tuple[str, Event], _Seen] = OrderedDict()
        self._limiter = AsyncLimiter(_PER_S, 1)
        self._warned_at = -_REPEAT_S

    def record(self, job: Subject, event: Event) -> None:
        """Queue an event about a job or ConfigMap. A repetition counts up; what does not fit into the queue is lost."""
        key = (job.uid, event)
        now = time.monotonic()
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen(f"{job.name}.{uuid.uuid4().hex[:16]}", now)
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        else:
            seen.count += 1
            if now - seen.written_at < _REPEAT_S:
                return
            seen.written_at = now
        try:
            self._queue.put_nowait((job, event, seen.name, seen.count))
            metrics.EVENTS.labels("queued").inc()
        except asyncio.QueueFull:
            metrics.EVENTS.labels("dropped").inc()
            if now - self._warned_at > _REPEAT_S:
                self._warned_at = now
                log.warning("events are dropped: too many wait to be written", waiting=self._queue.qsize())

    async def run(self) -> None:
        """Write queued events for ever."""
        async with asyncio.TaskGroup() as group:
            for number in range(_WRITERS):
                group.create_task(self._write_all(), name=f"events-{number}")

    async def drain(self, timeout_s: float) -> None:
        """Wait until what is queued is written, at most so long."""
        try:
            await asyncio.wait_for(self._queue.join(), timeout_s)
        except TimeoutError:
            log.warning("events left unwritten", count=self._queue.qsize())

    async def _write_all(self) -> None:
        while True:
            job, event, name, count = await self._queue.get()
            try:
                await self._limiter.acquire()
                if self._busy():
                    await asyncio.sleep(_PAUSE_S)
                await self._write(job, event, name, count)
            except ApiError as error:
                # The namespace may be going away, and the job with it.
                log.info("event not written", reason=event.reason, error=str(error))
            finally:
                self._queue.task_done()

    async def _write(self, job: Subject, event: Event, name: str, count: int) -> None:
        path = f"/api/v1/namespaces/{job.namespace}/events"
        now = format_time(datetime.now(UTC))
        if count > 1:
            try:
                await self._api.patch(f"{path}/{name}", {"count": count, "lastTimestamp": now})
                return
            except NotFound:
                pass  # events live for an hour; this one is told anew
        await self._api.post(
            path,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": job.namespace},
                "involvedObject": {
                    **(_CONFIG_MAP if isinstance(job, ConfigMap) else _TFJOB),
                    "namespace": job.namespace,
                    "name": job.name,
                    "uid": job.uid,
                    "resourceVersion": str(job.version),
                },
                "type": event.type,
                "reason": event.reason,
                "message": event.message[:_MESSAGE],
                "source": {"component": CONTROLLER_NAME},
                "reportingComponent": CONTROLLER_NAME,
                "reportingInstance": "",
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": count,
            },
        )

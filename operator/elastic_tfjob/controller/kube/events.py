"""Kubernetes events (`kubectl describe`). They are written in the background, at a lower rate while jobs wait.

Part of their text comes from tenants and is not trusted. Texts are cut before they are stored, the queue is limited in
bytes, and namespaces take turns, so a job with thousands of problems does not delay other namespaces.
"""

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog
from aiolimiter import AsyncLimiter

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, GROUP, KIND, VERSION
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, NotFound
from elastic_tfjob.controller.kube.queue import FairQueue, Shares
from elastic_tfjob.controller.kube.supervise import cancels, excerpt, unending
from elastic_tfjob.controller.model.cluster import ConfigMap, KubeNode, OwnObject, PendingPod
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.jobset import JOBSET_KIND, JOBSET_VERSION, JobSet
from elastic_tfjob.controller.model.status import format_time

__all__ = ["EventRecorder"]

log = structlog.get_logger(__name__)

# More than the rate needs, because a slow webhook for events of one namespace may occupy half of them.
_WRITERS: Final = 8
# Events per second, and events per second while jobs wait: pods have precedence at the API server.
_PER_S: Final = 50
_PER_S_BUSY: Final = 20
# Maximum size of the queue. One namespace may use half of it, about 20,000 events.
_QUEUE_BYTES: Final = 32 * 1024 * 1024
# Size of an event without its message.
_EVENT_BYTES: Final = 768
_REMEMBERED: Final = 20_000
# A repeated event of the same job is written at most once in this time, with a count: a pod that cannot be scheduled is
# reconciled many times per minute.
_REPEAT_S: Final = 300.0
_MESSAGE: Final = 1024
_REASON: Final = 128
_SUBJECT_NAME: Final = 200


Subject = TFJob | JobSet | ConfigMap | KubeNode | PendingPod | OwnObject
_TFJOB: Final = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
_CONFIG_MAP: Final = {"apiVersion": "v1", "kind": "ConfigMap"}
_NODE: Final = {"apiVersion": "v1", "kind": "Node"}
_POD: Final = {"apiVersion": "v1", "kind": "Pod"}
_JOBSET: Final = {"apiVersion": JOBSET_VERSION, "kind": JOBSET_KIND}
# The namespace in which Kubernetes stores events about cluster-wide objects.
_NO_NAMESPACE: Final = "default"


class _Seen:
    __slots__ = ("count", "number", "written_at")

    def __init__(self, written_at: float) -> None:
        self.number = secrets.randbits(64)
        self.count = 1
        self.written_at = written_at


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An event in the queue. It refers to its subject by name and uid only, because a whole job may be large."""

    name: str
    event: Event
    count: int
    subject: dict[str, str]
    size: int


class EventRecorder:
    """Writes events about jobs and other objects, at a lower rate while `busy()`."""

    def __init__(self, api: ApiClient, busy: Callable[[], bool]) -> None:
        self._api = api
        self._busy = busy
        self._queue: FairQueue[_Waiting] = FairQueue(_WRITERS)
        self._bytes = Shares(_QUEUE_BYTES)
        # Events seen so far by namespace, then by a hash of subject and text; the oldest first.
        self._seen: dict[str, OrderedDict[bytes, _Seen]] = {}
        self._remembered = 0
        self._limiter = AsyncLimiter(_PER_S, 1)
        self._warned_at = -_REPEAT_S
        self._unwritten = 0
        self._written = asyncio.Event()
        self._written.set()

    def record(self, job: Subject, event: Event) -> None:
        """Queue an event about an object. A repetition increases its count; an event is dropped if the queue is
        full."""
        event = Event(_words(event.type, _REASON), _words(event.reason, _REASON), _words(event.message, _MESSAGE))
        now = time.monotonic()
        mark = _hash(job, event)
        namespace = job.namespace or _NO_NAMESPACE
        known = self._seen.setdefault(namespace, OrderedDict())
        seen = known.get(mark)
        if seen is None:
            seen = known[mark] = _Seen(now)
            self._remember()
        else:
            seen.count += 1
            if now - seen.written_at < _REPEAT_S:
                return
            seen.written_at = now
        if not self._bytes.admits(namespace):
            metrics.EVENTS.labels("dropped").inc()
            if now - self._warned_at > _REPEAT_S:
                self._warned_at = now
                log.warning("event dropped: too many are waiting", namespace=namespace, waiting=len(self._queue))
            return
        subject = {
            **_kind(job),
            **({"namespace": job.namespace} if job.namespace else {}),
            "name": job.name,
            "uid": job.uid,
            "resourceVersion": str(job.version),
        }
        size = _EVENT_BYTES + len(event.message.encode())
        name = f"{job.name[:_SUBJECT_NAME]}.{seen.number:016x}"
        self._bytes.take(namespace, size)
        self._unwritten += 1
        self._written.clear()
        self._queue.add(namespace, _Waiting(name, event, seen.count, subject, size))
        metrics.EVENTS.labels("queued").inc()

    def _remember(self) -> None:
        """Count a new event. Above the limit, forget the oldest event of the namespace with the most events."""
        self._remembered += 1
        if self._remembered > _REMEMBERED:
            fullest = max(self._seen, key=lambda namespace: len(self._seen[namespace]))
            self._seen[fullest].popitem(last=False)
            self._remembered -= 1
            if not self._seen[fullest]:
                del self._seen[fullest]

    async def run(self) -> None:
        """Write queued events without end."""
        async with asyncio.TaskGroup() as group:
            for number in range(_WRITERS):
                group.create_task(unending(self._write_all), name=f"events-{number}")

    async def drain(self, timeout_s: float) -> None:
        """Wait until all queued events are written, at most `timeout_s` seconds."""
        try:
            await asyncio.wait_for(self._written.wait(), timeout_s)
        except TimeoutError:
            log.warning("events not written", count=self._unwritten)

    async def _write_all(self) -> None:
        while True:
            namespace, waiting = await self._queue.take()
            try:
                await self._limiter.acquire(_PER_S / _PER_S_BUSY if self._busy() else 1)
                await self._write(namespace, waiting)
            except ApiError as error:
                # The namespace may be terminating, and its jobs with it.
                log.info("event not written", reason=waiting.event.reason, error=str(error))
            except (Exception, asyncio.CancelledError) as error:
                if cancels(error):
                    raise
                log.error("bug: event not written", reason=waiting.event.reason, error=excerpt(error))
            finally:
                self._bytes.give(namespace, waiting.size)
                self._queue.done(namespace)
                self._unwritten -= 1
                if not self._unwritten:
                    self._written.set()

    async def _write(self, namespace: str, waiting: _Waiting) -> None:
        path = f"/api/v1/namespaces/{namespace}/events"
        now = format_time(datetime.now(UTC))
        name, event, count = waiting.name, waiting.event, waiting.count
        if count > 1:
            try:
                await self._api.patch(f"{path}/{name}", {"count": count, "lastTimestamp": now})
                return
            except NotFound:
                pass  # events are deleted after an hour; create this one again
        await self._api.post(
            path,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": waiting.subject,
                "type": event.type,
                "reason": event.reason,
                "message": event.message,
                "source": {"component": CONTROLLER_NAME},
                "reportingComponent": CONTROLLER_NAME,
                "reportingInstance": "",
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": count,
            },
        )


def _kind(subject: Subject) -> dict[str, str]:
    if isinstance(subject, TFJob):
        return _TFJOB
    if isinstance(subject, JobSet):
        return _JOBSET
    if isinstance(subject, ConfigMap):
        return _CONFIG_MAP
    if isinstance(subject, OwnObject):
        return {"apiVersion": subject.api_version, "kind": subject.kind}
    return _NODE if isinstance(subject, KubeNode) else _POD


def _words(value: object, longest: int) -> str:
    """The text cut to `longest` characters, with characters replaced that cannot be encoded. A value that is not text
    is replaced by a note."""
    if not isinstance(value, str):
        return f"(no text: {type(value).__name__})"
    return value[:longest].encode(errors="replace").decode()


def _hash(job: Subject, event: Event) -> bytes:
    words = "\0".join((job.uid, event.type, event.reason, event.message))
    return hashlib.blake2b(words.encode(), digest_size=16).digest()

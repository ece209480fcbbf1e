"""The rows of all jobs, kept from one question to the next: only jobs that have changed are read again."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar

import structlog

from elastic_tfjob.controller.kube.supervise import excerpt, trace
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.objects.settings import Configuration
from elastic_tfjob.controller.query.rows.job import JobRow, job_row, see
from elastic_tfjob.controller.query.rows.queue import QueueRow, place_in_order, queue_rows
from elastic_tfjob.controller.schedule.request import JobRequest
from elastic_tfjob.scheduling.profile import Order
from elastic_tfjob.scheduling.profiles import build
from elastic_tfjob.scheduling.queue import Entry

__all__ = ["Cache", "Index"]

log = structlog.get_logger(__name__)

T_co = TypeVar("T_co", covariant=True)

# For so long rows are made before others have a turn at the event loop.
_SLICE_S: Final = 0.005


class Cache(Protocol[T_co]):
    """What is asked of an informer."""

    def __iter__(self) -> Iterator[T_co]: ...
    def __len__(self) -> int: ...
    def of_job(self, key: Key) -> tuple[T_co, ...]: ...
    def one(self, key: Key) -> T_co | None: ...
    @property
    def changes(self) -> int:
        """Another number after each change."""
        ...


@dataclass(frozen=True, slots=True)
class _Known:
    """A job's row. `request`: what its spec asks for, which takes most of the time to read; `place`: where it waits."""

    version: int
    row: JobRow
    request: JobRequest | None
    place: Entry | None


class Index:
    """Rows of the jobs in a cache. `order` says how the profile of a configuration sorts."""

    def __init__(
        self,
        jobs: Cache[Job],
        configuration: Callable[[], Configuration],
        priorities: Callable[[], Mapping[str, int]],
    ) -> None:
        self._jobs = jobs
        self._configuration = configuration
        self._priorities = priorities
        self._known: dict[str, _Known] = {}
        self._by_key: dict[Key, str] = {}
        self._changes: int | None = None
        self._one = asyncio.Lock()
        self._since: tuple[Configuration, Mapping[str, int]] | None = None
        self._order: Order | None = None
        self._now = datetime.now(UTC)

    async def rows(self) -> list[JobRow]:
        """The rows of all jobs, in no order. The first time takes long: half a millisecond of CPU for each job."""
        async with self._one:
            await self._refresh()
            return [known.row for known in self._known.values()]

    async def queue(self) -> list[QueueRow]:
        """The jobs that wait, in the profile's order."""
        async with self._one:
            await self._refresh()
            found = [(known.place, known.row) for known in self._known.values() if known.place is not None]
        return await asyncio.to_thread(queue_rows, found)

    def requested(self, key: Key, replica_type: str) -> int | None:
        """Millicores that the templates of a job request for a replica, as of the last refresh."""
        known = self._known.get(self._by_key.get(key, ""))
        requests = known.request.requests if known is not None and known.request is not None else {}
        return next((amount.cpu for name, amount in requests.items() if name.lower() == replica_type), None)

    async def _refresh(self) -> None:
        self._follow_order()
        if (changes := self._jobs.changes) == self._changes:
            return
        begun = time.monotonic()
        jobs = list(self._jobs)
        for job in jobs:
            known = self._known.get(job.uid)
            if known is None or known.version != job.version:
                try:
                    self._known[job.uid] = self._read(job, known.request if known is not None else None)
                    self._by_key[job.key] = job.uid
                except Exception as error:  # all others are answered for
                    self._known.pop(job.uid, None)
                    log.error("bug: job not shown", job=job.key, error=excerpt(error), trace=trace(error))
            if time.monotonic() - begun >= _SLICE_S:
                await asyncio.sleep(0)
                begun = time.monotonic()
        if len(self._known) != len(jobs):
            self._drop_all_but(jobs)
        self._changes = changes

    def _drop_all_but(self, jobs: Iterable[Job]) -> None:
        there = {job.uid: job.key for job in jobs}
        self._known = {uid: known for uid, known in self._known.items() if uid in there}
        self._by_key = {key: uid for uid, key in there.items()}

    def _follow_order(self) -> None:
        """Sort anew where the profile or a priority is another one: places of different orders do not compare."""
        since = self._configuration(), dict(self._priorities())
        if self._since is not None and self._since[0] is since[0] and self._since[1] == since[1]:
            return
        self._since, self._now, self._changes = since, datetime.now(UTC), None
        self._order = build(since[0].profile, since[0].parameters).order
        self._known = {uid: known for uid, known in self._known.items() if known.row.state != "Waiting"}

    def _read(self, job: Job, before: JobRequest | None) -> _Known:
        seen = see(job, before)
        row, place = job_row(seen), None
        if row.state == "Waiting" and self._order is not None and self._since is not None:
            scope_all = self._since[0].scope == "all"
            try:
                place = place_in_order(job, self._order, self._since[1], self._now, all_jobs=scope_all)
            except Exception:  # whatever a user wrote there: the row tells of it
                place = None
        return _Known(job.version, row, seen.request, place)

"""Informers: what the API server holds, kept up to date by list and watch.

Writes go through: the object that the API server answers a write with is put into the cache at once, so that the next
decision sees it and no expectation of a watch event has to be kept. Resource versions order the two sources.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from elastic_tfjob.controller import metrics
from elastic_tfjob.controller.client import JSON, ApiClient, ApiError, Expired, NotFound
from elastic_tfjob.controller.observed import Key

__all__ = ["Informer"]

log = structlog.get_logger(__name__)

_PAGE: Final = "500"
_TOMBSTONES: Final = 20_000
_MAX_BACKOFF_S: Final = 10.0


class Entry(Protocol):
    """What an informer keeps of an object."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def key(self) -> Key: ...


T = TypeVar("T", bound=Entry)


class Informer(Generic[T]):
    """All objects of one resource, as entries of type T, indexed by the job they belong to.

    `changed` is called with the key of the job whenever one of its entries differs from before; not for our own writes,
    which the writer knows of. `touched` is called for those, too. `fields` is a field selector: an object that no
    longer matches it is gone.
    """

    def __init__(
        self,
        api: ApiClient,
        path: str,
        parse: Callable[[Mapping[str, Any]], T],
        changed: Callable[[Key], None],
        *,
        selector: str = "",
        accept: str = JSON,
        list_accept: str = JSON,
        fields: str = "",
        touched: Callable[[Key], None] | None = None,
    ) -> None:
        self._api = api
        self._path = path
        self._parse = parse
        self._changed = changed
        self._touched = touched or _nobody
        self._params = {"labelSelector": selector} if selector else {}
        if fields:
            self._params["fieldSelector"] = fields
        self._accept = accept
        self._list_accept = list_accept
        self.resource = path.rpartition("/")[2]
        self._by_job: dict[Key, dict[str, T]] = {}
        # Deleted not long ago: the late answer to a write must not bring them back.
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self.synced = asyncio.Event()

    def of_job(self, key: Key) -> tuple[T, ...]:
        """The entries that belong to a job."""
        return tuple(self._by_job.get(key, {}).values())

    def __iter__(self) -> Iterator[T]:
        for entries in self._by_job.values():
            yield from entries.values()

    @property
    def keys(self) -> Iterable[Key]:
        """The keys of all that is there."""
        return self._by_job.keys()

    def __len__(self) -> int:
        return sum(map(len, self._by_job.values()))

    def written(self, raw: Mapping[str, Any]) -> None:
        """Take in the answer to a write that decided all that is new in it: a creation, a replacement."""
        self._store(self._parse(raw))

    def seen(self, raw: Mapping[str, Any]) -> None:
        """Take in an answer that may hold the news of others, too: of a read, or of a patch."""
        self._take_in(self._parse(raw))

    def assume(self, entry: T) -> None:
        """Keep what a write of ours did to an entry until the watch says so, where the answer does not show it."""
        entries = self._by_job.get(entry.key, {})
        known = entries.get(entry.name)
        if known is not None and (known.uid, known.version) == (entry.uid, entry.version):
            entries[entry.name] = entry
            self._touched(entry.key)

    async def run(self) -> None:
        """List and watch for ever. API errors are logged and followed by another try."""
        backoff_s = 0.0
        while True:
            try:
                version = await self._list()
                backoff_s = 0.0
                await self._watch(version)
                cause = "expired"
            except ApiError as error:
                cause = type(error).__name__
                backoff_s = min(max(2 * backoff_s, 0.2), _MAX_BACKOFF_S)
                level = log.info if isinstance(error, NotFound) else log.warning
                level("list failed", resource=self.resource, error=str(error), again_in_s=backoff_s)
            metrics.WATCH_RESTARTS.labels(self.resource, cause).inc()
            await asyncio.sleep(backoff_s)

    async def _list(self) -> str:
        """Replace the contents by a fresh list, page by page; returns its resource version."""
        found: set[str] = set()
        params = {**self._params, "limit": _PAGE}
        while True:
            page = await self._api.get(self._path, accept=self._list_accept, **params)
            for raw in page["items"] or ():  # an empty list may come as null
                entry = self._parse(raw)
                found.add(entry.uid)
                self._take_in(entry)
            metadata = page["metadata"]
            if not metadata.get("continue"):
                break
            params["continue"] = metadata["continue"]
        version = str(metadata["resourceVersion"])
        # What is newer than the list was written by us while it was read.
        gone = [
            entry
            for entries in self._by_job.values()
            for entry in entries.values()
            if entry.uid not in found and entry.version <= int(version)
        ]
        for entry in gone:
            self._remove(entry)
            self._changed(entry.key)
        if not self.synced.is_set():
            log.info("synced", resource=self.resource, objects=len(self))
            self.synced.set()
        return version

    async def _watch(self, version: str) -> None:
        """Follow changes until the server has forgotten where we were; broken connections are resumed."""
        backoff_s = 0.0
        while True:
            try:
                async for event in self._api.watch(self._path, version=version, accept=self._accept, **self._params):
                    backoff_s = 0.0
                    version = self._apply(event)
                cause = "ended"
            except Expired:
                return
            except ApiError as error:
                cause = type(error).__name__
                backoff_s = min(max(2 * backoff_s, 0.1), _MAX_BACKOFF_S)
                log.info("watch broke", resource=self.resource, error=str(error), again_in_s=backoff_s)
            metrics.WATCH_RESTARTS.labels(self.resource, cause).inc()
            await asyncio.sleep(backoff_s)

    def _apply(self, event: Mapping[str, Any]) -> str:
        raw = event["object"]
        if event["type"] == "BOOKMARK":
            return str(raw["metadata"]["resourceVersion"])
        entry = self._parse(raw)
        if event["type"] == "DELETED":
            self._remove(entry)
            self._changed(entry.key)
        else:
            self._take_in(entry)
        return str(entry.version)

    def _take_in(self, entry: T) -> None:
        if self._store(entry):
            self._changed(entry.key)

    def _store(self, entry: T) -> bool:
        """Keep an entry unless a newer one is there or it was deleted; returns whether it is news."""
        if entry.uid in self._tombstones:
            return False
        entries = self._by_job.setdefault(entry.key, {})
        known = entries.get(entry.name)
        if known is not None and known.version >= entry.version:
            return False
        entries[entry.name] = entry
        self._touched(entry.key)
        return True

    def _remove(self, entry: T) -> None:
        self._tombstones[entry.uid] = None
        if len(self._tombstones) > _TOMBSTONES:
            self._tombstones.popitem(last=False)
        entries = self._by_job.get(entry.key, {})
        known = entries.get(entry.name)
        if known is not None and known.uid == entry.uid:
            del entries[entry.name]
            if not entries:
                del self._by_job[entry.key]
            self._touched(entry.key)


def _nobody(_: Key) -> None:
    """Nobody wants to know."""

"""Informers: what the API server holds, kept up to date by list and watch.

Writes go through: the object that the API server answers a write with is put into the cache at once, so that the next
decision sees it and no expectation of a watch event has to be kept. Resource versions order the two sources.

An object that cannot be read is set aside alone: what was known of it before stays, and the others are kept up to date.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote

import structlog

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, GROUP, JOB_NAME_LABEL, OPERATOR_NAME_LABEL, PLURAL, VERSION
from elastic_tfjob.controller.job.owned import group_version
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import JSON, METADATA_ONLY, ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Expired, NotFound, TooLarge
from elastic_tfjob.controller.kube.supervise import excerpt, trace
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.owned_objects import DisruptionBudget, PodGroup, Service
from elastic_tfjob.controller.model.pod import Pod

__all__ = ["Caches", "Informer", "jobs_path"]

log = structlog.get_logger(__name__)

# Parsing a page is one step of the event loop, and what it says is in memory twice then: objects in it are few, and
# fewer where they are large. A TFJob, or a pod that names a thousand others, may have 1.5 MB.
_PAGE: Final = 100
_PAGE_BYTES: Final = 2 * 1024 * 1024
_TOMBSTONES: Final = 20_000
_MAX_BACKOFF_S: Final = 10.0
# For so long objects of a page are read before others have a turn at the event loop.
_READ_S: Final = 0.005
# A watch that ends earlier is begun again later each time.
_SHORT_S: Final = 5.0


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
    longer matches it is gone. `metadata_only`: no more than metadata is asked for.
    """

    def __init__(
        self,
        api: ApiClient,
        path: str,
        parse: Callable[[Mapping[str, Any]], T],
        changed: Callable[[Key], None],
        *,
        selector: str = "",
        metadata_only: bool = False,
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
        self._accept = METADATA_ONLY.format("PartialObjectMetadata") if metadata_only else JSON
        self._list_accept = METADATA_ONLY.format("PartialObjectMetadataList") if metadata_only else JSON
        self.resource = path.rpartition("/")[2]
        # The same entries by job and name, and by uid: labels say which job an object belongs to, and may be changed.
        self._by_job: dict[Key, dict[str, T]] = {}
        self._by_uid: dict[str, T] = {}
        # Gone not long ago, and at which version: the late answer to a write must not bring them back. What is newer
        # has come back by itself, to where a selector finds it.
        self._tombstones: OrderedDict[str, int] = OrderedDict()
        self.synced = asyncio.Event()
        self.changes = 0
        """How often an entry came, became another one or went."""
        self._one = asyncio.Lock()

    def of_job(self, key: Key) -> tuple[T, ...]:
        """The entries that belong to a job."""
        return tuple(self._by_job.get(key, {}).values())

    def one(self, key: Key) -> T | None:
        """The entry of a job, of what it has one of; None where it has none."""
        return next(iter(self._by_job.get(key, {}).values()), None)

    def __iter__(self) -> Iterator[T]:
        # Of a copy, made in one step: a thread may go through it while the loop takes in others.
        return iter(tuple(self._by_uid.values()))

    @property
    def keys(self) -> Iterable[Key]:
        """The keys of all that is there."""
        return self._by_job.keys()

    def __len__(self) -> int:
        return len(self._by_uid)

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
            entries[entry.name] = self._by_uid[entry.uid] = entry
            self.changes += 1
            self._touched(entry.key)

    async def run(self) -> None:
        """List and watch for ever. API errors are logged and followed by another try. Where it runs already, a second
        run waits, and goes on when the first one ends: who needs an informer need not know who else does."""
        async with self._one:
            await self._follow()

    async def _follow(self) -> None:
        backoff_s = 0.0
        while True:
            begun = time.monotonic()
            try:
                await self._watch(await self._list())
                cause = "expired"
                # Where every version is too old at once, lists must not follow each other without a pause.
                backoff_s = _longer(backoff_s) if time.monotonic() - begun < _SHORT_S else 0.0
            except ApiError as error:
                cause = type(error).__name__
                backoff_s = _longer(backoff_s)
                level = log.info if isinstance(error, NotFound) else log.warning
                level("list failed", resource=self.resource, error=str(error), again_in_s=backoff_s)
            metrics.WATCH_RESTARTS.labels(self.resource, cause).inc()
            await asyncio.sleep(backoff_s)

    async def look_up(self, path: str, selector: str, key: Key) -> None:
        """Take in what there is of one job now, and what is gone, whatever a watch has not told yet. `selector` finds
        all of it in the collection at `path`."""
        await self._read_list(path, {**self._params, "labelSelector": selector}, lambda: self.of_job(key))

    async def _list(self) -> str:
        """Replace the contents by a fresh list; returns its resource version."""
        version = await self._read_list(self._path, self._params, lambda: self)
        if not self.synced.is_set():
            log.info("synced", resource=self.resource, objects=len(self))
            self.synced.set()
        return version

    async def _read_list(self, path: str, selectors: Mapping[str, str], among: Callable[[], Iterable[T]]) -> str:
        """Take in a list, page by page; what it lacks of the entries `among` is gone. Returns its resource version."""
        found: set[str] = set()
        params, limit = dict(selectors), _PAGE
        while True:
            try:
                page = await self._api.get(
                    path,
                    accept=self._list_accept,
                    most_bytes=_PAGE_BYTES if limit > 1 else None,
                    limit=str(limit),
                    **params,
                )
            except TooLarge:
                limit = max(1, limit // 4)
                continue
            limit = min(2 * limit, _PAGE)
            begun = time.monotonic()
            for raw in page["items"] or ():  # an empty list may come as null
                found.add(_uid(raw))
                self._read(raw)
                if time.monotonic() - begun >= _READ_S:
                    await asyncio.sleep(0)
                    begun = time.monotonic()
            metadata = page["metadata"]
            if not metadata.get("continue"):
                break
            params["continue"] = metadata["continue"]
        version = str(metadata["resourceVersion"])
        # What is newer than the list was written by us while it was read.
        for entry in [each for each in among() if each.uid not in found and each.version <= int(version)]:
            self._remove(entry.uid, int(version))
        return version

    async def _watch(self, version: str) -> None:
        """Follow changes until the server has forgotten where we were; broken connections are resumed."""
        backoff_s = 0.0
        while True:
            begun = time.monotonic()
            try:
                async for event in self._api.watch(self._path, version=version, accept=self._accept, **self._params):
                    backoff_s = 0.0
                    version = self._apply(event) or version
                cause = "ended"
                backoff_s = _longer(backoff_s) if time.monotonic() - begun < _SHORT_S else 0.0
            except Expired:
                return
            except ApiError as error:
                cause = type(error).__name__
                backoff_s = _longer(backoff_s)
                log.info("watch broke", resource=self.resource, error=str(error), again_in_s=backoff_s)
            metrics.WATCH_RESTARTS.labels(self.resource, cause).inc()
            await asyncio.sleep(backoff_s)

    def _apply(self, event: Mapping[str, Any]) -> str:
        """Take in an event of a watch; returns the version to go on from, empty where the event tells none."""
        raw = event["object"]
        version = str((raw.get("metadata") or {}).get("resourceVersion") or "")
        if event["type"] == "DELETED":
            self._remove(_uid(raw), int(version))
        elif event["type"] != "BOOKMARK":
            self._read(raw)
        return version

    def _read(self, raw: Mapping[str, Any]) -> None:
        """Take in what the API server tells of an object."""
        try:
            self._take_in(self._parse(raw))
        except Exception as error:
            metrics.UNREADABLE.labels(self.resource).inc()
            metadata = raw.get("metadata") or {}
            log.error(
                "object set aside: it cannot be read",
                resource=self.resource,
                namespace=metadata.get("namespace"),
                name=metadata.get("name"),
                error=excerpt(error),
                trace=trace(error),
            )

    def _take_in(self, entry: T) -> None:
        if self._store(entry):
            self._changed(entry.key)

    def _store(self, entry: T) -> bool:
        """Keep an entry unless a newer one is there or it was deleted; returns whether it is news."""
        if entry.version <= self._tombstones.get(entry.uid, -1):
            return False
        before = self._by_uid.get(entry.uid)
        namesake = self._by_job.get(entry.key, {}).get(entry.name)
        if any(known is not None and known.version >= entry.version for known in (before, namesake)):
            return False
        self._tombstones.pop(entry.uid, None)
        if namesake is not None:
            self._forget(namesake)
        if before is not None and before is not namesake:
            self._forget(before)
        self._by_job.setdefault(entry.key, {})[entry.name] = entry
        self._by_uid[entry.uid] = entry
        self.changes += 1
        self._touched(entry.key)
        if before is not None and before.key != entry.key:
            # Its labels give it to another job: that is news for the one that has lost it, whoever changed them.
            self._touched(before.key)
            self._changed(before.key)
        return True

    def _remove(self, uid: str, version: int) -> None:
        """Take in that an object is gone, or not to be seen any more."""
        self._tombstones[uid] = version
        self._tombstones.move_to_end(uid)
        if len(self._tombstones) > _TOMBSTONES:
            self._tombstones.popitem(last=False)
        known = self._by_uid.get(uid)
        if known is not None:
            self._forget(known)
            self.changes += 1
            self._touched(known.key)
            self._changed(known.key)

    def _forget(self, entry: T) -> None:
        del self._by_uid[entry.uid]
        entries = self._by_job[entry.key]
        del entries[entry.name]
        if not entries:
            del self._by_job[entry.key]


def _longer(backoff_s: float) -> float:
    """How long to wait after one failure more."""
    return min(max(2 * backoff_s, 0.1), _MAX_BACKOFF_S)


def _uid(raw: Mapping[str, Any]) -> str:
    return str((raw.get("metadata") or {}).get("uid", ""))


def _nobody(_: Key) -> None:
    """Nobody wants to know."""


# -- The informers that decisions are made from ------------------------------------------------------------------------

# Pods of a job change state together: one look at all of them instead of one for each.
_SETTLE_S: Final = 0.05
_SELECTOR: Final = f"{OPERATOR_NAME_LABEL}={CONTROLLER_NAME}"


def jobs_path(namespace: str = "") -> str:
    """Collection of TFJobs of one namespace, or of all."""
    one = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{one}/{PLURAL}"


@dataclass(frozen=True, slots=True)
class Caches:
    """The informers that decisions are made from. `pod_groups` is None without a gang scheduler, `budgets` where
    there are none to follow."""

    jobs: Informer[TFJob]
    pods: Informer[Pod]
    services: Informer[Service]
    pod_groups: Informer[PodGroup] | None = None
    budgets: Informer[DisruptionBudget] | None = None

    def failed_pods(self) -> list[tuple[TFJob, Pod]]:
        """The pods that failed, each with the job that it is of. May be called in a thread."""
        failed = [pod for pod in self.pods if pod.failure is not None]
        return [(job, pod) for pod in failed for job in self.jobs.of_job(pod.key) if job.uid == pod.owner]

    async def look_up_pods(self, job: TFJob) -> None:
        """Take in the pods of a job as they are now."""
        path = f"/api/v1/namespaces/{quote(job.namespace, safe='')}/pods"
        await self.pods.look_up(path, f"{_SELECTOR},{JOB_NAME_LABEL}={job.name}", job.key)

    @classmethod
    def of(
        cls,
        api: ApiClient,
        *,
        namespace: str,
        gang_scheduler: str,
        look_at: Callable[[Key, float], None],
        job_touched: Callable[[Key], None],
        pods_touched: Callable[[Key], None],
    ) -> "Caches":
        """Informers of one namespace, or of all. `look_at` has a job looked at, after so many seconds; the others hear
        of each change of jobs and pods, those included that are no reason to look."""
        place = f"/namespaces/{namespace}" if namespace else ""

        def at_once(key: Key) -> None:
            look_at(key, 0.0)

        def settle(key: Key) -> None:
            look_at(key, _SETTLE_S)

        groups = None
        if gang_scheduler:
            groups = Informer(api, f"/apis/{group_version(gang_scheduler)}{place}/podgroups", PodGroup.parse, at_once)
        return cls(
            jobs=Informer(api, jobs_path(namespace), TFJob.parse, at_once, touched=job_touched),
            pods=Informer(api, f"/api/v1{place}/pods", Pod.parse, settle, selector=_SELECTOR, touched=pods_touched),
            services=Informer(
                api, f"/api/v1{place}/services", Service.parse, settle, selector=_SELECTOR, metadata_only=True
            ),
            pod_groups=groups,
            budgets=Informer(
                api,
                f"/apis/policy/v1{place}/poddisruptionbudgets",
                DisruptionBudget.parse,
                settle,
                selector=_SELECTOR,
                metadata_only=True,
            ),
        )

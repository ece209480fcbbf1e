"""Informers: caches of the API server's objects, kept up to date by list and watch.

The caches are write-through: the answer to a write is stored at once, so the next decision sees it and the operator
need not track expected watch events. Resource versions order answers and watch events.

An object that cannot be parsed affects only itself: its last known entry stays, and all other entries are updated.
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
from elastic_tfjob.controller.model.owned_objects import ORDER_LABEL, DisruptionBudget, NodeOrder, PodGroup, Service
from elastic_tfjob.controller.model.pod import Pod

__all__ = ["Caches", "Informer", "jobs_path"]

log = structlog.get_logger(__name__)

# Parsing a page blocks the event loop and holds its content in memory twice. A page therefore has few objects, and
# fewer if they are large. A TFJob, or a pod whose environment names a thousand other pods, may have 1.5 MB.
_PAGE: Final = 100
_PAGE_BYTES: Final = 2 * 1024 * 1024
_TOMBSTONES: Final = 20_000
_MAX_BACKOFF_S: Final = 10.0
# Objects of a page are processed for this time before other tasks of the event loop run.
_READ_S: Final = 0.005
# A watch that ends earlier than this restarts with a growing delay.
_SHORT_S: Final = 5.0


class Entry(Protocol):
    """The fields that every cache entry has. `key` is namespace and name of the job that the object belongs to."""

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

    `changed` is called with the key of a job when one of its entries changes, except for creations and replacements by
    this operator, which the writer already knows. `touched` is also called for those. `fields` is a field selector: an
    object that no longer matches it counts as deleted. With `metadata_only` only the metadata of objects is requested.
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
        name: str = "",
    ) -> None:
        self._api = api
        self.path = path
        self._parse = parse
        self._changed = changed
        self._touched = touched or _ignore
        self._params = {"labelSelector": selector} if selector else {}
        if fields:
            self._params["fieldSelector"] = fields
        self._accept = METADATA_ONLY.format("PartialObjectMetadata") if metadata_only else JSON
        self._list_accept = METADATA_ONLY.format("PartialObjectMetadataList") if metadata_only else JSON
        self.resource = name or path.rpartition("/")[2]
        # Entries by job and name, and the same entries by uid: an object's job follows from its labels, which may
        # change.
        self._by_job: dict[Key, dict[str, T]] = {}
        self._by_uid: dict[str, T] = {}
        # Recently deleted objects: the version of the deletion by uid. A late answer to a write must not restore them.
        # A newer version is stored, because the object matches the selector again.
        self._tombstones: OrderedDict[str, int] = OrderedDict()
        self.synced = asyncio.Event()
        self.changes = 0
        """Number of entries added, changed and removed so far."""
        self._one = asyncio.Lock()

    def of_job(self, key: Key) -> tuple[T, ...]:
        """The entries of a job."""
        return tuple(self._by_job.get(key, {}).values())

    def one(self, key: Key) -> T | None:
        """The entry of a job, for resources with at most one object per job; None if there is none."""
        return next(iter(self._by_job.get(key, {}).values()), None)

    def __iter__(self) -> Iterator[T]:
        # A copy, made in one step: a thread may iterate over it while the event loop changes the cache.
        return iter(tuple(self._by_uid.values()))

    @property
    def keys(self) -> Iterable[Key]:
        """The keys of all jobs that have entries."""
        return self._by_job.keys()

    def __len__(self) -> int:
        return len(self._by_uid)

    def written(self, raw: Mapping[str, Any]) -> None:
        """Store the answer to a creation or replacement. It contains no changes of other clients, so `changed` is not
        called."""
        self._store(self._parse(raw))

    def seen(self, raw: Mapping[str, Any]) -> None:
        """Store the answer to a read or a patch. It may contain changes of other clients, so `changed` is called."""
        self._take_in(self._parse(raw))

    def assume(self, entry: T) -> None:
        """Store the expected effect of a write whose answer does not contain it, until the watch reports it. Ignored if
        the cached entry has a different uid or version."""
        entries = self._by_job.get(entry.key, {})
        known = entries.get(entry.name)
        if known is not None and (known.uid, known.version) == (entry.uid, entry.version):
            entries[entry.name] = self._by_uid[entry.uid] = entry
            self.changes += 1
            self._touched(entry.key)

    async def run(self) -> None:
        """List and watch without end. API errors are logged, then the request is retried. Several tasks may call this:
        one call runs, and the next takes over when it ends, so users of an informer need not coordinate."""
        async with self._one:
            await self._follow()

    async def _follow(self) -> None:
        backoff_s = 0.0
        while True:
            begun = time.monotonic()
            try:
                await self._watch(await self._list())
                cause = "expired"
                # If versions expire at once, the next list must not follow without a delay.
                backoff_s = _longer(backoff_s) if time.monotonic() - begun < _SHORT_S else 0.0
            except ApiError as error:
                cause = type(error).__name__
                backoff_s = _longer(backoff_s)
                level = log.info if isinstance(error, NotFound) else log.warning
                level("list failed", resource=self.resource, error=str(error), again_in_s=backoff_s)
            metrics.WATCH_RESTARTS.labels(self.resource, cause).inc()
            await asyncio.sleep(backoff_s)

    async def look_up(self, path: str, selector: str, key: Key) -> None:
        """Update the entries of one job from a fresh list, including deletions that the watch has not reported yet. The
        label selector `selector` must match all objects of the job in the collection at `path`."""
        await self._read_list(path, {**self._params, "labelSelector": selector}, lambda: self.of_job(key))

    async def _list(self) -> str:
        """Replace all entries by a fresh list. Returns the resource version of the list."""
        version = await self._read_list(self.path, self._params, lambda: self)
        if not self.synced.is_set():
            log.info("synced", resource=self.resource, objects=len(self))
            self.synced.set()
        return version

    async def _read_list(self, path: str, selectors: Mapping[str, str], among: Callable[[], Iterable[T]]) -> str:
        """Read a list page by page and store its objects. Entries in `among()` that it does not contain are removed.
        Returns the resource version of the list."""
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
        # Entries newer than the list stay: this operator wrote them while the list was read.
        for entry in [each for each in among() if each.uid not in found and each.version <= int(version)]:
            self._remove(entry.uid, int(version))
        return version

    async def _watch(self, version: str) -> None:
        """Apply watch events until the server no longer has the changes since the last version. A broken connection
        resumes from there."""
        backoff_s = 0.0
        while True:
            begun = time.monotonic()
            try:
                async for event in self._api.watch(self.path, version=version, accept=self._accept, **self._params):
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
        """Apply a watch event. Returns the resource version to resume from, empty if the event has none."""
        raw = event["object"]
        version = str((raw.get("metadata") or {}).get("resourceVersion") or "")
        if event["type"] == "DELETED":
            self._remove(_uid(raw), int(version))
        elif event["type"] != "BOOKMARK":
            self._read(raw)
        return version

    def _read(self, raw: Mapping[str, Any]) -> None:
        """Parse and store an object. An object that cannot be parsed is logged and counted."""
        try:
            self._take_in(self._parse(raw))
        except Exception as error:
            metrics.UNREADABLE.labels(self.resource).inc()
            metadata = raw.get("metadata") or {}
            log.error(
                "object skipped: it cannot be read",
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
        """Store an entry unless the cache has the same or a newer version of it, or the object was deleted. Returns
        whether it was stored."""
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
            # Its labels now assign it to another job. The former job is reconciled too, whoever changed the labels.
            self._touched(before.key)
            self._changed(before.key)
        return True

    def _remove(self, uid: str, version: int) -> None:
        """Remove an object that was deleted or no longer matches the selectors."""
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
    """The next backoff in seconds: twice the last one, from 0.1 to _MAX_BACKOFF_S."""
    return min(max(2 * backoff_s, 0.1), _MAX_BACKOFF_S)


def _uid(raw: Mapping[str, Any]) -> str:
    return str((raw.get("metadata") or {}).get("uid", ""))


def _ignore(_: Key) -> None:
    """The default for `touched`: does nothing."""


# -- The informers that decisions use ----------------------------------------------------------------------------------

# Pods of a job change state together. After this delay the job is reconciled once for all of them.
_SETTLE_S: Final = 0.05
_SELECTOR: Final = f"{OPERATOR_NAME_LABEL}={CONTROLLER_NAME}"


def jobs_path(namespace: str = "") -> str:
    """The path of the TFJobs of one namespace, or of all namespaces if it is empty."""
    one = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{one}/{PLURAL}"


@dataclass(frozen=True, slots=True)
class Caches:
    """The informers that decisions use. A change of an entry queues its job for reconciliation (`look_at`), and tells
    the scheduling loop (`job_touched`, `pods_touched`). `pod_groups` is None without a gang scheduler; `budgets` is
    None if PodDisruptionBudgets are not followed."""

    jobs: Informer[TFJob]
    pods: Informer[Pod]
    services: Informer[Service]
    pod_groups: Informer[PodGroup] | None = None
    budgets: Informer[DisruptionBudget] | None = None
    orders: Informer[NodeOrder] | None = None

    def failed_pods(self) -> list[tuple[TFJob, Pod]]:
        """The failed pods, each with the job that owns it. May be called in a thread."""
        failed = [pod for pod in self.pods if pod.failure is not None]
        return [(job, pod) for pod in failed for job in self.jobs.of_job(pod.key) if job.uid == pod.owner]

    async def look_up_pods(self, job: TFJob) -> None:
        """Update the entries of a job's pods from the API server."""
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
        """Informers of one namespace, or of all if it is empty. `look_at(key, seconds)` queues a job for reconciliation
        after that time. `job_touched` and `pods_touched` are called for each change of a job or of its pods, including
        changes that need no reconciliation."""
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
            orders=Informer(
                api,
                f"/api/v1{place}/pods",
                NodeOrder.parse,
                settle,
                selector=ORDER_LABEL,
                touched=pods_touched,
                name="placeholders",
            ),
        )

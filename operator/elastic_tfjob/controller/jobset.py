"""Runs the JobSets that are left to this operator: writes a TFJob for each, and the JobSet's status from the TFJob's.

Level-based: what is there is compared with what should be, whatever was done before. The owner reference deletes a
TFJob with its JobSet.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import structlog

from elastic_tfjob.api.tfjob import InvalidTFJob
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.job.from_jobset import (
    DIGEST_ANNOTATION,
    Unsupported,
    refused_status,
    status_of,
    terminal,
    tfjob_of,
)
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Fenced, NotFound
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer, jobs_path
from elastic_tfjob.controller.kube.queue import NOT_SURE_S, KeyQueue
from elastic_tfjob.controller.kube.supervise import cancels, excerpt, trace, unending
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.jobset import JOBSET_VERSION, JobSet
from elastic_tfjob.controller.model.state import StoredState

__all__ = ["JobSets"]

log = structlog.get_logger(__name__)

_WORKERS: Final = 8


class JobSets:
    """`jobs` are the TFJobs that are known; `api` writes only while this replica leads."""

    def __init__(
        self,
        api: ApiClient,
        jobs: Informer[TFJob],
        recorder: EventRecorder,
        *,
        namespace: str = "",
        may_write: Callable[[], bool],
    ) -> None:
        self._api, self._jobs, self._recorder, self._may_write = api, jobs, recorder, may_write
        place = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        self.informer = Informer(api, f"/apis/{JOBSET_VERSION}{place}/jobsets", JobSet.parse, self._add)
        self._queue = KeyQueue(_WORKERS, depth=None)
        self._running = False
        self._doubted: set[Key] = set()
        """JobSets of which something was refused because it was decided from an old state."""

    def touched(self, key: Key) -> None:
        """A TFJob has changed."""
        if self.informer.of_job(key):
            self._add(key)

    def _add(self, key: Key) -> None:
        """Whoever does not lead looks at all when it does."""
        if self._running:
            self._queue.add(key)

    async def run(self) -> None:
        """Run them for ever, from when all are known."""
        await self.informer.synced.wait()
        self._running = True
        try:
            for key in self.informer.keys:
                self._queue.add(key)
            async with asyncio.TaskGroup() as group:
                for number in range(_WORKERS):
                    group.create_task(unending(self._work), name=f"jobsets-{number}")
        finally:
            self._running = False

    async def _work(self) -> None:
        while True:
            await self._queue.turn(self._handle, self._may_write)

    async def _handle(self, key: Key) -> None:
        """One JobSet. Whatever goes wrong with it touches no other."""
        jobset = self.informer.one(key)
        if jobset is None or jobset.deleting or not jobset.managed:
            self._queue.forget(key)
            self._doubted.discard(key)
            return
        where = {"namespace": jobset.namespace, "jobset": jobset.name}
        try:
            await self._advance(jobset)
            self._queue.succeeded(key)
        except Fenced:
            self._queue.add(key, NOT_SURE_S)
        except (Conflict, NotFound) as error:  # the watch is behind
            self._doubted.add(key)
            again_s = self._queue.retry(key)
            log.info("conflict", **where, error=excerpt(error), again_in_s=again_s)
        except ApiError as error:
            again_s = self._queue.retry(key)
            log.warning("jobset not run", **where, error=excerpt(error), again_in_s=again_s)
            self._recorder.record(jobset, Event("Warning", "TFJobNotWritten", f"Tried again: {excerpt(error)}"))
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            again_s = self._queue.retry(key)
            metrics.RECONCILE_FAILURES.inc()
            problem = excerpt(error)
            log.error("bug: jobset not run", **where, error=problem, trace=trace(error), again_in_s=again_s)
            message = f"The operator cannot run this JobSet: its TFJob stays as it is until that is mended: {problem}"
            self._recorder.record(jobset, Event("Warning", "ReconcileFailed", message))

    async def _advance(self, jobset: JobSet) -> None:
        if jobset.key in self._doubted:
            await self._advance_newest(jobset)
        else:
            await self._step(jobset, newest=False)

    async def _advance_newest(self, jobset: JobSet) -> None:
        """The same with what the API server has by now: a watch that says nothing for a minute leaves a JobSet as it
        was before its end, or before it was deleted and another one got its name."""
        path = f"/apis/{JOBSET_VERSION}/namespaces/{quote(jobset.namespace, safe='')}/jobsets"
        found = await self._api.get(path, fieldSelector=f"metadata.name={jobset.name}")  # which needs no right but list
        raw = next(iter(found.get("items") or ()), None)
        if raw is not None:
            self.informer.seen(raw)
        try:
            job = await self._api.get(f"{jobs_path(jobset.namespace)}/{quote(jobset.name, safe='')}")
            self._jobs.seen(job)
            there = TFJob.parse(job)
        except NotFound:
            there = None
        self._doubted.discard(jobset.key)
        newest = JobSet.parse(raw) if raw is not None else None
        if newest is not None and newest.managed and not newest.deleting:
            await self._step(newest, newest=True, there=there)

    async def _step(self, jobset: JobSet, *, newest: bool, there: TFJob | None = None) -> None:
        """The next write for a JobSet. Unless this is its newest state, it is looked up before its TFJob is written:
        a TFJob trains, and is not to be made for a JobSet that has ended. `there`: its newest TFJob."""
        before: dict[str, Any] = jobset.parts()["status"]
        if terminal(before):
            return
        now = datetime.now(UTC)
        try:
            wanted = tfjob_of(jobset)
        except Unsupported as error:
            self._recorder.record(jobset, Event("Warning", "UnsupportedByTFJob", f"{error}"))
            if self._runs(jobset):
                return
            await self._report(jobset, before, refused_status(before, f"{error}", now))
            return
        job = there if newest else self._jobs.one(jobset.key)
        if not newest and (job is None or (job.owner == jobset.uid and not job.deleting and not _kept(job, wanted))):
            await self._advance_newest(jobset)
            return
        if job is None:
            # Not put into the cache: the watch brings it, as a job that is new to those who run it.
            await self._api.post(jobs_path(jobset.namespace), wanted)
            return
        if job.owner != jobset.uid:
            why = "There is a TFJob of this name that is not this JobSet's: nothing runs until it is deleted"
            self._recorder.record(jobset, Event("Warning", "TFJobExists", why))
            return
        if job.deleting:
            return
        if not _kept(job, wanted):
            job = await self._rewrite(job, wanted)
        await self._report(jobset, before, status_of(before, job.spec(), job.status(), now, _size(job)))

    def _runs(self, jobset: JobSet) -> bool:
        """Whether its TFJob has pods: an older version took what is refused by now, and what runs is left alone."""
        jobs = [job for job in self._jobs.of_job(jobset.key) if job.owner == jobset.uid]
        return any(job.status().is_true(each) for job in jobs for each in ("Running", "Restarting"))

    async def _rewrite(self, job: TFJob, wanted: dict[str, Any]) -> TFJob:
        """Give a TFJob the JobSet's spec, as it is by now. What others wrote beside it stays."""
        path = f"{jobs_path(job.namespace)}/{quote(job.name, safe='')}"
        raw = await self._api.get(path)
        found = TFJob.parse(raw)
        if (found.uid, found.owner, found.deleting) != (job.uid, job.owner, False):
            self._jobs.seen(raw)
            raise Conflict(f"PUT {path}", 409, "Conflict", "this TFJob is another one by now, or is being deleted")
        # With its uid and version: what changes meanwhile is not overwritten.
        raw["spec"] = wanted["spec"]
        raw["metadata"].pop("managedFields", None)  # the API server keeps them, and may have more than it would take
        raw["metadata"]["annotations"] = (raw["metadata"].get("annotations") or {}) | wanted["metadata"]["annotations"]
        return TFJob.parse(await self._api.put(path, raw))

    async def _report(self, jobset: JobSet, before: dict[str, Any], status: dict[str, Any]) -> None:
        if status == before:
            return
        path = f"/apis/{JOBSET_VERSION}/namespaces/{quote(jobset.namespace, safe='')}/jobsets"
        body = {"metadata": {"uid": jobset.uid, "resourceVersion": str(jobset.version)}, "status": status}
        self.informer.seen(await self._api.patch(f"{path}/{quote(jobset.name, safe='')}/status", body))


def _size(job: TFJob) -> Mapping[str, int] | None:
    """The replicas that a job runs with; None: those of its spec."""
    try:
        state = StoredState.of(job.annotations, job.uid, job.spec().tf_replica_specs)
    except ValueError:
        return None
    return state.replicas or None if state is not None else None


def _kept(job: TFJob, wanted: dict[str, Any]) -> bool:
    """Whether a TFJob stays as it is; else it is to be written anew. Others may edit it, even to what is invalid, which
    nobody runs nor suspends; or to types that the JobSet, and so its status, does not have."""
    if job.annotations.get(DIGEST_ANNOTATION) != wanted["metadata"]["annotations"][DIGEST_ANNOTATION]:
        return False
    try:
        spec = job.spec()
    except InvalidTFJob:
        return False
    same_types = spec.tf_replica_specs.keys() == set(wanted["spec"]["tfReplicaSpecs"])
    return same_types and spec.run_policy.suspend is bool(wanted["spec"]["runPolicy"]["suspend"])

"""Runs the JobSets that this operator manages: writes a TFJob for each, and sets the JobSet's status from the TFJob's.

Reconciliation is level-based: it compares the current with the desired objects and needs no record of earlier steps.
An owner reference deletes a TFJob with its JobSet.
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
    """Reconciles JobSets. `jobs` is the informer of TFJobs, `api` a client that writes only while this replica leads.
    `may_write` returns whether a JobSet may be handled now."""

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
        """JobSets with a rejected write that was decided from an outdated state."""

    def touched(self, key: Key) -> None:
        """Queue the JobSet of a TFJob that has changed."""
        if self.informer.of_job(key):
            self._add(key)

    def _add(self, key: Key) -> None:
        """Queue a JobSet. A standby replica queues nothing; `run` queues all of them when it becomes the leader."""
        if self._running:
            self._queue.add(key)

    async def run(self) -> None:
        """Wait until all JobSets are read, then reconcile them without end."""
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
        """Reconcile one JobSet. An error is reported and retried; other JobSets are not affected."""
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
            self._recorder.record(
                jobset,
                Event(
                    "Warning",
                    "TFJobNotWritten",
                    f"The TFJob could not be written, and the operator retries: {excerpt(error)}",
                ),
            )
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            again_s = self._queue.retry(key)
            metrics.RECONCILE_FAILURES.inc()
            problem = excerpt(error)
            log.error("bug: jobset not run", **where, error=problem, trace=trace(error), again_in_s=again_s)
            message = (
                "The operator cannot run this JobSet because of a bug, and retries. Meanwhile its TFJob does not "
                f"change: {problem}"
            )
            self._recorder.record(jobset, Event("Warning", "ReconcileFailed", message))

    async def _advance(self, jobset: JobSet) -> None:
        if jobset.key in self._doubted:
            await self._advance_newest(jobset)
        else:
            await self._step(jobset, newest=False)

    async def _advance_newest(self, jobset: JobSet) -> None:
        """Read the JobSet and its TFJob from the API server, then take the next step. A watch may be silent for a
        minute, so the cache may have a JobSet that has ended since, or was deleted and replaced by one of its name."""
        path = f"/apis/{JOBSET_VERSION}/namespaces/{quote(jobset.namespace, safe='')}/jobsets"
        # A list instead of a get, because the operator has the right to list JobSets but not to get them.
        found = await self._api.get(path, fieldSelector=f"metadata.name={jobset.name}")
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
        """Make the next write for a JobSet. Unless `newest` is True, the JobSet is read from the API server before its
        TFJob is written, because no TFJob may start for a JobSet that has ended. `there` is its newest TFJob, used only
        if `newest` is True."""
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
            # The answer is not stored in the cache: the watch delivers the job, so that it is queued as a new one.
            await self._api.post(jobs_path(jobset.namespace), wanted)
            return
        if job.owner != jobset.uid:
            why = (
                "A TFJob of this name exists and does not belong to this JobSet, which runs once that TFJob is deleted"
            )
            self._recorder.record(jobset, Event("Warning", "TFJobExists", why))
            return
        if job.deleting:
            return
        if not _kept(job, wanted):
            job = await self._rewrite(job, wanted)
        await self._report(jobset, before, status_of(before, job.spec(), job.status(), now, _size(job)))

    def _runs(self, jobset: JobSet) -> bool:
        """Whether the JobSet's TFJob is running or restarting. An older version of the operator may have accepted a
        JobSet that is rejected now; its running job is not stopped."""
        jobs = [job for job in self._jobs.of_job(jobset.key) if job.owner == jobset.uid]
        return any(job.status().is_true(each) for job in jobs for each in ("Running", "Restarting"))

    async def _rewrite(self, job: TFJob, wanted: dict[str, Any]) -> TFJob:
        """Update the spec of a TFJob from its JobSet. Annotations and other fields of other writers stay."""
        path = f"{jobs_path(job.namespace)}/{quote(job.name, safe='')}"
        raw = await self._api.get(path)
        found = TFJob.parse(raw)
        if (found.uid, found.owner, found.deleting) != (job.uid, job.owner, False):
            self._jobs.seen(raw)
            raise Conflict(f"PUT {path}", 409, "Conflict", "the TFJob was replaced, or is being deleted")
        # The body has uid and resource version, so a change made meanwhile is not overwritten.
        raw["spec"] = wanted["spec"]
        raw["metadata"].pop("managedFields", None)  # the API server keeps them, and rejects too many of them
        raw["metadata"]["annotations"] = (raw["metadata"].get("annotations") or {}) | wanted["metadata"]["annotations"]
        return TFJob.parse(await self._api.put(path, raw))

    async def _report(self, jobset: JobSet, before: dict[str, Any], status: dict[str, Any]) -> None:
        if status == before:
            return
        path = f"/apis/{JOBSET_VERSION}/namespaces/{quote(jobset.namespace, safe='')}/jobsets"
        body = {"metadata": {"uid": jobset.uid, "resourceVersion": str(jobset.version)}, "status": status}
        self.informer.seen(await self._api.patch(f"{path}/{quote(jobset.name, safe='')}/status", body))


def _size(job: TFJob) -> Mapping[str, int] | None:
    """The current replicas of a job by type; None if they are those of its spec."""
    try:
        state = StoredState.of(job.annotations, job.uid, job.spec().tf_replica_specs)
    except ValueError:
        return None
    return state.replicas or None if state is not None else None


def _kept(job: TFJob, wanted: dict[str, Any]) -> bool:
    """Whether a TFJob matches its JobSet; otherwise its spec is rewritten. Users may edit the TFJob: an invalid spec
    would neither run nor suspend, and other replica types are missing in the JobSet and its status."""
    if job.annotations.get(DIGEST_ANNOTATION) != wanted["metadata"]["annotations"][DIGEST_ANNOTATION]:
        return False
    try:
        spec = job.spec()
    except InvalidTFJob:
        return False
    same_types = spec.tf_replica_specs.keys() == set(wanted["spec"]["tfReplicaSpecs"])
    return same_types and spec.run_policy.suspend is bool(wanted["spec"]["runPolicy"]["suspend"])

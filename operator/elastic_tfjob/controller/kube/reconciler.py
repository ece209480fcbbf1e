"""The workers that reconcile jobs: each takes a job from the queue, decides its next step and has it carried out."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from elastic_tfjob.controller.job.decision import Decision, Event, Observed, ReconcileSettings
from elastic_tfjob.controller.job.reconcile import reconcile
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Fenced, NotFound, Unavailable
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.executor import Executor
from elastic_tfjob.controller.kube.informer import Caches, jobs_path
from elastic_tfjob.controller.kube.queue import NOT_SURE_S, KeyQueue
from elastic_tfjob.controller.kube.reports import Reports
from elastic_tfjob.controller.kube.supervise import cancels, excerpt, trace
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.state import StoredState

__all__ = ["Reconciler"]

log = structlog.get_logger(__name__)


class Reconciler:
    """Reconciles queued jobs. `observe` returns the current observation of a job; `holds` returns whether this replica
    may act. While `stopping` is True, no further job is started."""

    def __init__(
        self,
        api: ApiClient,
        caches: Caches,
        *,
        queue: KeyQueue,
        executor: Executor,
        reports: Reports,
        recorder: EventRecorder,
        observe: Callable[[TFJob, datetime], Observed],
        settings: Callable[[], ReconcileSettings],
        holds: Callable[[], bool],
    ) -> None:
        self._api = api
        self._caches = caches
        self._queue = queue
        self._executor = executor
        self._reports = reports
        self._recorder = recorder
        self._observe = observe
        self._settings = settings
        self._holds = holds
        # Jobs whose cache entries may be outdated: by key, the version that is doubted, or None if the entry is
        # trusted. Only writes of status and state contain the version that they were decided from. Creations, deletions
        # and commands do not, so a doubted job is read from the API server before any write.
        self._doubted: dict[Key, int | None] = {}
        self._foreign_lead_until = 0
        self.stopping = False

    def doubt_all(self, until: int) -> None:
        """Doubt the cache entries of all jobs. Other replicas may have acted up to the resource version `until`, and a
        broken watch may be silent for most of a minute, so an entry may be older than a job's end or its last move."""
        self._foreign_lead_until = until
        self._doubted = {job.key: job.version for job in self._caches.jobs}

    async def work(self) -> None:
        """Reconcile one job after another, without end."""
        while not self.stopping:
            await self._queue.turn(self._measured, lambda: self.stopping or self._holds())
        await asyncio.Event().wait()

    async def _measured(self, key: Key) -> None:
        if not self.stopping:
            with metrics.RECONCILE_SECONDS.time():
                await self._handle(key)

    async def _handle(self, key: Key) -> None:
        """Reconcile one job. An error is reported and the job is retried; other jobs are not affected."""
        job = self._caches.jobs.one(key)
        if job is None:
            self._queue.forget(key)
            self._doubted.pop(key, None)
            return
        where = {"namespace": job.namespace, "job": job.name}
        if key not in self._doubted:
            # If another replica led when this job last changed, the cache may be outdated, also for the job's pods.
            self._doubted[key] = 0 if job.version <= self._foreign_lead_until else None
        try:
            await self._reconcile(job)
            self._queue.succeeded(key)
        except Conflict as error:
            # The watch delivers the newer version. The retry is for the case that it already has, or is delayed.
            self._doubt(job)
            again_s = self._queue.retry(key)
            log.info("conflict", **where, error=str(error), again_in_s=again_s)
        except Fenced as error:
            self._queue.add(key, NOT_SURE_S)
            log.warning("not written", **where, error=str(error))
        except (Unavailable, NotFound) as error:
            if isinstance(error, NotFound):
                self._doubt(job)
            again_s = self._queue.retry(key)
            log.warning("reconcile failed", **where, error=str(error), again_in_s=again_s)
        except ApiError as error:
            again_s = self._queue.retry(key)
            log.error("refused by the API server", **where, error=str(error), again_in_s=again_s)
        except (Exception, asyncio.CancelledError) as error:
            if cancels(error):
                raise
            again_s = self._queue.retry(key)
            metrics.RECONCILE_FAILURES.inc()
            problem = excerpt(error)
            log.error("bug: reconcile failed", **where, error=problem, trace=trace(error), again_in_s=again_s)
            message = (
                "The operator cannot reconcile this job because of a bug, and retries. Meanwhile the job does not "
                f"change: {problem}"
            )
            self._recorder.record(job, Event("Warning", "ReconcileFailed", message))

    async def _reconcile(self, job: TFJob) -> None:
        key = job.key
        now = datetime.now(UTC)
        decision = self._decide(job, now)
        if self._doubted[key] is not None and (decision.actions or decision.status is not None):
            await self._look_up(job)
            newest = self._caches.jobs.one(key)
            if newest is None:
                return
            job, now = newest, datetime.now(UTC)
            decision = self._decide(job, now)
        try:
            await self._executor.carry_out(job, decision)
        finally:
            # The new phase may be stored even if another write has failed.
            for newest in self._caches.jobs.of_job(key):
                self._reports.follow(key, _rescaling(newest))
        # If the job has failed, its retry (within a minute) computes this time again.
        if decision.again_at is not None:
            self._queue.add(key, (decision.again_at - now).total_seconds())

    def _decide(self, job: TFJob, now: datetime) -> Decision:
        return reconcile(self._observe(job, now), self._settings())

    def _doubt(self, job: TFJob) -> None:
        if self._doubted[job.key] is None:
            self._doubted[job.key] = job.version

    async def _look_up(self, job: TFJob) -> None:
        """Update the cache entries of a job and its pods from the API server. Raises NotFound if the job is gone and a
        delayed watch has not reported it yet; the caller then writes nothing."""
        answer = await self._api.get(f"{jobs_path(job.namespace)}/{job.name}")
        self._caches.jobs.seen(answer)
        if int(answer["metadata"]["resourceVersion"]) != self._doubted[job.key]:
            # Another replica that changed the job may have changed its pods, and the watch of pods may be broken too.
            await self._caches.look_up_pods(job)
        self._doubted[job.key] = None


def _rescaling(job: TFJob) -> bool:
    try:
        state = StoredState.parse(job.annotations.get(STATE_ANNOTATION), job.uid)
    except ValueError:
        return False
    return state is not None and state.rescaling

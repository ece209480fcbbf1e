"""Growth within Kueue's quota, as part of the scheduling loop: gives the pure decision (planning/growth.py) what it
needs, carries out its actions, and tells users what their jobs wait for (docs/kueue.md)."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Final

import structlog

from elastic_tfjob.api.tfjob import InvalidTFJob
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Invalid
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.kube.workloads import KueueCaches, carry_out
from elastic_tfjob.controller.model.annotations import GROWTH_ANNOTATION
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.kueue import Growth
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Counts, Target
from elastic_tfjob.controller.planning.growth import (
    Action,
    Create,
    Delete,
    GrowthMemory,
    GrowthRules,
    Phase,
    QueuedJob,
    Step,
    held_size,
    wishes,
)
from elastic_tfjob.controller.planning.job_view import JobView
from elastic_tfjob.controller.planning.request import JobRequest
from elastic_tfjob.controller.schedule.writers import AnnotationWrite, AnnotationWriter, WriteFailure
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.snapshot import Snapshot

__all__ = ["QuotaGrowth"]

log = structlog.get_logger(__name__)

# Seconds until the operator looks again whether it may read Kueue's objects.
_RETRY_S: Final = 60.0
# Minimum seconds between two plans without quotas, and between two writes of a job that change only its reason.
_WISH_S: Final = 2.0
_REASON_S: Final = 10.0
# Seconds after which a write is left to a later step, and until a failed one is tried again.
_WRITE_S: Final = 15.0
_FAILED_S: Final = 5.0


class QuotaGrowth:
    """Jobs that grow within the quota of their Kueue queue. `touched` makes the next round describe a job again, `wake`
    starts a round."""

    def __init__(
        self,
        api: ApiClient,
        jobs: Informer[TFJob],
        pods: Informer[Pod],
        recorder: EventRecorder,
        *,
        namespace: str,
        touched: Callable[[Key], None],
        wake: Callable[[], None],
    ) -> None:
        self._api = api
        self._jobs = jobs
        self._pods = pods
        self._recorder = recorder
        self._touched = touched
        self._wake = wake
        self._kueue = KueueCaches(api, namespace=namespace, touched=touched, wake=wake)
        self._memory = GrowthMemory()
        self._annotations = AnnotationWriter(api, jobs.seen, "growth")
        self._grows = False
        self._tried_at = -inf
        self._wished_at = 0.0
        self._wishes: Mapping[str, Counts] = {}
        # Writes under way, by namespace and name of the Workload.
        self._writing: set[Key] = set()
        # By the kind of action and Workload: until when (monotonic seconds) it is not tried again.
        self._refused: dict[tuple[type[Action], str, str], float] = {}
        self._waits: dict[Key, str] = {}
        self._reasoned_at: dict[Key, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def follow(self, configuration: Configuration, group: asyncio.TaskGroup) -> None:
        """Begins to read Kueue's objects once the configuration needs them, or a job has what an earlier one gave it.
        If they cannot be read, jobs have their declared sizes; that is logged, and tried again."""
        now, self._grows = time.monotonic(), configuration.kueue.growth != "none"
        if self._kueue.started or now - self._tried_at < _RETRY_S:
            return
        if not self._grows and not any(job.queue and GROWTH_ANNOTATION in job.annotations for job in self._jobs):
            return
        self._tried_at, before = now, self._kueue.problem
        await self._kueue.start(group)
        if (problem := self._kueue.problem) and problem != before:
            log.error("jobs do not grow within their Kueue quota", why=problem)
        if not problem:
            for job in self._jobs:
                if job.queue:
                    self._touched(job.key)

    def admitted(self, job: TFJob | None) -> Counts:
        """The most replicas per type that Kueue admits for a job at the moment; empty: those that it declares."""
        if job is None or not job.queue or not self._kueue.started:
            return {}
        workloads = self._kueue.workloads.of_job(job.key)
        if not self._grows and not any(each.growth or each.reclaimed for each in workloads):
            return {}
        return self._memory.admitted(job.uid, workloads)

    @property
    def concerned(self) -> bool:
        """Whether `step` may have something to do: growth is configured, or has been."""
        return self._grows or self._kueue.started

    async def step(
        self,
        views: Mapping[Key, JobView],
        snapshot: Snapshot | None,
        profile: Profile,
        configuration: Configuration,
        *,
        is_written: Callable[[Key], bool],
        group: asyncio.TaskGroup,
    ) -> None:
        """Does what is due now, after a round has begun its writes. `views` by job; `snapshot`: of the last plan, None
        without one. `is_written`: whether a target of the job is being written. Writes last beyond this step."""
        settings = configuration.kueue
        if not self._kueue.started or not self._kueue.synced:
            if self._kueue.problem:
                self._cannot_grow(views)
            return
        grows = settings.growth != "none" and configuration.decides
        growing = {
            key: view.request
            for key, view in views.items()
            if view.job is not None and view.request is not None and view.request.queue and view.request.elastic
        }
        next_wish_s = await self._wish(growing, snapshot, profile) if grows and snapshot is not None else inf
        rules = GrowthRules(grows, settings.pending, settings.hold_s, settings.reclaim_after_s if grows else 0.0)
        keys = growing.keys() | {each.key for each in self._kueue.workloads if each.growth}
        jobs = [self._queued(job, views.get(key), is_written(key)) for key in keys if (job := self._jobs.one(key))]
        before = {job.key: self._memory.admitted(job.uid, self._kueue.workloads.of_job(job.key)) for job in jobs}
        step = self._memory.follow(jobs, self._kueue.objects(), rules, time.time())
        for key in step.changed:
            self._touched(key)
        for key, event in step.events:
            if (job := self._jobs.one(key)) is not None:
                self._recorder.record(job, event)
        for action in step.actions:
            self._begin(action, group)
        told_s = self._tell(before, step, group)
        self._count()
        self._wake_after(min(next_wish_s, told_s, inf if step.next_s is None else step.next_s))

    async def _wish(self, growing: Mapping[Key, JobRequest], snapshot: Snapshot, profile: Profile) -> float:
        """Notes which sizes the profile would give these jobs if quota were free. Returns the seconds until this is to
        be done again without a change; inf: never."""
        now = time.monotonic()
        if (left_s := self._wished_at + _WISH_S - now) > 0:
            return left_s
        self._wished_at = now
        more = {f"{key[0]}/{key[1]}": request for key, request in growing.items() if request.may_grow}
        try:
            self._wishes = await asyncio.to_thread(wishes, snapshot, profile, more)
        except Exception as error:  # the plan itself did not fail, so jobs go on without growth
            self._wishes = {}
            log.warning("the profile fails for sizes without a quota", error=excerpt(error))
        return inf

    def _queued(self, job: TFJob, view: JobView | None, written: bool) -> QueuedJob:
        request = view.request if view is not None else None
        status = job.status()
        suspended = request is not None and request.spec.run_policy.suspend
        phase: Phase
        if job.deleting or status.finished:
            phase = "over"
        elif request is None or view is None:
            phase = "keeps"
        elif suspended or not view.followed or not request.elastic:
            phase = "returns"
        else:
            phase = "grows" if view.job is not None else "keeps"
        if request is None:
            return QueuedJob(job.key, job.uid, job.queue, phase, settled=False)
        try:
            target = Target.of(job.annotations, job.uid, request.declared)
            state = StoredState.of(job.annotations, job.uid, request.declared)
        except ValueError:  # the reconcile loop reports it, and skips the job
            return QueuedJob(job.key, job.uid, job.queue, phase, settled=False)
        pods = self._pods.of_job(job.key)
        held, running, settled = held_size(request, target, state, pods, suspended=suspended)
        wished = self._wishes.get(f"{job.namespace}/{job.name}", {}) if phase == "grows" else {}
        most = {name: request.most_wanted(name) for name in request.declared}
        settled = settled and not written
        return QueuedJob(job.key, job.uid, job.queue, phase, most, wished, held, running, settled)

    # -- Writes --------------------------------------------------------------------------------------------------------

    def _begin(self, action: Action, group: asyncio.TaskGroup) -> None:
        """Begins to carry out an action, unless a write for the same Workload is under way, or the same one was refused
        a moment ago."""
        of = _workload(action)
        if of in self._writing or time.monotonic() < self._refused.get((type(action), *of), 0.0):
            return
        self._writing.add(of)
        task = group.create_task(self._carry_out(action), name=f"growth-{of[0]}-{of[1]}")
        task.add_done_callback(lambda _: self._writing.discard(of))

    async def _carry_out(self, action: Action) -> None:
        key = action.job.key if isinstance(action, Create) else action.workload.key
        job = self._jobs.one(key)
        if isinstance(action, Create) and (job is None or job.uid != action.job.uid):
            return
        what = type(action).__name__
        of, now = (type(action), *_workload(action)), time.monotonic()
        self._refused = {known: until for known, until in self._refused.items() if now < until}
        try:
            async with asyncio.timeout(_WRITE_S):
                found = await carry_out(self._api, action, job, datetime.now(UTC))
            if found is not None:
                self._kueue.workloads.seen(found)
            elif isinstance(action, Delete):
                self._kueue.workloads.assume(replace(action.workload, terminating=True))
            log.info("growth", action=what, namespace=key[0], job=key[1])
        except (Invalid, Conflict, InvalidTFJob) as error:
            if isinstance(error, Conflict) and not isinstance(action, Create):
                return  # the next step sees why
            log.warning("growth refused", action=what, namespace=key[0], job=key[1], error=excerpt(error))
            again_s = self._memory.delay(key, time.time())
            self._refused[of] = time.monotonic() + again_s
            if job is not None:
                words = error.message if isinstance(error, ApiError) else str(error)
                message = f"The API server refuses {_WORDS[what]}: {words[:_MESSAGE]}. Tries again in {again_s:.0f} s"
                self._recorder.record(job, Event("Warning", "GrowthRefused", message))
        except (ApiError, TimeoutError) as error:
            log.warning("growth not written", action=what, namespace=key[0], job=key[1], error=excerpt(error))
            self._refused[of] = time.monotonic() + _FAILED_S
            asyncio.get_running_loop().call_later(_FAILED_S, self._wake)
        else:
            self._wake()

    def _wake_after(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if after_s < inf:
            self._timer = asyncio.get_running_loop().call_later(after_s + 0.1, self._wake)

    # -- What users read -----------------------------------------------------------------------------------------------

    def _cannot_grow(self, views: Mapping[Key, JobView]) -> None:
        """Tells each job that could grow why it does not."""
        for view in views.values():
            request = view.request
            if view.source is None or request is None or not (request.queue and view.job is not None):
                continue
            if request.may_grow:
                message = f"Growth within the Kueue quota is not possible: {self._kueue.problem}"
                self._recorder.record(view.source, Event("Warning", "GrowthRefused", message))

    def _tell(self, before: Mapping[Key, Counts], step: Step, group: asyncio.TaskGroup) -> float:
        """Writes what Kueue admits, and why not more, to jobs for which that has changed. Returns the seconds until the
        next write is due; inf: none is."""
        now, due_s = time.time(), inf
        for key, admitted in before.items():
            job = self._jobs.one(key)
            if job is None or job.deleting:
                continue
            reason = step.waits.get(key)
            self._event_of_wait(job, reason)
            try:
                known = Growth.of(job.annotations, job.uid)
            except ValueError:
                known = None
            wanted = Growth(admitted, reason or "") if admitted and self._grows else None
            if wanted == known or key in self._annotations:
                continue
            same = wanted is not None and known is not None and wanted.admitted == known.admitted
            if same and (left_s := self._reasoned_at.get(key, 0.0) + _REASON_S - now) > 0:
                due_s = min(due_s, left_s)
                continue
            self._reasoned_at[key] = now
            text = wanted.to_json(job.uid) if wanted is not None else None
            write = AnnotationWrite(job, {GROWTH_ANNOTATION: text}, versioned=False)
            self._annotations.begin(write, partial(self._told, key), group)
        for known_key in [each for each in self._reasoned_at if each not in before]:
            del self._reasoned_at[known_key]
        return due_s

    def _told(self, key: Key, failure: WriteFailure | None) -> None:
        if failure is not None and failure.kind not in ("conflict", "gone"):
            log.warning("growth not told", namespace=key[0], job=key[1], error=excerpt(failure.error))

    def _event_of_wait(self, job: TFJob, reason: Reason | None) -> None:
        because = str(reason.facts["because"]) if reason is not None else ""
        before, self._waits[job.key] = self._waits.get(job.key, ""), because
        if not because:
            del self._waits[job.key]
        elif because not in (before, "asked", "starts"):
            self._recorder.record(job, Event("Normal", "GrowthWaits", f"The job {reason}"))

    def _count(self) -> None:
        growth = [each for each in self._kueue.workloads if each.growth]
        admitted = sum(each.admitted for each in growth)
        metrics.GROWTH_WORKLOADS.labels("admitted").set(admitted)
        metrics.GROWTH_WORKLOADS.labels("waiting").set(len(growth) - admitted)


def _workload(action: Action) -> Key:
    """Namespace and name of the Workload that an action is about."""
    if isinstance(action, Create):
        return action.job.key[0], action.name
    return action.workload.namespace, action.workload.name


_MESSAGE: Final = 300
_WORDS: Final = {
    "Create": "a Workload for growth",
    "Delete": "to delete a Workload of growth",
    "SetReady": "the condition PodsReady of a Workload",
    "SetReclaimed": "reclaimablePods of the job's Workload",
}

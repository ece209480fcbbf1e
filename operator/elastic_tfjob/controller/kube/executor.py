"""Carries out decisions about jobs. Only this module creates pods, services, PodGroups and budgets, and only it writes
status and state of jobs."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import structlog

from elastic_tfjob.api.reading import after
from elastic_tfjob.api.tfjob import (
    CONTROLLER_NAME,
    GROUP,
    JOB_NAME_LABEL,
    KIND,
    OPERATOR_NAME_LABEL,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    VERSION,
)
from elastic_tfjob.controller.job.decision import (
    Action,
    AdoptService,
    Change,
    Create,
    Decision,
    DeleteJob,
    DeleteOwned,
    DeletePod,
    Event,
    RefusedPod,
    ResizeMemory,
    ResizePod,
    SaveState,
    SendCommand,
    TryPods,
    UpdatePodGroup,
)
from elastic_tfjob.controller.job.node_orders import ORDER
from elastic_tfjob.controller.job.owned import BUDGET, group_version
from elastic_tfjob.controller.job.pods import owner_reference
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import STRATEGIC_MERGE_PATCH, ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Invalid, NotFound, Unavailable
from elastic_tfjob.controller.kube.events import EventRecorder
from elastic_tfjob.controller.kube.informer import Caches, Informer, jobs_path
from elastic_tfjob.controller.kube.trials import Trials
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION, STOP_COMMAND
from elastic_tfjob.controller.model.job import TFJob, controller_uid
from elastic_tfjob.controller.model.memory import resources_with
from elastic_tfjob.controller.model.owned_objects import DisruptionBudget, NodeOrder, PodGroup, Service
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.quota import excess
from elastic_tfjob.controller.model.status import format_time

__all__ = ["Executor", "Refusals", "RefusedPods"]


# -- Jobs with pods that the API server rejects: because of a quota, a policy, or a name that is taken -----------------

# The creation of a pod is retried at least once per minute. A rejection older than this is out of date.
_KNOWN_S: Final = 300.0


class _Refusal(NamedTuple):
    """The API server's message, and when the pod was rejected first and last, in seconds of the monotonic clock."""

    why: str
    first_s: float
    last_s: float


class RefusedPods:
    """Rejected pods, by the uid of the job and the name of the pod."""

    def __init__(self, now: Callable[[], float] = lambda: time.monotonic()) -> None:  # noqa: PLW0108 tests replace it
        self._now = now
        self._at: dict[str, dict[str, _Refusal]] = {}
        self._forgot_at = now()

    def refused(self, uid: str, pod: str, why: str) -> None:
        """Record that the API server rejected a pod with the message `why`."""
        # Old entries are also dropped here, because a profile that plans nothing never reads `jobs`.
        if self._now() - self._forgot_at >= _KNOWN_S:
            self._forget()
        pods, now = self._at.setdefault(uid, {}), self._now()
        known = pods.get(pod)
        first = known.first_s if known is not None and now - known.last_s < _KNOWN_S else now
        pods[pod] = _Refusal(why, first, now)

    def made(self, uid: str, pod: str) -> None:
        """Record that the pod exists now."""
        if (known := self._at.get(uid)) is not None:
            known.pop(pod, None)

    def of_job(self, uid: str) -> Mapping[str, RefusedPod]:
        """The currently rejected pods of a job, by name."""
        now = self._now()
        return {
            name: RefusedPod(each.why, now - each.first_s)
            for name, each in self._at.get(uid, {}).items()
            if now - each.last_s < _KNOWN_S
        }

    @property
    def jobs(self) -> frozenset[str]:
        """The uids of the jobs that have rejected pods now."""
        self._forget()
        return frozenset(self._at)

    def _forget(self) -> None:
        self._forgot_at = self._now()
        oldest = self._forgot_at - _KNOWN_S
        self._at = {
            uid: left
            for uid, pods in self._at.items()
            if (left := {name: each for name, each in pods.items() if each.last_s > oldest})
        }


log = structlog.get_logger(__name__)

# Writes of one job in flight, so that a job of hundreds of pods does not delay other jobs.
_WRITES_PER_JOB: Final = 16
_REFUSED_S: Final = 60.0
# The result of a dry run of pods is valid for this time.
_ADMITTED_S: Final = 30.0
_MOST_REFUSED_S: Final = 3600.0
# The labels that identify an object of the operator and its replica.
_IDENTITY: Final = (OPERATOR_NAME_LABEL, JOB_NAME_LABEL, REPLICA_TYPE_LABEL, REPLICA_INDEX_LABEL)
_REJECTED: Final[Mapping[Change, str]] = {
    "more": "CPU increase rejected",
    "less": "CPU decrease rejected",
    "share": "CPU limit for sharing rejected",
    "memory": "more memory rejected",
    "less-memory": "less memory rejected",
}
_WORDS: Final = {"Pod": "pod", ORDER: "placeholder", "Service": "service", "PodGroup": "PodGroup", BUDGET: BUDGET}

# The kinds that the API server has, where ours differ.
_NAMES: Final = {ORDER: "Pod"}


class Refusals:
    """Changes in place that the API server rejected, by pod uid and kind of change. Each is retried with a growing
    delay. A decrease is retried after a minute at most, because other jobs may wait for the CPU."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._delays: dict[tuple[str, Change], float] = {}
        self.until: dict[tuple[str, Change], datetime] = {}

    def note(self, uid: str, change: Change) -> float:
        """Record a rejected change. Returns the seconds until it is retried."""
        now, key = self._now(), (uid, change)
        for old in [each for each, until in self.until.items() if now >= until + timedelta(seconds=_MOST_REFUSED_S)]:
            del self.until[old], self._delays[old]
        delay_s = min(2 * self._delays.get(key, _REFUSED_S / 2), _REFUSED_S if change == "less" else _MOST_REFUSED_S)
        self._delays[key], self.until[key] = delay_s, now + timedelta(seconds=delay_s)
        return delay_s

    def forget(self, uid: str, change: Change) -> None:
        """Record that the change has succeeded."""
        self.until.pop((uid, change), None)
        self._delays.pop((uid, change), None)


class Executor:
    """Turns actions into API calls and stores the answers in the caches."""

    def __init__(self, api: ApiClient, caches: Caches, recorder: EventRecorder, *, gang_scheduler: str = "") -> None:
        self._api = api
        self._gang_scheduler = gang_scheduler
        self._caches = caches
        self._recorder = recorder
        # Bodies are rendered one at a time and the event loop runs in between, because large jobs take time to render.
        self._rendering = asyncio.Lock()
        self._refusals = Refusals()
        self.refused_pods: Final = RefusedPods()
        self._admission: dict[str, tuple[float, int, str]] = {}
        self.trials: Final = Trials(api)

    @property
    def refused(self) -> Mapping[tuple[str, Change], datetime]:
        """Rejected CPU changes and the time of their next attempt, for Observed."""
        return self._refusals.until

    def admission(self, uid: str) -> Mapping[int, str]:
        """The result of the job's last dry run by job generation, for Observed: empty text if all pods were admitted.
        No entry without a dry run in the last 30 s."""
        at, generation, answer = self._admission.get(uid, (-_ADMITTED_S, 0, ""))
        return {generation: answer} if time.monotonic() - at < _ADMITTED_S else {}

    async def carry_out(self, job: TFJob, decision: Decision) -> None:
        """Delete placeholders, create objects, store status and state, then delete and change other objects.

        Placeholders go first, because a quota counts them until they are gone, and nothing follows from them.
        Deletions come last, so that a crash never leaves a deleted pod without the status that explains it. The
        PodGroup is written first, and if that fails nothing else is created. Any other failed creation or deletion does
        not stop the remaining actions. A state that the API server rejects as invalid does not stop them either,
        because the actions follow from the stored state. The first such ApiError is raised at the end. A Conflict on
        status or state is raised at once: the decision was made from an outdated job.
        """
        slots = asyncio.Semaphore(_WRITES_PER_JOB)

        async def bounded(action: Action) -> ApiError | None:
            async with slots:
                try:
                    await self._act(job, action)
                except ApiError as error:
                    # The frames hold requests and answers, and there may be hundreds of errors.
                    error.__traceback__ = error.__cause__ = error.__context__ = None
                    return error
            return None

        made = [action for action in decision.actions if isinstance(action, (Create, UpdatePodGroup))]
        cancelled = [action for action in decision.actions if isinstance(action, DeleteOwned) and action.kind == ORDER]
        others = [
            action
            for action in decision.actions
            if not isinstance(action, (Create, UpdatePodGroup, SaveState)) and action not in cancelled
        ]
        groups = [action for action in made if isinstance(action, UpdatePodGroup) or action.kind == "PodGroup"]
        failures = await asyncio.gather(*map(bounded, (*cancelled, *groups)))
        # Pods are not created without an up-to-date PodGroup. scheduler-plugins binds a pod without regard to its gang
        # if the PodGroup does not exist, and it binds too few pods if the PodGroup still has a smaller size.
        if not any(failures[len(cancelled) :]):
            failures += await asyncio.gather(*map(bounded, [action for action in made if action not in groups]))
        for event in decision.events:
            self._recorder.record(job, event)
            await asyncio.sleep(0)  # let other jobs run in between
        version = job.version
        if decision.status is not None:
            version = await self._store_status(job, decision.status)
        for action in decision.actions:
            if isinstance(action, SaveState):
                try:
                    await self._save_state(job, action.annotations, version)
                except Invalid as error:
                    failures.append(error)
                    self._record(
                        job,
                        "Warning",
                        "StateNotStored",
                        f"The API server refuses the operator's state: {error.message}",
                    )
        for count in decision.counts:
            metrics.count(count.what, job.namespace, count.amount, count.label)
        failures += await asyncio.gather(*map(bounded, others))
        for failure in failures:
            if failure is not None:
                raise failure

    def _act(self, job: TFJob, action: Action) -> Coroutine[Any, Any, None]:
        match action:
            case Create():
                return self._create(job, action)
            case TryPods():
                return self._try(job, action)
            case DeletePod():
                return self._delete_pod(job, action)
            case DeleteOwned(kind, name, uid):
                return self._delete(job, kind, name, uid)
            case AdoptService(name, uid):
                return self._adopt(job, name, uid)
            case UpdatePodGroup(name, spec):
                return self._update_pod_group(job, name, spec)
            case DeleteJob():
                return self._delete_job(job)
            case SendCommand(name, uid, command):
                return self._send_command(job, name, uid, command)
            case ResizePod():
                cpu: dict[str, Any] = {"requests": {"cpu": f"{action.request_millicores}m"}}
                if action.limit_millicores:
                    cpu["limits"] = {"cpu": f"{action.limit_millicores}m"}
                return self._resize(job, action, cpu)
            case ResizeMemory():
                return self._resize(job, action, resources_with({}, action.wanted))
            case SaveState():
                raise AssertionError("stored beside the status")

    async def _store_status(self, job: TFJob, status: dict[str, Any]) -> int:
        answer = await self._api.put(
            f"{jobs_path(job.namespace)}/{job.name}/status",
            {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "metadata": {
                    "name": job.name,
                    "namespace": job.namespace,
                    "uid": job.uid,
                    "resourceVersion": str(job.version),
                },
                "status": status,
            },
        )
        self._caches.jobs.written(answer)
        return int(answer["metadata"]["resourceVersion"])

    async def _rendered(self, action: Create) -> dict[str, Any]:
        """The body of an object. Raises Invalid if the template cannot be rendered."""
        async with self._rendering:
            await asyncio.sleep(0)
            try:
                return action.body
            except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
                message = f"the pod template is invalid: {type(error).__name__}: {error}"
                raise Invalid(f"render {action.name}", 0, "Invalid", message) from error

    async def _create(self, job: TFJob, action: Create) -> None:
        kind, name = action.kind, action.name
        path = self._collection(job, kind)
        try:
            body = await self._rendered(action)
            try:
                self._informer(kind).written(await self._api.post(path, body))
            except Conflict as error:
                if not error.already_exists:  # another client changed a quota at the same moment
                    raise
                # The object is ours if an answer was lost or the cache is outdated; otherwise the name is taken.
                answer = await self._api.get(f"{path}/{name}")
                if not _is_the_same(answer["metadata"], body["metadata"], job.uid):
                    raise error from None
                self._informer(kind).seen(answer)
            if kind != ORDER:  # the event NodesOrdered is about all of them
                self._record(job, "Normal", f"SuccessfulCreate{kind}", f"Created {_WORDS[kind]}: {name}")
            _count(kind, "create", "ok")
            if kind == "Pod":
                self.refused_pods.made(job.uid, name)
        except ApiError as error:
            _count(kind, "create", "failed")
            if not isinstance(error, Unavailable):
                if kind == ORDER:
                    self._record(job, "Warning", "OrderRefused", f"Error creating: {error.message}")
                    metrics.ORDERS_FAILED.labels("refused").inc()
                else:
                    self._record(job, "Warning", f"FailedCreate{kind}", f"Error creating: {error.message}")
                if kind == "Pod":
                    self.refused_pods.refused(job.uid, name, error.message)
            if action.trial is not None and isinstance(error, Invalid):
                await self.trials.look(job.uid, path, action.trial, error)
            raise

    async def _try(self, job: TFJob, action: TryPods) -> None:
        """Check pods with a dry run of the API server: admission, quotas, policies. A pod counts as admitted if a
        webhook does not support dry runs."""
        answer, path = "", self._collection(job, "Pod")
        coming: list[tuple[Mapping[str, Any], int]] = []
        for pod, count in zip(action.pods, action.counts, strict=True):
            body = await self._rendered(pod)
            try:
                # The answer includes the fields that a LimitRange or a webhook adds.
                admitted = await self._api.post(path, body, dryRun="All")
                coming.append((admitted if "spec" in admitted else body, count))
            except Conflict:  # a pod of this name exists: admission checks names last
                coming.append((body, count))
            except Invalid as error:
                no_dry_run = error.status == 400 and "dry run" in error.message
                if not (no_dry_run or ("exceeded quota" in error.message and not action.quota)):
                    answer = f"{pod.name}: {error.message}"
                    break
                coming.append((body, count))
        if not answer:
            answer = await self._beyond_quotas(job, coming)
        now = time.monotonic()
        self._admission = {uid: each for uid, each in self._admission.items() if now - each[0] < _ADMITTED_S}
        self._admission[job.uid] = now, action.generation, answer

    async def _beyond_quotas(self, job: TFJob, coming: Sequence[tuple[Mapping[str, Any], int]]) -> str:
        """A message that names the quota that these pods would exceed if they replaced the job's current pods. Empty if
        all fit, or if the operator may not read quotas: then only the dry runs of single pods count."""
        try:
            quotas = (await self._api.get(f"/api/v1/namespaces/{job.namespace}/resourcequotas")).get("items") or ()
            if not quotas:
                return ""
            selector = quote(f"{OPERATOR_NAME_LABEL}={CONTROLLER_NAME},{JOB_NAME_LABEL}={job.name}", safe="")
            there = (await self._api.get(f"{self._collection(job, 'Pod')}?labelSelector={selector}")).get("items") or ()
        except Unavailable:
            raise
        except ApiError:
            return ""
        return excess(quotas, (each for each in there if controller_uid(each["metadata"]) == job.uid), coming)

    async def _delete_pod(self, job: TFJob, action: DeletePod) -> None:
        with contextlib.suppress(Invalid):  # a rejected annotation must not prevent the deletion
            if action.mark and not await self._annotate_pod(job, action.name, action.uid, STOP_COMMAND):
                return
        await self._delete(job, "Pod", action.name, action.uid, grace_s=action.grace_s)

    async def _annotate_pod(self, job: TFJob, name: str, uid: str, command: str) -> bool:
        """Write a command to a pod's annotation. False if the pod is gone or was replaced by one of the same name."""
        note = {"metadata": {"uid": uid, "annotations": {COMMAND_ANNOTATION: command}}}
        try:
            self._caches.pods.seen(await self._api.patch(f"{self._collection(job, 'Pod')}/{name}", note))
        except (Conflict, NotFound):
            return False
        return True

    async def _send_command(self, job: TFJob, name: str, uid: str, command: str) -> None:
        await self._annotate_pod(job, name, uid, command)

    async def _resize(self, job: TFJob, action: ResizePod | ResizeMemory, resources: Mapping[str, Any]) -> None:
        # A strategic merge patch, because a JSON merge patch would replace the list of containers.
        container = {"name": action.container, "resources": resources}
        body = {"metadata": {"uid": action.uid}, "spec": {"containers": [container]}}
        path = f"{self._collection(job, 'Pod')}/{action.name}"
        try:
            self._caches.pods.seen(await self._api.patch(f"{path}/resize", body, STRATEGIC_MERGE_PATCH))
        except Conflict:
            return
        except NotFound:
            if await self._pod_exists(path, action.uid):
                self._refuse(job, action, "ResizeUnsupported", "the cluster does not serve pods/resize")
        except Invalid as error:
            self._refuse(job, action, "ResizeRefused", error.message)
        else:
            self._refusals.forget(action.uid, action.change)

    def _refuse(self, job: TFJob, action: ResizePod | ResizeMemory, reason: str, why: str) -> None:
        """Record an event and raise Invalid, so the job is reconciled again: it keeps its current CPU until then."""
        delay_s = self._refusals.note(action.uid, action.change)
        again = f"retry in {delay_s:.0f} s"
        self._record(job, "Warning", reason, f"{action.name}: {_REJECTED[action.change]} ({again}): {why}")
        raise Invalid(f"resize {action.name}", 0, reason, why)

    async def _pod_exists(self, path: str, uid: str) -> bool:
        try:
            return bool((await self._api.get(path))["metadata"]["uid"] == uid)
        except NotFound:
            return False

    async def _save_state(self, job: TFJob, annotations: Mapping[str, str | None], version: int) -> None:
        # The patch has the version that the decision was made from, or that of our own status write since: a former
        # leader must not overwrite a newer state with an older one.
        body = {"metadata": {"uid": job.uid, "resourceVersion": str(version), "annotations": annotations}}
        self._caches.jobs.seen(await self._api.patch(f"{jobs_path(job.namespace)}/{job.name}", body))
        self.trials.stored(job.uid)

    async def _delete(self, job: TFJob, kind: str, name: str, uid: str, *, grace_s: int | None = None) -> None:
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            await self._api.delete(f"{self._collection(job, kind)}/{name}", uid=uid, **options)
        except (Conflict, NotFound):
            # The object is gone or was replaced by one of the same name; the watch will report it.
            return
        except ApiError as error:
            _count(kind, "delete", "failed")
            self._record(job, "Warning", f"FailedDelete{_NAMES.get(kind, kind)}", f"Error deleting: {error.message}")
            raise
        _count(kind, "delete", "ok")
        if kind != ORDER:
            self._record(job, "Normal", f"SuccessfulDelete{kind}", f"Deleted {_WORDS[kind]}: {name}")
        self._assume_terminating(job, kind, name, grace_s)

    def _assume_terminating(self, job: TFJob, kind: str, name: str, grace_s: int | None) -> None:
        if kind == "Pod":
            for pod in self._caches.pods.of_job(job.key):
                if pod.name == name:
                    grace_s = pod.grace_s if grace_s is None else grace_s
                    ends_at = format_time(after(datetime.now(UTC), grace_s))
                    self._caches.pods.assume(replace(pod, terminating=True, grace_s=grace_s, ends_at=ends_at))
        elif kind == ORDER and self._caches.orders is not None:
            for order in self._caches.orders.of_job(job.key):
                if order.name == name:
                    self._caches.orders.assume(replace(order, terminating=True))
        elif kind == "Service":
            for service in self._caches.services.of_job(job.key):
                if service.name == name:
                    self._caches.services.assume(replace(service, terminating=True))

    async def _adopt(self, job: TFJob, name: str, uid: str) -> None:
        # The patch has the service's version: otherwise it would take the service from another owner that adopted it
        # meanwhile.
        known = [each.version for each in self._caches.services.of_job(job.key) if each.uid == uid]
        version = {"resourceVersion": str(known[0])} if known else {}
        body = {"metadata": {"uid": uid, **version, "ownerReferences": [owner_reference(job)]}}
        answer = await self._api.patch(f"{self._collection(job, 'Service')}/{name}", body)
        self._caches.services.seen(answer)

    async def _update_pod_group(self, job: TFJob, name: str, spec: dict[str, Any]) -> None:
        path = f"{self._collection(job, 'PodGroup')}/{name}"
        informer = self._informer("PodGroup")
        uids = [each.uid for each in informer.of_job(job.key) if each.name == name]
        metadata = {"metadata": {"uid": uids[0]}} if uids else {}  # do not change another owner's PodGroup of this name
        informer.seen(await self._api.patch(path, {**metadata, "spec": spec}))

    async def _delete_job(self, job: TFJob) -> None:
        path = f"{jobs_path(job.namespace)}/{job.name}"
        try:
            await self._api.delete(path, uid=job.uid, propagationPolicy="Background")
        except (Conflict, NotFound):
            return
        except ApiError as error:
            self._record(job, "Warning", "FailedDeleteJob", f"Error deleting: {error.message}")
            raise
        self._record(job, "Normal", "SuccessfulDeleteJob", f"Deleted job: {job.name}")
        metrics.count_job("deleted", job.namespace)

    def _informer(
        self, kind: str
    ) -> Informer[Pod] | Informer[Service] | Informer[PodGroup] | Informer[DisruptionBudget] | Informer[NodeOrder]:
        if kind == "Pod":
            return self._caches.pods
        if kind == "Service":
            return self._caches.services
        if kind == ORDER:
            assert self._caches.orders is not None
            return self._caches.orders
        if kind == BUDGET:
            assert self._caches.budgets is not None
            return self._caches.budgets
        assert self._caches.pod_groups is not None
        return self._caches.pod_groups

    def _collection(self, job: TFJob, kind: str) -> str:
        groups = {BUDGET: "/apis/policy/v1", "PodGroup": f"/apis/{group_version(self._gang_scheduler)}"}
        root = groups.get(kind, "/api/v1")
        return f"{root}/namespaces/{job.namespace}/{_NAMES.get(kind, kind).lower()}s"

    def _record(self, job: TFJob, type_: str, reason: str, message: str) -> None:
        self._recorder.record(job, Event(type_, reason, message))


def _is_the_same(there: Mapping[str, Any], wanted: Mapping[str, Any], uid: str) -> bool:
    """Whether an existing object is the one to create: owned by the job `uid`, with the same replica labels."""
    labels, asked = there.get("labels") or {}, wanted.get("labels") or {}
    return any(owner["uid"] == uid for owner in there.get("ownerReferences") or ()) and all(
        labels.get(name) == asked.get(name) for name in _IDENTITY
    )


def _count(kind: str, operation: str, result: str) -> None:
    metrics.POD_OPERATIONS.labels(kind, operation, result).inc()

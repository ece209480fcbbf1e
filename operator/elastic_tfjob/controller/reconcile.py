"""One job's next step: from what is observed to the actions that bring it closer to what its spec asks for. Pure.

Level-based: the same observation gives the same decision, and a decision that was carried out in part is one more state
to observe. A job finishes in two passes: the first records the verdict, and only when that is stored does the next one
delete pods. A crash between the two can then never make a finished job run again.

The rules are upstream's (tfjob v1: common/job.go, common/pod.go, tensorflow/tfjob_controller.go of the
training-operator), deviations are listed in docs/compatibility.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from elastic_tfjob.api.annotations import Elasticity
from elastic_tfjob.api.tfjob import REPLICA_TYPES, InvalidTFJob, TFJobSpec
from elastic_tfjob.controller import gang
from elastic_tfjob.controller.observed import Job, Pod, PodGroup, Service
from elastic_tfjob.controller.pods import general_name, render_pod, render_service
from elastic_tfjob.controller.status import ReplicaCounts, format_time, parse_time

__all__ = [
    "Action",
    "AdoptService",
    "Count",
    "Create",
    "Decision",
    "DeleteJob",
    "DeletePod",
    "DeletePodGroup",
    "DeleteService",
    "Event",
    "Observed",
    "Settings",
    "UpdatePodGroup",
    "reconcile",
]

# What upstream takes for the exit code of a container that has none: retryable, since it is above 127.
_NO_EXIT_CODE: Final = 0xBEEF
_RETRYABLE_FROM: Final = 128
_COUNTED_BY_BACKOFF: Final = ("OnFailure", "Always", "ExitCode")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator was started with. An empty gang scheduler means none; an empty domain, none in TF_CONFIG."""

    gang_scheduler: str = ""
    cluster_domain: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """All that a decision may look at. Pods and services are those with the job's labels, whoever owns them."""

    job: Job
    now: datetime
    pods: tuple[Pod, ...] = ()
    services: tuple[Service, ...] = ()
    pod_group: PodGroup | None = None
    priorities: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Create:
    """Create a pod, service or PodGroup."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod. `mark` leaves a note on it first, so that nobody takes its end for a failure."""

    name: str
    uid: str
    mark: bool = False


@dataclass(frozen=True, slots=True)
class DeleteService:
    """Delete a service."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AdoptService:
    """Become the controller of a service that has the job's labels and no controller."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class UpdatePodGroup:
    """Replace the spec of the job's PodGroup."""

    name: str
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    """Delete the job's PodGroup."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the TFJob itself: its time to live after finishing is over."""


Action = Create | DeletePod | DeleteService | AdoptService | UpdatePodGroup | DeletePodGroup | DeleteJob


@dataclass(frozen=True, slots=True)
class Event:
    """What to tell the user in `kubectl describe`."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Count:
    """A transition to count once its status is stored: created, successful, failed or restarted."""

    what: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. `status` is the new status, or None when it stays as it is; `again_at` is when time alone will
    call for another look."""

    actions: tuple[Action, ...] = ()
    status: dict[str, Any] | None = None
    events: tuple[Event, ...] = ()
    counts: tuple[Count, ...] = ()
    again_at: datetime | None = None


def reconcile(observed: Observed, settings: Settings) -> Decision:
    """Decide one step for one job."""
    job = observed.job
    try:
        spec = job.spec()
    except InvalidTFJob as error:
        return Decision(events=(Event("Warning", "TFJobFailedValidation", str(error)),))
    if job.deleting or not spec.managed_here() or not spec.tf_replica_specs:
        return Decision()
    return _Pass(observed, spec, settings).run()


class _Pass:
    """The working state of one decision."""

    def __init__(self, observed: Observed, spec: TFJobSpec, settings: Settings) -> None:
        self.job = observed.job
        self.spec = spec
        self.settings = settings
        self.pod_group = observed.pod_group
        self.priorities = observed.priorities
        self.time = observed.now
        self.now = format_time(observed.now)
        self.status = observed.job.status()
        self.before = observed.job.status().to_dict()
        self.pods = tuple(pod for pod in observed.pods if pod.owner == self.job.uid)
        self.services = tuple(service for service in observed.services if service.owner == self.job.uid)
        self.orphans = tuple(service for service in observed.services if not service.owner)
        # Left by an earlier job of the same name until the garbage collector or the kubelet is done with them.
        others: tuple[Pod | Service, ...] = (*observed.pods, *observed.services)
        self.taken = {(type(each), each.name) for each in others if each.owner not in ("", self.job.uid)}
        self.actions: list[Action] = []
        self.events: list[Event] = []
        self.counts: list[Count] = []
        self.again_at: datetime | None = None

    def run(self) -> Decision:
        """Take the branch that the job's state calls for."""
        if self.status.set("Created", "TFJobCreated", f"TFJob {self.job.name} is created.", self.now):
            self.counts.append(Count("created"))
        if self.status.finished:
            self._clean_up()
        elif self.spec.run_policy.suspend:
            self._suspend()
        else:
            self._advance()
        status = self.status.to_dict()
        return Decision(
            actions=tuple(self.actions),
            status=status if status != self.before else None,
            events=tuple(self.events),
            counts=tuple(self.counts),
            again_at=self.again_at,
        )

    # Finished and suspended jobs

    def _clean_up(self) -> None:
        policy = self.spec.clean_pod_policy
        if policy != "None":
            doomed = [pod for pod in self.pods if policy != "Running" or pod.phase in ("Running", "Pending")]
            kept = {pod.name for pod in self.pods} - {pod.name for pod in doomed}
            self._delete_pods(doomed)
            # Also of pods that are gone already: an operator that was killed may have got no further than those.
            self._delete_services({service.name for service in self.services} - kept)
        self._delete_pod_group()
        self._count_active_as_succeeded()
        self._expire()

    def _expire(self) -> None:
        ttl = self.spec.run_policy.ttl_seconds_after_finished
        if ttl is None or self.spec.run_policy.suspend or self.status.completion_time is None:
            return
        expires = parse_time(self.status.completion_time) + timedelta(seconds=ttl)
        if self.time >= expires:
            self.actions.append(DeleteJob())
        else:
            self.again_at = expires

    def _suspend(self) -> None:
        # These pods ran by right until now: their end is no failure, also after a quick resume.
        self._delete_pods(self.pods, mark=True)
        self._delete_services({service.name for service in self.services})
        self._delete_pod_group()
        for counts in self.status.replicas.values():
            counts.active = 0
        message = f"TFJob {self.job.name} is suspended."
        if self.status.is_true("Running"):
            self._condition("Running", "TFJobSuspended", message, status="False")
        if not self.status.is_true("Suspended"):
            self._condition("Suspended", "TFJobSuspended", message)
            self.events.append(Event("Normal", "TFJobSuspended", message))

    def _delete_pods(self, pods: Iterable[Pod], *, mark: bool = False) -> None:
        self.actions += [
            DeletePod(pod.name, pod.uid, mark=mark and pod.phase == "Running") for pod in pods if not pod.terminating
        ]

    def _delete_services(self, names: set[str]) -> None:
        self.actions += [
            DeleteService(service.name, service.uid)
            for service in self.services
            if service.name in names and not service.terminating
        ]

    def _delete_pod_group(self) -> None:
        group = self.pod_group
        if self.settings.gang_scheduler and group is not None and group.owner == self.job.uid:
            self.actions.append(DeletePodGroup(group.name, group.uid))
            self.events.append(Event("Normal", "JobTerminated", "Job has been terminated. Deleting PodGroup"))

    # Jobs that should run

    def _advance(self) -> None:
        if self.status.is_true("Suspended"):
            message = f"TFJob {self.job.name} is resumed."
            self._condition("Suspended", "TFJobResumed", message, status="False")
            self.status.start_time = self.now
            self.events.append(Event("Normal", "TFJobResumed", message))
        if failure := self._limit_reached():
            self._fail("TFJobFailed", failure)
            return
        if not self._gang_may_start():
            return
        self._report_troubles()
        for problem in Elasticity.parse(self.job.annotations, self.spec).problems:
            self._event("Warning", "InvalidAnnotation", problem)
        for name, replica in self.spec.tf_replica_specs.items():
            self._advance_pods(name)
            self._advance_services(name, replica.count)
        self._update_status()

    def _limit_reached(self) -> str | None:
        """Why the job has to fail now, whatever its pods do; None while it may go on."""
        policy = self.spec.run_policy
        if policy.backoff_limit is not None and self._past_backoff(policy.backoff_limit):
            return f"Job {self.job.name} has failed because it has reached the specified backoff limit"
        if policy.active_deadline_seconds is not None:
            start = parse_time(self.status.start_time) if self.status.start_time else self.time
            due = start + timedelta(seconds=policy.active_deadline_seconds)
            if self.status.start_time and self.time >= due:
                return f"Job {self.job.name} has failed because it was active longer than specified deadline"
            self.again_at = due
        return None

    def _past_backoff(self, limit: int) -> bool:
        restarts = 0
        for name, replica in self.spec.tf_replica_specs.items():
            if replica.restart in _COUNTED_BY_BACKOFF:
                running = (pod for pod in self._of_type(name) if pod.phase == "Running")
                restarts += sum(pod.restarts for pod in running)
        if restarts >= max(limit, 1):
            return True
        # A failure that the stored status does not show yet counts as one retry; upstream forgets earlier ones.
        failed = sum(pod.phase == "Failed" for pod in self.pods)
        active = sum(pod.phase not in ("Succeeded", "Failed") and not pod.terminating for pod in self.pods)
        known = sum(counts.failed for counts in self.status.replicas.values())
        return failed > known and active != self.spec.total_replicas and limit < 1

    def _gang_may_start(self) -> bool:
        scheduler = self.settings.gang_scheduler
        if not scheduler:
            return True
        wanted = gang.render_pod_group(self.job, self.spec, scheduler, self.priorities, self.pod_group)
        if self.pod_group is None:
            self.actions.append(Create(wanted))
        elif self.pod_group.owner == self.job.uid and not _within(wanted["spec"], self.pod_group.spec()):
            self.actions.append(UpdatePodGroup(self.pod_group.name, wanted["spec"]))
        if gang.must_wait(scheduler, self.pod_group):
            self.status.last_reconcile_time = self.status.last_reconcile_time or self.now
            return False
        return True

    def _report_troubles(self) -> None:
        for pod in self.pods:
            if not pod.terminating:
                self.events += [Event("Warning", trouble.reason, trouble.message) for trouble in pod.troubles]

    def _of_type(self, name: str) -> Iterator[Pod]:
        return (pod for pod in self.pods if pod.replica_type == name.lower())

    def _advance_pods(self, name: str) -> None:
        replica = self.spec.tf_replica_specs[name]
        counts = self.status.replicas[name] = ReplicaCounts()
        present: set[int] = set()
        for pod in self._of_type(name):
            if pod.index is None:
                continue
            present.add(pod.index)
            out_of_range = pod.index >= replica.count
            if out_of_range:
                self._delete_pods([pod], mark=True)
            if pod.exit_code is not None:
                self._event(
                    "Normal", "ExitedWithCode", f"Pod: {pod.namespace}.{pod.name} exited with code {pod.exit_code}"
                )
            if pod.phase == "Failed" and not out_of_range:
                self._judge_failed(name, replica.restart, pod)
            _tally(counts, pod, leaving=out_of_range or pod.stopped_by_us)
        for index in range(replica.count):
            if index not in present and (Pod, general_name(self.job.name, name, index)) not in self.taken:
                self._create_pod(name, index)

    def _judge_failed(self, name: str, policy: str, pod: Pod) -> None:
        exit_code = _NO_EXIT_CODE if pod.exit_code is None else pod.exit_code
        if policy in ("OnFailure", "Always") or (policy == "ExitCode" and exit_code >= _RETRYABLE_FROM):
            message = f"job {self.job.name} is restarting because {name} replica(s) failed."
            self._condition("Restarting", "TFJobRestarting", message)
            if not pod.terminating:
                self._delete_pods([pod])
                self._event("Warning", "TFJobRestarting", message)
                if Count("restarted") not in self.counts:
                    self.counts.append(Count("restarted"))
        elif policy == "ExitCode":
            message = f'job "{self.job.name}" is failing because "{name}" replica(s) failed.'
            self._event("Warning", "TFJobFailed", message)
            self._condition("Failed", "TFJobFailed", message)

    def _create_pod(self, name: str, index: int) -> None:
        pod = render_pod(self.job, self.spec, name, index, domain=self.settings.cluster_domain)
        template = self.spec.tf_replica_specs[name].template.get("spec") or {}
        if template.get("restartPolicy"):
            self._event(
                "Warning",
                "SetPodTemplateRestartPolicy",
                "Restart policy in pod template will be overwritten by restart policy in replica spec",
            )
        if scheduler := self.settings.gang_scheduler:
            if gang.has_other_scheduler(self.spec, scheduler):
                self._event(
                    "Warning",
                    "SetPodTemplateSchedulerName",
                    "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten",
                )
            gang.decorate(pod, self.job.name, name, scheduler)
        self.actions.append(Create(pod))

    def _advance_services(self, name: str, count: int) -> None:
        present: set[int] = set()
        for service in (*self.services, *self.orphans):
            if service.replica_type != name.lower() or service.index is None:
                continue
            present.add(service.index)
            if service.terminating:
                continue
            if service.index >= count:
                if service.owner:
                    self.actions.append(DeleteService(service.name, service.uid))
            elif not service.owner:
                self.actions.append(AdoptService(service.name, service.uid))
        self.actions += [
            Create(render_service(self.job, self.spec, name, index))
            for index in range(count)
            if index not in present and (Service, general_name(self.job.name, name, index)) not in self.taken
        ]

    # Status

    def _update_status(self) -> None:
        """Conditions from the counts, in upstream's order of types. See docs/compatibility.md for the full table."""
        self.status.start_time = self.status.start_time or self.now
        # Running would replace Restarting before a later type is looked at, so remember it.
        restarting = self.status.get("Restarting")
        for name in REPLICA_TYPES:
            replica = self.spec.tf_replica_specs.get(name)
            if replica is None:
                continue
            counts = self.status.replicas[name]
            expected = replica.count - counts.succeeded
            if self.spec.has_chief:
                if name in ("Chief", "Master"):
                    if counts.active:
                        self._run()
                    if expected == 0:
                        self._succeed()
            elif name == "Worker":
                any_worker = self.spec.success_policy != "AllWorkers"
                if expected == 0 or (any_worker and self._worker_0_completed()):
                    self._succeed()
                elif counts.active:
                    self._run()
            if counts.failed:
                if restarting is not None:
                    self._condition("Restarting", restarting.reason, restarting.message)
                elif not (self.spec.enable_dynamic_worker and name == "Worker"):
                    self._fail(
                        "TFJobFailed",
                        f"TFJob {self.job.namespace}/{self.job.name} has failed because {counts.failed} {name} "
                        "replica(s) failed.",
                    )
        if self.status.finished:
            self._count_active_as_succeeded()
            self.again_at = self.time  # the verdict is stored first; then another pass cleans up

    def _worker_0_completed(self) -> bool:
        return any(
            pod.index == 0 and pod.phase == "Succeeded" and pod.exit_code == 0 for pod in self._of_type("Worker")
        )

    def _run(self) -> None:
        self._condition("Running", "TFJobRunning", f"TFJob {self.job.namespace}/{self.job.name} is running.")

    def _succeed(self) -> None:
        message = f"TFJob {self.job.namespace}/{self.job.name} successfully completed."
        self.status.completion_time = self.status.completion_time or self.now
        if self._condition("Succeeded", "TFJobSucceeded", message):
            self._event("Normal", "TFJobSucceeded", message)
            self.counts.append(Count("successful"))

    def _fail(self, reason: str, message: str) -> None:
        self.status.completion_time = self.status.completion_time or self.now
        if self._condition("Failed", reason, message):
            self._event("Normal", reason, message)
        if Count("failed") not in self.counts:
            self.counts.append(Count("failed"))
        self.again_at = self.time

    def _count_active_as_succeeded(self) -> None:
        """What still ran when the job succeeded ends as succeeded, once and for all."""
        if self.status.is_true("Succeeded"):
            for counts in self.status.replicas.values():
                counts.succeeded += counts.active
                counts.active = 0

    def _condition(self, type_: str, reason: str, message: str, status: str = "True") -> bool:
        return self.status.set(type_, reason, message, self.now, status)

    def _event(self, type_: str, reason: str, message: str) -> None:
        self.events.append(Event(type_, reason, message))


def _within(wanted: Mapping[str, Any], existing: Mapping[str, Any]) -> bool:
    """True when all that is wanted is there; the gang scheduler may have added defaults."""
    return all(existing.get(name) == value for name, value in wanted.items())


def _tally(counts: ReplicaCounts, pod: Pod, *, leaving: bool) -> None:
    if pod.phase == "Running":
        if not pod.terminating:
            counts.active += 1
        elif not leaving:
            # Somebody else deletes it (a drain, a preemption): upstream counts it failed at once.
            counts.failed += 1
    elif pod.phase == "Succeeded":
        counts.succeeded += 1
    elif pod.phase == "Failed" and not leaving:
        counts.failed += 1

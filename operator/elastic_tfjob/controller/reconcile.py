"""One job's next step: from what is observed to the actions that bring it closer to what its spec asks for. Pure.

Level-based: the same observation gives the same decision, and a decision that was carried out in part is one more state
to observe. A job finishes in two passes: the first records the verdict, and only when that is stored does the next one
delete pods. A crash between the two can then never make a finished job run again.

The rules are upstream's (tfjob v1: common/job.go, common/pod.go, tensorflow/tfjob_controller.go of the
training-operator), deviations are listed in docs/compatibility.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from elastic_tfjob.api.annotations import Elasticity
from elastic_tfjob.api.tfjob import REPLICA_TYPES, InvalidTFJob, TFJobSpec
from elastic_tfjob.controller import gang, inject
from elastic_tfjob.controller.decision import (
    Action,
    AdoptService,
    Count,
    Create,
    Decision,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    Event,
    Observed,
    ResizePod,
    SaveState,
    Settings,
    Tell,
    UpdatePodGroup,
)
from elastic_tfjob.controller.elastic import (
    COMMAND_ANNOTATION,
    ETA_ANNOTATION,
    STATE_ANNOTATION,
    STEP_ANNOTATION,
    TARGET_ANNOTATION,
    Command,
    Next,
    Phase,
    State,
    Target,
)
from elastic_tfjob.controller.observed import Pod, Service
from elastic_tfjob.controller.pods import general_name, render_pod, render_service, sized, tf_config
from elastic_tfjob.controller.rescale import NUMBERS_S, Situation, Step, advance, chief_of, with_numbers
from elastic_tfjob.controller.resources import cpu_of
from elastic_tfjob.controller.status import ReplicaCounts, format_time, parse_time

# What upstream takes for the exit code of a container that has none: retryable, since it is above 127.
_NO_EXIT_CODE: Final = 0xBEEF
_RETRYABLE_FROM: Final = 128
_COUNTED_BY_BACKOFF: Final = ("OnFailure", "Always", "ExitCode")
# While it prepares, a job runs.
_PAUSED: Final = ("Checkpointing", "Switching", "Recreating")

T = TypeVar("T")


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
        # `declared` is what the user wrote; `spec` has the numbers of replicas that the job runs with.
        self.declared = self.spec = spec
        self.settings = settings
        self.elasticity = Elasticity.parse(observed.job.annotations, spec)
        self.reports = observed.reports
        self.listened_s = observed.listened_s
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
        self.stored = self._annotation(STATE_ANNOTATION, State.parse)
        # Of a job that follows a target: where it is, and what to do about it.
        self.state: State | None = None
        self.step: Step | None = None

    def run(self) -> Decision:
        """Take the branch that the job's state calls for."""
        if self.status.set("Created", "TFJobCreated", f"TFJob {self.job.name} is created.", self.now):
            self.counts.append(Count("created"))
        if self.status.finished:
            self._clean_up()
            self._settle_state("Stable")
        elif self.spec.run_policy.suspend:
            self._suspend()
            self._settle_state("Waiting" if self._waits_for_target() else "Stable")
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
        for problem in self.elasticity.problems:
            self._event("Warning", "InvalidAnnotation", problem)
        self._follow_target()
        if self.state is not None and self.state.phase == "Waiting":
            if self.status.is_true("Running"):
                self._condition("Restarting", "TFJobRescaling", f"TFJob {self.job.name} waits: {self.state.reason}")
            return
        self._resize_cpu()
        for name, replica in self.spec.tf_replica_specs.items():
            count = self.step.counts.get(name, 0) if self.step is not None else replica.count
            self._advance_pods(name, count)
            self._advance_services(name, count)
        self._update_status()

    # Jobs that follow a target

    def _waits_for_target(self) -> bool:
        """Whether the profile decides when and where this job's pods start."""
        follows = self.elasticity.annotated or self.settings.all_jobs
        return self.settings.wait_for_target and follows and self.elasticity.placement != "none"

    def _follow_target(self) -> None:
        """Take the size that the job runs with from its state, and the next step from its target."""
        elastic = self.elasticity.elastic(self.declared)
        if not (self._waits_for_target() or elastic or self.stored):
            return
        now = self.now
        state = self.state = self.stored or self._first_state()
        target = self._annotation(TARGET_ANNOTATION, Target.parse)
        launcher = inject.has_launcher(self.elasticity, self.declared)
        if launcher and not self.settings.image:
            launcher = False
            self._event("Warning", "LauncherNotInjected", "the operator does not know its own image: give it --image")
        elif (
            missing := inject.without_command(self.declared)
            if self.elasticity.injected(self.declared) != "none"
            else ()
        ):
            message = f"{', '.join(missing)}: container tensorflow has no command, so rescales stop the job (recreate)"
            self._event("Warning", "LauncherNotInjected", message)
        step = self.step = advance(
            Situation(
                job=self.job,
                spec=self.declared,
                state=state,
                target=target,
                now=self.time,
                pods=self.pods,
                reports=self.reports,
                listened_s=self.listened_s,
                elastic=elastic,
                launcher=launcher,
                accelerators=inject.needs_accelerator(self.declared),
                mode=self.elasticity.rescale
                if self.elasticity.rescale in ("overlap", "spare", "recreate")
                else "overlap",  # type: ignore[arg-type]
                domain=self.settings.cluster_domain,
                timeouts=self.settings.timeouts,
            )
        )
        self.events += step.events
        if state.replicas:
            self.spec = sized(self.declared, state.replicas)
        for role, command in step.commands.items():
            pod = next(pod for pod in self.pods if (pod.replica_type, pod.index) == (role[0].lower(), role[1]))
            self.actions.append(Tell(pod.name, pod.uid, command))
        self._delete_pods(step.delete, mark=True)
        moved = step.state.phase != state.phase
        report = self.reports.get(general_name(self.job.name, *chief_of(self.declared)))
        self._save_state(with_numbers(state, step.state, report, self.elasticity.total_steps, self.time))
        # Progress is no news that anybody wakes us for.
        numbers_s = NUMBERS_S if report is not None else None
        self._look_again(now if moved else None, numbers_s if step.again_s is None else step.again_s)

    def _first_state(self) -> State:
        """Of a job whose state is not stored yet, or was overwritten with nonsense."""
        declared = {name: replica.count for name, replica in self.declared.tf_replica_specs.items()}
        if self._waits_for_target():
            return State("Waiting", since=self.now)
        return State("Stable", replicas=declared, since=self.now, reason="as declared")

    def _settle_state(self, phase: Phase) -> None:
        """A job that is finished or suspended is on its way nowhere."""
        if self.stored is None:
            return
        state = replace(self.stored, phase=phase, next=None, eta=None)
        if phase == "Waiting":
            state = replace(state, replicas={}, nodes={}, cpu={}, slot=0, reason="suspended")
        if (state.phase, state.replicas) != (self.stored.phase, self.stored.replicas):
            state = replace(state, since=self.now)
        report = self.reports.get(general_name(self.job.name, *chief_of(self.declared)))
        if report is not None and report.step is not None:
            state = replace(state, step=report.step)
        self._save_state(state)

    def _save_state(self, state: State) -> None:
        text = state.to_json()
        wanted = {
            STATE_ANNOTATION: text,
            STEP_ANNOTATION: None if state.step is None else str(state.step),
            ETA_ANNOTATION: state.eta,
        }
        changed = {name: value for name, value in wanted.items() if self.job.annotations.get(name) != value}
        if changed:
            self.actions.append(SaveState(changed))

    def _annotation(self, name: str, parse: Callable[[str | None], T]) -> T | None:
        """One of the operator's own annotations; nonsense is reported, and is as none."""
        try:
            return parse(self.job.annotations.get(name))
        except ValueError as error:
            self._event("Warning", "InvalidAnnotation", str(error))
            return None

    def _look_again(self, at: str | None, after_s: float | None) -> None:
        """At the latest after so long, or at once."""
        times = [self.again_at] if self.again_at else []
        if at is not None:
            times.append(self.time)
        if after_s is not None:
            times.append(self.time + timedelta(seconds=after_s))
        self.again_at = min(times, default=None)

    def _resize_cpu(self) -> None:
        """Bring the CPU of running pods to what the target says, in place. On the way to another size pods only give
        up CPU: those that are added may need it, and whether the others get more is known when that size runs."""
        state = self.state
        if state is None or not self.elasticity.elastic(self.declared):
            return
        size = state if state.phase == "Stable" else state.next
        if size is None:
            return
        for name, replica in self.spec.tf_replica_specs.items():
            for pod in self._of_type(name):
                if pod.index is None or pod.index >= replica.count or pod.terminating or pod.phase != "Running":
                    continue
                wanted = self._cpu(size, name, pod.index)
                if wanted is not None and wanted != pod.cpu and (size is state or wanted[0] < pod.cpu[0]):
                    self.actions.append(ResizePod(pod.name, pod.uid, *wanted))

    def _cpu(self, size: State | Next, name: str, index: int) -> tuple[int, int] | None:
        """CPU request and limit of a replica; None where the template asks for none, so there is nothing to adjust."""
        request, limit = cpu_of(self.declared.tf_replica_specs[name].template.get("spec") or {})
        if not request:
            return None
        granted = size.cpu.get(name, ())
        if index < len(granted):
            limit = granted[index] if limit == request else max(limit, granted[index]) if limit else 0
            request = granted[index]
        return request, limit

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

    def _advance_pods(self, name: str, count: int) -> None:
        """Have `count` pods of a type. Those beyond the size that the job runs with are being prepared for the next
        one: what becomes of them says nothing about the job."""
        replica = self.spec.tf_replica_specs[name]
        elastic = self.state is not None and self.elasticity.elastic(self.declared)
        counts = self.status.replicas[name] = ReplicaCounts()
        present: set[int] = set()
        for pod in self._of_type(name):
            if pod.index is None:
                continue
            present.add(pod.index)
            if pod.index >= count or self._waits_for_a_node_in_vain(name, pod):
                self._delete_pods([pod], mark=True)
            # An elastic job survives the loss of a pod, so a drain or a preemption is no failure of it.
            leaving = pod.index >= replica.count or pod.stopped_by_us or (elastic and pod.terminating)
            if pod.exit_code is not None:
                self._event(
                    "Normal", "ExitedWithCode", f"Pod: {pod.namespace}.{pod.name} exited with code {pod.exit_code}"
                )
            if pod.phase == "Failed" and not leaving:
                self._judge_failed(name, replica.restart, pod)
            _tally(counts, pod, leaving=leaving)
        if self.step is not None and self.step.hold:
            return
        for index in range(count):
            if index not in present and (Pod, general_name(self.job.name, name, index)) not in self.taken:
                self._create_pod(name, index)

    def _waits_for_a_node_in_vain(self, name: str, pod: Pod) -> bool:
        """Whether a pod that is not bound yet is pinned to another node than it shall have by now: one that is lost."""
        state = self.state
        if state is None or pod.index is None or pod.node or not pod.pinned or pod.phase != "Pending":
            return False
        nodes = _size_with(state, name, pod.index).nodes.get(name, ())
        return pod.pinned != (nodes[pod.index] if pod.index < len(nodes) else "")

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
        pod = self._render_pod(name, index)
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

    def _render_pod(self, name: str, index: int) -> dict[str, Any]:
        state, domain = self.state, self.settings.cluster_domain
        if state is None:
            return render_pod(self.job, self.spec, name, index, domain=domain)
        size = _size_with(state, name, index)
        added = size is not state
        spec = sized(self.declared, size.replicas)
        pod = render_pod(self.job, spec, name, index, domain=domain, slot=size.slot)
        what = self.elasticity.injected(self.declared) if self.settings.image else "none"
        inject.inject(pod, what, self.settings.image, self.elasticity.checkpoint_dir)
        if added or state.generation:
            config = tf_config(self.job, spec, name, index, domain=domain, slot=size.slot)
            command = Command(size.generation, "prepare" if added else "run", config)
            pod["metadata"].setdefault("annotations", {})[COMMAND_ANNOTATION] = command.to_json()
        nodes = size.nodes.get(name, ())
        if index < len(nodes) and nodes[index]:
            inject.pin(pod, nodes[index])
        cpu = self._cpu(size, name, index)
        if cpu is not None and size.cpu.get(name):
            inject.set_cpu(pod, *cpu)
        return pod

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
        if self.state is not None and self.state.phase in _PAUSED:
            message = f"TFJob {self.job.namespace}/{self.job.name} is rescaling."
            self._condition("Restarting", "TFJobRescaling", message)
            return
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


def _size_with(state: State, name: str, index: int) -> State | Next:
    """The size that a replica belongs to: the one that the job runs with, or if it is added for the next one, that."""
    return state if state.next is None or index < state.replicas.get(name, 0) else state.next


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
    elif pod.phase == "Succeeded" and not leaving:
        counts.succeeded += 1
    elif pod.phase == "Failed" and not leaving:
        counts.failed += 1

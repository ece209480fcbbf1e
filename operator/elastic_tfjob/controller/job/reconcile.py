"""One job's next step: from what is observed to the actions that bring it closer to what its spec asks for. Pure.

Level-based: the same observation gives the same decision, and a decision that was carried out in part is one more state
to observe. A job finishes in two passes: the first records the verdict, and only when that is stored does the next one
delete pods. A crash between the two can then never make a finished job run again.

The rules are upstream's (tfjob v1: common/job.go, common/pod.go, tensorflow/tfjob_controller.go of the
training-operator), deviations are listed in docs/compatibility.md.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from elastic_tfjob.api.annotations import Elasticity
from elastic_tfjob.api.limits import MAX_ANNOTATION_BYTES, MAX_REPLICAS, after
from elastic_tfjob.api.tfjob import (
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    REPLICA_TYPES,
    InvalidTFJob,
    TFJobSpec,
)
from elastic_tfjob.controller.job import gang, inject
from elastic_tfjob.controller.job.decision import (
    Action,
    AdoptService,
    Count,
    Create,
    Decision,
    DeleteBudget,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    Event,
    Observed,
    ResizePod,
    SaveState,
    SendCommand,
    Settings,
    UpdatePodGroup,
)
from elastic_tfjob.controller.job.disruptions import BUDGET, budget_name, render_budget
from elastic_tfjob.controller.job.moves import switched_with_moves
from elastic_tfjob.controller.job.pods import Sizes, general_name, render_pod, render_service
from elastic_tfjob.controller.job.rescale import (
    NUMBERS_S,
    TOLD_AT_ONCE,
    TOLD_S,
    RescaleInput,
    Transition,
    advance,
    chief_of,
    tells_numbers,
    with_numbers,
)
from elastic_tfjob.controller.objects.annotations import (
    COMMAND_ANNOTATION,
    ETA_ANNOTATION,
    STATE_ANNOTATION,
    STEP_ANNOTATION,
    UID_ANNOTATION,
    Command,
    Cpu,
    Next,
    Phase,
    State,
    Target,
    bytes_of,
    claim,
)
from elastic_tfjob.controller.objects.indexes import INDEXES_ANNOTATION, position
from elastic_tfjob.controller.objects.observed import Pod, Service, template_pin
from elastic_tfjob.controller.objects.quantities import cpu_of, requests_of
from elastic_tfjob.controller.objects.service import RECORD_ANNOTATION, Record, continued
from elastic_tfjob.controller.objects.status import ReplicaCounts, format_time, moment_of

# What upstream takes for the exit code of a container that has none: retryable, since it is above 127.
_NO_EXIT_CODE: Final = 0xBEEF
_RETRYABLE_FROM: Final = 128
_COUNTED_BY_BACKOFF: Final = ("OnFailure", "Always", "ExitCode")
# While it prepares, a job runs.
_PAUSED: Final = ("Checkpointing", "Switching", "Recreating")
# Objects that one pass creates. Those of a job of a thousand replicas take the API server half a minute: meanwhile the
# job may have been suspended, deleted or scaled.
_CREATED_AT_ONCE: Final = 200
_INSTALL_AGAIN_S: Final = 10.0

# What the operator writes into a job's annotations beside its state takes so many bytes at most; and so much it grows.
_OF_STATE: Final = (
    STATE_ANNOTATION,
    INDEXES_ANNOTATION,
    STEP_ANNOTATION,
    ETA_ANNOTATION,
    UID_ANNOTATION,
    RECORD_ANNOTATION,
)
_OF_STATE_BYTES: Final = sum(map(len, _OF_STATE)) + 384
_STATE_GROWS: Final = 4096

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
        self.sizes = Sizes(observed.job, spec, settings.cluster_domain)
        self.settings = settings
        self.elasticity = Elasticity.parse(observed.job.annotations, spec)
        self.reports = observed.reports
        self.listened_s = observed.listened_s
        self.pod_group = observed.pod_group
        self.budget = observed.budget
        self.budget_known = observed.budget_known
        self.priorities = observed.priorities
        self.time = observed.now
        self.now = format_time(observed.now)
        self.status = observed.job.status()
        self.before = observed.job.status().to_dict()
        self.pods = tuple(pod for pod in observed.pods if pod.owner == self.job.uid)
        self.services = tuple(service for service in observed.services if service.owner == self.job.uid)
        # Of all jobs' refusals those of this one: others are no reason to look at it again.
        self.refused = {
            (pod.uid, more): until
            for pod in self.pods
            for more in (True, False)
            if (until := observed.refused.get((pod.uid, more))) is not None and until > observed.now
        }
        self.orphans = tuple(service for service in observed.services if not service.owner)
        # Left by an earlier job of the same name until the garbage collector or the kubelet is done with them.
        others: tuple[Pod | Service, ...] = (*observed.pods, *observed.services)
        # So are names of our own that labels do not give to that replica any more: somebody has changed them.
        self.taken = {(type(each), each.name): each for each in others if each.owner}
        self.by_type: dict[str, list[Pod]] = {}
        for pod in self.pods:
            self.by_type.setdefault(pod.replica_type, []).append(pod)
        self.actions: list[Action] = []
        self.deleted: set[str] = set()
        self.created = 0
        self.events: list[Event] = []
        self.counts: list[Count] = []
        self.again_at: datetime | None = None
        self.stored = self._own(State.of)
        # Of a job that follows a target: where it is, and what to do about it.
        self.state: State | None = None
        self.step: Transition | None = None

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
        self._keep_budget()
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
        completed = moment_of(self.status.completion_time)
        if ttl is None or self.spec.run_policy.suspend or completed is None:
            return
        expires = after(completed, ttl)
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
        for pod in pods:
            if not pod.terminating and pod.uid not in self.deleted:
                self.deleted.add(pod.uid)
                self.actions.append(DeletePod(pod.name, pod.uid, mark=mark and pod.phase == "Running"))

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

    def _keep_budget(self) -> None:
        """A PodDisruptionBudget for a job that runs, and that the profile moves away from a node that is drained."""
        if not self.budget_known:
            return
        runs = not (self.status.finished or self.spec.run_policy.suspend)
        runs = runs and self.state is not None and bool(self.state.replicas)
        if runs and self._waits_for_target() and self.elasticity.stoppable(self.declared):
            if self.budget is None:
                self.actions.append(Create(BUDGET, budget_name(self.job.name), partial(render_budget, self.job)))
        elif self.budget is not None and self.budget.owner == self.job.uid:
            self.actions.append(DeleteBudget(self.budget.name, self.budget.uid))

    # Jobs that should run

    def _advance(self) -> None:
        if self.status.is_true("Suspended"):
            message = f"TFJob {self.job.name} is resumed."
            self._condition("Suspended", "TFJobResumed", message, status="False")
            self.status.start_time = self.now
            self.events.append(Event("Normal", "TFJobResumed", message))
        self.state = self._followed()
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
            stop, name = self.state.stop, f"TFJob {self.job.name}"
            if stop is not None and (self.status.is_true("Running") or self.status.is_true("Restarting")):
                self._condition("Restarting", "TFJobStopped", f"{name} is stopped: {stop.reason}")
            elif self.status.is_true("Running"):
                self._condition("Restarting", "TFJobRescaling", f"{name} waits: {self.state.reason}")
            return
        self._resize_cpu()
        for name, replica in self.spec.tf_replica_specs.items():
            wanted = self.step.pods.get(name, ()) if self.step is not None else range(replica.count)
            self._advance_pods(name, wanted)
            self._advance_services(name, wanted)
        self._update_status()

    # Jobs that follow a target

    def _waits_for_target(self) -> bool:
        """Whether the profile decides when and where this job's pods start."""
        follows = self.elasticity.annotated or self.settings.all_jobs
        return self.settings.wait_for_target and follows and self.elasticity.placement != "none"

    def _followed(self) -> State | None:
        """The state of a job that follows a target; None for one that does not, or has no room for a state."""
        if not (self._waits_for_target() or self.elasticity.elastic(self.declared) or self.stored):
            return None
        state = self._stored_or_first()
        return state if self._room_for(state) else None

    def _follow_target(self) -> None:
        """Take the size that the job runs with from its state, and the next step from its target."""
        state, now = self.state, self.now
        if state is None:
            return
        elastic = self.elasticity.elastic(self.declared)
        stoppable = self.elasticity.stoppable(self.declared)
        target = self._own(Target.of)
        if target is not None and self.refused and target.replicas == state.replicas:
            target = replace(target, cpu=self._possible(target.cpu))
            self._look_again(None, min((until - self.time).total_seconds() for until in self.refused.values()))
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
        situation = RescaleInput(
            job=self.job,
            spec=self.declared,
            sizes=self.sizes,
            state=state,
            target=target,
            now=self.time,
            pods=self.pods,
            reports=self.reports,
            listened_s=self.listened_s,
            elastic=elastic,
            stoppable=stoppable,
            launcher=launcher,
            accelerators=inject.needs_accelerator(self.declared),
            mode=self.elasticity.rescale if self.elasticity.rescale in ("overlap", "spare", "recreate") else "overlap",  # type: ignore[arg-type]
            timeouts=self.settings.timeouts,
        )
        step = self.step = advance(situation)
        self.events += step.events
        self.counts += step.tallies
        if state.replicas:
            self.spec = self.sizes.spec(state.replicas)
        for role, command in step.commands.items():
            pod = situation.by_role[role]
            self.actions.append(SendCommand(pod.name, pod.uid, command))
        if len(step.commands) >= TOLD_AT_ONCE:
            self._look_again(None, TOLD_S)
        self._delete_pods(step.delete, mark=True)
        moved = step.state.phase != state.phase
        report = self.reports.get(general_name(self.job.name, *chief_of(self.declared)))
        kept = with_numbers(state, step.state, report, self.elasticity.total_steps, self.time)
        self._save_state(kept)
        # Nobody wakes us again for what it was too early to store.
        numbers_s = NUMBERS_S if not tells_numbers(kept, report) else None
        self._look_again(now if moved else None, numbers_s if step.again_s is None else step.again_s)

    def _stored_or_first(self) -> State:
        """The stored state; the first one of a job whose state is not stored yet, was overwritten with nonsense, or
        has no size although the job does not wait for one: it waited, and was suspended until no profile decided for
        it any more."""
        if self.stored is None or (self.stored.phase == "Stable" and not self.stored.replicas):
            generation = self.stored.generation if self.stored is not None else 0
            return replace(self._first_state(), generation=generation)
        return self.stored

    def _first_state(self) -> State:
        """Of a job that has no size yet."""
        declared = {name: replica.count for name, replica in self.declared.tf_replica_specs.items()}
        if self._waits_for_target():
            return State("Waiting", since=self.now)
        return State("Stable", replicas=declared, since=self.now, reason="as declared")

    def _settle_state(self, phase: Phase) -> None:
        """A job that is finished or suspended is on its way nowhere."""
        if self.stored is None:
            return
        state = replace(self.stored, phase=phase, next=None, eta=None, stop=None)
        if phase == "Waiting":
            state = replace(state, replicas={}, nodes={}, cpu={}, slot=0, reason="suspended", indexes={})
        if (state.phase, state.replicas) != (self.stored.phase, self.stored.replicas):
            state = replace(state, since=self.now)
        report = self.reports.get(general_name(self.job.name, *chief_of(self.declared)))
        if report is not None and report.step is not None:
            state = replace(state, step=report.step)
        self._save_state(state)

    def _room_for(self, state: State) -> bool:
        """Whether the job's annotations leave room for a state; else it runs as a job that follows no target."""
        if self.stored is not None or _size_of(state.to_json()) + _STATE_GROWS <= self._room():
            return True
        self._event(
            "Warning",
            "StateNotStored",
            f"The job's annotations leave {self._room()} bytes of {MAX_ANNOTATION_BYTES} that Kubernetes admits: too "
            "few for the operator's state, so the job runs with its declared replicas and is not rescaled",
        )
        return False

    def _room(self) -> int:
        """Bytes that the state may have."""
        others = bytes_of(self.job.annotations, but=_OF_STATE)
        return max(0, MAX_ANNOTATION_BYTES - others - _OF_STATE_BYTES)

    def _fitting(self, state: State) -> str:
        """The state's text. Where it does not fit beside the job's other annotations, nodes are left out first, so that
        pods run where kube-scheduler finds room for them, then the past."""
        room, text = self._room() - _size_of(state.indexes_json or ""), state.to_json()
        if _size_of(text) <= room:
            return text
        coming = replace(state.next, nodes={}) if state.next is not None else None
        self._event(
            "Warning",
            "StateNotStored",
            f"The state of {sum(state.replicas.values())} replicas with their nodes has {_size_of(text)} bytes, and "
            f"there is room for {room}: kube-scheduler chooses the nodes of pods that are made from now on",
        )
        text = replace(state, nodes={}, next=coming).to_json()
        if _size_of(text) > room:
            text = replace(state, nodes={}, next=coming, history=(), speeds={}, speed_cpu={}).to_json()
        return text

    def _save_state(self, state: State) -> None:
        text = self._fitting(state)
        wanted = {
            **claim(self.job.annotations, self.job.uid),
            STATE_ANNOTATION: text,
            INDEXES_ANNOTATION: state.indexes_json,
            STEP_ANNOTATION: None if state.step is None else str(state.step),
            ETA_ANNOTATION: state.eta,
            RECORD_ANNOTATION: self._record(state),
        }
        changed = {name: value for name, value in wanted.items() if self.job.annotations.get(name) != value}
        if changed:
            self.actions.append(SaveState(changed))

    def _record(self, state: State) -> str:
        """The record of service once this state holds."""
        suspended = self.spec.run_policy.suspend or self.status.finished
        before, after = (self.stored.replicas if self.stored is not None else {}), {} if suspended else state.replicas
        held = accelerators = 0
        for name, count in after.items():
            replica = self.declared.tf_replica_specs.get(name)
            held += count
            accelerators += (
                count * requests_of(replica.template.get("spec") or {}).accelerators if replica is not None else 0
            )
        record = Record.of(self.job.annotations, self.job.uid)
        report = self.reports.get(general_name(self.job.name, *chief_of(self.declared)))
        if report is not None and (self.stored is None or state.numbers_at != self.stored.numbers_at):
            record = replace(record, loss=report.growth(record.loss))
        moved = self.stored is not None and switched_with_moves(self.stored, state)
        ended = self.status.finished
        return continued(record, before, after, accelerators or held, self.time, ended=ended, moved=moved).to_json()

    def _own(self, read: Callable[[Mapping[str, str], str, Collection[str]], T | None]) -> T | None:
        """One of the operator's own annotations; nonsense is reported, and is as none."""
        try:
            return read(self.job.annotations, self.job.uid, self.declared.tf_replica_specs)
        except ValueError as error:
            self._event("Warning", "InvalidAnnotation", str(error))
            return None

    def _possible(self, wanted: Cpu) -> Cpu:
        """The CPU that pods can have of what is wanted for them: where a change was refused a short while ago, what the
        pod has. What is stored is then true, so that nothing is kept for it."""
        found = dict(wanted)
        for name, replica in self.declared.tf_replica_specs.items():
            asked = cpu_of(replica.template.get("spec") or {})[0]
            if not asked:
                continue
            values = list(found.get(name, ()))
            for pod in self._of_type(name):
                index = self._task(name, pod)
                if index is None or index >= MAX_REPLICAS or not pod.cpu[0]:
                    continue
                value = values[index] if index < len(values) else asked
                if value != pod.cpu[0] and (pod.uid, value > pod.cpu[0]) in self.refused:
                    values += [asked] * (index + 1 - len(values))
                    values[index] = pod.cpu[0]
            if values:
                found[name] = tuple(values)
        return found

    def _look_again(self, at: str | None, after_s: float | None) -> None:
        """At the latest after so long, or at once."""
        times = [self.again_at] if self.again_at else []
        if at is not None:
            times.append(self.time)
        if after_s is not None:
            times.append(after(self.time, after_s))
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
        for name in self.spec.tf_replica_specs:
            for pod in self._of_type(name):
                if pod.index is None or self._task(name, pod) is None or pod.terminating or pod.phase != "Running":
                    continue
                wanted = self._cpu(size, name, pod.index)
                if wanted is None or wanted == pod.cpu or not (size is state or wanted[0] < pod.cpu[0]):
                    continue
                more = wanted > pod.cpu
                if (pod.uid, more) not in self.refused:
                    self.actions.append(ResizePod(pod.name, pod.uid, *wanted, more=more))

    def _cpu(self, size: State | Next, name: str, index: int) -> tuple[int, int] | None:
        """CPU request and limit of a replica; None where the template asks for none, so there is nothing to adjust."""
        request, limit = cpu_of(self.declared.tf_replica_specs[name].template.get("spec") or {})
        if not request:
            return None
        granted = size.cpu.get(name, ())
        task = position(size.replicas, size.indexes, name, index)
        if task is not None and task < len(granted):
            limit = granted[task] if limit == request else max(limit, granted[task]) if limit else 0
            request = granted[task]
        return request, limit

    def _task(self, name: str, pod: Pod) -> int | None:
        """The task of a pod in the size that the job runs with; None for one that is not part of it."""
        if pod.index is None:
            return None
        if self.state is None:
            replica = self.spec.tf_replica_specs[name]
            return pod.index if pod.index < replica.count else None
        return position(self.state.replicas, self.state.indexes, name, pod.index)

    def _limit_reached(self) -> str | None:
        """Why the job has to fail now, whatever its pods do; None while it may go on."""
        policy = self.spec.run_policy
        if policy.backoff_limit is not None and self._past_backoff(policy.backoff_limit):
            return f"Job {self.job.name} has failed because it has reached the specified backoff limit"
        if policy.active_deadline_seconds is not None:
            start = moment_of(self.status.start_time)
            due = after(start or self.time, policy.active_deadline_seconds)
            if start is not None and self.time >= due:
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
        own = [pod for name in self.spec.tf_replica_specs for pod in self._of_type(name) if not self._leaves(name, pod)]
        failed = sum(pod.phase == "Failed" for pod in own)
        active = sum(pod.phase not in ("Succeeded", "Failed") and not pod.terminating for pod in own)
        known = sum(counts.failed for counts in self.status.replicas.values())
        size = self.spec.total_replicas if self.state is None else sum(self.state.replicas.values())
        return failed > known and active != size and limit < 1

    def _gang_may_start(self) -> bool:
        scheduler = self.settings.gang_scheduler
        if not scheduler:
            return True
        spec = self.spec
        if self.state is not None:
            if self.state.phase == "Waiting":
                return True  # it has no gang yet
            spec = gang.shrunk(self.sizes.spec(self.state.replicas))
        wanted = gang.render_pod_group(self.job, spec, scheduler, self.priorities, self.pod_group)
        if self.pod_group is None:
            self.actions.append(Create("PodGroup", self.job.name, lambda: wanted))
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

    def _of_type(self, name: str) -> Iterable[Pod]:
        return self.by_type.get(name.lower(), ())

    def _advance_pods(self, name: str, wanted: Sequence[int]) -> None:
        """Have the pods of a type with these indexes. Those beyond the size that the job runs with are being prepared
        for the next one: what becomes of them says nothing about the job."""
        replica = self.spec.tf_replica_specs[name]
        counts = self.status.replicas[name] = ReplicaCounts()
        present: set[int] = set()
        kept = wanted if isinstance(wanted, range) else frozenset(wanted)
        hold = self.step is not None and self.step.hold
        for pod in self._of_type(name):
            if pod.index is None:
                continue
            present.add(pod.index)
            # What is marked was to be deleted, by an operator that was killed before it came to that.
            unfinished = pod.stopped_by_us and not hold
            if pod.index not in kept or unfinished or self._waits_for_a_node_in_vain(name, pod):
                self._delete_pods([pod], mark=True)
            elif pod.not_installed:
                self._install_again(pod)
            leaving = self._leaves(name, pod)
            if pod.exit_code is not None:
                self._event(
                    "Normal", "ExitedWithCode", f"Pod: {pod.namespace}.{pod.name} exited with code {pod.exit_code}"
                )
            if pod.phase == "Failed" and not leaving:
                self._judge_failed(name, replica.restart, pod)
            _tally(counts, pod, leaving=leaving)
        if hold:
            return
        for index in wanted:
            if index not in present and self._may_create(Pod, general_name(self.job.name, name, index)):
                self._create_pod(name, index)

    def _leaves(self, name: str, pod: Pod) -> bool:
        """Whether what becomes of a pod says nothing about the job: it is not part of the size, the operator ended it,
        or what the operator put into it did. A job with checkpoints survives the loss of a pod, so a drain or a
        preemption is no failure of it."""
        stoppable = self.state is not None and self.elasticity.stoppable(self.declared)
        ended_for_us = pod.stopped_by_us or bool(pod.not_installed) or (stoppable and pod.terminating)
        return ended_for_us or self._task(name, pod) is None

    def _install_again(self, pod: Pod) -> None:
        """A pod whose launcher could not be installed is made anew, but not at once: a node's disk may be full."""
        since = moment_of(pod.not_installed)
        left_s = _INSTALL_AGAIN_S - (self.time - since).total_seconds() if since is not None else 0.0
        if left_s > 0:
            self._look_again(None, left_s)
            return
        self._event("Warning", "LauncherNotInstalled", f"{pod.name} ended before it began, and is made anew")
        self._delete_pods([pod])

    def _may_create(self, kind: type[Pod | Service], name: str) -> bool:
        """Whether a name is free, and this pass may create more."""
        if (holder := self.taken.get((kind, name))) is not None:
            if holder.owner == self.job.uid and not (holder.terminating or holder.uid in self.deleted):
                self._event("Warning", f"FailedCreate{kind.__name__}", _relabelled(holder))
            return False
        if self.created == _CREATED_AT_ONCE:
            self.again_at = self.time
            return False
        self.created += 1
        return True

    def _waits_for_a_node_in_vain(self, name: str, pod: Pod) -> bool:
        """Whether a pod that is not bound yet is pinned to another node than it shall have by now: one that is lost.
        Where it shall have none from us, it may have one from its template."""
        state = self.state
        if state is None or pod.index is None or pod.node or not pod.pinned or pod.phase != "Pending":
            return False
        node = _node(_size_with(state, name, pod.index), name, pod.index)
        return pod.pinned != (node or template_pin(self.declared.tf_replica_specs[name].template))

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
        template = self.spec.tf_replica_specs[name].template.get("spec") or {}
        if template.get("restartPolicy"):
            self._event(
                "Warning",
                "SetPodTemplateRestartPolicy",
                "Restart policy in pod template will be overwritten by restart policy in replica spec",
            )
        if (scheduler := self.settings.gang_scheduler) and gang.has_other_scheduler(self.spec, scheduler):
            self._event(
                "Warning",
                "SetPodTemplateSchedulerName",
                "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten",
            )
        self.actions.append(Create("Pod", general_name(self.job.name, name, index), partial(self._render, name, index)))

    def _render(self, name: str, index: int) -> dict[str, Any]:
        pod = self._render_pod(name, index)
        if scheduler := self.settings.gang_scheduler:
            gang.decorate(pod, self.job.name, name, scheduler)
        return pod

    def _render_pod(self, name: str, index: int) -> dict[str, Any]:
        state = self.state
        if state is None:
            counts = {each: replica.count for each, replica in self.declared.tf_replica_specs.items()}
            return render_pod(self.job, self.declared, name, index, configs=self.sizes.tf_configs(counts, 0))
        size = _size_with(state, name, index)
        added = size is not state
        configs = self.sizes.tf_configs(size.replicas, size.slot, size.indexes)
        pod = render_pod(self.job, self.sizes.spec(size.replicas), name, index, configs=configs)
        what = self.elasticity.injected(self.declared) if self.settings.image else "none"
        inject.inject(pod, what, self.settings.image, self.elasticity.checkpoint_dir)
        if added or state.generation:
            head, tail = configs.parts(name, index)
            command = Command(size.generation, "prepare" if added else "run", head + tail)
            pod["metadata"].setdefault("annotations", {})[COMMAND_ANNOTATION] = command.to_json()
        if node := _node(size, name, index):
            inject.pin(pod, node)
        cpu = self._cpu(size, name, index)
        if cpu is not None and size.cpu.get(name):
            inject.set_cpu(pod, *cpu)
        return pod

    def _advance_services(self, name: str, wanted: Sequence[int]) -> None:
        present: set[int] = set()
        for service in (*self.services, *self.orphans):
            if service.replica_type != name.lower() or service.index is None:
                continue
            present.add(service.index)
            if service.terminating:
                continue
            if service.index not in wanted:
                if service.owner:
                    self.actions.append(DeleteService(service.name, service.uid))
            elif not service.owner:
                self.actions.append(AdoptService(service.name, service.uid))
        for index in wanted:
            service_name = general_name(self.job.name, name, index)
            if index not in present and self._may_create(Service, service_name):
                render = partial(render_service, self.job, self.spec, name, index)
                self.actions.append(Create("Service", service_name, render))

    # Status

    def _update_status(self) -> None:
        """Conditions from the counts, in upstream's order of types. See docs/compatibility.md for the full table."""
        self.status.start_time = self.status.start_time or self.now
        # Running would replace Restarting before a later type is looked at, so remember it.
        restarting = self.status.get("Restarting")
        has_chief = any(name in self.spec.tf_replica_specs and self._runs_with(name) for name in ("Chief", "Master"))
        for name in REPLICA_TYPES:
            replica = self.spec.tf_replica_specs.get(name)
            if replica is None:
                continue
            counts = self.status.replicas[name]
            complete = replica.count == counts.succeeded and self._runs_with(name)
            if has_chief:
                if name in ("Chief", "Master"):
                    if counts.active:
                        self._run()
                    if complete:
                        self._succeed()
            elif name == "Worker":
                any_worker = self.spec.success_policy != "AllWorkers"
                if complete or (any_worker and self._worker_0_completed()):
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
            self._count_as_declared()
            self.again_at = self.time  # the verdict is stored first; then another pass cleans up

    def _runs_with(self, name: str) -> bool:
        """Whether replicas of a type can tell how the job fares. Of a job that follows a target there may be none, by
        its bounds or since the type is not part of its size (yet): what has no pod has not succeeded. Else the spec
        says it, 0 included, as upstream has it."""
        return self.state is None or bool(self.state.replicas.get(name))

    def _worker_0_completed(self) -> bool:
        return any(
            pod.index == 0 and pod.phase == "Succeeded" and pod.exit_code == 0 for pod in self._of_type("Worker")
        )

    def _run(self) -> None:
        if self.state is not None and self.state.phase in _PAUSED:
            name, stop = f"TFJob {self.job.namespace}/{self.job.name}", self.state.stop
            if stop is not None and self.state.phase == "Recreating":
                self._condition("Restarting", "TFJobStopping", f"{name} is stopped: {stop.reason}")
            else:
                self._condition("Restarting", "TFJobRescaling", f"{name} is rescaling.")
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

    def _count_as_declared(self) -> None:
        """A job that succeeded with another size than its spec's is counted as if it had had that one: tools wait for
        `replicaStatuses.Worker.succeeded` to be what the manifest says."""
        if self.state is None or not self.status.is_true("Succeeded"):
            return
        for name, counts in self.status.replicas.items():
            replica = self.declared.tf_replica_specs.get(name)
            if replica is not None:
                all_have = counts.succeeded > 0 and counts.succeeded == self.state.replicas.get(name, 0)
                counts.succeeded = replica.count if all_have else min(counts.succeeded, replica.count)

    def _condition(self, type_: str, reason: str, message: str, status: str = "True") -> bool:
        return self.status.set(type_, reason, message, self.now, status)

    def _event(self, type_: str, reason: str, message: str) -> None:
        self.events.append(Event(type_, reason, message))


def _size_with(state: State, name: str, index: int) -> State | Next:
    """The size that a replica belongs to: the one that the job runs with, or if it is added for the next one, that."""
    return state if state.next is None or index in state.pods(name) else state.next


def _node(size: State | Next, name: str, index: int) -> str:
    """The node of a pod; empty where kube-scheduler chooses."""
    nodes, task = size.nodes.get(name, ()), position(size.replicas, size.indexes, name, index)
    return nodes[task] if task is not None and task < len(nodes) else ""


def _relabelled(holder: Pod | Service) -> str:
    kind = type(holder).__name__
    return (
        f"Error creating: {kind.lower()} {holder.name} of this job is there, but by its labels it is another replica, "
        f"or none ({REPLICA_TYPE_LABEL} and {REPLICA_INDEX_LABEL}): restore them, or delete it"
    )


def _size_of(text: str) -> int:
    return len(text.encode())


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

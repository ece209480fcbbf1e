"""One pass over a job: its observations, and the decisions so far. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from math import inf
from typing import Final, TypeVar

from elastic_tfjob.api.annotations import TENSORFLOW_EXITS, Elasticity
from elastic_tfjob.api.reading import UnknownWord, after
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.decision import (
    CHANGES,
    Action,
    Count,
    DeleteOwned,
    DeletePod,
    Event,
    Observed,
    ReconcileSettings,
    SendCommand,
    Timeouts,
)
from elastic_tfjob.controller.job.pods import Pods, PodsBySize, Role, chief_of, general_name, has_one_replica, roles_of
from elastic_tfjob.controller.model.annotations import position
from elastic_tfjob.controller.model.memory import raised_memory, with_memory
from elastic_tfjob.controller.model.owned_objects import Service
from elastic_tfjob.controller.model.pod import GRACE_S, Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.speed_conditions import present_conditions
from elastic_tfjob.controller.model.state import Next, StoredState
from elastic_tfjob.controller.model.status import format_time, moment_of
from elastic_tfjob.controller.model.target import Mode, Target
from elastic_tfjob.speed.history import Conditions

# The pods of a rescaling job are asked every few seconds at least; a pod that has not answered for this time is silent.
_SILENT_S: Final = 15.0
# Grace period in seconds of a pod that the job does without, as long as the launcher gives a replaced program.
_LEFT_S: Final = 5
# Commands sent in one pass. Each command names all replicas, so the commands of a large job are not all held in memory
# at once.
COMMANDS_PER_PASS: Final = 200
# Seconds until the next pass sends the remaining commands. Each pod that got one triggers a pass at once; this interval
# is for pods that are gone without the operator's knowledge yet. A shorter one would only add requests.
COMMANDS_INTERVAL_S: Final = 1.0

T = TypeVar("T")


class ReconcileContext:
    """One pass over one job. Each part of the decision reads the context, and adds its decisions to it."""

    def __init__(self, observed: Observed, spec: TFJobSpec, settings: ReconcileSettings) -> None:
        self.job = observed.job
        # `written` is the spec of the user, `declared` has raised memory, and `spec` the replica counts of the run.
        self.written = self.declared = self.spec = spec
        self.settings = settings
        self.elasticity = Elasticity.parse(observed.job.annotations, spec, observed.job.name)
        self.reports = observed.reports
        self.listened_s = observed.listened_s
        self.forecast = observed.forecast
        self.refused_pods = observed.refused_pods
        self.admission = observed.admission
        self.found_injection = observed.injection
        self.pod_group = observed.pod_group
        self.budget = observed.budget
        self.budget_known = observed.budget_known
        self.orders = tuple(each for each in observed.orders if each.owner == observed.job.uid)
        self.admitted = observed.admitted
        self.priorities = observed.priorities
        self.now = observed.now
        self.now_text = format_time(observed.now)
        self.status = observed.job.status()
        self.before = self.status.to_dict()
        own = (pod for pod in observed.pods if pod.owner == self.job.uid)
        self.done_with_trainer = self.elasticity.done_when == TENSORFLOW_EXITS
        self.pods = tuple(pod.as_trained() for pod in own) if self.done_with_trainer else tuple(own)
        self.services = tuple(service for service in observed.services if service.owner == self.job.uid)
        # Only this job's refusals count; those of other jobs are no reason for another pass.
        self.refused = {
            (pod.uid, change): until
            for pod in self.pods
            for change in CHANGES
            if (until := observed.refused.get((pod.uid, change))) is not None and until > observed.now
        }
        self.orphans = tuple(service for service in observed.services if not service.owner)
        # Names held by objects of an earlier job of the same name, until the garbage collector or the kubelet has
        # removed these.
        others: tuple[Pod | Service, ...] = (*observed.pods, *observed.services)
        # Own objects whose labels no longer match their replica also hold their names: their labels were edited.
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
        # The state has a word of a newer operator. Any action might be wrong, so none is taken.
        self.unreadable = False
        self.stored = self.own(StoredState.of)
        if self.stored is not None and not observed.job.queue:  # Kueue has admitted what the user's spec has
            self.declared = self.spec = with_memory(spec, raised_memory(self.stored.memory))
        # The bytes that each replica of a type needs while a second program starts beside its own.
        self.beside: Mapping[str, int] = {}
        local = has_one_replica(spec, self.elasticity)
        self.sizes = PodsBySize(observed.job, self.spec, settings.cluster_domain, local=local)
        for problem in self.stored.problems if self.stored is not None else ():
            self.event("Warning", "InvalidAnnotation", problem)
        # For a job that follows a target: its state and its target, and whether its pods have launchers. Then the pods
        # it should have, whether creation is on hold, and the state after a resize for which the API server is asked
        # first whether it admits the pods.
        self.state: StoredState | None = None
        self.target: Target | None = None
        self.launcher = False
        self.wanted: Pods | None = None
        self.hold = False
        self.tries: StoredState | None = None

    def delete_pods(self, pods: Iterable[Pod], *, mark: bool = False, left: bool = False) -> None:
        """Deletes these pods. Each is deleted once. A pod that is already ending is deleted again only if its grace
        period is too long. With `mark`, a running pod gets a note first that its end is no failure. A bound pod that
        has not started gets it too, because it may end as Failed: this is how the kubelet ends pods that must not
        start.

        The capacity of a job with checkpoints is reserved for other jobs, so its pods get a grace period of at most
        `Timeouts.grace_s`: the template's value is the tenant's choice alone.

        `left`: servers that the job does without. They would wait for the chief's last checkpoint all the same, so they
        get a short grace period instead of the default one."""
        for pod in pods:
            grace_s = self._shorter_grace_s(pod, left=left)
            if pod.uid in self.deleted or (pod.terminating and (grace_s is None or pod.ended)):
                continue
            self.deleted.add(pod.uid)
            bound = pod.phase == "Running" or (bool(pod.node) and not pod.ended)
            marked = mark and bound and not pod.terminating
            self.actions.append(DeletePod(pod.name, pod.uid, mark=marked, grace_s=grace_s))

    def _shorter_grace_s(self, pod: Pod, *, left: bool) -> int | None:
        if left and pod.grace_s == GRACE_S:
            return _LEFT_S
        most_s = self.settings.timeouts.grace_s
        return most_s if self.stoppable and pod.grace_s > most_s else None

    def delete_services(self, names: set[str]) -> None:
        """Deletes the job's services with these names."""
        self.actions += [
            DeleteOwned("Service", service.name, service.uid)
            for service in self.services
            if service.name in names and not service.terminating
        ]

    @property
    def waits_for_target(self) -> bool:
        """Whether the profile decides when and where this job's pods start."""
        follows = self.elasticity.annotated or self.settings.all_jobs
        return self.settings.wait_for_target and follows and self.elasticity.placement != "none"

    @cached_property
    def elastic(self) -> bool:
        """Whether the job may have a size other than its spec's."""
        return self.elasticity.elastic(self.declared)

    @cached_property
    def stoppable(self) -> bool:
        """Whether all pods of the job may be stopped for a time: it resumes from a checkpoint."""
        return self.elasticity.stoppable(self.declared)

    @property
    def timeouts(self) -> Timeouts:
        """The time limit of each phase of a rescale."""
        return self.settings.timeouts

    @property
    def allowed_mode(self) -> Mode:
        """The best rescaling mode that the user allows."""
        rescale = self.elasticity.rescale
        return rescale if rescale in ("overlap", "spare", "recreate") else "live"  # type: ignore[return-value]

    @cached_property
    def by_role(self) -> dict[Role, Pod]:
        """The pods by replica, with the replica types as the spec spells them."""
        spelling = {name.lower(): name for name in self.declared.tf_replica_specs}
        return {
            (spelling[pod.replica_type], pod.index): pod
            for pod in self.pods
            if pod.index is not None and pod.replica_type in spelling
        }

    @property
    def declared_counts(self) -> dict[str, int]:
        """The replica counts of the user's spec, by type."""
        return {name: replica.count for name, replica in self.declared.tf_replica_specs.items()}

    @property
    def chief(self) -> Role:
        """The replica that leads the training at the present size."""
        return chief_of(self.declared, self.state)

    @property
    def coming_chief(self) -> Role:
        """The replica that will lead it at the coming size: another one if it moves."""
        return chief_of(self.declared, self.coming)

    @property
    def chief_moves(self) -> bool:
        """Whether the chief is prepared in another pod."""
        return self.coming.mode != "recreate" and self.coming_chief != self.chief

    @property
    def newest_checkpoint(self) -> int | None:
        """The step of the chief's newest checkpoint, as it reports."""
        checkpoint = self.chief_report.checkpoint if self.chief_report is not None else None
        return checkpoint.step if checkpoint is not None else None

    @property
    def saved(self) -> int | None:
        """The step that the chief saved before it moved, until it has begun in its new pod."""
        coming = self.state.next if self.state is not None and self.state.phase == "Switching" else None
        return coming.saved if coming is not None and coming.mode != "recreate" else None

    @property
    def next_chief_unheard(self) -> bool:
        """Whether it is not known yet if the next chief trains: this operator has not heard its pod so far."""
        pod = self.by_role.get(self.coming_chief) if self.chief_moves else None
        unheard = pod is not None and not pod.ended and self.report(self.coming_chief) is None
        return unheard and self.unheard_s < self.timeouts.cancel_s

    @property
    def chief_pod(self) -> Pod | None:
        """The chief's pod; None if there is none."""
        return self.by_role.get(self.chief)

    @property
    def chief_report(self) -> Report | None:
        """The chief's last report; None if there is none."""
        return self.report(self.chief)

    def report(self, role: Role) -> Report | None:
        """Returns the last report of a replica's exporter; None if there is none."""
        return self.reports.get(general_name(self.job.name, *role))

    @property
    def current(self) -> StoredState:
        """The state of a job that follows a target."""
        assert self.state is not None, f"{self.job.name} follows no target"
        return self.state

    @property
    def coming(self) -> Next:
        """The size that the job is changing to, which every phase of a rescale has."""
        assert self.current.next is not None, f"{self.current.phase} without a size to go to"
        return self.current.next

    @property
    def restarts(self) -> int:
        """Container restarts of the pods of the present size."""
        return sum(pod.restarts for role in roles_of(self.current) if (pod := self.by_role.get(role)) is not None)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the phase began."""
        since = moment_of(self.current.since)
        return (self.now - since).total_seconds() if since is not None else 0.0

    @property
    def unheard_s(self) -> float:
        """Seconds in which a silent pod could have been heard in this phase: an operator that has just started has not
        asked any pod yet."""
        return min(self.elapsed_s, self.listened_s)

    def lost(self, role: Role) -> bool:
        """Whether it is unknown when a replica's pod ends: its grace period is over, or neither Kubernetes hears from
        its node nor the operator from the pod. The pod may still run there, so no other pod takes its place."""
        pod, report = self.by_role.get(role), self.report(role)
        if pod is None or pod.ended:
            return False
        if pod.overdue(self.now):
            return True
        heard_s = self.now.timestamp() - report.received_at_s if report is not None else inf
        return pod.unreachable and min(heard_s, self.unheard_s) >= _SILENT_S

    def refusal(self, roles: Iterable[Role]) -> str:
        """Returns the first of these replicas whose pod the API server has refused for too long, with the refusal's
        text; empty if there is none."""
        for role in roles if self.refused_pods else ():
            refused = self.refused_pods.get(general_name(self.job.name, *role))
            if refused is not None and role not in self.by_role and refused.for_s >= self.timeouts.refused_s:
                return f"{role[0].lower()}-{role[1]} cannot be created: {refused.why}"
        return ""

    def send(self, commands: Mapping[Role, str]) -> None:
        """Sends commands to pods, if there are any; commands beyond COMMANDS_PER_PASS follow in the next pass."""
        for role, command in commands.items():
            pod = self.by_role[role]
            self.actions.append(SendCommand(pod.name, pod.uid, command))
        if len(commands) >= COMMANDS_PER_PASS:
            self.look_again(COMMANDS_INTERVAL_S)

    def count(self, name: str, value: float = 1.0, label: str = "") -> None:
        """Adds to a metric."""
        self.counts.append(Count(name, value, label))

    def own(self, read: Callable[[Mapping[str, str], str, Collection[str]], T | None]) -> T | None:
        """Reads one of the operator's own annotations. An invalid one is reported, and counts as missing. One with a
        word of a newer operator is reported too, and the job is left alone."""
        try:
            return read(self.job.annotations, self.job.uid, self.declared.tf_replica_specs)
        except UnknownWord as error:
            self.unreadable = True
            message = (
                f"{error}. The job does not change until the operator is upgraded to a version that knows this word"
            )
            self.event("Warning", "UnknownState", message)
            return None
        except ValueError as error:
            self.event("Warning", "InvalidAnnotation", str(error))
            return None

    def look_again(self, after_s: float) -> None:
        """Requests another pass in at most `after_s` seconds."""
        at = after(self.now, after_s)
        self.again_at = at if self.again_at is None else min(self.again_at, at)

    def task(self, name: str, pod: Pod) -> int | None:
        """Returns a pod's task index in the present size; None if the pod is not part of it."""
        if pod.index is None:
            return None
        if self.state is None:
            replica = self.spec.tf_replica_specs[name]
            return pod.index if pod.index < replica.count else None
        return position(self.state.replicas, self.state.indexes, name, pod.index)

    def speed_conditions(self) -> Conditions:
        """Returns the conditions under which the job's speed is measured now."""
        running = {name: [pod for pod in self.of_type(name) if not pod.ended] for name in self.spec.tf_replica_specs}
        return present_conditions(running)

    def of_type(self, name: str) -> Iterable[Pod]:
        """Returns the job's pods of a replica type."""
        return self.by_type.get(name.lower(), ())

    def condition(self, type_: str, reason: str, message: str, status: str = "True") -> bool:
        """Sets a condition, and returns whether that changed it."""
        return self.status.set(type_, reason, message, self.now_text, status)

    def event(self, type_: str, reason: str, message: str) -> None:
        """Adds an event for the user."""
        self.events.append(Event(type_, reason, message))

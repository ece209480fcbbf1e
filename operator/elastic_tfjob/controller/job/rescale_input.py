"""What one step of a rescale looks at, and what it gives. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from math import inf
from typing import Final

from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.decision import Count, Event, RefusedPod, Timeouts
from elastic_tfjob.controller.job.pods import Role, Sizes, general_name
from elastic_tfjob.controller.job.stopping import Saving
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.size import Mode
from elastic_tfjob.controller.objects.state import Next, State
from elastic_tfjob.controller.objects.status import moment_of
from elastic_tfjob.controller.objects.target import Target

# A pod of a job that rescales is asked every few seconds at least: one that says nothing for so long is silent.
_SILENT_S: Final = 15.0

Pods = Mapping[str, Sequence[int]]
"""The indexes of pods by replica type."""


@dataclass(frozen=True)
class RescaleInput:
    """All that `advance` looks at. `pods` are the job's own; `elastic` allows another size, `stoppable` that all is
    taken from it; `launcher` tells that all of its pods have one, and an exporter; `mode` is the best way of rescaling
    that the user allows; exporters have been asked for `listened_s`. `refused_pods` and `admission` are as Observed has
    them."""

    job: Job
    spec: TFJobSpec
    sizes: Sizes
    state: State
    target: Target | None
    now: datetime
    pods: tuple[Pod, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    listened_s: float = inf
    elastic: bool = True
    stoppable: bool = True
    launcher: bool = True
    mode: Mode = "overlap"
    timeouts: Timeouts = field(default_factory=Timeouts)
    refused_pods: Mapping[str, RefusedPod] = field(default_factory=dict)
    admission: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def by_role(self) -> dict[Role, Pod]:
        """The pods by replica, with the types in the spec's spelling."""
        spelling = {name.lower(): name for name in self.spec.tf_replica_specs}
        return {
            (spelling[pod.replica_type], pod.index): pod
            for pod in self.pods
            if pod.index is not None and pod.replica_type in spelling
        }

    @property
    def chief(self) -> Role:
        """The replica that leads the training."""
        return chief_of(self.spec)

    @property
    def declared(self) -> dict[str, int]:
        """The spec's replicas."""
        return {name: replica.count for name, replica in self.spec.tf_replica_specs.items()}

    def refusal(self, roles: Iterable[Role]) -> str:
        """The first of these replicas whose pod the API server has refused for too long, and its words."""
        for role in roles if self.refused_pods else ():
            refused = self.refused_pods.get(general_name(self.job.name, *role))
            if refused is not None and role not in self.by_role and refused.for_s >= self.timeouts.refused_s:
                return f"{role[0].lower()}-{role[1]} cannot be created: {refused.why}"
        return ""

    def report(self, role: Role) -> Report | None:
        """What a replica's exporter said last."""
        return self.reports.get(general_name(self.job.name, *role))

    def lost(self, role: Role) -> bool:
        """Whether nobody can say when a replica's pod ends: its grace period is over, or Kubernetes does not hear from
        its node and the operator does not hear from it. It may still run there, so no other pod takes its place."""
        pod, report = self.by_role.get(role), self.report(role)
        if pod is None or pod.ended:
            return False
        if pod.overdue(self.now):
            return True
        heard_s = self.now.timestamp() - report.received_at if report is not None else inf
        return pod.unreachable and min(heard_s, self.unheard_s) >= _SILENT_S

    @property
    def restarts(self) -> int:
        """Restarts of the containers of the size that the job runs with."""
        return sum(pod.restarts for role in roles_of(self.state) if (pod := self.by_role.get(role)) is not None)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the phase began."""
        since = moment_of(self.state.since)
        return (self.now - since).total_seconds() if since is not None else 0.0

    @property
    def unheard_s(self) -> float:
        """For how long a pod that has said nothing in this phase could have been heard: an operator that has just come
        has asked nobody yet."""
        return min(self.elapsed_s, self.listened_s)

    @property
    def coming(self) -> Next:
        """The size that the job is on its way to, which every phase of a rescale has."""
        assert self.state.next is not None, f"{self.state.phase} without a size to go to"
        return self.state.next

    @property
    def saving(self) -> Saving:
        """What a stop looks at."""
        return Saving(
            chief=self.by_role.get(self.chief),
            report=self.report(self.chief),
            able=self.launcher,
            generation=self.state.generation,
            limit_s=self.timeouts.stop_s,
            listened_s=self.listened_s,
            now=self.now,
            lost=self.lost(self.chief),
        )


@dataclass(frozen=True, slots=True)
class Transition:
    """What to do now: which pods shall exist, the commands that pods lack, pods to delete, and the state to store.

    `hold`: create nothing. `tries`: the state that the job would have after the change; whether the API server admits
    the pods that it needs is to be asked first. `again_s`: look again after so long, should nothing happen before.
    """

    state: State
    pods: Pods
    commands: Mapping[Role, str] = field(default_factory=dict)
    delete: tuple[Pod, ...] = ()
    hold: bool = False
    events: tuple[Event, ...] = ()
    again_s: float | None = None
    tallies: tuple[Count, ...] = ()
    tries: State | None = None


def chief_of(spec: TFJobSpec) -> Role:
    """The replica that leads the training: the chief or master, else the first worker."""
    return next(((name, 0) for name in ("Chief", "Master") if name in spec.tf_replica_specs), ("Worker", 0))


def roles_of(size: State | Next) -> list[Role]:
    """The replicas of a size."""
    return [(name, index) for name in size.replicas for index in size.pods(name)]


def pods_of(size: State | Next) -> Pods:
    """The indexes of a size's pods."""
    return {name: size.pods(name) for name in size.replicas}


def pods_of_both(a: State, b: Next) -> Pods:
    """The pods of both sizes."""

    def pods(name: str) -> Sequence[int]:
        if name in a.indexes or name in b.indexes:
            return sorted({*a.pods(name), *b.pods(name)})
        return range(max(a.replicas.get(name, 0), b.replicas.get(name, 0)))

    return {name: pods(name) for name in {**a.replicas, **b.replicas}}

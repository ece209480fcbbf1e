"""What a decision about one job may look at, and what can come of it: data, and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any, Final, Literal, get_args

from elastic_tfjob.api.tfjob import CONTAINER
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, ContainerResources, Injection
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.owned_objects import DisruptionBudget, PodGroup, Service
from elastic_tfjob.controller.model.pod import GRACE_S, Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.scheduling.forecasts import Forecast

Change = Literal["more", "less", "share"]
"""What a change of CPU gives a pod: more than it has, less, or only leave to use what others of its job hold there."""
CHANGES: Final[tuple[Change, ...]] = get_args(Change)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each phase may take, in seconds. `unschedulable_s`: after so long kube-scheduler is taken at its word;
    longer than scheduling has patience (unfit.py), so that another plan follows. `hook_s`: after so long without a
    reported step the program is taken for one that does not report any. `refused_s`: for so long the API server may
    refuse a pod (a quota, a policy) before the size is given up."""

    prepare_s: float = 300.0
    unschedulable_s: float = 20.0
    checkpoint_s: float = 120.0
    switch_s: float = 300.0
    cancel_s: float = 60.0
    recreate_s: float = 600.0
    stop_s: float = 120.0
    hook_s: float = 300.0
    refused_s: float = 20.0

    @property
    def grace_s(self) -> int:
        """The longest grace period, in seconds, of a pod whose room may be promised to others: it is gone within
        `stop_s`. What Kubernetes gives a pod that says nothing is not shortened."""
        return max(GRACE_S, int(self.stop_s) - 10)


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """What the operator was started with. An empty gang scheduler means none; an empty domain, none in TF_CONFIG.

    `wait_for_target`: the profile places jobs, so that those with our annotations (`all_jobs`: every job) get their
    pods when they have a target. `shares_cpu`: replicas share what their job holds on a node. `image` holds launcher
    and exporter; empty where it is not known. `resources` are what each of these two asks for.
    """

    gang_scheduler: str = ""
    cluster_domain: str = ""
    wait_for_target: bool = False
    shares_cpu: bool = False
    all_jobs: bool = False
    image: str = ""
    resources: ContainerResources = field(default_factory=lambda: DEFAULT_RESOURCES)
    timeouts: Timeouts = field(default_factory=Timeouts)


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A pod that the API server refuses to create: its words, and for how long, in seconds."""

    why: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Observed:
    """All that a decision may look at. Pods and services are those with the job's labels, whoever owns them; reports
    are the exporters', by pod; `listened_s` is for how long they have been asked, in seconds. `budget_known` tells
    that budgets can be read, so that None means that there is none. `refused` are changes of CPU that the API server
    refused, by pod (uid) and what they were to give it, and until when they are not tried again. `forecast` gives
    what the last plan expects of the job, which costs to compute; None: there is no plan that knows the job.
    `refused_pods` are pods of the job that the API server refuses to create, by name. `admission` says, by generation,
    what the API server answered when the creation of its pods was tried: its words, or nothing where it admits them.
    `injection` is what the API server was found to admit of what is injected, after it refused a pod."""

    job: TFJob
    now: datetime
    pods: tuple[Pod, ...] = ()
    services: tuple[Service, ...] = ()
    pod_group: PodGroup | None = None
    budget: DisruptionBudget | None = None
    budget_known: bool = True
    priorities: Mapping[str, int] = field(default_factory=dict)
    reports: Mapping[str, Report] = field(default_factory=dict)
    listened_s: float = inf
    refused: Mapping[tuple[str, Change], datetime] = field(default_factory=dict)
    forecast: Callable[[], Forecast | None] = field(default=lambda: None, compare=False, repr=False)
    refused_pods: Mapping[str, RefusedPod] = field(default_factory=dict)
    admission: Mapping[int, str] = field(default_factory=dict)
    injection: Injection | None = None


@dataclass(frozen=True, slots=True)
class AdmissionTrial:
    """How else a pod could be made, should the API server refuse it: what is injected has `resources` now, and `render`
    makes the body with another injection, of which `tries` were made already. `pods` are the job's others."""

    resources: ContainerResources
    tries: int
    pods: tuple[Pod, ...] = field(compare=False, repr=False)
    render: Callable[[Injection], dict[str, Any]] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Create:
    """Create a pod, service or PodGroup. `render` makes its body when it is to be sent, and not before: those of a job
    of a thousand replicas are large, and take their time. `trial` is of a pod into which something is injected."""

    kind: str
    name: str
    render: Callable[[], dict[str, Any]] = field(compare=False, repr=False)
    trial: AdmissionTrial | None = field(default=None, compare=False, repr=False)

    @property
    def body(self) -> dict[str, Any]:
        """The object, as the API wants it."""
        return self.render()


@dataclass(frozen=True, slots=True)
class TryPods:
    """Ask the API server whether it would admit these pods, without creating them: each so often as `counts` says, in
    the place of those that the job has. `generation` is the one that they are for. `quota`: whether a quota that is
    used up counts for one pod; not where pods that are to go free it."""

    generation: int
    pods: tuple[Create, ...]
    counts: tuple[int, ...]
    quota: bool = True


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod. `mark` leaves a note on it first, so that nobody takes its end for a failure. `grace_s`: the grace
    period in seconds, in place of the pod's own; None: the pod's own."""

    name: str
    uid: str
    mark: bool = False
    grace_s: int | None = None


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
class DeleteBudget:
    """Delete the job's PodDisruptionBudget."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the TFJob itself: its time to live after finishing is over."""


@dataclass(frozen=True, slots=True)
class SendCommand:
    """Give a pod's launcher a command."""

    name: str
    uid: str
    command: str


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Change the CPU of a running pod's container that trains, in millicores; a limit of 0 is none. `change`: it gets
    more than it has, gives up some, or may use more of what its job has."""

    name: str
    uid: str
    request: int
    limit: int
    change: Change = "more"
    container: str = CONTAINER


@dataclass(frozen=True, slots=True)
class SaveState:
    """Store these annotations of the job; None removes one."""

    annotations: Mapping[str, str | None]


Action = (
    Create
    | TryPods
    | DeletePod
    | DeleteService
    | AdoptService
    | UpdatePodGroup
    | DeletePodGroup
    | DeleteBudget
    | DeleteJob
    | SendCommand
    | ResizePod
    | SaveState
)


@dataclass(frozen=True, slots=True)
class Count:
    """What to count once status and state are stored: a transition (created, successful, failed or restarted), or a
    figure of starts, rescales and stops, of which `label` is the cause."""

    what: str
    amount: float = 1.0
    label: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """What to tell the user in `kubectl describe`."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. `status` is the new status, or None when it stays as it is; `again_at` is when time alone will
    call for another look."""

    actions: tuple[Action, ...] = ()
    status: dict[str, Any] | None = None
    events: tuple[Event, ...] = ()
    counts: tuple[Count, ...] = ()
    again_at: datetime | None = None

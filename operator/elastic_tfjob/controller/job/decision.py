"""Inputs and outputs of a decision about one job: data, and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any, Final, Literal, get_args

from elastic_tfjob.api.tfjob import CONTAINER
from elastic_tfjob.controller.model.injection import DEFAULT_RESOURCES, ContainerResources, Injection
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.memory import MemoryAsked
from elastic_tfjob.controller.model.owned_objects import DisruptionBudget, NodeOrder, PodGroup, Service
from elastic_tfjob.controller.model.pod import GRACE_S, Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.scheduling.forecasts import Forecast
from elastic_tfjob.scheduling.memory_limit import MemoryRule

Change = Literal["more", "less", "share", "memory", "less-memory"]
"""Kinds of change in place for a pod: `more` CPU than it has, `less`, or `share`, which only allows it to use the CPU
that its job's other pods hold on that node; more `memory`, or less."""
CHANGES: Final[tuple[Change, ...]] = get_args(Change)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of the phases, in seconds. `unschedulable_s`: time after which kube-scheduler's verdict is final; it
    is longer than the scheduling loop waits (planning/core_job.py), so that another plan follows first. `hook_s`: time
    without a reported step after which the program counts as one that reports none. `refused_s`: time for which the API
    server may refuse a pod (a quota, a policy) before the size is given up."""

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
        """The longest grace period, in seconds, of a pod whose capacity may be reserved for other jobs: the pod is gone
        within `stop_s`. Kubernetes' default for a pod without its own grace period is not shortened."""
        return max(GRACE_S, int(self.stop_s) - 10)


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """The operator's start options. An empty gang scheduler means none; an empty domain means none in TF_CONFIG.

    `wait_for_target`: the profile places jobs, so jobs with the operator's annotations (`all_jobs`: every job) get
    their pods when they have a target. `shares_cpu`: replicas may use all CPU that their job holds on a node. `image`
    contains launcher and exporter; empty if it is unknown. `resources` are requested by each of these two.
    """

    gang_scheduler: str = ""
    cluster_domain: str = ""
    wait_for_target: bool = False
    shares_cpu: bool = False
    all_jobs: bool = False
    image: str = ""
    resources: ContainerResources = field(default_factory=lambda: DEFAULT_RESOURCES)
    timeouts: Timeouts = field(default_factory=Timeouts)
    memory: MemoryRule = field(default_factory=MemoryRule)


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A pod that the API server refuses to create: its message, and for how long, in seconds."""

    why: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Observed:
    """All inputs of a decision. Pods and services are those with the job's labels, whoever owns them. `reports` are the
    exporters' reports, by pod; `listened_s` is for how long exporters have been asked, in seconds. `budget_known`:
    budgets can be read, so that a `budget` of None means that there is none. `orders`: the job's placeholder pods.
    `admitted`: with growth, the most replicas per type that Kueue admits; empty: the declared ones. `refused` has the
    changes of CPU that the API server refused: by pod (uid) and kind of change, the time before which they are not
    tried again. `forecast` returns the last plan's forecast for the job, which costs time to compute; None: no plan
    knows the job. `refused_pods` are the job's pods that the API server refuses to create, by name. `admission` has, by
    generation, the API server's answer to a trial of its pods: its message, or empty if it admits them. `injection` is
    what the API server was found to admit of the injected containers, after it refused a pod."""

    job: TFJob
    now: datetime
    pods: tuple[Pod, ...] = ()
    services: tuple[Service, ...] = ()
    pod_group: PodGroup | None = None
    budget: DisruptionBudget | None = None
    budget_known: bool = True
    orders: tuple[NodeOrder, ...] = ()
    admitted: Mapping[str, int] = field(default_factory=dict)
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
    """Alternatives for a pod that the API server may refuse. The injected container has `resources` now; `render` makes
    the body with another injection, and `tries` were made already. `pods` are the job's other pods."""

    resources: ContainerResources
    tries: int
    pods: tuple[Pod, ...] = field(compare=False, repr=False)
    render: Callable[[Injection], dict[str, Any]] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Create:
    """Create a pod, service or PodGroup. `render` makes its body only when it is sent, as the bodies of a job of a
    thousand replicas are large and slow to make. `trial` is set for a pod into which something is injected."""

    kind: str
    name: str
    render: Callable[[], dict[str, Any]] = field(compare=False, repr=False)
    trial: AdmissionTrial | None = field(default=None, compare=False, repr=False)

    @property
    def body(self) -> dict[str, Any]:
        """The object in the API's form."""
        return self.render()


@dataclass(frozen=True, slots=True)
class TryPods:
    """Ask the API server whether it would admit these pods, without creating them. Each pod is tried as often as
    `counts` says, and would replace the job's present pods. `generation` is the one they are for. `quota`: whether an
    exhausted quota counts for a single pod; it does not if pods that will be removed free it."""

    generation: int
    pods: tuple[Create, ...]
    counts: tuple[int, ...]
    quota: bool = True


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod. `mark` annotates it first, so that its end is not taken for a failure. `grace_s`: the grace period
    in seconds that replaces the pod's own; None: the pod's own."""

    name: str
    uid: str
    mark: bool = False
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteOwned:
    """Delete one of the job's other objects."""

    kind: Literal["Service", "PodGroup", "PodDisruptionBudget", "Order"]
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
    """Change the CPU of a running pod's training container; a limit of 0 means none. `change`: the pod
    gets more than it has, gives up some, or may use more of its job's CPU."""

    name: str
    uid: str
    request_millicores: int
    limit_millicores: int
    change: Change = "more"
    container: str = CONTAINER


@dataclass(frozen=True, slots=True)
class ResizeMemory:
    """Change the memory of a running pod's training container."""

    name: str
    uid: str
    wanted: MemoryAsked
    container: str = CONTAINER
    change: Change = "memory"


@dataclass(frozen=True, slots=True)
class SaveState:
    """Store these annotations of the job; None removes one."""

    annotations: Mapping[str, str | None]


Action = (
    Create
    | TryPods
    | DeletePod
    | DeleteOwned
    | AdoptService
    | UpdatePodGroup
    | DeleteJob
    | SendCommand
    | ResizePod
    | ResizeMemory
    | SaveState
)


@dataclass(frozen=True, slots=True)
class Count:
    """A metric to count once status and state are stored: a transition (created, successful, failed or restarted), or a
    figure of starts, rescales and stops, with its cause as `label`."""

    what: str
    amount: float = 1.0
    label: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """An event for the user, shown by `kubectl describe`."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a pass. `status` is the new status, or None if it is unchanged; `again_at` is when the next pass is
    due even if nothing changes."""

    actions: tuple[Action, ...] = ()
    status: dict[str, Any] | None = None
    events: tuple[Event, ...] = ()
    counts: tuple[Count, ...] = ()
    again_at: datetime | None = None

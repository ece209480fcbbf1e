"""A pretended cluster for one elastic job: pods, their launchers as the pod contract has them, and an operator that can
be killed after any of its writes. Reconcile is the real one; time is a number.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import (
    Change,
    Create,
    Decision,
    DeleteOwned,
    DeletePod,
    Observed,
    ReconcileSettings,
    RefusedPod,
    ResizeMemory,
    ResizePod,
    SaveState,
    SendCommand,
    TryPods,
    UpdatePodGroup,
)
from elastic_tfjob.controller.job.reconcile import reconcile
from elastic_tfjob.controller.model.affinity import pinned_to
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.memory import memory_of
from elastic_tfjob.controller.model.owned_objects import DisruptionBudget
from elastic_tfjob.controller.model.pod import LastEnd, Pod, Trouble
from elastic_tfjob.controller.model.quantities import CpuAsked, cpu_of
from elastic_tfjob.controller.model.reports import (
    Checkpoint,
    CpuUse,
    MemoryUse,
    Prepared,
    Report,
    Saved,
    Switch,
    SwitchState,
)
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.status import format_time
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.runtime.protocol import Task
from elastic_tfjob.scheduling.forecasts import Forecast
from elastic_tfjob.scheduling.plan import Cause
from unit.build import NOW, UID, job, pod_group

# What tests/skew/world.py takes from here, because the package has it elsewhere in each version, is named too.
__all__ = [
    "COMMAND",
    "ELASTIC",
    "WORDS",
    "Cluster",
    "Launcher",
    "Pod",
    "ReconcileSettings",
    "Report",
    "StoredState",
    "Target",
    "started",
]

COMMAND = ["python", "train.py"]
ELASTIC = {
    f"{PREFIX}min-workers": "1",
    f"{PREFIX}max-workers": "4",
    f"{PREFIX}max-ps": "3",
    f"{PREFIX}checkpoint-dir": "/checkpoints",
}


WORDS = "0/3 nodes are available: 3 Insufficient cpu."
"""kube-scheduler's."""


@dataclass
class Launcher:
    """What runs in a pod: see the pod contract in docs/architecture.md. `saves` tells how the chief's next save goes
    ("well", "fails" or "never"), `builds` whether the program of a next generation comes up. A table of transitions
    that the real launcher goes through, too, holds it to that one: tests/pod/test_transitions.py."""

    chief: bool
    generation: int | None = None
    prepared: Prepared | None = None
    switch: Switch | None = None
    first_step: bool = False
    saves: str = "well"
    lives: str = "well"
    """How its next change of workers goes, as `saves`."""
    builds: bool = True
    waits: bool = False
    """Whether it never becomes ready."""
    step: int = 100
    why: str = "exit code 1"
    seen: str = ""
    """The last command."""
    saved: Saved | None = None
    """The checkpoint that was asked for before the pod ends."""
    port: int = 2222
    coming_port: int = 2222
    started_as: int = 0
    """The generation that its program was started for."""
    gives_up: bool = False
    """Whether it was told to keep its workers, and has not answered yet."""
    gives: bool = False
    """Whether values go through memory, and `handing_over`: the previous program still saves them."""
    handing_over: bool = False
    has_left: bool = False
    """The chief's program is in another pod now."""
    checkpoint: int | None = 100
    """The step of the newest checkpoint that a prepared program sees."""
    kept: Switch | None = None
    """The decision that was stored with what runs: what a restarted container knows."""

    def obey(self, text: str) -> None:
        """Look at the command once. Since the last look what runs has made a step, and what started has come up."""
        self.first_step = self.generation is not None
        if self.prepared is not None and self.prepared.state == "starting" and not self.waits:
            built = self.prepared
            self.prepared = (
                replace(built, state="ready", checkpoint=self.checkpoint)
                if self.builds
                else replace(built, state="failed", why=self.why)
            )
        command: dict[str, Any] = orjson.loads(text) if text else {"action": "stop"}
        action, generation = command["action"], command.get("generation", 0)
        port = Task.of(command.get("tf_config")).port or self.port
        if self.gives_up and self.lives != "never":
            self.gives_up, self.switch = False, self._decided("refused", "cancelled")
        if action == "prepare" and text != self.seen and self.switch and self.switch.generation == generation:
            self.switch = None  # it may be tried again
        self.seen = text
        if self.has_left:
            return
        if action == "save":
            self._save(command["request"])
            return
        if action != "stop":
            self.saved = None
        if action == "stop":
            if self.generation is None:
                self._start(0)
        elif action == "run":
            self._run(generation, port)
        elif self.generation != generation:
            mode = command.get("mode", "overlap")
            if self.prepared is not None and (self.prepared.generation, self.prepared.mode) != (generation, mode):
                self._cancel()
                self.prepared = None
            if mode in ("live", "leave") and self.generation is not None:
                self.prepared = Prepared(generation, mode, "ready") if self.chief else None
                if action == "switch" and mode == "live":
                    self._change(generation, port)
                elif action == "switch":
                    self._leave(generation)
                else:
                    self._cancel()
                return
            if self.prepared is None:
                self._cancel()
                self.prepared = Prepared(generation, mode, "starting")
                self.coming_port = port
            if action == "prepare":
                self._cancel()
            else:
                self._switch(generation, self.prepared)

    def _save(self, request: int) -> None:
        """What trains is asked once, and again after a save that failed."""
        self._cancel()
        self.prepared = None
        if not self.chief or self.generation is None:
            return
        asked = self.saved is not None and self.saved.request == request
        if not asked or self.saves == "never":
            self.saved = Saved(request, "saving")
        elif self.saves == "well":
            self.saved = Saved(request, "saved", step=self.step)
        else:
            self.saved = Saved(request, "refused", "No space left on device")

    def _change(self, generation: int, port: int) -> None:
        """The chief's program changes its workers, once for each attempt; any other one keeps what it does."""
        decided = self.switch is not None and self.switch.generation == generation and self.switch.state != "changing"
        if not self.chief or decided or self.gives_up:
            return
        self.switch = Switch(generation, "changing")
        if self.lives == "well":
            self.switch = Switch(generation, "committed")
            self.generation, self.prepared, self.first_step, self.kept = generation, None, False, self.switch
        elif self.lives == "fails":
            self.switch = Switch(generation, "refused", "no dataset on the new worker")

    def _leave(self, generation: int) -> None:
        """The chief's program saves and ends, once for each attempt."""
        if self.switch is not None and self.switch.generation == generation and self.switch.state != "saving":
            return
        self.switch = Switch(generation, "saving")
        if self.saves == "well":
            self.switch = self.kept = Switch(generation, "committed")
            self.generation, self.prepared, self.has_left = None, None, True
        elif self.saves == "fails":
            self.switch = Switch(generation, "refused", "No space left on device")

    def follow(self, old: "Launcher", generation: int) -> None:
        """The chief's launcher in another pod has told that it has left."""
        ready = self.prepared is not None and self.prepared.generation == generation
        if ready and self.generation is None and old.has_left and old.switch and old.switch.generation == generation:
            self._start(generation, self.coming_port)

    def _decided(self, state: SwitchState, why: str) -> Switch:
        assert self.switch is not None
        return replace(self.switch, state=state, why=why)

    def _run(self, generation: int, port: int) -> None:
        if self.switch is not None and self.switch.generation != generation:
            self._cancel()
        if self.generation is not None and self.prepared is not None and self.prepared.mode == "live":
            self.prepared = None
        stale = self.generation is not None and self.started_as < self.generation > generation
        if self.generation == generation or stale:
            self.prepared = None
        elif self.prepared is None or self.prepared.generation != generation or self.prepared.state == "failed":
            if self.generation is not None and port == self.port and not self.chief:
                self.generation = generation
            else:
                self._start(generation, port)
        elif self.chief and self.generation is not None:
            self._switch(generation, self.prepared)
        else:
            self._start(generation, port)

    def _switch(self, generation: int, prepared: Prepared) -> None:
        """The chief alone decides, once for each attempt, and never without a save."""
        if not self.chief or self.generation is None:
            return
        if self.switch is not None and self.switch.generation == generation and self.switch.state != "saving":
            return
        self.switch = Switch(generation, "saving")
        if prepared.state == "failed":
            self.switch = Switch(generation, "refused", prepared.why)
        elif prepared.state == "ready" and self.saves == "well":
            self.switch = Switch(generation, "committed", in_memory=self.gives)
            self._start(generation, self.coming_port)
            self.handing_over = self.gives
        elif prepared.state == "ready" and self.saves == "fails":
            self.switch = Switch(generation, "refused", "No space left on device")

    def _cancel(self) -> None:
        if self.switch is not None and self.switch.state == "saving":
            self.switch = self._decided("refused", "cancelled")
        self.gives_up = self.gives_up or (self.switch is not None and self.switch.state == "changing")

    def _start(self, generation: int, port: int = 2222) -> None:
        self.port, self.started_as = port, generation
        self.generation, self.prepared, self.first_step, self.kept = generation, None, False, self.switch

    def restart(self) -> None:
        """The container died: what runs is kept on disk, with the decision that led to it; what was prepared is not."""
        self.prepared, self.first_step, self.switch, self.seen, self.saved = None, False, self.kept, "", None
        self.gives_up, self.started_as = False, self.generation or 0


@dataclass
class Cluster:
    """One job, its pods, and the operator's view of them."""

    annotations: dict[str, str] = field(default_factory=lambda: dict(ELASTIC))
    types: dict[str, int] = field(default_factory=lambda: {"Chief": 1, "PS": 1, "Worker": 2})
    settings: ReconcileSettings = field(default_factory=lambda: ReconcileSettings(image="operator:1"))
    command: list[str] | None = field(default_factory=lambda: list(COMMAND))
    spec: dict[str, Any] = field(default_factory=dict)
    restart: str = "OnFailure"
    pod_spec: dict[str, Any] = field(default_factory=dict)
    """What the templates say beside their container."""
    cpu_limit: str = "100m"
    """Of each container, which requests 100m."""
    memory_limit: str = ""
    """Of each container, which requests as much; empty: none."""
    queue: str = ""
    """The Kueue queue that admits the job."""
    admitted: dict[str, int] = field(default_factory=dict)
    """What Kueue admits, if not what is declared."""

    def __post_init__(self) -> None:
        self.now: datetime = NOW
        self.decision = Decision()
        """Of the last pass."""
        self.status: dict[str, Any] = {}
        self.pods: dict[str, Pod] = {}
        self.launchers: dict[str, Launcher] = {}
        self.events: list[tuple[str, str]] = []
        self.made: list[str] = []
        self.resized: list[ResizePod] = []
        self.memory = MemoryUse(100, 1000)
        """What each pod reports; the limit is that of a pod that has one."""
        self.memory_of: dict[str, MemoryUse] = {}
        """The same by replica type, in lower case, where it differs."""
        self.unschedulable: set[str] = set()
        self.unheard: set[str] = set()
        """Pods whose kubelet is slow to show them a new command."""
        self.dropped: tuple[str, str] | None = None
        """A pod and an action: its kubelet does not show it the next command of that action, only a change after it."""
        self._passed_over: dict[str, str] = {}
        self._heard: dict[str, str] = {}
        self.told: list[tuple[str, str]] = []
        """Pods and actions, in the order in which they were told."""
        self.modes: tuple[str, ...] = ("overlap", "spare", "leave")
        """What the launchers say how their pods can be rescaled."""
        self.not_live = ""
        """Why the chief's program keeps its workers, as its launcher says."""
        self.old_pods: set[str] = set()
        """Pods whose launchers do not know mode `live`."""
        self.hook: bool | None = True
        self.steps = True
        """Whether the program has constructed ElasticCheckpoint, and whether it reports steps."""
        self.checkpoint: int | None = None
        self.resumes_at: int | None = 100
        """The step of the newest checkpoint, and the one that programs begin at."""
        self.old_launchers = False
        """Whether they know nothing of a checkpoint before the end."""
        self.refused: dict[tuple[str, Change], datetime] = {}
        """Changes of CPU that the API server refuses, as Observed has them."""
        self.budget: DisruptionBudget | None = None
        self.gang: list[dict[str, Any]] = []
        """The spec of the PodGroup, each time that it was written; none of one that was deleted."""
        self.gang_phase = "Running"
        """What Volcano says of it."""
        self.reported_at = 100.0
        self.report_age_s = 0.0
        """How long ago the pods were asked for their status."""
        self.steps_per_s = 10.0
        self.deaf = False
        self.listens_since = NOW
        self.deleting = False
        self.forecast: Callable[[], Forecast | None] = lambda: None
        """What the last plan expects of the job."""
        self.refused_pods: dict[str, str] = {}
        """Pods that the API server does not admit, and its words; `refused_since`: since when each was tried."""
        self.refused_since: dict[str, datetime] = {}
        self.admission: dict[int, str] = {}
        """What it answered where pods were only tried, by generation."""
        self.dies: set[int] = set()
        self.hangs: set[int] = set()
        """Generations whose programs end with an error each time, or never make a step."""
        self.reachable = True
        """Whether pods can ask each other."""
        self._uids = 0

    # The operator

    def job(self) -> TFJob:
        container: dict[str, Any] = {"name": "tensorflow", "image": "train", "command": self.command}
        memory = {"memory": self.memory_limit} if self.memory_limit else {}
        container["resources"] = {"requests": {"cpu": "100m", **memory}, "limits": {"cpu": self.cpu_limit, **memory}}
        types = {
            name: {
                "replicas": count,
                "restartPolicy": self.restart,
                "template": {
                    "spec": {"containers": [{k: v for k, v in container.items() if v is not None}], **self.pod_spec}
                },
            }
            for name, count in self.types.items()
        }
        found = job(types, annotations=self.annotations, status=self.status, **self.spec)
        return replace(found, deleting=self.deleting, queue=self.queue)

    def reports(self) -> dict[str, Report]:
        return {
            name: Report(
                at=self.reported_at,
                generation=launcher.generation,
                launcher=True,
                modes=tuple(each for each in self.modes if each != "live" or name not in self.old_pods),
                not_live=self.not_live,
                prepared=launcher.prepared,
                switch=launcher.switch,
                handing_over=launcher.handing_over,
                step=100 if self.steps else None,
                steps_per_s=self.steps_per_s if self.steps else None,
                hook=self.hook,
                first_step_at=1.0 if launcher.first_step and self.steps else None,
                last_step_at=100.0,
                downtime_s=0.5,
                lost_steps=0,
                cpu=CpuUse(),
                memory=self._memory(self.pods[name]),
                checkpoint=None if self.checkpoint is None else Checkpoint(self.checkpoint),
                resumed_step=self.resumes_at,
                saves=not self.old_launchers,
                saved=launcher.saved,
                received_at_s=self.now.timestamp() - self.report_age_s,
            )
            for name, launcher in self.launchers.items()
            if not self.deaf and self.pods[name].phase == "Running"
        }

    def reconcile(self, *, killed_after: int | None = None) -> None:
        """One pass; the operator may be killed after so many of its writes."""
        reports = self.reports()
        decision = reconcile(
            Observed(
                job=self.job(),
                now=self.now,
                pods=tuple(self.pods.values()),
                reports=reports,
                refused=self.refused,
                pod_group=pod_group(**self.gang[-1], phase=self.gang_phase) if self.gang else None,
                budget=self.budget,
                listened_s=(self.now - self.listens_since).total_seconds(),
                forecast=self.forecast,
                refused_pods=self._refused(),
                admission=self.admission,
                admitted=self.admitted,
            ),
            self.settings,
        )
        self.decision = decision
        self.carry_out(decision, killed_after=killed_after)

    def carry_out(self, decision: Decision, *, killed_after: int | None = None) -> None:
        """What the executor does, in its order: tests/integration/test_writes.py holds it to that one."""
        groups = [each for each in decision.actions if isinstance(each, UpdatePodGroup)]
        creations = [action for action in decision.actions if isinstance(action, Create)]
        states = [action for action in decision.actions if isinstance(action, SaveState)]
        others = [each for each in decision.actions if not isinstance(each, UpdatePodGroup | Create | SaveState)]
        writes = [*groups, *creations, *([] if decision.status is None else [decision.status]), *states, *others]
        self.events += [(event.reason, event.message) for event in decision.events]
        for write in writes[:killed_after]:
            self._write(write)

    def _memory(self, pod: Pod) -> MemoryUse:
        use = self.memory_of.get(pod.replica_type, self.memory)
        return replace(use, limit_bytes=pod.memory.limit or use.limit_bytes)

    def _refused(self) -> dict[str, RefusedPod]:
        return {
            name: RefusedPod(self.refused_pods[name], (self.now - since).total_seconds())
            for name, since in self.refused_since.items()
            if name in self.refused_pods
        }

    def back_after(self, seconds: float) -> None:
        """There is no operator for a while; then one comes, which has yet to hear of any pod."""
        for _ in range(5):
            self.tick(seconds / 5)
        self.listens_since = self.now
        self.deaf = True
        self.reconcile()
        self.deaf = False

    def _write(self, write: Any) -> None:
        match write:
            case dict():
                self.status = write
            case SaveState(annotations):
                for name, value in annotations.items():
                    self.annotations.pop(name, None)
                    if value is not None:
                        self.annotations[name] = value
            case Create(kind="Pod", name=name) if name in self.refused_pods:
                self.refused_since.setdefault(name, self.now)
            case Create(kind="Pod"):
                self._create(write.body)
            case Create(kind="PodDisruptionBudget"):
                made = write.body["metadata"] | {"uid": "budget-uid", "resourceVersion": "1"}
                self.budget = DisruptionBudget.parse({"metadata": made})
            case DeleteOwned("PodDisruptionBudget", name, uid):
                assert self.budget is not None
                assert (self.budget.name, self.budget.uid) == (name, uid)
                self.budget = None
            case Create(kind="PodGroup"):
                self.gang.append(write.body["spec"])
            case UpdatePodGroup(_, spec):
                self.gang.append(spec)
            case DeleteOwned("PodGroup"):
                self.gang.clear()
            case DeletePod(name, uid, mark, grace_s):
                pod = self.pods[name]
                assert pod.uid == uid
                command = '{"action":"stop"}' if mark else pod.command
                grace_s = pod.grace_s if grace_s is None else grace_s
                grace_s = min(grace_s, pod.grace_s) if pod.terminating else grace_s
                ends_at = format_time(self.now + timedelta(seconds=grace_s))
                self.pods[name] = replace(pod, terminating=True, command=command, grace_s=grace_s, ends_at=ends_at)
            case SendCommand(name, uid, command):
                assert self.pods[name].uid == uid
                self.pods[name] = replace(self.pods[name], command=command)
                self.told.append((name, orjson.loads(command)["action"]))
                if self.dropped == self.told[-1]:
                    self.dropped, self._passed_over[name] = None, command
            case TryPods(generation, pods, _):
                refused = [self.refused_pods[each.name] for each in pods if each.name in self.refused_pods]
                self.admission = {generation: refused[0] if refused else ""}
            case ResizePod(name, _, request, limit):
                self.resized.append(write)
                self.pods[name] = replace(
                    self.pods[name], cpu=CpuAsked(request, limit or self.pods[name].cpu.limit_millicores)
                )

            case ResizeMemory(name, _, wanted):
                self.pods[name] = replace(self.pods[name], memory=wanted)

    def _create(self, body: dict[str, Any]) -> None:
        metadata = body["metadata"]
        name, labels = metadata["name"], metadata["labels"]
        assert name not in self.pods, f"two pods of {name}"
        self._uids += 1
        self.made.append(name)
        role = labels["training.kubeflow.org/replica-type"]
        self.pods[name] = Pod(
            namespace="ns",
            name=name,
            uid=f"uid-{self._uids}",
            version=self._uids,
            job="j",
            owner=UID,
            replica_type=role,
            index=int(labels["training.kubeflow.org/replica-index"]),
            phase="Pending",
            ip=f"10.0.0.{self._uids}",
            terminating=False,
            exit_code=None,
            restarts=0,
            troubles=(),
            cpu=cpu_of(body["spec"]),
            memory=memory_of(body["spec"]),
            leads=labels.get("training.kubeflow.org/job-role") == "master",
            pinned=pinned_to(body["spec"]),
            command=metadata.get("annotations", {}).get(f"{PREFIX}command", ""),
        )
        self.launchers[name] = Launcher(self.pods[name].leads)

    # The rest of the world

    def tick(self, seconds: float = 1.0) -> None:
        """Kubelets and launchers do what they were told."""
        self.now += timedelta(seconds=seconds)
        for name, pod in list(self.pods.items()):
            if pod.terminating:
                del self.pods[name], self.launchers[name]
            elif name in self.unschedulable:
                trouble = Trouble("Unschedulable", f"Error pod {name} condition message: {WORDS}")
                since = pod.unschedulable_at or format_time(self.now)
                self.pods[name] = replace(pod, troubles=(trouble,), unschedulable_at=since, unschedulable=WORDS)
            elif pod.phase == "Pending":
                self.pods[name] = replace(
                    pod, phase="Running", node=pod.pinned or "any", troubles=(), unschedulable_at=""
                )
            elif pod.phase == "Running":
                if name not in self.unheard and pod.command != self._passed_over.get(name):
                    self._heard[name] = pod.command
                self.launchers[name].obey(self._heard.get(name, ""))
                self._follow(self.launchers[name])
                self._begin(name, self.launchers[name])

    def _follow(self, launcher: Launcher) -> None:
        """A chief that is prepared in another pod asks the old one whether it has left."""
        command = orjson.loads(launcher.seen) if launcher.seen else {}
        address = command.get("old_chief", "").rpartition(":")[0]
        if command.get("action") == "switch" and address and self.reachable:
            old = next((name for name, pod in self.pods.items() if pod.ip == address), None)
            if old is not None:
                launcher.follow(self.launchers[old], command["generation"])

    def _begin(self, name: str, launcher: Launcher) -> None:
        """The program that runs makes its first step, or does not."""
        pod = self.pods[name]
        if launcher.generation in self.dies:
            end = LastEnd(pod.restarts + 1, 1, "ValueError: Shape mismatch")
            if self.restart in ("OnFailure", "Always"):
                self.pods[name] = replace(pod, restarts=pod.restarts + 1, last_end=end)
            else:
                self.pods[name] = replace(pod, phase="Failed", exit_code=1, last_end=end)
            launcher.restart()
        if launcher.generation in self.dies | self.hangs:
            launcher.first_step = False

    def run(self, rounds: int = 30, seconds: float = 1.0) -> None:
        """Let time pass, the operator looking every second."""
        for _ in range(rounds):
            self.reconcile()
            self.tick(seconds)

    def until(self, phase: str, rounds: int = 60) -> None:
        """Let time pass until the job is in a phase, at the moment when it is stored."""
        for _ in range(rounds):
            self.reconcile()
            if self.state.phase == phase:
                return
            self.tick()
        raise AssertionError(f"never {phase}, but {self.state}")

    def kill(self, name: str) -> None:
        """A pod is gone at once, as with its node."""
        del self.pods[name], self.launchers[name]

    # What is asked for and what is

    def target(self, generation: int, **replicas: int) -> None:
        self.want(generation, replicas)

    def want(self, generation: int, replicas: dict[str, int], cause: Cause | Literal[""] = "") -> None:
        size = {**self.types, **replicas}
        target = Target(generation, size, {}, {}, "wanted", dict(self.types), cause=cause)
        self.annotations[TARGET_ANNOTATION] = target.to_json()

    @property
    def state(self) -> StoredState:
        found = StoredState.of(self.annotations, UID, self.types)
        assert found is not None
        return found

    @property
    def running(self) -> dict[str, int | None]:
        """Generation that each pod runs."""
        return {name.removeprefix("j-"): launcher.generation for name, launcher in sorted(self.launchers.items())}

    @property
    def reasons(self) -> list[str]:
        """Reasons of the events about rescaling, in order."""
        return [reason for reason, _ in self.events if reason.startswith("Resc") or reason in ("Admitted", "Waiting")]


def started(**options: Any) -> Cluster:
    """A job that trains at its declared size."""
    cluster = Cluster(**options)
    cluster.run(5)
    cluster.events.clear()
    return cluster

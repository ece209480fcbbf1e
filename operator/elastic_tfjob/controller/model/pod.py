"""A pod of a TFJob, as far as decisions read it: where and how it runs, or why it does not. Pure."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final

from elastic_tfjob.api.quantity import is_quantity
from elastic_tfjob.api.reading import MAX_DURATION_S, MAX_TROUBLES_TEXT, MAX_WORD, after, cut
from elastic_tfjob.api.tfjob import CONTAINER, JOB_ROLE_LABEL, trains_in
from elastic_tfjob.controller.model.affinity import pinned_to
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION, STOP_COMMAND, abridged
from elastic_tfjob.controller.model.injection import RESOURCES
from elastic_tfjob.controller.model.job import Key, Raw, of_replica, readable, short_word
from elastic_tfjob.controller.model.memory import NO_MEMORY, MemoryAsked, memory_of
from elastic_tfjob.controller.model.quantities import (
    NO_CPU,
    CpuAsked,
    allocated_cpu,
    allocated_memory,
    cpu_of,
    requests_of,
)
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.scheduling.resources import NOTHING, Resources

__all__ = ["OTHER", "REASONS", "ContainerFailure", "LastEnd", "failure_of", "last_end", "retried"]

# -- Why a pod failed, in words of a fixed set, so that the metric's labels do not grow --------------------------------

OTHER: Final = "Other"
# Reasons that the kubelet and the control plane write about a pod or its containers. A client that may write a status
# may write any other word there.
REASONS: Final = frozenset(
    {
        "ContainerCannotRun",
        "ContainerStatusUnknown",
        "DeadlineExceeded",
        "Error",
        "Evicted",
        "NodeAffinity",
        "NodeLost",
        "NodeShutdown",
        "OOMKilled",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "Preempting",
        "StartError",
        "Terminated",
        "UnexpectedAdmissionError",
    }
)
# Those of them that the kubelet gives for a shutdown of its machine: since Kubernetes 1.22, and before.
_SHUT_DOWN: Final = frozenset({"Terminated", "NodeShutdown"})
# The largest exit code of a process on Linux.
_MAX_EXIT_CODE: Final = 255
# Upstream's exit code for a container that has none: retryable, since it is above 127.
_NO_EXIT_CODE: Final = 0xBEEF
_RETRYABLE_FROM: Final = 128
# Exit code of a process that SIGKILL ended.
_KILLED: Final = 137
# Characters of a program's last output that are kept.
_LAST_WORDS: Final = 600
_MARK: Final = re.compile(r"^\[generation [0-9]{1,10}\] ?")


@dataclass(frozen=True, slots=True)
class ContainerFailure:
    """Why a pod failed. `reason` is one of REASONS or OTHER; `exit_code` is a number from 1 to 255, or empty if no
    container has one (a pod that was evicted before it ran)."""

    reason: str
    exit_code: str


@dataclass(frozen=True, slots=True)
class LastEnd:
    """The last end with an error of the container that trains: its exit code and its last output. `deaths` counts all
    ends of the container, including successful ones. `killed_at`: when it ended (RFC 3339), if the kernel killed it for
    memory."""

    deaths: int
    exit_code: int
    words: str = ""
    killed_at: str = ""

    def __str__(self) -> str:
        return f"the program ended with exit code {self.exit_code}" + (f": {self.words}" if self.words else "")


def retried(policy: str, exit_code: int | None) -> bool:
    """Whether a replica with this restart policy is restarted after its pod failed; otherwise the job fails, too."""
    code = _NO_EXIT_CODE if exit_code is None else exit_code
    return policy in ("OnFailure", "Always") or (policy == "ExitCode" and code >= _RETRYABLE_FROM)


def last_end(status: Raw, trains: str = CONTAINER) -> LastEnd | None:
    """Returns how the container that trains ended last; None if it has not ended, or ended without an error."""
    for container in status.get("containerStatuses") or ():
        if container["name"] != trains:
            continue
        state = container.get("state") or {}
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
        code = ended.get("exitCode")
        if not isinstance(code, int) or not 0 < code <= _MAX_EXIT_CODE:
            return None
        # The kubelet counts a restart only when it has happened.
        down = bool(state) and "running" not in state
        restarts = max(0, container.get("restartCount") or 0)
        # containerd keeps the reason of any process that was killed; the exit code says that it was this container's.
        killed = code == _KILLED and ended.get("reason") == "OOMKilled"
        killed_at = str(ended.get("finishedAt") or "")[:MAX_WORD] if killed else ""
        return LastEnd(restarts + down, code, _last_words(str(ended.get("message") or "")), killed_at)
    return None


def _last_words(log: str) -> str:
    """Returns a program's last output in one line: the exception of the last traceback, else the last lines. The
    launcher marks the lines of a program that is not the running one (yet)."""
    lines = [line for each in log[-4 * 1024 :].splitlines() if (line := _MARK.sub("", each.rstrip()))]
    begins = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if begins and (last_lines := [line for line in lines[begins[-1] + 1 :] if not line.startswith((" ", "\t"))]):
        return " ".join(last_lines)[:_LAST_WORDS]
    return " | ".join(line.strip() for line in lines[-10:])[-_LAST_WORDS:]


def failure_of(status: Raw, trains: str = CONTAINER) -> ContainerFailure | None:
    """Returns why a pod with this status failed; None if it has not. The pod's own reason takes precedence over those
    of its containers: an evicted pod has containers that were killed."""
    if status.get("phase") != "Failed":
        return None
    ended = next(_ended_badly(status, trains), {})
    reason, code = status.get("reason") or ended.get("reason"), ended.get("exitCode")
    return ContainerFailure(
        reason if reason in REASONS else OTHER,
        str(code) if isinstance(code, int) and 0 < code <= _MAX_EXIT_CODE else "",
    )


def _ended_badly(status: Raw, trains: str) -> Iterator[dict[str, Any]]:
    """Yields the ends of containers with an exit code other than 0: first the training container, then the others, then
    init containers."""
    found: Iterable[Raw] = status.get("containerStatuses") or ()
    for container in (
        *sorted(found, key=lambda each: each["name"] != trains),
        *(status.get("initContainerStatuses") or ()),
    ):
        ended = (container.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            yield ended


# Containers that the operator adds to a pod (inject.py): the native sidecar that serves its status, and the init
# container that installs the launcher.
EXPORTER: Final = "elastic-tfjob-exporter"
INSTALL: Final = "elastic-tfjob-install"
# The exporter's port and the port's name. In a pod on its host's network the number differs.
STATUS_PORT: Final = 9465
STATUS_PORT_NAME: Final = "elastic-tfjob"
_UNPRIVILEGED: Final = range(1024, 65536)
Amounts = tuple[tuple[str, str, str], ...]
"""For each amount: `requests` or `limits`, the resource, and the quantity."""
_AMOUNTS: Final = 6
# Troubles reported for one pod at once, and characters of an event's reason.
_TROUBLES: Final = 16
_REASON: Final = 128
# Characters of kube-scheduler's message that are kept: with a thousand nodes it is long.
_WORDS = 500


# Kubernetes' default grace period of a pod, in seconds.
GRACE_S: Final = 30
# Seconds after the end of its grace period by which a pod is gone, unless its node cannot end it.
_GONE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not run: the reason and message of the user's event."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a TFJob. `index` is None if the label is not a number; `exit_code` is None until the training container
    has terminated. `cpu` is the request and limit of that container, `held_millicores` what the kubelet has given it
    (0: not reported), `memory` its memory. `no_memory_at` is since when the kubelet has no room for a raise of its
    memory (RFC 3339); empty: it has. `command` is the operator's command to its launcher. `exporter`: the pod serves
    its status, at `status_port`. `injected`: the operator added something, which requests `added`. `pinned` is the one
    node that the pod may be bound to. `running_since` is when the training container was started (RFC 3339), while it
    runs. `unschedulable_at` is since when kube-scheduler finds no node for the pod, `unschedulable` its message.
    `not_installed` is when the pod failed because the launcher could not be installed (RFC 3339, or "unknown").
    `failure` is why the pod failed, if it has; `last_end` is the training container's last end with an error. A pod
    with the exporter has the phase Succeeded as soon as all its containers have succeeded, and `lingers` until the
    kubelet reports that phase, some three seconds later, when it has ended the exporter. `gated`: no scheduler
    considers the pod until its scheduling gates are removed. `trained` is the phase that the training container alone
    gives the pod once it has ended for good, Succeeded or Failed; empty before. `only_sidecars`: since then only other
    containers of the user run. `grace_s` is the time in seconds that its containers have to end, and `ends_at` the time
    (RFC 3339) by which a pod that is being deleted has to be gone, else empty. `unreachable`: Kubernetes no longer
    hears from its node. `leads`: by its label, it leads the training."""

    namespace: str
    name: str
    uid: str
    version: int
    job: str
    owner: str
    replica_type: str
    index: int | None
    phase: str
    terminating: bool
    exit_code: int | None
    restarts: int
    troubles: tuple[Trouble, ...]
    node: str = ""
    ip: str = ""
    requests: Resources = NOTHING
    cpu: CpuAsked = NO_CPU
    held_millicores: int = 0
    memory: MemoryAsked = NO_MEMORY
    no_memory_at: str = ""
    command: str = ""
    exporter: bool = False
    status_port: int = STATUS_PORT
    injected: bool = False
    added: Amounts = ()
    pinned: str = ""
    running_since: str = ""
    unschedulable_at: str = ""
    unschedulable: str = ""
    not_installed: str = ""
    failure: ContainerFailure | None = None
    last_end: LastEnd | None = None
    trains: str = CONTAINER
    trained: str = ""
    only_sidecars: bool = False
    lingers: bool = False
    gated: bool = False
    grace_s: int = GRACE_S
    ends_at: str = ""
    unreachable: bool = False
    leads: bool = False

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Pod":
        """Keeps what decisions read of a pod in the API's form. Raises ValueError for an invalid one."""
        metadata = raw["metadata"]
        spec = raw.get("spec") or {}
        status = raw.get("status") or {}
        containers = status.get("containerStatuses") or ()
        inits = status.get("initContainerStatuses") or ()
        unschedulable_at, unschedulable = _verdict(status)
        trains = trains_in(metadata.get("labels"))
        serves = next((each for each in spec.get("initContainers") or () if each.get("name") == EXPORTER), None)
        exporter = serves is not None
        lingers = exporter and status.get("phase") == "Running" and _has_succeeded(spec, containers)
        trained = _trained(spec, containers, trains)
        memory = memory_of(spec, trains)
        return cls(
            **of_replica(metadata),
            phase="Succeeded" if lingers else short_word(status.get("phase")),
            exit_code=next(
                (
                    container["state"]["terminated"]["exitCode"]
                    for container in containers
                    if container["name"] == trains and (container.get("state") or {}).get("terminated")
                ),
                None,
            ),
            restarts=sum(_restarts(container) for container in (*inits, *containers)),
            troubles=_first_words(_troubles(metadata["name"], status)),
            node=sys.intern(spec.get("nodeName") or ""),
            pinned=sys.intern(pinned_to(spec)),
            unschedulable_at=unschedulable_at,
            unschedulable=unschedulable,
            ip=_ip(status.get("podIP") or ""),
            requests=requests_of(spec, status),
            cpu=cpu_of(spec, trains),
            held_millicores=allocated_cpu(status, trains),
            memory=memory,
            no_memory_at=_no_memory_at(status, memory, trains),
            command=abridged((metadata.get("annotations") or {}).get(COMMAND_ANNOTATION, "")),
            running_since=next(
                (
                    (container["state"].get("running") or {}).get("startedAt") or ""
                    for container in containers
                    if container["name"] == trains and container.get("state")
                ),
                "",
            ),
            leads=(metadata.get("labels") or {}).get(JOB_ROLE_LABEL) == "master",
            exporter=exporter,
            status_port=_status_port(serves or {}),
            injected=bool(
                ours := [c for c in spec.get("initContainers") or () if c.get("name") in (EXPORTER, INSTALL)]
            ),
            added=_added(ours),
            not_installed=_not_installed(inits) if status.get("phase") == "Failed" else "",
            failure=failure_of(status, trains),
            last_end=last_end(status, trains),
            trains=trains,
            trained=trained,
            only_sidecars=bool(trained) and status.get("phase") == "Running" and not _all_ended(spec, containers),
            lingers=lingers,
            gated=bool(spec.get("schedulingGates")),
            grace_s=_grace_s(metadata, spec),
            ends_at=metadata.get("deletionTimestamp") or "",
            unreachable=_unreachable(spec, status),
        )

    @property
    def key(self) -> Key:
        """Namespace and name of the pod's job, by its labels."""
        return self.namespace, self.job

    @property
    def status_address(self) -> str:
        """Where the pod serves its status, as host:port; empty if it has no address."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"{host}:{self.status_port}" if host else ""

    @property
    def ended(self) -> bool:
        """Whether the pod holds no capacity of its node any more."""
        return self.phase in ("Succeeded", "Failed") and not self.lingers

    def overdue(self, now: datetime) -> bool:
        """Whether the pod still exists after its grace period: its node cannot end it, or a finalizer keeps it."""
        ends_at = moment_of(self.ends_at) if self.terminating else None
        return ends_at is not None and now >= after(ends_at, _GONE_S)

    def as_trained(self) -> "Pod":
        """Returns the pod with the phase of its training container, which alone decides whether the pod is done, and
        how."""
        if not self.trained or self.phase not in ("Running", "Failed"):
            return self
        return replace(self, phase=self.trained, lingers=self.phase == "Running")

    @property
    def shut_down(self) -> bool:
        """Whether the kubelet ended the pod because its machine stops: the program has not failed."""
        return self.phase == "Failed" and self.failure is not None and self.failure.reason in _SHUT_DOWN

    @property
    def stopped_by_us(self) -> bool:
        """Whether the operator has marked this pod for deletion."""
        return self.command == STOP_COMMAND


def _grace_s(metadata: Raw, spec: Raw) -> int:
    """Returns a pod's grace period in seconds: that of its deletion, else its own. Kubernetes treats a negative one as
    1 s."""
    grace_s = metadata.get("deletionGracePeriodSeconds")
    if grace_s is None:
        grace_s = spec.get("terminationGracePeriodSeconds")
    return GRACE_S if grace_s is None else min(max(int(grace_s), 0), MAX_DURATION_S)


def _unreachable(spec: Raw, status: Raw) -> bool:
    """Whether Kubernetes has marked a pod not ready because of its node. The kubelet itself marks a pod not ready only
    if a container or a readiness gate is not ready."""
    statuses = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    if statuses.get("Ready") != "False" or statuses.get("ContainersReady") != "True":
        return False
    return all(statuses.get(gate.get("conditionType")) == "True" for gate in spec.get("readinessGates") or ())


def _added(containers: Sequence[Raw]) -> Amounts:
    """Returns the resources of the operator's containers. Most pods have the same ones, which are stored once."""
    found = [
        (kind, name, text)
        for container in containers
        for kind in ("requests", "limits")
        for name, text in ((container.get("resources") or {}).get(kind) or {}).items()
        if isinstance(text, str) and is_quantity(text) and name in RESOURCES
    ]
    return _kept(tuple(found[:_AMOUNTS]))


@lru_cache(maxsize=256)
def _kept(amounts: Amounts) -> Amounts:
    return amounts


def _status_port(exporter: Raw) -> int:
    """Returns an exporter's port. Users may write a pod's spec, so only an unprivileged port is believed."""
    ports = (each.get("containerPort") for each in exporter.get("ports") or () if each.get("name") == STATUS_PORT_NAME)
    return next((port for port in ports if isinstance(port, int) and port in _UNPRIVILEGED), STATUS_PORT)


def _not_installed(inits: Iterable[Raw]) -> str:
    """Returns when the init container that installs the launcher failed for good; empty if it did not."""
    for container in inits:
        ended = (container.get("state") or {}).get("terminated") if container["name"] == INSTALL else None
        if ended and ended["exitCode"]:
            return str(ended.get("finishedAt") or "") or "unknown"
    return ""


def _has_succeeded(spec: Raw, containers: Sequence[Raw]) -> bool:
    """Whether all containers except sidecars have ended for good, with exit code 0: the pod's phase will be
    Succeeded."""
    if spec.get("restartPolicy") not in ("Never", "OnFailure") or not _all_ended(spec, containers):
        return False
    return all(container["state"]["terminated"].get("exitCode") == 0 for container in containers)


def _all_ended(spec: Raw, containers: Sequence[Raw]) -> bool:
    """Whether no container runs except native sidecars."""
    ended = [(container.get("state") or {}).get("terminated") for container in containers]
    return len(ended) == len(spec.get("containers") or ()) and all(each is not None for each in ended)


def _trained(spec: Raw, containers: Sequence[Raw], trains: str) -> str:
    """Returns the phase by the training container alone; empty until it has ended and the kubelet does not restart
    it."""
    state = next((each.get("state") or {} for each in containers if each["name"] == trains), {})
    if (ended := state.get("terminated")) is None:
        return ""
    own: Raw = next((each for each in spec.get("containers") or () if each.get("name") == trains), {})
    policy, failed = own.get("restartPolicy") or spec.get("restartPolicy"), ended.get("exitCode") != 0
    again = own.get("restartPolicyRules") or policy not in (("Never",) if failed else ("Never", "OnFailure"))
    return "" if again else "Failed" if failed else "Succeeded"


def _verdict(status: Raw) -> tuple[str, str]:
    """Returns since when kube-scheduler finds no node for a pod, and its message; both are empty if it found one or has
    not tried yet."""
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
            continue
        if condition.get("reason") == "Unschedulable":
            return condition.get("lastTransitionTime") or "", (condition.get("message") or "")[:_WORDS]
    return "", ""


def _no_memory_at(status: Raw, asked: MemoryAsked, trains: str) -> str:
    """Returns since when a resize is pending (`Deferred` or `Infeasible`) that asks for more memory than the kubelet
    has allocated; empty if there is none."""
    pending: Raw = next(
        (each for each in status.get("conditions") or () if each.get("type") == "PodResizePending"),
        {},
    )
    if pending.get("status") != "True" or asked.request <= allocated_memory(status, trains):
        return ""
    return str(pending.get("lastTransitionTime") or "")[:MAX_WORD]


def _ip(written: str) -> str:
    """Returns a pod's IP address, at which its status is read; empty for any other text, as a host name could lead
    elsewhere."""
    try:
        return str(ip_address(written))
    except ValueError:
        return ""


def _restarts(container: Raw) -> int:
    """Returns the restarts of a user's container; 0 for the operator's."""
    return 0 if container["name"] in (EXPORTER, INSTALL) else max(0, container.get("restartCount") or 0)


def _troubles(pod: str, status: Raw) -> Iterator[Trouble]:
    """Yields what keeps an active pod from running, in upstream's words: its containers' states, else its newest
    condition."""
    if status.get("phase") in ("Succeeded", "Failed"):
        return
    inits = status.get("initContainerStatuses") or ()
    # The exporter's hook installs the launcher: if it fails, all other containers wait without reporting why.
    exporter = [container for container in inits if container["name"] == EXPORTER]
    containers = status.get("containerStatuses")
    if reported := [*containers, *exporter] if containers else inits:
        for container in reported:
            state = container.get("state") or {}
            terminated, waiting = state.get("terminated"), state.get("waiting")
            if terminated and terminated.get("exitCode"):
                yield _trouble(
                    terminated.get("reason") or "Error",
                    f"Error pod {pod} container {container['name']} exitCode: {terminated['exitCode']} "
                    f"terminated message: {terminated.get('message', '')}",
                )
            if waiting and waiting.get("message"):
                yield _trouble(
                    waiting.get("reason") or "Waiting",
                    f"Error pod {pod} container {container['name']} waiting message: {waiting['message']}",
                )
        return
    if conditions := status.get("conditions"):
        newest = max(conditions, key=lambda condition: condition.get("lastTransitionTime") or "")
        if newest.get("status") != "True":
            yield _trouble(
                newest.get("reason") or newest["type"],
                f"Error pod {pod} condition message: {newest.get('message', '')}",
            )


def _trouble(reason: str, message: str) -> Trouble:
    return Trouble(cut(reason, _REASON), cut(message))


def _first_words(troubles: Iterable[Trouble]) -> tuple[Trouble, ...]:
    """Returns the first _TROUBLES troubles, with messages cut to MAX_TROUBLES_TEXT characters in total."""
    found, room = [], MAX_TROUBLES_TEXT
    for each in islice(troubles, _TROUBLES):
        found.append(Trouble(each.reason, cut(each.message, room)))
        room -= len(found[-1].message)
        if not room:
            break
    return tuple(found)

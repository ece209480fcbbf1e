"""A pod of a TFJob, as far as decisions read it: where and how it runs, or what keeps it from running. Pure."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final

from elastic_tfjob.api.reading import MAX_DURATION_S, MAX_TROUBLES_TEXT, after, cut
from elastic_tfjob.api.tfjob import CONTAINER, trains_in
from elastic_tfjob.controller.model.affinity import pinned_to
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION, STOP_COMMAND, abridged
from elastic_tfjob.controller.model.injection import RESOURCES
from elastic_tfjob.controller.model.job import Key, Raw, of_replica, readable, short_word
from elastic_tfjob.controller.model.quantities import NO_CPU, CpuAsked, cpu_of, is_quantity, requests_of
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.scheduling.resources import NOTHING, Resources

__all__ = ["OTHER", "REASONS", "ContainerFailure", "LastEnd", "failure_of", "last_end", "retried"]

# -- Why a pod failed, in a few words that are known beforehand: labels of a metric must not grow ----------------------

OTHER: Final = "Other"
# Of the kubelet and the control plane, about a pod or one of its containers. Whoever may write a status may write any
# other word there.
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
# What a process on Linux can end with.
_MAX_EXIT_CODE: Final = 255
# What upstream takes for the exit code of a container that has none: retryable, since it is above 127.
_NO_EXIT_CODE: Final = 0xBEEF
_RETRYABLE_FROM: Final = 128
# Characters of what a program said last that are kept.
_LAST_WORDS: Final = 600


@dataclass(frozen=True, slots=True)
class ContainerFailure:
    """`reason` is one of REASONS or OTHER; `exit_code` is a number from 1 to 255, or empty where no container has one
    (a pod that was evicted before it ran)."""

    reason: str
    exit_code: str


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How the container that trains ended last, with an error: its exit code and its last words; and how many of its
    lives are over, of which others may have ended well."""

    deaths: int
    exit_code: int
    words: str = ""

    def __str__(self) -> str:
        return f"the program ended with exit code {self.exit_code}" + (f": {self.words}" if self.words else "")


def retried(policy: str, exit_code: int | None) -> bool:
    """Whether a replica with this restart policy is restarted after its pod failed; else the job fails with it."""
    code = _NO_EXIT_CODE if exit_code is None else exit_code
    return policy in ("OnFailure", "Always") or (policy == "ExitCode" and code >= _RETRYABLE_FROM)


def last_end(status: Raw, trains: str = CONTAINER) -> LastEnd | None:
    """How the container that trains ended last; None where it has not, or not with an error."""
    for container in status.get("containerStatuses") or ():
        if container["name"] != trains:
            continue
        state = container.get("state") or {}
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
        code = ended.get("exitCode")
        if not isinstance(code, int) or not 0 < code <= _MAX_EXIT_CODE:
            return None
        # The kubelet counts one that is yet to be restarted when it has been.
        down = bool(state) and "running" not in state
        restarts = max(0, container.get("restartCount") or 0)
        return LastEnd(restarts + down, code, _last_words(str(ended.get("message") or "")))
    return None


def _last_words(log: str) -> str:
    """What a program said last, in one line: the exception of the last traceback, else the last lines."""
    lines = [line.rstrip() for line in log[-4 * 1024 :].splitlines() if line.strip()]
    begins = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if begins and (told := [line for line in lines[begins[-1] + 1 :] if not line.startswith((" ", "\t"))]):
        return " ".join(told)[:_LAST_WORDS]
    return " | ".join(line.strip() for line in lines[-10:])[-_LAST_WORDS:]


def failure_of(status: Raw, trains: str = CONTAINER) -> ContainerFailure | None:
    """Why a pod with this status failed; None where it has not. What is said of the pod goes before what is said of
    its containers: one that is evicted has containers that were killed."""
    if status.get("phase") != "Failed":
        return None
    ended = next(_ended_badly(status, trains), {})
    reason, code = status.get("reason") or ended.get("reason"), ended.get("exitCode")
    return ContainerFailure(
        reason if reason in REASONS else OTHER,
        str(code) if isinstance(code, int) and 0 < code <= _MAX_EXIT_CODE else "",
    )


def _ended_badly(status: Raw, trains: str) -> Iterator[dict[str, Any]]:
    """How containers ended that did not end with 0: first the one that trains, then the others, then init ones."""
    found: Iterable[Raw] = status.get("containerStatuses") or ()
    for container in (
        *sorted(found, key=lambda each: each["name"] != trains),
        *(status.get("initContainerStatuses") or ()),
    ):
        ended = (container.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            yield ended


# What the operator adds to a pod (inject.py): the native sidecar that serves its status, and what brings the launcher.
EXPORTER: Final = "elastic-tfjob-exporter"
INSTALL: Final = "elastic-tfjob-install"
# Where the exporter answers, and what its port is called: in a pod on its host's network it is another one.
STATUS_PORT: Final = 9465
STATUS_PORT_NAME: Final = "elastic-tfjob"
_UNPRIVILEGED: Final = range(1024, 65536)
Amounts = tuple[tuple[str, str, str], ...]
"""`requests` or `limits`, the resource, and how much of it."""
_AMOUNTS: Final = 6
# What is told of one pod at once, and the length of an event's reason.
_TROUBLES: Final = 16
_REASON: Final = 128
# Characters of kube-scheduler's words that are kept: with a thousand nodes it has many.
_WORDS = 500


# What Kubernetes gives a pod that does not say how long its containers may take to end, in seconds.
GRACE_S: Final = 30
# So long after its grace period is over a pod is gone, unless nobody can end it.
_GONE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not run: the reason and message of the event that tells the user."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of some TFJob. `index` is None where the label is not a number; `exit_code` is None until the container
    that trains has terminated. `cpu` is what that container asks for, `command` is what the operator told its launcher;
    `exporter` tells that it can be asked for its status, at `status_port`; `injected` that
    the operator added something, which asks for `added`; `pinned` is the one node that it may be
    bound to; `running_since` is when the container that trains was started (RFC 3339), while it runs.
    `unschedulable_at` is since when kube-scheduler finds no node for it, `unschedulable` are its words. `not_installed`
    is when it failed because the launcher could not be installed in it (RFC 3339, or "unknown"). `failure` is why it
    failed, where it has; `last_end` how the container that trains ended last, with an error. One with our exporter has
    the phase Succeeded as soon as all its containers have, and `lingers` until kubelet says so, which is some three
    seconds later, once it has ended the exporter. `gated`: no scheduler looks at it before somebody takes its gates
    away. `trained` is the phase that the container that trains gives the pod once it has ended for good, Succeeded or
    Failed; empty before. `only_sidecars`: since then other containers of the user's run. `grace_s` is the time in
    seconds that its containers have to end, and `ends_at` the moment (RFC 3339) by which a pod that is being deleted
    has to be gone; empty for others. `unreachable`: Kubernetes does not hear from its node any more."""

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

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Pod":
        """Keep what decisions read of a pod as the API sends it."""
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
            command=abridged((metadata.get("annotations") or {}).get(COMMAND_ANNOTATION, "")),
            running_since=next(
                (
                    (container["state"].get("running") or {}).get("startedAt") or ""
                    for container in containers
                    if container["name"] == trains and container.get("state")
                ),
                "",
            ),
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
        """The job that the pod belongs to by its labels."""
        return self.namespace, self.job

    @property
    def ended(self) -> bool:
        """It holds nothing of its node any more."""
        return self.phase in ("Succeeded", "Failed") and not self.lingers

    def overdue(self, now: datetime) -> bool:
        """Its grace period is over, and it is still there: its node cannot end it, or a finalizer keeps it."""
        ends_at = moment_of(self.ends_at) if self.terminating else None
        return ends_at is not None and now >= after(ends_at, _GONE_S)

    def as_trained(self) -> "Pod":
        """The pod as its container that trains has it: that one alone says whether the pod is done, and how."""
        if not self.trained or self.phase not in ("Running", "Failed"):
            return self
        return replace(self, phase=self.trained, lingers=self.phase == "Running")

    @property
    def stopped_by_us(self) -> bool:
        """The operator said that it would delete this pod."""
        return self.command == STOP_COMMAND


def _grace_s(metadata: Raw, spec: Raw) -> int:
    """The grace period of a pod: the one that it is being deleted with, else its own. Kubernetes takes a negative one
    for 1 s."""
    grace_s = metadata.get("deletionGracePeriodSeconds")
    if grace_s is None:
        grace_s = spec.get("terminationGracePeriodSeconds")
    return GRACE_S if grace_s is None else min(max(int(grace_s), 0), MAX_DURATION_S)


def _unreachable(spec: Raw, status: Raw) -> bool:
    """Whether Kubernetes has marked a pod not ready for its node's sake. A kubelet says so only of a pod with a
    container, or a readiness gate, that is not ready."""
    said = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    if said.get("Ready") != "False" or said.get("ContainersReady") != "True":
        return False
    return all(said.get(gate.get("conditionType")) == "True" for gate in spec.get("readinessGates") or ())


def _added(containers: Sequence[Raw]) -> Amounts:
    """What the operator's containers ask for. Most are alike: kept once."""
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
    """Where an exporter answers: a pod's spec may be anybody's, so only where one could."""
    ports = (each.get("containerPort") for each in exporter.get("ports") or () if each.get("name") == STATUS_PORT_NAME)
    return next((port for port in ports if isinstance(port, int) and port in _UNPRIVILEGED), STATUS_PORT)


def _not_installed(inits: Iterable[Raw]) -> str:
    """When the init container that installs the launcher ended for good without having done so; empty: it did not."""
    for container in inits:
        ended = (container.get("state") or {}).get("terminated") if container["name"] == INSTALL else None
        if ended and ended["exitCode"]:
            return str(ended.get("finishedAt") or "") or "unknown"
    return ""


def _has_succeeded(spec: Raw, containers: Sequence[Raw]) -> bool:
    """Whether all containers but sidecars have ended for good, with 0: then the pod's phase will be Succeeded."""
    if spec.get("restartPolicy") not in ("Never", "OnFailure") or not _all_ended(spec, containers):
        return False
    return all(container["state"]["terminated"].get("exitCode") == 0 for container in containers)


def _all_ended(spec: Raw, containers: Sequence[Raw]) -> bool:
    """Whether no container but sidecars of Kubernetes' own kind runs."""
    ended = [(container.get("state") or {}).get("terminated") for container in containers]
    return len(ended) == len(spec.get("containers") or ()) and all(each is not None for each in ended)


def _trained(spec: Raw, containers: Sequence[Raw], trains: str) -> str:
    """The phase by the container that trains alone; empty until it has ended and the kubelet does not restart it."""
    state = next((each.get("state") or {} for each in containers if each["name"] == trains), {})
    if (ended := state.get("terminated")) is None:
        return ""
    own: Raw = next((each for each in spec.get("containers") or () if each.get("name") == trains), {})
    policy, failed = own.get("restartPolicy") or spec.get("restartPolicy"), ended.get("exitCode") != 0
    again = own.get("restartPolicyRules") or policy not in (("Never",) if failed else ("Never", "OnFailure"))
    return "" if again else "Failed" if failed else "Succeeded"


def _verdict(status: Raw) -> tuple[str, str]:
    """Since when kube-scheduler finds no node for a pod, and why; nothing where it did or has not looked yet."""
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
            continue
        if condition.get("reason") == "Unschedulable":
            return condition.get("lastTransitionTime") or "", (condition.get("message") or "")[:_WORDS]
    return "", ""


def _ip(written: str) -> str:
    """A pod's address, which is asked for its status; empty for what is none: a name would lead elsewhere."""
    try:
        return str(ip_address(written))
    except ValueError:
        return ""


def _restarts(container: Raw) -> int:
    """How often a container of the user's was restarted."""
    return 0 if container["name"] in (EXPORTER, INSTALL) else max(0, container.get("restartCount") or 0)


def _troubles(pod: str, status: Raw) -> Iterator[Trouble]:
    """What keeps an active pod from running, in upstream's words: its containers' states, else its newest condition."""
    if status.get("phase") in ("Succeeded", "Failed"):
        return
    inits = status.get("initContainerStatuses") or ()
    # The hook of our exporter brings the launcher: where that fails all others wait, and do not say for what.
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
    """As many troubles as are told at once, whose messages take no more room together than is kept for a pod."""
    found, room = [], MAX_TROUBLES_TEXT
    for each in islice(troubles, _TROUBLES):
        found.append(Trouble(each.reason, cut(each.message, room)))
        room -= len(found[-1].message)
        if not room:
            break
    return tuple(found)

"""What the operator keeps of the API's objects: only what decisions read, so that 10,000 jobs fit in memory. Pure.

The API server vouches for the types of what it sends, where the object's schema says them; not for the values: users
write labels and annotations, and whoever may write `pods/status` writes those. `parse` of each class here and in
cluster.py raises ValueError, and nothing else, for an object that makes no sense: that one is then left aside.
"""

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final, TypeVar

import orjson

from elastic_tfjob.api.fields import cut
from elastic_tfjob.api.limits import MAX_NODE_NAME, MAX_TROUBLES_TEXT, MAX_UID, MAX_WORD
from elastic_tfjob.api.tfjob import (
    CONTAINER,
    JOB_NAME_LABEL,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    TFJobSpec,
)
from elastic_tfjob.controller.objects.annotations import COMMAND_ANNOTATION, STOP_COMMAND, abridged
from elastic_tfjob.controller.objects.quantities import cpu_of, requests_of
from elastic_tfjob.controller.objects.status import JobStatus
from elastic_tfjob.scheduling.resources import NOTHING, Resources

__all__ = ["EXPORTER", "INSTALL", "Budget", "Job", "Key", "Pod", "PodGroup", "Service", "Trouble", "readable"]

Raw = Mapping[str, Any]

# Namespace and name of a job.
Key = tuple[str, str]

# What the operator adds to a pod (inject.py): the native sidecar that serves its status, and what brings the launcher.
EXPORTER: Final = "elastic-tfjob-exporter"
INSTALL: Final = "elastic-tfjob-install"

# What is told of one pod at once, and the length of an event's reason.
_TROUBLES: Final = 16
_REASON: Final = 128
# An index is a Go int in upstream's controller; a replica's is an int32.
_MAX_INDEX: Final = 2**31 - 1

# kubectl's copy of the whole manifest: of no use here, and as large as the spec.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# By this label Kueue knows the jobs that it admits.
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# Bytes of JSON that is not compressed: a usual spec has 2 KiB, and zlib lets other threads run, which on a busy
# interpreter is a wait of 5 ms. Of the largest (1.5 MiB) that is nothing but noise half remains, after 20 ms; higher
# levels save no more.
_PLAIN: Final = 16 * 1024
_FAST: Final = 1
# Characters of kube-scheduler's words that are kept: with a thousand nodes it has many.
_WORDS = 500


C = TypeVar("C")
T = TypeVar("T")


def readable(parse: Callable[[type[C], Raw], T]) -> Callable[[type[C], Raw], T]:
    """Have a `parse` raise ValueError whatever it finds in an object that makes no sense to it: keys that are missing,
    other types, nesting beyond what can be written again."""

    @wraps(parse)
    def read(cls: type[C], raw: Raw) -> T:
        try:
            return parse(cls, raw)
        except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError, RecursionError) as error:
            what = f"{type(error).__name__}: {cut(str(error), 200)}"
            raise ValueError(f"{cls.__name__} that cannot be read: {what}") from error

    return read


@dataclass(frozen=True, slots=True)
class Job:
    """A TFJob. Spec and status stay serialised until a reconcile needs them, a tenth of their size as objects, and
    compressed where they are large. Equal specs are equal bytes.

    `queue` is the Kueue queue that admits it; empty where Kueue has no say."""

    namespace: str
    name: str
    uid: str
    version: int
    deleting: bool
    annotations: dict[str, str]
    raw_spec: bytes
    raw_status: bytes
    created: str = ""
    queue: str = ""

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Job":
        """Keep what decisions read of a TFJob as the API sends it."""
        metadata = raw["metadata"]
        return cls(
            **_identity(metadata),
            deleting="deletionTimestamp" in metadata,
            annotations={
                name: text
                for name, text in (metadata.get("annotations") or {}).items()
                if name != _LAST_APPLIED and isinstance(text, str)
            },
            raw_spec=_packed(raw.get("spec") or {}),
            raw_status=_packed(raw.get("status") or {}),
            created=metadata.get("creationTimestamp") or "",
            queue=sys.intern((metadata.get("labels") or {}).get(_QUEUE_LABEL, "")),
        )

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    def spec(self) -> TFJobSpec:
        """Parse the spec. Raises InvalidTFJob on what the CRD should have refused."""
        return TFJobSpec.parse(_unpacked(self.raw_spec))

    def status(self) -> JobStatus:
        """Parse the status into a fresh working copy."""
        return JobStatus.parse(_unpacked(self.raw_status))


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not run: the reason and message of the event that tells the user."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of some TFJob. `index` is None where the label is not a number; `exit_code` is None until the container
    that trains has terminated. `cpu` are request and limit of that container in millicores, `command` is what the
    operator told its launcher; `exporter` tells that it can be asked for its status; `pinned` is the one node that it
    may be bound to; `running_since` is when the container that trains was started (RFC 3339), while it runs.
    `unschedulable_at` is since when kube-scheduler finds no node for it, `unschedulable` are its words. `not_installed`
    is when it failed because the launcher could not be installed in it (RFC 3339, or "unknown")."""

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
    cpu: tuple[int, int] = (0, 0)
    command: str = ""
    exporter: bool = False
    pinned: str = ""
    running_since: str = ""
    unschedulable_at: str = ""
    unschedulable: str = ""
    not_installed: str = ""

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
        return cls(
            **_of_replica(metadata),
            phase=_word(status.get("phase")),
            exit_code=next(
                (
                    container["state"]["terminated"]["exitCode"]
                    for container in containers
                    if container["name"] == CONTAINER and (container.get("state") or {}).get("terminated")
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
            requests=requests_of(spec),
            cpu=cpu_of(spec),
            command=abridged((metadata.get("annotations") or {}).get(COMMAND_ANNOTATION, "")),
            running_since=next(
                (
                    (container["state"].get("running") or {}).get("startedAt") or ""
                    for container in containers
                    if container["name"] == CONTAINER and container.get("state")
                ),
                "",
            ),
            exporter=any(container.get("name") == EXPORTER for container in spec.get("initContainers") or ()),
            not_installed=_not_installed(inits) if status.get("phase") == "Failed" else "",
        )

    @property
    def key(self) -> Key:
        """The job that the pod belongs to by its labels."""
        return self.namespace, self.job

    @property
    def stopped_by_us(self) -> bool:
        """The operator said that it would delete this pod."""
        return self.command == STOP_COMMAND


@dataclass(frozen=True, slots=True)
class Service:
    """A service of some TFJob. `owner` is empty for one that nobody controls."""

    namespace: str
    name: str
    uid: str
    version: int
    job: str
    owner: str
    replica_type: str
    index: int | None
    terminating: bool

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Service":
        """Keep what decisions read; metadata is enough, so services are watched as PartialObjectMetadata."""
        metadata = raw["metadata"]
        return cls(
            **_of_replica(metadata),
        )

    @property
    def key(self) -> Key:
        """The job that the service belongs to by its labels."""
        return self.namespace, self.job


@dataclass(frozen=True, slots=True)
class PodGroup:
    """The gang scheduler's view of a job; its name is the job's."""

    namespace: str
    name: str
    uid: str
    version: int
    owner: str
    phase: str
    raw_spec: bytes

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "PodGroup":
        """Keep what decisions read of a PodGroup of either gang scheduler."""
        metadata = raw["metadata"]
        return cls(
            **_identity(metadata),
            owner=_controller_uid(metadata),
            phase=_word((raw.get("status") or {}).get("phase")),
            raw_spec=_packed(raw.get("spec") or {}),
        )

    @property
    def key(self) -> Key:
        """The job of the same name."""
        return self.namespace, self.name

    def spec(self) -> dict[str, Any]:
        """The spec as the API sends it."""
        return _unpacked(self.raw_spec)


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget of some TFJob (job/disruptions.py)."""

    namespace: str
    name: str
    uid: str
    version: int
    job: str
    owner: str

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Budget":
        """Keep what decisions read; metadata is enough."""
        metadata = raw["metadata"]
        return cls(
            **_identity(metadata),
            job=(metadata.get("labels") or {}).get(JOB_NAME_LABEL, ""),
            owner=_controller_uid(metadata),
        )

    @property
    def key(self) -> Key:
        """The job that it belongs to by its label."""
        return self.namespace, self.job


def required_terms(spec: Raw) -> Iterable[Raw]:
    """The terms of a pod's required node affinity, of which a node must match one."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return affinity.get("nodeSelectorTerms") or ()


def pinned_to(spec: Raw) -> str:
    """The node that inject.pin wrote into a pod's affinity, as the last of a term's fields."""
    for term in required_terms(spec):
        for field in reversed(term.get("matchFields") or ()):
            if field["key"] == "metadata.name" and field["operator"] == "In" and field.get("values"):
                return cut(field["values"][0], MAX_NODE_NAME)
    return ""


def template_pin(template: Raw) -> str:
    """The node that a user's template pins its pods to, if any. Nobody has checked a template but for what the API
    server says when a pod is made of it."""
    try:
        return pinned_to(template.get("spec") or {})
    except (AttributeError, KeyError, TypeError, IndexError, ValueError):
        return ""


def _not_installed(inits: Iterable[Raw]) -> str:
    """When the init container that installs the launcher ended for good without having done so; empty: it did not."""
    for container in inits:
        ended = (container.get("state") or {}).get("terminated") if container["name"] == INSTALL else None
        if ended and ended["exitCode"]:
            return str(ended.get("finishedAt") or "") or "unknown"
    return ""


def _verdict(status: Raw) -> tuple[str, str]:
    """Since when kube-scheduler finds no node for a pod, and why; nothing where it did or has not looked yet."""
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
            continue
        if condition.get("reason") == "Unschedulable":
            return condition.get("lastTransitionTime") or "", (condition.get("message") or "")[:_WORDS]
    return "", ""


def _identity(metadata: Raw) -> dict[str, Any]:
    """The fields that all objects share."""
    return {
        "namespace": sys.intern(metadata["namespace"]),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "version": int(metadata["resourceVersion"]),
    }


def _of_replica(metadata: Raw) -> dict[str, Any]:
    """The fields that a replica's pod and service share."""
    labels = metadata.get("labels") or {}
    index = labels.get(REPLICA_INDEX_LABEL, "")
    return {
        **_identity(metadata),
        "job": sys.intern(labels.get(JOB_NAME_LABEL, "")),
        "owner": sys.intern(_controller_uid(metadata)),
        "replica_type": sys.intern(labels.get(REPLICA_TYPE_LABEL, "")),
        "index": _index(index),
        "terminating": "deletionTimestamp" in metadata,
    }


def _index(label: str) -> int | None:
    """A replica's index; None for what upstream's strconv.Atoi would not take, or what no replica can have."""
    if not (label.isascii() and label.isdecimal() and len(label) <= MAX_WORD):
        return None
    return found if (found := int(label)) <= _MAX_INDEX else None


def _ip(written: str) -> str:
    """A pod's address, which is asked for its status; empty for what is none: a name would lead elsewhere."""
    try:
        return str(ip_address(written))
    except ValueError:
        return ""


def _restarts(container: Raw) -> int:
    """How often a container of the user's was restarted."""
    return 0 if container["name"] in (EXPORTER, INSTALL) else max(0, container.get("restartCount") or 0)


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


def _word(written: str | None) -> str:
    """One of a few words, such as a phase; whoever may write a status may write any other there."""
    return sys.intern(cut(written or "", MAX_WORD))


def _controller_uid(metadata: Raw) -> str:
    """The API server does not look at the uid of a reference: a user may write any text there."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return cut(str(reference["uid"]), MAX_UID)
    return ""


def _packed(value: Raw) -> bytes:
    """An object of JSON in few bytes."""
    text = orjson.dumps(value)
    # A copy: what orjson gives has a buffer of 4 KiB behind it, whatever it needs of that.
    return bytes(memoryview(text)) if len(text) < _PLAIN else zlib.compress(text, _FAST)


def _unpacked(packed: bytes) -> dict[str, Any]:
    """The inverse of `_packed`: JSON begins with a brace, and zlib's format does not."""
    found: dict[str, Any] = orjson.loads(packed if packed.startswith(b"{") else zlib.decompress(packed))
    return found


def _troubles(pod: str, status: Raw) -> Iterator[Trouble]:
    """What keeps an active pod from running, in upstream's words: its containers' states, else its newest condition."""
    if status.get("phase") in ("Succeeded", "Failed"):
        return
    if reported := status.get("containerStatuses") or status.get("initContainerStatuses"):
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

"""What the operator keeps of the API's objects: only what decisions read, so that 10,000 jobs fit in memory. Pure."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from elastic_tfjob.api.tfjob import (
    CONTAINER,
    JOB_NAME_LABEL,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    TFJobSpec,
)
from elastic_tfjob.controller.elastic import COMMAND_ANNOTATION, STOP_COMMAND
from elastic_tfjob.controller.resources import Requests, cpu_of, requests_of
from elastic_tfjob.controller.status import JobStatus

__all__ = ["EXPORTER", "Job", "Key", "Pod", "PodGroup", "Service", "Trouble"]

Raw = Mapping[str, Any]

# Namespace and name of a job.
Key = tuple[str, str]

# The native sidecar that serves a pod's status.
EXPORTER = "elastic-tfjob-exporter"

# kubectl's copy of the whole manifest: of no use here, and as large as the spec.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Job:
    """A TFJob. Spec and status stay serialised until a reconcile needs them: a tenth of their size as objects."""

    namespace: str
    name: str
    uid: str
    version: int
    deleting: bool
    annotations: dict[str, str]
    raw_spec: bytes
    raw_status: bytes
    created: str = ""

    @classmethod
    def parse(cls, raw: Raw) -> "Job":
        """Keep what decisions read of a TFJob as the API sends it."""
        metadata = raw["metadata"]
        return cls(
            namespace=sys.intern(metadata["namespace"]),
            name=metadata["name"],
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            deleting="deletionTimestamp" in metadata,
            annotations={
                name: text for name, text in (metadata.get("annotations") or {}).items() if name != _LAST_APPLIED
            },
            raw_spec=orjson.dumps(raw.get("spec") or {}),
            raw_status=orjson.dumps(raw.get("status") or {}),
            created=metadata.get("creationTimestamp") or "",
        )

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    def spec(self) -> TFJobSpec:
        """Parse the spec. Raises InvalidTFJob on what the CRD should have refused."""
        return TFJobSpec.parse(orjson.loads(self.raw_spec))

    def status(self) -> JobStatus:
        """Parse the status into a fresh working copy."""
        return JobStatus.parse(orjson.loads(self.raw_status))


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
    may be bound to."""

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
    requests: Requests = (0, 0, 0)
    cpu: tuple[int, int] = (0, 0)
    command: str = ""
    exporter: bool = False
    pinned: str = ""

    @classmethod
    def parse(cls, raw: Raw) -> "Pod":
        """Keep what decisions read of a pod as the API sends it."""
        metadata = raw["metadata"]
        spec = raw.get("spec") or {}
        status = raw.get("status") or {}
        containers = status.get("containerStatuses") or ()
        inits = status.get("initContainerStatuses") or ()
        return cls(
            **_of_replica(metadata),
            phase=sys.intern(status.get("phase", "")),
            exit_code=next(
                (
                    container["state"]["terminated"]["exitCode"]
                    for container in containers
                    if container["name"] == CONTAINER and "terminated" in (container.get("state") or {})
                ),
                None,
            ),
            restarts=sum(container.get("restartCount", 0) for container in (*inits, *containers)),
            troubles=tuple(_troubles(metadata["name"], status)),
            node=sys.intern(spec.get("nodeName") or ""),
            pinned=sys.intern(pinned_to(spec)),
            ip=status.get("podIP") or "",
            requests=requests_of(spec),
            cpu=cpu_of(spec),
            command=(metadata.get("annotations") or {}).get(COMMAND_ANNOTATION, ""),
            exporter=any(container.get("name") == EXPORTER for container in spec.get("initContainers") or ()),
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
    def parse(cls, raw: Raw) -> "PodGroup":
        """Keep what decisions read of a PodGroup of either gang scheduler."""
        metadata = raw["metadata"]
        return cls(
            namespace=sys.intern(metadata["namespace"]),
            name=metadata["name"],
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            owner=_controller_uid(metadata),
            phase=(raw.get("status") or {}).get("phase") or "",
            raw_spec=orjson.dumps(raw.get("spec") or {}),
        )

    @property
    def key(self) -> Key:
        """The job of the same name."""
        return self.namespace, self.name

    def spec(self) -> dict[str, Any]:
        """The spec as the API sends it."""
        found: dict[str, Any] = orjson.loads(self.raw_spec)
        return found


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
            if field["key"] == "metadata.name" and field["operator"] == "In":
                return str(field["values"][0])
    return ""


def _of_replica(metadata: Raw) -> dict[str, Any]:
    """The fields that a replica's pod and service share."""
    labels = metadata.get("labels") or {}
    index = labels.get(REPLICA_INDEX_LABEL, "")
    return {
        "namespace": sys.intern(metadata["namespace"]),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "version": int(metadata["resourceVersion"]),
        "job": sys.intern(labels.get(JOB_NAME_LABEL, "")),
        "owner": sys.intern(_controller_uid(metadata)),
        "replica_type": sys.intern(labels.get(REPLICA_TYPE_LABEL, "")),
        "index": int(index) if index.isdecimal() else None,
        "terminating": "deletionTimestamp" in metadata,
    }


def _controller_uid(metadata: Raw) -> str:
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return ""


def _troubles(pod: str, status: Raw) -> Iterator[Trouble]:
    """What keeps an active pod from running, in upstream's words: its containers' states, else its newest condition."""
    if status.get("phase") in ("Succeeded", "Failed"):
        return
    if reported := status.get("containerStatuses") or status.get("initContainerStatuses"):
        for container in reported:
            state = container.get("state") or {}
            terminated, waiting = state.get("terminated"), state.get("waiting")
            if terminated and terminated.get("exitCode"):
                yield Trouble(
                    terminated.get("reason", "Error"),
                    f"Error pod {pod} container {container['name']} exitCode: {terminated['exitCode']} "
                    f"terminated message: {terminated.get('message', '')}",
                )
            if waiting and waiting.get("message"):
                yield Trouble(
                    waiting.get("reason", "Waiting"),
                    f"Error pod {pod} container {container['name']} waiting message: {waiting['message']}",
                )
        return
    if conditions := status.get("conditions"):
        newest = max(conditions, key=lambda condition: condition.get("lastTransitionTime") or "")
        if newest.get("status") != "True":
            yield Trouble(
                newest.get("reason") or newest["type"],
                f"Error pod {pod} condition message: {newest.get('message', '')}",
            )

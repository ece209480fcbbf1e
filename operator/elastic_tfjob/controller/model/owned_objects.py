"""The objects other than pods that the operator creates for a TFJob, as far as decisions read them. Pure."""

import sys
from dataclasses import dataclass
from typing import Any, Final

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.reading import MAX_TEXT, cut
from elastic_tfjob.api.tfjob import JOB_NAME_LABEL
from elastic_tfjob.controller.model.job import (
    Key,
    Raw,
    controller_uid,
    identity,
    of_replica,
    pack,
    readable,
    short_word,
    unpack,
)


@dataclass(frozen=True, slots=True)
class Service:
    """A service of a TFJob. `owner` is empty for a service without a controller."""

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
        """Keeps what decisions read. Metadata is enough, so services are watched as PartialObjectMetadata. Raises
        ValueError for an invalid object."""
        return cls(**of_replica(raw["metadata"]))

    @property
    def key(self) -> Key:
        """Namespace and name of the service's job, by its labels."""
        return self.namespace, self.job


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A job's PodGroup, which a gang scheduler reads; it has the job's name."""

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
        """Keeps what decisions read of a PodGroup of either gang scheduler. Raises ValueError for an invalid one."""
        metadata = raw["metadata"]
        return cls(
            **identity(metadata),
            owner=controller_uid(metadata),
            phase=short_word((raw.get("status") or {}).get("phase")),
            raw_spec=pack(raw.get("spec") or {}),
        )

    @property
    def key(self) -> Key:
        """Namespace and name of the job, which has the PodGroup's name."""
        return self.namespace, self.name

    def spec(self) -> dict[str, Any]:
        """Returns the spec in the API's form."""
        return unpack(self.raw_spec)


ORDER_LABEL: Final = f"{PREFIX}order-of"
"""The job for which a placeholder pod asks an autoscaler for a node. Placeholders have no other label of a job: neither
services nor budgets, nor people who look for a job's pods, select them."""
ORDER_TYPE_LABEL: Final = f"{PREFIX}order-type"
ORDER_PRIORITY_CLASS: Final = "elastic-tfjob-order"


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """A placeholder pod, by which a job asks an autoscaler for a node. `node`: where it is bound; empty: nowhere yet.
    `created`: RFC 3339. `why`: kube-scheduler's message while it is not bound. `ended`: a kubelet has evicted or
    refused it, so that it asks for nothing and holds no node."""

    namespace: str
    name: str
    uid: str
    version: int
    job: str
    owner: str
    replica_type: str
    node: str
    created: str
    terminating: bool
    why: str
    ended: bool = False

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "NodeOrder":
        """Keeps what decisions read of a placeholder pod. Raises ValueError for an invalid object."""
        metadata, status = raw["metadata"], raw.get("status") or {}
        labels = metadata.get("labels") or {}
        conditions = [each for each in status.get("conditions") or () if each.get("type") == "PodScheduled"]
        return cls(
            **identity(metadata),
            job=labels.get(ORDER_LABEL, ""),
            owner=controller_uid(metadata),
            replica_type=short_word(labels.get(ORDER_TYPE_LABEL)),
            node=sys.intern((raw.get("spec") or {}).get("nodeName") or ""),
            created=short_word(metadata.get("creationTimestamp")),
            terminating="deletionTimestamp" in metadata,
            why=cut(str(conditions[0].get("message") or ""), MAX_TEXT) if conditions else "",
            ended=status.get("phase") in ("Failed", "Succeeded"),
        )

    @property
    def key(self) -> Key:
        """Namespace and name of the placeholder's job, by its label."""
        return self.namespace, self.job


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget of a TFJob (job/owned.py)."""

    namespace: str
    name: str
    uid: str
    version: int
    job: str
    owner: str

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "DisruptionBudget":
        """Keeps what decisions read; metadata is enough. Raises ValueError for an invalid object."""
        metadata = raw["metadata"]
        return cls(
            **identity(metadata),
            job=(metadata.get("labels") or {}).get(JOB_NAME_LABEL, ""),
            owner=controller_uid(metadata),
        )

    @property
    def key(self) -> Key:
        """Namespace and name of the budget's job, by its label."""
        return self.namespace, self.job

"""The objects other than pods that the operator creates for a TFJob, as far as decisions read them. Pure."""

from dataclasses import dataclass
from typing import Any

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

"""What the operator makes for a TFJob beside its pods, as far as decisions read it. Pure."""

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
        return cls(**of_replica(raw["metadata"]))

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
            **identity(metadata),
            owner=controller_uid(metadata),
            phase=short_word((raw.get("status") or {}).get("phase")),
            raw_spec=pack(raw.get("spec") or {}),
        )

    @property
    def key(self) -> Key:
        """The job of the same name."""
        return self.namespace, self.name

    def spec(self) -> dict[str, Any]:
        """The spec as the API sends it."""
        return unpack(self.raw_spec)


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget of some TFJob (job/owned.py)."""

    namespace: str
    name: str
    uid: str
    version: int
    job: str
    owner: str

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "DisruptionBudget":
        """Keep what decisions read; metadata is enough."""
        metadata = raw["metadata"]
        return cls(
            **identity(metadata),
            job=(metadata.get("labels") or {}).get(JOB_NAME_LABEL, ""),
            owner=controller_uid(metadata),
        )

    @property
    def key(self) -> Key:
        """The job that it belongs to by its label."""
        return self.namespace, self.job

"""A JobSet (jobset.x-k8s.io/v1alpha2), as far as this operator runs it. Pure."""

from dataclasses import dataclass
from typing import Any, Final

from elastic_tfjob.api.tfjob import CONTROLLER_NAME, oversized_jobset
from elastic_tfjob.controller.model.job import Key, Raw, identity, pack, readable, unpack

__all__ = ["JOBSET_KIND", "JOBSET_VERSION", "MANAGER", "JobSet"]

JOBSET_VERSION: Final = "jobset.x-k8s.io/v1alpha2"
JOBSET_KIND: Final = "JobSet"
MANAGER: Final = f"elastic.kubeflow.org/{CONTROLLER_NAME}"
"""The value of `spec.managedBy` with which JobSet's own controller leaves a JobSet to this operator."""


@dataclass(frozen=True, slots=True)
class JobSet:
    """A JobSet. `managed` is false for a JobSet that another controller runs, of which nothing is kept. `too_large`
    lists the problems of a JobSet of which only the status is kept."""

    namespace: str
    name: str
    uid: str
    version: int
    deleting: bool
    managed: bool
    raw: bytes = b"{}"
    too_large: tuple[str, ...] = ()

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "JobSet":
        """Keeps what decisions read of a JobSet in the API's form. Raises ValueError for an invalid one."""
        metadata, spec = raw["metadata"], raw.get("spec") or {}
        deleting, managed = "deletionTimestamp" in metadata, spec.get("managedBy") == MANAGER
        if not managed:
            return cls(**identity(metadata), deleting=deleting, managed=False)
        too_large = tuple(oversized_jobset(spec))
        kept = {
            "labels": metadata.get("labels") or {},
            "annotations": metadata.get("annotations") or {},
            "spec": {} if too_large else spec,
            "status": raw.get("status") or {},
        }
        return cls(**identity(metadata), deleting=deleting, managed=True, raw=pack(kept), too_large=too_large)

    @property
    def key(self) -> Key:
        """Namespace and name, which its TFJob shares."""
        return self.namespace, self.name

    def parts(self) -> dict[str, Any]:
        """Returns `labels`, `annotations`, `spec` and `status` in the API's form."""
        return unpack(self.raw)

"""What the operator keeps of objects that are not TFJobs' own: nodes, other people's pods, its ConfigMap. Pure."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_tfjob.controller.objects.observed import Key, readable
from elastic_tfjob.controller.objects.quantities import allocatable, requests_of
from elastic_tfjob.scheduling.constraints import Taint
from elastic_tfjob.scheduling.resources import Resources

__all__ = ["ACTIVE_AND_BOUND", "ConfigMap", "ForeignPod", "Node"]

Raw = Mapping[str, Any]

# Field selector of the pods that take room on a node.
ACTIVE_AND_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `usable`: Ready, and not cordoned; `cordoned`: Ready, so that its pods run, and gets no more of them."""

    name: str
    uid: str
    version: int
    allocatable: Resources
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    usable: bool
    cordoned: bool = False
    namespace: str = ""

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Node":
        """Keep what decisions read of a node as the API sends it."""
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        ready = ready and "deletionTimestamp" not in metadata
        return cls(
            name=sys.intern(metadata["name"]),
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            allocatable=allocatable(status.get("allocatable") or {}),
            labels=dict(metadata.get("labels") or {}),
            taints=tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints") or ()),
            usable=ready and not spec.get("unschedulable"),
            cordoned=ready and bool(spec.get("unschedulable")),
        )

    @property
    def key(self) -> Key:
        """Nodes are in no namespace."""
        return "", self.name


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod that takes room on a node and is no TFJob's."""

    namespace: str
    name: str
    uid: str
    version: int
    node: str
    requests: Resources

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "ForeignPod":
        """Keep what decisions read of a pod as the API sends it."""
        metadata, spec = raw["metadata"], raw.get("spec") or {}
        return cls(
            namespace=sys.intern(metadata["namespace"]),
            name=metadata["name"],
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            node=sys.intern(spec.get("nodeName") or ""),
            requests=requests_of(spec),
        )

    @property
    def key(self) -> Key:
        """Its own name: it belongs to no job."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """The operator's configuration as the API server holds it; `text` is None where the key is missing."""

    namespace: str
    name: str
    uid: str
    version: int
    text: str | None

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "ConfigMap":
        """Keep the one key that is read."""
        metadata = raw["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            text=(raw.get("data") or {}).get("config.yaml"),
        )

    @property
    def key(self) -> Key:
        """Its own name."""
        return self.namespace, self.name

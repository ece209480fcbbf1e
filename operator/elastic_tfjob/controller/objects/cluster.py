"""What the operator keeps of objects that are not TFJobs' own: nodes, other people's pods, its ConfigMap. Pure."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_tfjob.api.fields import cut
from elastic_tfjob.api.limits import MAX_VALUE
from elastic_tfjob.controller.objects.affinity import constraints_of
from elastic_tfjob.controller.objects.loan import POOL_LABEL, WANT_ANNOTATION, NodeLoan, tainted
from elastic_tfjob.controller.objects.parsing import Key, identity, readable
from elastic_tfjob.controller.objects.quantities import allocatable, requests_of
from elastic_tfjob.scheduling.constraints import Constraints, Taint
from elastic_tfjob.scheduling.resources import Resources

__all__ = ["ACTIVE_AND_BOUND", "PENDING", "ConfigMap", "ForeignPod", "Node", "OwnObject", "PendingPod"]

Raw = Mapping[str, Any]

# Field selector of the pods that take room on a node.
ACTIVE_AND_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
# Of those that wait for one.
PENDING = "spec.nodeName=,status.phase=Pending"
# Controllers whose pods a node has whatever it is used for: its daemons, and the kubelet's static pods.
_STAY = frozenset({"DaemonSet", "Node"})


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `usable`: Ready, and not cordoned; `cordoned`: Ready, so that its pods run, and gets no more of them.
    `pool`: what the admin's label says; `loan` and `tainted`: what the operator wrote of its loan."""

    name: str
    uid: str
    version: int
    allocatable: Resources
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    usable: bool
    cordoned: bool = False
    namespace: str = ""
    pool: str = ""
    loan: NodeLoan | None = None
    tainted: bool = False

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Node":
        """Keep what decisions read of a node as the API sends it."""
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        ready = ready and "deletionTimestamp" not in metadata
        labels = dict(metadata.get("labels") or {})
        taints = tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints") or ())
        return cls(
            name=sys.intern(metadata["name"]),
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            allocatable=allocatable(status.get("allocatable") or {}),
            labels=labels,
            taints=taints,
            usable=ready and not spec.get("unschedulable"),
            cordoned=ready and bool(spec.get("unschedulable")),
            pool=labels.get(POOL_LABEL, ""),
            loan=NodeLoan.of(metadata.get("annotations") or {}),
            tainted=tainted(taints),
        )

    @property
    def key(self) -> Key:
        """Nodes are in no namespace."""
        return "", self.name


@dataclass(frozen=True, slots=True)
class OwnObject:
    """The operator's own Deployment, or its pod where that has none: where people look for what it says of itself."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: int

    @classmethod
    def of(cls, api_version: str, kind: str, raw: Raw) -> "OwnObject":
        """`raw` is the object as the API sends it."""
        metadata = raw["metadata"]
        return cls(api_version, kind, **identity(metadata))


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod that takes room on a node and is no TFJob's. `stays`: the node has it whatever it is used for."""

    namespace: str
    name: str
    uid: str
    version: int
    node: str
    requests: Resources
    stays: bool = False

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
            requests=requests_of(spec, raw.get("status") or {}),
            stays=any(o.get("controller") and o["kind"] in _STAY for o in metadata.get("ownerReferences") or ()),
        )

    @property
    def key(self) -> Key:
        """Its own name: it belongs to no job."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod without a node that is no TFJob's. `waits`: kube-scheduler has looked for one in vain, and is not about to
    make room for it by preemption."""

    namespace: str
    name: str
    uid: str
    version: int
    requests: Resources
    constraints: Constraints
    waits: bool

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "PendingPod":
        """Keep what decisions read of a pod as the API sends it."""
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        refused = any(
            c["type"] == "PodScheduled" and c["status"] == "False" and c.get("reason") == "Unschedulable"
            for c in status.get("conditions") or ()
        )
        going = "deletionTimestamp" in metadata or bool(status.get("nominatedNodeName"))
        return cls(
            **identity(metadata),
            requests=requests_of(spec),
            constraints=constraints_of(spec),
            waits=refused and not going,
        )

    @property
    def key(self) -> Key:
        """Its own name: it belongs to no job."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """The operator's configuration as the API server holds it; `text` is None where the key is missing. `wants`: what
    somebody says of how many nodes pools want, in an annotation of their own."""

    namespace: str
    name: str
    uid: str
    version: int
    text: str | None
    wants: str = ""

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
            wants=cut((metadata.get("annotations") or {}).get(WANT_ANNOTATION, ""), MAX_VALUE + 1),
        )

    @property
    def key(self) -> Key:
        """Its own name."""
        return self.namespace, self.name

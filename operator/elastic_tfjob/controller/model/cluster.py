"""Data of objects that do not belong to TFJobs: nodes, foreign pods, the operator's ConfigMap. Pure."""

import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast, get_args

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.reading import MAX_TEXT, MAX_VALUE, MAX_WORD, Fields, cut, describe
from elastic_tfjob.controller.model.affinity import constraints_of
from elastic_tfjob.controller.model.job import Key, identity, readable
from elastic_tfjob.controller.model.owned_objects import ORDER_LABEL
from elastic_tfjob.controller.model.quantities import allocatable, requests_of
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.scheduling.resources import NOTHING, Constraints, Resources, Taint

__all__ = [
    "ACTIVE_AND_BOUND",
    "AUTOSCALED_LABELS",
    "DRAINING_TAINTS",
    "LOANED_TAINT",
    "LOAN_ANNOTATION",
    "PENDING",
    "POOL_LABEL",
    "POOL_NAME",
    "WANT_ANNOTATION",
    "ConfigMap",
    "ForeignPod",
    "KubeNode",
    "NodeLoan",
    "OwnObject",
    "PendingPod",
    "Stage",
    "parse_wants",
    "tainted",
    "without_loaned",
]

# -- The loan of a node of another pool, as stored on the node ---------------------------------------------------------
# The admin's label, and the operator's taint and annotation. All data of a loan is on its node, so that any operator
# can continue it at any moment. Only the scheduling loop of the leader writes it. Other clients may change a node too,
# so taint and annotation are compared in every round.

POOL_LABEL: Final = f"{PREFIX}pool"
LOANED_TAINT: Final = f"{PREFIX}loaned"
LOAN_ANNOTATION: Final = f"{PREFIX}loan"
WANT_ANNOTATION: Final = f"{PREFIX}want-nodes"
POOL_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

Stage = Literal["loaned", "recalled", "returned"]
"""`loaned`: loanable jobs may run on the node. `recalled`: its pool wants it back, and jobs leave it. `returned`: it
belongs to its pool again, and is not lent again for a while."""
_STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class NodeLoan:
    """The loan of a node. `since` is when the stage began (RFC 3339). `pool` is the node's owner, even if its label has
    changed. `why` is the reason in words."""

    stage: Stage
    pool: str
    since: str
    why: str = ""

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> "NodeLoan | None":
        """Reads the loan from a node's annotations; None if there is none, or it is invalid."""
        text = annotations.get(LOAN_ANNOTATION)
        if text is None or len(text) > MAX_VALUE:
            return None
        try:
            raw = Fields(orjson.loads(text))
            stage, pool = cast("Stage", raw.word("stage", _STAGES)), raw.text("pool", MAX_WORD)
            since = raw.time("since")
            if since is None or not POOL_NAME.fullmatch(pool):
                return None
            return cls(stage, pool, since, raw.text("why"))
        except ValueError:
            return None

    def to_json(self) -> str:
        """Returns the annotation's text."""
        found = {"stage": self.stage, "pool": self.pool, "since": self.since, "why": cut(self.why, MAX_TEXT)}
        return orjson.dumps(found).decode()

    def age_s(self, now_s: float) -> float:
        """Returns the seconds in this stage; 0 if it began in the future, which happens when a clock was set back."""
        since = moment_of(self.since)
        return max(0.0, now_s - since.timestamp()) if since is not None else 0.0


def tainted(taints: Iterable[Taint]) -> bool:
    """Whether a node has the taint that keeps its pool's own pods away while it is lent."""
    return any(taint.key == LOANED_TAINT and taint.effect == "NoSchedule" for taint in taints)


def without_loaned(taints: Iterable[Taint]) -> list[Taint]:
    """Returns the taints without the loan's."""
    return [taint for taint in taints if taint.key != LOANED_TAINT]


def parse_wants(text: str) -> tuple[dict[str, int], list[str]]:
    """Parses `inference=3,search=1`, the least number of nodes that each pool should keep for itself. Returns the
    numbers by pool, and the problems found."""
    wants: dict[str, int] = {}
    if len(text) > MAX_VALUE:
        return {}, [f"{WANT_ANNOTATION} has {len(text)} characters; allowed: {MAX_VALUE}"]
    problems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        pool, _, number = part.partition("=")
        known = POOL_NAME.fullmatch(pool) and number.isascii() and number.isdecimal() and len(number) <= 9
        if known:
            wants[pool] = max(wants.get(pool, 0), int(number))
        else:
            problems.append(f"{WANT_ANNOTATION}: {describe(part)} is ignored; allowed: POOL=NODES, such as inference=3")
    return wants, problems


Raw = Mapping[str, Any]

# Field selector of the pods that take capacity on a node.
ACTIVE_AND_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
# Field selector of the pods that wait for a node.
PENDING = "spec.nodeName=,status.phase=Pending"
DRAINING_TAINTS: Final = (
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "cloud.google.com/impending-node-termination",
    "remediator.kubernetes.azure.com/unschedulable",
)
"""Keys of taints on a node that will be removed: autoscalers and notices of termination set them, most without a
cordon. Sources: karpenter `pkg/apis/v1/taints.go`, cluster-autoscaler `utils/taints/taints.go`,
aws-node-termination-handler `pkg/node/node.go`, AKS `node-auto-drain`."""
AUTOSCALED_LABELS: Final = frozenset(
    {
        "karpenter.sh/nodepool",
        "eks.amazonaws.com/nodegroup",
        "cloud.google.com/gke-nodepool",
        "kubernetes.azure.com/agentpool",
    }
)
"""Labels of nodes in groups that an autoscaler may change the size of."""
# Annotations by which a node asks autoscalers to keep it, and a pod to keep its node.
_KEPT = ("karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/scale-down-disabled")
# Controllers whose pods a node always has: DaemonSets, and the node itself for the kubelet's static pods.
_STAY = frozenset({"DaemonSet", "Node"})


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A node. `ready`: its pods run. `unschedulable`: `kubectl cordon`. `draining`: key of the taint which says that
    the node will be removed, or `deletionTimestamp`; empty: none. `deleted`: only a finalizer keeps it. `kept`: an
    annotation forbids autoscalers to remove it. `pool` is the admin's label; `loan` and `tainted` are the operator's
    annotation and taint for a loan."""

    name: str
    uid: str
    version: int
    allocatable: Resources
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    ready: bool
    unschedulable: bool = False
    draining: str = ""
    deleted: bool = False
    kept: bool = False
    namespace: str = ""
    pool: str = ""
    loan: NodeLoan | None = None
    tainted: bool = False

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "KubeNode":
        """Keeps what decisions read of a node in the API's form. Raises ValueError for an invalid one."""
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        labels = dict(metadata.get("labels") or {})
        taints = tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints") or ())
        annotations = metadata.get("annotations") or {}
        deleted = "deletionTimestamp" in metadata
        return cls(
            name=sys.intern(metadata["name"]),
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            allocatable=allocatable(status.get("allocatable") or {}),
            labels=labels,
            taints=taints,
            ready=ready,
            unschedulable=bool(spec.get("unschedulable")),
            draining=_draining(taints, DRAINING_TAINTS, deleted=deleted),
            deleted=deleted,
            kept=any(annotations.get(name) == "true" for name in _KEPT),
            pool=labels.get(POOL_LABEL, ""),
            loan=NodeLoan.of(annotations),
            tainted=tainted(taints),
        )

    @property
    def key(self) -> Key:
        """Empty namespace, and name."""
        return "", self.name

    @property
    def usable(self) -> bool:
        """Whether pods run on it, and more of them may come."""
        return self.ready and not self.unschedulable and not self.draining

    @property
    def cordoned(self) -> bool:
        """Whether pods run on it, but should leave, and no more of them may come."""
        return self.ready and not self.usable

    def with_draining(self, more: Collection[str]) -> "KubeNode":
        """The node if taints with these keys drain it, too."""
        found = _draining(self.taints, (*DRAINING_TAINTS, *more), deleted=self.deleted)
        return self if found == self.draining else replace(self, draining=found)


def _draining(taints: Iterable[Taint], keys: Collection[str], *, deleted: bool) -> str:
    """The first key of a taint that drains a node; empty: none. One that only prefers other nodes does not. A deleted
    node is still there only because a finalizer drains it, as Karpenter's does."""
    found = (taint.key for taint in taints if taint.key in keys and taint.effect != "PreferNoSchedule")
    return next(found, "deletionTimestamp" if deleted else "")


@dataclass(frozen=True, slots=True)
class OwnObject:
    """The operator's own Deployment, or its pod if there is no Deployment: the object to which events about the
    operator itself are attached."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: int

    @classmethod
    def of(cls, api_version: str, kind: str, raw: Raw) -> "OwnObject":
        """Reads the object in the API's form."""
        metadata = raw["metadata"]
        return cls(api_version, kind, **identity(metadata))


def _forbids_eviction(metadata: Raw) -> bool:
    """Whether a pod asks autoscalers not to evict it."""
    annotations = metadata.get("annotations") or {}
    return (
        annotations.get("karpenter.sh/do-not-disrupt") == "true"
        or annotations.get("cluster-autoscaler.kubernetes.io/safe-to-evict") == "false"
    )


def _gives_way(metadata: Raw, spec: Raw) -> bool:
    """Whether a pod is a placeholder, whose room is free: pods of jobs preempt it. Anybody may set the label, but the
    priority makes it true."""
    return ORDER_LABEL in (metadata.get("labels") or {}) and int(spec.get("priority") or 0) < 0


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod that takes capacity on a node and belongs to no TFJob. `stays`: the node always has it (a daemon or a
    static pod). `holds_node`: no autoscaler removes its node; it evicts pods of Deployments."""

    namespace: str
    name: str
    uid: str
    version: int
    node: str
    requests: Resources
    stays: bool = False
    holds_node: bool = False

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "ForeignPod":
        """Keeps what decisions read of a pod in the API's form. Raises ValueError for an invalid one."""
        metadata, spec = raw["metadata"], raw.get("spec") or {}
        requests = requests_of(spec, raw.get("status") or {})
        gives_way = _gives_way(metadata, spec)
        kind = next((o["kind"] for o in metadata.get("ownerReferences") or () if o.get("controller")), "")
        return cls(
            namespace=sys.intern(metadata["namespace"]),
            name=metadata["name"],
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            node=sys.intern(spec.get("nodeName") or ""),
            requests=NOTHING if gives_way else requests,
            stays=kind in _STAY,
            holds_node=not gives_way and kind not in _STAY and (kind != "ReplicaSet" or _forbids_eviction(metadata)),
        )

    @property
    def key(self) -> Key:
        """Namespace and the pod's own name, as it belongs to no job."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod without a node that belongs to no TFJob. `waits`: kube-scheduler has found no node for it, and is not about
    to preempt pods for it."""

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
        """Keeps what decisions read of a pod in the API's form. Raises ValueError for an invalid one."""
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
        """Namespace and the pod's own name, as it belongs to no job."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """The operator's configuration in the API server; `text` is None if the key is missing. `wants` is an annotation,
    written by another client, with the number of nodes that each pool wants."""

    namespace: str
    name: str
    uid: str
    version: int
    text: str | None
    wants: str = ""

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "ConfigMap":
        """Keeps the one key that is read. Raises ValueError for an invalid object."""
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
        """Namespace and name."""
        return self.namespace, self.name

"""Data of objects that do not belong to TFJobs: nodes, foreign pods, the operator's ConfigMap. Pure."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
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
    "AVOIDED_TAINTS",
    "DRAINING_TAINTS",
    "LOANED_TAINT",
    "LOAN_ANNOTATION",
    "PENDING",
    "POOL_LABEL",
    "POOL_NAME",
    "SHUTTING_DOWN",
    "SPOT_LABELS",
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
DRAINING_TAINTS: Final[Mapping[str, float | None]] = {
    "karpenter.sh/disrupted": 120.0,
    "ToBeDeletedByClusterAutoscaler": 120.0,
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": 120.0,
    "cloud.google.com/impending-node-termination": 15.0,
    "remediator.kubernetes.azure.com/unschedulable": 30.0,
}
"""Keys of taints on a node that will be removed, with the seconds from the taint to the end of its pods: autoscalers
and notices of termination set them, most without a cordon. Sources: karpenter `pkg/apis/v1/taints.go`,
cluster-autoscaler `utils/taints/taints.go`, aws-node-termination-handler `pkg/node/node.go`, AKS `node-auto-drain`;
GKE's pods have 15 of its 30 s."""
_WAIT_FOR_BUDGETS: Final = frozenset({"karpenter.sh/disrupted"})
# On a node that is not spot, these drains wait until the PodDisruptionBudgets allow them, however long.
SHUTTING_DOWN: Final = "node is shutting down"
"""The kubelet's message while it ends its pods before the machine stops. As a sign of a removal it needs no taint."""
_SHUTDOWN_S: Final = 15.0
# Seconds that pods have in such a shutdown on GKE.
AVOIDED_TAINTS: Final = frozenset(
    {"DeletionCandidateOfClusterAutoscaler", "aws-node-termination-handler/rebalance-recommendation"}
)
"""Keys of taints on a node that may be removed soon."""
SPOT_LABELS: Final = frozenset(
    {
        ("karpenter.sh/capacity-type", "spot"),
        ("eks.amazonaws.com/capacityType", "SPOT"),
        ("cloud.google.com/gke-spot", "true"),
        ("cloud.google.com/gke-preemptible", "true"),
        ("kubernetes.azure.com/scalesetpriority", "spot"),
    }
)
"""Labels of nodes that their owner may take away at any time."""
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
    """A node. `ready`: its pods run. `unschedulable`: `kubectl cordon`. `draining`: the sign which says that the node
    will be removed, the key of a taint, SHUTTING_DOWN or `deletionTimestamp`; empty: none. `draining_since_s` is when
    the sign was set (Unix time) as far as the object says it, `notice_s` the seconds from then to the end of its pods;
    None: no limit is known. `spot`: its owner may take it away at any time. `avoid`: it may be removed soon. `deleted`:
    only a finalizer keeps it. `kept`: an annotation forbids autoscalers to remove it. `pool` is the admin's label;
    `loan` and `tainted` are the operator's annotation and taint for a loan."""

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
    draining_since_s: float | None = None
    notice_s: float | None = None
    spot: bool = False
    avoid: bool = False
    namespace: str = ""
    pool: str = ""
    loan: NodeLoan | None = None
    tainted: bool = False

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "KubeNode":
        """Keeps what decisions read of a node in the API's form. Raises ValueError for an invalid one."""
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        kubelet: Raw = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
        shuts_down = kubelet.get("status") == "False" and SHUTTING_DOWN in str(kubelet.get("message"))
        labels = dict(metadata.get("labels") or {})
        taints = tuple(Taint(t["key"], t.get("value", ""), t["effect"]) for t in spec.get("taints") or ())
        annotations = metadata.get("annotations") or {}
        found = cls(
            name=sys.intern(metadata["name"]),
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            allocatable=allocatable(status.get("allocatable") or {}),
            labels=labels,
            taints=taints,
            ready=kubelet.get("status") == "True" or shuts_down,
            unschedulable=bool(spec.get("unschedulable")),
            draining=SHUTTING_DOWN if shuts_down else "",
            draining_since_s=_time_s(kubelet.get("lastTransitionTime")) if shuts_down else _tainted_s(metadata, spec),
            avoid=any(taint.key in AVOIDED_TAINTS for taint in taints),
            deleted="deletionTimestamp" in metadata,
            kept=any(annotations.get(name) == "true" for name in _KEPT),
            pool=labels.get(POOL_LABEL, ""),
            loan=NodeLoan.of(annotations),
            tainted=tainted(taints),
        )
        return found.configured({}, "")

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

    def gone_s(self, seen_s: float | None = None) -> float | None:
        """The Unix time at which its pods end; None: not known. `seen_s`: when the sign was first seen."""
        known = [at for at in (self.draining_since_s, seen_s) if at is not None]
        return min(known) + self.notice_s if self.draining and self.notice_s is not None and known else None

    def configured(self, draining: Mapping[str, float | None], spot: str) -> "KubeNode":
        """The node if taints with the keys of `draining`, too, say that it will be removed, after so many seconds
        (None: no limit is known), and if nodes that the selector `spot` matches, too, may be taken away at any
        time."""
        cheap = not SPOT_LABELS.isdisjoint(self.labels.items()) or selects(spot, self.labels)
        sign = self.draining
        notice_s: float | None = _SHUTDOWN_S
        if sign != SHUTTING_DOWN:
            waits = () if cheap else _WAIT_FOR_BUDGETS
            signs = {**DRAINING_TAINTS, **dict.fromkeys(waits), **draining}
            drains = [t.key for t in self.taints if t.key in signs and t.effect != "PreferNoSchedule"]
            # A deleted node is there only because a finalizer drains it, as Karpenter's does.
            none = "deletionTimestamp" if self.deleted else ""
            # Of several signs the shortest notice counts.
            sign = min(drains, key=lambda each: signs[each] or inf, default=none)
            notice_s = signs.get(sign)
        found = replace(self, draining=sign, notice_s=notice_s, spot=cheap)
        return self if found == self else found


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether labels match a selector, `KEY` or `KEY=VALUE` separated by commas; an empty one matches nothing."""
    parts = [part.strip().partition("=") for part in selector.split(",") if part.strip()]
    return bool(parts) and all(key in labels and (not equals or labels[key] == value) for key, equals, value in parts)


_SINCE: Final = re.compile(r"[0-9]{9,10}")
# The cluster autoscaler's taint has the Unix time at which it was set as its value.


def _time_s(text: object) -> float | None:
    """The Unix time of a timestamp; None for anything else."""
    found = moment_of(text) if isinstance(text, str) and len(text) <= MAX_WORD else None
    return None if found is None else found.timestamp()


def _tainted_s(metadata: Raw, spec: Raw) -> float | None:
    """When a node's taints were last changed (Unix time), as far as the object says it; None: not at all."""
    drains = [taint for taint in spec.get("taints") or () if taint["effect"] != "PreferNoSchedule"]
    known = [_time_s(taint.get("timeAdded")) for taint in drains]
    known += [float(value) for t in drains if _SINCE.fullmatch(value := str(t.get("value") or ""))]
    known += [
        _time_s(each.get("time"))
        for each in metadata.get("managedFields") or ()
        if "f:taints" in ((each.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    return max((at for at in known if at is not None), default=None)


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

"""What the operator keeps of objects that are not TFJobs' own: nodes, other people's pods, its ConfigMap. Pure."""

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.reading import MAX_TEXT, MAX_VALUE, MAX_WORD, Fields, cut, describe
from elastic_tfjob.controller.model.affinity import constraints_of
from elastic_tfjob.controller.model.job import Key, identity, readable
from elastic_tfjob.controller.model.quantities import allocatable, requests_of
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.scheduling.resources import Constraints, Resources, Taint

__all__ = [
    "ACTIVE_AND_BOUND",
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

# -- The loan of a node of another pool, as it stands on the node ------------------------------------------------------
# The admin's label, and the operator's taint and annotation.
#
# All that is known of a loan is on its node, so that any operator can go on with it at any moment. The scheduling loop
# of the leader is the only writer. Others may change a node, too: so taint and annotation are compared each time.

POOL_LABEL: Final = f"{PREFIX}pool"
LOANED_TAINT: Final = f"{PREFIX}loaned"
LOAN_ANNOTATION: Final = f"{PREFIX}loan"
WANT_ANNOTATION: Final = f"{PREFIX}want-nodes"
POOL_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

Stage = Literal["loaned", "recalled", "returned"]
"""`loaned`: loanable jobs may run there. `recalled`: it is wanted back, and jobs leave it. `returned`: it is its pool's
again, and not lent anew for a while."""
_STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class NodeLoan:
    """`since`: of the stage, RFC 3339. `pool`: whose node it is, whatever its label says by now. `why`: in words."""

    stage: Stage
    pool: str
    since: str
    why: str = ""

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> "NodeLoan | None":
        """What a node's annotations say; None where there is nothing, or nonsense."""
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
        """The annotation."""
        found = {"stage": self.stage, "pool": self.pool, "since": self.since, "why": cut(self.why, MAX_TEXT)}
        return orjson.dumps(found).decode()

    def age_s(self, now_s: float) -> float:
        """Seconds in this stage; 0 for a time to come, which a clock that was set back leaves behind."""
        since = moment_of(self.since)
        return max(0.0, now_s - since.timestamp()) if since is not None else 0.0


def tainted(taints: Iterable[Taint]) -> bool:
    """Whether a node has the taint that keeps the pods of its pool away while it is lent."""
    return any(taint.key == LOANED_TAINT and taint.effect == "NoSchedule" for taint in taints)


def without_loaned(taints: Iterable[Taint]) -> list[Taint]:
    """The taints of others."""
    return [taint for taint in taints if taint.key != LOANED_TAINT]


def parse_wants(text: str) -> tuple[dict[str, int], list[str]]:
    """`inference=3,search=1`: the least number of nodes that a pool shall have for itself; and what is wrong there."""
    wants: dict[str, int] = {}
    if len(text) > MAX_VALUE:
        return {}, [f"{WANT_ANNOTATION} has {len(text)} characters, allowed are {MAX_VALUE}"]
    problems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        pool, _, number = part.partition("=")
        known = POOL_NAME.fullmatch(pool) and number.isascii() and number.isdecimal() and len(number) <= 9
        if known:
            wants[pool] = max(wants.get(pool, 0), int(number))
        else:
            problems.append(f"{WANT_ANNOTATION}: {describe(part)} is ignored: allowed is POOL=NODES, as in inference=3")
    return wants, problems


Raw = Mapping[str, Any]

# Field selector of the pods that take room on a node.
ACTIVE_AND_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
# Of those that wait for one.
PENDING = "spec.nodeName=,status.phase=Pending"
# Controllers whose pods a node has whatever it is used for: its daemons, and the kubelet's static pods.
_STAY = frozenset({"DaemonSet", "Node"})


@dataclass(frozen=True, slots=True)
class KubeNode:
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
    def parse(cls, raw: Raw) -> "KubeNode":
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

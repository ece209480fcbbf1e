"""Kueue's objects, as far as decisions read them, and what a TFJob's user reads of its growth. Pure.

A TFJob with a Kueue queue has a *base Workload*, which Kueue creates: its counts are the declared replicas. The
operator adds *growth Workloads*, each for one more replica (planning/growth.py).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.api.reading import MAX_REPLICAS, MAX_TEXT, MAX_WORD, Fields, cut
from elastic_tfjob.api.tfjob import GROUP, KIND
from elastic_tfjob.controller.model.annotations import GROWTH_ANNOTATION, read_annotation, shorten_reason
from elastic_tfjob.controller.model.job import Key, Raw, controller_uid, identity, readable, short_word
from elastic_tfjob.controller.model.target import Counts, read_counts
from elastic_tfjob.scheduling.reasons import Why, read_reason

__all__ = ["GROWTH_LABEL", "Cohort", "Growth", "LocalQueue", "PodSetUsage", "Queue", "Quota", "Workload", "WorkloadKey"]

GROWTH_LABEL: Final = f"{PREFIX}growth-of"
"""On a growth Workload: the name of its TFJob."""

_MOST: Final = 64
"""Flavors, resources and pod sets that are read of one object: Kueue allows no more."""


_TOPOLOGY: Final = frozenset({"required", "preferred", "unconstrained"})
"""Keys of a topologyRequest that asks for something; Kueue writes other ones to each Workload."""


class Quota(NamedTuple):
    """A resource of a flavor."""

    flavor: str
    resource: str


WorkloadKey = tuple[str, str]
"""Namespace and name of a Workload."""


@dataclass(frozen=True, slots=True)
class PodSetUsage:
    """What Kueue reserves for one replica of a pod set, and of which flavors."""

    usage: Mapping[Quota, Decimal]

    @property
    def flavors(self) -> frozenset[Quota]:
        return frozenset(self.usage)


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload. `job`: the name of its TFJob; empty if it is of something else. `growth`: it is one that the operator
    created, and `owner` is then the uid of the base Workload, else of the TFJob. `counts`: replicas by pod set, which
    has the replica type's name in lower case. `usage`: by pod set, what is reserved for one replica; empty: no quota is
    reserved. `reclaimed`: by pod set, replicas whose quota was returned. `why`: the message of the condition `Evicted`,
    else of `QuotaReserved`. `topology`: its pods are placed by Kueue."""

    namespace: str
    name: str
    uid: str
    version: int
    job: str = ""
    owner: str = ""
    growth: bool = False
    created: str = ""
    terminating: bool = False
    queue: str = ""
    cluster_queue: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, PodSetUsage] = field(default_factory=dict)
    reclaimed: Mapping[str, int] = field(default_factory=dict)
    admitted: bool = False
    evicted: bool = False
    ready: bool = False
    why: str = ""
    topology: bool = False

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Workload":
        """Keeps what decisions read of a Workload in the API's form (v1beta2). Raises ValueError for an invalid one."""
        metadata = raw["metadata"]
        label = (metadata.get("labels") or {}).get(GROWTH_LABEL, "")
        job = label or _tfjob(metadata)
        if not job:
            return cls(**identity(metadata))
        spec, status = raw.get("spec") or {}, raw.get("status") or {}
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        admission = status.get("admission") or {}
        assigned = (admission.get("podSetAssignments") or ())[:_MOST]
        pod_sets = (spec.get("podSets") or ())[:_MOST]
        evicted = _holds(conditions, "Evicted")
        about = conditions.get("Evicted" if evicted else "QuotaReserved") or {}
        return cls(
            **identity(metadata),
            job=job,
            owner=controller_uid(metadata),
            growth=bool(label),
            created=short_word(metadata.get("creationTimestamp")),
            terminating="deletionTimestamp" in metadata,
            queue=sys.intern(spec.get("queueName") or ""),
            cluster_queue=sys.intern(admission.get("clusterQueue") or ""),
            counts={each["name"]: _count(each.get("count")) for each in pod_sets},
            usage={each["name"]: _usage(each) for each in assigned},
            reclaimed={
                each["name"]: _count(each.get("count")) for each in (status.get("reclaimablePods") or ())[:_MOST]
            },
            admitted=_holds(conditions, "Admitted"),
            evicted=evicted,
            ready=_holds(conditions, "PodsReady"),
            why=cut(str(about.get("message") or ""), MAX_TEXT),
            topology=any(not _TOPOLOGY.isdisjoint(each.get("topologyRequest") or {}) for each in pod_sets)
            or any(each.get("topologyAssignment") for each in assigned),
        )

    @property
    def key(self) -> Key:
        """Namespace and name of the Workload's TFJob; an empty name: it has none."""
        return self.namespace, self.job

    @property
    def reserved(self) -> bool:
        """Whether quota is reserved for it."""
        return bool(self.usage)


def _tfjob(metadata: Raw) -> str:
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == KIND:
            return str(reference["name"]) if str(reference.get("apiVersion")).startswith(f"{GROUP}/") else ""
    return ""


def _holds(conditions: Mapping[str, Raw], name: str) -> bool:
    return (conditions.get(name) or {}).get("status") == "True"


def _count(written: object) -> int:
    return written if isinstance(written, int) and 0 <= written <= MAX_REPLICAS else 0


def _usage(assignment: Raw) -> PodSetUsage:
    """What is reserved for one replica. Kueue gives the sum over the admitted ones."""
    flavors, amounts = assignment.get("flavors") or {}, assignment.get("resourceUsage") or {}
    count = max(1, _count(assignment.get("count")))
    return PodSetUsage(
        {
            Quota(sys.intern(flavor), sys.intern(resource)): quantity(amounts.get(resource, "0")) / count
            for resource, flavor in list(flavors.items())[:_MOST]
        }
    )


@dataclass(frozen=True, slots=True)
class Queue:
    """A ClusterQueue. `checks`: admission needs more than quota. `pending`: Workloads that wait for it. `nominal`,
    `used` and `most_borrowed` are by flavor and resource; a resource without the last one has no limit."""

    name: str
    uid: str
    version: int
    cohort: str = ""
    checks: bool = False
    active: bool = True
    pending: int = 0
    nominal: Mapping[Quota, Decimal] = field(default_factory=dict)
    most_borrowed: Mapping[Quota, Decimal] = field(default_factory=dict)
    used: Mapping[Quota, Decimal] = field(default_factory=dict)
    namespace: str = ""

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Queue":
        """Keeps what decisions read of a ClusterQueue in the API's form (v1beta2). Raises ValueError for an invalid
        one."""
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        nominal, most_borrowed = _quotas(spec)
        return cls(
            name=sys.intern(metadata["name"]),
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            cohort=sys.intern(spec.get("cohortName") or ""),
            checks=bool((spec.get("admissionChecksStrategy") or {}).get("admissionChecks")),
            active=_holds(conditions, "Active") and spec.get("stopPolicy", "None") == "None",
            pending=int(status.get("pendingWorkloads") or 0),
            nominal=nominal,
            most_borrowed=most_borrowed,
            used={
                Quota(sys.intern(flavor["name"]), sys.intern(each["name"])): quantity(each.get("total", "0"))
                for flavor in (status.get("flavorsReservation") or ())[:_MOST]
                for each in (flavor.get("resources") or ())[:_MOST]
            },
        )

    @property
    def key(self) -> Key:
        """Empty namespace, and name."""
        return "", self.name


def _quotas(spec: Raw) -> tuple[dict[Quota, Decimal], dict[Quota, Decimal]]:
    nominal: dict[Quota, Decimal] = {}
    most_borrowed: dict[Quota, Decimal] = {}
    for group in (spec.get("resourceGroups") or ())[:_MOST]:
        for flavor in (group.get("flavors") or ())[:_MOST]:
            for each in (flavor.get("resources") or ())[:_MOST]:
                of = Quota(sys.intern(flavor["name"]), sys.intern(each["name"]))
                nominal[of] = quantity(each.get("nominalQuota", "0"))
                if each.get("borrowingLimit") is not None:
                    most_borrowed[of] = quantity(each["borrowingLimit"])
    return nominal, most_borrowed


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """A LocalQueue: the queue that a job names. `active`: it admits Workloads."""

    namespace: str
    name: str
    uid: str
    version: int
    cluster_queue: str
    active: bool

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "LocalQueue":
        """Keeps what decisions read. Raises ValueError for an invalid object."""
        spec = raw.get("spec") or {}
        return cls(
            **identity(raw["metadata"]),
            cluster_queue=sys.intern(spec.get("clusterQueue") or ""),
            active=spec.get("stopPolicy", "None") == "None",
        )

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Cohort:
    """A Cohort that has an object of its own: its parent, and the quota that it adds."""

    name: str
    uid: str
    version: int
    parent: str
    nominal: Mapping[Quota, Decimal]
    namespace: str = ""

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "Cohort":
        """Keeps what decisions read. Raises ValueError for an invalid object."""
        metadata, spec = raw["metadata"], raw.get("spec") or {}
        return cls(
            name=sys.intern(metadata["name"]),
            uid=metadata["uid"],
            version=int(metadata["resourceVersion"]),
            parent=sys.intern(spec.get("parentName") or ""),
            nominal=_quotas(spec)[0],
        )

    @property
    def key(self) -> Key:
        """Empty namespace, and name."""
        return "", self.name


# -- What a job's user reads: the annotation `growth` ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Growth:
    """The replicas per type that Kueue admits for a job at the moment, and why it has no more; an empty reason: the
    profile wants no more. Only people and the command line read it: a user could write any number here."""

    admitted: Counts
    reason: Why = ""

    def __post_init__(self) -> None:
        shorten_reason(self)

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str) -> "Growth | None":
        """Reads the annotation; None if it is missing, or belongs to a job with a different uid. Raises ValueError for
        invalid text, and nothing else."""
        return read_annotation("growth", annotations.get(GROWTH_ANNOTATION), uid, _growth)

    def to_json(self, uid: str) -> str:
        """Returns the annotation's text, for the job with this uid."""
        written: dict[str, Any] = {"admitted": dict(self.admitted), "uid": uid}
        if self.reason:
            written["reason"] = self.reason
        return orjson.dumps(written).decode()


def _growth(raw: Fields) -> Growth:
    admitted = {cut(name, MAX_WORD): n for name, n in read_counts(raw, "admitted", required=True).items()}
    return Growth(admitted, read_reason(raw))

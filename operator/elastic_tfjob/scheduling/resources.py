"""Resource vectors of nodes and replicas, and the constraints that say where a pod may run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Resources(NamedTuple):
    """`cpu` in millicores, `memory` in bytes, `accelerators` in whole devices, `pods`, and ephemeral `storage` in
    bytes: the units of the whole decision core. Integers, so that sums are exact.

    Pods and storage only decide whether a replica fits a node. Where they are unknown, as in traces, they are 0 on both
    sides.
    """

    cpu: int = 0
    memory: int = 0
    accelerators: int = 0
    pods: int = 0
    storage: int = 0

    def plus(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.accelerators + other.accelerators,
            self.pods + other.pods,
            self.storage + other.storage,
        )

    def minus(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu - other.cpu,
            self.memory - other.memory,
            self.accelerators - other.accelerators,
            self.pods - other.pods,
            self.storage - other.storage,
        )

    def times(self, n: int) -> "Resources":
        return Resources(self.cpu * n, self.memory * n, self.accelerators * n, self.pods * n, self.storage * n)

    def positive(self) -> "Resources":
        """With negative amounts replaced by 0."""
        return Resources(*(max(0, part) for part in self))

    def within(self, other: "Resources") -> bool:
        """Whether every component is at most the other's."""
        return (
            self.cpu <= other.cpu
            and self.memory <= other.memory
            and self.accelerators <= other.accelerators
            and self.pods <= other.pods
            and self.storage <= other.storage
        )

    def dominant_share(self, of: "Resources") -> float:
        """The largest share of CPU, memory or accelerators of `of` (Ghodsi et al., NSDI'11). A resource that `of` lacks
        counts as 0."""
        return max((mine / all_ for mine, all_ in zip(self[:3], of[:3], strict=True) if all_ > 0), default=0.0)


NOTHING = Resources()


def total_of(amounts: Iterable[Resources]) -> Resources:
    """The sum of these vectors."""
    total = NOTHING
    for amount in amounts:
        total = total.plus(amount)
    return total


def maximal(vectors: Sequence[Resources]) -> list[Resources]:
    """The vectors that no other dominates: a demand that fits any of `vectors` fits one of these."""
    distinct = sorted(set(vectors), reverse=True)
    return [v for v in distinct if not any(v != w and v.within(w) for w in distinct)]


# -- Where a pod may run at all ----------------------------------------------------------------------------------------
# NodeSelector, required node affinity and taints, as Kubernetes defines them.

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
_INT64 = re.compile(r"[+-]?[0-9]{1,19}")
HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """An empty key with `Exists` tolerates everything; an empty effect matches all effects."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator == "Exists":
            return not self.key or self.key == taint.key
        return self.key == taint.key and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One matchExpression over node labels."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Gt" | "Lt":
                have, limit = _whole(value), _whole(self.values[0] if self.values else None)
                if have is None or limit is None:
                    return False
                return have > limit if self.operator == "Gt" else have < limit


def _whole(text: str | None) -> int | None:
    """The operand of `Gt` or `Lt` as kube-scheduler reads it: a decimal 64-bit integer; else None. Longer texts are not
    converted, since this runs once per node and 4,000 digits take 0.1 ms."""
    if text is None or not _INT64.fullmatch(text):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


@dataclass(frozen=True, slots=True)
class Constraints:
    """`affinity` is requiredDuringScheduling: any one term must match, a term needs all of its requirements."""

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    def admit(self, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> bool:
        """Whether a pod with these constraints may be bound to a node with these labels and taints."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        if self.affinity and not any(term and all(r.matches(labels) for r in term) for term in self.affinity):
            return False
        return all(
            any(toleration.tolerates(taint) for toleration in self.tolerations)
            for taint in taints
            if taint.effect in HARD_EFFECTS
        )


ANYWHERE = Constraints()

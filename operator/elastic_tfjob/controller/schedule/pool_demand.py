"""How many lent nodes the pods that wait in a pool need back. Pure.

First fit, the largest pods first. kube-scheduler decides where they really go; this only has to know whether a node
that comes back would help them. A pod that fits beside others on nodes that the pool has, or on one that is on its way
back, recalls nothing more; nor does one that fits on no node of the pool.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from elastic_tfjob.controller.objects.cluster import PendingPod
from elastic_tfjob.scheduling.constraints import Constraints, Taint
from elastic_tfjob.scheduling.resources import Resources

__all__ = ["MAX_PODS", "MAX_SHAPES", "MAX_TERMS", "Bin", "Needed", "needed"]

MAX_PODS: Final = 2_000
"""Pending pods of one pool that are looked at."""
MAX_SHAPES: Final = 64
"""Different requests and constraints of pending pods of one pool that are looked at: each is held against each node."""
MAX_TERMS: Final = 64
"""Labels, values and tolerations that a pod may go by; one that goes by more is not looked at."""


@dataclass(slots=True)
class Bin:
    """A node and its free room, as the pool's own pods would find it."""

    name: str
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    free: Resources


@dataclass(frozen=True, slots=True)
class Needed:
    """`kept`: nodes of the pool where pending pods have room; `recalled`: lent nodes that they need, of which `named`
    ones cannot be exchanged for others. How many pods are in `room`, are a `recall`, and fit `nowhere`; which did not
    fit is in `left`."""

    kept: frozenset[str]
    recalled: tuple[str, ...]
    named: frozenset[str]
    room: int
    recall: int
    nowhere: int
    left: tuple[PendingPod, ...]


def needed(pods: Iterable[PendingPod], open_: Sequence[Bin], lent: Sequence[Bin]) -> Needed:
    """Put `pods` on the nodes `open_` that the pool has or gets back, then on nodes `lent`, in this order. Takes from
    the bins' room."""
    shapes: dict[tuple[Resources, Constraints], list[PendingPod]] = {}
    looked_at, beyond = 0, 0
    for pod in pods:
        shape = pod.requests, pod.constraints
        if (
            looked_at >= MAX_PODS
            or _terms(pod.constraints) > MAX_TERMS
            or (shape not in shapes and len(shapes) >= MAX_SHAPES)
        ):
            beyond += 1
            continue
        looked_at += 1
        shapes.setdefault(shape, []).append(pod)
    kept: set[str] = set()
    recalled: dict[str, None] = {}
    named: set[str] = set()
    left: list[PendingPod] = []
    count = Counter[str]()
    for (request, constraints), wanting in sorted(shapes.items(), key=lambda item: _size(item[0][0]), reverse=True):
        n = len(wanting)
        for bin_ in open_:
            if n and (took := _fill(bin_, request, constraints, n)):
                kept.add(bin_.name)
                count["room"] += took
                n -= took
        fits = [bin_ for bin_ in lent if n and _holds(bin_, request, constraints)]
        # Nodes that are recalled anyway first.
        for bin_ in sorted(fits, key=lambda each: each.name not in recalled):
            if n and (took := _fill(bin_, request, constraints, n)):
                recalled.setdefault(bin_.name)
                if len(fits) < len(lent):
                    named.add(bin_.name)
                count["recall"] += took
                n -= took
        left += wanting[len(wanting) - n :]
    return Needed(
        frozenset(kept),
        tuple(recalled),
        frozenset(named),
        count["room"],
        count["recall"],
        len(left) + beyond,
        tuple(left),
    )


def _terms(found: Constraints) -> int:
    affinity = sum(1 + len(requirement.values) for term in found.affinity for requirement in term)
    return len(found.selector) + affinity + len(found.tolerations)


def _size(request: Resources) -> tuple[int, int, int]:
    return request.accelerators, request.cpu, request.memory


def _holds(bin_: Bin, request: Resources, constraints: Constraints) -> bool:
    return request.within(bin_.free) and constraints.admit(bin_.labels, bin_.taints)


def _fill(bin_: Bin, request: Resources, constraints: Constraints, most: int) -> int:
    """How many of these go there; takes their room."""
    if not _holds(bin_, request, constraints):
        return 0
    fits = min((have // each for have, each in zip(bin_.free, request, strict=True) if each > 0), default=most)
    took = min(most, fits)
    bin_.free = bin_.free.minus(request.times(took))
    return took

"""Which pods a size has, where they are not the pods 0 to n-1 of each type. Pure.

A replica that moves to another node gets a pod with another index: a pod of the same name cannot run on two nodes at
once. Its task in the cluster stays the same. So a size of two workers may have the pods worker-0 (task 0) and worker-2
(task 1).

They are kept in an annotation of their own, by generation, and `state` says so many replicas that an operator which
does not know this annotation keeps all of these pods: it may create pods for the indexes between, which nobody uses.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import orjson

from elastic_tfjob.api.fields import Fields
from elastic_tfjob.api.limits import MAX_ANNOTATION_BYTES, MAX_REPLICAS

__all__ = ["INDEXES_ANNOTATION", "Indexes", "as_text", "numbered", "parse", "position", "resized", "spans"]

INDEXES_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/indexes"

Indexes = Mapping[str, tuple[int, ...]]
"""Pod indexes per type, in the order of the tasks; a type that is missing has the pods 0 to n-1."""


def numbered(replicas: Mapping[str, int], indexes: Indexes, name: str) -> Sequence[int]:
    """The pod indexes of a type, in the order of its tasks."""
    found = indexes.get(name)
    return range(replicas.get(name, 0)) if found is None else found


def position(replicas: Mapping[str, int], indexes: Indexes, name: str, index: int) -> int | None:
    """The task of the pod with this index; None for a pod that is not part of the size."""
    pods = numbered(replicas, indexes, name)
    return pods.index(index) if index in pods else None


def resized(pods: Sequence[int], count: int) -> tuple[int, ...]:
    """The pods of a type once it has `count` tasks: the first ones stay, and each that is added gets the lowest index
    that is free."""
    kept = tuple(pods[:count])
    used = set(kept)
    free = (index for index in range(count) if index not in used)
    return (*kept, *(next(free) for _ in range(count - len(kept))))


def spans(replicas: Mapping[str, int], indexes: Indexes) -> dict[str, int]:
    """How many pods each type has with those between."""
    return {name: max(numbered(replicas, indexes, name), default=-1) + 1 for name in replicas}


def simplest(found: Indexes) -> dict[str, tuple[int, ...]]:
    """Without the types that have the pods 0 to n-1."""
    return {name: pods for name, pods in found.items() if pods != tuple(range(len(pods)))}


def as_text(sizes: Iterable[tuple[int, Indexes]]) -> str | None:
    """The annotation's text for these sizes by generation; None where it has nothing to say."""
    told = {str(generation): indexes for generation, indexes in sizes if indexes}
    return orjson.dumps(told).decode() if told else None


def parse(text: str | None, generation: int, written: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The indexes of the size of this generation, whose state has so many replicas written. What makes no sense, or is
    of another size, counts as not there: never raises."""
    if text is None or len(text) > MAX_ANNOTATION_BYTES:
        return {}
    try:
        raw = Fields(orjson.loads(text)).within(str(generation))
        if raw is None:
            return {}
        # A name that the state does not have is of a newer operator, or nonsense, and costs no other.
        found = {name: _pods(raw, name, written[name]) for name in raw.names() if name in written}
    except ValueError:
        return {}
    return simplest({name: pods for name, pods in found.items() if pods is not None})


def _pods(raw: Fields, name: str, span: int) -> tuple[int, ...] | None:
    pods = raw.items(name, MAX_REPLICAS)
    if not pods or any(type(index) is not int or index < 0 for index in pods):
        return None
    return tuple(pods) if len(set(pods)) == len(pods) and max(pods) + 1 == span else None

"""What the operator keeps in annotations: their names, whose they are, and how one is read and written. Pure.

All of an elastic job's memory is in `target` (target.py) and `state` (state.py), so that any replica of the operator
can go on with it after any crash. Each datum has one writer: the scheduling loop writes `target`, the reconcile loop
writes `state` and the pods' commands (command.py).

Users can write all of them too, or copy them from another job. So each value is read with its type and bounds
(api/reading.py), and only ValueError comes out of reading, with a message that names the key. A newer operator may have
written what this one does not know: unknown keys are passed over, and an unknown word that matters (a phase, a mode) is
told from nonsense as UnknownWord.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.reading import MAX_ANNOTATION_BYTES, MAX_REPLICAS, MAX_TEXT, Fields, UnknownWord, cut
from elastic_tfjob.controller.model.speed_checks import CAUSES_ANNOTATION, EXPECTS_ANNOTATION, OUTCOMES_ANNOTATION

__all__ = ["INDEXES_ANNOTATION", "Indexes", "as_text", "numbered", "parse", "position", "resized", "spans"]

# -- Which pods a size has, where they are not the pods 0 to n-1 of each type ------------------------------------------
# A replica that moves to another node gets a pod with another index: a pod of the same name cannot run on two nodes at
# once. Its task in the cluster stays the same. So a size of two workers may have the pods worker-0 (task 0) and
# worker-2 (task 1).
#
# They are kept in an annotation of their own, by generation, and `state` says so many replicas that an operator which
# does not know this annotation keeps all of these pods: it may create pods for the indexes between, which nobody uses.

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


TARGET_ANNOTATION: Final = f"{PREFIX}target"
STATE_ANNOTATION: Final = f"{PREFIX}state"
STEP_ANNOTATION: Final = f"{PREFIX}step"
ETA_ANNOTATION: Final = f"{PREFIX}eta"
# The job that all of these are of. Under another prefix: an older operator would call it an unknown one of the user's.
UID_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/uid"
_OF_THE_JOB: Final = (
    TARGET_ANNOTATION,
    STATE_ANNOTATION,
    STEP_ANNOTATION,
    ETA_ANNOTATION,
    INDEXES_ANNOTATION,
    CAUSES_ANNOTATION,
    EXPECTS_ANNOTATION,
    OUTCOMES_ANNOTATION,
)

T = TypeVar("T")


class _Reasoned(Protocol):
    @property
    def reason(self) -> str: ...


def without_empty(found: object, *optional: str) -> str:
    """The JSON of an annotation, without these keys where they say nothing: most have no use for them."""
    text = orjson.dumps(found).decode()
    for name in optional:
        if not getattr(found, name) and getattr(found, name) != 0:
            # In a text of JSON's own a quote would have a backslash before it.
            text = text.replace(f',"{name}":{orjson.dumps(getattr(found, name)).decode()}', "")
    return text


def bytes_of(annotations: Mapping[str, str], *, but: Collection[str]) -> int:
    """What annotations take of MAX_ANNOTATION_BYTES, without those of these names."""
    return sum(len(name.encode()) + len(text.encode()) for name, text in annotations.items() if name not in but)


def mine(annotations: Mapping[str, str], uid: str) -> bool:
    """Whether target and state are of the job with this uid, and no copy from another one (`kubectl get -o yaml`,
    changed and applied). Without a uid they were written by an operator that knew of none, and count."""
    return annotations.get(UID_ANNOTATION, uid) == uid


def claim(annotations: Mapping[str, str], uid: str) -> dict[str, str | None]:
    """What to write together with a target or state, so that it counts as of the job with this uid: the uid, and None
    for what is a copy from another job. An annotation of its own and no key of the JSON: operators before this one
    refuse a state with a key that they do not know, and would begin a running job anew after a downgrade."""
    if annotations.get(UID_ANNOTATION) == uid:
        return {}
    copied = () if mine(annotations, uid) else _OF_THE_JOB
    return {UID_ANNOTATION: uid, **{name: None for name in copied if name in annotations}}


def read_annotation(what: str, text: str, read: Callable[[Fields], T]) -> T:
    """What `read` makes of the JSON of an annotation. Raises ValueError, with the annotation's name, for nonsense, and
    UnknownWord for what a newer operator may have written."""
    # A character has at least one byte, and the API server counts bytes: so no need to encode it for this.
    if len(text) > MAX_ANNOTATION_BYTES:
        raise ValueError(f"{PREFIX}{what} has {len(text)} characters: at most {MAX_ANNOTATION_BYTES} are read")
    try:
        return read(Fields(orjson.loads(text)))
    except UnknownWord as error:
        raise UnknownWord(f"{PREFIX}{what}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{PREFIX}{what} is not what the operator wrote there: {error}") from None


def shorten_reason(found: "_Reasoned") -> None:
    """A reason may hold what a pod or the kubelet said, at any length."""
    if len(found.reason) > MAX_TEXT:
        object.__setattr__(found, "reason", cut(found.reason))

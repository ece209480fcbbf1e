"""What the operator keeps in annotations: their names, whose they are, and how one is read and written. Pure.

All of an elastic job's memory is in `target` (target.py) and `state` (state.py), so that any replica of the operator
can go on with it after any crash. Each annotation has one writer: the scheduling loop writes `target`, and in
`notices`, `verdict` and `slack` what it has told people (verdict.py); the reconcile loop writes `state`, `record`
(service.py), `step`, `eta` and the pods' commands (command.py). All JSON of a job has the job's uid in it.

Users can write all of them too, or copy them from another job. So each value is read with its type and bounds
(api/reading.py), and only ValueError comes out of reading, with a message that names the key. A newer operator may have
written what this one does not know: unknown keys are passed over, and an unknown word that matters (a phase, a mode) is
told from nonsense as UnknownWord.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.reading import (
    MAX_ANNOTATION_BYTES,
    MAX_REPLICAS,
    MAX_UID,
    Fields,
    Lenient,
    UnknownWord,
)
from elastic_tfjob.scheduling.reasons import Why, stored

# -- Which pods a size has, where they are not the pods 0 to n-1 of each type ------------------------------------------
# A replica that moves to another node gets a pod with another index: a pod of the same name cannot run on two nodes at
# once. Its task in the cluster stays the same. So a size of two workers may have the pods worker-0 (task 0) and
# worker-2 (task 1).

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


def read_indexes(raw: Fields, replicas: Mapping[str, int], lenient: Lenient) -> dict[str, tuple[int, ...]]:
    """The indexes of a size with so many replicas. Those of a type that make no sense count as not there. A type that
    the size does not have is passed over: a newer operator may know it."""
    if (types := lenient(raw.within, "indexes")) is None:
        return {}
    found = {name: lenient(_pods, types, name, count) for name, count in replicas.items() if types.has(name)}
    indexes = simplest({name: pods for name, pods in found.items() if pods is not None})
    if (total := sum(spans(replicas, indexes).values())) > MAX_REPLICAS:
        lenient.problems.append(f"{raw.place('indexes')} go up to {total} pods; at most {MAX_REPLICAS} are allowed")
        return {}
    return indexes


def _pods(types: Fields, name: str, count: int) -> tuple[int, ...]:
    pods = types.items(name, MAX_REPLICAS)
    whole = all(type(index) is int and 0 <= index < MAX_REPLICAS for index in pods)
    if not whole or len(set(pods)) != len(pods) or len(pods) != count:
        raise types.wrong(name, f"a list of {count} pod indexes, each once")
    return tuple(pods)


# -- Names, and how a text is read and written -------------------------------------------------------------------------

TARGET_ANNOTATION: Final = f"{PREFIX}target"
STATE_ANNOTATION: Final = f"{PREFIX}state"
STEP_ANNOTATION: Final = f"{PREFIX}step"
ETA_ANNOTATION: Final = f"{PREFIX}eta"
RECORD_ANNOTATION: Final = f"{PREFIX}record"
NOTICES_ANNOTATION: Final = f"{PREFIX}notices"
VERDICT_ANNOTATION: Final = f"{PREFIX}verdict"
SLACK_ANNOTATION: Final = f"{PREFIX}slack"

T = TypeVar("T")


class _Reasoned(Protocol):
    @property
    def reason(self) -> Why: ...


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


def is_of(raw: Fields, uid: str) -> bool:
    """Whether an annotation is of the job with this uid, and no copy from another one (`kubectl get -o yaml`, changed
    and applied). One without a uid counts: the operator writes it each time, somebody who repairs by hand need not."""
    return raw.text("uid", MAX_UID, default=uid) == uid


def read_annotation(what: str, text: str | None, uid: str | None, read: Callable[[Fields], T]) -> T | None:
    """What `read` makes of the JSON of an annotation; None where there is none, or it is of a job with another uid than
    this one. Raises ValueError, with the annotation's name, for nonsense, and UnknownWord for what a newer operator may
    have written."""
    if text is None:
        return None
    # A character has at least one byte, and the API server counts bytes: so no need to encode it for this.
    if len(text) > MAX_ANNOTATION_BYTES:
        raise ValueError(f"{PREFIX}{what} has {len(text)} characters: at most {MAX_ANNOTATION_BYTES} are read")
    try:
        raw = Fields(orjson.loads(text))
        return read(raw) if uid is None or is_of(raw, uid) else None
    except UnknownWord as error:
        raise UnknownWord(f"{PREFIX}{what}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{PREFIX}{what} is not what the operator wrote there: {error}") from None


def shorten_reason(found: "_Reasoned") -> None:
    """A reason may hold what a pod or the kubelet said, at any length."""
    object.__setattr__(found, "reason", stored(found.reason))

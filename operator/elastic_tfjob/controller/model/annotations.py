"""The operator's annotations: their names, their job, and how they are read and written. Pure.

All stored data of an elastic job is in `target` (target.py) and `state` (state.py), so that any replica of the operator
can continue after a crash. Each annotation has one writer. The scheduling loop writes `target`, and its notices to
users in `notices`, `verdict` and `slack` (deadline_status.py), and `growth` (kueue.py). The reconcile loop writes
`state`, `record` (usage.py), `step`, `eta` and the pods' commands (command.py). All JSON of a job contains the job's
uid.

Users can also write all of them, or copy them from another job. Each value is therefore read with its type and bounds
(api/reading.py), and reading raises only ValueError, with a message that names the key. A newer operator may have
written unknown values: unknown keys are ignored, and an unknown word that matters (a phase, a mode) raises UnknownWord,
which differs from the error for invalid text.
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

# -- The pods of a size, if they are not the pods 0 to n-1 of each type ------------------------------------------------
# A replica that moves to a new node gets a pod with a new index, since a pod of the same name cannot run on two nodes
# at once. Its task in the cluster stays the same. For example, a size of two workers may have the pods worker-0 (task
# 0) and worker-2 (task 1).

Indexes = Mapping[str, tuple[int, ...]]
"""Pod indexes per type, in the order of the tasks; a type that is missing has the pods 0 to n-1."""


def numbered(replicas: Mapping[str, int], indexes: Indexes, name: str) -> Sequence[int]:
    """Returns the pod indexes of a type, in the order of its tasks."""
    found = indexes.get(name)
    return range(replicas.get(name, 0)) if found is None else found


def position(replicas: Mapping[str, int], indexes: Indexes, name: str, index: int) -> int | None:
    """Returns the task of the pod with this index; None for a pod that is not part of the size."""
    pods = numbered(replicas, indexes, name)
    return pods.index(index) if index in pods else None


def resized(pods: Sequence[int], count: int) -> tuple[int, ...]:
    """Returns the pod indexes of a type that is resized to `count` tasks: the first ones stay, and each added task gets
    the lowest free index."""
    kept = tuple(pods[:count])
    used = set(kept)
    free = (index for index in range(count) if index not in used)
    return (*kept, *(next(free) for _ in range(count - len(kept))))


def spans(replicas: Mapping[str, int], indexes: Indexes) -> dict[str, int]:
    """Returns for each type its highest pod index plus one: the number of pods including unused indexes below it."""
    return {name: max(numbered(replicas, indexes, name), default=-1) + 1 for name in replicas}


def simplest(found: Indexes) -> dict[str, tuple[int, ...]]:
    """Returns the indexes without the types that have the pods 0 to n-1."""
    return {name: pods for name, pods in found.items() if pods != tuple(range(len(pods)))}


def read_indexes(raw: Fields, replicas: Mapping[str, int], lenient: Lenient) -> dict[str, tuple[int, ...]]:
    """Reads the pod indexes of a size with these replica counts. A type's invalid indexes count as missing. A type that
    the size does not have is ignored: a newer operator may know it."""
    if (types := lenient(raw.within, "indexes")) is None:
        return {}
    found = {name: lenient(_pods, types, name, count) for name, count in replicas.items() if types.has(name)}
    indexes = simplest({name: pods for name, pods in found.items() if pods is not None})
    if (total := sum(spans(replicas, indexes).values())) > MAX_REPLICAS:
        lenient.problems.append(f"{raw.place('indexes')} span {total} pods; at most {MAX_REPLICAS} are allowed")
        return {}
    return indexes


def _pods(types: Fields, name: str, count: int) -> tuple[int, ...]:
    pods = types.items(name, MAX_REPLICAS)
    whole = all(type(index) is int and 0 <= index < MAX_REPLICAS for index in pods)
    if not whole or len(set(pods)) != len(pods) or len(pods) != count:
        raise types.wrong(name, f"a list of {count} pod indexes, each once")
    return tuple(pods)


# -- Names of annotations, and how their text is read and written ------------------------------------------------------

TARGET_ANNOTATION: Final = f"{PREFIX}target"
STATE_ANNOTATION: Final = f"{PREFIX}state"
STEP_ANNOTATION: Final = f"{PREFIX}step"
ETA_ANNOTATION: Final = f"{PREFIX}eta"
RECORD_ANNOTATION: Final = f"{PREFIX}record"
NOTICES_ANNOTATION: Final = f"{PREFIX}notices"
VERDICT_ANNOTATION: Final = f"{PREFIX}verdict"
SLACK_ANNOTATION: Final = f"{PREFIX}slack"
GROWTH_ANNOTATION: Final = f"{PREFIX}growth"

T = TypeVar("T")


class _Reasoned(Protocol):
    @property
    def reason(self) -> Why: ...


def without_empty(found: object, *optional: str) -> str:
    """Returns the JSON of an annotation, without these keys where they are empty: most annotations do not need them."""
    text = orjson.dumps(found).decode()
    for name in optional:
        if not getattr(found, name) and getattr(found, name) != 0:
            # Within a JSON string a quote would be preceded by a backslash.
            text = text.replace(f',"{name}":{orjson.dumps(getattr(found, name)).decode()}', "")
    return text


def bytes_of(annotations: Mapping[str, str], *, but: Collection[str]) -> int:
    """Returns the bytes of MAX_ANNOTATION_BYTES that annotations take, without those of these names."""
    return sum(len(name.encode()) + len(text.encode()) for name, text in annotations.items() if name not in but)


def is_of(raw: Fields, uid: str) -> bool:
    """Whether an annotation belongs to the job with this uid, and is no copy from another job (`kubectl get -o yaml`,
    changed and applied). An annotation without a uid is accepted: the operator always writes the uid, but a user who
    repairs one by hand need not."""
    return raw.text("uid", MAX_UID, default=uid) == uid


def read_annotation(what: str, text: str | None, uid: str | None, read: Callable[[Fields], T]) -> T | None:
    """Reads the JSON of an annotation with `read`; None if there is none, or it belongs to a job with a different uid.
    Raises ValueError, with the annotation's name, for invalid text, and UnknownWord for a word that a newer operator
    may have written."""
    if text is None:
        return None
    # A character has at least one byte, and the API server counts bytes, so the text need not be encoded for this
    # check.
    if len(text) > MAX_ANNOTATION_BYTES:
        raise ValueError(f"{PREFIX}{what} has {len(text)} characters: at most {MAX_ANNOTATION_BYTES} are read")
    try:
        raw = Fields(orjson.loads(text))
        return read(raw) if uid is None or is_of(raw, uid) else None
    except UnknownWord as error:
        raise UnknownWord(f"{PREFIX}{what}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{PREFIX}{what} is invalid; only the operator may write it: {error}") from None


def shorten_reason(found: "_Reasoned") -> None:
    """Shortens the reason in `found`: it may contain a message of a pod or the kubelet, of any length."""
    object.__setattr__(found, "reason", stored(found.reason))

"""What the operator keeps in annotations: their names, whose they are, and how one is read and written. Pure.

All of an elastic job's memory is in `target` (target.py) and `state` (state.py), so that any replica of the operator
can go on with it after any crash. Each datum has one writer: the scheduling loop writes `target`, the reconcile loop
writes `state` and the pods' commands (command.py).

Users can write all of them too, or copy them from another job. So each value is read with its type and bounds
(api/limits.py), and only ValueError comes out of reading, with a message that names the key. A newer operator may have
written what this one does not know: unknown keys are passed over, and an unknown word that matters (a phase, a mode) is
told from nonsense as UnknownWord.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeVar

import orjson

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.fields import Fields, UnknownWord, cut
from elastic_tfjob.api.limits import MAX_ANNOTATION_BYTES, MAX_TEXT
from elastic_tfjob.controller.objects.causes import CAUSES_ANNOTATION
from elastic_tfjob.controller.objects.indexes import INDEXES_ANNOTATION
from elastic_tfjob.controller.objects.outcomes import EXPECTS_ANNOTATION, OUTCOMES_ANNOTATION

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

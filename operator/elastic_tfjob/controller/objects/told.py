"""What a job has been told once and for all, in an annotation: so that another operator does not tell it again. Pure.

The scheduling loop alone writes it. Deadlines keep what they have told in their own (verdict.py).
"""

from collections.abc import Collection, Mapping
from typing import Final, Literal, get_args

import orjson

from elastic_tfjob.api.fields import Fields
from elastic_tfjob.api.limits import MAX_UID, MAX_VALUE, MAX_WORD

__all__ = ["TOLD_ANNOTATION", "Topic", "told", "told_json"]

TOLD_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/told"

Topic = Literal[
    "loss-absent",
    "loss-nan",
    "loss-inf",
    "loss-never-fell",
    "loss-rises",
    "work-unknown",
    "cpu-kept",
    "all-kept",
]
"""The profile goes by the training loss, and the job has none, one that is no number, one that has only risen so far,
or one that fell and rises now. Or it goes by what is left to do, and nothing tells how much that is, or the job keeps
the CPU that it requests, or its nodes too."""
_TOPICS: Final[tuple[Topic, ...]] = get_args(Topic)


def told(annotations: Mapping[str, str], uid: str) -> frozenset[Topic]:
    """What the job with this uid has been told; nothing where that is not known, or is nonsense, or another job's."""
    text = annotations.get(TOLD_ANNOTATION)
    if text is None or len(text) > MAX_VALUE:
        return frozenset()
    try:
        raw = Fields(orjson.loads(text))
        found = raw.items("told", MAX_WORD) if raw.text("uid", MAX_UID) == uid else []
    except ValueError:
        return frozenset()
    return frozenset(topic for topic in _TOPICS if topic in found)


def told_json(topics: Collection[Topic], uid: str) -> str:
    """The annotation's text."""
    return orjson.dumps({"uid": uid, "told": [topic for topic in _TOPICS if topic in topics]}).decode()

"""Why sizes changed, where the sizes do not tell it: what targets said, by generation. Pure.

They are in an annotation of their own, which the reconcile loop writes together with `state`: operators older
than 23 November 2026 refuse a state with a key that they do not know.
"""

from collections.abc import Mapping
from typing import Final

import orjson

from elastic_tfjob.api.fields import Fields
from elastic_tfjob.api.limits import MAX_VALUE
from elastic_tfjob.scheduling.causes import CAUSES, Cause

__all__ = ["CAUSES_ANNOTATION", "Causes", "by_generation", "causes_json", "read_causes"]

CAUSES_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/causes"

Causes = Mapping[int, Cause]
"""Causes by the generation of the size that they led to."""

_MOST: Final = 32
_DIGITS: Final = 10


def causes_json(causes: Causes) -> str | None:
    """The annotation's text; None where it has nothing to say."""
    return orjson.dumps({str(generation): cause for generation, cause in causes.items()}).decode() if causes else None


def read_causes(text: str | None) -> Causes:
    """What was written; what makes no sense counts as not there: never raises."""
    return {generation: cause for generation, word in by_generation(text).items() for cause in CAUSES if cause == word}


def by_generation(text: str | None) -> dict[int, object]:
    """The values of an object whose keys are generations; none where it is no such object or too large."""
    if text is None or len(text) > MAX_VALUE:
        return {}
    try:
        raw = Fields(orjson.loads(text))
        names = [name for name in raw.names(_MOST) if len(name) <= _DIGITS and name.isascii() and name.isdecimal()]
    except ValueError:
        return {}
    return {int(name): raw.any(name) for name in names}

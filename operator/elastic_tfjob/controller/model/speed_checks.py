"""What sizes were expected to bring and what came of them: steps per second, in annotations of their own. Pure.

The scheduling loop writes what a target expects (`expects`), the reconcile loop what came of it (`outcomes`). They are
no keys of `target` and `state`: operators older than 23 November 2026 refuse those with a key that they do not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from elastic_tfjob.api.reading import MAX_GENERATION, MAX_RATE, MAX_VALUE, Fields
from elastic_tfjob.scheduling.plan import CAUSES, Cause

__all__ = [
    "CAUSES_ANNOTATION",
    "EXPECTS_ANNOTATION",
    "OUTCOMES_ANNOTATION",
    "Causes",
    "Outcomes",
    "SpeedCheck",
    "by_generation",
    "causes_json",
    "expects_json",
    "outcomes_json",
    "read_causes",
    "read_expects",
    "read_outcomes",
]

# -- Why sizes changed, where the sizes do not tell it: what targets said, by generation -------------------------------
# They are in an annotation of their own, which the reconcile loop writes together with `state`: operators older than 23
# November 2026 refuse a state with a key that they do not know.

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


EXPECTS_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/expects"
OUTCOMES_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/outcomes"

_SLOWEST: Final = 1e-9
"""Steps per second by which others can be divided."""


@dataclass(frozen=True, slots=True)
class SpeedCheck:
    """Steps per second at a size: those that its target expected, and those that were measured."""

    expected: float
    measured: float

    @property
    def ratio(self) -> float:
        """Measured over expected."""
        return self.measured / self.expected


Outcomes = Mapping[int, SpeedCheck]
"""By the generation of the size."""


def expects_json(generation: int, steps_per_s: float | None) -> str | None:
    """The text of the annotation of a target of this generation; None where it expects no speed that is known."""
    if steps_per_s is None or not _SLOWEST <= steps_per_s <= MAX_RATE:
        return None
    return orjson.dumps({"generation": generation, "steps_per_s": float(f"{steps_per_s:.4g}")}).decode()


def read_expects(text: str | None, generation: int) -> float | None:
    """What the target of this generation expects; what makes no sense counts as not there: never raises."""
    if text is None or len(text) > MAX_VALUE:
        return None
    try:
        raw = Fields(orjson.loads(text))
        if raw.whole("generation", MAX_GENERATION, default=-1) != generation:
            return None
        return _rate(raw, "steps_per_s")
    except ValueError:
        return None


def outcomes_json(outcomes: Outcomes) -> str | None:
    """The annotation's text; None where it has nothing to say."""
    found = {
        str(generation): {"expected": float(f"{each.expected:.4g}"), "measured": float(f"{each.measured:.4g}")}
        for generation, each in outcomes.items()
    }
    return orjson.dumps(found).decode() if found else None


def read_outcomes(text: str | None) -> Outcomes:
    """What was written; what makes no sense counts as not there: never raises."""
    found: dict[int, SpeedCheck] = {}
    for generation, value in by_generation(text).items():
        try:
            fields = Fields(value)
            expected, measured = _rate(fields, "expected"), _rate(fields, "measured")
        except ValueError:
            continue
        if expected is not None and measured is not None:
            found[generation] = SpeedCheck(expected, measured)
    return found


def _rate(raw: Fields, name: str) -> float | None:
    """Steps per second that others can be divided by; None for what is none."""
    found = raw.number(name, MAX_RATE)
    return found if found is not None and found >= _SLOWEST else None

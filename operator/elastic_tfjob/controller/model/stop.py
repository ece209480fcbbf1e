"""The state's record of a stop, from its request by a plan until the job resumes. Pure."""

from dataclasses import dataclass
from typing import Final, cast

from elastic_tfjob.api.reading import MAX_GENERATION, MAX_STEPS, MAX_WORD, Fields, Lenient
from elastic_tfjob.controller.model.annotations import shorten_reason
from elastic_tfjob.scheduling.plan import STOPS, Cause
from elastic_tfjob.scheduling.reasons import Why, read_reason

__all__ = ["PREEMPT", "Stop", "read_stop"]

PREEMPT: Final[Cause] = "preempt"
"""The cause of a stop whose cause is unknown."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop of the job. `request` is the generation of the target that requests it, by which the launcher
    distinguishes requests for a checkpoint. Times are RFC 3339: `asked` is when the checkpoint was first requested,
    `ended` when the pods were first ended; empty before. `reached` is the last reported step, `saved` the step of the
    checkpoint that the program confirmed, and `lost` the number of lost steps at most; None: unknown.
    """

    request: int
    asked: str
    ended: str = ""
    reached: int | None = None
    saved: int | None = None
    lost: int | None = None
    cause: Cause = PREEMPT
    reason: Why = ""

    def __post_init__(self) -> None:
        if self.cause not in STOPS:  # it labels a metric, and a user may have written it
            object.__setattr__(self, "cause", PREEMPT)
        shorten_reason(self)


def read_stop(raw: Fields, lenient: Lenient) -> Stop:
    """Reads a stop from the annotation. Raises ValueError for an invalid request, and nothing else; other invalid
    fields count as missing."""
    return Stop(
        request=raw.whole("request", MAX_GENERATION),
        asked=lenient(raw.time, "asked", empty=True) or "",
        ended=lenient(raw.time, "ended", empty=True) or "",
        reached=lenient(raw.integer, "reached", MAX_STEPS),
        saved=lenient(raw.integer, "saved", MAX_STEPS),
        lost=lenient(raw.integer, "lost", MAX_STEPS),
        cause=cast("Cause", lenient(raw.text, "cause", MAX_WORD)),
        reason=lenient(read_reason, raw) or "",
    )

"""What the state remembers of a stop, from when a plan asks for it until the job goes on. Pure."""

from dataclasses import dataclass
from typing import Final, cast

from elastic_tfjob.api.reading import MAX_GENERATION, MAX_STEPS, MAX_WORD, Fields, Lenient
from elastic_tfjob.scheduling.plan import STOPS, Cause
from elastic_tfjob.scheduling.reasons import Why, read_reason, stored

__all__ = ["PREEMPT", "Stop", "read_stop"]

PREEMPT: Final[Cause] = "preempt"
"""The cause of a stop of which nothing else is known."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop of the job. `request` is the generation of the target that asks for it, by which the launcher tells one
    request for a checkpoint from another. Times are RFC 3339: a checkpoint is asked for since `asked`, and pods are
    ended since `ended`; empty before that. `reached` is the last step that was reported, `saved` the step of the
    checkpoint that the program confirmed, and `lost` how many steps are lost at most; None: not known.
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
        if self.cause not in STOPS:  # it labels a metric, and somebody may have written it
            object.__setattr__(self, "cause", PREEMPT)
        object.__setattr__(self, "reason", stored(self.reason))


def read_stop(raw: Fields, lenient: Lenient) -> Stop:
    """From the annotation, where all but the request may be wrong. Raises ValueError for that, and nothing else."""
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

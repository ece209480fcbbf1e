"""What a job has had so far: the record of service that policies as least attained service go by. Pure.

The reconcile loop writes it together with `state`. It is an annotation of its own, as it outlives the state: a job
whose state was overwritten with nonsense begins anew, and what it has had still counts.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final, cast, get_args

import orjson

from elastic_tfjob.api.reading import (
    LATEST,
    MAX_ANNOTATION_BYTES,
    MAX_DURATION_S,
    MAX_GENERATION,
    MAX_REPLICAS,
    MAX_STEPS,
    Fields,
    Lenient,
)
from elastic_tfjob.controller.model.annotations import RECORD_ANNOTATION, is_of
from elastic_tfjob.controller.model.status import format_time, moment_of
from elastic_tfjob.controller.model.target import Counts
from elastic_tfjob.speed.growth import NOT_REPORTED, Growth, LossState

__all__ = ["UsageRecord", "continued"]

_MOST_SERVICE: Final = float(MAX_DURATION_S) * MAX_REPLICAS * 64
"""Every replica with many accelerators, for as long as a time is believed."""
_MOST_LOSS: Final = sys.float_info.max


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """Up to `placed`, since when (RFC 3339) the job has what it holds now: `executed_s`, seconds in which it held
    anything, and `service`, its accelerators (replicas, of a job that uses none) times seconds. `placed` is empty while
    it holds nothing. `held` is what service grows by each second since then. `stops`: how often all was taken from it
    while it ran; `stopped`: when that was last; `resumed`: when it last had something again after that. `moves`: how
    often replicas went to other nodes while it ran. `loss`: how the training loss falls, of which the last reading is
    kept."""

    placed: str = ""
    held: int = 0
    executed_s: float = 0.0
    service: float = 0.0
    stops: int = 0
    stopped: str = ""
    moves: int = 0
    resumed: str = ""
    loss: Growth = NOT_REPORTED

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str) -> "UsageRecord":
        """The record of the job with this uid; a new one where there is none, or nonsense, or another job's. A figure
        that is wrong is as if there were none, and costs no other: nobody is told, as all of it is only counted."""
        text = annotations.get(RECORD_ANNOTATION)
        if text is None or len(text) > MAX_ANNOTATION_BYTES:
            return cls()
        try:
            raw = Fields(orjson.loads(text))
            if not is_of(raw, uid):
                return cls()
        except ValueError:
            return cls()
        lenient = Lenient()
        loss = lenient(raw.within, "loss")
        return cls(
            placed=lenient(raw.time, "placed", empty=True) or "",
            held=lenient(raw.whole, "held", MAX_GENERATION, default=0) or 0,
            executed_s=lenient(raw.number, "executed_s", MAX_DURATION_S) or 0.0,
            service=lenient(raw.number, "service", _MOST_SERVICE) or 0.0,
            stops=lenient(raw.whole, "stops", MAX_GENERATION, default=0) or 0,
            stopped=lenient(raw.time, "stopped", empty=True) or "",
            moves=lenient(raw.whole, "moves", MAX_GENERATION, default=0) or 0,
            resumed=lenient(raw.time, "resumed", empty=True) or "",
            loss=_loss(loss, lenient) if loss is not None else NOT_REPORTED,
        )

    def to_json(self, uid: str = "") -> str:
        """The annotation's text, for the job with this uid."""
        fields = {**asdict(self), **({"uid": uid} if uid else {})}
        del fields["loss"]
        if self.loss != NOT_REPORTED:
            step, loss = self.loss.recent[-1] if self.loss.recent else (None, None)
            kept = {"state": self.loss.state, "step": step, "loss": loss, "at_s": self.loss.at_s}
            rest = {"per_step": self.loss.per_step, "peak": self.loss.peak, "readings": self.loss.readings}
            fields["loss"] = {**kept, **rest}
        return orjson.dumps(fields).decode()


def _loss(raw: Fields, lenient: Lenient) -> Growth:
    step, loss = lenient(raw.number, "step", float(MAX_STEPS)), lenient(raw.number, "loss", _MOST_LOSS, least=None)
    at_s = lenient(raw.number, "at_s", LATEST.timestamp())
    return Growth(
        state=cast("LossState", lenient(raw.word, "state", get_args(LossState)) or NOT_REPORTED.state),
        recent=((step, loss),) if step is not None and loss is not None and at_s is not None else (),
        per_step=lenient(raw.number, "per_step", _MOST_LOSS, least=None) or 0.0,
        peak=lenient(raw.number, "peak", _MOST_LOSS, least=None) or 0.0,
        readings=lenient(raw.whole, "readings", MAX_GENERATION, default=0) or 0,
        at_s=float("-inf") if at_s is None else at_s,
    )


def continued(
    record: UsageRecord,
    before: Counts,
    after: Counts,
    held: int,
    now: datetime,
    *,
    ended: bool = False,
    moved: bool = False,
) -> UsageRecord:
    """The record once a job goes from one size to another; the same where it keeps what it has. `held` is what it holds
    with the new size. `ended`: that it holds nothing any more is its own doing, or a person's, and no stop of a plan's.
    `moved`: replicas have gone to other nodes, which counts where the size stays."""
    holds, same = any(after.values()), _same(before, after)
    if not (holds or record.placed) or (holds and record.placed and same and not moved):
        return record
    placed = moment_of(record.placed)
    passed_s = max(0.0, (now - placed).total_seconds()) if placed is not None else 0.0
    added = replace(
        record,
        executed_s=min(record.executed_s + passed_s, float(MAX_DURATION_S)),
        service=min(record.service + passed_s * record.held, _MOST_SERVICE),
    )
    if holds:
        moves = min(record.moves + (moved and same), MAX_GENERATION)
        resumed = format_time(now) if record.stops and not record.placed else record.resumed
        return replace(added, placed=format_time(now), held=held, moves=moves, resumed=resumed)
    added = replace(added, placed="", held=0)
    return added if ended else replace(added, stops=record.stops + 1, stopped=format_time(now))


def _same(a: Counts, b: Counts) -> bool:
    return {name: count for name, count in a.items() if count} == {name: count for name, count in b.items() if count}

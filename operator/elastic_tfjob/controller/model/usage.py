"""A job's usage so far: the usage record, which policies such as least attained service use. Pure.

The reconcile loop writes it together with `state`. It is a separate annotation, as it outlives the state: a job whose
state was overwritten with invalid text starts over, and its usage still counts.
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
"""Every replica with many accelerators, for the longest valid duration."""
_MOST_LOSS: Final = sys.float_info.max


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """A job's usage up to `placed` (RFC 3339), the time since which the job has its present capacity; empty while it
    has none. `executed_s` is the time in seconds in which it had any; `service` is its accelerators (its replicas, if
    it uses none) times seconds. `held` is the increase of service per second since `placed`. `stops` counts how often
    the running job lost all its capacity; `stopped` is when that last happened, `resumed` when it last got capacity
    again afterwards. `moves` counts how often replicas moved to other nodes while it ran. `loss` is how the training
    loss falls; only its last reading is kept."""

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
        """Reads the record of the job with this uid; a new one if it is missing, invalid, or another job's. An invalid
        figure counts as missing and does not affect the other figures. It is not reported, as the record is only
        counted."""
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
        """Returns the annotation's text, for the job with this uid."""
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
    """Returns the record after a change of size; unchanged if the job keeps its capacity. `held` is the service per
    second at the new size. `ended`: the job lost its capacity by its own end or a user's action, and not by a plan's
    stop. `moved`: replicas have moved to other nodes, which counts if the size stays."""
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

"""What a job has been told of scheduling, in annotations: kept so that another operator tells nothing twice. Pure.

The scheduling loop alone writes them: `notices` has what is expected of the job's deadline (`judged`) and what was told
once and for all (`told`). `verdict` and `slack` repeat two values of `judged` for kubectl's columns, which cannot look
into JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import Final, Literal, cast, get_args

import orjson

from elastic_tfjob.api.annotations import ANNOTATIONS, PREFIX, Elasticity
from elastic_tfjob.api.reading import (
    MAX_ANNOTATION_BYTES,
    MAX_DURATION_S,
    MAX_TEXT,
    MAX_UID,
    MAX_VALUE,
    MAX_WORD,
    Fields,
    Lenient,
)
from elastic_tfjob.controller.model.annotations import (
    NOTICES_ANNOTATION,
    SLACK_ANNOTATION,
    VERDICT_ANNOTATION,
    bytes_of,
)
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.status import moment_of

__all__ = [
    "MOST_SLACK_S",
    "VERDICTS",
    "DeadlineStatus",
    "Note",
    "NoticesSent",
    "Topic",
    "Verdict",
    "deadline_of",
    "room_for_notices",
    "span",
]

Verdict = Literal["unknown", "on-time", "at-risk", "unattainable", "missed", "met"]
"""`unknown`: nothing tells when it ends. `on-time`: expected to end by its deadline. `at-risk`: expected to end after
it, though a size that its bounds allow would do. `unattainable`: no such size would. `missed`: the deadline has passed,
or the job failed. `met`: it succeeded by then."""
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

Note = Literal["work", "speed", "size"]
"""What a job does not say, so that less can be done for its deadline: its steps, its progress, where it is saved."""
_NOTES: Final[tuple[Note, ...]] = get_args(Note)

MOST_SLACK_S: Final = float(2 * MAX_DURATION_S)
"""As far as an expected end is told to lie from a deadline: where it is farther, this is what is kept."""
_LONGEST: Final = f"{2 * MAX_DURATION_S // 86_400}d"

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

_NAMES: Final = (NOTICES_ANNOTATION, VERDICT_ANNOTATION, SLACK_ANNOTATION)
_BYTES: Final = 2304
"""What these annotations take at most."""


@dataclass(frozen=True, slots=True)
class DeadlineStatus:
    """Times in RFC 3339. `deadline`: the one that this is about. `since`: when the verdict was reached; `at`: when this
    was written. `eta`: the expected end, `slack_s`: seconds from that to the deadline; None: not known. `why`: what the
    event said. `told`: notes of which there was an event."""

    deadline: str
    verdict: Verdict
    since: str
    at: str
    eta: str | None = None
    slack_s: float | None = None
    why: str = ""
    told: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class NoticesSent:
    """All that a job has been told. `judged`: of its deadline; None: nothing yet, or it has none. `told`: what is told
    once and for all."""

    judged: DeadlineStatus | None = None
    told: frozenset[Topic] = frozenset()

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str) -> "NoticesSent":
        """What the job with this uid has been told; nothing where that is not known, or is nonsense, or another
        job's. What is wrong with a verdict costs no topic, and the other way round."""
        text = annotations.get(NOTICES_ANNOTATION)
        if text is None or len(text) > 2 * MAX_VALUE:
            return cls()
        try:
            raw = Fields(orjson.loads(text))
            if raw.text("uid", MAX_UID) != uid:
                return cls()
        except ValueError:
            return cls()
        lenient = Lenient()
        found = lenient(raw.items, "told", MAX_WORD) or ()
        return cls(lenient(_judged, raw), frozenset(topic for topic in _TOPICS if topic in found))

    def to_json(self, uid: str) -> str | None:
        """The text of `notices` for the job with this uid; None where there is nothing to say."""
        if self.judged is None and not self.told:
            return None
        told = [topic for topic in _TOPICS if topic in self.told]
        found = {"uid": uid, "judged": self.judged, "told": told}
        return orjson.dumps({name: each for name, each in found.items() if each}).decode()

    def to_annotations(self, uid: str) -> dict[str, str | None]:
        """All three annotations for the job with this uid; None: there is none."""
        judged = self.judged
        return {
            NOTICES_ANNOTATION: self.to_json(uid),
            VERDICT_ANNOTATION: None if judged is None else judged.verdict,
            SLACK_ANNOTATION: None if judged is None or judged.slack_s is None else span(judged.slack_s),
        }


def _judged(raw: Fields) -> DeadlineStatus | None:
    if (found := raw.within("judged")) is None:
        return None
    told = {note for note in found.items("told", MAX_WORD) if note in _NOTES}
    return DeadlineStatus(
        deadline=found.time("deadline") or "",
        verdict=cast("Verdict", found.word("verdict", VERDICTS)),
        since=found.time("since") or "",
        at=found.time("at") or "",
        eta=found.time("eta"),
        slack_s=found.number("slack_s", MOST_SLACK_S, least=None),
        why=found.text("why", MAX_TEXT),
        told=tuple(note for note in _NOTES if note in told),
    )


def room_for_notices(annotations: Mapping[str, str]) -> bool:
    """Whether they fit beside the job's other annotations: else the operator's state needs the room that is left."""
    return bytes_of(annotations, but=_NAMES) + _BYTES <= MAX_ANNOTATION_BYTES


def deadline_of(job: TFJob) -> float | None:
    """The deadline that the user wrote, as Unix time; None where there is none, or nonsense (which reconciling tells
    in an event). A duration counts from the job's creation."""
    text = job.annotations.get(f"{PREFIX}deadline")
    if text is None or len(text) > MAX_VALUE:
        return None
    try:
        said = Elasticity(deadline=ANNOTATIONS["deadline"][0](text))
    except ValueError:
        return None
    created = moment_of(job.created)
    return said.deadline_s(0.0 if created is None else created.timestamp())


def span(seconds: float) -> str:
    """`-1h05m`, `12m30s`, `8s`: two parts at most, as people say it. What is longer than any duration that is believed,
    or is no number, is words."""
    if isnan(seconds):
        return "an unknown time"
    if abs(seconds) >= MOST_SLACK_S:
        return f"less than -{_LONGEST}" if seconds < 0 else f"more than {_LONGEST}"
    whole = round(abs(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    if days:
        text = f"{days}d{hours:02}h"
    elif hours:
        text = f"{hours}h{minutes:02}m"
    else:
        text = f"{minutes}m{left:02}s" if minutes else f"{left}s"
    return f"-{text}" if seconds < 0 and whole else text

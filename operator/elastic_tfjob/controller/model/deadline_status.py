"""Scheduling notices of a job, kept in annotations so that another operator repeats none. Pure.

Only the scheduling loop writes them. `notices` has the verdict on the job's deadline (`judged`), and the notes that are
sent only once (`sent`). `verdict` and `slack` repeat two values of `judged` for kubectl's columns, which cannot read
JSON.
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
"""`unknown`: the end cannot be forecast. `on-time`: expected to end by its deadline. `at-risk`: expected to end after
it, though a size within its bounds would meet it. `unattainable`: no such size would. `missed`: the deadline has
passed, or the job failed. `met`: the job succeeded by then."""
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

Note = Literal["work", "speed", "size"]
"""Information that a job does not give, which limits what can be done for its deadline: its steps, its progress, its
checkpoint directory."""
_NOTES: Final[tuple[Note, ...]] = get_args(Note)

MOST_SLACK_S: Final = float(2 * MAX_DURATION_S)
"""The largest slack in seconds, in either direction; a larger one is cut to this."""
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
"""Notes that are sent once. The profile uses the training loss, and the job reports none, one that is no number, one
that has only risen so far, or one that fell and now rises. Or the profile uses the remaining work, which is unknown, or
the job keeps the CPU that it requests, or its nodes too."""
_TOPICS: Final[tuple[Topic, ...]] = get_args(Topic)

_NAMES: Final = (NOTICES_ANNOTATION, VERDICT_ANNOTATION, SLACK_ANNOTATION)
_BYTES: Final = 2304
"""Bytes that these annotations take at most."""


@dataclass(frozen=True, slots=True)
class DeadlineStatus:
    """The verdict on a deadline. Times are in RFC 3339. `deadline` is the deadline judged; `since` is when the verdict
    was reached, `at` when it was written. `eta` is the expected end, `slack_s` the seconds from then to the deadline;
    None: unknown. `why` is the event's text. `sent` are the notes for which there was an event."""

    deadline: str
    verdict: Verdict
    since: str
    at: str
    eta: str | None = None
    slack_s: float | None = None
    why: str = ""
    sent: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class NoticesSent:
    """All notices sent about a job. `judged` is the verdict on its deadline; None: none yet, or the job has no
    deadline. `sent` are the notes that are sent only once."""

    judged: DeadlineStatus | None = None
    sent: frozenset[Topic] = frozenset()

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str) -> "NoticesSent":
        """Reads the notices of the job with this uid; empty if they are missing, invalid, or another job's. An invalid
        verdict does not affect the notes, nor the reverse."""
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
        found = lenient(raw.items, "sent", MAX_WORD) or ()
        return cls(lenient(_judged, raw), frozenset(topic for topic in _TOPICS if topic in found))

    def to_json(self, uid: str) -> str | None:
        """Returns the text of `notices` for the job with this uid; None if there is nothing to store."""
        if self.judged is None and not self.sent:
            return None
        sent = [topic for topic in _TOPICS if topic in self.sent]
        found = {"uid": uid, "judged": self.judged, "sent": sent}
        return orjson.dumps({name: each for name, each in found.items() if each}).decode()

    def to_annotations(self, uid: str) -> dict[str, str | None]:
        """Returns all three annotations for the job with this uid; None for each that has to be absent."""
        judged = self.judged
        return {
            NOTICES_ANNOTATION: self.to_json(uid),
            VERDICT_ANNOTATION: None if judged is None else judged.verdict,
            SLACK_ANNOTATION: None if judged is None or judged.slack_s is None else span(judged.slack_s),
        }


def _judged(raw: Fields) -> DeadlineStatus | None:
    if (found := raw.within("judged")) is None:
        return None
    sent = {note for note in found.items("sent", MAX_WORD) if note in _NOTES}
    return DeadlineStatus(
        deadline=found.time("deadline") or "",
        verdict=cast("Verdict", found.word("verdict", VERDICTS)),
        since=found.time("since") or "",
        at=found.time("at") or "",
        eta=found.time("eta"),
        slack_s=found.number("slack_s", MOST_SLACK_S, least=None),
        why=found.text("why", MAX_TEXT),
        sent=tuple(note for note in _NOTES if note in sent),
    )


def room_for_notices(annotations: Mapping[str, str]) -> bool:
    """Whether the notices fit beside the job's other annotations; if not, the operator's state needs the remaining
    space."""
    return bytes_of(annotations, but=_NAMES) + _BYTES <= MAX_ANNOTATION_BYTES


def deadline_of(job: TFJob) -> float | None:
    """Returns the user's deadline as Unix time; None if there is none, or it is invalid (for which reconciling adds an
    event). A duration counts from the job's creation."""
    text = job.annotations.get(f"{PREFIX}deadline")
    if text is None or len(text) > MAX_VALUE:
        return None
    try:
        elasticity = Elasticity(deadline=ANNOTATIONS["deadline"][0](text))
    except ValueError:
        return None
    created = moment_of(job.created)
    return elasticity.deadline_s(0.0 if created is None else created.timestamp())


def span(seconds: float) -> str:
    """Returns a duration in words, with at most two parts: `-1h05m`, `12m30s`, `8s`. A value that is no number, or
    longer than any valid duration, is described in words."""
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

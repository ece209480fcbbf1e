"""What is expected of a job's deadline, in annotations: kept so that another operator tells nothing twice. Pure.

The scheduling loop alone writes them. `verdict` and `slack` repeat two values of `deadline` for kubectl's columns,
which cannot look into JSON. Their prefix is not that of the user's annotations: an older operator would call them
unknown ones of the user's.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from math import isnan
from typing import Final, Literal, cast, get_args

import orjson

from elastic_tfjob.api.annotations import ANNOTATIONS, PREFIX, Elasticity
from elastic_tfjob.api.reading import MAX_DURATION_S, MAX_TEXT, MAX_UID, MAX_VALUE, MAX_WORD, Fields
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.status import moment_of

__all__ = [
    "DEADLINE_ANNOTATION",
    "MOST_SLACK_S",
    "SLACK_ANNOTATION",
    "TOLD_ANNOTATION",
    "VERDICTS",
    "VERDICT_ANNOTATION",
    "DeadlineStatus",
    "Note",
    "Topic",
    "Verdict",
    "deadline_of",
    "span",
    "told",
    "told_json",
]

DEADLINE_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/deadline"
VERDICT_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/verdict"
SLACK_ANNOTATION: Final = "elastic-tfjob.kubeflow.org/slack"

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


@dataclass(frozen=True, slots=True)
class DeadlineStatus:
    """Times in RFC 3339. `deadline`: the one that this is about. `since`: when the verdict was reached; `at`: when this
    was written. `eta`: the expected end, `slack_s`: seconds from that to the deadline; None: not known. `why`: what the
    event said. `told`: notes of which there was an event."""

    uid: str
    deadline: str
    verdict: Verdict
    since: str
    at: str
    eta: str | None = None
    slack_s: float | None = None
    why: str = ""
    told: tuple[Note, ...] = ()

    @classmethod
    def of(cls, annotations: Mapping[str, str], uid: str) -> "DeadlineStatus | None":
        """What is known of the job with this uid; None where there is nothing, or nonsense, or another job's."""
        text = annotations.get(DEADLINE_ANNOTATION)
        if text is None or len(text) > 2 * MAX_VALUE:
            return None
        try:
            raw = Fields(orjson.loads(text))
            if raw.text("uid", MAX_UID) != uid:
                return None
            told = {note for note in raw.items("told", MAX_WORD) if note in _NOTES}
            return cls(
                uid=uid,
                deadline=raw.time("deadline") or "",
                verdict=cast("Verdict", raw.word("verdict", VERDICTS)),
                since=raw.time("since") or "",
                at=raw.time("at") or "",
                eta=raw.time("eta"),
                slack_s=raw.number("slack_s", MOST_SLACK_S, least=None),
                why=raw.text("why", MAX_TEXT),
                told=tuple(note for note in _NOTES if note in told),
            )
        except ValueError:
            return None

    @staticmethod
    def names(annotations: Mapping[str, str]) -> list[str]:
        """Which of the three annotations are there."""
        return [name for name in (DEADLINE_ANNOTATION, VERDICT_ANNOTATION, SLACK_ANNOTATION) if name in annotations]

    def to_annotations(self) -> dict[str, str | None]:
        """What to write; None removes one."""
        return {
            DEADLINE_ANNOTATION: orjson.dumps(asdict(self)).decode(),
            VERDICT_ANNOTATION: self.verdict,
            SLACK_ANNOTATION: None if self.slack_s is None else span(self.slack_s),
        }


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


# -- What a job has been told once and for all, in an annotation -------------------------------------------------------
# So that another operator does not tell it again.
#
# The scheduling loop alone writes it. Deadlines keep what they have told in their own (verdict.py).

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

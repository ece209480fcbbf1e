"""How many replicas, in words: `1 chief`, `2 workers`, `3 PS`. Fields, labels and metrics keep type names."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final, Literal

from elastic_tfjob.api.tfjob import REPLICA_TYPES

__all__ = [
    "JOB_SORTS",
    "JOB_STATES",
    "MAX_ADDED_NODES",
    "JobState",
    "count_in_words",
    "counts_in_words",
    "did_you_mean",
    "nearest",
]

# Said letter by letter, and the same for one and for many.
_UNCHANGED: Final = "PS"


def count_in_words(count: int, replica_type: str) -> str:
    """`1 worker`, `2 workers`, `2 PS`. A name that is no replica type stays as it is."""
    if replica_type == _UNCHANGED or replica_type not in REPLICA_TYPES:
        return f"{count} {replica_type}"
    return f"{count} {replica_type.lower()}{'' if count == 1 else 's'}"


def counts_in_words(counts: Mapping[str, int]) -> str:
    """`1 chief + 2 PS + 4 workers`, in the order of `counts`; types without a replica are left out."""
    return " + ".join(count_in_words(count, name) for name, count in counts.items() if count) or "nothing"


# -- What somebody may have meant by a word that is not known ----------------------------------------------------------

_CUTOFF = 0.6
_MAX_LENGTH = 100
"""A longer word is no slip of the pen, and comparing it would take long."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one; None if none is."""
    if len(word) > _MAX_LENGTH:
        return None
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=_CUTOFF)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?`, to be put behind a message; empty if nothing is near."""
    found = nearest(word, known)
    return f" Did you mean {found}?" if found is not None else ""


# -- Words of the query API and the command line that need no package --------------------------------------------------

JobState = Literal[
    "Pending",
    "Suspended",
    "Waiting",
    "Starting",
    "Running",
    "Rescaling",
    "Stopping",
    "Restarting",
    "Terminating",
    "Succeeded",
    "Failed",
]
JOB_STATES: Final[tuple[JobState, ...]] = JobState.__args__  # type: ignore[attr-defined]

JOB_SORTS: Final = (
    *("name", "created", "state", "eta", "deadline", "slack_s", "steps_per_s", "step", "replicas", "rescales"),
    "waits_since",
)
"""What jobs can be sorted by."""

MAX_ADDED_NODES: Final = 1000
"""Nodes that a what-if question can add."""

"""Words that need no package: replica counts (`1 chief`, `2 workers`, `3 PS`), suggestions for typing errors, errors,
job states.

Fields, labels and metrics keep the type names.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final, Literal, get_args

__all__ = [
    "JOB_SORTS",
    "JOB_STATES",
    "MAX_ADDED_NODES",
    "REASON_CODES",
    "REPLICA_TYPES",
    "JobState",
    "ReasonCode",
    "bytes_in_words",
    "count_in_words",
    "counts_in_words",
    "did_you_mean",
    "error_in_words",
    "nearest",
    "printable",
]

REPLICA_TYPES: Final = ("Chief", "Evaluator", "Master", "PS", "Worker")
"""In the order in which upstream evaluates their state."""

# An abbreviation, with the same singular and plural.
_UNCHANGED: Final = "PS"


def count_in_words(count: int, replica_type: str) -> str:
    """`1 worker`, `2 workers`, `2 PS`. Other names stay as they are."""
    if replica_type == _UNCHANGED or replica_type not in REPLICA_TYPES:
        return f"{count} {replica_type}"
    return f"{count} {replica_type.lower()}{'' if count == 1 else 's'}"


def counts_in_words(counts: Mapping[str, int]) -> str:
    """`1 chief + 2 PS + 4 workers`, in the order of `counts`; types without replicas are omitted."""
    return " + ".join(count_in_words(count, name) for name, count in counts.items() if count) or "nothing"


def bytes_in_words(amount: int) -> str:
    """`384 MiB`, `1.5 GiB`: in the largest unit of which there is one."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if amount >= unit:
            return f"{amount / unit:.4g} {name}"
    return f"{amount} bytes"


# -- Suggestions for an unknown word -----------------------------------------------------------------------------------

_CUTOFF = 0.6
_MAX_LENGTH = 100
"""A longer word is not a typing error, and comparing it would take long."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most similar to this one; None if none is similar."""
    if len(word) > _MAX_LENGTH:
        return None
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=_CUTOFF)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?`, to be appended to a message; empty if no known word is similar."""
    found = nearest(word, known)
    return f" Did you mean {found}?" if found is not None else ""


# -- Errors ------------------------------------------------------------------------------------------------------------

_MAX_ERROR: Final = 300


def printable(text: str) -> str:
    """The text without control characters, which a terminal or log viewer would interpret."""
    return "".join(each if each.isprintable() else " " for each in text)


def error_in_words(error: BaseException) -> str:
    """The type and message of an error in one printable line of limited length, which also cuts long values of a
    tenant. Never raises an error."""
    try:
        text = str(error)
    except Exception:
        text = "(without words)"
    line = " ".join(printable(text[:_MAX_ERROR]).split())
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


# -- Words of the query API and the command line -----------------------------------------------------------------------

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
JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)

JOB_SORTS: Final = (
    *("name", "created", "state", "eta", "deadline", "slack_s", "steps_per_s", "step", "replicas", "rescales"),
    "waits_since",
)
"""Fields that jobs can be sorted by."""

ReasonCode = Literal[
    "own",
    "as-declared",
    "behind",
    "best-configurations",
    "best-effort",
    "bounds",
    "busy",
    "converged",
    "cools",
    "cpu",
    "cpu-as-requested",
    "cpu-rank",
    "crowded",
    "deadline-met",
    "deadline-missed",
    "deadline-no-room",
    "dominant-share",
    "earliest-deadline",
    "fair-speedup",
    "first",
    "fits",
    "gain-per-replica",
    "gives-way",
    "given-room",
    "keeps",
    "later-deadline",
    "learned",
    "leaves-node",
    "leaves-to-autoscaler",
    "less-room",
    "lost",
    "makes-room",
    "marginal-gain",
    "no-checkpoint",
    "no-deadline",
    "no-nodes",
    "no-size",
    "no-space-for-names",
    "node-full",
    "node-returns",
    "node-shrinks",
    "not-movable",
    "offered",
    "others-first",
    "packing",
    "pool-wants",
    "profile-begins",
    "profile-fails",
    "quota",
    "released",
    "requested-size",
    "room-to-come",
    "short",
    "size-no-room",
    "slower",
    "suspended",
    "taken-away",
    "team-limit",
    "team-served",
    "team-share",
    "time-saved",
    "tries-size",
    "unknown-speed",
    "unknown-steps",
    "waits-behind",
    "whole-cluster",
]
"""Codes of the scheduler's reasons. scheduling/reasons.py has their words; `own` is for words of a custom profile."""
REASON_CODES: Final[tuple[ReasonCode, ...]] = get_args(ReasonCode)

MAX_ADDED_NODES: Final = 1000
"""Most nodes that a what-if question can add."""

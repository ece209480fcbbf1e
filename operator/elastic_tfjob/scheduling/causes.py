"""Why a job's size, place or CPU changes, in one word: what metrics are labelled with, pages group by, and tests
compare. Pure."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

__all__ = ["CAUSES", "STOPS", "TOLD", "Cause", "cause_of"]

Cause = Literal[
    "start",
    "resume",
    "grow",
    "shrink",
    "reshape",
    "cpu",
    "migrate",
    "repair",
    "asked",
    "preempt",
    "reclaim",
    "deadline",
]
"""A job starts, or goes on after a stop; has more replicas, fewer, or more of one type and fewer of another; other CPU
in the same pods; replicas on other nodes; replicas anew or fewer, as their nodes are lost or cordoned, or go back to
their pool; the size that a person asks for. All is taken from it: others go before it (`preempt`), a node goes back to
its pool (`reclaim`), or another job would miss its deadline (`deadline`, which may also be why a job grows or
shrinks)."""

CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
STOPS: Final[tuple[Cause, ...]] = ("preempt", "reclaim", "deadline")
"""Why all is taken from a job that runs."""
TOLD: Final[frozenset[Cause]] = frozenset({*STOPS, "repair", "asked"})
"""What sizes do not tell: it has to be passed on."""


def cause_of(before: Mapping[str, int], after: Mapping[str, int], *, moved: bool, stopped: bool) -> Cause:
    """What replicas per type tell of a change, of which nobody says more. `moved`: replicas are on other nodes, too.
    `stopped`: the job was stopped before."""
    if not any(after.values()):
        return "preempt"
    if not before or not any(before.values()):
        return "resume" if stopped else "start"
    if before != after:
        types = before.keys() | after.keys()
        more = any(after.get(name, 0) > before.get(name, 0) for name in types)
        fewer = any(after.get(name, 0) < before.get(name, 0) for name in types)
        if more or fewer:
            return "reshape" if more and fewer else "grow" if more else "shrink"
    return "migrate" if moved else "cpu"

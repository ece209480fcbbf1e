"""Running jobs leave nodes that will be taken away, before they are, whatever the profile.

A notice gives two minutes or 15 seconds. Shrinking takes a moment, as the replicas that stay fork their next program,
or keep theirs if only workers leave. A move, and the shrinking of a program that cannot be forked, takes as long as a
replica needs to start and prepare. If there is no time to move the leader, the job saves and all its replicas restart.
So does a job whose bounds allow no fewer replicas, if there is no time to move.
"""

from collections.abc import Collection, Mapping
from typing import Final, Literal

from elastic_tfjob.scheduling.plan import Assignment, Cause
from elastic_tfjob.scheduling.reasons import Reason, added
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, Placement, Snapshot, counts_of
from elastic_tfjob.scheduling.steps.sizes import Downward, changes_live, largest

__all__ = ["LAST_CHANCE_S", "Outcome", "leave", "next_chance_s", "outcome_of", "seconds_left", "set_fewer"]

LAST_CHANCE_S: Final = 30.0
"""A job that can only save does so this many seconds before its node is gone: until then there may be room
elsewhere."""
PREPARE_S: Final = 30.0
"""The expected seconds until a new replica's program is ready, for a job of which they are not known."""

FORK_S: Final = 7.0
"""Most seconds until replicas that stay have forked the program of the next size."""
LIVE_S: Final = 5.0
"""Most seconds until workers have left a program that stays."""
SWITCH_S: Final = 5.0
"""Most seconds from then until the next size trains."""

Outcome = Literal["moved", "shrunk", "saved", "lost"]
"""How a job met the end of a node: its replicas moved, it continued with fewer, it saved and restarted or waited, or it
was still there."""


def seconds_left(snapshot: Snapshot, names: Collection[str]) -> float | None:
    """Seconds until the first of these nodes is gone; None: no time is known for any of them."""
    known = [snapshot.leaving[name] - snapshot.now for name in names if name in snapshot.leaving]
    return max(0.0, min(known)) if known else None


def next_chance_s(leaving: Mapping[str, float], now: float) -> float | None:
    """The next time at which a job on one of these nodes has to decide again although nothing has changed; None:
    never."""
    return min((at for gone_s in leaving.values() if (at := gone_s - LAST_CHANCE_S) > now), default=None)


def outcome_of(before: Counts, change: Assignment) -> Outcome:
    """What becomes of a job with these replicas by a change with which it leaves a node."""
    if change.cause == "notice":
        return "saved"
    after = change.replicas
    return "shrunk" if any(after.get(type_, 0) < n for type_, n in before.items()) else "moved"


def leave(round_: Round, job: Job, wanted: Counts, lost: Collection[str], left_s: float) -> None:
    """Take a job off the nodes `lost`, which are gone in `left_s` seconds: to the size `wanted` by moves if these end
    in time, else to fewer replicas, else by a restart elsewhere. Where there is no room, it stops at the last
    chance."""
    _leave(round_, job, wanted, lost, left_s)
    if job.key in round_.changes:
        round_.left.add(job.key)


def _leave(round_: Round, job: Job, wanted: Counts, lost: Collection[str], left_s: float) -> None:
    why = Reason("taken-away", {"nodes": tuple(sorted(lost)), "left_s": round(left_s)})
    stays = (job.placement.get(job.spec.leader) or ("",))[0] not in lost
    takes_s = PREPARE_S if job.prepare_s is None else job.prepare_s
    in_time = left_s >= takes_s + LAST_CHANCE_S
    if in_time and round_.set_size(job, wanted, why, "repair"):
        return
    if stays and (fewer := _without(job, lost)) is not None:
        another_s = SWITCH_S + (FORK_S if job.warm_start else takes_s)
        quick = left_s >= (LIVE_S if changes_live(job, counts_of(fewer)) else another_s)
        round_.assign(job, fewer, added(why, fewer=True) if in_time else why, "repair" if quick else "notice")
        return
    if in_time and _elsewhere(round_, job, wanted, why, "repair"):
        return
    if not _elsewhere(round_, job, wanted, why, "notice") and left_s <= LAST_CHANCE_S:
        round_.stop(job, why, "notice")


def _elsewhere(round_: Round, job: Job, wanted: Counts, why: Reason, cause: Cause) -> bool:
    """Whether the job gets the largest size, up to the one wanted, that has room without the lost nodes."""
    return round_.set_size(job, wanted, why, cause) or set_fewer(round_, job, wanted, why, cause)


def set_fewer(round_: Round, job: Job, wanted: Counts, why: Reason, cause: Cause) -> bool:
    """Give a job that may be resized the largest size below this one that has room; whether there is one."""
    why = added(why, fewer=True)
    sizes = Downward(job, wanted)
    return job.spec.resizable and largest(round_, job, sizes, lambda n: round_.set_size(job, n, why, cause)) >= 0


def _without(job: Job, lost: Collection[str]) -> Placement | None:
    """The placement without the replicas on these nodes, if the bounds allow it. The last replicas that stay take the
    indices of those that go, so that as few as possible change theirs."""
    if not job.spec.resizable:
        return None
    stays: dict[str, tuple[str, ...]] = {}
    for group in job.spec.groups:
        names = job.placement.get(group.type, ())
        n = sum(name not in lost for name in names)
        if n < group.minimum or (names and not n):
            return None
        later = [name for name in names[n:] if name not in lost]
        stays[group.type] = tuple(later.pop() if name in lost else name for name in names[:n])
    return {type_: names for type_, names in stays.items() if names}

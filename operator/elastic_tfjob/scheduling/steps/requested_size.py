"""Running jobs to the size that a person asks for, whatever the profile.

A person asks by the annotations `target-workers` and `target-ps`, by an edit of the spec, or by other bounds. The
operator sets a job's bounds to the size asked for (`JobSpec.asked` has the words), so that no step changes it again.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from elastic_tfjob.scheduling.preferences import place_preferring
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.room import lacking, lost_nodes, shrunk
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, Snapshot

__all__ = [
    "SizeRequests",
    "explain_unmet_sizes",
    "requested_size",
    "resize_as_requested",
    "size_reason",
    "size_requests",
]


_EXPLAINED: Final = 50
"""Jobs whose requested size is explained in one round: each takes a millisecond on a large cluster."""


class SizeRequests:
    """An index of the `keys` of jobs to resize, so that a round does not look at all the others."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.keys: dict[str, None] = {}
        for job in snapshot.jobs.values():
            self.change(None, job, snapshot.now)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None and self.keys:
            self.keys.pop(before.spec.key, None)
        if after is not None and after.placement and requested_size(after) is not None:
            self.keys[after.spec.key] = None

    def change_nodes(self, nodes: object) -> bool:
        """Sizes do not depend on nodes."""
        return True


def size_requests(snapshot: Snapshot) -> SizeRequests:
    return SizeRequests(snapshot)


def requested_size(job: Job) -> Counts | None:
    """The size to which a running job has to be rescaled: the nearest within its bounds. None: it has that size."""
    if not job.placement or not job.spec.resizable:
        return None
    held = {type_: n for type_, n in job.counts.items() if n}
    nearest = job.spec.within_bounds(held)
    return None if nearest == held else nearest


def size_reason(job: Job) -> Reason:
    """The reason of a resize to the requested size."""
    return Reason("requested-size" if job.spec.asked else "bounds", {"by": job.spec.asked})


def resize_as_requested(round_: Round, requests: SizeRequests) -> None:
    """Bring each job to its requested size, whatever its cooldown. A size that has no room is in `Round.unmet`.

    A job that has lost nodes is left to `repair`, which replaces them and resizes it at once.
    """
    for key in sorted(requests.keys):
        job = round_.job(key)
        wanted = requested_size(job)
        if wanted is None or job.phase != "running" or not round_.placement(job):
            continue
        if lost_nodes(job.placement, round_.snapshot.nodes):
            continue
        if not round_.set_size(job, wanted, size_reason(job), "asked"):
            round_.unmet[key] = wanted


def explain_unmet_sizes(round_: Round) -> None:
    """Note why running jobs do not have the size that a person requests when the round's steps are done. Call it last:
    CPU that is lent counts as free, since it is given back for a requested size."""
    unmet = [job for key in round_.unmet if requested_size(job := round_.job(key)) and not _changes(round_, job)]
    if not unmet:
        return
    mark = round_.room.mark()
    for job in round_.running_in_order():
        if cpu := round_.cpu(job):
            round_.room.book_cpu(job.spec, round_.placement(job), cpu, -1)
    for job in unmet[:_EXPLAINED]:
        wanted = round_.unmet[job.key]
        limit = round_.quota.limits(job, wanted) if round_.quota is not None else None
        if reason := limit or _no_room(round_, job, wanted):
            round_.sizes_without_room[job.key] = reason
    round_.room.rollback(mark)


def _changes(round_: Round, job: Job) -> bool:
    return round_.placement(job) != job.placement or bool(lost_nodes(job.placement, round_.snapshot.nodes))


def _no_room(round_: Round, job: Job, wanted: Counts) -> Reason | None:
    """How much of a size has room, found by bisection over the replicas that the job lacks, one of each type in turn;
    None: all of it has room by now."""
    room, kept = round_.room, shrunk(job.placement, wanted)
    before = room.mark()
    room.give(job.spec, {type_: names[len(kept.get(type_, ())) :] for type_, names in job.placement.items()})
    lacks = lacking(kept, wanted)
    turns = sorted((k / n, type_) for type_, n in lacks.items() for k in range(1, n + 1))
    least, beyond = 0, len(turns) + 1
    while beyond - least > 1:
        half, mark = (least + beyond) // 2, room.mark()
        if place_preferring(round_.rules.place, job.spec, _of(turns[:half]), room, kept) is None:
            beyond = half
        else:
            least = half
        room.rollback(mark)
    room.rollback(before)  # other jobs cannot have what this one would give up
    if least == len(turns):
        return None
    more = _of(turns[:least])
    fits = {type_: len(kept.get(type_, ())) + more.get(type_, 0) for type_ in lacks}
    return Reason("size-no-room", {"wanted": {type_: wanted[type_] for type_ in lacks}, "fits": fits})


def _of(turns: Sequence[tuple[float, str]]) -> Counts:
    return Counter(type_ for _, type_ in turns)

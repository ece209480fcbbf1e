"""Running jobs to the size that a person asks for, whatever the profile.

A person asks by the annotations `target-workers` and `target-ps`, by an edit of the spec, or by other bounds. The
operator sets a job's bounds to the size asked for (`JobSpec.asked` has the words), so that no step changes it again.
"""

from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.room import lost_nodes
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, Snapshot

__all__ = ["SizeRequests", "requested_size", "resize_as_requested", "size_reason", "size_requests"]


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

"""Running jobs that have lost nodes, or CPU that the profile does not adjust, whatever the profile."""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from elastic_tfjob.scheduling.plan import Cause
from elastic_tfjob.scheduling.profile import Step
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.room import lost_nodes
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import OUTGROWN, Counts, Job, Node, Snapshot, counts_of
from elastic_tfjob.scheduling.steps.leave import leave, seconds_left, set_fewer
from elastic_tfjob.scheduling.steps.requested_size import requested_size, size_reason

__all__ = ["sharing"]


class RepairCandidates:
    """An index of the jobs that may need repair, so that a round need not look at the others. `keys`: jobs with lost
    nodes. `lent`: jobs whose replicas hold a different CPU share than they request."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes = snapshot.nodes
        self.keys: dict[str, None] = {}
        self.lent: dict[str, None] = {}
        for job in snapshot.jobs.values():
            self.change(None, job, snapshot.now)

    def change(self, before: Job | None, after: Job | None, now: float) -> None:
        if before is not None:
            self.keys.pop(before.spec.key, None)
            self.lent.pop(before.spec.key, None)
        if after is None or not after.placement:
            return
        if lost_nodes(after.placement, self.nodes):
            self.keys[after.spec.key] = None
        if after.cpu:
            self.lent[after.spec.key] = None

    def change_nodes(self, nodes: Mapping[str, Node]) -> bool:
        """Only the names of the nodes matter here."""
        same = self.nodes.keys() == nodes.keys()
        self.nodes = nodes
        return same


def repair_candidates(snapshot: Snapshot) -> RepairCandidates:
    return RepairCandidates(snapshot)


def repair(round_: Round, candidates: RepairCandidates) -> None:
    """Place replicas of lost nodes elsewhere, whatever the job's cooldown, and bring the job to its requested size at
    once.

    Where a lost replica finds no room, a job that may be rescaled continues with fewer, down to its minimum. Under a
    profile that does not adjust CPU, all jobs get back the CPU that they request.
    """
    for key in sorted(candidates.keys if round_.rules.adjusts_cpu else {**candidates.keys, **candidates.lent}):
        job = round_.job(key)
        if job.phase != "running" or not round_.placement(job):
            continue
        requested = requested_size(job)
        if not lost_nodes(job.placement, round_.snapshot.nodes):
            if requested is None and job.cpu and not round_.rules.adjusts_cpu:
                round_.assign(job, job.placement, Reason("cpu-as-requested"))
            continue
        wanted = requested if requested is not None else {t: n for t, n in job.counts.items() if n}
        if (left_s := _notice_s(round_, job)) is not None:
            leave(round_, job, wanted, lost_nodes(job.placement, round_.snapshot.nodes), left_s)
        elif not _repair(round_, job, wanted):
            round_.unmet[key] = wanted


def _notice_s(round_: Round, job: Job) -> float | None:
    """Seconds until a node of a job is taken away, if the job can leave it; else None."""
    snapshot = round_.snapshot
    if not snapshot.leaving or not job.spec.stoppable:
        return None
    return seconds_left(snapshot, lost_nodes(job.placement, snapshot.nodes))


def repair_late(round_: Round) -> None:
    """Repair again what found no room when the round began: requested sizes, and lost nodes at the size that the
    round's steps have given the job."""
    for key, wanted in round_.unmet.items():
        job = round_.job(key)
        held = round_.placement(job)
        if held == job.placement:
            _repair(round_, job, wanted)
        elif lost_nodes(held, round_.snapshot.nodes):
            _repair(round_, job, counts_of(held))


def _repair(round_: Round, job: Job, wanted: Counts) -> bool:
    """Whether the job has this size now. A job with lost nodes may end up with a smaller one."""
    why, cause = repair_reason(job, round_.snapshot.nodes)
    if round_.set_size(job, wanted, why, cause):
        return True
    lost = lost_nodes(job.placement, round_.snapshot.nodes)
    if any(not name.endswith(OUTGROWN) for name in lost):
        set_fewer(round_, job, wanted, why, cause)
    return False


def repair_reason(job: Job, nodes: Mapping[str, Node]) -> tuple[Reason, Cause]:
    """Why a running job cannot stay as it is: it has lost nodes, or a person asks for another size."""
    if not (lost := lost_nodes(job.placement, nodes)):
        return size_reason(job), "asked"
    asked = {"by": job.spec.asked} if requested_size(job) is not None else {}
    return Reason("lost", {"gone": tuple(lost), **asked}), "repair"


# -- Steps of one profile that share a value in a round ----------------------------------------------------------------

T = TypeVar("T")


def sharing(step: Callable[[T], None], key: Hashable, make: Callable[[Round], T]) -> Step:
    """A step of a Round from a step of a shared value. All steps with the same key share the value of a round, which
    the first of them builds with `make`."""

    def act(round_: Round) -> None:
        step(round_.shared(key, lambda: make(round_)))

    return act

"""What is free in all, where jobs may run, and what they claim of it."""

from collections.abc import Sequence, Set

from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Placement
from elastic_tfjob.scheduling.toolkit.open_jobs import OpenJobs, Unsized
from elastic_tfjob.scheduling.toolkit.outside import nodes_outside

__all__ = ["Claims", "claims_of", "reachable_total"]


class Claims(OpenJobs[Unsized]):
    """The open jobs with what each claims of what there is for all: what it holds, but no more than it declares, and
    less where it was robbed of nodes; and the sum."""

    claims: list[Resources]
    total: Resources

    def _know(self) -> None:
        super()._know()
        self.claims = [_claim(job.spec, job.placement) for job in self.jobs]
        self.total = NOTHING
        for claim in self.claims:
            self.total = self.total.plus(claim)

    def _removed(self, k: int) -> None:
        super()._removed(k)
        self.total = self.total.minus(self.claims.pop(k))

    def _inserted(self, k: int, job: Job) -> None:
        super()._inserted(k, job)
        claim = _claim(job.spec, job.placement)
        self.claims.insert(k, claim)
        self.total = self.total.plus(claim)


def reachable_total(round_: Round) -> Resources:
    """What is free on nodes where at least one of the Snapshot's jobs may run."""
    room = round_.room
    total = room.free_total
    for i in nodes_outside(round_):
        total = total.minus(room.free(i))
    return total


def claims_of(round_: Round, jobs: Claims) -> tuple[Sequence[Resources], Resources]:
    """What each of these jobs claims as the round stands, and the sum. Its replicas on nodes that are gone, or where no
    job may run any more, do not count: they would leave nothing to anybody."""
    room, outside = round_.room, nodes_outside(round_)
    if room.holds_elsewhere or any(room.free(i) != room.usable[i] for i in outside):
        there = {name for name, i in room.index.items() if i not in outside}
        differ = {k: _within(round_.placement(job), there) for k, job in enumerate(jobs.jobs)}
    else:  # as nearly always: none is there
        places = ((jobs.place(key), target.nodes) for key, target in round_.changes.items())
        differ = {k: nodes for k, nodes in places if k is not None}
    if not differ:
        return jobs.claims, jobs.total
    claims, total = list(jobs.claims), jobs.total
    for k, placement in differ.items():
        claim = _claim(jobs.jobs[k].spec, placement)
        total = total.minus(claims[k]).plus(claim)
        claims[k] = claim
    return claims, total


def _within(placement: Placement, there: Set[str]) -> Placement:
    return {type_: tuple(name for name in names if name in there) for type_, names in placement.items()}


def _claim(spec: JobSpec, placement: Placement) -> Resources:
    for type_, n in spec.declared.items():
        if len(placement.get(type_, ())) < n:
            return spec.demand({t: min(most, len(placement.get(t, ()))) for t, most in spec.declared.items()})
    return spec.declared_demand

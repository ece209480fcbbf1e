"""CPU in place for jobs that meet their deadlines with more of it than they request, and not without."""

from collections.abc import Iterator
from math import inf
from typing import Final

from elastic_tfjob.scheduling.forecasts import prediction_of, work_left
from elastic_tfjob.scheduling.snapshot import AS_REQUESTED, Cpu, Job
from elastic_tfjob.scheduling.toolkit.cpu_grants import Claim
from elastic_tfjob.scheduling.toolkit.cpu_in_place import CpuInPlace, adjustable, millicores

__all__ = ["raise_late"]

TIMES: Final = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Of what its replicas request: the least of these that is enough is what a job gets, and what it holds now where none
is. The law of utilisation says how fast it will be then, and that is no more precise than these steps."""
MARGIN: Final = 0.1
"""Part of the time left that is kept: the law's error."""


def raise_late(lending: CpuInPlace) -> None:
    """In the order of deadlines, and before CPU is lent to whoever is busy. A job that would be late all the same is
    left to that, and so is one for which its nodes have too little left."""
    late = [(job.spec.deadline_s or inf, job.key, job, wants) for job, wants in _late(lending)]
    for _, _, job, wants in sorted(late, key=lambda each: each[:2]):
        claims = list(_claims(lending, job, wants))
        lending.grants.water_fill(claims)
        if any(lending.grants.held(job, claim.type, claim.replica) < claim.want for claim in claims):
            lending.grants.withdraw(job)


def _late(lending: CpuInPlace) -> Iterator[tuple[Job, Cpu]]:
    """Jobs that need more than they request, with the millicores that are enough."""
    for job in adjustable(lending):
        if wants := _needs(lending, job):
            yield job, wants
    for job in lending.lent:
        # What it uses is measured anew after each change: meanwhile it needs what it was given.
        there = lending.round.placement(job) == job.placement
        if not job.cpu_use and there and _left(lending, job) is not None:
            yield job, job.cpu


def _left(lending: CpuInPlace, job: Job) -> tuple[float, float] | None:
    """Steps that are left, and seconds for them; None: it has no deadline to meet, or CPU does nothing for that."""
    spec, snapshot = job.spec, lending.round.snapshot
    if spec.deadline_s is None or spec.fixed_cpu or not job.cpu_limited:
        return None
    by_s = (1 - MARGIN) * (spec.deadline_s - snapshot.now)
    left = work_left(job, snapshot.now, snapshot.past(spec))
    return (left[0], by_s) if left is not None and by_s > 0 else None


def _needs(lending: CpuInPlace, job: Job) -> Cpu:
    """Empty: what it requests is enough, or nothing is."""
    spec, snapshot = job.spec, lending.round.snapshot
    if (work := _left(lending, job)) is None:
        return AS_REQUESTED
    left, by_s = work
    if not job.cpu and left <= job.steps_per_s * by_s:
        return AS_REQUESTED
    known = prediction_of(job, snapshot.past(spec), snapshot.nodes)
    for times in TIMES:
        each = {type_: millicores(times * spec.requested_cpu(type_)) for type_ in job.placement}
        rate = known.at(job.counts, each)
        if rate is not None and left <= rate.steps_per_s * by_s:
            return {t: (each[t],) * n for t, n in job.counts.items()} if times > 1 else AS_REQUESTED
    return job.cpu if left <= job.steps_per_s * by_s else AS_REQUESTED


def _claims(lending: CpuInPlace, job: Job, wants: Cpu) -> Iterator[Claim]:
    for type_, names in lending.round.placement(job).items():
        yield from (Claim(job, type_, k, want) for k, want in enumerate(wants.get(type_, ())[: len(names)]))

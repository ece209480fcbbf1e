"""CPU in place for jobs that meet their deadlines with more of it than they request, and not without."""

from collections.abc import Iterator
from math import inf
from typing import Final

from elastic_tfjob.scheduling.forecasts import expected_rate, work_left
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.toolkit.cpu_grants import Claim
from elastic_tfjob.scheduling.toolkit.cpu_in_place import CpuInPlace, adjustable, millicores

__all__ = ["raise_late"]

TIMES: Final = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Of what its replicas request: the least of these that is enough is what a job gets. The law of utilisation says how
fast it will be then, and that is no more precise than these steps."""
MARGIN: Final = 0.1
"""Part of the time left that is kept: the law's error."""


def raise_late(lending: CpuInPlace) -> None:
    """In the order of deadlines, and before CPU is lent to whoever is busy. A job that would be late all the same is
    left to that."""
    late = [
        (job.spec.deadline_s or inf, job.key, times, job)
        for job in adjustable(lending)
        if (times := _needs(lending, job))
    ]
    for _, _, times, job in sorted(late, key=lambda each: each[:2]):
        lending.grants.water_fill(_claims(lending, job, times))


def _needs(lending: CpuInPlace, job: Job) -> float:
    """How much of what its replicas request is enough, times; 0: no more than that, or nothing is."""
    spec, snapshot = job.spec, lending.round.snapshot
    if spec.deadline_s is None or spec.fixed_cpu or not job.cpu_limited:
        return 0.0
    by_s, past = (1 - MARGIN) * (spec.deadline_s - snapshot.now), snapshot.past(spec)
    left = work_left(job, snapshot.now, past)
    if left is None or by_s <= 0:
        return 0.0
    if not job.cpu and left[0] <= job.steps_per_s * by_s:
        return 0.0
    for times in TIMES:
        cpu = {t: tuple(millicores(times * spec.requested_cpu(t)) for _ in names) for t, names in job.placement.items()}
        rate = expected_rate(job, placement=job.placement, cpu=cpu, past=past, nodes=snapshot.nodes)
        if rate is not None and left[0] <= rate.steps_per_s * by_s:
            return times if times > 1 else 0.0
    return 0.0


def _claims(lending: CpuInPlace, job: Job, times: float) -> Iterator[Claim]:
    for type_, names in lending.round.placement(job).items():
        want = millicores(times * job.spec.requested_cpu(type_))
        yield from (Claim(job, type_, k, want) for k in range(len(names)))

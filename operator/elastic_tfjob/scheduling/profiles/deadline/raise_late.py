"""CPU in place for jobs that meet their deadlines with more of it than they request, and not without.

It costs no start, so it comes before another size: `Raises`, while sizes are chosen. Jobs whose size is not chosen in
this round get it afterwards: `raise_late`.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from elastic_tfjob.scheduling.forecasts import prediction_of, work_left
from elastic_tfjob.scheduling.profiles.deadline.curves import Curve
from elastic_tfjob.scheduling.profiles.deadline.outlook import Case
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Cpu, Job
from elastic_tfjob.scheduling.toolkit.cpu_grants import Claim
from elastic_tfjob.scheduling.toolkit.cpu_in_place import CpuInPlace, adjusts, millicores

__all__ = ["Raises", "raise_late"]

TIMES: Final = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Of what its replicas request: the least of these that is enough is what a job gets, and what it holds now where none
is. The law of utilisation says how fast it will be then, and that is no more precise than these steps."""
MARGIN: Final = 0.1
"""Part of the time left that is kept: the law's error."""


class Want(NamedTuple):
    """Millicores by replica that are enough for a deadline, and the steps per second expected with them."""

    cpu: Cpu
    steps_per_s: float


class Raises:
    """Running jobs that keep their size, with more CPU. Their curves end there, faster and with that CPU."""

    def __init__(self, lending: CpuInPlace) -> None:
        self._lending = lending
        self._before: dict[str, Curve] = {}

    def take(self, case: Case) -> bool:
        """Whether its nodes have the CPU with which it is in time as it is; that is then set aside there."""
        job, curve, row = case.job, case.curve, case.current
        want = _want(self._lending, job) if row else None
        if want is None or not _granted(self._lending, job, want):
            return False
        self._before[job.key] = curve
        case.curve = _ending(curve, row, want.steps_per_s, Resources(job.spec.extra_cpu(want.cpu)))
        return True

    def withdraw(self, case: Case) -> None:
        """The job may get another size after all."""
        curve = self._before.pop(case.job.key, None)
        if curve is not None:
            case.curve = curve
            self._lending.grants.withdraw(case.job)


def raise_late(lending: CpuInPlace) -> None:
    """In the order of deadlines, and before CPU is lent to whoever is busy. A job that would be late all the same is
    left to that, and so is one for which its nodes have too little left."""
    jobs = {job.key: job for job in (*map(lending.round.job, lending.busy), *lending.lent)}
    late = [(job.spec.deadline_s or inf, key, want) for key, job in jobs.items() if (want := _want(lending, job))]
    for _, key, want in sorted(late, key=lambda each: each[:2]):
        _granted(lending, jobs[key], want)


def _ending(curve: Curve, row: int, steps_per_s: float, more: Resources) -> Curve:
    """The curve up to this row, where the job is that fast with this much more."""
    rates, demand, share = (part[: row + 1].copy() for part in (curve.rates, curve.demand, curve.share))
    rates[row] = max(steps_per_s, rates[row])
    demand[row] += more
    return replace(curve, sizes=curve.sizes[:row], rates=rates, demand=demand, share=share)


def _granted(lending: CpuInPlace, job: Job, want: Want) -> bool:
    """Whether its nodes have all that: part of it would do nothing for the deadline."""
    claims = list(_claims(lending, job, want.cpu))
    lending.grants.water_fill(claims)
    if any(lending.grants.held(job, claim.type, claim.replica) < claim.want for claim in claims):
        lending.grants.withdraw(job)
        return False
    return True


def _want(lending: CpuInPlace, job: Job) -> Want | None:
    """None: what it requests is enough, or nothing is, or CPU does nothing for it."""
    round_, spec = lending.round, job.spec
    measured = job.key in lending.busy and adjusts(lending, job)
    # What it uses is measured anew after each change: meanwhile it needs what it was given.
    raised = bool(job.cpu) and not job.cpu_use and job.phase == "running" and round_.placement(job) == job.placement
    if spec.deadline_s is None or spec.fixed_cpu or not job.cpu_limited or not (measured or raised):
        return None
    by_s = (1 - MARGIN) * (spec.deadline_s - round_.now)
    left = work_left(job, round_.now, round_.snapshot.past(spec))
    if left is None or by_s <= 0:
        return None
    if raised:
        return Want(job.cpu, max(job.steps_per_s, left[0] / by_s))
    return _least(lending, job, left[0] / by_s)


def _least(lending: CpuInPlace, job: Job, steps_per_s: float) -> Want | None:
    """The least with which it is that fast."""
    spec, snapshot = job.spec, lending.round.snapshot
    if not job.cpu and job.steps_per_s >= steps_per_s:
        return None
    known = prediction_of(job, snapshot.past(spec), snapshot.nodes)
    for times in TIMES:
        each = {type_: millicores(times * spec.requested_cpu(type_)) for type_ in job.placement}
        rate = known.at(job.counts, each)
        if rate is not None and rate.steps_per_s >= steps_per_s:
            return Want({t: (each[t],) * n for t, n in job.counts.items()}, rate.steps_per_s) if times > 1 else None
    return Want(job.cpu, job.steps_per_s) if job.cpu and job.steps_per_s >= steps_per_s else None


def _claims(lending: CpuInPlace, job: Job, wants: Cpu) -> Iterator[Claim]:
    for type_, names in lending.round.placement(job).items():
        yield from (Claim(job, type_, k, want) for k, want in enumerate(wants.get(type_, ())[: len(names)]))

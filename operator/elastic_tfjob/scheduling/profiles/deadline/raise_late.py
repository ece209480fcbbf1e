"""CPU in place for jobs that meet their deadlines with more of it than they request, and not without.

It costs no start, so it comes before another size: `Raises`, while sizes are chosen. Jobs whose size is not chosen in
this round get it afterwards: `raise_late`.
"""

from collections.abc import Iterator, Set
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from elastic_tfjob.scheduling.forecasts import prediction_of, work_left
from elastic_tfjob.scheduling.profiles.deadline.curves import Curve
from elastic_tfjob.scheduling.profiles.deadline.outlook import Case, Outlook, settled
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import EVALUATOR, Cpu, Job
from elastic_tfjob.scheduling.toolkit.cpu_grants import Claim
from elastic_tfjob.scheduling.toolkit.cpu_in_place import CpuInPlace, adjusts, millicores

__all__ = ["Raises", "raise_late"]

TIMES: Final = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0)
"""Of what its busiest replicas request: the least of these that is enough is what those get, and what they hold now
where none is. The law of utilisation says how fast the job will be then, and is no more precise than these steps."""
MARGIN: Final = 0.1
"""Part of the time left that is kept: the law's error."""


class Want(NamedTuple):
    """Millicores by replica that are enough for a deadline, and the steps per second expected with them."""

    cpu: Cpu
    steps_per_s: float


class Raises:
    """Running jobs that keep their size, with more CPU. Their curves end there, faster and with that CPU. Jobs whose
    size is not chosen in this round have their turn among the others."""

    def __init__(self, lending: CpuInPlace, outlook: Outlook) -> None:
        self._lending, self._outlook = lending, outlook
        chosen = {case.job.key for case in outlook.cases}
        self._others = _late(lending, chosen)[::-1]
        self._before: dict[str, Curve] = {}

    def take(self, case: Case) -> bool:
        """Whether its nodes have the CPU with which it is in time as it is; that is then set aside there."""
        job, curve, row, outlook = case.job, case.curve, case.current, self._outlook
        believed = row and settled(job, outlook.round.now, outlook.settings.settle_s)
        want = _want(self._lending, job, spare=0.0) if believed else None
        if want is None or not _granted(self._lending, job, want):
            return False
        self._before[job.key] = curve
        case.curve = _ending(curve, row, want.steps_per_s, Resources(job.spec.extra_cpu(want.cpu)), outlook.total)
        return True

    def withdraw(self, case: Case) -> None:
        """The job may get another size after all."""
        curve = self._before.pop(case.job.key, None)
        if curve is not None:
            case.curve = curve
            self._lending.grants.withdraw(case.job)

    def withdraw_all(self) -> None:
        """As if none had been raised; the curves stay as they are."""
        for job in [*self._lending.grants.jobs.values()]:
            self._lending.grants.withdraw(job)

    def came_before(self, case: Case) -> bool:
        """Whether a job with a later deadline was raised, or any, where it is to show its speed first."""
        raised = [_deadline(job) for job in self._lending.grants.jobs.values()]
        return bool(raised) and (case.probe or _deadline(case.job) < max(raised))

    def take_before(self, case: Case) -> None:
        """Have those with earlier deadlines whose size is not chosen take theirs."""
        while self._others and self._others[-1][0] < _deadline(case.job):
            by_s, key, want = self._others.pop()
            job = self._lending.round.job(key)
            if _granted(self._lending, job, want):
                more = Resources(job.spec.extra_cpu(want.cpu))
                self._outlook.timeline.hold(more, by_s - self._outlook.round.now)


def raise_late(lending: CpuInPlace) -> None:
    """In the order of deadlines, and before CPU is lent to whoever is busy. A job that would be late all the same is
    left to that, and so is one for which its nodes have too little left."""
    for _, key, want in _late(lending):
        _granted(lending, lending.round.job(key), want)


def _deadline(job: Job) -> float:
    return inf if job.spec.deadline_s is None else job.spec.deadline_s


def _late(lending: CpuInPlace, without: Set[str] = frozenset()) -> list[tuple[float, str, Want]]:
    """Deadlines and keys of the jobs that need more than they request, the earliest first, with what is enough."""
    jobs = {job.key: job for job in lending.lent if job.key not in without}
    jobs |= {key: lending.round.job(key) for key in lending.busy if key not in without}
    late = [(_deadline(job), key, want) for key, job in jobs.items() if (want := _want(lending, job))]
    return sorted(late, key=lambda each: each[:2])


def _ending(curve: Curve, row: int, steps_per_s: float, more: Resources, total: Resources) -> Curve:
    """The curve up to this row, where the job is that fast with this much more."""
    rates, demand, share = (part[: row + 1].copy() for part in (curve.rates, curve.demand, curve.share))
    rates[row] = max(steps_per_s, rates[row])
    demand[row] += more
    share[row] = max(share[row], Resources(*demand[row].tolist()).dominant_share(total))
    return replace(curve, sizes=curve.sizes[:row], rates=rates, demand=demand, share=share)


def _granted(lending: CpuInPlace, job: Job, want: Want) -> bool:
    """Whether its nodes have all that: part of it would do nothing for the deadline."""
    claims = list(_claims(lending, job, want.cpu))
    lending.grants.water_fill(claims)
    if any(lending.grants.held(job, claim.type, claim.replica) < claim.want for claim in claims):
        lending.grants.withdraw(job)
        return False
    return True


def _want(lending: CpuInPlace, job: Job, spare: float = MARGIN) -> Want | None:
    """What is enough with a margin; None: what it requests is enough with this part of the time left to spare, or
    nothing is, or CPU does nothing for it."""
    round_, spec = lending.round, job.spec
    measured = job.key in lending.busy and adjusts(lending, job)
    # What it uses is measured anew after each change: meanwhile it needs what it was given.
    raised = bool(job.cpu) and not job.cpu_use and job.phase == "running" and round_.placement(job) == job.placement
    if spec.deadline_s is None or spec.fixed_cpu or not job.cpu_limited or not (measured or raised):
        return None
    left_s = spec.deadline_s - round_.now
    left = work_left(job, round_.now, round_.snapshot.past(spec))
    if left is None or left_s <= 0:
        return None
    in_time, aimed = (left[0] / (left_s * (1 - part)) for part in (spare, MARGIN))
    return (_still if raised else _least)(lending, job, in_time, aimed)


def _still(lending: CpuInPlace, job: Job, in_time: float, aimed: float) -> Want | None:
    """What it holds, if it may make `aimed` steps per second with that, and surely not `in_time` with what it requests:
    the speed that it shows may be from before the last change."""
    requested = job.spec.requested_cpu
    parts = [min(1.0, requested(type_) / held) for type_, each in job.cpu.items() for held in each if held]
    least = min(parts, default=1.0)
    if job.steps_per_s * least >= in_time or aimed > job.steps_per_s / (least or 1.0):
        return None
    return Want(job.cpu, max(job.steps_per_s, aimed))


def _least(lending: CpuInPlace, job: Job, in_time: float, aimed: float) -> Want | None:
    """The least with which it makes `aimed` steps per second, where it makes less than `in_time` as requested."""
    spec, snapshot = job.spec, lending.round.snapshot
    if not job.cpu and job.steps_per_s >= in_time:
        return None
    known = prediction_of(job, snapshot.past(spec), snapshot.nodes)
    for times in TIMES:
        each = _balanced(job, times)
        rate = known.at(job.counts, each)
        if rate is None:
            continue
        if times == 1 and rate.steps_per_s >= in_time:
            return None
        if times > 1 and rate.steps_per_s >= aimed:
            return Want({t: (each[t],) * n for t, n in job.counts.items()}, rate.steps_per_s)
    return Want(job.cpu, job.steps_per_s) if job.cpu and job.steps_per_s >= aimed else None


def _balanced(job: Job, times: float) -> dict[str, int]:
    """Millicores of a replica by type, where those that set the pace get so many times their request. The others get
    what the law asks for beside that, no less than they request: in proportion to their work where types work at once,
    and by its root where they take turns (then a step is shortest for all the CPU together)."""
    requested = {type_: job.spec.requested_cpu(type_) for type_, n in job.counts.items() if n}
    use = {type_: u for type_, u in job.cpu_use.items() if type_ in requested and type_ != EVALUATOR}
    work = {type_: u * job.held_cpu(type_) / job.counts[type_] for type_, u in use.items()}
    pace = max(use, key=lambda type_: (use[type_], type_), default="")
    if not work.get(pace):
        return {type_: millicores(each) for type_, each in requested.items()}
    power = 1.0 if sum(use.values()) > 1 else 0.5
    top = times * requested[pace]
    return {
        type_: millicores(max(each, top * (work[type_] / work[pace]) ** power if type_ in work else 0.0))
        for type_, each in requested.items()
    }


def _claims(lending: CpuInPlace, job: Job, wants: Cpu) -> Iterator[Claim]:
    for type_, names in lending.round.placement(job).items():
        yield from (Claim(job, type_, k, want) for k, want in enumerate(wants.get(type_, ())[: len(names)]))

"""The jobs whose sizes are planned together: those with deadlines, and those whose speed at other sizes is known."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from elastic_tfjob.scheduling.profiles.deadline import DeadlineParameters
from elastic_tfjob.scheduling.profiles.deadline.admit import guarantee, probe
from elastic_tfjob.scheduling.profiles.deadline.carry_out import carry_out
from elastic_tfjob.scheduling.profiles.deadline.outlook import Case, Outlook
from elastic_tfjob.scheduling.profiles.kips.back import rested
from elastic_tfjob.scheduling.resources import NOTHING
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job
from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = ["Planned", "plan", "planned", "told"]

MEASURED: Final = 5
"""Speeds measured at so many sizes tell those at others: as many as Optimus' formula has coefficients, and one."""


def told(job: Job) -> bool:
    """Whether its speed at other sizes is known, other than from CPU use. The others grow by how busy their replicas
    are: what a program shows while it runs says more than speeds measured with other CPU."""
    if isinstance(job.speed, OnlineSpeed):
        return bool(job.placement) and not job.cpu_use and len(job.speed.measured) >= MEASURED
    return job.speed is not None


def planned(job: Job, now: float) -> bool:
    """Whether the job's size is planned: not for a deadline that has passed."""
    by = job.spec.deadline_s
    return told(job) or (by is not None and by > now and job.spec.total_steps is not None)


@dataclass(frozen=True, slots=True)
class Planned:
    """Which jobs a round has planned, by their keys; `least`: the least sizes of those that may give what they have
    beyond."""

    keys: Set[str] = frozenset()
    least: Mapping[str, Counts] = field(default_factory=dict)


def plan(round_: Round, *, settings: DeadlineParameters) -> Planned:
    """Deadlines first, then who gains most. Jobs whose size is not planned stay as they are, unless with the room of
    those that run more deadlines are met, or fewer jobs have to stop."""

    def free(job: Job) -> bool:
        """Not one that has gone back from a larger size, and keeps the one that was faster for a while."""
        return told(job) or not job.placement or rested(job, round_)

    outlook = _promised(Outlook(round_, settings, lambda job: planned(job, round_.now) and free(job)))
    stops = keep_running(outlook)
    late = any(case.why.code == "deadline-no-room" for case in outlook.cases)
    if outlook.left_out and (stops or late):
        whole = _promised(
            Outlook(round_, settings, lambda job: (planned(job, round_.now) or bool(job.placement)) and free(job))
        )
        more, fewer = _met(whole, outlook) - _met(outlook, outlook), stops - keep_running(whole)
        if more > 0 or (not more and fewer > 0):
            outlook = whole
    if not outlook.cases and not outlook.unfit:
        return Planned()
    least = {case.job.key: case.wanted or {} for case in outlook.cases if _by_use(case)}
    keep_size(outlook)
    carry_out(outlook)
    return Planned(frozenset(case.job.key for case in outlook.cases), least)


def _met(outlook: Outlook, of: Outlook) -> int:
    """How many of the jobs of one outlook meet their deadlines by another."""
    keys = {case.job.key for case in of.cases}
    return sum(case.booking is not None for case in outlook.cases if case.job.key in keys)


def _by_use(case: Case) -> bool:
    return not case.probe and not told(case.job)


def _promised(outlook: Outlook) -> Outlook:
    probe(outlook)
    guarantee(outlook)
    return outlook


def keep_running(outlook: Outlook) -> int:
    """A job that runs keeps at least its least size, where deadlines leave room: nobody is stopped for a gain. Returns
    how many are stopped."""
    room, held, stops = outlook.room_now(), NOTHING, 0
    for case in outlook.cases:
        if case.row or not case.job.placement:
            continue
        demand = case.job.spec.demand(case.curve.sizes[0])
        if demand.within(room):
            room, held = room.minus(demand), held.plus(demand)
            case.row = 1
        else:
            stops += 1
    outlook.timeline.hold(held, 0.0)
    return stops


def keep_size(outlook: Outlook) -> None:
    """A job whose speed elsewhere is expected only, not told, keeps the size that it has, or starts at the declared
    one, where there is room. It does not grow for that expectation: it grows by how busy its replicas are."""
    for case in outlook.cases:
        if not _by_use(case):
            continue
        job, curve = case.job, case.curve
        sizes, room = curve.sizes, outlook.room_now()
        promised = job.spec.demand(sizes[case.row - 1]) if case.row else NOTHING
        if job.placement and not case.current:
            beyond = job.holds.minus(promised).positive()
            if job.steps_per_s >= curve.plain.rates[case.row] and beyond.within(room):
                case.kept, case.beyond = True, beyond
                outlook.timeline.hold(beyond, 0.0)
            continue
        row = max(case.row, case.current if job.placement else _declared(case))
        beyond = job.spec.demand(sizes[row - 1]).minus(promised) if row else NOTHING
        if beyond.within(room):
            case.row, case.beyond = row, beyond
            outlook.timeline.hold(beyond, 0.0)
        case.most = case.row


def _declared(case: Case) -> int:
    """The largest size of the curve up to the declared one."""
    most = sum(case.job.spec.declared.values())
    return max((k for k, size in enumerate(case.curve.sizes, 1) if sum(size.values()) <= most), default=0)

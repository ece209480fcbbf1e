"""The jobs whose sizes are planned together: those with deadlines, and those whose speed at other sizes is known."""

from typing import Final

from elastic_tfjob.scheduling.profiles.deadline import DeadlineParameters
from elastic_tfjob.scheduling.profiles.deadline.admit import guarantee, probe
from elastic_tfjob.scheduling.profiles.deadline.carry_out import carry_out
from elastic_tfjob.scheduling.profiles.deadline.outlook import Outlook
from elastic_tfjob.scheduling.resources import NOTHING
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = ["plan", "planned"]

MEASURED: Final = 5
"""Speeds measured at so many sizes tell those at others: as many as Optimus' formula has coefficients, and one."""


def planned(job: Job) -> bool:
    """Whether the job's size is planned. The others grow by how busy their replicas are: what a program shows while it
    runs says more than speeds measured with other CPU."""
    if job.spec.deadline_s is not None and job.spec.total_steps is not None:
        return True
    if isinstance(job.speed, OnlineSpeed):
        return bool(job.placement) and not job.cpu_use and len(job.speed.measured) >= MEASURED
    return job.speed is not None


def plan(round_: Round, *, settings: DeadlineParameters) -> None:
    """Deadlines first, then who gains most. Jobs whose size is not planned stay as they are, unless a deadline could
    not be met beside them."""
    outlook = _promised(Outlook(round_, settings, planned))
    if outlook.left_out and any(case.why.code == "deadline-no-room" for case in outlook.cases):
        outlook = _promised(Outlook(round_, settings))
    if not outlook.cases and not outlook.unfit:
        return
    keep_running(outlook)
    carry_out(outlook)


def _promised(outlook: Outlook) -> Outlook:
    probe(outlook)
    guarantee(outlook)
    return outlook


def keep_running(outlook: Outlook) -> None:
    """A job that runs keeps at least its least size, where deadlines leave room: nobody is stopped for a gain."""
    room, held = outlook.room_now(), NOTHING
    for case in outlook.cases:
        if case.row or not case.current:
            continue
        demand = case.job.spec.demand(case.curve.sizes[0])
        if demand.within(room):
            room, held = room.minus(demand), held.plus(demand)
            case.row = 1
    outlook.timeline.hold(held, 0.0)

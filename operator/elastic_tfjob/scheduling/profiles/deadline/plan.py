"""The planning of a DeadlineRound: choosing the jobs that meet their deadlines and their sizes, and placing them."""

from collections.abc import Sequence
from math import inf
from typing import Final

from elastic_tfjob.scheduling.profiles.deadline.deadline_round import DeadlineRound, JobCase
from elastic_tfjob.scheduling.profiles.deadline.spare_capacity import CpuRaises, SpareCapacity
from elastic_tfjob.scheduling.reasons import Reason, Why, added
from elastic_tfjob.scheduling.snapshot import Counts, Job, counts_of
from elastic_tfjob.scheduling.steps.sizes import apply_sizes

__all__ = ["carry_out", "guarantee_deadlines", "probe"]


def probe(deadline_round: DeadlineRound) -> None:
    """Give jobs of unknown speed their smallest size, so that their speed can be measured. They get a limited share of
    the cluster. As the measurement is expected soon, only the first slot is reserved. A running job keeps its size."""
    room = deadline_round.room_now()
    part, used = deadline_round.settings.probe_share, deadline_round.probing
    for job_case in deadline_round.cases:
        if not job_case.probe:
            continue
        row = job_case.current or deadline_round.first_row(job_case, room)
        share, demand = float(job_case.curve.share[row]), job_case.job.spec.demand(job_case.curve.sizes[row - 1])
        if not job_case.job.placement and used + share > part and used > 0:
            continue
        if not demand.within(room):
            continue
        used += share
        room = room.minus(demand)
        job_case.row, job_case.why = row, Reason("unknown-speed")
        deadline_round.timeline.hold(demand, 0.0 if job_case.job.spec.stoppable else inf)


def guarantee_deadlines(deadline_round: DeadlineRound, raises: CpuRaises | None = None) -> None:
    """In the order of deadlines, reserve for each job the smallest size that meets its deadline, as early as possible;
    with `raises`, CPU in place is preferred over a resize. If a job does not fit, an earlier job with more work gives
    up its booking (Moore, 1968) and is tried again last. If jobs then have no booking, the order by least work is
    tried.

    A job that cannot meet its deadline gets no booking, and the reason is stored.
    """
    accepted: list[JobCase] = []
    dropped: list[tuple[float, int, JobCase]] = []
    for k, job_case in enumerate(deadline_round.cases):
        if job_case.probe:
            continue
        if not job_case.timed:
            job_case.why = _untimed(job_case)
            continue
        if raises is not None:
            raises.take_before(job_case)
        if _book(deadline_round, job_case, raises):
            accepted.append(job_case)
        elif (least := job_case.need.least_s(job_case.curve)) > job_case.need.by_s:
            left_s = max(0.0, job_case.need.by_s)
            job_case.why = Reason(
                "deadline-missed", {"needs_s": least, "largest": job_case.curve.sizes[-1], "left_s": left_s}
            )
        elif (given_up := _exchange(deadline_round, job_case, accepted)) is not None:
            area, other = given_up
            if raises is not None:
                raises.withdraw(other)
            accepted.append(job_case)
            dropped.append((area, k, other))
        else:
            dropped.append((_area(job_case), k, job_case))
            job_case.why = Reason("deadline-no-room")
    for _, _, job_case in sorted(dropped, key=lambda entry: entry[:2]):
        _book(deadline_round, job_case, raises)
    if dropped:
        able = {each.job.key for each in (*accepted, *(job_case for _, _, job_case in dropped))}
        able -= raises.raised if raises is not None else set()
        _smallest_first(deadline_round, [each for each in deadline_round.cases if each.job.key in able])
    for job_case in deadline_round.cases:
        if job_case.booking is None and raises is not None:
            raises.withdraw(job_case)
        if job_case.booking is not None:
            job_case.row = job_case.booking.first
            job_case.why = Reason("deadline-met", {"with": job_case.curve.sizes[job_case.booking.cap - 1]})


def _untimed(job_case: JobCase) -> Reason:
    if job_case.need.by_s == inf:
        return Reason("no-deadline")
    return Reason("unknown-steps" if job_case.curve.known else "unknown-speed")


def _book(deadline_round: DeadlineRound, job_case: JobCase, raises: CpuRaises | None = None) -> bool:
    """Whether capacity can be reserved for the job. If the job would be late at its present size with the CPU that it
    requests, CPU in place is preferred if it takes no more of the cluster than another size, which must start first."""
    timeline, need = deadline_round.timeline, job_case.need
    job_case.booking = sized = timeline.book(job_case.curve, need)
    stays = sized is not None and sized.cap <= job_case.current
    if raises is None or not job_case.current or (stays and not job_case.job.cpu):
        return sized is not None
    if sized is not None:
        timeline.release(sized)
    if raises.take(job_case):
        job_case.booking = raised = timeline.book(job_case.curve, need)
        if raised is not None:
            # A size that the job keeps only because of lent CPU is booked without this CPU.
            if raised.first == job_case.current and (sized is None or stays or raised.area <= sized.area):
                return True
            timeline.release(raised)
        raises.withdraw(job_case)
    if sized is not None:
        timeline.retake(sized)
    job_case.booking = sized
    return sized is not None


def _exchange(
    deadline_round: DeadlineRound, job_case: JobCase, accepted: list[JobCase]
) -> tuple[float, JobCase] | None:
    """The job that loses its booking to this one, with its share of the cluster, which is larger. This job is then
    booked in its place. None: no exchange makes this job fit."""
    mine, timeline = _area(job_case), deadline_round.timeline
    others = [
        (other.booking.area, n)
        for n, other in enumerate(accepted)
        if other.booking is not None
        and other.booking.area > mine
        and not (deadline_round.settings.keep_promises and other.job.placement)
    ]
    for area, n in sorted(others, reverse=True)[: deadline_round.settings.exchanges]:
        other = accepted[n]
        assert other.booking is not None
        timeline.release(other.booking)
        if _book(deadline_round, job_case):
            other.booking = None
            other.why = Reason("gives-way")
            del accepted[n]
            return area, other
        timeline.retake(other.booking)
    return None


def _smallest_first(deadline_round: DeadlineRound, job_cases: list[JobCase]) -> None:
    """Book these jobs again in the order of their areas, each with as little capacity as possible. If that meets fewer
    deadlines, their bookings do not change. With as many, this order is better: a job that ends soon is safe from jobs
    that arrive later."""
    timeline, promises = deadline_round.timeline, deadline_round.settings.keep_promises
    before = [(job_case, booking) for job_case in job_cases if (booking := job_case.booking) is not None]
    for _, booked in before:
        timeline.release(booked)
    order = sorted(
        (promises and not job_case.job.placement, _area(job_case), k) for k, job_case in enumerate(job_cases)
    )
    for _, _, k in order:
        job_cases[k].booking = timeline.book(job_cases[k].curve, job_cases[k].need, mixed=True)
    after = [booking for job_case in job_cases if (booking := job_case.booking) is not None]
    if len(after) >= len(before):
        for job_case, _ in before:
            if job_case.booking is None:
                job_case.why = Reason("gives-way")
        return
    for booked in after:
        timeline.release(booked)
    for job_case in job_cases:
        job_case.booking = None
    for job_case, booked in before:
        timeline.retake(booked)
        job_case.booking = booked


def _area(job_case: JobCase) -> float:
    """The share of the cluster times seconds that the job needs on an empty cluster at the smallest size that meets its
    deadline."""
    curve, need = job_case.curve, job_case.need
    area = inf
    for row, share in enumerate(curve.plain.share[1:], 1):
        seconds = need.lasts_s(curve, row)
        area = share * seconds
        if seconds <= need.by_s:
            break
    return area


# -- The placement of the planned sizes on nodes -----------------------------------------------------------------------

TRIES: Final = 8
"""How often spare capacity is distributed again if jobs find no nodes for their sizes."""


def carry_out(deadline_round: DeadlineRound) -> None:
    """Distribute spare capacity and place all jobs. If no nodes fit a size, the next smaller useful size is tried.

    If a job gets less than planned, the totals have free capacity again. Then all placements are undone, and the
    capacity is distributed again with the job limited to what it got. So no job is stopped for one that then does not
    start."""
    round_, cases = deadline_round.round, deadline_round.cases
    rows = {job_case.job.key: n for n, job_case in enumerate(cases)}
    refusals = dict(round_.refusals)

    def below(job: Job, counts: Counts) -> Sequence[Counts]:
        job_case = cases[rows[job.key]]
        return job_case.curve.sizes[: job_case.row][::-1]

    bases = [job_case.row for job_case in cases]
    rest = SpareCapacity(deadline_round)
    rest.share()
    for k in range(TRIES):
        undo, first = round_.savepoint(), not round_.changes
        # Most jobs keep their resources.
        others = [n for n, job_case in enumerate(cases) if job_case.changes and not job_case.kept]
        whys: dict[str, Why] = {cases[n].job.key: cases[n].why for n in others}
        last = {cases[n].job.key for n in others if cases[n].booking is None and not cases[n].probe}
        apply_sizes(
            round_, [cases[n].job for n in others], [cases[n].wanted for n in others], whys, below=below, last=last
        )
        short = {
            n: counts
            for n in (others if first else range(len(cases)))
            if (job_case := cases[n]).row and not job_case.kept
            if (counts := counts_of(round_.placement(job_case.job))) != job_case.wanted
        }
        if not short or k == TRIES - 1:
            break
        undo()
        round_.refusals = dict(refusals)
        for job_case, base in zip(cases, bases, strict=True):
            job_case.row = base
        for n, counts in short.items():
            job_case = cases[n]
            row = job_case.most = job_case.curve.index(counts)
            if job_case.row > row or (job_case.job.placement and not row):
                deadline_round.lower(job_case, row)
                bases[n] = job_case.row
        rest.share(short)
    for job_case in deadline_round.cases:
        if not job_case.row and not job_case.job.placement:
            why = job_case.why if job_case.why.code != "best-effort" else added(job_case.why, minimum=True)
            round_.refusals.setdefault(job_case.job.spec.key, why)
    for job in deadline_round.unfit:
        round_.refuse(job, Reason("no-size"))
    round_.held_back = Reason("later-deadline")

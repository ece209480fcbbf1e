"""Who meets the deadline, and with how little."""

from collections.abc import Sequence
from math import inf
from typing import Final

from elastic_tfjob.scheduling.profiles.deadline.deadline_round import DeadlineRound, JobCase
from elastic_tfjob.scheduling.profiles.deadline.spare_capacity import CpuRaises, SpareCapacity
from elastic_tfjob.scheduling.reasons import Reason, Why, added
from elastic_tfjob.scheduling.snapshot import Counts, Job, counts_of
from elastic_tfjob.scheduling.steps.sizes import apply_sizes

__all__ = ["carry_out", "guarantee_deadlines", "probe"]


def probe(outlook: DeadlineRound) -> None:
    """Jobs of unknown speed get their least size, within a part of the cluster: nothing else tells how fast they are.
    They are expected to be known soon: only the first slot is set aside. One that runs keeps its size."""
    room = outlook.room_now()
    part, used = outlook.settings.probe_share, outlook.probing
    for case in outlook.cases:
        if not case.probe:
            continue
        row = case.current or outlook.first_row(case, room)
        share, demand = float(case.curve.share[row]), case.job.spec.demand(case.curve.sizes[row - 1])
        if not case.job.placement and used + share > part and used > 0:
            continue
        if not demand.within(room):
            continue
        used += share
        room = room.minus(demand)
        case.row, case.why = row, Reason("unknown-speed")
        outlook.timeline.hold(demand, 0.0 if case.job.spec.stoppable else inf)


def guarantee_deadlines(outlook: DeadlineRound, raises: CpuRaises | None = None) -> None:
    """In the order of deadlines each job gets the least that meets its own, as early as there is room; with `raises`,
    CPU in place before another size. Where it does not fit, one with more work that came before it is given up for it
    (Moore, 1968), and tried again last.

    Raises nothing: who cannot meet the deadline stays without a booking, with the reason.
    """
    accepted: list[JobCase] = []
    dropped: list[tuple[float, int, JobCase]] = []
    for k, case in enumerate(outlook.cases):
        if case.probe:
            continue
        if not case.timed:
            case.why = _untimed(case)
            continue
        if raises is not None:
            raises.take_before(case)
        if _book(outlook, case, raises):
            accepted.append(case)
        elif (least := case.need.least_s(case.curve)) > case.need.by_s:
            left_s = max(0.0, case.need.by_s)
            case.why = Reason("deadline-missed", {"needs_s": least, "largest": case.curve.sizes[-1], "left_s": left_s})
        elif (given_up := _exchange(outlook, case, accepted)) is not None:
            area, other = given_up
            if raises is not None:
                raises.withdraw(other)
            accepted.append(case)
            dropped.append((area, k, other))
        else:
            dropped.append((_area(case), k, case))
            case.why = Reason("deadline-no-room")
    for _, _, case in sorted(dropped, key=lambda entry: entry[:2]):
        _book(outlook, case, raises)
    for case in outlook.cases:
        if case.booking is None and raises is not None:
            raises.withdraw(case)
        if case.booking is not None:
            case.row = case.booking.first
            case.why = Reason("deadline-met", {"with": case.curve.sizes[case.booking.cap - 1]})


def _untimed(case: JobCase) -> Reason:
    if case.need.by_s == inf:
        return Reason("no-deadline")
    return Reason("unknown-steps" if case.curve.known else "unknown-speed")


def _book(outlook: DeadlineRound, case: JobCase, raises: CpuRaises | None = None) -> bool:
    """Whether something can be set aside for it. Where it is late at the size that it has with what it requests: CPU in
    place, if that takes no more of the cluster than another size, which has to start first."""
    timeline, need = outlook.timeline, case.need
    case.booking = sized = timeline.book(case.curve, need)
    stays = sized is not None and sized.cap <= case.current
    if raises is None or not case.current or (stays and not case.job.cpu):
        return sized is not None
    if sized is not None:
        timeline.release(sized)
    if raises.take(case):
        case.booking = raised = timeline.book(case.curve, need)
        if raised is not None:
            # A size that it keeps thanks to CPU that was lent is booked without that.
            if raised.first == case.current and (sized is None or stays or raised.area <= sized.area):
                return True
            timeline.release(raised)
        raises.withdraw(case)
    if sized is not None:
        timeline.retake(sized)
    case.booking = sized
    return sized is not None


def _exchange(outlook: DeadlineRound, case: JobCase, accepted: list[JobCase]) -> tuple[float, JobCase] | None:
    """Who was given up for the job, with what that had taken of the cluster, more than the job does: it is booked then,
    in that one's place. None: it does not fit there either."""
    mine, timeline = _area(case), outlook.timeline
    others = [
        (other.booking.area, n)
        for n, other in enumerate(accepted)
        if other.booking is not None
        and other.booking.area > mine
        and not (outlook.settings.keep_promises and other.job.placement)
    ]
    for area, n in sorted(others, reverse=True)[: outlook.settings.exchanges]:
        other = accepted[n]
        assert other.booking is not None
        timeline.release(other.booking)
        if _book(outlook, case):
            other.booking = None
            other.why = Reason("gives-way")
            del accepted[n]
            return area, other
        timeline.retake(other.booking)
    return None


def _area(case: JobCase) -> float:
    """Share of the cluster times seconds that the job needs on an empty cluster, at the least size in time."""
    curve, need = case.curve, case.need
    lasts = need.steps(curve)[1:] / curve.rates[1:]
    for share, seconds in zip(curve.share[1:], lasts, strict=True):
        if seconds <= need.by_s:
            return float(share * seconds)
    return float(curve.share[-1] * lasts[-1])


# -- From what each job is to get to nodes -----------------------------------------------------------------------------

TRIES: Final = 8
"""So often the rest is shared anew where jobs do not find nodes for what they were to get."""


def carry_out(outlook: DeadlineRound) -> None:
    """Share the rest, and place everything. Where a size finds no nodes, the next smaller one that helps is tried.

    A job that gets less than it was to leaves room in the totals: all is undone, and shared again without what it did
    not get. So nobody is stopped in favour of a job that then does not start.
    """
    round_, cases = outlook.round, outlook.cases
    rows = {case.job.key: n for n, case in enumerate(cases)}
    refusals = dict(round_.refusals)

    def below(job: Job, counts: Counts) -> Sequence[Counts]:
        case = cases[rows[job.key]]
        return case.curve.sizes[: case.row][::-1]

    bases = [case.row for case in cases]
    rest = SpareCapacity(outlook)
    rest.share()
    for k in range(TRIES):
        mark, before = round_.room.mark(), dict(round_.changes)
        # Most jobs are to keep what they have.
        others = [n for n, case in enumerate(cases) if case.changes and not case.kept]
        whys: dict[str, Why] = {cases[n].job.key: cases[n].why for n in others}
        last = {cases[n].job.key for n in others if cases[n].booking is None and not cases[n].probe}
        apply_sizes(
            round_, [cases[n].job for n in others], [cases[n].wanted for n in others], whys, below=below, last=last
        )
        short = {
            n: counts
            for n in (others if not before else range(len(cases)))
            if (case := cases[n]).row and not case.kept
            if (counts := counts_of(round_.placement(case.job))) != case.wanted
        }
        if not short or k == TRIES - 1:
            break
        round_.undo(mark, {key: before.get(key) for key in round_.changes})
        round_.refusals = dict(refusals)
        for case, base in zip(cases, bases, strict=True):
            case.row = base
        for n, counts in short.items():
            case = cases[n]
            row = case.most = case.curve.index(counts)
            if case.row > row or (case.job.placement and not row):
                outlook.lower(case, row)
                bases[n] = case.row
        rest.share(short)
    for case in outlook.cases:
        if not case.row and not case.job.placement:
            why = case.why if case.why.code != "best-effort" else added(case.why, minimum=True)
            round_.refusals.setdefault(case.job.spec.key, why)
    for job in outlook.unfit:
        round_.refuse(job, Reason("no-size"))
    round_.held_back = Reason("later-deadline")

"""From what each job is to get to nodes."""

from collections.abc import Sequence
from typing import Final

from elastic_tfjob.scheduling.profiles.deadline.outlook import Outlook
from elastic_tfjob.scheduling.profiles.deadline.rest import Rest
from elastic_tfjob.scheduling.reasons import Reason, Why, added
from elastic_tfjob.scheduling.snapshot import Counts, Job, counts_of
from elastic_tfjob.scheduling.toolkit.apply_sizes import apply_sizes

__all__ = ["carry_out"]

TRIES: Final = 8
"""So often the rest is shared anew where jobs do not find nodes for what they were to get."""


def carry_out(outlook: Outlook) -> None:
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
    rest = Rest(outlook)
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

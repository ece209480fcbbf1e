"""From what each job is to get to nodes."""

from collections.abc import Iterator
from typing import Final

from elastic_tfjob.scheduling.profiles.deadline.outlook import Outlook
from elastic_tfjob.scheduling.profiles.deadline.rest import share_rest
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
    round_ = outlook.round
    bases = [case.row for case in outlook.cases]
    sizes = {case.job.spec.key: case.curve.sizes for case in outlook.cases}
    refusals = dict(round_.refusals)

    def below(job: Job, counts: Counts) -> Iterator[Counts]:
        steps = sizes[job.spec.key]
        yield from reversed(steps[: steps.index(counts) + 1])

    for k in range(TRIES):
        share_rest(outlook)
        cases = outlook.cases
        mark, before = round_.room.mark(), dict(round_.changes)
        wanted = [case.curve.sizes[case.row - 1] if case.row else None for case in cases]
        why = {case.job.spec.key: case.why or "best effort" for case in cases}
        last = {case.job.spec.key for case in cases if case.booking is None and not case.probe}
        apply_sizes(round_, [case.job for case in cases], wanted, why, below=below, last=last)
        short = [
            (case, base)
            for case, base, want in zip(cases, bases, wanted, strict=True)
            if want is not None and counts_of(round_.placement(case.job)) != want
        ]
        if not short or k == TRIES - 1:
            break
        got = [case.curve.index(counts_of(round_.placement(case.job))) for case, _ in short]
        round_.undo(mark, {key: before.get(key) for key in round_.changes})
        round_.refusals = dict(refusals)
        for case, base in zip(cases, bases, strict=True):
            case.row = base
        for (case, base), row in zip(short, got, strict=True):
            case.most = row
            if base > row or (case.job.placement and not row):
                outlook.lower(case, row)
        outlook.cases = [case for case in cases if not case.kept]
        bases = [case.row for case in outlook.cases]
    for case in outlook.cases:
        if not case.row and not case.job.placement:
            round_.refusals.setdefault(case.job.spec.key, case.why or "best effort: nothing left for its least size")
    for job in outlook.unfit:
        round_.refuse(job, "no size of it fits the cluster")
    round_.held_back = "others with earlier deadlines come first"

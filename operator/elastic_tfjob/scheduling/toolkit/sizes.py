"""The sizes beside one that a job has or wants, and when it may change."""

from collections.abc import Iterator

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec

EACH_OF = 512
"""So many sizes below one that is wanted are each tried."""


def movable(job: Job, round_: Round) -> bool:
    """Whether the job's size may change now. A waiting job may always start."""
    if job.phase == "rescaling":
        return False
    if not job.placement:
        return True
    return job.spec.resizable and round_.now - job.rescaled_s >= round_.profile.cooldown_s


def downward(job: Job, counts: Counts) -> Iterator[Counts]:
    """This size, then ever smaller ones down to the minimum. Where that are many, not each of them far down: the
    strides grow with the distance, so that their number grows with its logarithm."""
    minimum = job.spec.minimum
    least = {type_: min(counts.get(type_, 0), minimum.get(type_, 0)) for type_ in (WORKER, PS)}
    last = max(counts.get(type_, 0) - n for type_, n in least.items())
    fewer = 0
    while fewer < last:
        yield _fewer(counts, least, fewer)
        fewer = min(last, fewer + max(1, fewer // EACH_OF))
    yield _fewer(counts, least, last)


def _fewer(counts: Counts, least: Counts, n: int) -> Counts:
    return {type_: max(least[type_], count - n) if type_ in least else count for type_, count in counts.items()}


def bundle_more(spec: JobSpec, counts: Counts) -> Counts | None:
    """One worker and one PS more, as far as their maxima allow; None at the maximum."""
    grown = dict(counts)
    for type_ in (PS, WORKER):
        group = spec.group(type_)
        if group is not None and grown.get(type_, 0) < group.maximum:
            grown[type_] = grown.get(type_, 0) + 1
    return None if grown == counts else grown


def one_fewer(counts: Counts, floor: Counts) -> Counts | None:
    """One worker less, or where there is none to give one PS; None at the floor."""
    for type_ in (WORKER, PS):
        if counts.get(type_, 0) > floor.get(type_, 0):
            return {**counts, type_: counts[type_] - 1}
    return None

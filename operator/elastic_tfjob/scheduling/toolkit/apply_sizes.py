"""From sizes to nodes: what every elastic allocation does once it knows how many replicas each job gets."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from elastic_tfjob.scheduling.reasons import describe_size
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, counts_of
from elastic_tfjob.scheduling.toolkit.refusal import lacks
from elastic_tfjob.scheduling.toolkit.sizes import downward, movable


def candidates(round_: Round) -> tuple[list[Job], Resources]:
    """The jobs whose size is open, in the profile's order, and the totals they share."""
    free = round_.room.total
    jobs: list[Job] = []
    for job in round_.active():
        # Of all jobs those that wait are the most, and what `movable` says of them is known.
        if not job.placement and round_.cools(job):
            round_.refuse(job, "")
        elif not job.placement or (movable(job, round_) and job.spec.stoppable and not round_.cools(job)):
            jobs.append(job)
        else:
            free = free.minus(job.holds)
    for job in round_.rescaling():
        free = free.minus(job.holds)
    return jobs, free


Below = Callable[[Job, Counts], Iterator[Counts]]
"""This size of a job, then ever smaller ones that it may get instead."""


def apply_sizes(
    round_: Round,
    jobs: Sequence[Job],
    sizes: Sequence[Counts | None],
    why: str | Mapping[str, str],
    *,
    below: Below = downward,
    last: Set[str] = frozenset(),
) -> None:
    """Give each of `jobs` its size, or nothing where that is None. `why` is the reason shown for a change, of all jobs
    or by the job's key. `below` gives the sizes that are tried where one finds no nodes.

    First whatever becomes free, then starts and growth, small jobs first (they fit anywhere, as in Optimus). A job
    that finds no nodes for its size gets the largest size below it that fits; a running one at worst keeps what it has.
    What is left then goes to those that got less, as it would in the next round: others may have given up room, and
    what the whole job does not find, replicas that are added to it may.
    """
    repack = round_.profile.repack
    reasons = dict.fromkeys((job.spec.key for job in jobs), why) if isinstance(why, str) else why
    placing: list[tuple[bool, int, int, Job, Counts]] = []
    for k, (job, counts) in enumerate(zip(jobs, sizes, strict=True)):
        said = reasons[job.spec.key]
        if counts is None:
            if job.placement:
                round_.stop(job, f"{said}: nothing left for its minimum")
        elif not job.placement:
            placing.append((job.spec.key in last, sum(counts.values()), k, job, counts))
        elif counts != (held := job.counts):
            if repack:
                round_.stop(job, f"{said}: {describe_size(counts)} fits on no nodes")
                placing.append((job.spec.key in last, sum(counts.values()), k, job, counts))
            elif all(n <= held.get(type_, 0) for type_, n in counts.items()):
                round_.resize(job, counts, f"{said}: {describe_size(held)} to {describe_size(counts)}")
            elif gains(job, counts, round_.profile.min_gain):
                placing.append((job.spec.key in last, sum(counts.values()), k, job, counts))
    wanting = [(job, counts) for _, _, _, job, counts in sorted(placing, key=lambda p: p[:3])]
    progress = True
    while progress:
        placed = [_place(round_, job, counts, reasons[job.spec.key], below) for job, counts in wanting]
        wanting = [(job, counts) for job, counts in wanting if counts_of(round_.placement(job)) != counts]
        progress = any(placed)
    if isinstance(why, str):
        round_.held_back = f"{why}: nothing left for its minimum"


def _place(round_: Round, job: Job, counts: Counts, why: str, below: Below) -> bool:
    """Whether the job got this size, or any that is smaller but more than it has."""
    held = round_.placement(job)
    for smaller in below(job, counts):
        if held and all(n <= len(held.get(type_, ())) for type_, n in smaller.items()):
            return False  # no growth fits: keeps what it has
        change = f"{describe_size(job.counts)} to {describe_size(smaller)}" if job.placement else describe_size(smaller)
        place = round_.resize if held else round_.start
        if place(job, smaller, f"{why}: {change}"):
            return True
    if not held and not job.placement:
        round_.refuse(job, lacks(job, round_))
    return False


def gains(job: Job, counts: Counts, least: float) -> bool:
    """Whether growing to `counts` is worth a rescale: predicted speed-up of at least `least`, or speed unknown."""
    if least <= 0 or job.speed is None:
        return True
    now, then = job.speed.steps_per_s(job.counts), job.speed.steps_per_s(counts)
    return now is None or then is None or then >= now * (1 + least)

"""From sizes to nodes: what every elastic allocation does once it knows how many replicas each job gets."""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any, TypeVar

from elastic_tfjob.scheduling.plan import BEHIND
from elastic_tfjob.scheduling.profile import Order
from elastic_tfjob.scheduling.reasons import Why, added
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, counts_of
from elastic_tfjob.scheduling.toolkit.open_jobs import OpenJobs, Sized, SizesOf, Terms, open_jobs
from elastic_tfjob.scheduling.toolkit.outside import usable_total
from elastic_tfjob.scheduling.toolkit.refusal import lacks
from elastic_tfjob.scheduling.toolkit.sizes import Downward, Sizes, largest

K = TypeVar("K", bound=Sized)
V = TypeVar("V", bound=OpenJobs[Any])


def candidates(
    round_: Round,
    kind: Callable[[Order, Terms, SizesOf[K], Resources], V],
    sizes_of: SizesOf[K],
    owner: Hashable,
    *,
    fixed: bool = False,
) -> tuple[V, Resources]:
    """The jobs whose size is open, in the profile's order, with what `sizes_of` says of each; and the totals that they
    share. `kind`, `owner`: as for `open_jobs`; `fixed`: whether jobs of one size may be stopped. Raises ValueError for
    an order in which waiting jobs pass running ones as time goes on."""
    profile = round_.profile
    if profile.order.drift:
        raise ValueError(f"{profile.name}: waiting and running jobs have no common order that could be kept")
    jobs = open_jobs(round_, kind, Terms(profile.stop_cooldown_s, profile.cooldown_s, fixed=fixed), sizes_of, owner)
    for job in jobs.later.values():
        if not job.placement:
            round_.refuse(job, BEHIND)
    return jobs, usable_total(round_).minus(jobs.others)


def apply_rows(round_: Round, jobs: OpenJobs[K], rows: Sequence[int], why: Why) -> None:
    """Give each of the open jobs the size of this row (1 for the first that is known of it), or nothing where that is
    0. Who has it already is not looked at."""
    differ = [k for k, (had, has) in enumerate(zip(jobs.rows, rows, strict=True)) if had != has]
    sizes = [jobs.known[k].sizes[rows[k] - 1] if rows[k] else None for k in differ]
    apply_sizes(round_, [jobs.jobs[k] for k in differ], sizes, why)


Below = Callable[[Job, Counts], Sizes]
"""This size of a job, then ever smaller ones that it may get instead."""


def apply_sizes(
    round_: Round,
    jobs: Sequence[Job],
    sizes: Sequence[Counts | None],
    why: Why | Mapping[str, Why],
    *,
    below: Below = Downward,
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
    reasons = why if isinstance(why, Mapping) else dict.fromkeys((job.spec.key for job in jobs), why)
    placing: list[tuple[bool, int, int, Job, Counts]] = []
    for k, (job, counts) in enumerate(zip(jobs, sizes, strict=True)):
        said = reasons[job.spec.key]
        if counts is None:
            if job.placement:
                round_.stop(job, added(said, minimum=True))
        elif not job.placement:
            placing.append((job.spec.key in last, sum(counts.values()), k, job, counts))
        elif counts != (held := job.counts):
            if repack:
                round_.stop(job, added(said, no_nodes=counts))
                placing.append((job.spec.key in last, sum(counts.values()), k, job, counts))
            elif all(n <= held.get(type_, 0) for type_, n in counts.items()):
                round_.resize(job, counts, said)
            elif gains(job, counts, round_.profile.min_gain):
                placing.append((job.spec.key in last, sum(counts.values()), k, job, counts))
    wanting = [(job, counts) for _, _, _, job, counts in sorted(placing, key=lambda p: p[:3])]
    _place_all(round_, wanting, reasons, below)
    if not isinstance(why, Mapping):
        round_.held_back = added(why, minimum=True)


def _place_all(round_: Round, wanting: list[tuple[Job, Counts]], reasons: Mapping[str, Why], below: Below) -> None:
    """Give each its size, or what `below` has instead, again and again until nobody gets anything."""
    failed: dict[str, int] = {}
    progress = True
    while progress:
        progress, lacking = False, []
        for job, counts in wanting:
            key = job.spec.key
            if failed.get(key) == round_.gave_back:
                lacking.append((job, counts))  # what it did not find is still not there
                continue
            got = _place(round_, job, counts, reasons[key], below)
            if got is None:
                failed[key] = round_.gave_back
            progress |= bool(got)
            if counts_of(round_.placement(job)) != counts:
                lacking.append((job, counts))
        wanting = lacking
    for job, _ in wanting:
        if job.spec.key in failed and not job.placement and not round_.placement(job):
            round_.refuse(job, lacks(job, round_))


def _place(round_: Round, job: Job, counts: Counts, why: Why, below: Below) -> bool | None:
    """Whether the job got this size, or any that is smaller but more than it has; None: it has nothing, and there are
    no nodes for any of these."""
    held = round_.placement(job)
    sizes = below(job, counts)

    def keeps(k: int) -> bool:
        return all(n <= len(held.get(type_, ())) for type_, n in sizes[k].items())

    def place(smaller: Counts) -> bool:
        return (round_.resize if held else round_.start)(job, smaller, why)

    if held:  # where no growth fits, it keeps what it has
        number = bisect_left(range(len(sizes)), True, key=keeps)
    else:
        number = len(sizes) if _may_fit(round_, job, counts) else 0
    placed = largest(round_, job, sizes, place, number)
    if placed >= 0:
        return round_.placement(job) != held  # a start of nothing, or the size that it has: it is no progress
    return False if held else None


def _may_fit(round_: Round, job: Job, counts: Counts) -> bool:
    """Whether there is room in total for the least size that a waiting job may get instead of this one. No placement
    finds nodes for what the totals do not have."""
    spec, minimum = job.spec, job.spec.minimum
    if all(counts.get(type_, 0) >= n for type_, n in minimum.items()):
        return round_.room.fits_total(spec.minimum_demand)
    return round_.room.fits_total(spec.demand({t: min(n, minimum.get(t, 0)) for t, n in counts.items()}))


def gains(job: Job, counts: Counts, least: float) -> bool:
    """Whether growing to `counts` is worth a rescale: predicted speed-up of at least `least`, or speed unknown."""
    if least <= 0 or job.speed is None:
        return True
    now, then = job.speed.steps_per_s(job.counts), job.speed.steps_per_s(counts)
    return now is None or then is None or then >= now * (1 + least)

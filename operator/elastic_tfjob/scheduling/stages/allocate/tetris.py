"""Tetris: packing and shortness in one score."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job
from elastic_tfjob.scheduling.stages.allocate.drf import bundle_more
from elastic_tfjob.scheduling.stages.allocate.settle import candidates, settle


@dataclass(frozen=True, slots=True)
class Tetris:
    """Grandl et al., SIGCOMM'14: the next unit goes to the job with the highest alignment (dot product of the unit's
    demand and what is free, both as shares of the cluster) plus `shortness_weight` times shortness, 1 / (remaining
    work), each scaled by its mean over jobs as in section 3.3. The first unit is a job's minimum. Running jobs keep
    their minimum: Tetris does not preempt. Shortness is taken from work left, so a longer job never scores higher
    for it (DL2's simulator has that the other way round).
    """

    shortness_weight: float = 1.0
    drifts: bool = True

    def allocate(self, round_: Round) -> None:
        jobs, free = candidates(round_)
        total = round_.room.total
        sizes: dict[str, Counts] = {}
        for job in jobs:
            if job.placement:
                sizes[job.key] = job.spec.minimum
                free = free.minus(job.spec.demand(job.spec.minimum))
        short = {job.key: shortness(job, round_.now) for job in jobs}
        units = {job.key: next_unit(job, sizes.get(job.key)) for job in jobs}
        open_ = [job for job in jobs if units[job.key] is not None]
        if open_:
            mean_short = sum(short.values()) / len(short) or 1.0
            mean_aligned = sum(alignment(unit_demand(job, units), free, total) for job in open_) / len(open_)
            weight = self.shortness_weight * mean_aligned / mean_short
            while open_:
                best, best_score = None, -1.0
                fitting = []
                for job in open_:
                    demand = unit_demand(job, units)
                    if demand.within(free):
                        fitting.append(job)
                        score = alignment(demand, free, total) + weight * short[job.key]
                        if score > best_score:
                            best, best_score = job, score
                if best is None:
                    break
                free = free.minus(unit_demand(best, units))
                following = units[best.key]
                assert following is not None
                sizes[best.key] = following[1]
                units[best.key] = next_unit(best, following[1])
                open_ = [job for job in fitting if units[job.key] is not None]
        settle(round_, jobs, sizes, "packing and shortness")


Unit = tuple[Resources, Counts]
"""What the next step costs, and the size it leads to."""


def next_unit(job: Job, size: Counts | None) -> Unit | None:
    if size is None:
        return job.spec.demand(job.spec.minimum), job.spec.minimum
    following = bundle_more(job, size)
    return None if following is None else (job.spec.demand(following).minus(job.spec.demand(size)), following)


def unit_demand(job: Job, units: dict[str, Unit | None]) -> Resources:
    unit = units[job.key]
    assert unit is not None
    return unit[0]


def alignment(demand: Resources, free: Resources, total: Resources) -> float:
    return sum((d / t) * (f / t) for d, f, t in zip(demand, free, total, strict=True) if t > 0)


def shortness(job: Job, now: float) -> float:
    left = job.remaining_s(now, job.spec.declared)
    return 0.0 if left is None else 1 / max(left, 1.0)

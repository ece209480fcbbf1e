"""Dominant resource fairness."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job
from elastic_tfjob.scheduling.stages.allocate.settle import candidates, settle


@dataclass(frozen=True, slots=True)
class DominantResourceFairness:
    """Progressive filling (Ghodsi et al., NSDI'11, algorithm 1): the next unit goes to the job with the smallest
    dominant share, ties in the profile's order. The first unit is the job's minimum, each next one a worker and a PS
    (of which the job has both and neither is at its maximum). A job leaves at its maximum; when a unit does not fit,
    the job leaves (`next`) or all filling ends (`stop`, as in DL2's simulator).
    """

    on_full: Literal["next", "stop"] = "next"
    drifts: bool = False

    def allocate(self, round_: Round) -> None:
        jobs, free = candidates(round_)
        total = round_.room.total
        sizes: dict[str, Counts] = {}
        heap = [(0.0, k) for k in range(len(jobs))]
        heapify(heap)
        while heap:
            _, k = heappop(heap)
            job = jobs[k]
            size = sizes.get(job.key)
            following = job.spec.minimum if size is None else bundle_more(job, size)
            if following is None:
                continue
            step = job.spec.demand(following)
            if size is not None:
                step = step.minus(job.spec.demand(size))
            if not step.within(free):
                if self.on_full == "stop":
                    break
                continue
            free = free.minus(step)
            sizes[job.key] = following
            heappush(heap, (job.spec.demand(following).dominant_share(total), k))
        settle(round_, jobs, sizes, "dominant share")


def bundle_more(job: Job, counts: Counts) -> Counts | None:
    """One worker and one PS more, as far as their maxima allow; None at the maximum."""
    grown = dict(counts)
    for type_ in (PS, WORKER):
        group = job.spec.group(type_)
        if group is not None and grown.get(type_, 0) < group.maximum:
            grown[type_] = grown.get(type_, 0) + 1
    return None if grown == dict(counts) else grown

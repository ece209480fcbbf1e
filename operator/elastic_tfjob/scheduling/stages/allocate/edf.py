"""Each job in order takes as much as helps it."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Counts, Job
from elastic_tfjob.scheduling.stages.allocate.settle import candidates, settle


@dataclass(frozen=True, slots=True)
class GreedyInOrder:
    """In the profile's order each job gets the largest size that fits the totals and trains fastest up to there; a job
    with no room for its minimum waits and those behind it go on. With EDF this is what ElasticFlow's paper compares
    with (Gu et al., ASPLOS'23): elastic, deadline-ordered, preemptive, without admission control.
    """

    drifts: bool = False

    def allocate(self, round_: Round) -> None:
        jobs, free = candidates(round_)
        sizes: dict[str, Counts] = {}
        for job in jobs:
            for counts in useful_sizes(job):
                demand = job.spec.demand(counts)
                if demand.within(free):
                    sizes[job.key] = counts
                    free = free.minus(demand)
                    break
        settle(round_, jobs, sizes, "earliest deadline")


def useful_sizes(job: Job) -> list[Counts]:
    """Sizes a job may run at, largest useful first: those that train faster than every smaller one, then its minimum.

    A size whose speed is None (such as one a table does not have) is passed over; with no speed known at all, the
    declared size and the minimum are left.
    """
    spec = job.spec
    group = spec.group(WORKER)
    if not spec.elastic or group is None or job.speed is None:
        return [spec.declared] if spec.declared == spec.minimum else [spec.declared, spec.minimum]
    sizes: list[Counts] = []
    fastest = 0.0
    for n in range(group.minimum, group.maximum + 1):
        counts = {**spec.minimum, WORKER: n}
        rate = job.speed.steps_per_s(counts)
        if rate is not None and rate > fastest:
            fastest = rate
            sizes.append(counts)
    return sizes[::-1] or [spec.minimum]

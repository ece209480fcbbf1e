"""Each job in order takes as much as helps it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from elastic_tfjob.scheduling.parameters import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Counts, Job
from elastic_tfjob.scheduling.stages.order.edf import EarliestDeadlineFirst
from elastic_tfjob.scheduling.toolkit.apply_sizes import apply_sizes, candidates
from elastic_tfjob.scheduling.toolkit.progressive_filling import ladders_view


@dataclass(frozen=True, slots=True)
class Choices:
    """A job's sizes, the largest first, and what each asks for."""

    sizes: Sequence[Counts]
    wants: Sequence[Resources]


@dataclass(frozen=True, slots=True)
class GreedyInOrder:
    """In the profile's order each job gets the largest size that fits the totals; a job with no room for its minimum
    waits and those behind it go on. With EDF this is the baseline of ElasticFlow (Gu et al., ASPLOS'23): elastic,
    deadline-ordered, preemptive, without admission control. `size`: `useful` sizes only, each faster than all below
    it; or the `largest` whose speed is known even if it is slower, as in ElasticFlow's simulator.
    """

    size: Literal["useful", "largest"] = "useful"

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_)
        total = round_.room.total
        ladders = round_.snapshot.view(("ladders", self, total), ladders_view(self.climb, total))
        sizes: list[Counts | None] = []
        for job in jobs:
            chosen = None
            ladder = ladders.of(job)
            for counts, want in zip(ladder.sizes, ladder.wants, strict=True):
                if want.within(free):
                    chosen, free = counts, free.minus(want)
                    break
            sizes.append(chosen)
        apply_sizes(round_, jobs, sizes, "earliest deadline")

    def climb(self, job: Job, total: Resources) -> Choices:
        sizes = sizes_of(job, self.size == "useful")
        return Choices(sizes, [job.spec.demand(counts) for counts in sizes])


def sizes_of(job: Job, useful: bool) -> list[Counts]:
    """Sizes a job may run at, the largest first; `useful`: only those that train faster than every smaller one.

    A size whose speed is None (one that a table does not have) is passed over; with no speed known at all, the
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
        if rate is not None and (rate > fastest or not useful):
            fastest = rate
            sizes.append(counts)
    return sizes[::-1] or [spec.minimum]


class EdfParameters(ProfileParameters):
    """Earliest deadline first; an elastic job takes as many replicas as help it and are free."""

    oracle: bool = Field(True, description="the policy is told the true duration and speed (simulation only)")
    size: Literal["useful", "largest"] = Field(
        "useful", description="largest size that is faster than all below it, or largest known (ElasticFlow)"
    )

    def stages(self) -> Stages:
        return Stages(
            EarliestDeadlineFirst(), (GreedyInOrder(self.size),), needs("deadline", "speed", "stop", "resize")
        )

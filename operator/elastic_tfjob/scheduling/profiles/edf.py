"""Each job in order takes as much as helps it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from elastic_tfjob.scheduling.parameters import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Counts, Job
from elastic_tfjob.scheduling.stages.order.edf import EarliestDeadlineFirst
from elastic_tfjob.scheduling.toolkit.apply_sizes import apply_rows, candidates
from elastic_tfjob.scheduling.toolkit.open_jobs import OpenJobs


@dataclass(frozen=True, slots=True)
class Choices:
    """A job's sizes, the largest first, what each asks for, and of each resource the least that any of them does."""

    sizes: Sequence[Counts]
    wants: Sequence[Resources]
    least: Resources


@dataclass(frozen=True, slots=True)
class GreedyInOrder:
    """In the profile's order each job gets the largest size that fits the totals; a job with no room for its minimum
    waits and those behind it go on. With EDF this is the baseline of ElasticFlow (Gu et al., ASPLOS'23): elastic,
    deadline-ordered, preemptive, without admission control. `size`: `useful` sizes only, each faster than all below
    it; or the `largest` whose speed is known even if it is slower, as in ElasticFlow's simulator.
    """

    size: Literal["useful", "largest"] = "useful"

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenJobs, self.sizes_of, self)
        apply_rows(round_, jobs, [*first_that_fit(jobs.known, free)], Reason("earliest-deadline"))

    def sizes_of(self, job: Job, total: Resources) -> Choices:
        sizes = sizes_of(job, self.size == "useful")
        wants = [job.spec.demand(counts) for counts in sizes]
        return Choices(sizes, wants, Resources(*map(min, zip(*wants, strict=True))))


def first_that_fit(choices: Iterable[Choices], free: Resources) -> Iterator[int]:
    """One job after the other, the row of its first choice for which there is room beside the jobs before it; 0 where
    there is for none."""
    cpu, memory, accelerators, pods, storage = free
    for choice in choices:
        least = choice.least
        chosen = 0
        if least[0] <= cpu and least[1] <= memory and least[2] <= accelerators and least[3] <= pods:
            for k, want in enumerate(choice.wants):
                if (
                    want[0] <= cpu
                    and want[1] <= memory
                    and want[2] <= accelerators
                    and want[3] <= pods
                    and want[4] <= storage
                ):
                    cpu, memory, accelerators = cpu - want[0], memory - want[1], accelerators - want[2]
                    pods, storage = pods - want[3], storage - want[4]
                    chosen = k + 1
                    break
        yield chosen


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

"""Dominant resource fairness."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field

from elastic_tfjob.scheduling.parameters import ElasticParameters, Stages, needs
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job, JobSpec, ReplicaGroup
from elastic_tfjob.scheduling.stages.order.fifo import Fifo
from elastic_tfjob.scheduling.toolkit.apply_sizes import apply_rows, candidates
from elastic_tfjob.scheduling.toolkit.progressive_filling import Increments, OnFull, OpenIncrements, fill
from elastic_tfjob.scheduling.toolkit.sizes import bundle_more


@dataclass(frozen=True, slots=True)
class DominantResourceFairness:
    """Progressive filling (Ghodsi et al., NSDI'11, algorithm 1): the next unit goes to the job with the smallest
    dominant share, ties in the profile's order. The first unit is the job's minimum, each next one a worker and a PS
    (of which the job has both and neither is at its maximum). A job leaves at its maximum; when a unit does not fit,
    the job leaves (`next`) or all filling ends (`stop`, as in DL2's simulator).
    """

    on_full: OnFull = "next"

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenIncrements, shares, self)
        apply_rows(round_, jobs, fill(jobs, jobs.keys, free, self.on_full), Reason("dominant-share"))


def shares(job: Job, total: Resources) -> Increments:
    """Increments of a bundle each; the key of one is the dominant share held before it."""
    spec = job.spec
    if spec.elastic:
        return _shares(spec.groups, total)
    return Increments([spec.minimum], np.zeros(1), np.array([spec.demand(spec.minimum)], dtype=np.int64))


@lru_cache(maxsize=4096)
def _shares(groups: tuple[ReplicaGroup, ...], total: Resources) -> Increments:
    """Jobs of equal groups share theirs."""
    spec = JobSpec("", 0.0, groups)
    sizes: list[Counts] = []
    keys: list[float] = []
    demand: list[Resources] = []
    held = Resources()
    following: Counts | None = spec.minimum
    while following is not None:
        now = spec.demand(following)
        keys.append(held.dominant_share(total) if sizes else 0.0)
        demand.append(now.minus(held))
        sizes.append(following)
        held = now
        following = bundle_more(spec, following)
    return Increments(sizes, np.array(keys), np.array(demand, dtype=np.int64))


class DrfParameters(ElasticParameters):
    """Dominant resource fairness by progressive filling."""

    on_full: Literal["next", "stop"] = Field("next", description="when a job's unit does not fit: try others, or stop")

    def stages(self) -> Stages:
        return Stages(Fifo(), (DominantResourceFairness(self.on_full),), needs("stop"))

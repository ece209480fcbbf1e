"""A common mix of jobs on CPU nodes, beside an inference pool: what one cluster with many kinds of users has.

Parameter-server jobs of DL2's models. A fifth has deadlines, 30 % may run on lent nodes, a fifth converges early (its
loss is flat after a fifth of its steps), a tenth is wide. A quarter comes in bursts, the rest by the time of day.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, pi
from typing import Final

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, ReplicaGroup
from elastic_tfjob.simulation.scenario import DAY_S, HOUR_S, PEAK_S, InferencePool
from elastic_tfjob.simulation.speed_models.ps import MODELS
from elastic_tfjob.simulation.workload import LossCurve, WorkloadJob

__all__ = ["CORES", "MIDDAY_S", "NODES", "Mix", "inference", "workload"]

NODES: Final = 10
CORES: Final = 16.0
LENDS: Final = 6
"""Nodes of the inference pool."""
MIDDAY_S: Final = 12 * HOUR_S
"""When jobs begin to come: the pool then needs more from hour to hour, and less at night."""
REPLICA: Final = Resources(2000)
COULD_USE: Final = 4.0
"""CPUs that a replica could use; it asks for half of that."""
DEADLINES, LOANABLE, EARLY, WIDE, BURSTS = 0.2, 0.3, 0.2, 0.1, 0.25
EACH_BURST: Final = 8
LATEST: Final = (0.6, 2.5)
"""A deadline is between so many times the duration at the declared size after submission."""
MEDIAN_S, SIGMA, LONGEST_S = 3600.0, 1.0, 12 * HOUR_S
GUESSED: Final = 0.3
"""Standard deviation of the logarithm of what users say of a duration, over the duration."""


@dataclass(frozen=True, slots=True)
class Mix:
    """`load`: CPU that jobs ask for, times their durations, over what our own nodes have while jobs come."""

    load: float
    jobs: int = 120


def inference() -> InferencePool:
    return InferencePool(LENDS, Resources(round(1000 * CORES), 64 * 1024**3))


def workload(mix: Mix, seed: int) -> list[WorkloadJob]:
    """The jobs of one seed, by submission."""
    rng = random.Random(f"mix-{seed}")
    drawn = [(_groups(rng), min(LONGEST_S, rng.lognormvariate(0, SIGMA) * MEDIAN_S)) for _ in range(mix.jobs)]
    asked = sum(
        group.request.cpu_millicores / 1000 * group.count * seconds for groups, seconds in drawn for group in groups
    )
    comes = arrivals(mix.jobs, asked / (mix.load * NODES * CORES), rng)
    return [_job(k, t, groups, seconds, rng) for k, (t, (groups, seconds)) in enumerate(zip(comes, drawn, strict=True))]


def arrivals(jobs: int, span_s: float, rng: random.Random) -> list[float]:
    """When each comes, within this time from midday on."""
    bursts = round(jobs * BURSTS / EACH_BURST)
    times = [t for t in _by_day(bursts, span_s, rng) for _ in range(EACH_BURST)]
    return sorted([*times, *_by_day(jobs - len(times), span_s, rng)])


def _by_day(number: int, span_s: float, rng: random.Random) -> Iterator[float]:
    """Most by day, but some at night (thinning)."""
    given = 0
    while given < number:
        t = MIDDAY_S + rng.uniform(0.0, span_s)
        if rng.random() * 1.5 <= 1 + cos(2 * pi * (t - PEAK_S) / DAY_S) / 2:
            given += 1
            yield t


def _groups(rng: random.Random) -> tuple[ReplicaGroup, ...]:
    """Parameter servers and workers."""
    if rng.random() < WIDE:
        return ReplicaGroup(PS, REPLICA, 4, 2, 8), ReplicaGroup(WORKER, REPLICA, 12, 6, 24)
    return (
        ReplicaGroup(PS, REPLICA, rng.choice((1, 2)), 1, 8),
        ReplicaGroup(WORKER, REPLICA, rng.choice((1, 2, 4)), 1, 8),
    )


def _job(k: int, t: float, groups: tuple[ReplicaGroup, ...], seconds: float, rng: random.Random) -> WorkloadJob:
    latest = t + rng.uniform(*LATEST) * seconds
    timed, loanable, early = (rng.random() < share for share in (DEADLINES, LOANABLE, EARLY))
    return WorkloadJob(
        f"job-{k:03}",
        t,
        groups,
        duration_s=seconds,
        estimated_s=seconds * rng.lognormvariate(0, GUESSED),
        deadline_s=latest if timed else None,
        model=rng.choice(list(MODELS)),
        loanable=loanable,
        loss=LossCurve(0.1, 0.2) if early else None,
        cpu_demand=COULD_USE,
    )

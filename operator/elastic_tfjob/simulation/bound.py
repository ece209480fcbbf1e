"""What mean job completion time no schedule is below, whatever it knows in advance. Pure.

Of each resource a job uses at least its work times the least that any of its sizes holds per step. With the whole
cluster as one machine that does one job after the other, the mean over all jobs is smallest where the one with least
left goes first (shortest remaining processing time; Schrage, 1968), and no schedule of the cluster is better than that
machine. Nor does any job end sooner than alone at its fastest size. Pauses, restarts and placement only add to both.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import inf
from typing import Final

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Node
from elastic_tfjob.simulation.speed_models.base import SpeedModel, TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = ["WORLDS", "least_mean_jct_s", "least_total_s"]

WORLDS: Final = frozenset({"fixed", "linear", "elasticflow", "ps", "ps-measured"})
"""Speed models in which a job's speed is a matter of its size alone."""
# Sizes of a job that are looked at; of one with more no bound is told.
_MOST_SIZES: Final = 20_000

Areas = tuple[float, float, float]
"""Of CPU (millicores), memory (bytes), accelerators: what a step takes of each at the least, times its seconds."""


def least_mean_jct_s(jobs: Sequence[WorkloadJob], nodes: Iterable[Node], speed_model: SpeedModel) -> float | None:
    """Seconds; None where speeds are no matter of size alone, there are no jobs, or one has no size at which it runs.
    `nodes`: all that jobs may ever be given."""
    if speed_model.name not in WORLDS or not jobs:
        return None
    each = [node.capacity for node in nodes]
    capacity = [float(sum(values)) for values in zip(*((c.cpu, c.memory, c.accelerators) for c in each), strict=True)]
    found: dict[tuple[object, ...], tuple[float, Areas] | None] = {}
    alone, areas = 0.0, list[Areas]()
    for job in jobs:
        speed = speed_model.true_speed(job)
        kind = (job.model, job.batch_size, job.groups)
        if kind not in found:
            found[kind] = _cheapest(job, speed, capacity)
        cheapest = found[kind]
        if cheapest is None:
            return None
        rate, per_step = cheapest
        alone += speed.total_steps / rate
        areas.append(tuple(speed.total_steps * area for area in per_step))  # type: ignore[arg-type]
    arrivals = [job.submit_s for job in jobs]
    least = max(
        (least_total_s(arrivals, [area[k] / whole for area in areas]) for k, whole in enumerate(capacity) if whole > 0),
        default=0.0,
    )
    return max(least, alone) / len(jobs)


def _cheapest(job: WorkloadJob, speed: TrueSpeed, capacity: Sequence[float]) -> tuple[float, Areas] | None:
    """The fastest rate, and the least that a step takes of each resource, over all sizes that the cluster can hold."""
    fastest, least = 0.0, [inf, inf, inf]
    for size, held in _sizes(job):
        demand = (held.cpu, held.memory, held.accelerators)
        if any(part > whole for part, whole in zip(demand, capacity, strict=True)):
            continue
        if (rate := speed.rate(size)) > 0:
            fastest = max(fastest, rate)
            least = [min(before, part / rate) for before, part in zip(least, demand, strict=True)]
    return (fastest, (least[0], least[1], least[2])) if fastest else None


def _sizes(job: WorkloadJob) -> Iterator[tuple[dict[str, tuple[str, ...]], Resources]]:
    """Each size, as if on one node, and what it holds; none where there are too many."""
    ranges = [range(group.minimum, group.maximum + 1) for group in job.groups]
    number = 1
    for each in ranges:
        number *= len(each)
    for counts in product(*ranges) if number <= _MOST_SIZES else ():
        held = Resources()
        for group, count in zip(job.groups, counts, strict=True):
            held = held.plus(group.request.times(count))
        yield {group.type: ("",) * count for group, count in zip(job.groups, counts, strict=True)}, held


def least_total_s(arrivals: Sequence[float], lengths: Sequence[float]) -> float:
    """The sum of completion times on one machine, the job with least left first: the least that any order has."""
    total, now = -sum(arrivals), 0.0
    left: list[float] = []
    for arrival, length in [*sorted(zip(arrivals, lengths, strict=True)), (inf, 0.0)]:
        while left and now < arrival:
            if now + left[0] > arrival:
                heapq.heapreplace(left, left[0] - (arrival - now))
                now = arrival
            else:
                now += heapq.heappop(left)
                total += now
        now = max(now, arrival)
        heapq.heappush(left, length)
    return total

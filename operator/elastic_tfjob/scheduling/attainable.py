"""The least size with which a job meets a deadline, were it given that from now on. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Final

from elastic_tfjob.scheduling.forecasts import prediction_of, work_left
from elastic_tfjob.scheduling.nodes import admitting
from elastic_tfjob.scheduling.resources import Resources, total_of
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec, Node, Snapshot
from elastic_tfjob.speed.prediction import Prediction, Source

__all__ = ["Attainable", "attainable"]

EACH_UP_TO: Final = 8
"""So many counts of a type are each tried; beyond them, in steps of about a quarter."""
STRIDE: Final = 1.25
MOST_WORKERS: Final = 512
"""Beyond the job's bounds no more workers than that are named."""


@dataclass(frozen=True, slots=True)
class Attainable:
    """`least`: the smallest size, within the job's bounds and what the whole cluster holds, that meets the deadline;
    None: no such size does. Then `fastest` is the one of them that ends first, `late_s` how many seconds too late, and
    `would_do` the least size beyond the bounds or the cluster that would do; None: none of up to MOST_WORKERS workers.
    `source`: what the speed at the size that is named is known from."""

    least: Counts | None = None
    fastest: Counts | None = None
    late_s: float = inf
    would_do: Counts | None = None
    source: Source | None = None


def attainable(job: Job, by_s: float, snapshot: Snapshot) -> Attainable | None:
    """What meets the deadline `by_s` (on the Snapshot's clock) from now on. None: too little is known to say."""
    now, past = snapshot.now, snapshot.past(job.spec)
    left = work_left(job, now, past)
    if left is None or not isfinite(left[0]):
        return None
    known = prediction_of(job, past, snapshot.nodes)
    begins = max(now, job.observed_s) if job.placement else now
    total = capacity(snapshot.nodes, job.spec)
    fastest: tuple[float, Counts, Source] | None = None
    too_large: tuple[Counts, Source] | None = None
    for counts in sizes(job.spec):
        rate = _rate(known, counts)
        if rate is None:
            continue
        ends = begins + left[0] / rate[0]
        fits = job.spec.demand(counts).within(total)
        if fits and ends <= by_s:
            return Attainable(counts, counts, 0.0, counts, rate[1])
        if fits and (fastest is None or ends < fastest[0]):
            fastest = ends, counts, rate[1]
        if not fits and ends <= by_s and too_large is None:
            too_large = counts, rate[1]
    if fastest is None and too_large is None:
        return None
    beyond = too_large or _beyond(job.spec, known, left[0], by_s - begins)
    return Attainable(
        fastest=None if fastest is None else fastest[1],
        late_s=inf if fastest is None else fastest[0] - by_s,
        would_do=None if beyond is None else beyond[0],
        source=beyond[1] if beyond is not None else None,
    )


def sizes(spec: JobSpec) -> list[Counts]:
    """Sizes that the bounds allow, those of few replicas first. Of many, some."""
    if not spec.elastic:
        return [spec.declared]
    workers, servers = spec.group(WORKER), spec.group(PS)
    if workers is None:
        return [spec.minimum]
    choices: list[Counts] = []
    for w in _between(workers.minimum, workers.maximum):
        if servers is None:
            choices.append({**spec.minimum, WORKER: w})
        else:
            choices += [{**spec.minimum, WORKER: w, PS: p} for p in _between(servers.minimum, servers.maximum)]
    return sorted(choices, key=lambda counts: (sum(counts.values()), counts.get(PS, 0)))


def capacity(nodes: Mapping[str, Node], spec: JobSpec) -> Resources:
    """What the nodes where some replica of the job may run have, together; so may one on a node that another pool
    offers, if the job is loanable."""
    there = [replace(node, loan="loaned") if node.loan == "offered" else node for node in nodes.values()]
    kinds = {spec.constraints_of(group.type) for group in spec.groups}
    allowed = frozenset[int]().union(*(admitting(there, kind, spec.loanable) for kind in kinds))
    return total_of(there[i].capacity for i in allowed)


def _beyond(spec: JobSpec, known: Prediction, left: float, time_left: float) -> tuple[Counts, Source] | None:
    workers = spec.group(WORKER)
    if workers is None or time_left <= 0:
        return None
    most = {group.type: group.maximum for group in spec.groups}
    for w in _between(workers.maximum + 1, MOST_WORKERS):
        rate = _rate(known, {**most, WORKER: w})
        if rate is not None and left / rate[0] <= time_left:
            return {**most, WORKER: w}, rate[1]
    return None


def _rate(known: Prediction, counts: Counts) -> tuple[float, Source] | None:
    if counts.get(WORKER) == 0:
        return None
    rate = known.at(counts)
    if rate is None or not isfinite(rate.steps_per_s) or rate.steps_per_s <= 0:
        return None
    return rate.steps_per_s, rate.source


def _between(least: int, most: int) -> Iterator[int]:
    """Each of the first ones, then ever fewer, and the last."""
    n = least
    while n < most:
        yield n
        n = n + 1 if n < least + EACH_UP_TO else max(n + 1, int(n * STRIDE))
    if least <= most:
        yield most

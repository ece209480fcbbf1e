"""What Pollux and Sia have in common: a job's sizes with the speeds that are believed, what a change of a running job
costs, and how sizes and nodes that such a policy has chosen are given to jobs.

The batch size is the job's own here, so that its goodput is its speed times a constant, which no ratio of two sizes
has.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from elastic_tfjob.scheduling.reasons import Reason, added
from elastic_tfjob.scheduling.resources import Resources, total_of
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, UNPLACED, WORKER, Counts, Job, JobSpec, Placement
from elastic_tfjob.scheduling.steps.hull import HullRule, bounds
from elastic_tfjob.scheduling.steps.open_jobs import OpenJobs
from elastic_tfjob.scheduling.steps.sizes import Floats, Ints, apply_sizes, candidates
from elastic_tfjob.speed.optimus import OnlineSpeed

__all__ = [
    "Choices",
    "Open",
    "PerNode",
    "give",
    "open_with_choices",
    "remember_changes",
    "restart_factor",
]

PerNode = Mapping[int, int]
"""Workers by number of the node."""

FRONT: Final = HullRule()
PRIOR: Final = 2
"""Sizes up to this many times the largest measured one are believed to scale perfectly, until one is tried."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The sizes of a job, by number of replicas; `rates` are steps per second. The first is its minimum."""

    sizes: Sequence[Counts]
    workers: Ints
    rates: Floats
    demand: Ints


def choices_of(job: Job, total: Resources) -> Choices:
    """The sizes that no other one matches in speed with as many or fewer replicas. Without a trusted fit, the sizes
    above the largest measured one are believed to scale perfectly, up to twice as many workers (the prior of both
    papers)."""
    spec, speed = job.spec, job.speed
    found = [(size, rate or 1.0) for _, rate, size in FRONT.front(job, total)]
    if isinstance(speed, OnlineSpeed) and spec.elastic and (speed.fit is None or not speed.fit.confident):
        found += _prior(spec, *found[-1])
    return _choices(spec, found)


def _prior(spec: JobSpec, size: Counts, rate: float) -> list[tuple[Counts, float]]:
    """Sizes above this one, with the same number of workers for each parameter server."""
    had, most_ps = size.get(WORKER, 0), bounds(spec, PS)[1]
    sizes: list[tuple[Counts, float]] = []
    for n in range(had + 1, min(PRIOR * had, bounds(spec, WORKER)[1]) + 1):
        servers = {PS: min(most_ps, -(-size[PS] * n // had))} if PS in size else {}
        sizes.append(({**size, WORKER: n, **servers}, rate * n / had))
    return sizes


def _choices(spec: JobSpec, found: Sequence[tuple[Counts, float]]) -> Choices:
    return Choices(
        [size for size, _ in found],
        np.array([size.get(WORKER, 0) for size, _ in found], dtype=np.int64),
        np.array([rate for _, rate in found]),
        np.array([spec.demand(size) for size, _ in found], dtype=np.int64),
    )


def within_reach(known: Choices, job: Job, most: int) -> Choices:
    """The minimum, the choices of at most so many workers, and the job's present size. If that is no choice, it is
    believed to be as fast as the next smaller one."""
    if job.placement and job.counts not in known.sizes:
        replicas = sum(job.counts.values())
        at = sum(sum(size.values()) <= replicas for size in known.sizes)
        found = list(zip(known.sizes, known.rates.tolist(), strict=True))
        found.insert(max(at, 1), (job.counts, found[max(at, 1) - 1][1]))
        known = _choices(job.spec, found)
    reach = [k for k, size in enumerate(known.sizes) if not k or known.workers[k] <= most or size == job.counts]
    if len(reach) == len(known.sizes):
        return known
    return Choices([known.sizes[k] for k in reach], known.workers[reach], known.rates[reach], known.demand[reach])


# -- The jobs that a round may change ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """The jobs that a round may change, in order, and the choices of each. `nodes` are the numbers of the nodes that
    some of them may use, and `free` what these nodes have for them."""

    jobs: Sequence[Job]
    choices: Sequence[Choices]
    nodes: Sequence[int]
    free: Sequence[Resources]

    def chooses_nodes(self, round_: Round) -> bool:
        """Whether the policy chooses nodes: all replicas of a changed job are placed again, and all are workers. Else
        the profile's Place does."""
        return round_.rules.repack and all([g.type for g in job.spec.groups] == [WORKER] for job in self.jobs)

    def present(self, round_: Round) -> list[PerNode]:
        """The workers of each job by node."""
        return [per_node(round_, job.placement) for job in self.jobs]


def open_with_choices(round_: Round, owner: Hashable, growth: int, name: str) -> Open:
    """`growth`, `name`: as for `most_workers`."""
    jobs, _ = candidates(round_, OpenJobs, choices_of, owner)
    open_ = [
        (job, within_reach(known, job, most_workers(job, growth, name)))
        for job, known in zip(jobs.jobs, jobs.known, strict=True)
        if job.key not in round_.changes
    ]
    room = round_.room
    held: dict[int, list[Resources]] = {}
    for job, _ in open_:
        for type_, names in job.placement.items():
            request = job.spec.demand({type_: 1})
            for node in names:
                if (i := room.index.get(node)) is not None:
                    held.setdefault(i, []).append(request)
    free = {i: room.free(i).plus(total_of(held.get(i, ()))).positive() for i in range(len(room.nodes))}
    usable = set(free) if any(room.allowed(job.spec) is None for job, _ in open_) else set()
    for job, _ in open_:
        usable |= room.allowed(job.spec) or frozenset()
    nodes = sorted(i for i in usable if any(free[i]))
    return Open([job for job, _ in open_], [known for _, known in open_], nodes, [free[i] for i in nodes])


def per_node(round_: Round, placement: Placement) -> PerNode:
    found: dict[int, int] = {}
    for name in placement.get(WORKER, ()):
        i = round_.room.index.get(name)
        if i is not None:
            found[i] = found.get(i, 0) + 1
    return found


# -- What a change costs, and how far a job may grow -------------------------------------------------------------------


def restart_factor(job: Job, restart_s: float, name: str, now: float) -> float:
    """The part of its speed that a job keeps if it is changed now: (T - n R) / (T + R) at the age T, with n earlier
    changes that took R seconds each, as in both papers. A waiting job loses nothing."""
    age = max(0.0, now - job.spec.arrival_s)
    if not job.placement or age + restart_s <= 0:
        return 1.0
    changes = job.memory.get(f"{name}.changes", 0.0)
    return max(0.0, age - changes * restart_s) / (age + restart_s)


def most_workers(job: Job, growth: int, name: str) -> int:
    """The most workers that it may get: `growth` times the most that it had so far; its minimum at first. `growth` 0:
    as many as it can use."""
    least = job.spec.minimum.get(WORKER, 0)
    if not growth:
        return bounds(job.spec, WORKER)[1]
    had = max(int(job.memory.get(f"{name}.most", 0.0)), job.counts.get(WORKER, 0))
    return max(least, growth * had)


def remember_changes(round_: Round, open_: Open, name: str) -> None:
    """Store the most workers of each changed job, and how often it was changed."""
    for job in open_.jobs:
        target = round_.changes.get(job.key)
        if target is None:
            continue
        workers = len(target.nodes.get(WORKER, ()))
        if workers > job.memory.get(f"{name}.most", 0.0):
            round_.remember(job, f"{name}.most", workers)
        if job.placement:
            round_.remember(job, f"{name}.changes", job.memory.get(f"{name}.changes", 0.0) + 1)


# -- From sizes and nodes to changes -----------------------------------------------------------------------------------


def give(
    round_: Round, open_: Open, sizes: Sequence[Counts | None], nodes: Sequence[PerNode | None] | None, why: Reason
) -> None:
    """Give each job its size (None: nothing), on these nodes (None: it stays as it is). Without nodes the profile's
    Place chooses them, and a smaller size is taken where one does not fit."""
    if nodes is not None and _give_nodes(round_, open_, sizes, nodes, why):
        return
    differ = [k for k, size in enumerate(sizes) if size != (open_.jobs[k].counts or None)]
    apply_sizes(round_, [open_.jobs[k] for k in differ], [sizes[k] for k in differ], why)


def _give_nodes(
    round_: Round, open_: Open, sizes: Sequence[Counts | None], nodes: Sequence[PerNode | None], why: Reason
) -> bool:
    """Whether all changed jobs got their size on their nodes; else nothing changed."""
    room = round_.room
    changed: list[tuple[Job, Placement]] = []
    for job, size, wanted in zip(open_.jobs, sizes, nodes, strict=True):
        if wanted is None:
            continue
        placement = UNPLACED if size is None else _on(round_, job, wanted)
        if placement != job.placement:
            changed.append((job, placement))
    back = round_.savepoint()
    for job, _ in changed:
        if job.placement and not round_.stop(job, why):
            back()
            return False
    for job, placement in changed:
        if placement:
            request = job.spec.demand({WORKER: 1})
            if any(room.fit(i, request) < n for i, n in per_node(round_, placement).items()):
                back()
                return False
            round_.assign(job, placement, why)
    round_.held_back = added(why, minimum=True)
    return True


def _on(round_: Round, job: Job, wanted: PerNode) -> Placement:
    """Workers on these nodes; those that the job has there stay, in their order."""
    left, names = dict(wanted), []
    for name in job.placement.get(WORKER, ()):
        i = round_.room.index.get(name, -1)
        if left.get(i):
            left[i] -= 1
            names.append(name)
    for i in sorted(left):
        names += [round_.room.nodes[i].name] * left[i]
    return {WORKER: tuple(names)}

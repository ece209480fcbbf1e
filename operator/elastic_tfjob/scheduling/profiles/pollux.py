"""Pollux (Qiao et al., OSDI'21): an evolutionary search for the allocation with the fairest speedups.

Written from the paper's rules. What differs from them is said in docs/profiles/pollux-sia.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from elastic_tfjob.scheduling.core import GoodputParameters, Stages, needs
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources, total_of
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER, Counts, Job
from elastic_tfjob.scheduling.steps.goodput import (
    Choices,
    Open,
    PerNode,
    give,
    open_with_choices,
    remember_changes,
    restart_factor,
)

__all__ = ["FairSpeedups", "PolluxParameters"]

NAME: Final = "pollux"
LEAST_SPEEDUP: Final = 0.01
"""What a job without workers counts as: with a speedup of 0, every allocation in which one job waits would be worth
nothing, and the search could not tell them apart."""
NO_BOUND: Final = 1 << 20
"""Workers that a node holds of a job that requests nothing."""
MUTATED: Final = 2.0
"""Jobs that a mutation changes, on average. The paper's mutations reach all jobs; with four times the work the search
then ends further from the best value (docs/profiles/pollux-sia.md)."""
PARENTS: Final = 3
"""Allocations from which a parent is the best."""
MOST_CELLS: Final = 1_000_000
"""Numbers of workers in all allocations of a generation, ..."""
MOST_WORK: Final = 100 * MOST_CELLS
"""... and in all generations of a round."""

Workers = NDArray[np.int64]
"""Allocations: workers by allocation, job and node."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FairSpeedups:
    """Maximises the power mean of the jobs' speedups, (mean of s^p)^(1/p) with p = `fairness`, where s is the job's
    speed over that with its fair share of the cluster. The speed of a job that would be changed counts
    less by its restart factor. With too many jobs and nodes for a search, jobs start with their minimum."""

    fairness: float = -1.0
    restart_s: float = 30.0
    growth: int = 2
    apart: bool = True
    population: int = 50
    generations: int = 50

    def __call__(self, round_: Round) -> None:
        open_ = open_with_choices(round_, self, self.growth, NAME)
        if not open_.jobs or not open_.nodes:
            return
        if 2 * len(open_.jobs) * len(open_.nodes) > MOST_CELLS:
            least = [job.counts or known.sizes[0] for job, known in zip(open_.jobs, open_.choices, strict=True)]
            give(round_, open_, least, None, Reason("fair-speedup"))
            return
        search = Search(self, open_, round_)
        found = search.run(np.random.default_rng([round_.snapshot.seed, int(round_.now)]))
        sizes, nodes = search.sizes_and_nodes(found)
        give(round_, open_, sizes, nodes, Reason("fair-speedup"))
        remember_changes(round_, open_, NAME)

    def worth(self, speedups: Floats) -> Floats:
        """The terms whose sum is largest where the power mean is."""
        bounded = np.maximum(speedups, LEAST_SPEEDUP)
        return np.log(bounded) if self.fairness == 0 else np.sign(self.fairness) * bounded**self.fairness


class Search:
    """The jobs and nodes as arrays: by job what each number of units is worth, and by job and node how many units fit.

    A unit is a worker. Where the profile's Place chooses nodes, it is instead the next size of the job, and all nodes
    count as one with their total."""

    def __init__(self, rule: FairSpeedups, open_: Open, round_: Round) -> None:
        self.rule, self.open_ = rule, open_
        self.by_node = open_.chooses_nodes(round_)
        if self.by_node:
            self._workers_by_node(round_)
        else:
            self._sizes(round_)
        self.one_node = self.fits.max(axis=1, initial=0)
        self._value(round_, open_.jobs)

    def _workers_by_node(self, round_: Round) -> None:
        jobs, nodes = self.open_.jobs, self.open_.nodes
        self.units = [known.workers for known in self.open_.choices]
        self.most = np.array([units[-1] for units in self.units])
        at = {i: n for n, i in enumerate(nodes)}
        self.present = np.zeros((len(jobs), len(nodes)), dtype=np.int64)
        for j, spread in enumerate(self.open_.present(round_)):
            for i, workers in spread.items():
                if i in at:
                    self.present[j, at[i]] = workers
        free = np.array(self.open_.free, dtype=np.int64)
        each = np.array([job.spec.demand({WORKER: 1}) for job in jobs], dtype=np.int64)
        counts = each.any(axis=0)
        self.free, each = free[:, counts], each[:, counts]
        some = np.maximum(each, 1)
        fits = np.where(each[:, None] > 0, self.free[None] // some[:, None], NO_BOUND).min(axis=2, initial=NO_BOUND)
        for j, job in enumerate(jobs):
            allowed = round_.room.allowed(job.spec)
            if allowed is not None:
                fits[j, [n for n, i in enumerate(nodes) if i not in allowed]] = 0
        self.fits = np.minimum(fits, self.most[:, None])
        self.takes = each[:, None] * np.arange(int(self.most.max()) + 1)[None, :, None]

    def _sizes(self, round_: Round) -> None:
        choices = self.open_.choices
        self.units = [np.arange(1, len(known.sizes) + 1) for known in choices]
        self.most = np.array([len(known.sizes) for known in choices])
        self.present = np.array(
            [
                [known.sizes.index(job.counts) + 1 if job.placement else 0]
                for job, known in zip(self.open_.jobs, choices, strict=True)
            ]
        )
        self.fits = self.most[:, None]
        self.free = np.array([total_of(self.open_.free)], dtype=np.int64)
        self.takes = np.zeros((len(choices), int(self.most.max()) + 1, self.free.shape[1]), dtype=np.int64)
        for j, known in enumerate(choices):
            self.takes[j, 1 : len(known.sizes) + 1] = known.demand

    def _value(self, round_: Round, jobs: Sequence[Job]) -> None:
        rule, width = self.rule, int(self.most.max()) + 1
        speedups = np.zeros((len(jobs), width))
        factors = np.array([restart_factor(job, rule.restart_s, NAME, round_.now) for job in jobs])
        for j, (job, known) in enumerate(zip(jobs, self.open_.choices, strict=True)):
            fair = known.rates[fair_row(known, job, round_.room.total, len(jobs))]
            rows = np.searchsorted(self.units[j], np.arange(width), "right")
            speedups[j] = np.concatenate(([0.0], known.rates / fair))[rows]
        self.worth = rule.worth(speedups * factors[:, None])
        each = np.arange(len(jobs))
        self.worth_kept = rule.worth(speedups[each, np.minimum(self.present.sum(axis=1), self.most)])

    # ---- the search

    @property
    def effort(self) -> tuple[int, int]:
        """Allocations and generations; fewer where there are many jobs and nodes, so that a round ends."""
        cells = max(1, self.present.size)
        population = max(2, min(self.rule.population, MOST_CELLS // cells))
        return population, max(1, min(self.rule.generations, MOST_WORK // (population * cells)))

    def run(self, rng: np.random.Generator) -> Workers:
        """The best allocation found; the present one where none is better."""
        size, generations = self.effort
        pool = self.repaired(np.repeat(self.present[None], size, axis=0), rng)
        pool[0] = self.present
        value = self.value(pool)
        for _ in range(generations):
            mutants = self.repaired(self.mutated(pool, rng), rng)
            both, worths = np.concatenate((pool, mutants)), np.concatenate((value, self.value(mutants)))
            children = self.repaired(self.crossed(both, worths, rng), rng)
            both, worths = np.concatenate((both, children)), np.concatenate((worths, self.value(children)))
            best = np.argsort(-worths, kind="stable")[:size]
            pool, value = both[best], worths[best]
        best_found: Workers = pool[0]
        return best_found

    def value(self, pool: Workers) -> Floats:
        """What each allocation is worth. A job on several nodes that would fit one is believed to be as fast as with
        what it has on one of them: its speed is known only for the fewest nodes."""
        workers, on_one = pool.sum(axis=2), pool.max(axis=2)
        useful = np.where((on_one < workers) & (workers <= self.one_node), on_one, workers)
        each = np.arange(pool.shape[1])
        worth = self.worth[each, np.minimum(useful, self.most)]
        kept = (pool == self.present).all(axis=2)
        value: Floats = np.where(kept, self.worth_kept, worth).sum(axis=1)
        return value

    def mutated(self, pool: Workers, rng: np.random.Generator) -> Workers:
        """In each allocation about `MUTATED` jobs change: each number of workers with probability 1 / nodes, to any
        that the empty node holds; and random nodes lose workers beyond what the job may have."""
        _, jobs, nodes = pool.shape
        k, j = np.nonzero(rng.random(pool.shape[:2]) * jobs < MUTATED)
        changes = rng.random((len(k), nodes)) * nodes < 1
        rows = np.where(changes, rng.integers(0, self.fits[j] + 1), pool[k, j])
        order = rng.permutation(nodes)
        up_to = np.minimum(np.cumsum(rows[:, order], axis=1), self.most[j, None])
        rows[:, order] = np.diff(up_to, axis=1, prepend=0)
        mutants = pool.copy()
        mutants[k, j] = rows
        return mutants

    def crossed(self, pool: Workers, worths: Floats, rng: np.random.Generator) -> Workers:
        """Each job as in one of two parents, each the best of a few allocations."""
        number = len(pool) // 2
        drawn = rng.integers(0, len(pool), size=(2, number, PARENTS))
        best = np.take_along_axis(drawn, worths[drawn].argmax(axis=2)[..., None], axis=2)[..., 0]
        first = rng.random((number, pool.shape[1], 1)) < 0.5
        children: Workers = np.where(first, pool[best[0]], pool[best[1]])
        return children

    # ---- repair: an allocation that can be carried out

    def repaired(self, pool: Workers, rng: np.random.Generator) -> Workers:
        """The pool itself, changed in place."""
        if self.rule.apart:
            self._part(pool, rng)
        self._fit(pool, rng)
        return pool

    def _part(self, pool: Workers, rng: np.random.Generator) -> None:
        """At most one distributed job is on each node: a random one stays."""
        there = pool > 0
        distributed = there & (there.sum(axis=2) > 1)[:, :, None]
        k, n = np.nonzero(distributed.sum(axis=1) > 1)
        on_node = distributed[k, :, n]
        stays = (rng.random(on_node.shape) * on_node).argmax(axis=1)
        leaves = on_node.copy()
        leaves[np.arange(len(k)), stays] = False
        pool[k, :, n] = np.where(leaves, 0, pool[k, :, n])

    def _fit(self, pool: Workers, rng: np.random.Generator) -> None:
        """Random jobs have fewer units on a node until they fit."""
        jobs = np.arange(pool.shape[1])
        k, n = np.nonzero((self.takes[jobs[:, None], pool].sum(axis=1) > self.free).any(axis=2))
        while len(k):
            on_node = pool[k, :, n]
            chosen = (rng.random(on_node.shape) * (on_node > 0)).argmax(axis=1)
            each = np.arange(len(k))
            on_node[each, chosen] = rng.integers(0, np.maximum(on_node[each, chosen], 1))
            pool[k, :, n] = on_node
            over = (self.takes[jobs, on_node].sum(axis=1) > self.free[n]).any(axis=1) & (on_node > 0).any(axis=1)
            k, n = k[over], n[over]

    # ---- the result

    def sizes_and_nodes(self, found: Workers) -> tuple[list[Counts | None], list[PerNode | None] | None]:
        """The size of each job, and its workers by node, without workers that no size has. A job that the search did
        not change stays as it is."""
        sizes: list[Counts | None] = []
        nodes: list[PerNode | None] = []
        for j, (job, known) in enumerate(zip(self.open_.jobs, self.open_.choices, strict=True)):
            kept = found[j].copy()
            if (kept == self.present[j]).all():
                sizes.append(job.counts or None)
                nodes.append(None)
                continue
            row = int(np.searchsorted(self.units[j], min(int(kept.sum()), int(self.most[j])), "right"))
            extra = int(kept.sum()) - (int(self.units[j][row - 1]) if row else 0)
            for n in np.argsort(kept, kind="stable").tolist():
                less = min(extra, int(kept[n]))
                kept[n] -= less
                extra -= less
            sizes.append(known.sizes[row - 1] if row else None)
            nodes.append({self.open_.nodes[n]: int(kept[n]) for n in np.nonzero(kept)[0].tolist()})
        return sizes, nodes if self.by_node else None


def fair_row(known: Choices, job: Job, total: Resources, jobs: int) -> int:
    """The index of the largest size within 1 / `jobs` of the cluster; of the smallest one if none is."""
    within = [k for k, size in enumerate(known.sizes) if job.spec.demand(size).dominant_share(total) * jobs <= 1]
    return max(within, default=0)


class PolluxParameters(GoodputParameters):
    """Pollux: an evolutionary search for the allocation with the best power mean of speedups over the fair share."""

    fairness: float = Field(-1.0, ge=-10, le=1, description="exponent of the power mean; lower is fairer (the paper)")
    interference: bool = Field(True, description="at most one job of several nodes on each node")
    population: int = Field(50, ge=2, le=10_000, description="allocations that survive a generation of the search")
    generations: int = Field(50, ge=1, le=10_000, description="generations of the search in each round")

    def stages(self) -> Stages:
        rule = FairSpeedups(
            self.fairness, self.restart_s, self.growth, self.interference, self.population, self.generations
        )
        return Stages(Fifo(), (rule,), needs("speed", "stop"), drifts=True)

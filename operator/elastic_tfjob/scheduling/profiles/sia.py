"""Sia (Jayaram Subramanya et al., SOSP'23): the best configuration for each job, by an integer program in each round.

Written from the paper's rules. What differs from them is said in docs/profiles/pollux-sia.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Final

import numpy as np
from pydantic import Field

from elastic_tfjob.scheduling.core import GoodputParameters, Stages, needs
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources, total_of
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import WORKER
from elastic_tfjob.scheduling.steps.goodput import (
    Open,
    PerNode,
    give,
    open_with_choices,
    remember_changes,
    restart_factor,
)

__all__ = ["BestConfigurations", "Option", "SiaParameters", "best_options"]

NAME: Final = "sia"
UNITS: Final = 2000
"""Into how many units the capacity of a type is divided at most."""
STATES: Final = 300_000
"""Most states of the dynamic program, ..."""
CELLS: Final = 30_000_000
"""... and most times the number of jobs."""
LEAST_PART: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration of a job: the row of its size, the type of nodes, what it takes there, and its cost in
    the sum that is minimised."""

    row: int
    type_: int
    takes: int
    cost: float


@dataclass(frozen=True, slots=True)
class BestConfigurations:
    """Minimises the sum over jobs of (r N G)^p, p = `fairness` below 0: G is the goodput of the configuration over the
    job's least, N its least number of workers, and r the restart factor of a change. A job without a configuration
    costs `unserved`."""

    fairness: float = -0.5
    unserved: float = 1.1
    restart_s: float = 30.0
    growth: int = 2

    def __call__(self, round_: Round) -> None:
        open_ = open_with_choices(round_, self, self.growth, NAME)
        if not open_.jobs or not open_.nodes:
            return
        chooses_nodes = open_.chooses_nodes(round_)
        types = node_types(round_, open_, apart=chooses_nodes)
        capacity, kind = bottleneck(open_, types)
        options = self.options(round_, open_, types, kind)
        chosen = best_options(options, capacity, self.unserved)
        sizes = [
            None if option is None else known.sizes[option.row]
            for known, option in zip(open_.choices, chosen, strict=True)
        ]
        nodes = placed(round_, open_, types, chosen) if chooses_nodes else None
        give(round_, open_, sizes, nodes, Reason("best-configurations"))
        remember_changes(round_, open_, NAME)

    def options(self, round_: Round, open_: Open, types: Sequence["NodeType"], kind: int) -> list[list[Option]]:
        """The configurations of each job: on each type of nodes the sizes that fill a part of a node that is a power of
        two, or whole nodes; and the present one."""
        found: list[list[Option]] = []
        holds: dict[tuple[int, tuple[int, ...], frozenset[int] | None], int] = {}
        for job, known, present in zip(open_.jobs, open_.choices, open_.present(round_), strict=True):
            on, allowed = present.keys(), round_.room.allowed(job.spec)
            each = tuple((-(-known.demand[0] // max(1, int(known.workers[0])))).tolist())
            rates: list[tuple[int, int, float, bool]] = []
            for t, type_ in enumerate(types):
                if (t, each, allowed) not in holds:
                    holds[t, each, allowed] = type_.holds(each, allowed)
                one_node = holds[t, each, allowed]
                kept = job.placement and on <= set(type_.nodes)
                for k in range(len(known.sizes)):
                    same = bool(kept) and known.sizes[k] == job.counts
                    w = int(known.workers[k])
                    if same or k == 0 or (one_node and _fills(w, one_node)):
                        rates.append((k, t, float(known.rates[k]) * type_.speed, same))
            least = min((rate for _, _, rate, _ in rates), default=1.0)
            scale = max(1, int(known.workers[0])) / least
            part = max(LEAST_PART, restart_factor(job, self.restart_s, NAME, round_.now))
            found.append(
                [
                    Option(
                        k,
                        t,
                        int(known.demand[k][kind]),
                        (scale * rate * (1.0 if same else part)) ** self.fairness,
                    )
                    for k, t, rate, same in rates
                ]
            )
        return found


def _fills(workers: int, one_node: int) -> bool:
    """Whether so many workers are a power of two within a node, or fill whole nodes."""
    return workers & (workers - 1) == 0 if workers <= one_node else workers % max(one_node, 1) == 0


# -- Types of nodes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeType:
    """Nodes, by number, whose accelerators have the same speed."""

    speed: float
    nodes: tuple[int, ...]
    free: tuple[Resources, ...]

    def holds(self, each: Sequence[int], allowed: frozenset[int] | None) -> int:
        """The most workers that one of the allowed nodes would hold, if each takes so much."""
        return max(
            (fit(free, each) for i, free in zip(self.nodes, self.free, strict=True) if allowed is None or i in allowed),
            default=0,
        )


def fit(free: Sequence[int], each: Sequence[int]) -> int:
    """The workers that a node with so much free would hold, if each takes so much; 0 if they take nothing."""
    return min((have // want for have, want in zip(free, each, strict=True) if want), default=0)


def node_types(round_: Round, open_: Open, *, apart: bool) -> list[NodeType]:
    """The fastest type first. Not `apart`: all nodes as one type, since the profile's Place chooses among them."""
    by_speed: dict[float, list[tuple[int, Resources]]] = {}
    for i, free in zip(open_.nodes, open_.free, strict=True):
        by_speed.setdefault(round_.room.nodes[i].accelerator_speed if apart else 1.0, []).append((i, free))
    return [
        NodeType(speed, tuple(i for i, _ in by_speed[speed]), tuple(free for _, free in by_speed[speed]))
        for speed in sorted(by_speed, reverse=True)
    ]


def bottleneck(open_: Open, types: Sequence[NodeType]) -> tuple[list[int], int]:
    """The capacity of each type, and the number, of the resource of which the jobs' declared sizes ask for the largest
    part. Other resources count only when nodes are chosen."""
    there = total_of(open_.free)
    wanted = total_of(job.spec.declared_demand for job in open_.jobs)
    kind = int(np.argmax([want / have if have else 0.0 for want, have in zip(wanted, there, strict=True)]))
    return [total_of(type_.free)[kind] for type_ in types], kind


# -- The program -------------------------------------------------------------------------------------------------------


def best_options(options: Sequence[Sequence[Option]], capacity: Sequence[int], unserved: float) -> list[Option | None]:
    """One option or None for each job, such that on each type what they take is within its capacity and the sum of
    costs is least: a multiple-choice knapsack, by dynamic programming over what is used of each type."""
    units = units_of(options, capacity)
    takes = [[-(-option.takes // units[option.type_]) for option in each] for each in options]
    shape = tuple(there // unit + 1 for there, unit in zip(capacity, units, strict=True))
    best = np.zeros(shape)
    picks = np.full((len(options), *shape), -1, dtype=np.int16)
    for j, each in enumerate(options):
        least = best + unserved
        for k, option in enumerate(each):
            t, used = option.type_, takes[j][k]
            if used >= shape[t]:
                continue
            after = (slice(None),) * t + (slice(used, None),)
            cost = best[(slice(None),) * t + (slice(0, shape[t] - used),)] + option.cost
            better = cost < least[after]
            np.copyto(least[after], cost, where=better)
            np.copyto(picks[j][after], k, where=better)
        best = least
    found: list[Option | None] = []
    left = [width - 1 for width in shape]
    for j in range(len(options) - 1, -1, -1):
        k = int(picks[(j, *left)])
        found.append(options[j][k] if k >= 0 else None)
        if k >= 0:
            left[options[j][k].type_] -= takes[j][k]
    return found[::-1]


def units_of(options: Sequence[Sequence[Option]], capacity: Sequence[int]) -> list[int]:
    """The unit in which each type's capacity is counted: the largest that divides all that is taken. Larger where there
    would be too many states; then what an option takes is rounded up."""
    units = []
    for t, there in enumerate(capacity):
        taken = [option.takes for each in options for option in each if option.type_ == t]
        units.append(max(gcd(there, *taken), -(-there // UNITS), 1))
    most = min(STATES, CELLS // max(1, len(options)))
    while (widths := [there // unit + 1 for there, unit in zip(capacity, units, strict=True)]) and prod(widths) > most:
        units[widths.index(max(widths))] *= 2
    return units


# -- Nodes -------------------------------------------------------------------------------------------------------------


def placed(
    round_: Round, open_: Open, types: Sequence[NodeType], chosen: Sequence[Option | None]
) -> list[PerNode | None] | None:
    """Nodes of its type for each job's workers, large jobs first; None where a job stays as it is, and instead of the
    list where a job finds no nodes. A job that keeps its size keeps its nodes, unless a larger one needs them; a job
    that changes takes nodes on which the fewest workers of such jobs are. Parts of a node that are powers of two always
    fit together."""
    free = dict(zip(open_.nodes, (list(each) for each in open_.free), strict=True))
    present = open_.present(round_)
    keeps = [
        option is not None
        and open_.choices[j].sizes[option.row] == open_.jobs[j].counts
        and present[j].keys() <= set(types[option.type_].nodes)
        for j, option in enumerate(chosen)
    ]
    stays = dict.fromkeys(open_.nodes, 0)
    for j, per_node in enumerate(present):
        for i, n in per_node.items() if keeps[j] else ():
            stays[i] += n
    nodes: list[PerNode | None] = [{} if job.placement else None for job in open_.jobs]
    workers = [0 if option is None else int(open_.choices[j].workers[option.row]) for j, option in enumerate(chosen)]
    for j in sorted(range(len(chosen)), key=lambda j: (-workers[j], not keeps[j], j)):
        option = chosen[j]
        if option is None:
            continue
        job, each = open_.jobs[j], open_.jobs[j].spec.demand({WORKER: 1})
        if keeps[j]:
            for i, n in present[j].items():
                stays[i] -= n
        fits = {i: fit(free[i], each) for i in free}
        if keeps[j] and all(fits.get(i, 0) >= n for i, n in present[j].items()):
            found = present[j]
        else:
            allowed = round_.room.allowed(job.spec)
            there = [i for i in types[option.type_].nodes if allowed is None or i in allowed]
            taken = _nodes_for(workers[j], there, fits, stays)
            if taken is None:
                return None
            found = taken
        for i, n in found.items():
            free[i] = [have - n * want for have, want in zip(free[i], each, strict=True)]
        nodes[j] = None if found is present[j] else found
    return nodes


def _nodes_for(workers: int, there: Sequence[int], fits: dict[int, int], stays: dict[int, int]) -> PerNode | None:
    """One node that holds all, else the fewest: those with the fewest workers that would have to leave, then the
    fullest."""
    one = min((i for i in there if fits[i] >= workers), key=lambda i: (stays[i], fits[i], i), default=None)
    if one is not None:
        return {one: workers}
    found: dict[int, int] = {}
    left = workers
    for i in sorted(there, key=lambda i: (-min(fits[i], left), stays[i], i)):
        n = min(left, fits[i])
        if n:
            found[i] = n
            left -= n
        if not left:
            return found
    return None


class SiaParameters(GoodputParameters):
    """Sia: the best configuration for each job, by an integer program in each round."""

    fairness: float = Field(-0.5, ge=-10, lt=0, description="exponent of the goodput; lower is fairer (the paper)")
    unserved: float = Field(1.1, gt=0, le=1000, description="cost of a job without resources (the paper's lambda)")

    def stages(self) -> Stages:
        rule = BestConfigurations(self.fairness, self.unserved, self.restart_s, self.growth)
        return Stages(Fifo(), (rule,), needs("speed", "stop"), drifts=True)

"""Scenarios: jobs drawn from distributions (the same for the same seed), scripted node changes, and the inference pool
that lends nodes to the training cluster."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from elastic_tfjob.api.reading import MAX_REPLICAS, document
from elastic_tfjob.api.scenario import (
    Arrivals,
    Distribution,
    Inference,
    JobClass,
    Number,
    PoolFile,
    Replicas,
    Scenario,
    parse_pool,
    parse_scenario,
)
from elastic_tfjob.scheduling.resources import ANYWHERE, Constraints, Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, LoanState, Node, Pool, ReplicaGroup
from elastic_tfjob.simulation.event_queue import NodeChange, NodeScript
from elastic_tfjob.simulation.formats import GIB, WorkloadError
from elastic_tfjob.simulation.workload import LossCurve, MemoryGrowth, WorkloadJob, in_team

__all__ = ["POOLS", "InferenceSide", "read_pool"]

# -- The inference pool: a second set of nodes whose demand varies over the day, and which lends spare nodes -----------

DAY_S = 86400.0
HOUR_S = 3600.0
INFERENCE = "inference"
"""The name of the pool in its nodes' `pool` field."""


@dataclass(frozen=True, slots=True)
class InferencePool:
    """A pool of `nodes` nodes with the resources `each`. `accelerator_speed` is the speed of its accelerators relative
    to those of the training pool.

    The utilisation is u(t) = middle + swing cos(2 pi (t - peak) / day) plus AR(1) noise, lower on weekends, within
    [0.40, 0.97]. With the defaults it is 42 to 95 % with a peak in the evening, as Aryl reports for its inference
    cluster. Every `period_s` seconds the pool computes that it needs ceil(nodes (u + headroom)) nodes itself, and
    offers the rest, the last nodes first.
    """

    nodes: int
    each: Resources
    accelerator_speed: float = 1.0
    middle: float = 0.685
    swing: float = 0.265
    peak_s: float = 21 * HOUR_S
    noise: float = 0.02
    weekend: float = 0.95
    headroom: float = 0.02
    period_s: float = 300.0

    def build(self) -> list[Node]:
        """The pool's nodes before any is offered."""
        width = len(str(max(self.nodes - 1, 0)))
        return [
            Node(
                f"inference-{i:0{width}}",
                self.each,
                self.each,
                pool=INFERENCE,
                accelerator_speed=self.accelerator_speed,
                loan="busy",
            )
            for i in range(self.nodes)
        ]

    def utilisation(self, at_s: float, disturbance: float = 0.0) -> float:
        """The share of the pool that serves requests at `at_s` seconds after midnight on a Monday."""
        u = self.middle + self.swing * math.cos(2 * math.pi * (at_s - self.peak_s) / DAY_S) + disturbance
        if (at_s // DAY_S) % 7 >= 5:
            u *= self.weekend
        return min(0.97, max(0.40, u))

    def spare(self, at_s: float, disturbance: float = 0.0) -> int:
        """The number of nodes that the pool does not need at `at_s`."""
        return self.nodes - min(
            self.nodes, math.ceil(self.nodes * (self.utilisation(at_s, disturbance) + self.headroom))
        )


class Demand:
    """The pool's demand over time. The noise advances by one step per period."""

    def __init__(self, pool: InferencePool, seed: int) -> None:
        self.pool = pool
        self._random = random.Random(f"inference-{seed}")
        self._disturbance = 0.0

    def step(self, at_s: float, nodes: Mapping[str, Node]) -> tuple[dict[str, Node], Pool]:
        """Apply the demand at `at_s`: returns `nodes` with the pool's own nodes marked as offered or busy, and the Pool
        with the number of lent nodes that it wants back and of nodes that it can spare."""
        self._disturbance = 0.9 * self._disturbance + self._random.gauss(0.0, self.pool.noise)
        mine = [node for node in nodes.values() if node.pool == INFERENCE]
        kept = [node for node in mine if node.loan != "loaned"]
        spare = self.pool.spare(at_s, self._disturbance) - (len(mine) - len(kept))
        after = dict(nodes)
        for i, node in enumerate(kept):
            loan: LoanState = "offered" if i >= len(kept) - spare else "busy"
            if node.loan != loan:
                after[node.name] = replace(node, loan=loan)
        return after, Pool(wanted=max(0, -spare), spare=max(0, spare))


PEAK_S = 15 * HOUR_S
"""The time of day (seconds) with most arrivals in a diurnal scenario."""


def read_scenario(path: Path) -> Scenario:
    """The scenario in a YAML file. Raises WorkloadError with the file, the field, the value and what is allowed."""
    try:
        content = document(path.read_text())
    except (OSError, UnicodeDecodeError) as e:
        raise WorkloadError(f"{path}: cannot be read: {e}") from e
    except ValueError as e:
        raise WorkloadError(f"{path}: {e}") from e
    try:
        return parse_scenario(content)
    except ValueError as e:
        raise WorkloadError(f"{path}: invalid scenario:\n{e}") from e


def generate(scenario: Scenario, seed: int) -> tuple[WorkloadJob, ...]:
    """The jobs for one seed. Raises WorkloadError if a job has more replicas than allowed."""
    rng = random.Random(seed)
    kinds, weights = scenario.mix, [kind.weight for kind in scenario.mix]
    width = len(str(scenario.jobs - 1))
    return tuple(
        _job(in_team(f"{kind.name}-{k:0{width}}", kind.team), t, kind, rng)
        for k, t in enumerate(arrival_times(scenario.arrivals, scenario.jobs, rng))
        for kind in rng.choices(kinds, weights)
    )


def _job(key: str, at_s: float, kind: JobClass, rng: random.Random) -> WorkloadJob:
    groups = [_group(kind.name, kind.workers, WORKER, rng)]
    if kind.ps is not None:
        groups.append(_group(kind.name, kind.ps, PS, rng))
    duration = None if kind.duration_s is None else max(1.0, draw(kind.duration_s, rng))
    deadline = None
    if kind.deadline_factor is not None and duration is not None:
        deadline = at_s + draw(kind.deadline_factor, rng) * duration
    return WorkloadJob(
        key=key,
        submit_s=at_s,
        groups=tuple(groups),
        duration_s=duration,
        total_steps=None if kind.steps is None else max(1.0, draw(kind.steps, rng)),
        deadline_s=deadline,
        priority=kind.priority,
        model=kind.model,
        batch_size=kind.batch_size,
        loanable=kind.loanable,
        cpu_demand=kind.cpu_demand,
        constraints=Constraints(tuple(sorted(kind.node_selector.items()))) if kind.node_selector else ANYWHERE,
        loss=None if kind.loss is None else LossCurve(kind.loss.b0, kind.loss.b1, kind.loss.b2),
        memory=_memory(kind, rng),
    )


def _memory(kind: JobClass, rng: random.Random) -> MemoryGrowth | None:
    if (use := kind.memory) is None or kind.ps is None:
        return None
    first, jump_s, jump = kind.ps.memory_gib / 2 if use.used_gib is None else use.used_gib, use.jump_s, use.jump_gib
    return MemoryGrowth(
        GIB * min(kind.ps.memory_gib, max(0.0, draw(first, rng))),
        GIB * max(0.0, draw(use.growth_gib_per_h, rng)),
        0.0 if jump_s is None else max(0.0, draw(jump_s, rng)),
        0.0 if jump is None else GIB * max(0.0, draw(jump, rng)),
        None if use.max_gib is None else round(GIB * use.max_gib),
    )


def _group(kind: str, replicas: Replicas, type_: str, rng: random.Random) -> ReplicaGroup:
    drawn = draw(replicas.count, rng)
    if not drawn <= MAX_REPLICAS:
        raise WorkloadError(f"job class {kind}: {drawn:.6g} {type_} replicas drawn; at most {MAX_REPLICAS} are allowed")
    count = max(1, round(drawn))
    low, high = replicas.min or count, replicas.max or count
    request = Resources(round(replicas.cpus * 1000), round(replicas.memory_gib * GIB), replicas.gpus)
    count = min(max(count, replicas.min or 1), replicas.max or count)
    return ReplicaGroup(type_, request, count, min(low, count), max(high, count))


def draw(number: Number, rng: random.Random) -> float:
    if not isinstance(number, Distribution):
        return number
    if number.uniform is not None:
        return rng.uniform(*number.uniform)
    if number.exponential is not None:
        return rng.expovariate(1 / number.exponential)
    if number.lognormal is not None:
        return rng.lognormvariate(math.log(number.lognormal.median), number.lognormal.sigma)
    assert number.choice is not None
    return rng.choice(number.choice)


def arrival_times(arrivals: Arrivals, n: int, rng: random.Random) -> list[float]:
    match arrivals.kind:
        case "fixed":
            return [k * arrivals.every_s for k in range(n)]
        case "uniform":
            return sorted(rng.uniform(0, arrivals.window_s) for _ in range(n))
        case "burst":
            return [0.0] * n
        case "poisson" | "diurnal":
            return list(_poisson(arrivals, n, rng))


def _poisson(arrivals: Arrivals, n: int, rng: random.Random) -> Iterator[float]:
    """Arrival times of a Poisson process, by thinning: candidates arrive at the highest rate, and each is accepted with
    the probability (rate at its time) / (highest rate)."""
    t, given, swings = 0.0, 0, arrivals.kind == "diurnal"
    highest = arrivals.per_hour * (2 if swings else 1)
    while given < n:
        t += rng.expovariate(highest / HOUR_S)
        rate = arrivals.per_hour * (1 + math.cos(2 * math.pi * (t - PEAK_S) / DAY_S)) if swings else highest
        if rng.random() * highest <= rate:
            given += 1
            yield t


def node_changes(scenario: Scenario, cluster: Sequence[Node]) -> tuple[NodeChange, ...]:
    """The scenario's node changes. An added node has the resources of the first node of the cluster. Raises ValueError
    if a node is lost that the cluster does not have, or added that it has already."""
    by_name = {node.name: node for node in cluster}
    changes = []
    if scenario.nodes and not cluster:
        raise ValueError("nodes: a cluster without nodes has none to lose, and none that an added one could be like")
    for entry in scenario.nodes:
        node = by_name.get(entry.node, replace(cluster[0], name=entry.node))
        if entry.added_s is not None:
            changes.append(NodeChange(entry.added_s, entry.node, node))
        if entry.lost_s is not None:
            changes.append(NodeChange(entry.lost_s, entry.node, notice_s=entry.notice_s))
        if entry.back_s is not None:
            changes.append(NodeChange(entry.back_s, entry.node, node))
    NodeScript(changes, by_name)
    return tuple(changes)


def own_pool(scenario: Scenario | None) -> InferencePool | None:
    """The inference pool defined in the scenario, if any."""
    return None if scenario is None or scenario.inference is None else pool_of(scenario.inference)


def pool_of(pool: Inference) -> InferencePool:
    each = Resources(round(pool.cpus_per_node * 1000), round(pool.memory_gib_per_node * GIB), pool.gpus_per_node)
    return InferencePool(pool.nodes, each, pool.accelerator_speed, headroom=pool.headroom)


# -- An inference pool for any workload, and the choice of the jobs that may run on its nodes --------------------------

POOLS: Final = {"aryl": PoolFile(nodes=520, gpus_per_node=8, accelerator_speed=0.5, loanable=0.21)}
"""The predefined pools. aryl: the inference cluster of arXiv 2202.07896 and its share of fungible jobs."""


@dataclass(frozen=True, slots=True)
class InferenceSide:
    """An inference pool. `loanable` is the share of jobs that may run on lent nodes; None: the workload marks these
    jobs itself."""

    pool: InferencePool
    loanable: float | None

    def mark(self, jobs: Sequence[WorkloadJob], seed: int) -> tuple[WorkloadJob, ...]:
        """The jobs, with a random choice for this seed marked as loanable. Raises WorkloadError if no job is loanable,
        because no job could use the pool then."""
        if self.loanable is not None:
            draw = random.Random(f"loanable-{seed}")
            jobs = [replace(job, loanable=draw.random() < self.loanable) for job in jobs]
        if not any(job.loanable for job in jobs):
            raise WorkloadError("no job is loanable; set the share of loanable jobs, 'loanable', in the pool's file")
        return tuple(jobs)


def read_pool(named: str) -> InferenceSide:
    """The predefined pool of this name, or else the pool in this YAML file. Raises WorkloadError with the file, the
    field, the value and what is allowed."""
    pool = POOLS.get(named)
    if pool is None:
        try:
            content = document(Path(named).read_text())
        except (OSError, UnicodeDecodeError) as e:
            raise WorkloadError(
                f"{named}: neither a predefined pool ({', '.join(POOLS)}) nor a readable file: {e}"
            ) from e
        except ValueError as e:
            raise WorkloadError(f"{named}: {e}") from e
        try:
            pool = parse_pool(content)
        except ValueError as e:
            raise WorkloadError(f"{named}: invalid pool:\n{e}") from e
    return InferenceSide(pool_of(pool), pool.loanable)

"""Jobs of a scenario: drawn from its distributions, the same for the same seed."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from elastic_tfjob.api.limits import MAX_REPLICAS
from elastic_tfjob.api.scenario import (
    Arrivals,
    Distribution,
    Inference,
    JobClass,
    Number,
    Replicas,
    Scenario,
    parse_scenario,
)
from elastic_tfjob.api.yaml import document
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Node, ReplicaGroup
from elastic_tfjob.simulation.formats import GIB, WorkloadError
from elastic_tfjob.simulation.inference import DAY_S, HOUR_S, InferencePool
from elastic_tfjob.simulation.node_changes import NodeChange, NodeScript
from elastic_tfjob.simulation.workload import LossCurve, WorkloadJob

PEAK_S = 15 * HOUR_S
"""When most jobs of a diurnal scenario come."""


def read_scenario(path: Path) -> Scenario:
    """Raises WorkloadError that names the file, the place in it, the value and what is allowed."""
    try:
        content = document(path.read_text())
    except (OSError, UnicodeDecodeError) as e:
        raise WorkloadError(f"{path}: cannot be read: {e}") from e
    except ValueError as e:
        raise WorkloadError(f"{path}: {e}") from e
    try:
        return parse_scenario(content)
    except ValueError as e:
        raise WorkloadError(f"{path}: wrong in the scenario:\n{e}") from e


def generate(scenario: Scenario, seed: int) -> tuple[WorkloadJob, ...]:
    """The jobs of one seed. Raises WorkloadError where one has more replicas than a job may have."""
    rng = random.Random(seed)
    kinds, weights = scenario.mix, [kind.weight for kind in scenario.mix]
    width = len(str(scenario.jobs - 1))
    return tuple(
        _job(f"{kind.name}-{k:0{width}}", t, kind, rng)
        for k, t in enumerate(arrival_times(scenario.arrivals, scenario.jobs, rng))
        for kind in rng.choices(kinds, weights)
    )


def _job(key: str, t: float, kind: JobClass, rng: random.Random) -> WorkloadJob:
    groups = [_group(kind.name, kind.workers, WORKER, rng)]
    if kind.ps is not None:
        groups.append(_group(kind.name, kind.ps, PS, rng))
    duration = None if kind.duration_s is None else max(1.0, draw(kind.duration_s, rng))
    deadline = None
    if kind.deadline_factor is not None and duration is not None:
        deadline = t + draw(kind.deadline_factor, rng) * duration
    return WorkloadJob(
        key=key,
        submit_s=t,
        groups=tuple(groups),
        duration_s=duration,
        total_steps=None if kind.steps is None else max(1.0, draw(kind.steps, rng)),
        deadline_s=deadline,
        priority=kind.priority,
        model=kind.model,
        batch_size=kind.batch_size,
        loanable=kind.loanable,
        cpu_demand=kind.cpu_demand,
        loss=None if kind.loss is None else LossCurve(kind.loss.b0, kind.loss.b1, kind.loss.b2),
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
    """Thinning: candidates at the highest rate, kept with the rate of their time over it."""
    t, given, swings = 0.0, 0, arrivals.kind == "diurnal"
    highest = arrivals.per_hour * (2 if swings else 1)
    while given < n:
        t += rng.expovariate(highest / HOUR_S)
        rate = arrivals.per_hour * (1 + math.cos(2 * math.pi * (t - PEAK_S) / DAY_S)) if swings else highest
        if rng.random() * highest <= rate:
            given += 1
            yield t


def node_changes(scenario: Scenario, cluster: Sequence[Node]) -> tuple[NodeChange, ...]:
    """What happens to nodes. An added one is like the first of the cluster. Raises ValueError where a node is lost that
    is not there, or added where it is."""
    by_name = {node.name: node for node in cluster}
    changes = []
    for entry in scenario.nodes:
        node = by_name.get(entry.node, replace(cluster[0], name=entry.node))
        if entry.added_s is not None:
            changes.append(NodeChange(entry.added_s, entry.node, node))
        if entry.lost_s is not None:
            changes.append(NodeChange(entry.lost_s, entry.node))
        if entry.back_s is not None:
            changes.append(NodeChange(entry.back_s, entry.node, node))
    NodeScript(changes, by_name)
    return tuple(changes)


def own_pool(scenario: Scenario | None) -> InferencePool | None:
    """The inference pool that a scenario brings along, if any."""
    return None if scenario is None or scenario.inference is None else pool_of(scenario.inference)


def pool_of(pool: Inference) -> InferencePool:
    each = Resources(round(pool.cpus_per_node * 1000), round(pool.memory_gib_per_node * GIB), pool.gpus_per_node)
    return InferencePool(pool.nodes, each, pool.accelerator_speed, headroom=pool.headroom)

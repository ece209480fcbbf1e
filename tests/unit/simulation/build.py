"""Small simulations for tests."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import WORKER, ReplicaGroup
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import FIXED, SpeedModel
from elastic_tfjob.simulation.workload import WorkloadJob

from ..scheduling.invariants import violations


def no_violation(plan: Plan) -> None:
    assert violations(plan) == []


def work(
    key: str, at: float, duration: float | None = None, gpus: int = 1, high: int | None = None, **more: Any
) -> WorkloadJob:
    group = ReplicaGroup(
        WORKER, Resources(more.pop("cpu", 0), 0, 1), gpus, min(gpus, more.pop("low", gpus)), high or gpus
    )
    return WorkloadJob(key, at, (group,), duration, **more)


def simulate(
    profile: str,
    jobs: Sequence[WorkloadJob],
    *,
    nodes: int = 1,
    gpus: int = 1,
    cpus: float = 0,
    speed_model: SpeedModel | None = None,
    parameters: dict[str, Any] | None = None,
    **more: Any,
) -> RunResult:
    """`more`: fields of SimulationInput, and arguments of Simulation."""
    chosen = build(profile, parse_profile(profile, parameters or {}))
    given = {field.name: more.pop(field.name) for field in fields(SimulationInput) if field.name in more}
    cluster = uniform_cluster(nodes, gpus, cpus, 0)
    inputs = SimulationInput(jobs, cluster, speed_model or FIXED, **given)
    return Simulation(inputs, chosen, **more).run()


def finishes(outcome: RunResult) -> dict[str, float | None]:
    return {r.key: r.finish_s for r in outcome.records}

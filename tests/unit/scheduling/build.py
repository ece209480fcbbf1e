"""Small clusters and jobs for tests: only what a case is about is written there."""

from collections.abc import Iterable
from typing import Any

from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import ANYWHERE, Constraints, Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Job, JobSpec, Node, ReplicaGroup, Snapshot
from elastic_tfjob.speed.model import Speed, Table

GIB = 1024**3


def node(name: str, gpus: int = 0, cpus: float = 0, memory_gib: int = 0, **more: Any) -> Node:
    each = Resources(round(cpus * 1000), memory_gib * GIB, gpus)
    return Node(name, each, more.pop("free", each), **more)


def workers(n: int, low: int | None = None, high: int | None = None, gpus: int = 1, cpus: float = 0) -> ReplicaGroup:
    return ReplicaGroup(WORKER, Resources(round(cpus * 1000), 0, gpus), n, low or n, high or n)


def servers(n: int, low: int | None = None, high: int | None = None, cpus: float = 1) -> ReplicaGroup:
    return ReplicaGroup(PS, Resources(round(cpus * 1000)), n, low or n, high or n)


def job(
    key: str,
    *groups: ReplicaGroup,
    at: float = 0.0,
    duration: float | None = None,
    steps: float | None = None,
    deadline: float | None = None,
    priority: int = 0,
    loanable: bool = False,
    constraints: Constraints = ANYWHERE,
    on: dict[str, tuple[str, ...]] | None = None,
    speed: Speed | None = None,
    **state: Any,
) -> Job:
    """A job; `on` is where it runs (Worker and PS to nodes), `state` further fields of Job."""
    spec = JobSpec(
        key,
        at,
        groups or (workers(1),),
        priority=priority,
        deadline_s=deadline,
        total_steps=steps if steps is not None else duration,
        duration_s=duration,
        loanable=loanable,
        constraints=constraints,
    )
    running = bool(on)
    return Job(spec, on or {}, "running" if running else "waiting", speed=speed, **state)


def snapshot(nodes: Iterable[Node], jobs: Iterable[Job], now: float = 0.0) -> Snapshot:
    return Snapshot(now, {n.name: n for n in nodes}, {j.key: j for j in jobs})


def plan(profile: str, nodes: Iterable[Node], jobs: Iterable[Job], now: float = 0.0, **settings: Any) -> Plan:
    """What `profile` decides with these settings."""
    return schedule(snapshot(nodes, jobs, now), build(profile, parse_profile(profile, settings)))


def sizes(plan_: Plan) -> dict[str, int]:
    """Replicas per job that shall hold something."""
    return {key: sum(target.replicas.values()) for key, target in plan_.targets.items()}


def rates(*steps_per_s: float) -> Table:
    """A speed by workers alone: the first is that of one worker."""
    return Table({(0, n): rate for n, rate in enumerate(steps_per_s, 1)})

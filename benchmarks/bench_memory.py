"""Benchmark: kills and held memory of a replica whose use grows, by rule (make bench-memory). In simulation.

Five synthetic traces of two hours, and one replica with a limit of 1 GiB at first:

- none: the limit stays, as under the Go training-operator;
- dlrover: twice the memory after a kill, at most 8 GiB more (its master, INCREMENTAL_MEMORY_FACTOR and
  MAX_INCREMENTAL_MEMORY);
- vpa: after a kill 1.2 times the memory, at least 100 MB more (its recommender's step after a kill alone, without its
  estimate from use);
- forecast: this project's rule (scheduling/memory_limit.py), with a report each 5 s and 5 s until a raise is in force.

A kill costs 40 s without training. *Held / used* is what the limit holds, by what is used: 1 would be exact.

Then the same rules on a small cluster: 40 jobs of a parameter server and two to four workers, 0.5 to 3 h each, on six
nodes of 8 CPUs under profile `elastic`. A parameter server asks for 2 GiB and uses 1 GiB at first. In half of the jobs
it grows by 0.3 to 3 GiB per hour, and in each fifth it jumps by 0.5 to 3 GiB. With 32 GiB per node there is room for
that, with 16 GiB often none. A kill costs 40 s and the steps since the last checkpoint (60 s); a job that is killed
seven times at one limit fails. Under `none` half of the jobs do, and leave their room to the others.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from elastic_tfjob.controller.model.reports import MemoryUse
from elastic_tfjob.runtime.memory_use import MemoryTrend
from elastic_tfjob.scheduling.memory_limit import MemoryRule, after_kill, fits, raised
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, ReplicaGroup
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.memory import OPERATORS, LimitRules
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.summary import summarise
from elastic_tfjob.simulation.workload import MemoryGrowth, WorkloadJob
from result_table import result_table

GIB = 1 << 30
HOURS, FIRST, MOST = 2, GIB, 8 * GIB
POLL_S, IN_FORCE_S, DOWN_S = 5, 5, 40
RULE = MemoryRule()

T = np.arange(HOURS * 3600)
RAMP = 0.5 + 2.5 * T / len(T)
TRACES = {
    "flat 0.6 GiB": np.full(len(T), 0.6),
    "0.5 to 3 GiB in 2 h": RAMP,
    "the same, +18 % for 4 s a minute": RAMP * np.where(T % 60 < 4, 1.18, 1.0),
    "0.5 to 6.5 GiB in 20 min": 0.5 + 6.0 * np.minimum(T / 1200, 1),
    "0.55 to 1.45 GiB within 10 s": np.where(T < 600, 0.55, 0.55 + np.minimum((T - 600) / 10, 1) * 0.9),
}
AFTER_KILL: dict[str, Callable[[int], int]] = {
    "none": lambda limit: limit,
    "dlrover": lambda limit: limit + min(limit, 8 * GIB),
    "vpa": lambda limit: max(round(1.2 * limit), limit + 100_000_000),
    "forecast": lambda limit: after_kill(RULE, limit, MOST),
}


def played(trace: str, rule: str, seed: int) -> dict[str, float]:
    """One replica under one rule."""
    noise = 1 + 0.01 * np.random.default_rng(seed).standard_normal(len(T))
    uses = (TRACES[trace] * noise * GIB).astype(int).tolist()
    now_used = [0]
    trend = MemoryTrend(lambda: now_used[0])
    limit, kills, raises, away, held, used = FIRST, 0, 0, 0, 0, 0
    coming: tuple[int, int] | None = None
    for now, use in enumerate(uses):
        held += limit
        if now < away:
            continue
        used += use
        if coming is not None and now >= coming[0]:
            limit, coming, raises = coming[1], None, raises + 1
        if use > limit:
            kills, away = kills + 1, now + DOWN_S
            trend = MemoryTrend(lambda: now_used[0])
            limit = min(AFTER_KILL[rule](limit), MOST)
            continue
        now_used[0] = use
        trend.sample(now, -60.0)
        if rule == "forecast" and now % POLL_S == 0 and coming is None and limit < MOST:
            figures = {name: value for name, value in trend.report(None, 0.0).items() if "kill" not in name}
            found = MemoryUse(**figures)
            if not fits(RULE, limit, found):
                coming = now + IN_FORCE_S, raised(RULE, limit, found, MOST)
    return {"kills": kills, "raises": raises, "held_by_used": held / used, "limit_gib": limit / GIB}


# -- On a cluster ------------------------------------------------------------------------------------------------------

JOBS, NODES, CLUSTER_MOST = 40, 6, 16 * GIB
NODE_GIB = (32, 16)
DIGITS = {"lost_h": 1, "held_by_used": 2}
COSTS = Costs(
    start_s=20.0, restart_s=((inf, DOWN_S),), rescale_s=1.0, migrate_s=1.0, checkpoint_interval_s=60.0, live_pause_s=0.1
)


def limit_rules(rule: str) -> LimitRules:
    """A rule as the simulator takes it; `none` is a job without max-memory."""
    if rule in ("none", "forecast"):
        return OPERATORS
    grown = AFTER_KILL[rule]
    return LimitRules(
        fits=lambda rule, limit, use: True,
        short=lambda rule, limit, use: False,
        after_kill=lambda rule, limit, most: max(limit, min(grown(limit), most)),
    )


def workload(seed: int) -> list[WorkloadJob]:
    draw = random.Random(seed)
    jobs, at = list[WorkloadJob](), 0.0
    for k in range(JOBS):
        at += draw.expovariate(1 / 360.0)
        workers = draw.randint(2, 4)
        hours = draw.uniform(0.5, 3.0)
        growth = draw.uniform(0.3, 3.0) if draw.random() < 0.5 else 0.0
        jump = draw.uniform(0.5, 3.0) if draw.random() < 0.2 else 0.0
        groups = (
            ReplicaGroup(PS, Resources(1000, 2 * GIB), 1, 1, 1),
            ReplicaGroup(WORKER, Resources(1000, GIB), workers, 1, workers + 2),
        )
        memory = MemoryGrowth(GIB, growth * GIB, draw.uniform(0.1, 0.9) * hours * 3600, jump * GIB, CLUSTER_MOST)
        jobs.append(WorkloadJob(f"j{k:02}", at, groups, hours * 3600, memory=memory))
    return jobs


def simulated(rule: str, seed: int, node_gib: int) -> RunResult:
    """The cluster under one rule."""
    jobs = workload(seed)
    if rule == "none":
        jobs = [replace(job, memory=replace(job.memory, most=None)) for job in jobs if job.memory is not None]
    nodes = uniform_cluster(NODES, 0, 8, node_gib)
    inputs = SimulationInput(jobs, nodes, LINEAR, COSTS, seed=seed, limits=limit_rules(rule))
    return Simulation(inputs, build("elastic", parse_profile("elastic", {}))).run()


def numbers(outcome: RunResult, compared: set[str]) -> dict[str, float]:
    """The mean completion time is that of the jobs `compared`, which finish under each rule."""
    found = summarise(outcome, JOBS)
    kills = found.memory_kills or 0
    times = [record.jct_s for record in outcome.records if record.key in compared and record.jct_s is not None]
    return {
        "finished": found.finished,
        "kills": kills,
        "raises": found.memory_raises or 0,
        "moves": found.migrations,
        "lost_h": (found.lost_work_s + kills * DOWN_S) / 3600,
        "jct_min": float(np.mean(times)) / 60,
        "held_by_used": found.memory_held_by_used or 0.0,
    }


def spread(values: list[float], digits: int = 0) -> str:
    """The mean, and the least and the most."""
    shown, least, most = (f"{value:,.{digits}f}" for value in (float(np.mean(values)), min(values), max(values)))
    return shown if least == most else f"{shown} ({least} to {most})"


def compare_on_cluster(seeds: int, console: Console) -> dict[str, Any]:
    names = ("nodes", "rule", "finished", "kills", "raises", "moves", "lost h", "mean JCT min", "held / used")
    shown = result_table(f"{JOBS} jobs on {NODES} nodes, by rule: mean (least to most)", names, words=2)
    found: dict[str, Any] = {}
    for node_gib in NODE_GIB:
        runs = found[f"nodes of {node_gib} GiB"] = {rule: list[dict[str, float]]() for rule in AFTER_KILL}
        for seed in range(seeds):
            outcomes = {rule: simulated(rule, seed, node_gib) for rule in AFTER_KILL}
            done = [{each.key for each in found.records if each.finish_s} for found in outcomes.values()]
            for rule, outcome in outcomes.items():
                runs[rule].append(numbers(outcome, set.intersection(*done)))
        for rule, each in runs.items():
            cells = (spread([run[name] for run in each], DIGITS.get(name, 0)) for name in each[0])
            shown.add_row(f"{node_gib} GiB", rule, *cells)
        shown.add_section()
    console.print(shown)
    return found


@click.command()
@click.option(
    "--seeds", default=3, show_default=True, type=click.IntRange(1), help="Seeds of the noise, and of the jobs."
)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/memory.json"))
def main(*, seeds: int, output: Path) -> None:
    found: dict[str, dict[str, Any]] = {}
    shown = result_table("Memory of one replica, by rule", ("use", "rule", "kills", "raises", "held / used"), words=2)
    for trace in TRACES:
        for rule in AFTER_KILL:
            runs = [played(trace, rule, seed) for seed in range(seeds)]
            mean = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
            found.setdefault(trace, {})[rule] = {"mean": mean, "runs": runs}
            kills = sorted({run["kills"] for run in runs})
            said = f"{kills[0]:.0f}" if len(kills) == 1 else f"{kills[0]:.0f} to {kills[-1]:.0f}"
            shown.add_row(trace, rule, said, f"{mean['raises']:.0f}", f"{mean['held_by_used']:.2f}")
        shown.add_section()
    console = Console(width=150)
    console.print(shown)
    found["cluster"] = compare_on_cluster(seeds, console)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written: {output}", file=sys.stderr)


if __name__ == "__main__":
    main()

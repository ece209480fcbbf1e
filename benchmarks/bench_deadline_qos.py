"""The sweep of deadlines of Xing et al. (IJCNN'19) in simulation (make bench-deadline-qos).

One type of job at a time, alone, with deadlines of 600 + 40 i seconds, i = 0 to 30, on a cluster with enough CPU.
`deadline` should meet all that any size meets (`attainable`). `told`: it knows each job's speeds.

The paper's programs are not public: three models whose speeds on parameter servers were measured stand for its three
types, with its 2 CPUs for each worker and PS, its 12 s before the first step, which a change of size costs again, as in
its prototype, and work of 2,400 s with one worker and one PS. CPU used is of the CPU that jobs held.

The crowded mix: 40 jobs of the three types that come at random, one each `every` seconds in the mean, to four nodes of
16 CPUs; each has a deadline of the sweep that it can meet. The paper does not say how its mix was crowded: it reports
26 % more deadlines met than first come, first served.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, ReplicaGroup
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.cpu import PsCpuSpeedModel
from elastic_tfjob.simulation.summary import Summary, summarise
from elastic_tfjob.simulation.workload import WorkloadJob

TYPES = {"cnn-text-classification": 12, "dssm": 32, "digits": 9}
"""By model: the most workers, as the paper's prototype has them for its three programs."""
DEADLINES = tuple(600.0 + 40 * i for i in range(31))
ALONE_S = 2400.0
START_S = 12.0
COSTS = Costs(start_s=START_S, restart_s=((inf, START_S),), rescale_s=START_S)
CPUS = Resources(2000)
MOST_PS = 4


def job(key: str, model: str, deadline_s: float, submit_s: float = 0.0) -> WorkloadJob:
    """With one worker and one PS it takes ALONE_S; it declares two workers."""
    groups = (ReplicaGroup(WORKER, CPUS, 2, 1, TYPES[model]), ReplicaGroup(PS, CPUS, 1, 1, MOST_PS))
    alone = tuple(replace(group, count=1) for group in groups)
    made = WorkloadJob(key, submit_s, alone, duration_s=ALONE_S, model=model)
    steps = PsCpuSpeedModel().true_speed(made).total_steps
    return replace(made, groups=groups, duration_s=None, total_steps=steps, deadline_s=submit_s + deadline_s)


def attainable(each: WorkloadJob) -> bool:
    """Whether any size, had from the start, meets its deadline."""
    truth = PsCpuSpeedModel().true_speed(each)
    workers, servers = each.groups
    rates = [
        truth.steps_per_s({WORKER: w, PS: p}) or 0.0
        for w in range(1, workers.maximum + 1)
        for p in range(1, servers.maximum + 1)
    ]
    assert each.deadline_s is not None
    return START_S + truth.total_steps / max(rates) <= each.deadline_s - each.submit_s


def run(jobs: Sequence[WorkloadJob], profile: str, nodes: int, settings: dict[str, Any]) -> Summary:
    made = build(profile, parse_profile(profile, {"place": "count", **settings}))
    simulation = Simulation(
        SimulationInput(jobs, uniform_cluster(nodes, 0, 16, 0), PsCpuSpeedModel(), costs=COSTS), made
    )
    return summarise(simulation.run(), len(jobs))


KNOWN: dict[str, dict[str, Any]] = {
    "deadline, told": {"oracle": True, "pause_s": START_S},
    "deadline": {"pause_s": START_S},
    "deadline, no CPU lent": {"pause_s": START_S, "lend_cpu": False},
    "edf": {},
    "fifo": {},
}
MIX_JOBS, MIX_NODES = 40, 4
PACED = {"cooldown_s": 60.0}
"""Where a size is slower with the CPU that is left for it, a job would else go to it and back within one moment."""
EVERY_S = (120.0, 180.0, 300.0)


@cache
def attainable_s(model: str) -> tuple[float, ...]:
    """The deadlines of the sweep that a job of this type can meet."""
    return tuple(deadline for deadline in DEADLINES if attainable(job("j", model, deadline)))


def mix(every_s: float, seed: int) -> list[WorkloadJob]:
    """The crowded mix."""
    draw, at, jobs = Random(seed), 0.0, list[WorkloadJob]()
    for k in range(MIX_JOBS):
        at += draw.expovariate(1 / every_s)
        model = draw.choice([*TYPES])
        jobs.append(job(f"j{k}", model, draw.choice(attainable_s(model)), at))
    return jobs


def sweep() -> tuple[Table, list[dict[str, Any]]]:
    """One type at a time."""
    found = list[dict[str, Any]]()
    table = Table("type", "profile", "met of 31", "attainable", "CPU used of held", title="One type at a time")
    for model in TYPES:
        can = len(attainable_s(model))
        for name, settings in KNOWN.items():
            each = [run([job("j", model, d)], name.partition(",")[0], 8, settings) for d in DEADLINES]
            met = sum(s.deadline_met == 1 for s in each)
            used = used_of_held(each)
            found.append({"type": model, "profile": name, "met": met, "attainable": can, "used": used})
            table.add_row(model, name, str(met), str(can), percent(used))
    return table, found


def crowded(seeds: Sequence[int]) -> tuple[Table, list[dict[str, Any]]]:
    """All types together."""
    found = list[dict[str, Any]]()
    table = Table("a job each", "profile", "met", "by seed", "beside fifo", "CPU used of held", title="The crowded mix")
    for every_s in EVERY_S:
        rows = list[dict[str, Any]]()
        for name, settings in KNOWN.items():
            profile = name.partition(",")[0]
            paced = {**settings, **PACED} if profile == "deadline" else settings
            each = [run(mix(every_s, seed), profile, MIX_NODES, paced) for seed in seeds]
            met = [s.deadline_met or 0.0 for s in each]
            rows.append(
                {"every_s": every_s, "profile": name, "met": met, "seeds": [*seeds], "used": used_of_held(each)}
            )
        fifo = next(mean_met(row) for row in rows if row["profile"] == "fifo")
        for row in rows:
            mean = mean_met(row)
            by_seed = ", ".join(f"{each:.0%}" for each in row["met"])
            more = "" if row["profile"] == "fifo" else f"{100 * (mean - fifo):+.0f} points"
            table.add_row(f"{every_s:.0f} s", row["profile"], f"{mean:.1%}", by_seed, more, percent(row["used"]))
        found += rows
    return table, found


def mean_met(row: dict[str, Any]) -> float:
    """Deadlines met in the mean of the seeds."""
    met: list[float] = row["met"]
    return sum(met) / len(met)


def used_of_held(runs: Sequence[Summary]) -> float | None:
    held = [1 - s.wasted_cpu for s in runs if s.wasted_cpu is not None]
    return sum(held) / len(held) if held else None


def percent(part: float | None) -> str:
    return "" if part is None else f"{part:.0%}"


@click.command()
@click.option("--seeds", default=5, show_default=True, help="Of the crowded mix: so many, from 1 on.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=Path("build/bench/deadline-qos.json"))
def main(*, seeds: int, output: Path) -> None:
    """Print the tables, and write the numbers."""
    console, found = Console(width=120), dict[str, list[dict[str, Any]]]()
    for name, made in (("runs", sweep), ("mix", lambda: crowded(range(1, seeds + 1)))):
        table, found[name] = made()
        console.print(table)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

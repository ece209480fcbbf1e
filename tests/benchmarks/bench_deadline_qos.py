"""The sweep of deadlines of Xing et al. (IJCNN'19) in simulation (make bench-deadline-qos).

One type of job at a time, alone, with deadlines of 600 + 40 i seconds, i = 0 to 30, on a cluster with enough CPU.
`deadline` should meet all that any size meets (`attainable`). `told`: it knows each job's speeds.

The paper's programs are not public: three models whose speeds on parameter servers were measured stand for its three
types, with its 2 CPUs for each worker and PS, its 12 s before the first step, which a change of size costs again, as in
its prototype, and work of 2,400 s with one worker and one PS. CPU used is of the CPU that jobs held.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, ReplicaGroup
from elastic_tfjob.simulation.costs import Costs
from elastic_tfjob.simulation.engine import Simulation
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.ps_cpu import PsCpuSpeedModel
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
    simulation = Simulation(jobs, uniform_cluster(nodes, 0, 16, 0), PsCpuSpeedModel(), made, costs=COSTS)
    return summarise(simulation.run(), len(jobs))


KNOWN: dict[str, dict[str, Any]] = {
    "deadline, told": {"oracle": True, "pause_s": START_S},
    "deadline": {"pause_s": START_S},
    "edf": {},
    "fifo": {},
}


@click.command()
@click.option("--json", "output", type=click.Path(path_type=Path), default=Path("build/bench/deadline-qos.json"))
def main(*, output: Path) -> None:
    """Print the table, and write the numbers."""
    console, found = Console(width=120), list[dict[str, Any]]()
    table = Table("type", "profile", "met of 31", "attainable", "CPU used of held", title="One type at a time")
    for model in TYPES:
        can = sum(attainable(job("j", model, deadline)) for deadline in DEADLINES)
        for name, settings in KNOWN.items():
            each = [run([job("j", model, d)], name.partition(",")[0], 8, settings) for d in DEADLINES]
            met = sum(s.deadline_met == 1 for s in each)
            held = [1 - s.wasted_cpu for s in each if s.wasted_cpu is not None]
            used = sum(held) / len(held) if held else None
            found.append({"type": model, "profile": name, "met": met, "attainable": can, "used": used})
            table.add_row(model, name, str(met), str(can), "" if used is None else f"{used:.0%}")
    console.print(table)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

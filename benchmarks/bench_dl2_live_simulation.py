"""What the live benchmark of `dl2` (bench_dl2.py) should show, in simulation (make bench-dl2-live-simulation).

- trainer: the twelve jobs of benchmarks/live/dl2/mixed.yaml, which all keep their minimum under `optimus` and `dl2`, as
  they share the CPU of their nodes. What a start and a step cost in CPU is set so that the mean completion time without
  a trainer is the measured 80 s. The rows show what it costs if the trainer takes CPU from the nodes.
- tries: DL2's jobs (bench_hull_simulation.py, speed model `ps-measured`) with the knowledge that a live operator has:
  the speeds of sizes at which a job ran. Rounds are at changes and every minute, a start takes 15 s and a resize 1 s.
  Only `oracle` knows the true speeds. `tries` is what a job tries (try_sizes), `at most` the part of its time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from anchors import dl2_jobs
from bench_hull_simulation import ACCELERATORS, CASES, CPUS, FIRST_SEED, change, speed_model
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.runner import uniform_cluster
from live.scenario import read
from result_table import result_table

SCENARIO = Path(__file__).parent / "live/dl2/mixed.yaml"
CORES, MOST_CORES = 1.5, 0.5
"""Of the three nodes together, and of one, which is the most that one job gets."""
START_CPU_S, STEP_CPU_S = 12.0, 0.017
TAKEN = (0.0, 0.05, 0.07, 0.1, 0.25)
"""Cores that the trainer takes from the nodes. It asks for a quarter of a core, most of which the machine has idle."""
COSTS = Costs(start_s=15.0, rescale_s=1.0)
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "optimus, oracle": ("optimus", {"oracle": True}),
    "optimus": ("optimus", {}),
    "optimus, no tries": ("optimus", {"try_sizes": 0}),
    "hull": ("hull", {}),
    "dl2, oracle": ("dl2", {"oracle": True}),
    "dl2": ("dl2", {}),
    "dl2, at most 5 %": ("dl2", {"try_part": 0.05}),
    "dl2, at most 20 %": ("dl2", {"try_part": 0.2}),
}


def shared(cores: float, arrivals: Sequence[tuple[float, float]], step_s: float = 0.1) -> tuple[float, float]:
    """Mean completion time and the end of the last of these jobs (arrival, CPU-seconds), which share the cores
    equally."""
    left, ended, now = dict(enumerate(work for _, work in arrivals)), [], 0.0
    while left:
        there = [k for k in left if arrivals[k][0] <= now]
        now += step_s
        for k in there:
            left[k] -= min(MOST_CORES, cores / len(there)) * step_s
            if left[k] <= 0:
                ended.append(now - arrivals[k][0])
                del left[k]
    return float(np.mean(ended)), now


def one(case: str, seed: int, profile: str, settings: dict[str, Any]) -> tuple[float, float]:
    """Mean completion time in seconds, and resizes per job."""
    said = {"place": "spread", "interval_s": 60, "cooldown_s": 60, "sample_points": 0, **settings}
    more = {"per_resource": False, "repack": False} if profile == "optimus" else {}
    made = build(profile, parse_profile(profile, {**said, **more}))
    nodes = uniform_cluster(CASES[case].nodes, ACCELERATORS, CPUS, 64)
    speeds = speed_model("ps-measured", seed, "hull")
    inputs = SimulationInput(dl2_jobs(CASES[case], seed), nodes, speeds, COSTS, seed=seed)
    records = Simulation(inputs, made).run().records
    times = [record.jct_s for record in records if record.jct_s is not None]
    assert len(times) == len(records), f"{profile}: not all jobs finished"
    return float(np.mean(times)), sum(record.rescales for record in records) / len(records)


@click.command()
@click.option("--cases", default="6x10,13x30", show_default=True)
@click.option("--first-seed", default=FIRST_SEED, show_default=True)
@click.option("--seeds", default=10, show_default=True)
def main(*, cases: str, first_seed: int, seeds: int) -> None:
    console = Console(width=150)
    arrivals = [(job.at_s, START_CPU_S + STEP_CPU_S * job.steps) for job in read(SCENARIO).jobs]
    trainer = result_table(
        "The live scenario, if the trainer takes CPU", ("cores taken", "mean JCT s", "all done s"), words=1
    )
    for taken in TAKEN:
        mean_s, end_s = shared(CORES - taken, arrivals)
        trainer.add_row(f"{taken:g}", f"{mean_s:.0f}", f"{end_s:.0f}")
    console.print(trainer)
    columns = ("nodes x jobs", "policy", "mean JCT s", "vs optimus, oracle", "resizes per job")
    tries = result_table("DL2's jobs with what a live operator knows", columns, words=2)
    for case in cases.split(","):
        base = np.zeros(0)
        for name, (profile, settings) in POLICIES.items():
            found = np.array([one(case, first_seed + k, profile, settings) for k in range(seeds)])
            base = found[:, 0] if not len(base) else base
            mean_s, resizes = found.mean(axis=0)
            tries.add_row(case, name, f"{mean_s:.0f}", change(found[:, 0], base), f"{resizes:.1f}")
        tries.add_section()
    console.print(tries)


if __name__ == "__main__":
    sys.exit(main())

"""Benchmark: the `kips` profile in simulation beside fixed, DRF and Optimus (make bench-kips-simulation).

Two sets of workloads with the speed model `ps-cpu`: the CPU that a replica holds sets its speed; a request is a limit:

- large: 1,000 jobs of docs/scenarios/kips.yaml on 100 nodes of 16 CPUs, at three loads, the same jobs for each profile
  (`--nodes 10`: a tenth of both, in a minute);
- live: the four scenarios of bench_kips.py on three nodes as two cores give them: what the live cluster should show.

A starting process costs CPU time, and so does one that a rescale starts beside the running program. DRF and Optimus get
the same cooldown and least gain as kips (without, they rescale at every event); Optimus and DRF are told each job's
speed at 8 sizes before it starts; kips is not, but as `kips, told`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bench_kips import SCENARIOS, Arrival
from elastic_tfjob.api.scenario import Arrivals
from elastic_tfjob.scheduling.profiles import parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import CHIEF, PS, WORKER, ReplicaGroup, fixed_group
from elastic_tfjob.simulation.engine import SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import RunSpec, run_all, uniform_cluster
from elastic_tfjob.simulation.scenario import generate, read_scenario
from elastic_tfjob.simulation.speed_models.catalogue import speed_model_named
from elastic_tfjob.simulation.summary import summarise, with_losers
from elastic_tfjob.simulation.workload import WorkloadJob
from result_table import result_table

SCENARIO = Path(__file__).resolve().parents[1] / "docs/scenarios/kips.yaml"
LOADS = {
    "a third full": Arrivals(kind="poisson", per_hour=80),
    "about full": Arrivals(kind="poisson", per_hour=240),
    "all at once": Arrivals(kind="burst"),
}
PROFILES: dict[str, dict[str, Any]] = {
    "fixed": {},
    "drf": {"cooldown_s": 60.0, "min_gain": 0.1},
    "optimus": {"cooldown_s": 60.0, "min_gain": 0.1},
    "kips": {"cooldown_s": 60.0, "interval_s": 60.0},
    "kips, told": {"cooldown_s": 60.0, "interval_s": 60.0, "sample_points": 8},
}
COSTS = Costs(rescale_s=1.0, migrate_s=1.0, boot_cpu_s=12.0)
"""A second of pause is what live rescales cost at worst, 12 CPU-seconds what a process takes to import and trace."""
LIVE_NODES, LIVE_CORES = 3, 0.5
"""What two cores leave beside the control plane (e2e/kind-scarce.yaml)."""
TOLERANCE = 0.03
"""A job is a loser if it is slower than under fixed by more than this."""


def large(seed: int, load: str, nodes: int) -> tuple[Sequence[WorkloadJob], Any]:
    """Ten jobs a node, at a rate in proportion."""
    arrivals = LOADS[load].model_copy(update={"per_hour": LOADS[load].per_hour * nodes / 100})
    scenario = read_scenario(SCENARIO).model_copy(update={"arrivals": arrivals, "jobs": 10 * nodes})
    return generate(scenario, seed), uniform_cluster(nodes, 0, 16, 64)


def live(name: str) -> tuple[Sequence[WorkloadJob], Any]:
    return [_live_job(arrival) for arrival in SCENARIOS[name].jobs], uniform_cluster(LIVE_NODES, 0, LIVE_CORES, 64)


def _live_job(arrival: Arrival) -> WorkloadJob:
    cpu = {type_: Resources(millicores) for type_, millicores in arrival.cpu_m.items()}
    groups = (
        fixed_group(CHIEF, cpu[CHIEF], 1),
        fixed_group(PS, cpu[PS], arrival.ps),
        ReplicaGroup(WORKER, cpu[WORKER], arrival.worker, 1, max(arrival.worker, arrival.max_worker)),
    )
    return WorkloadJob(
        arrival.name, arrival.at_s, groups, total_steps=float(arrival.steps), model="digits", cpu_demand=1.0
    )


def run(
    workload: str,
    seed: int,
    jobs: Sequence[WorkloadJob],
    nodes: Any,
    profiles: dict[str, dict[str, Any]],
    *,
    costs: Costs,
) -> list[dict[str, Any]]:
    """One row per profile."""
    model = speed_model_named("ps-cpu")
    inputs = SimulationInput(jobs, nodes, model, costs, seed=seed)
    specs = [
        RunSpec(name.partition(",")[0], parse_profile(name.partition(",")[0], settings), inputs)
        for name, settings in profiles.items()
    ]
    outcomes = run_all(specs, lambda *_: None, workers=1)
    by_profile = dict(zip(profiles, outcomes, strict=True))
    fixed = by_profile.get("fixed")
    return [_row(workload, outcome, len(jobs), fixed) | {"profile": name} for name, outcome in by_profile.items()]


def _row(workload: str, outcome: RunResult, jobs: int, fixed: RunResult | None) -> dict[str, Any]:
    summary = summarise(outcome, jobs)
    if fixed is not None:
        summary = with_losers(summary, outcome, fixed, TOLERANCE)
    return {
        "workload": workload,
        "profile": outcome.profile,
        "seed": outcome.seed,
        "jct_mean_s": summary.avg_jct_s,
        "jct_median_s": summary.median_jct_s,
        "jct_p95_s": summary.p95_jct_s,
        "jct_p99_s": summary.p99_jct_s,
        "makespan_s": summary.makespan_s,
        "cpu_held": summary.cpu_utilisation,
        "cpu_used": summary.cpu_used,
        "rescales_per_job": summary.rescales / jobs,
        "preemptions": summary.preemptions,
        "losers": None if summary.losers is None else summary.losers / jobs,
        "finished": summary.finished / jobs,
        "run_cpu_s": summary.cpu_s,
    }


NUMBERS = ("jct_mean_s", "jct_median_s", "jct_p95_s", "jct_p99_s", "makespan_s")
SHARES = ("cpu_held", "cpu_used")


def table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """One line per workload and profile: the mean over seeds."""
    headings = ("workload", "profile", "JCT s", "vs fixed", "median s", "p95 s", "p99 s", "makespan s")
    figures = ("CPU held", "CPU used", "vs fixed", "rescales/job", "slower than fixed")
    result = result_table(title, (*headings, *figures), words=2)
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["workload"], row["profile"]), []).append(row)

    def mean(workload: str, profile: str, field: str) -> float:
        return float(np.mean([np.nan if row[field] is None else row[field] for row in grouped[workload, profile]]))

    last = ""
    for workload, profile in grouped:
        if last and workload != last:
            result.add_section()
        last = workload
        first = next(p for w, p in grouped if w == workload)
        numbers = {field: mean(workload, profile, field) for field in (*NUMBERS, *SHARES)}
        changes = [numbers[f] / mean(workload, first, f) - 1 for f in ("jct_mean_s", "cpu_used")]
        unfinished = "" if mean(workload, profile, "finished") == 1 else " (not all finished)"
        result.add_row(
            workload,
            profile + unfinished,
            f"{numbers['jct_mean_s']:,.0f}",
            f"{changes[0]:+.0%}",
            *(f"{numbers[f]:,.0f}" for f in NUMBERS[1:]),
            *(f"{numbers[f]:.1%}" for f in SHARES),
            f"{changes[1]:+.0%}",
            f"{mean(workload, profile, 'rescales_per_job'):.1f}",
            f"{mean(workload, profile, 'losers'):.1%}",
        )
    return result


@click.command()
@click.option("--nodes", type=int, default=100, show_default=True, help="Of the large workloads; ten jobs a node.")
@click.option("--seeds", default="1,2,3", show_default=True, help="Of the large workloads.")
@click.option("--loads", default=",".join(LOADS), show_default=True)
@click.option("--profiles", default="/".join(PROFILES), show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/kips-simulation.json"))
@click.option("--large/--no-large", "with_large", default=True)
@click.option(
    "--kept-cpu",
    type=click.FloatRange(0, COSTS.boot_cpu_s),
    help="CPU-seconds of starting a program in a replica that stays, as where it is forked; default: as in a new one.",
)
def main(
    *, nodes: int, seeds: str, loads: str, profiles: str, output: Path, with_large: bool, kept_cpu: float | None
) -> None:
    console = Console(width=150)
    costs = replace(COSTS, boot_kept_cpu_s=kept_cpu)
    chosen = {name: PROFILES[name] for name in profiles.split("/")}
    small = [row for name in SCENARIOS for row in run(name, 0, *live(name), {"fixed": {}, "kips": {}}, costs=costs)]
    console.print(table(f"The live scenarios: {LIVE_NODES} nodes of {1000 * LIVE_CORES:.0f} millicores", small))
    rows: list[dict[str, Any]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    for seed in map(int, seeds.split(",") if with_large else ()):
        for load in loads.split(","):
            console.print(f"{load}, seed {seed} ...", style="dim")
            rows += run(load, seed, *large(seed, load, nodes), chosen, costs=costs)
            output.write_text(json.dumps({"live": small, "large": rows}, indent=1) + "\n")
    if rows:
        rows.sort(key=lambda row: list(LOADS).index(row["workload"]))
        console.print(table(f"{10 * nodes:,} jobs on {nodes} nodes of 16 CPUs: means over seeds {seeds}", rows))


if __name__ == "__main__":
    main()

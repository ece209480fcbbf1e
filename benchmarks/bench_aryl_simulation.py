"""`aryl` beside FIFO and shortest job first, with loans, scaling, both or neither (make bench-aryl-simulation).

The setting is that of Aryl (see aryl_workload.py), from the public ITP traces, or Philly's (--trace), which are read
from --traces, or $ELASTIC_TFJOB_TRACES, or ../shared/traces beside the checkout. Speed is linear in workers; a
preemption costs 63 s, a rescale 1 s. All policies are told true durations.

- HOL: by arrival; the first job that does not fit holds back all behind it, as in the paper's baseline;
- backfill: by arrival, who fits starts: the strong baseline;
- loans, scaling, both: one or both of Aryl's mechanisms on top of HOL;
- SJF: shortest first, who fits starts, none of Aryl's mechanisms; SJF + both is the profile `aryl` as it comes.

Ratios of means are baseline over policy: above 1 is better. No schedule's mean completion time is below `bound`. What
is printed is for seeds from 11 on; no parameter was chosen by the results of any seed. A loser is a job that takes over
1 % longer than with backfill.

How much better others are than HOL depends on how long HOL's queue is, so --queue says that instead of the load: for
each seed the load is looked for at which HOL's mean queue is that long.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from anchors import traces_dir
from aryl_workload import (
    CLUSTERS,
    COSTS,
    PHILLY,
    SERVER,
    TRACES,
    Row,
    Setting,
    Trace,
    elastic_part,
    inference,
    read_philly,
    read_rows,
    servers,
    workload,
)
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.summary import least_mean_jct_s, summarise, with_losers
from elastic_tfjob.simulation.workload import WorkloadJob
from result_table import mean_of, result_table

HOL: Mapping[str, Any] = {"order": "fifo", "backfill": False, "lend": "none", "scaling": False}
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "backfill": {**HOL, "backfill": True},
    "HOL": HOL,
    "HOL + loans": {**HOL, "lend": "offered"},
    "HOL + scaling": {**HOL, "scaling": True},
    "HOL + both": {**HOL, "lend": "offered", "scaling": True},
    "SJF": {"lend": "none", "scaling": False},
    "SJF + both": {},
}
QUEUE_ERROR = 0.1
LOADS = (0.4, 1.2)
"""Where a load is looked for."""


def run(jobs: Sequence[WorkloadJob], setting: Setting, said: Mapping[str, Any], seed: int) -> RunResult:
    profile = build("aryl", parse_profile("aryl", said))
    nodes = uniform_cluster(servers(setting.scale), SERVER.accelerators, 0, 0)
    pool = inference(setting.scale) if profile.needs >= {"loans"} else None
    return Simulation(SimulationInput(jobs, nodes, LINEAR, costs=COSTS, inference=pool, seed=seed), profile).run()


def calibrated(rows: Sequence[Row], setting: Setting, queue_s: float, seed: int) -> tuple[Setting, RunResult]:
    """The load at which HOL's mean queue is within a tenth of `queue_s`, by bisection, and the run of HOL there."""
    low, high = LOADS
    for _ in range(12):
        at = replace(setting, load=(low + high) / 2)
        outcome = run(workload(rows, at, seed), at, HOL, seed)
        found = float(np.mean([record.queue_s for record in outcome.records]))
        if abs(found - queue_s) <= QUEUE_ERROR * queue_s:
            return at, outcome
        low, high = (at.load, high) if found < queue_s else (low, at.load)
    raise click.ClickException(f"seed {seed}: at no load from {LOADS[0]} to {LOADS[1]} is HOL's queue {queue_s:g} s")


def least_s(jobs: Sequence[WorkloadJob], setting: Setting) -> float | None:
    """What no schedule's mean completion time is below, with all nodes of both pools for ever, as fast as ours."""
    nodes = uniform_cluster(servers(setting.scale), SERVER.accelerators, 0, 0)
    return least_mean_jct_s(jobs, [*nodes, *inference(setting.scale).build()], LINEAR)


def told(outcome: RunResult, name: str, jobs: Sequence[WorkloadJob], setting: Setting, seed: int) -> dict[str, Any]:
    """The figures of one run."""
    s = summarise(outcome, len(jobs))
    assert s.finished == len(jobs), f"{name}: not all jobs finished"
    where = {"scale": setting.scale, "load": setting.load, "fungible": setting.fungible, "seed": seed}
    elastic_jobs, elastic_work = elastic_part(jobs)
    return {
        **where,
        "trace": setting.trace,
        "clusters": ",".join(setting.clusters),
        "elastic_jobs": elastic_jobs,
        "elastic_work": elastic_work,
        "policy": name,
        **s.as_dict(),
        "bound": least_s(jobs, setting),
    }


def table(found: Sequence[dict[str, Any]]) -> Table:
    """Means over seeds; of losers the mean, of the worst the worst."""
    columns = (
        *("policy", "queue s", "JCT s", "median", "p95", "queue vs HOL", "JCT vs HOL", "queue vs backfill"),
        *("JCT vs backfill", "GPU", "preempted", "scaled in", "used of lent", "losers", "worst", "CPU s"),
    )
    first, loads = found[0], ", ".join(sorted({f"{row['load']:.3g}" for row in found}))
    jobs, work = (f"{100 * mean_of(found, f'elastic_{what}'):.1f} %" for what in ("jobs", "work"))
    shown = result_table(
        f"{first['trace']}, scale {first['scale']:g}, load {loads}; bound: {mean_of(found, 'bound'):,.0f} s",
        columns,
        caption=f"elastic: {jobs} of jobs, with {work} of the work",
    )
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        by_policy.setdefault(row["policy"], []).append(row)
    for name, each in by_policy.items():
        ratios = []
        for base in ("HOL", "backfill"):
            for key in ("avg_queue_s", "avg_jct_s"):
                known = base in by_policy
                ratios.append(f"{mean_of(by_policy[base], key) / mean_of(each, key):.2f}" if known else "-")
        lent, used = mean_of(each, "loaned_node_hours"), mean_of(each, "loaned_used_hours")
        shown.add_row(
            name,
            *(f"{mean_of(each, key):,.0f}" for key in ("avg_queue_s", "avg_jct_s", "median_jct_s", "p95_jct_s")),
            *ratios,
            f"{100 * mean_of(each, 'gpu_utilisation'):.1f} %",
            f"{100 * mean_of(each, 'preempted_jobs') / each[0]['jobs']:.2f} %",
            f"{mean_of(each, 'scaled_in'):.0f}",
            f"{100 * used / lent:.0f} %" if lent else "-",
            f"{mean_of(each, 'losers'):.0f}" if "backfill" in by_policy else "-",
            f"{100 * max((row['worst_loser'] or 0.0) for row in each):+.0f} %" if "backfill" in by_policy else "-",
            f"{mean_of(each, 'cpu_s'):.1f}",
        )
    return shown


@click.command()
@click.option("--traces", type=click.Path(path_type=Path))
@click.option("--seeds", default="11,12,13", show_default=True)
@click.option("--scale", default=1 / 8, show_default=True, help="Part of Aryl's 50,000 jobs and 963 servers.")
@click.option("--load", type=float, help="Work over what our own servers can do in 15 days. [default: 0.8]")
@click.option("--queue", type=click.FloatRange(min=1), help="Seconds of HOL's mean queue, in place of a load.")
@click.option("--fungible", default=0.21, show_default=True, help="Jobs that may run on lent nodes.")
@click.option("--elastic-work", default=1.0, show_default=True, help="The part of the work in elastic jobs, at most.")
@click.option("--trace", type=click.Choice(TRACES), default="itp", show_default=True)
@click.option("--clusters", help=f"Of ITP. [default: {','.join(CLUSTERS)}]")
@click.option("--policies", default=",".join(POLICIES), show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/aryl-simulation.json"))
def main(
    *,
    traces: Path | None,
    seeds: str,
    scale: float,
    load: float | None,
    queue: float | None,
    fungible: float,
    elastic_work: float,
    trace: Trace,
    clusters: str | None,
    policies: str,
    output: Path,
) -> None:
    if load is not None and queue is not None:
        raise click.UsageError("--queue finds the load itself: give it or --load, not both")
    if clusters is not None and trace != "itp":
        raise click.UsageError("--clusters are of ITP: give it or --trace philly, not both")
    folder = traces_dir(traces)
    needed = folder / ("itp" if trace == "itp" else PHILLY)
    if not needed.exists():
        raise click.ClickException(f"{needed} is missing: give --traces DIR or set ELASTIC_TFJOB_TRACES")
    chosen = () if trace != "itp" else CLUSTERS if clusters is None else tuple(clusters.split(","))
    given = Setting(scale, Setting().load if load is None else load, fungible, chosen, trace, elastic_work)
    rows = read_rows(folder, given.clusters) if trace == "itp" else read_philly(folder)
    found: list[dict[str, Any]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    names = policies.split(",")
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=len(names) * len(seeds.split(",")))
        for seed in map(int, seeds.split(",")):
            setting, hol = calibrated(rows, given, queue, seed) if queue else (given, None)
            jobs, backfill = workload(rows, setting, seed), None
            for name in names:
                outcome = hol if hol and name == "HOL" else run(jobs, setting, POLICIES[name], seed)
                backfill = outcome if name == "backfill" else backfill
                row = told(outcome, name, jobs, setting, seed)
                if backfill:
                    beside = with_losers(summarise(outcome, len(jobs)), outcome, backfill)
                    row |= {"losers": beside.losers, "worst_loser": beside.worst_loser}
                found.append(row)
                output.write_text(json.dumps({"runs": found}, indent=1) + "\n")
                bar.advance(task)
    Console(width=190).print(table(found))


if __name__ == "__main__":
    sys.exit(main())

"""`aryl` beside FIFO and shortest job first, with loans, scaling, both or neither (make bench-aryl-simulation).

The setting is that of Aryl (see aryl_workload.py), from the public ITP traces, which are read from --traces, or
$ELASTIC_TFJOB_TRACES, or ../shared/traces beside the checkout. Speed is linear in workers; a preemption costs 63 s, a
rescale 1 s. All policies are told true durations.

- HOL: by arrival; the first job that does not fit holds back all behind it, as in the paper's baseline;
- backfill: by arrival, who fits starts: the strong baseline;
- loans, scaling, both: one or both of Aryl's mechanisms on top of HOL;
- SJF: shortest first, who fits starts, none of Aryl's mechanisms; SJF + both is the profile `aryl` as it comes.

Ratios of means are baseline over policy: above 1 is better. `alone` is the mean completion time if each job had the
cluster for itself at its largest size: no schedule is below it. What is printed is for seeds from 11 on; no parameter
was chosen by the results of any seed. A loser is a job that takes over 1 % longer than with backfill.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from anchors import traces_dir
from aryl_workload import CLUSTERS, COSTS, SERVER, Setting, inference, read_rows, servers, workload
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.snapshot import WORKER
from elastic_tfjob.simulation.engine import Simulation
from elastic_tfjob.simulation.outcome import Outcome
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.linear import LinearSpeedModel
from elastic_tfjob.simulation.summary import summarise, with_losers
from elastic_tfjob.simulation.workload import WorkloadJob

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


def run(jobs: Sequence[WorkloadJob], setting: Setting, said: Mapping[str, Any], seed: int) -> Outcome:
    profile = build("aryl", parse_profile("aryl", said))
    nodes = uniform_cluster(servers(setting.scale), SERVER.accelerators, 0, 0)
    pool = inference(setting.scale) if profile.needs >= {"loans"} else None
    return Simulation(jobs, nodes, LinearSpeedModel(), profile, costs=COSTS, inference=pool, seed=seed).run()


def alone_s(jobs: Sequence[WorkloadJob]) -> float:
    """The mean completion time of jobs that never wait and always have their largest size, on our own nodes."""
    times = []
    for job in jobs:
        group = next(group for group in job.groups if group.type == WORKER)
        times.append((job.duration_s or 0.0) * group.count / group.maximum)
    return float(np.mean(times))


def told(outcome: Outcome, name: str, jobs: Sequence[WorkloadJob], setting: Setting, seed: int) -> dict[str, Any]:
    """The figures of one run."""
    s = summarise(outcome, len(jobs))
    assert s.finished == len(jobs), f"{name}: not all jobs finished"
    where = {"scale": setting.scale, "load": setting.load, "seed": seed, "clusters": ",".join(setting.clusters)}
    return where | {"policy": name, "alone_s": alone_s(jobs)} | s.as_dict()


def table(found: Sequence[dict[str, Any]]) -> Table:
    """Means over seeds; of losers the mean, of the worst the worst."""
    columns = (
        *("policy", "queue s", "JCT s", "median", "p95", "queue vs HOL", "JCT vs HOL", "queue vs backfill"),
        *("JCT vs backfill", "GPU", "preempted", "scaled in", "used of lent", "losers", "worst", "CPU s"),
    )
    first = found[0]
    shown = Table(
        title=f"scale {first['scale']:g}, load {first['load']:g}; alone: {_mean(found[:1], 'alone_s'):,.0f} s",
        title_justify="left",
    )
    for k, column in enumerate(columns):
        shown.add_column(column, justify="right" if k else "left")
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        by_policy.setdefault(row["policy"], []).append(row)
    for name, each in by_policy.items():
        ratios = []
        for base in ("HOL", "backfill"):
            for key in ("avg_queue_s", "avg_jct_s"):
                known = base in by_policy
                ratios.append(f"{_mean(by_policy[base], key) / _mean(each, key):.2f}" if known else "-")
        lent, used = _mean(each, "loaned_node_hours"), _mean(each, "loaned_used_hours")
        shown.add_row(
            name,
            *(f"{_mean(each, key):,.0f}" for key in ("avg_queue_s", "avg_jct_s", "median_jct_s", "p95_jct_s")),
            *ratios,
            f"{100 * _mean(each, 'gpu_utilisation'):.1f} %",
            f"{100 * _mean(each, 'preempted_jobs') / each[0]['jobs']:.2f} %",
            f"{_mean(each, 'scaled_in'):.0f}",
            f"{100 * used / lent:.0f} %" if lent else "-",
            f"{_mean(each, 'losers'):.0f}",
            f"{100 * max((row['worst_loser'] or 0.0) for row in each):+.0f} %",
            f"{_mean(each, 'cpu_s'):.1f}",
        )
    return shown


def _mean(each: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([row[key] or 0.0 for row in each]))


@click.command()
@click.option("--traces", type=click.Path(path_type=Path))
@click.option("--seeds", default="11,12,13", show_default=True)
@click.option("--scale", default=1 / 8, show_default=True, help="Part of Aryl's 50,000 jobs and 963 servers.")
@click.option("--load", default=0.8, show_default=True, help="Work over what our own servers can do in 15 days.")
@click.option("--fungible", default=0.21, show_default=True, help="Jobs that may run on lent nodes.")
@click.option("--clusters", default=",".join(CLUSTERS), show_default=True)
@click.option("--policies", default=",".join(POLICIES), show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/aryl-simulation.json"))
def main(
    *,
    traces: Path | None,
    seeds: str,
    scale: float,
    load: float,
    fungible: float,
    clusters: str,
    policies: str,
    output: Path,
) -> None:
    folder = traces_dir(traces)
    if not (folder / "itp").exists():
        raise click.ClickException(f"{folder / 'itp'} is missing: give --traces DIR or set ELASTIC_TFJOB_TRACES")
    setting = Setting(scale, load, fungible, tuple(clusters.split(",")))
    rows, found = read_rows(folder, setting.clusters), list[dict[str, Any]]()
    output.parent.mkdir(parents=True, exist_ok=True)
    todo = [(int(seed), name) for seed in seeds.split(",") for name in policies.split(",")]
    backfill: dict[int, Outcome] = {}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for seed, name in bar.track(todo, description="runs"):
            jobs = workload(rows, setting, seed)
            outcome = run(jobs, setting, POLICIES[name], seed)
            if name == "backfill":
                backfill[seed] = outcome
            row = told(outcome, name, jobs, setting, seed)
            if seed in backfill:
                beside = with_losers(summarise(outcome, len(jobs)), outcome, backfill[seed])
                row |= {"losers": beside.losers, "worst_loser": beside.worst_loser}
            found.append(row)
            output.write_text(json.dumps({"runs": found}, indent=1) + "\n")
    Console(width=190).print(table(found))


if __name__ == "__main__":
    sys.exit(main())

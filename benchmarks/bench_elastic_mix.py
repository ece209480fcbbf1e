"""`elastic` on a common mix of jobs, beside each profile alone (make bench-elastic-mix).

The jobs are those of mix_workload.py, at three loads, the same for each profile. All know what a live cluster knows: no
speed beforehand, and what users say of durations (off by 30 %). All that resize have the same cooldown and interval.
`deadline, lent` and `kips, lent` may borrow nodes of the inference pool, as `elastic` and `aryl` do. With `--wrong` the
real speed of a job is off by so much from that of its model; with `--silent` a part of the jobs reports nothing.

Seeds from 11 on are those to report; choices are made on 1 to 3. A loser is slower than under `fixed` by more than 3 %.
The wait of a job is beside what it waits under `fifo`, or a minute where that is less.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from calibration_plot import calibration_plot, calibration_table, interval_plot
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.steps.sizes import LIVE_PAUSE_S
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import NO_NOISE, Costs, Noise
from elastic_tfjob.simulation.result import Compared, RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.catalogue import speed_model_named
from elastic_tfjob.simulation.summary import summarise, with_losers
from mix_workload import CORES, NODES, Mix, inference, workload
from result_table import mean_of, result_table

LOADS: Final = {"light": 0.5, "full": 0.9, "over": 1.3}
MARGIN: Final = 0.03
LEAST_WAIT_S: Final = 60.0
COSTS: Final = Costs(rescale_s=1.0, migrate_s=1.0, boot_cpu_s=12.0)
"""As bench_kips_simulation.py."""
PACED: Final[Mapping[str, Any]] = {"cooldown_s": 60.0, "interval_s": 60.0, "sample_points": 0}
POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "fixed": {},
    "fifo": {},
    "sjf-backfill": {},
    "drf": {**PACED, "min_gain": 0.1},
    "hull": {**PACED, "min_gain": 0.1},
    "pollux": PACED,
    "sia": PACED,
    "sia, all served": {**PACED, "unserved": 2.0},
    "kips": PACED,
    "kips, lent": {**PACED, "lend": "offered"},
    "deadline": PACED,
    "deadline, lent": {**PACED, "lend": "offered"},
    "specon": {"interval_s": 60.0},
    "aryl": {**PACED, "oracle": False},
    "elastic": PACED,
}
"""`fixed` first and `fifo` among them: the others are beside these."""


def run(name: str, mix: Mix, seed: int, *, costs: Costs = COSTS, noise: Noise = NO_NOISE) -> RunResult:
    plain = name.partition(",")[0]
    profile = build(plain, parse_profile(plain, POLICIES[name]))
    nodes = uniform_cluster(NODES, 0, CORES, 64)
    pool = inference() if "loans" in profile.needs else None
    model = speed_model_named("ps-cpu")
    jobs = workload(mix, seed)
    return Simulation(
        SimulationInput(jobs, nodes, model, costs=costs, noise=noise, inference=pool, seed=seed), profile
    ).run()


def row(name: str, outcome: RunResult, fixed: RunResult, fifo: RunResult) -> dict[str, Any]:
    """The figures of one run."""
    s = with_losers(summarise(outcome, len(outcome.records)), outcome, fixed, MARGIN)
    plain = {r.key: max(LEAST_WAIT_S, r.queue_s) for r in fifo.records}
    waits = {r.key: r.queue_s / plain[r.key] for r in outcome.records}
    return {"policy": name, "worst_wait": max(waits.values()), "long_waits": sum(w > 3 for w in waits.values())} | (
        s.as_dict()
    )


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Means over seeds; of what is called worst the worst."""
    columns = ("load", "profile", "mean s", "vs elastic", "median", "p95", "p99", "met", "finished", "rescales/job")
    figures = ("undone", "preempted", "waits > 3x", "worst wait", "slower", "worst", "CPU s")
    shown = result_table("A common mix", (*columns, *figures), words=2)
    for load in dict.fromkeys(each["load"] for each in found):
        rows = [each for each in found if each["load"] == load]
        policies = list(dict.fromkeys(each["policy"] for each in rows))
        by = {policy: [each for each in rows if each["policy"] == policy] for policy in policies}
        best = mean_of(by["elastic"], "avg_jct_s") if "elastic" in by else 0.0
        for k, (policy, each) in enumerate(by.items()):
            jobs = mean_of(each, "jobs")
            shown.add_row(
                "" if k else load,
                policy,
                f"{mean_of(each, 'avg_jct_s'):,.0f}",
                f"{mean_of(each, 'avg_jct_s') / best:.3f}" if best else "",
                *(f"{mean_of(each, key):,.0f}" for key in ("median_jct_s", "p95_jct_s", "p99_jct_s")),
                f"{100 * mean_of(each, 'deadline_met'):.1f} %",
                f"{100 * mean_of(each, 'finished') / jobs:.0f} %",
                f"{mean_of(each, 'rescales') / jobs:.1f}",
                f"{100 * mean_of(each, 'undone') / (mean_of(each, 'rescales') or 1):.1f} %",
                f"{100 * mean_of(each, 'preempted_jobs') / jobs:.1f} %",
                f"{100 * mean_of(each, 'long_waits') / jobs:.1f} %",
                f"{max(row['worst_wait'] for row in each):,.1f}x",
                f"{100 * mean_of(each, 'losers') / jobs:.1f} %" if k else "",
                f"{100 * max(row['worst_loser'] or 0.0 for row in each):+.0f} %" if k else "",
                f"{mean_of(each, 'cpu_s'):.1f}",
            )
        shown.add_section()
    return shown


@click.command()
@click.option("--seeds", default="11-20", show_default=True, help="The first and the last.")
@click.option("--loads", default=",".join(LOADS), show_default=True)
@click.option("--jobs", default=Mix(1.0).jobs, show_default=True)
@click.option("--policies", default="/".join(POLICIES), show_default=True, help="fixed and fifo are always run.")
@click.option("--wrong", default=0.0, show_default=True, help="Standard deviation of the logarithm of real speeds.")
@click.option(
    "--neighbours", default=0.0, show_default=True, help="As simulate --hidden-neighbours, for 10 minutes each."
)
@click.option("--silent", default=0.0, show_default=True, help="Part of the jobs that report nothing.")
@click.option("--pause", default=COSTS.rescale_s, show_default=True, help="Seconds that a rescale stops training for.")
@click.option("--live/--no-live", default=True, show_default=True, help="Whether workers change in running programs.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/elastic-mix.json"))
def main(
    *,
    seeds: str,
    loads: str,
    jobs: int,
    policies: str,
    wrong: float,
    neighbours: float,
    silent: float,
    pause: float,
    live: bool,
    output: Path,
) -> None:
    first, _, last = seeds.partition("-")
    names = list(dict.fromkeys(["fixed", "fifo", *policies.split("/")]))
    costs = replace(COSTS, rescale_s=pause, live_pause_s=LIVE_PAUSE_S if live else None)
    noise = Noise(speed=wrong, silent=silent, neighbours=neighbours, speed_every_s=600.0 if neighbours else 0.0)
    todo = [(load, seed) for seed in range(int(first), int(last or first) + 1) for load in loads.split(",")]
    found: list[dict[str, Any]] = []
    compared: list[Compared] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for load, seed in bar.track(todo, description="runs"):
            mix = Mix(LOADS[load], jobs)
            outcomes = {name: run(name, mix, seed, costs=costs, noise=noise) for name in names}
            compared += outcomes["elastic"].compared if "elastic" in outcomes else ()
            found += [
                {"load": load, "seed": seed} | row(name, outcome, outcomes["fixed"], outcomes["fifo"])
                for name, outcome in outcomes.items()
            ]
            output.write_text(
                json.dumps({"wrong": wrong, "silent": silent, "pause_s": pause, "runs": found}, indent=1) + "\n"
            )
    console = Console(width=190)
    console.print(table(found))
    if compared:
        console.print(calibration_table(compared))
        output.with_suffix(".svg").write_text(calibration_plot(compared))
        output.with_suffix(".intervals.svg").write_text(interval_plot(compared))
    print(f"{len(found)} runs: {output}", file=sys.stderr)


if __name__ == "__main__":
    main()

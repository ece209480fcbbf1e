"""`elastic` on the ground of each other profile, beside that and a plain baseline (make bench-elastic-simulation).

A ground is the setting in which a profile is measured by its own benchmark: the same jobs, nodes, speeds and costs of a
change, and `elastic` has the same interval, cooldown, placement and knowledge as the ground's own profile. Figures are
means over seeds; choices were made on other seeds (1 to 3, and from 1001 on). Grounds of public traces are left out
where the traces are missing (--traces, $ELASTIC_TFJOB_TRACES, or ../shared/traces beside the checkout).

Mean completion times relative to the ground's own profile: below 1 is better. A loser takes over 3 % longer than with
the baseline. A second table says on which grounds `elastic` is as good as was asked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import bench_deadline_simulation as deadline
import bench_hull_simulation as hull
import bench_kips_simulation as kips
import bench_specon_simulation as specon
from anchors import LUCID_COSTS, PHILLY, POLLUX_COSTS, ROUNDS, dl2_jobs, traces_dir
from aryl_workload import COSTS, SERVER, Setting, inference, read_rows, servers, workload
from bench_kips import SCENARIOS
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.steps.sizes import LIVE_PAUSE_S
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.formats import read_csv
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.speed_models.catalogue import speed_model_named
from elastic_tfjob.simulation.speed_models.cpu import CPU_SHARE
from elastic_tfjob.simulation.speed_models.elasticflow import elasticflow
from elastic_tfjob.simulation.summary import summarise, with_losers
from result_table import mean_of, result_table

Said = Mapping[str, Any]
POLLUX: Final = "scaling_profiles/pollux_workload-{}.csv"
MARGIN: Final = 0.03
"""A loser is slower than with the baseline by more than this."""
AS_GOOD: Final = 0.02
"""Beside the ground's own profile, in what that is for, it may be worse by this part."""
NO_WORSE: Final = 0.03
"""Beside the baseline, in mean, p95 and p99."""


@dataclass(frozen=True)
class Ground:
    """`policies`: the baseline, the ground's own profile and `elastic`, each with what is said of it. `run` takes a
    profile and a seed."""

    name: str
    policies: Mapping[str, Said]
    run: Callable[[Profile, int], RunResult]
    seeds: Sequence[int]
    deadlines: bool = False


def profile_of(name: str, said: Said) -> Profile:
    return build(name, parse_profile(name, said))


def dl2_ground(case: str, world: str) -> Ground:
    config = hull.CASES[case]
    slot: Said = {"place": "spread", "interval_s": config.slot_s, "on_change": False}
    told: Said = {**slot, "oracle": True}

    def run(profile: Profile, seed: int) -> RunResult:
        nodes = uniform_cluster(config.nodes, hull.ACCELERATORS, hull.CPUS, 64)
        return Simulation(
            SimulationInput(dl2_jobs(config, seed), nodes, hull.speed_model(world, seed, profile.name), seed=seed),
            profile,
        ).run()

    elastic: Said = {**told, "cooldown_s": 0.0, "min_gain": 0.0}
    return Ground(f"DL2 {case}, {world}", {"fifo": slot, "hull": told, "elastic": elastic}, run, range(2001, 2006))


def kips_ground(load: str, live: bool) -> Ground:
    costs = replace(kips.COSTS, live_pause_s=LIVE_PAUSE_S if live else None)

    def run(profile: Profile, seed: int) -> RunResult:
        jobs, nodes = kips.large(seed, load, 10) if load in kips.LOADS else kips.live(load)
        return Simulation(
            SimulationInput(jobs, nodes, speed_model_named("ps-cpu"), costs=costs, seed=seed), profile
        ).run()

    paced: Said = {"cooldown_s": 60.0, "interval_s": 60.0}
    policies: Mapping[str, Said] = {"fixed": {}, "kips": paced, "elastic": paced}
    return Ground(f"kips, {load}", policies, run, range(11, 16) if load in kips.LOADS else [1])


def specon_ground(placement: str) -> Ground:
    def run(profile: Profile, seed: int) -> RunResult:
        jobs = specon.workload(seed, 4.0, "random")
        placed = replace(profile, place=specon.Told(specon.first_nodes(placement, jobs, seed)))
        nodes = uniform_cluster(specon.NODES, 0, specon.CPUS, 64)
        return Simulation(SimulationInput(jobs, nodes, CPU_SHARE, costs=specon.COSTS), placed).run()

    return Ground(
        f"SpeCon, {placement}",
        {"fixed": {}, "specon": {}, "elastic": {"interval_s": 10.0, "place": "spread"}},
        run,
        range(11, 21),
    )


def deadline_ground(case: deadline.Case, traces: Path) -> Ground:
    jobs = deadline.read_jobs(traces / case.file)

    def run(profile: Profile, seed: int) -> RunResult:
        nodes = uniform_cluster(case.nodes, case.gpus, 0, 0)
        return Simulation(
            SimulationInput(jobs, nodes, elasticflow(case.accelerator), costs=case.costs, noise=case.noise, seed=seed),
            profile,
        ).run()

    count: Said = {"place": "count"}
    plain: Said = {**count, "oracle": True, "pause_s": case.settings.get("pause_s", 1.0)}
    own: Said = {**count, **case.settings}
    elastic: Said = {**plain, "lend": "none", "interval_s": 0.0, "cooldown_s": 0.0}
    policies: Mapping[str, Said] = {"fixed": count, "deadline": own, "elastic": elastic}
    return Ground(f"deadlines, {case.name}", policies, run, [0], deadlines=True)


def aryl_ground(traces: Path, scale: float) -> Ground:
    setting = Setting(scale)
    rows = read_rows(traces, setting.clusters)

    def run(profile: Profile, seed: int) -> RunResult:
        jobs = workload(rows, setting, seed)
        nodes = uniform_cluster(servers(scale), SERVER.accelerators, 0, 0)
        pool = inference(scale) if "loans" in profile.needs else None
        return Simulation(SimulationInput(jobs, nodes, LINEAR, costs=COSTS, inference=pool, seed=seed), profile).run()

    told: Said = {"oracle": True, "place": "apart", "cooldown_s": 60.0, "interval_s": 0.0}
    return Ground(
        f"Aryl, 1/{round(1 / scale)} of it",
        {"fifo-backfill": {}, "aryl": {}, "elastic": told},
        run,
        range(11, 13),
    )


def pollux_ground(traces: Path) -> Ground:
    """160 jobs each, of six applications whose speed was measured; `seed` is the number of the workload."""

    def run(profile: Profile, seed: int) -> RunResult:
        jobs = read_csv(traces / POLLUX.format(seed))[0].jobs
        nodes = uniform_cluster(16, 4, 0, 0)
        return Simulation(SimulationInput(jobs, nodes, speed_model_named("pollux"), costs=POLLUX_COSTS), profile).run()

    pack: Said = {"place": "pack", **ROUNDS}
    told: Said = {**pack, "oracle": True}
    elastic: Said = {**told, "pause_s": 30.0, "lend": "none"}
    policies: Mapping[str, Said] = {"fifo": pack, "optimus": told, "hull": told, "elastic": elastic}
    return Ground("Pollux, 160 jobs", policies, run, range(1, 9))


def philly_ground(traces: Path) -> Ground:
    """A week of jobs that have one size each. A profile that stops nobody has `sjf-backfill` as the one to reach."""
    jobs = read_csv(traces / PHILLY)[0].jobs

    def run(profile: Profile, seed: int) -> RunResult:
        nodes = uniform_cluster(48, 8, 0, 0)
        return Simulation(
            SimulationInput(jobs, nodes, speed_model_named("fixed"), costs=LUCID_COSTS, seed=seed), profile
        ).run()

    count: Said = {"place": "count"}
    elastic: Said = {**count, "oracle": True, "lend": "none", "interval_s": 0.0, "cooldown_s": 0.0}
    policies: Mapping[str, Said] = {
        "fifo-backfill": count,
        "sjf-backfill": count,
        "srtf": count,
        "elastic": elastic,
    }
    return Ground("Philly, a week", policies, run, [0])


def grounds(traces: Path, live: bool) -> list[Ground]:
    found = [dl2_ground(case, world) for world in hull.WORLDS for case in ("13x30", "24x60")]
    found += [kips_ground(load, live) for load in (*kips.LOADS, *SCENARIOS)]
    found += [specon_ground(placement) for placement in specon.PLACEMENTS]
    found += [
        deadline_ground(case, traces)
        for case in deadline.CASES
        if case.name in ("fig8a", "195job", "philly") and (traces / case.file).exists()
    ]
    if (traces / "itp").exists():
        found.append(aryl_ground(traces, 1 / 32))
    if (traces / POLLUX.format(1)).exists():
        found.append(pollux_ground(traces))
    if (traces / PHILLY).exists():
        found.append(philly_ground(traces))
    return found


def measure(ground: Ground, seed: int) -> list[dict[str, Any]]:
    """One row per policy."""
    outcomes = {name: ground.run(profile_of(name, said), seed) for name, said in ground.policies.items()}
    baseline = next(iter(outcomes.values()))
    rows = []
    for name, outcome in outcomes.items():
        s = with_losers(summarise(outcome, len(outcome.records)), outcome, baseline, MARGIN)
        rows.append({"ground": ground.name, "policy": name, "seed": seed} | s.as_dict())
    return rows


def table(found: Sequence[dict[str, Any]]) -> Table:
    """Means over seeds; of the worst loser the worst."""
    columns = ("ground", "profile", "mean s", "vs its own", "median", "p95", "p99", "met", "finished")
    figures = ("rescales/job", "preempted", "slower", "worst", "CPU s")
    shown = result_table("elastic on the ground of each other profile", (*columns, *figures), words=2)
    names = list(dict.fromkeys(row["ground"] for row in found))
    for name in names:
        rows = [row for row in found if row["ground"] == name]
        policies = list(dict.fromkeys(row["policy"] for row in rows))
        own = mean_of([row for row in rows if row["policy"] == policies[1]], "avg_jct_s")
        for k, policy in enumerate(policies):
            each = [row for row in rows if row["policy"] == policy]
            met = [row["deadline_met"] for row in each if row.get("deadline_met") is not None]
            shown.add_row(
                "" if k else name,
                policy,
                f"{mean_of(each, 'avg_jct_s'):,.0f}",
                f"{mean_of(each, 'avg_jct_s') / own:.3f}" if own else "",
                *(f"{mean_of(each, key):,.0f}" for key in ("median_jct_s", "p95_jct_s", "p99_jct_s")),
                f"{100 * float(np.mean(met)):.1f} %" if met else "",
                f"{100 * mean_of(each, 'finished') / mean_of(each, 'jobs'):.0f} %",
                f"{mean_of(each, 'rescales') / mean_of(each, 'jobs'):.1f}",
                f"{100 * mean_of(each, 'preemptions') / mean_of(each, 'jobs'):.1f} %",
                f"{100 * mean_of(each, 'losers') / mean_of(each, 'jobs'):.0f} %" if k else "",
                f"{100 * max(row['worst_loser'] or 0.0 for row in each):+.0f} %" if k else "",
                f"{mean_of(each, 'cpu_s'):.1f}",
            )
        shown.add_section()
    return shown


def verdicts(found: Sequence[dict[str, Any]]) -> Table:
    """By ground whether `elastic` is as good as asked for: beside the ground's own profile, and beside the first row in
    mean, p95 and p99. A ground where jobs never end under the first has no second one."""
    shown = Table(title="elastic as asked for", title_justify="left")
    for k, column in enumerate(("ground", "beside its own", "as asked", "worst beside the first", "as asked")):
        shown.add_column(column, justify="right" if k in (1, 3) else "left")
    for name in dict.fromkeys(row["ground"] for row in found):
        rows = [row for row in found if row["ground"] == name]
        first, own, *_ = dict.fromkeys(row["policy"] for row in rows)
        by = {policy: [row for row in rows if row["policy"] == policy] for policy in (first, own, "elastic")}
        met = [mean_of(by[policy], "deadline_met") for policy in (own, "elastic")]
        more = mean_of(by["elastic"], "avg_jct_s") / mean_of(by[own], "avg_jct_s") - 1
        if any(met):
            told, kept = f"{100 * (met[1] - met[0]):+.1f} points met", met[1] >= met[0] * (1 - AS_GOOD)
        else:
            told, kept = f"mean {more:+.1%}", more <= AS_GOOD
        worst = [
            mean_of(by["elastic"], key) / mean_of(by[first], key) - 1
            for key in ("avg_jct_s", "p95_jct_s", "p99_jct_s")
            if mean_of(by[first], key)
        ]
        beside = (f"{max(worst):+.1%}", "yes" if max(worst) <= NO_WORSE else "MISSED") if worst else ("", "")
        shown.add_row(name, told, "yes" if kept else "MISSED", *beside)
    return shown


@click.command()
@click.option("--traces", type=click.Path(path_type=Path))
@click.option("--only", default="", help="Grounds whose name has this in it.")
@click.option(
    "--live/--no-live",
    default=False,
    show_default=True,
    help="Whether workers change in running programs, on the grounds of jobs with PS whose changes cost something.",
)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/elastic-simulation.json"))
def main(*, traces: Path | None, only: str, live: bool, output: Path) -> None:
    chosen = [ground for ground in grounds(traces_dir(traces), live) if only in ground.name]
    found: list[dict[str, Any]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for ground, seed in bar.track([(each, seed) for each in chosen for seed in each.seeds], description="runs"):
            found += measure(ground, seed)
            output.write_text(json.dumps({"runs": found}, indent=2) + "\n")
    console = Console(width=180)
    console.print(table(found))
    console.print(verdicts(found))
    print(f"{len(found)} runs: {output}", file=sys.stderr)


if __name__ == "__main__":
    main()

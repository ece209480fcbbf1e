"""Deadlines met on windows of public traces that are drawn by seed, beside what any policy could meet.

    python benchmarks/bench_deadline_windows.py [--traces DIR] [--seeds 11-20] [--whole SECONDS] [--json FILE]

Each seed draws one window per source (deadline_windows.py): ITP, Philly and Chronus. Defaults were chosen on seeds 1 to
5; all windows of the other seeds are shown. Speeds are known, resizes are free. The bound is that of bounds.py, which
knows all jobs in advance; with `--whole`, no job counts in part. Bounds are cached beside the JSON file.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from anchors import traces_dir
from bounds import most_met
from deadline_windows import ACCELERATOR, NODE, SOURCES, Window, drawn, work
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.elasticflow import elasticflow
from elastic_tfjob.simulation.summary import summarise, with_losers
from result_table import mean_of, result_table

POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "fixed": {},
    "edf": {},
    "deadline": {"oracle": True},
    "elastic": {"oracle": True, "interval_s": 0},
}
"""`fixed` first: losers are slower than under it. All decide when something changes."""
OURS: Final = ("deadline", "elastic")
GOAL: Final = 0.93


def run(window: Window, policy: str) -> RunResult:
    settings = {"place": "count", **POLICIES[policy]}
    cluster = uniform_cluster(window.nodes, NODE, 0, 0)
    given = SimulationInput(list(window.jobs), cluster, elasticflow(ACCELERATOR))
    return Simulation(given, build(policy, parse_profile(policy, settings))).run()


def bound(window: Window, known: dict[str, int], whole_s: float) -> int:
    """The jobs whose deadline could be met, by the linear program, or with whole jobs only."""
    key = f"{window.name}, {'whole' if whole_s else 'LP'}"
    if key not in known:
        known[key] = most_met(work(window.jobs), window.accelerators, whole_s=whole_s)
    return known[key]


def compared(window: Window, known: dict[str, int], whole_s: float) -> list[dict[str, Any]]:
    """The figures of each policy on a window."""
    timed = len(work(window.jobs))
    most = bound(window, known, 0.0)
    if whole_s:
        most = min(most, bound(window, known, whole_s))
    outcomes = {policy: run(window, policy) for policy in POLICIES}
    rows = []
    for policy, outcome in outcomes.items():
        s = with_losers(summarise(outcome, len(window.jobs)), outcome, outcomes["fixed"])
        met = round((s.deadline_met or 0.0) * timed)
        place = {"window": window.name, "trace": window.trace, "load": window.load, "nodes": window.nodes}
        figures = {"timed": timed, "most": most, "met": met, "of_bound": met / most if most else 1.0}
        rows.append({**s.as_dict(), **place, **figures, "policy": policy})
    return rows


def table(found: list[dict[str, Any]]) -> Table:
    columns = ("window", "trace", "cluster", "jobs", "load", "bound", *POLICIES)
    ratios = (*(f"{policy} of bound" for policy in OURS), "JCT / edf", "rescales/job", "losers (worst)")
    shown = result_table("Deadlines met", (*columns, *ratios), words=3)
    for name in dict.fromkeys(row["window"] for row in found):
        by = {row["policy"]: row for row in found if row["window"] == name}
        first, ours = by["fixed"], by["deadline"]
        shown.add_row(
            *(name, Path(first["trace"]).name.removesuffix(".csv.gz"), f"{first['nodes']}x{NODE}"),
            *(str(first["timed"]), f"{first['load']:.2f}", str(first["most"])),
            *(str(by[policy]["met"]) for policy in POLICIES),
            *(f"{by[policy]['of_bound']:.1%}" for policy in OURS),
            f"{(ours['avg_jct_s'] or 0.0) / (by['edf']['avg_jct_s'] or 1.0):.2f}",
            f"{ours['rescales'] / ours['jobs']:.1f}",
            f"{ours['losers']} ({ours['worst_loser'] or 0.0:+,.0%})",
        )
    return shown


@click.command()
@click.option("--traces", type=click.Path(path_type=Path))
@click.option("--seeds", default="11-20", show_default=True, help="The first and the last.")
@click.option("--whole", "whole_s", default=0.0, show_default=True, help="Seconds per bound of whole jobs.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=Path("build/bench/deadline-windows.json"))
def main(*, traces: Path | None, seeds: str, whole_s: float, output: Path) -> None:
    first, _, last = seeds.partition("-")
    output.parent.mkdir(parents=True, exist_ok=True)
    cache = output.with_name("deadline-windows-bounds.json")
    known: dict[str, int] = json.loads(cache.read_text()) if cache.exists() else {}
    found: list[dict[str, Any]] = []
    for seed in range(int(first), int(last or first) + 1):
        for source in SOURCES:
            print(f"{source} {seed} ...", file=sys.stderr, flush=True)
            found += compared(drawn(traces_dir(traces), seed, source), known, whole_s)
            cache.write_text(json.dumps(known, indent=1) + "\n")
            output.write_text(json.dumps({"runs": found}, indent=1) + "\n")
    Console(width=200).print(table(found))
    for policy in OURS:
        rows = [row for row in found if row["policy"] == policy]
        share, least = mean_of(rows, "of_bound"), min(row["of_bound"] for row in rows)
        enough = sum(row["of_bound"] >= GOAL for row in rows)
        print(f"{policy}: mean {share:.1%} of the bound, least {least:.1%}; {GOAL:.0%} in {enough} of {len(rows)}")


if __name__ == "__main__":
    main()

"""How many jobs each rule of a reclaim stops beyond the fewest that are possible (make bench-aryl-reclaim).

Simulated: each reclaim of a run of the profile `aryl` in the setting of Aryl (see aryl_workload.py), with many loanable
jobs, so that there are many. The run goes on as its own rule has it; the others are asked what they would do. Hard:
drawn nodes full of jobs of 1 to 4 accelerators, half of them across two nodes. The optimum is an integer program.

`over time` is how many stops a run under that rule alone had: what is best each time need not be best in all.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from anchors import traces_dir
from aryl_workload import Row, Setting, read_rows, workload
from bench_aryl_simulation import run
from elastic_tfjob.scheduling import lend
from elastic_tfjob.scheduling.lend import RULES, Guest, Rule, Vacated, vacate
from result_table import result_table
from unit.scheduling.reclaims import Reclaim, drawn, fewest_stops


def recorded(rows: Sequence[Row], setting: Setting, seed: int) -> list[Reclaim]:
    """The reclaims of one run under `aryl` for which a job must be stopped."""
    found: list[Reclaim] = []

    def keep(
        named: Iterable[str], lent: Sequence[str], guests: Iterable[Guest], wanted: int, rule: Rule, *, seed: str = ""
    ) -> Vacated:
        known = tuple(guests)
        assert not tuple(named), "in a simulation no pool asks for a node by name"
        done = vacate((), lent, known, wanted, rule, seed=seed)
        if done.stopped:
            found.append(Reclaim(tuple(lent), known, len(done.nodes)))
        return done

    with patch.object(lend, "vacate", keep):
        run(workload(rows, setting, seed), setting, {}, seed)
    return found


def beyond(kind: str, reclaims: Sequence[Reclaim]) -> list[dict[str, Any]]:
    """By rule, the stops of all these reclaims beside the fewest, and the milliseconds that one decision takes."""
    best = sum(map(fewest_stops, reclaims))
    rows = []
    for rule in RULES:
        begin = time.process_time()
        stops = sum(len(vacate((), *each, rule, seed=f"reclaim-{k}").stopped) for k, each in enumerate(reclaims))
        took = 1000 * (time.process_time() - begin) / max(len(reclaims), 1)
        rows.append(
            {"kind": kind, "rule": rule, "reclaims": len(reclaims), "best": best, "stops": stops, "ms": round(took, 3)}
        )
    return rows


def table(found: Sequence[dict[str, Any]]) -> Table:
    kinds = list(dict.fromkeys(row["kind"] for row in found if "kind" in row))
    first = {row["kind"]: row for row in found if "kind" in row}
    told = "; ".join(
        f"{kind}: {first[kind]['reclaims']} reclaims, {first[kind]['best']} stops at best" for kind in kinds
    )
    per_kind = (part for kind in kinds for part in (f"{kind}: stops", "over", "ms"))
    shown = result_table(told, ("rule", *per_kind, "over time"))
    for rule in dict.fromkeys(row["rule"] for row in found):
        cells = []
        for kind in kinds:
            row = next((row for row in found if row.get("kind") == kind and row["rule"] == rule), None)
            over = f"{100 * (row['stops'] / row['best'] - 1):+.1f} %" if row and row["best"] else "-"
            cells += [str(row["stops"]), over, f"{row['ms']:.2f}"] if row else ["-", "-", "-"]
        in_all = [row["over_time"] for row in found if row["rule"] == rule and "over_time" in row]
        shown.add_row(rule, *cells, str(sum(in_all)) if in_all else "-")
    return shown


@click.command()
@click.option("--traces", type=click.Path(path_type=Path))
@click.option("--seeds", default="11,12,13", show_default=True)
@click.option("--scale", default=1 / 8, show_default=True, help="Part of Aryl's 50,000 jobs and 963 servers.")
@click.option("--load", default=0.9, show_default=True, help="Work over what our own servers can do in 15 days.")
@click.option("--fungible", default=0.5, show_default=True, help="Jobs that may run on lent nodes.")
@click.option("--hard", default=200, show_default=True, help="So many hard reclaims are drawn.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/aryl-reclaim.json"))
def main(
    *, traces: Path | None, seeds: str, scale: float, load: float, fungible: float, hard: int, output: Path
) -> None:
    folder = traces_dir(traces)
    if not (folder / "itp").exists():
        raise click.ClickException(f"{folder / 'itp'} is missing: give --traces DIR or set ELASTIC_TFJOB_TRACES")
    setting, each = Setting(scale, load, fungible), [int(seed) for seed in seeds.split(",")]
    rows, progress = read_rows(folder, setting.clusters), Console(stderr=True)
    simulated = [
        reclaim for seed in track(each, "recording", console=progress) for reclaim in recorded(rows, setting, seed)
    ]
    found = beyond("simulated", simulated) + beyond("hard", [drawn(1000 + k, hard=True) for k in range(hard)])
    for rule in track(("first", *RULES), "over time", console=progress):
        outcomes = [run(workload(rows, setting, seed), setting, {"reclaim": rule}, seed) for seed in each]
        found.append({"rule": rule, "over_time": sum(outcome.changes["reclaim"] for outcome in outcomes)})
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"rules": found}, indent=1) + "\n")
    Console(width=150).print(table(found))


if __name__ == "__main__":
    sys.exit(main())

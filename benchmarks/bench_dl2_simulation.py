"""`dl2` beside drf, Optimus, hull and what no schedule is below, in simulation (make bench-dl2-simulation).

The setting, the speed models and the seeds are those of bench_hull_simulation.py. `dl2` has the weights that are
shipped; `--weights NAME=FILE` adds others, such as those of another training seed. They were trained on workloads of
`elastic_tfjob.learning.episodes`, which no seed here makes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench_hull_simulation import CASES, FIRST_SEED, NOISES, SETTINGS, WORLDS, asked, compare, run_all, table
from elastic_tfjob.scheduling.profiles.dl2.network import read

POLICIES = {"ps": ("drf", "optimus", "hull"), "ps-measured": ("drf", "optimus", "hull, fit", "hull")}


def named(given: Sequence[str]) -> dict[str, str]:
    """Files by name; the shipped one has none. Raises BadParameter for what is no network: `dl2` would do as `hull`
    does."""
    found = {"dl2": ""}
    for each in given:
        name, equals, path = each.partition("=")
        if not (equals and name):
            raise click.BadParameter(f"{each!r}: write NAME=FILE", param_hint="--weights")
        found[f"dl2 {name}"] = path
    for path in found.values():
        if isinstance(problem := read(path), str):
            raise click.BadParameter(problem, param_hint="--weights")
    return found


@click.command()
@click.option("--weights", multiple=True, metavar="NAME=FILE", help="Further weights.")
@click.option("--cases", default="13x30,6x10", show_default=True, help=f"Of {', '.join(CASES)}.")
@click.option("--worlds", default=",".join(WORLDS), show_default=True)
@click.option("--first-seed", default=FIRST_SEED, show_default=True)
@click.option("--seeds", default=20, show_default=True)
@click.option("--attempts", default=300, show_default=True, help="Of raising the bound.")
@click.option("--noise", default="none", show_default=True, help=f"Of {', '.join(NOISES)}, each of 20 %.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/dl2-simulation.json"))
def main(
    *,
    weights: Sequence[str],
    cases: str,
    worlds: str,
    first_seed: int,
    seeds: int,
    attempts: int,
    noise: str,
    output: Path,
) -> None:
    learned = named(weights)
    settings = {**SETTINGS, **{name: {"oracle": True, "weights": path} for name, path in learned.items()}}

    def run(case: str, world: str, seed: int) -> list[dict[str, Any]]:
        fits = [f"{name}, fit" for name in learned] if world == "ps-measured" else []
        policies = (*POLICIES[world], *fits, *learned)
        return [
            row
            for kind in noise.split(",")
            for row in compare(case, world, seed, attempts, policies=policies, settings=settings, noise=kind)
        ]

    rows = run_all(asked(cases, worlds, first_seed, seeds), output, run)
    Console(width=150).print(table(rows))


if __name__ == "__main__":
    sys.exit(main())

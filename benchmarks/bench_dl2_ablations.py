"""What each part of training `dl2` is worth: the same training without it (make bench-dl2-ablations).

Three groups, each beside a training with all parts. `actor-critic` is the paper's reinforcement (DL2, arXiv 1909.06040,
section 4.3) from drf's decisions: without replay, exploration, critic or warm-up. `evolution` is this project's: from
other profiles' decisions, without reinforcement, with all weights, and without features. Those about sizes are left out
of a training that has learned from `hull`'s decisions: the network that training begins with otherwise is made of them.

Completion times are held against those of drf, Optimus and hull on test seeds, which nothing was trained or chosen on.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any, Final

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from elastic_tfjob.learning.actor_critic import ActorCritic
from elastic_tfjob.learning.episodes import Episode, draw, mean_jct_s, of_network, of_profile
from elastic_tfjob.learning.training import RIVALS, Evolution, TrainingPlan, begin, train
from result_table import result_table

PAPER: Final = TrainingPlan(iterations=200, teacher="drf", select=24, method=ActorCritic())
OURS: Final = TrainingPlan(iterations=30, train=1000, select=24, method=Evolution(pairs=6, episodes=8))
ALL_WEIGHTS: Final = replace(OURS, teacher="hull", method=Evolution(pairs=6, episodes=8, part="all"))
FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "best gain over all larger sizes": ("best", "best by worker", "best by ps", "best by both", "best gain"),
    "gain of the next replica": ("gain of worker", "gain of ps", "gain of both"),
    "size and speed": ("workers", "ps", "workers and ps", "speed"),
    "what a replica holds": ("share of worker", "share of ps"),
    "steps left": ("left", "left beside others", "unknown", "done", "crowd and left"),
    "age": ("age",),
    "end within the slot": ("ends",),
    "crowd": ("crowd", "crowd and left"),
}
PLANS: Final[Mapping[str, Mapping[str, TrainingPlan]]] = {
    "actor-critic": {
        "all parts": PAPER,
        "no replay": replace(PAPER, method=ActorCritic(replay=1)),
        "no exploration": replace(PAPER, method=ActorCritic(explore=0.0)),
        "no critic": replace(PAPER, method=ActorCritic(critic=False)),
        "no warm-up: from the greedy network": replace(PAPER, teacher=""),
        "warm-up alone": replace(PAPER, iterations=0),
    },
    "evolution": {
        "all parts": OURS,
        "no reinforcement: the greedy network": replace(OURS, iterations=0),
        "all weights": replace(OURS, method=ALL_WEIGHTS.method),
        "no steps left": replace(OURS, without=FEATURES["steps left"]),
        "no age": replace(OURS, without=FEATURES["age"]),
        "no end within the slot": replace(OURS, without=FEATURES["end within the slot"]),
        "no crowd": replace(OURS, without=FEATURES["crowd"]),
    },
    "evolution from a teacher": {
        "hull": ALL_WEIGHTS,
        **{teacher: replace(ALL_WEIGHTS, teacher=teacher) for teacher in ("optimus", "drf")},
        **{
            f"{teacher}, no reinforcement": replace(ALL_WEIGHTS, teacher=teacher, iterations=0)
            for teacher in ("hull", "optimus", "drf")
        },
        **{f"hull, no {name}": replace(ALL_WEIGHTS, without=hidden) for name, hidden in FEATURES.items()},
    },
}
ALL: Final = [(group, name) for group, plans in PLANS.items() for name in plans]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Means over the training seeds, with the least and the most."""
    columns = ("method", "training", "seeds", *(f"beside {rival}, %" for rival in RIVALS), "CPU s")
    made = result_table("Mean completion times on the test seeds", columns, words=2)
    for (group, name), several in groupby(
        sorted(rows, key=lambda row: ALL.index((row["group"], row["name"]))), lambda row: (row["group"], row["name"])
    ):
        found = list(several)
        spreads = []
        for rival in RIVALS:
            values = [100 * row["change"][rival] for row in found]
            spreads.append(f"{mean(values):+.1f} ({min(values):+.1f} to {max(values):+.1f})")
        made.add_row(group, name, str(len(found)), *spreads, f"{mean(row['cpu_s'] for row in found):.0f}")
    return made


def one(plan: TrainingPlan, tests: Sequence[Episode], rivals: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """One training, and how its best weights do on the tests: geometric means of ratios less 1."""
    before = time.process_time()
    begun = begin(plan)
    state = deque(train(begun), maxlen=1).pop() if plan.iterations else begun
    cpu_s = time.process_time() - before
    ours = [mean_jct_s(of_network(state.network, each), each) for each in tests]
    change = {name: float(np.exp(np.mean(np.log(np.divide(ours, theirs)))) - 1) for name, theirs in rivals.items()}
    return {"change": change, "select": state.best_cost, "cpu_s": cpu_s, "jct_s": ours}


@click.command()
@click.option("--groups", default=",".join(PLANS), show_default=True)
@click.option("--seeds", default=3, show_default=True, help="Trainings of each.")
@click.option("--test-seeds", default=40, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/dl2-ablations.json"))
def main(*, groups: str, seeds: int, test_seeds: int, output: Path) -> None:
    """Trainings that --output has are not made again."""
    chosen = groups.split(",")
    if unknown := [name for name in chosen if name not in PLANS]:
        raise click.BadParameter(f"no group {', '.join(unknown)}; there are {', '.join(PLANS)}")
    output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = json.loads(output.read_text())["runs"] if output.exists() else []
    known = {(row["group"], row["name"], row["seed"], row["tests"]) for row in rows}
    todo = [
        (group, name, seed)
        for seed in range(seeds)
        for group, name in ALL
        if group in chosen and (group, name, seed, test_seeds) not in known
    ]
    with Progress(console=Console(stderr=True), transient=True) as bar:
        if todo:
            tests = [draw("test", k) for k in bar.track(range(test_seeds), description="test workloads")]
            rivals = {
                name: [mean_jct_s(of_profile(name, each), each) for each in bar.track(tests, description=name)]
                for name in RIVALS
            }
        for group, name, seed in bar.track(todo, description="trainings"):
            found = one(replace(PLANS[group][name], seed=seed), tests, rivals)
            rows.append({"group": group, "name": name, "seed": seed, "tests": test_seeds, **found})
            output.write_text(json.dumps({"runs": rows}, indent=1) + "\n")
    Console(width=150).print(table([row for row in rows if row["group"] in chosen and row["tests"] == test_seeds]))


if __name__ == "__main__":
    sys.exit(main())

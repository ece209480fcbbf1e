"""Benchmark: sizes by a learned policy that learns from the jobs that it decides for, live (make bench-dl2).

The kind cluster of bench_kips.py, and one scenario (benchmarks/live/dl2/): twelve elastic jobs, the same for each
of

- drf, optimus: this operator under these profiles;
- dl2: this operator under its profile `dl2`, which writes down what it saw and decided, and the TFJob of the overlay
  `policy-trainer`, which trains the policy from that beside the control plane and hands over weights that are no worse.
  It begins without weights, and so decides as `hull` until the first are handed over. The trainer waits while the
  machine is busy, so it trains after the runs; its CPU time is told apart.

Each runs three times; nothing is tried again. What was learned in one run is there in the next of the same call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from live import choose
from live.results import Goals, Runs, changes, compared, judged, read, write
from live.scenario import read_all

SCENARIOS = read_all(Path(__file__).parent / "live/dl2")
RIVALS: Final = ("drf", "optimus")
OPERATORS = (*RIVALS, "dl2")
MOST_DECISION_S: Final = 0.05
ITERATIONS: Final = 10
"""Of an update: the trainer has a quarter of a core."""
WAIT_IDLE_S: Final = 3600
UPDATE_S: Final = 900.0
"""So long the benchmark waits for the first update after the runs."""


def goals(runs: Runs, scenario: str, learned: dict[str, Any]) -> Goals:
    """What `dl2` should reach, and what it did; none until all have run."""
    ours = runs.of(scenario, "dl2")
    changed = {name: changes(ours, runs.of(scenario, name)) for name in RIVALS}
    known = {name: change for name, change in changed.items() if change is not None}
    if len(known) < len(RIVALS):
        return ()
    accepted = sum(update["outcome"] == "accepted" for update in learned["updates"])
    cpu_s = sum(update.get("cpu_s", 0.0) for update in learned["updates"])
    decision_s = max(learned["decision_s"], default=float("inf"))
    return [
        *((f"mean JCT <= {name}'s", f"{change:+.0%}", change <= 0) for name, change in known.items()),
        (
            "an update from live experience is accepted",
            f"{accepted} of {len(learned['updates'])}, {cpu_s:.0f} CPU-s",
            accepted > 0,
        ),
        (
            f"mean decision of each call < {MOST_DECISION_S * 1000:.0f} ms",
            f"{decision_s * 1000:.1f} ms",
            decision_s < MOST_DECISION_S,
        ),
    ]


def noted(output: Path) -> dict[str, Any]:
    """What measurements of dl2 noted beside their runs."""
    raw = json.loads(output.read_text()) if output.exists() else {}
    return {"updates": raw.get("updates", []), "decision_s": raw.get("decision_s", [])}


def save(path: Path, runs: Runs) -> None:
    """The runs; what was noted beside them stays."""
    kept = noted(path)
    write(path, runs)
    note(path, kept)


def note(path: Path, what: dict[str, Any]) -> None:
    """Write it beside the runs that are there."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **what}, indent=1) + "\n")


@click.command()
@click.option("--operators", type=choose.some_of(OPERATORS), default=",".join(OPERATORS), show_default=True)
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/dl2.json"), show_default=True)
def main(*, operators: list[str], runs: int, output: Path) -> None:
    """Compare job completion times under `drf`, `optimus` and `dl2` that learns.

    Run it on an idle machine. Runs that --output has are not measured again; without anything missing the table and
    the plot are made anew, without a cluster.
    """
    from harness import deploy, images, learning  # noqa: PLC0415  what talks to the cluster takes a second to import
    from harness.cluster import CHECKPOINTS, Cluster  # noqa: PLC0415
    from live.measure import bench  # noqa: PLC0415

    found, beside_runs = read(output), noted(output)

    @contextmanager
    def learns(cluster: Cluster, mode: str) -> Iterator[None]:
        if mode != "dl2":
            yield
            return
        arguments = [f"--follow={Path(learning.WEIGHTS).parent}", f"--iterations={ITERATIONS}", "--select-seeds=4"]
        arguments.append(f"--wait-idle={WAIT_IDLE_S}")
        try:
            with learning.trainer(cluster, images.operator(), arguments):
                yield
                learning.await_update(CHECKPOINTS / learning.CLAIM, UPDATE_S)
        finally:
            beside_runs["updates"] += learning.updates(CHECKPOINTS / learning.CLAIM)
            beside_runs["decision_s"].append(deploy.mean_s(cluster, "elastic_tfjob_scheduling_seconds"))
            if output.exists():
                note(output, beside_runs)

    bench(
        "Twelve jobs that share three nodes",
        SCENARIOS,
        operators,
        runs,
        runs=found,
        output=output,
        save=save,
        beside=learns,
    )
    for name in SCENARIOS:
        for rival in RIVALS:
            if (ours := found.of(name, "dl2")) and (theirs := found.of(name, rival)):
                click.echo(f"{name}: dl2 beside {rival}: {compared(ours, theirs)}")
        if reached := goals(found, name, beside_runs):
            Console().print(judged(name, reached))


if __name__ == "__main__":
    main()

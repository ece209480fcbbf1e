"""Benchmark: how long training stops when a replica goes to another node (make bench-moves).

Real kind cluster, real TensorFlow on parameter servers. One job of the digits program (a chief, a PS, a worker) trains
without end. By turns its worker, its PS and its chief are moved to the next node, by a target as a profile writes one:
a pod is prepared there beside the one that trains, and takes its place. A worker joins and leaves the running program
(`live`), a PS hands its values over in memory, and a chief saves for its next program.

*Pause* (`downtime_s`) is from the last step before to the first step after, as the training program prints them: it
prints every fifth step, so that a pause is up to ten steps too long. *Prepare* (`prepare_s`) is from the request until
that last step: training goes on meanwhile. *Lost* (`steps_lost`) are steps that were trained twice. They are measured
as bench-rescale measures a change of size (trainee.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from harness import deploy
from harness.cluster import Cluster
from harness.jobs import Object
from harness.moves import ONE_SIZE, arrived, elsewhere, move
from harness.rescale_cost import percentile
from harness.training import said, training
from result_table import result_table
from trainee import DIGITS, ENDLESS, NAME, Trainee, followed, place, trains

console = Console(width=None if Console().is_terminal else 140)
TYPES = ("Worker", "PS", "Chief")
REPLICAS = {"Chief": 1, "PS": 1, "Worker": 1}


@dataclass(frozen=True, slots=True)
class Move:
    """One replica that has gone to another node; seconds. `training_lost_s`: see harness/rescale_cost.py."""

    type: str
    downtime_s: float
    prepare_s: float
    steps_lost: int
    training_lost_s: float = 0.0


def manifest(folder: str, megabytes: int = 0) -> Object:
    """The job that is moved about, with so much more in variables. No profile changes its size: that would be measured,
    too."""
    arguments = (f"--steps={ENDLESS}", *DIGITS, *((f"--embedding-mb={megabytes}",) if megabytes else ()))
    memory = f"{2 + 4 * megabytes // 1024}Gi"
    return training(NAME, replicas=REPLICAS, arguments=arguments, annotations=ONE_SIZE, folder=folder, memory=memory)


def moved(trainee: Trainee, kind: str, nodes: Sequence[str]) -> Move:
    """Have the first replica of a type go to the next of these nodes. Raises AssertionError where it does not, or not
    while the job trains."""
    here = said(trainee.jobs, NAME, "target")["nodes"][kind][0]
    target: dict[str, Any] = {}

    def ask() -> None:
        target.update(move(trainee.jobs, NAME, kind, elsewhere(nodes, here)))

    cost = trainee.measured(ask, f"{kind} from {here}")
    # The pod that was left has to be gone: the next pod may have its name.
    arrived(trainee.jobs, NAME, kind, target["nodes"][kind], target["generation"])
    done = trainee.state()["history"][-1]
    if done["generation"] != target["generation"] or done["mode"] not in ("live", "overlap"):
        raise AssertionError(f"{cost.change}: not moved beside the running program, but {done}")
    return Move(kind, cost.downtime_s, cost.prepare_s, cost.lost_steps, cost.training_lost_s)


def measure(trainee: Trainee, nodes: Sequence[str], count: int, tell: Callable[[Move], None]) -> None:
    """`count` moves of each type, each told as soon as it is measured."""
    for _ in range(count):
        for kind in TYPES:
            tell(moved(trainee, kind, nodes))


def results(moves: Sequence[Move]) -> dict[str, Any]:
    """What the JSON file has: every move, and the seconds of the pause by type."""
    by_type: dict[str, dict[str, float]] = {}
    for kind in TYPES:
        if pauses := [each.downtime_s for each in moves if each.type == kind]:
            by_type[kind] = {"p50": percentile(pauses, 50), "p90": percentile(pauses, 90), "n": len(pauses)}
    return {"moves": [asdict(each) for each in moves], "by_type": by_type}


def write(output: Path, moves: Sequence[Move]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results(moves), indent=1) + "\n")


def table(moves: Sequence[Move]) -> Table:
    columns = ("type", "n", "p50 s", "p90 s", "longest s", "prepare p50 s", "training lost p50 s", "steps lost")
    made = result_table("Training stops for so long when a replica goes to another node", columns)
    for kind, pause in results(moves)["by_type"].items():
        own = [each for each in moves if each.type == kind]
        made.add_row(
            kind,
            str(pause["n"]),
            f"{pause['p50']:.2f}",
            f"{pause['p90']:.2f}",
            f"{max(each.downtime_s for each in own):.2f}",
            f"{percentile([each.prepare_s for each in own], 50):.1f}",
            f"{percentile([each.training_lost_s for each in own], 50):.1f}",
            str(sum(each.steps_lost for each in own)),
        )
    return made


def run(cluster: Cluster, count: int, tell: Callable[[Move], None], megabytes: int = 0) -> None:
    with place(cluster, "moves") as (jobs, folder), followed(jobs, moves=True) as (lines, annotations):
        jobs.apply(manifest(jobs.namespace, megabytes))
        trains(lines, folder)
        measure(Trainee(jobs, lines, annotations), sorted(cluster.workers()), count, tell)


@click.command()
@click.option("--count", type=click.IntRange(min=1), default=10, show_default=True, help="Moves of each type.")
@click.option(
    "--megabytes",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Size of an embedding on the parameter server, beside the digits model.",
)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/moves.json"), show_default=True)
def main(*, count: int, megabytes: int, output: Path) -> None:
    """Measure how long training stops when a worker, a parameter server or the chief of a running TFJob moves.

    It makes the kind cluster and deploys the operator where they are not there yet, which takes minutes; then each move
    takes about half a minute. Run it on an idle machine: what else runs shows in the pauses. --output is written anew
    after each move, so one that is stopped leaves what it has measured.

    \b
    Example:
      bench_moves.py --count 2
      bench_moves.py --megabytes 128 --output build/bench/moves-128.json
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that it cleans up
    cluster = deploy.deploy()
    done: list[Move] = []
    begin = time.monotonic()

    def tell(each: Move) -> None:
        done.append(each)
        write(output, done)
        console.print(
            f"  {len(done)}/{len(TYPES) * count}, {each.type}: {each.downtime_s:.2f} s, prepared in "
            f"{each.prepare_s:.1f} s, {each.training_lost_s:.1f} s of training lost, {each.steps_lost} steps lost, "
            f"{time.monotonic() - begin:.0f} s so far"
        )

    problem = ""
    try:
        run(cluster, count, tell, megabytes)
    except AssertionError as error:  # what was measured before counts
        problem = str(error)
    if done:
        console.print(table(done))
        console.print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; written: {output}")
    if problem:
        sys.exit(f"✗ after {len(done)} moves: {problem}")


if __name__ == "__main__":
    main()

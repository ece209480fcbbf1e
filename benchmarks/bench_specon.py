"""Benchmark: jobs that share crowded nodes while another is empty, beside the Go training-operator (make bench-specon).

The kind cluster of bench_kips.py, and one scenario (benchmarks/live/specon/): six jobs without CPU limits that
start on two of three nodes. Each of

- go: the Go training-operator v1.8.1: jobs stay where they started, and share their node evenly;
- specon: this operator under its profile `specon`: weights in place, by remaining work, and moves to idle CPU

runs it three times. Nothing is tried again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
from rich.console import Console

from live import choose
from live.results import Goals, Runs, change_by_job, changes, compared, judged, makespan_change, read
from live.scenario import read_all

SCENARIOS = read_all(Path(__file__).parent / "live/specon")
OPERATORS = ("go", "fixed", "rebalance", "specon")
LEAST_BEST: Final = 0.35
LEAST_GAIN: Final = 0.10
MOST_SLOWER: Final = 0.15


def goals(runs: Runs, scenario: str) -> Goals:
    """What `specon` should reach, and what it did; none until `go` and `specon` have run."""
    ours, theirs = runs.of(scenario, "specon"), runs.of(scenario, "go")
    mean, more = changes(ours, theirs), change_by_job(ours, theirs)
    if mean is None or not more:
        return ()
    makespan, best, worst = makespan_change(ours, theirs), min(more.values()), max(more.values())
    return [
        (f"best job <= -{LEAST_BEST:.0%}", f"{best:+.0%}", best <= -LEAST_BEST),
        (f"mean JCT <= -{LEAST_GAIN:.0%}", f"{mean:+.0%}", mean <= -LEAST_GAIN),
        (f"makespan <= -{LEAST_GAIN:.0%}", f"{makespan:+.0%}", makespan <= -LEAST_GAIN),
        (f"no job slower by > {MOST_SLOWER:.0%}", f"worst job {worst:+.0%}", worst <= MOST_SLOWER),
    ]


@click.command()
@click.option("--scenarios", type=choose.some_of(tuple(SCENARIOS)), default=",".join(SCENARIOS), show_default=True)
@click.option("--operators", type=choose.some_of(OPERATORS), default="go,specon", show_default=True)
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/specon.json"), show_default=True)
def main(*, scenarios: list[str], operators: list[str], runs: int, output: Path) -> None:
    """Compare job completion times from an uneven start under the Go operator and under this one with `specon`.

    Run it on an idle machine. Runs that --output has are not measured again; without anything missing the table and
    the plot are made anew, without a cluster.
    """
    from live.measure import bench  # noqa: PLC0415  what talks to the cluster takes a second to import

    chosen = {name: SCENARIOS[name] for name in scenarios}
    found = read(output)
    bench("Six jobs from an uneven start, on nodes with real CPU", chosen, operators, runs, runs=found, output=output)
    for name in scenarios:
        go = found.of(name, "go")
        for mode in operators:
            if mode != "go" and go and (ours := found.of(name, mode)):
                click.echo(f"{name}: {mode} beside go: {compared(ours, go)}")
        if reached := goals(found, name):
            Console().print(judged(name, reached))


if __name__ == "__main__":
    main()

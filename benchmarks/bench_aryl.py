"""Benchmark: what loans of nodes bring training jobs and cost a model server, on a live cluster (make bench-aryl).

Jobs beside a model server (live/beside_service.py). Those of a scenario (benchmarks/live/aryl/) are the same for
each of

- go: the Go training-operator v1.8.1 and the default scheduler;
- aryl-alone: this operator under its profile `aryl`, and no pool lends;
- aryl: the same, and the idle nodes of the pool are lent to jobs that are marked `loanable`.

Each runs three times; nothing is retried.
"""

from __future__ import annotations

from pathlib import Path

import click

from live import beside_service, choose
from live.lending import goals
from live.results import Goals

OPERATORS = ("go", "aryl-alone", "aryl")
LENDS = "aryl"
SCENARIOS = beside_service.read_scenarios(Path(__file__).parent / "live/aryl")


def reached(results: beside_service.Results, scenario: str) -> Goals:
    """The goals of a scenario; none until each operator has run."""
    found = {mode: results.of(scenario, mode) for mode in OPERATORS}
    if not all(found.values()):
        return ()
    jcts = {mode: results.jct_mean_s(scenario, mode) for mode in OPERATORS}
    return goals(found, jcts, LENDS, [each for each in OPERATORS if each != LENDS])


@click.command()
@click.option("--scenarios", type=choose.some_of(tuple(SCENARIOS)), default=",".join(SCENARIOS), show_default=True)
@click.option("--operators", type=choose.some_of(OPERATORS), default=",".join(OPERATORS), show_default=True)
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/aryl.json"), show_default=True)
def main(*, scenarios: list[str], operators: list[str], runs: int, output: Path) -> None:
    """Compare jobs and a model server under the Go operator, and under `aryl` without loans and with them.

    Run it on an idle machine. Runs that --output has are not measured again; without anything missing the tables and
    the plot are made anew, without a cluster.
    """
    chosen = {name: SCENARIOS[name] for name in scenarios}
    beside_service.compare(chosen, operators, runs, how=beside_service.How((LENDS,)), reached=reached, output=output)


if __name__ == "__main__":
    main()

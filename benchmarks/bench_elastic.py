"""Benchmark: one cluster with many kinds of jobs, beside a model server that lends its nodes (make bench-elastic).

Jobs with deadlines, jobs that may run on lent nodes, jobs that converge early and a wide one, all of them in one
scenario (benchmarks/live/elastic/), beside a model server whose nodes are wanted back once
(live/beside_service.py). Deadlines are parts of what a job takes alone, which is measured first, under the first
operator. The jobs are the same for each of

- go: the Go training-operator v1.8.1 and the default scheduler;
- fixed: this operator under its profile `fixed`, which does as upstream does;
- kips: this operator under its profile `kips`;
- elastic: this operator under its profile `elastic`, which borrows idle nodes of the pool;
- elastic-killed: the same, and the operator is killed every minute.

Each runs three times; nothing is retried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from live import beside_service, choose
from live.lending import Figures
from live.results import Goals, Run, changes, deadlines_met, losers, none_slower

OPERATORS: Final = ("go", "fixed", "kips", "elastic", "elastic-killed")
ELASTIC: Final = "elastic"
LENDING: Final = (ELASTIC, "elastic-killed")
KILLED_EVERY_S: Final = {"elastic-killed": 60.0}
LEAST_GAIN: Final = 0.45
MOST_SLOWER: Final = 0.10
RECALL_S: Final = 20.0
SCENARIOS = beside_service.read_scenarios(Path(__file__).parent / "live/elastic")


def goals(runs: Mapping[str, Sequence[Run]], loans: Sequence[Figures]) -> Goals:
    """What `elastic` should reach, and what it did. `runs`: those of `go` and `elastic`; `loans`: what was seen in the
    latter."""
    ours, theirs = runs[ELASTIC], runs["go"]
    change = changes(ours, theirs)
    assert change is not None
    kept, timed = deadlines_met(ours)
    stops = [sum(run.preempted.values()) for run in loans]
    recalls = [each for run in loans for each in run.recall_s]
    return [
        (f"mean JCT against go <= -{LEAST_GAIN:.0%}", f"{change:+.0%}", change <= -LEAST_GAIN),
        ("all deadlines met", f"{kept} of {timed}", kept == timed),
        ("stops of jobs in a run <= 1", str(max(stops)), max(stops) <= 1),
        (
            f"recall to node free <= {RECALL_S:g} s",
            f"{max(recalls):.1f} s" if recalls else "no recall",
            bool(recalls) and max(recalls) <= RECALL_S and not any(run.recalls_open for run in loans),
        ),
        none_slower(losers(ours, theirs), MOST_SLOWER),
        (
            "jobs that did not finish: 0",
            str(sum(len(run.unfinished) for run in ours)),
            not any(r.unfinished for r in ours),
        ),
    ]


def reached(results: beside_service.Results, scenario: str) -> Goals:
    """The goals of a scenario; none until `go` and `elastic` have run."""
    found = {mode: results.runs.of(scenario, mode) for mode in ("go", ELASTIC)}
    return goals(found, results.of(scenario, ELASTIC)) if all(found.values()) else ()


@click.command()
@click.option("--scenarios", type=choose.some_of(tuple(SCENARIOS)), default=",".join(SCENARIOS), show_default=True)
@click.option("--operators", type=choose.some_of(OPERATORS), default=",".join(OPERATORS), show_default=True)
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/elastic.json"), show_default=True)
def main(*, scenarios: list[str], operators: list[str], runs: int, output: Path) -> None:
    """Compare a cluster of many kinds of jobs under the Go operator, and under `fixed`, `kips` and `elastic`.

    Run it on an idle machine. Runs that --output has are not measured again; without anything missing the tables and
    the plot are made anew, without a cluster.
    """
    chosen, how = {name: SCENARIOS[name] for name in scenarios}, beside_service.How(LENDING, KILLED_EVERY_S)
    beside_service.compare(chosen, operators, runs, how=how, reached=reached, output=output)


if __name__ == "__main__":
    main()

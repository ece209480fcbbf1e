"""Benchmark: deadlines met on a cluster whose CPU is real, beside the Go training-operator (make bench-deadline).

The kind cluster of bench_kips.py, and two scenarios (benchmarks/live/deadline/): `sufficient`, three jobs that
are in time only with more workers than they declare, and `scarce`, six jobs where three fit, the last three urgent.
Deadlines are parts of what a job takes alone, which is measured first, under the first operator. Each of

- go: the Go training-operator v1.8.1 and the default scheduler, in the order of arrival;
- fixed: this operator under its profile `fixed`, which does as upstream does;
- deadline: this operator under its profile `deadline`;
- elastic: this operator under its profile `elastic`, if that is asked for

runs each scenario three times. Nothing is tried again. `allocated_cpu_used` is what the workers' pods used over what
the jobs' running pods requested.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
from rich.console import Console

from live import choose
from live.results import Goals, Runs, deadlines_met, judged, read
from live.scenario import read_all

SCENARIOS = read_all(Path(__file__).parent / "live/deadline")
OPERATORS = ("go", "fixed", "deadline", "elastic")
LEAST_MORE: Final = 0.26
"""So many more of the deadlines of `scarce`, as a part of all, are to be met than under the Go operator."""
LEAST_KEPT: Final = 5 / 6
LEAST_USED: Final = 0.90


def goals(runs: Runs, scenario: str) -> Goals:
    """What `deadline` should reach, and what it did; none until `go` and `deadline` have run."""
    ours, theirs = runs.of(scenario, "deadline"), runs.of(scenario, "go")
    if not ours or not theirs:
        return ()
    (m, n), (m_go, n_go) = deadlines_met(ours), deadlines_met(theirs)
    used = [run.allocated_cpu_used for run in ours if run.allocated_cpu_used is not None]
    share = sum(used) / len(used) if used else 0.0
    cpu = (f"allocated CPU used >= {LEAST_USED:.0%}", f"{share:.0%}", share >= LEAST_USED)
    if scenario == "sufficient":
        return [("all deadlines met", f"{m} of {n}; under go {m_go} of {n_go}", m == n), cpu]
    more, least = m / n - m_go / n_go, min(run.met[0] / run.met[1] for run in ours if run.met is not None)
    return [
        (f"deadlines met beside go: >= +{LEAST_MORE * 100:.0f} points", f"{more * 100:+.0f}", more >= LEAST_MORE),
        ("deadlines met in each run: >= 5 of 6", f"at least {least:.0%}", least >= LEAST_KEPT),
        cpu,
    ]


@click.command()
@click.option("--scenarios", type=choose.some_of(tuple(SCENARIOS)), default=",".join(SCENARIOS), show_default=True)
@click.option("--operators", type=choose.some_of(OPERATORS), default=",".join(OPERATORS[:3]), show_default=True)
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/deadline.json"), show_default=True)
def main(*, scenarios: list[str], operators: list[str], runs: int, output: Path) -> None:
    """Compare deadlines met under the Go operator, and under this one with `fixed` and `deadline`.

    Run it on an idle machine. All eighteen runs take about an hour and a half. Runs that --output has are not measured
    again; without anything missing the table and the plot are made anew, without a cluster.
    """
    from live.measure import bench  # noqa: PLC0415  what talks to the cluster takes a second to import

    chosen = {name: SCENARIOS[name] for name in scenarios}
    found = read(output)
    bench("Deadlines met on three workers with real CPU", chosen, operators, runs, runs=found, output=output)
    for name in scenarios:
        if reached := goals(found, name):
            Console().print(judged(name, reached))


if __name__ == "__main__":
    main()

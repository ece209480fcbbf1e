"""Benchmark: job completion times on a cluster whose CPU is real, beside the Go training-operator (make bench-kips).

A kind cluster of three workers that together offer the machine's cores less what the control plane needs (e2e/
kind-scarce.yaml), so that CPU limits make jobs wait for each other as on a full cluster. Jobs are TFJobs on parameter
servers that train handwritten digits with real TensorFlow. Each scenario (benchmarks/live/kips/) is a list of
jobs with arrival times, the same manifests for each of

- go: the Go training-operator v1.8.1 and the default scheduler: replicas and CPU as declared, to the end;
- fixed: this operator under its profile `fixed`, which does as upstream does;
- kips: this operator under its profile `kips`: replicas of a job side by side, all or none of them, and workers, PS and
  CPU adjusted while they train.

Operators run beside the control plane, where they take nothing from the jobs. A job's completion time (JCT) runs from
its creation to its condition Succeeded, seen here. A job that is not finished after 15 minutes counts with the time it
has waited until then, which is a lower bound, and is named. CPU utilisation is what the pods of the workers
used (their cgroups, sidecars and what is gone included) over what the workers offer, from the first arrival to the end
of the last job.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from live import choose
from live.results import Goals, Job, Run, Runs, changes, judged, losers, none_slower
from live.scenario import Arrival, read_all

__all__ = ["SCENARIOS", "Arrival"]

console = Console(width=None if Console().is_terminal else 140)
SCENARIOS = read_all(Path(__file__).parent / "live/kips")
MODES = ("go", "fixed", "kips")
LEAST_GAIN: Final = 0.60
LEAST_BURST: Final = 0.25
MOST_SLOWER: Final = 0.05


def read(output: Path) -> Runs:
    """Runs of earlier calls, so that parts can be measured one by one."""
    found = Runs()
    for raw in json.loads(output.read_text())["runs"] if output.exists() else ():
        jobs = {name: Job(**job) for name, job in raw["jobs"].items()}
        used = raw.get("allocated_cpu_used")
        number = raw.get("run", 1)
        found.add(Run(raw["scenario"], raw["mode"], number, jobs, raw["makespan_s"], raw["utilisation"], used))
    return found


def write(output: Path, runs: Runs) -> None:
    """By the names that this file has always had."""
    output.parent.mkdir(parents=True, exist_ok=True)
    content = {"runs": [_written(runs.runs[key]) for key in sorted(runs.runs)]}
    output.write_text(json.dumps(content, indent=1) + "\n")


def _written(run: Run) -> dict[str, Any]:
    return {
        "scenario": run.scenario,
        "mode": run.operator,
        "run": run.run,
        "jct_mean_s": round(run.jct_mean_s, 1),
        "jct_max_s": run.jct_max_s,
        "makespan_s": run.makespan_s,
        "utilisation": run.utilisation,
        "allocated_cpu_used": run.allocated_cpu_used,
        "jobs": {name: asdict(job) for name, job in run.jobs.items()},
    }


def goals(runs: Runs) -> Goals:
    """What `kips` should reach, and what it did; none until it and `go` have run all scenarios."""
    changed = {name: changes(runs.of(name, "kips"), runs.of(name, "go")) for name in SCENARIOS}
    known = {name: change for name, change in changed.items() if change is not None}
    if len(known) < len(SCENARIOS):
        return ()
    mean, burst = statistics.mean(known.values()), known["burst"]
    slower = {
        f"{name}/{job}": more
        for name in SCENARIOS
        for job, more in losers(runs.of(name, "kips"), runs.of(name, "go")).items()
    }
    return [
        (f"mean JCT over the scenarios <= -{LEAST_GAIN:.0%}", f"{mean:+.0%}", mean <= -LEAST_GAIN),
        (f"burst <= -{LEAST_BURST:.0%}", f"{burst:+.0%}", burst <= -LEAST_BURST),
        none_slower(slower, MOST_SLOWER),
    ]


def over_all(runs: Runs) -> None:
    """What the modes come to over all scenarios, where each was measured."""
    for mode in MODES[1:]:
        known = [changes(runs.of(name, mode), runs.of(name, "go")) for name in SCENARIOS]
        found = [change for change in known if change is not None]
        if len(found) == len(SCENARIOS):
            console.print(
                f"{mode}: mean JCT {statistics.mean(found):+.0%} over the scenarios, best {min(found):+.0%}, "
                f"worst {max(found):+.0%}"
            )


@click.command()
@click.option("--scenarios", type=choose.some_of(tuple(SCENARIOS)), default=",".join(SCENARIOS), show_default=True)
@click.option("--modes", type=choose.some_of(MODES), default=",".join(MODES), show_default=True)
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/kips.json"), show_default=True)
def main(*, scenarios: list[str], modes: list[str], runs: int, output: Path) -> None:
    """Compare job completion times under the Go operator, and under this one with `fixed` and `kips`.

    Run it on an idle machine: the workers offer its cores, less what the control plane needs. All scenarios take about
    75 minutes a run. Runs that --output has are not measured again; without anything missing the tables and the plot
    are made anew, without a cluster.

    \b
    Example:
      bench_kips.py --scenarios idle --modes go,kips --runs 1
    """
    from live.measure import bench  # noqa: PLC0415  what talks to the cluster takes a second to import

    found, chosen = read(output), {name: SCENARIOS[name] for name in scenarios}
    title = "Job completion times on three workers with real CPU"
    bench(title, chosen, modes, runs, runs=found, output=output, save=write)
    over_all(found)
    if reached := goals(found):
        console.print(judged("all scenarios", reached))


if __name__ == "__main__":
    main()

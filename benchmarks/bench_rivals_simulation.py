"""Pollux' and Sia's policies beside `elastic` and others (make bench-rivals-simulation).

Grounds:

- `Pollux, fixed`: the workloads 1 to 8 of Pollux' authors, 160 jobs in 8 hours on 16 nodes of 4 T4, with the speeds
  that they measured. Jobs train at their requested batch size.
- `Pollux, tuned`: the same with the best batch size in each placement, under every profile. Loads below and above 1
  have each second job of a workload, or further jobs from the next one.
- `types`: the first arrivals of a virtual cluster of Philly, four times as dense, with Gavel's jobs and speeds on V100,
  P100 and K80. A profile knows a job's speed on V100, and of each node the mean speed of its type.
- `ps`: DL2's parameter-server jobs on nodes of 8 CPUs and 2 GPUs.

Each profile knows the true speeds at all sizes, and has the same interval and placement. `any size`: without the rule
that a job at most doubles, which is there to find speeds that are not known. `all served`: also with a cost of a job
without resources that is above what any other job can gain from them. A loser takes over 3 % longer
than under `fixed`. The common mix, where no speed is known beforehand, is in bench_elastic_mix.py.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

import bench_elastic_simulation as elastic_bench
from anchors import POLLUX_COSTS, ROUNDS, traces_dir
from bench_elastic_simulation import POLLUX, Ground, Said, profile_of
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import WORKER, Node, Placement, ReplicaGroup
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.formats import read_csv
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import SpeedModel, TrueSpeed
from elastic_tfjob.simulation.speed_models.catalogue import speed_model_named
from elastic_tfjob.simulation.summary import summarise, with_losers
from elastic_tfjob.simulation.workload import WorkloadJob
from result_table import mean_of, result_table

GAVEL: Final = "anchors/gavel_philly_103959_986jobs.csv.gz"
MARGIN: Final = 0.03
WORKLOADS: Final = 8

# -- Pollux' own ground ------------------------------------------------------------------------------------------------


def pollux_jobs(traces: Path, workload: int, load: float) -> list[WorkloadJob]:
    """The jobs of a workload; for another load fewer of them, or further ones from the next workload."""
    own, more = (read_csv(traces / POLLUX.format((workload + k - 1) % WORKLOADS + 1))[0].jobs for k in range(2))
    if load < 1:
        return list(own[:: round(1 / load)])
    added = more[:: round(1 / (load - 1))] if load > 1 else ()
    return [*own, *(replace(job, key=f"{job.key}-more") for job in added)]


def pollux_ground(traces: Path, model: str, load: float, workloads: Sequence[int]) -> Ground:
    def run(profile: Profile, seed: int) -> RunResult:
        """The workload is the last digit of the seed; further digits are the seed of the run."""
        jobs, nodes = pollux_jobs(traces, seed % 10, load), uniform_cluster(16, 4, 0, 0)
        inputs = SimulationInput(jobs, nodes, speed_model_named(model), costs=POLLUX_COSTS, seed=seed // 10)
        return Simulation(inputs, profile).run()

    pack: Said = {"place": "pack", **ROUNDS}
    told: Said = {**pack, "oracle": True}
    policies: Mapping[str, Said] = {
        "fixed": pack,
        "las": {**pack, "thresholds": str(16 * 3600), "within": "arrival"},
        "optimus": told,
        "hull": told,
        "pollux": told,
        "sia": told,
        "pollux, any size": {**told, "growth": 0},
        "sia, any size": {**told, "growth": 0},
        "sia, all served": {**told, "growth": 0, "unserved": 2.0},
        "elastic": {**told, "pause_s": 30.0, "lend": "none"},
    }
    kind = "tuned" if model == "pollux-tuned" else "fixed"
    return Ground(f"Pollux, {kind}, load {load:g}", policies, run, workloads)


# -- Nodes of several types --------------------------------------------------------------------------------------------

TYPES: Final = {"v100": 4, "p100": 4, "k80": 8}
"""Nodes of 4 GPUs."""
GPUS: Final = 4
JOBS: Final = 160
DENSER: Final = 4.0

Rates = Mapping[int, float]


@cache
def gavel_rates() -> dict[tuple[str, str], dict[int, float]]:
    """Steps per second by number of GPUs, by type of GPU and of job; on several nodes as measured on several."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    source = files("elastic_tfjob.simulation") / "data" / "gavel_isolated_throughputs.csv.gz"
    with source.open("rb") as packed, gzip.open(packed, "rt") as lines:
        for row in csv.DictReader(lines):
            type_, _, apart = row["gpu_type"].partition("_")
            n, rate = int(row["scale_factor"]), float(row["steps_per_s"])
            if rate > 0 and bool(apart) == (n > GPUS):
                found.setdefault((type_, row["job_type"]), {})[n] = rate
    return found


@cache
def mean_speed(type_: str) -> float:
    """The speed of a type of GPU relative to the V100: the geometric mean over jobs."""
    one = {kind: rates[1] for (t, kind), rates in gavel_rates().items() if t == type_}
    return geometric_mean(rate / gavel_rates()["v100", kind][1] for kind, rate in one.items())


@dataclass(frozen=True, slots=True)
class TypedSpeed:
    """The true speed on each type of node. A job is as fast as on its slowest type."""

    total_steps: float
    kind: str

    def rate(self, placement: Placement) -> float:
        names = placement.get(WORKER, ())
        types = {name.partition("-")[0] for name in names}
        # The simulator multiplies by the mean speed of the slowest node.
        slowest = min(types, key=mean_speed)
        rates = (gavel_rates().get((type_, self.kind), {}) for type_ in types)
        return min(rate_with(each, len(names)) for each in rates) / mean_speed(slowest)

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return gavel_rates()["v100", self.kind].get(counts.get(WORKER, 0))


def rate_with(rates: Rates, held: int) -> float:
    return rates.get(max((n for n in rates if n <= held), default=0), 0.0)


def typed_speed(job: WorkloadJob) -> TrueSpeed:
    assert job.total_steps is not None
    return TypedSpeed(job.total_steps, job.model)


def typed_nodes() -> Iterator[Node]:
    each = Resources(accelerators=GPUS)
    for type_, number in TYPES.items():
        for k in range(number):
            yield Node(f"{type_}-{k}", each, each, accelerator_speed=mean_speed(type_))


def types_ground(traces: Path) -> Ground:
    jobs = read_csv(traces / GAVEL)[0].jobs

    def elastic(job: WorkloadJob, start_s: float) -> WorkloadJob:
        most = max(gavel_rates()["v100", job.model])
        group = job.groups[0]
        groups = (ReplicaGroup(WORKER, group.request, group.count, 1, max(most, group.count)),)
        return replace(job, groups=groups, submit_s=(job.submit_s - start_s) / DENSER)

    def run(profile: Profile, seed: int) -> RunResult:
        """The seed is the number of the part of the trace."""
        part = jobs[(seed - 1) * JOBS : seed * JOBS]
        chosen = [elastic(job, part[0].submit_s) for job in part]
        inputs = SimulationInput(
            chosen, list(typed_nodes()), SpeedModel("gavel-types", typed_speed), costs=POLLUX_COSTS
        )
        return Simulation(inputs, profile).run()

    pack: Said = {"place": "pack", "interval_s": 300, "on_change": False}
    told: Said = {**pack, "oracle": True}
    policies: Mapping[str, Said] = {
        "fixed": pack,
        "optimus": told,
        "hull": told,
        "pollux": told,
        "sia": told,
        "sia, all served": {**told, "growth": 0, "unserved": 2.0},
        "elastic": {**told, "pause_s": 30.0, "lend": "none"},
    }
    return Ground("types", policies, run, range(1, 4))


# -- Parameter servers -------------------------------------------------------------------------------------------------


def ps_ground(case: str, world: str) -> Ground:
    ground = elastic_bench.dl2_ground(case, world)
    slot, told, elastic = ground.policies.values()
    free = {**told, "restart_s": 0.0, "growth": 0}
    rivals = {"pollux, any size": free, "sia, any size": free, "sia, all served": {**free, "unserved": 2.0}}
    policies = {"fixed": slot, "optimus": told, "hull": told, **rivals, "elastic": elastic}
    return Ground(f"ps, {case}, {world}", policies, ground.run, [2001, 2002, 2003])


def grounds(traces: Path) -> list[Ground]:
    each, some, seeds = range(1, WORKLOADS + 1), (1, 3, 5), (11, 13, 15, 21, 23, 25)
    found = [
        pollux_ground(traces, "pollux-tuned", 1.0, each),
        pollux_ground(traces, "pollux", 1.0, each),
        *(pollux_ground(traces, "pollux-tuned", load, some) for load in (0.5, 1.5, 2.0)),
        types_ground(traces),
        *(ps_ground(case, world) for world in ("ps", "ps-measured") for case in ("13x30", "24x60")),
    ]
    other = pollux_ground(traces, "pollux-tuned", 1.0, seeds)
    chosen = {name: other.policies[name] for name in ("fixed", "pollux", "elastic")}
    return [*found, replace(other, name="Pollux, tuned, other seeds", policies=chosen)]


def measure(ground: Ground, seed: int, names: Sequence[str]) -> list[dict[str, Any]]:
    policies = {name: said for name, said in ground.policies.items() if name in names or name == "fixed"}
    outcomes = {name: ground.run(profile_of(name.partition(",")[0], said), seed) for name, said in policies.items()}
    rows = []
    for name, outcome in outcomes.items():
        s = with_losers(summarise(outcome, len(outcome.records)), outcome, outcomes["fixed"], MARGIN)
        rows.append(s.as_dict() | {"ground": ground.name, "policy": name, "seed": seed})
    return rows


def table(found: Sequence[dict[str, Any]]) -> Table:
    """Means over seeds; of the worst loser the worst."""
    columns = ("ground", "profile", "mean s", "least..most", "vs elastic", "median", "p95", "p99", "makespan")
    figures = ("rescales/job", "preempted", "slower", "worst", "CPU s")
    shown = result_table("Pollux and Sia beside elastic", (*columns, *figures), words=2)
    for ground in dict.fromkeys(row["ground"] for row in found):
        rows = [row for row in found if row["ground"] == ground]
        by = {name: [row for row in rows if row["policy"] == name] for name in dict.fromkeys(r["policy"] for r in rows)}
        beside = mean_of(by.get("elastic", []), "avg_jct_s")
        for k, (name, each) in enumerate(by.items()):
            jobs, means = mean_of(each, "jobs"), [row["avg_jct_s"] for row in each]
            shown.add_row(
                "" if k else ground,
                name if all(row["finished"] == row["jobs"] for row in each) else f"{name} (unfinished)",
                f"{mean_of(each, 'avg_jct_s'):,.0f}",
                f"{min(means):,.0f}..{max(means):,.0f}",
                f"{mean_of(each, 'avg_jct_s') / beside:.3f}" if beside else "",
                *(f"{mean_of(each, key):,.0f}" for key in ("median_jct_s", "p95_jct_s", "p99_jct_s", "makespan_s")),
                f"{mean_of(each, 'rescales') / jobs:.1f}",
                f"{100 * mean_of(each, 'preempted_jobs') / jobs:.0f} %",
                f"{100 * mean_of(each, 'losers') / jobs:.0f} %" if k else "",
                f"{100 * max(row['worst_loser'] or 0.0 for row in each):+.0f} %" if k else "",
                f"{mean_of(each, 'cpu_s'):.0f}",
            )
        shown.add_section()
    return shown


@click.command()
@click.option("--traces", type=click.Path(path_type=Path))
@click.option("--only", default="", help="Grounds whose name has this in it.")
@click.option("--policies", default="", help="These and `fixed`, separated by a slash; all.")
@click.option("--seeds", default="", help="These seeds, separated by a slash; all.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/rivals-simulation.json"))
def main(*, traces: Path | None, only: str, policies: str, seeds: str, output: Path) -> None:
    chosen = [ground for ground in grounds(traces_dir(traces)) if only in ground.name]
    found: list[dict[str, Any]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    for ground in chosen:
        for seed in map(int, seeds.split("/")) if seeds else ground.seeds:
            found += measure(ground, seed, policies.split("/") if policies else list(ground.policies))
            print(f"{ground.name}: {seed}", file=sys.stderr)
            output.write_text(json.dumps({"runs": found}, indent=1) + "\n")
    Console(width=190).print(table(found))
    print(f"{len(found)} runs: {output}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""`elastic` on a cluster whose nodes an autoscaler adds and removes, beside operators whose pods exist at once.

The jobs are those of mix_workload.py without deadlines and loans, in the speed model ps-cpu. Nodes have 16 CPUs and
cost 0.80 per hour from their launch on, which takes 50 to 90 s; 2 of 100 launches fail; an empty node goes after 15 s.
Grounds: a day with two peaks; bursts from no node; no capacity for an hour; and spot nodes at 0.24 (mean life 4 h,
notice 2 min, 10 of 100 launches fail) beside the others. On the last ground, speed is proportional to the number of
workers, CPU beyond requests has no effect, and no CPU use is known.

`fixed`: pods at their declared sizes, at once, as the training-operator, KubeRay and a plain Job have them. Gangs start
as a whole, which real ones do not: there a part of a gang holds room. `packed`: kube-scheduler fills nodes (scoring
MostAllocated) instead of spreading pods. `consolidated`: the autoscaler removes nodes whose pods fit on others, which
stops jobs; they resume from a checkpoint (one in 10 min). `peak`: `elastic` on as many nodes as `fixed` had at its
peak, all the time. Only `elastic` heeds notices. All rows of a seed have the same jobs, and the same lead time for the
n-th launch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import cos, inf, pi
from pathlib import Path
from random import Random
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from elastic_tfjob.api.scenario import Autoscaling
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.snapshot import WORKER
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import LINEAR, SpeedModel
from elastic_tfjob.simulation.speed_models.cpu import PS_CPU, CpuBound
from elastic_tfjob.simulation.summary import most_at_a_time, summarise, with_losers
from elastic_tfjob.simulation.workload import WorkloadJob
from mix_workload import Mix
from mix_workload import workload as mix
from result_table import mean_of, result_table

HOUR_S: Final = 3600.0
CORES: Final = 16.0
PRICE: Final = 0.80
SPOT_PRICE: Final = 0.24
CHECKPOINT_S: Final = 600.0
COSTS: Final = Costs(rescale_s=1.0, migrate_s=1.0, boot_cpu_s=12.0, checkpoint_interval_s=CHECKPOINT_S)
PACED: Final[Mapping[str, Any]] = {"cooldown_s": 60.0, "interval_s": 60.0, "sample_points": 0}
MARGIN: Final = 0.03
"""A loser takes longer than under `fixed` by more than this."""
NODE: Final[Mapping[str, Any]] = {"name": "node", "cpus": CORES, "memory_gib": 64, "price": PRICE, "fails": 0.02}
LEAD: Final[Mapping[str, Any]] = {"lead_s": {"uniform": [50, 90]}}
SPOT: Final[Mapping[str, Any]] = {
    "name": "spot",
    "price": SPOT_PRICE,
    "fails": 0.1,
    "spot": {"mean_life_s": 4 * HOUR_S, "notice_s": 120},
}


# -- Grounds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ground:
    """`arrivals` gives the times of this many jobs; `shorter` divides their durations. `model`: the true speeds."""

    name: str
    jobs: int
    arrivals: Callable[[int, Random], list[float]]
    templates: Sequence[Mapping[str, Any]] = (NODE,)
    no_capacity: Sequence[tuple[float, float]] = ()
    shorter: float = 1.0
    model: SpeedModel = PS_CPU

    def workload(self, seed: int) -> list[WorkloadJob]:
        rng = Random(f"autoscaling-{self.name}-{seed}")
        jobs = mix(Mix(1.0, self.jobs), seed)
        rng.shuffle(jobs)
        return [
            replace(
                job,
                key=f"job-{k:03}",
                submit_s=at,
                duration_s=(job.duration_s or 0.0) / self.shorter,
                estimated_s=(job.estimated_s or 0.0) / self.shorter,
                deadline_s=None,
                loanable=False,
            )
            for k, (at, job) in enumerate(zip(sorted(self.arrivals(self.jobs, rng)), jobs, strict=True))
        ]

    def autoscaling(self, *, notices: bool, **more: Any) -> Autoscaling:
        templates = [{**NODE, **LEAD, **each} for each in self.templates]
        for each in templates:
            if "spot" in each and not notices:
                each["spot"] = {**each["spot"], "notice_s": 0}
        away = [{"from_s": a, "until_s": b} for a, b in self.no_capacity]
        return Autoscaling.model_validate({"templates": templates, "no_capacity": away, **more})


def two_peaks(number: int, rng: Random) -> list[float]:
    """A day, by thinning: a tenth of the rate at night, the peaks at 10 and 16 o'clock."""

    def rate(hour: float) -> float:
        return 0.1 + sum(max(0.0, cos(pi * (hour - peak) / 6)) ** 2 for peak in (10, 16) if abs(hour - peak) < 3)

    times: list[float] = []
    while len(times) < number:
        hour = rng.uniform(0, 24)
        if rng.random() * 1.2 <= rate(hour):
            times.append(hour * HOUR_S)
    return times


def bursts(number: int, rng: Random) -> list[float]:
    """Four, 6 hours apart, each within a minute."""
    return [6 * HOUR_S * (k % 4) + rng.uniform(0, 60) for k in range(number)]


GROUNDS: Final = (
    Ground("two peaks", 160, two_peaks),
    Ground("bursts from zero", 80, bursts, shorter=3.0),
    Ground("no capacity 10-11 h", 160, two_peaks, no_capacity=[(10 * HOUR_S, 11 * HOUR_S)]),
    Ground("spot", 160, two_peaks, templates=[SPOT, NODE]),
    Ground("two peaks, linear", 160, two_peaks, model=LINEAR),
)


# -- Rows --------------------------------------------------------------------------------------------------------------

BASELINE: Final = "fixed"
ROWS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "fixed": ("fixed", {}),
    "fixed, packed": ("fixed", {}),
    "fixed, consolidated": ("fixed", {"consolidate": True}),
    "fixed, packed, consolidated": ("fixed", {"consolidate": True}),
    "elastic, peak": ("elastic", {}),
    "elastic, orders": ("elastic", {"compact": None}),
    "elastic, orders, compaction": ("elastic", {}),
}
"""The profile of each row, and what its autoscaler has more."""


def run(ground: Ground, name: str, seed: int, peak: int) -> RunResult:
    """`peak`: the nodes of the row without an autoscaler."""
    profile, more = ROWS[name]
    jobs = ground.workload(seed)
    scaling = ground.autoscaling(notices=profile != "fixed", **more)
    if name == "elastic, peak":
        nodes = [replace(node, price=PRICE) for node in uniform_cluster(peak, 0, CORES, 64)]
        inputs = SimulationInput(jobs, nodes, ground.model, COSTS, seed=seed)
    else:
        inputs = SimulationInput(jobs, [], ground.model, COSTS, seed=seed, autoscaling=scaling)
    given: Mapping[str, Any] = PACED if profile == "elastic" else {"place": "best-fit"} if "packed" in name else {}
    return Simulation(inputs, build(profile, parse_profile(profile, given))).run()


def measure(ground: Ground, seed: int, advance: Callable[[], None]) -> list[dict[str, Any]]:
    """One row per policy."""
    jobs = ground.workload(seed)
    outcomes: dict[str, RunResult] = {}
    for name in ROWS:
        peak = most_at_a_time(outcomes[BASELINE].lives) if outcomes else 0
        outcomes[name] = run(ground, name, seed, peak)
        advance()
    rows = []
    for name, outcome in outcomes.items():
        s = with_losers(summarise(outcome, len(jobs)), outcome, outcomes[BASELINE], MARGIN)
        head = {"ground": ground.name, "policy": name, "seed": seed, "worst_job": worst(outcome, outcomes[BASELINE])}
        rows.append({**head, "first_fit_hours": first_fit_hours(jobs, outcome), **bounds(jobs, ground), **s.as_dict()})
    return rows


def worst(outcome: RunResult, beside: RunResult) -> str:
    """The worst loser, and what happened to it."""
    usual = {r.key: r.jct_s for r in beside.records if r.jct_s}
    by = {r.key: r for r in outcome.records if r.jct_s is not None and r.key in usual}
    if not by:
        return ""
    r = max(by.values(), key=lambda r: (r.jct_s or 0.0) / usual[r.key])
    return (
        f"{r.key}: {r.jct_s:,.0f} s instead of {usual[r.key]:,.0f}, waited {r.queue_s:,.0f} s, {r.rescales} rescales, "
        f"{r.preemptions} stops, {r.migrations} moves, {r.lost_s:,.0f} s lost"
    )


# -- Bounds ------------------------------------------------------------------------------------------------------------


def first_fit_hours(jobs: Sequence[WorkloadJob], outcome: RunResult) -> float:
    """Node-hours if the declared sizes of the jobs that this run has not finished were packed anew at each moment,
    first fit by arrival."""
    ends = {r.key: r.finish_s for r in outcome.records if r.finish_s is not None}
    alive = [(job, job.submit_s, ends[job.key]) for job in jobs if job.key in ends]
    times = sorted({at for _, a, b in alive for at in (a, b)})
    hours = 0.0
    for a, b in pairwise(times):
        hours += first_fit([job for job, begins, ends_ in alive if begins <= a < ends_]) * (b - a) / HOUR_S
    return hours


def first_fit(jobs: Sequence[WorkloadJob]) -> int:
    free: list[int] = []
    for job in jobs:
        for group in job.groups:
            for _ in range(group.count):
                want = group.request.cpu_millicores
                k = next((k for k, left in enumerate(free) if left >= want), None)
                if k is None:
                    free.append(round(1000 * CORES))
                    k = len(free) - 1
                free[k] -= want
    return len(free)


def bounds(jobs: Sequence[WorkloadJob], ground: Ground) -> dict[str, float]:
    """No schedule has a lower mean completion time or cost: each job alone at its fastest size, and at the size and
    CPU share with the least CPU per step, on nodes that are full all the time. `declared_cost`: the same at the
    declared sizes with the CPU that they request."""
    fastest, cheapest, declared = [], 0.0, 0.0
    for job in jobs:
        speed = ground.model.true_speed(job)
        bound = speed if isinstance(speed, CpuBound) else None
        least, best = inf, 0.0
        for counts, part in sizes(job):
            cores = {g.type: [part * g.request.cpu_millicores / 1000] * counts[g.type] for g in job.groups}
            rate = bound.pace(cores).steps_per_s if bound is not None else speed.steps_per_s(counts) or 0.0
            if rate > 0 and (bound is not None or part == 1.0):
                least, best = min(least, sum(map(sum, cores.values())) / rate), max(best, rate)
        fastest.append(speed.total_steps / best)
        cheapest += speed.total_steps * least
        declared += (job.duration_s or 0.0) * sum(g.count * g.request.cpu_millicores / 1000 for g in job.groups)
    per_core_s = min(template["price"] for template in ground.templates) / CORES / HOUR_S
    return {
        "least_jct_s": sum(fastest) / len(jobs),
        "least_cost": cheapest * per_core_s,
        "declared_cost": declared * per_core_s,
    }


def sizes(job: WorkloadJob) -> Iterator[tuple[Mapping[str, int], float]]:
    """Sizes within the bounds, and the CPU of a replica relative to its request; it can use twice of it."""
    ps, workers = sorted(job.groups, key=lambda group: group.type == WORKER)
    for p in range(ps.minimum, ps.maximum + 1):
        for w in range(workers.minimum, workers.maximum + 1):
            for part in (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0):
                yield {ps.type: p, workers.type: w}, part


# -- The tables --------------------------------------------------------------------------------------------------------


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Means over seeds; of the worst loser the worst."""
    columns = ("ground", "row", "finished", "mean s", "median", "p95", "wait", "p95", "first step", "p95")
    figures = ("node-h", "first fit", "cost", "per job", "saves", "lost s", "stops", "slower", "worst", "CPU s")
    shown, notes = result_table("Clusters with an autoscaler", (*columns, *figures), words=2), list[str]()
    for ground in dict.fromkeys(row["ground"] for row in found):
        rows = [row for row in found if row["ground"] == ground]
        usual = mean_of([row for row in rows if row["policy"] == BASELINE], "cost_per_job")
        for k, policy in enumerate(dict.fromkeys(row["policy"] for row in rows)):
            each = [row for row in rows if row["policy"] == policy]
            cost, hours = mean_of(each, "cost_per_job"), mean_of(each, "node_hours")
            shown.add_row(
                "" if k else ground,
                policy,
                f"{100 * mean_of(each, 'finished') / mean_of(each, 'jobs'):.0f} %",
                *(f"{mean_of(each, key):,.0f}" for key in ("avg_jct_s", "median_jct_s", "p95_jct_s")),
                *(f"{mean_of(each, key):,.0f}" for key in ("avg_queue_s", "p95_queue_s")),
                *(f"{mean_of(each, key):,.0f}" for key in ("first_step_s", "p95_first_step_s")),
                f"{hours:,.1f}",
                f"{hours / mean_of(each, 'first_fit_hours'):.2f}x",
                f"{mean_of(each, 'cost'):,.2f}",
                f"{cost:,.3f}",
                f"{100 * (1 - cost / usual):+.1f} %" if k and usual else "",
                f"{mean_of(each, 'lost_work_s'):,.0f}",
                f"{mean_of(each, 'preemptions'):,.1f}",
                f"{100 * mean_of(each, 'losers') / mean_of(each, 'jobs'):.0f} %" if k else "",
                f"{100 * max(row['worst_loser'] or 0.0 for row in each):+.0f} %" if k else "",
                f"{mean_of(each, 'cpu_s'):.1f}",
            )
        least = [f"{mean_of(rows, key):,.2f}" for key in ("least_cost", "declared_cost")]
        said = f"no schedule: mean below {mean_of(rows, 'least_jct_s'):,.0f} s, cost below {least[0]}"
        shown.add_section()
        notes.append(f"{ground}: {said}; at declared sizes cost below {least[1]}")
    shown.caption = "\n".join(notes)
    return shown


def goals(found: Sequence[Mapping[str, Any]]) -> Table:
    """By ground and elastic row, the goals that it meets beside `fixed` with the same autoscaler."""
    names = (
        "all finish",
        "first step <= +2 s",
        "cost/job <= -20 %",
        "mean no worse",
        "0 s lost",
        "node-h <= 1.1 first fit",
    )
    shown = result_table("Goals", ("ground", "row", *names), words=2)
    for ground in dict.fromkeys(row["ground"] for row in found):
        rows = [row for row in found if row["ground"] == ground]
        by = {
            policy: [row for row in rows if row["policy"] == policy]
            for policy in dict.fromkeys(r["policy"] for r in rows)
        }
        usual = by[BASELINE]
        for policy, each in by.items():
            if "orders" not in policy:
                continue
            later = mean_of(each, "first_step_s") - mean_of(usual, "first_step_s")
            cost = mean_of(each, "cost_per_job") / mean_of(usual, "cost_per_job") - 1
            mean = mean_of(each, "avg_jct_s") / mean_of(usual, "avg_jct_s") - 1
            lost, packed = mean_of(each, "lost_work_s"), mean_of(each, "node_hours") / mean_of(each, "first_fit_hours")
            done = all(row["finished"] == row["jobs"] for row in each)
            shown.add_row(
                ground,
                policy,
                verdict(done, "yes" if done else "no"),
                verdict(later <= 2, f"{later:+.0f} s"),
                verdict(cost <= -0.2, f"{cost:+.1%}"),
                verdict(mean <= 0, f"{mean:+.1%}"),
                verdict(lost == 0, f"{lost:,.0f} s"),
                verdict(packed <= 1.1, f"{packed:.2f}x"),
            )
    return shown


def verdict(met: bool, figure: str) -> str:
    return figure if met else f"MISSED: {figure}"


@click.command()
@click.option("--seeds", default="11-13", show_default=True, help="The first and the last.")
@click.option("--only", default="", help="Grounds whose name has this in it.")
@click.option("--jobs", type=int, help="Jobs of each ground, for a short try.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/autoscaling.json"))
def main(*, seeds: str, only: str, jobs: int | None, output: Path) -> None:
    first, _, last = seeds.partition("-")
    chosen = [replace(each, jobs=jobs or each.jobs) for each in GROUNDS if only in each.name]
    todo = [(ground, seed) for ground in chosen for seed in range(int(first), int(last or first) + 1)]
    found: list[dict[str, Any]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=len(todo) * len(ROWS))
        for ground, seed in todo:
            bar.update(task, description=f"{ground.name}, seed {seed}")
            found += measure(ground, seed, lambda: bar.advance(task))
            output.write_text(json.dumps({"runs": found}, indent=1) + "\n")
    console = Console(width=200)
    console.print(table(found))
    console.print(goals(found))
    for row in found:
        if row["policy"] != BASELINE:
            console.print(f"{row['ground']}, {row['policy']}, seed {row['seed']}: worst loser {row['worst_job']}")
    print(f"{len(found)} runs: {output}", file=sys.stderr)


if __name__ == "__main__":
    main()

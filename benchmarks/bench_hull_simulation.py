"""`hull` beside fifo, srtf, drf and Optimus, and what no schedule is below, in simulation (make bench-hull-simulation).

DL2's setting (Peng et al., arXiv 1909.06040, and its authors' simulator): jobs of eight models come within slots, each
gets PSs and workers anew at every slot, on nodes of 8 CPUs and 2 accelerators. Two speed models: in `ps` speeds are
Optimus' formula, in `ps-measured` they are a closer fit of what was measured, with residuals drawn per seed. There
Optimus has only the fit of its formula; `hull, fit` has the same, `optimus, told` and `hull` the true speeds.

What is printed is for seeds from 2001 on; choices were made on seeds from 1000 on. Changes are of the mean completion
time over all seeds, relative to Optimus; the interval is 1.96 standard errors of the mean over seeds. The bound
(jct_bounds.py) knows all jobs in advance and leaves placement out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from anchors import DL2, Dl2, dl2_jobs
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.snapshot import PS, WORKER
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import NO_NOISE, Noise
from elastic_tfjob.simulation.result import RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import SpeedModel
from elastic_tfjob.simulation.speed_models.ps import MODELS, PS_FORMULA, ps_measured
from elastic_tfjob.simulation.summary import summarise, with_losers
from elastic_tfjob.simulation.workload import WorkloadJob
from jct_bounds import Kind, Training, least_total_jct
from result_table import result_table

CPUS, ACCELERATORS = 8, 2
TASK_CPUS = 2
"""Of a PS or a worker."""
CASES = {f"{config.nodes}x{config.jobs}": config for config in DL2}
WORLDS = ("ps", "ps-measured")
Settings = Mapping[str, Mapping[str, Any]]
SETTINGS: Settings = {
    "fifo": {},
    "srtf": {},
    "drf": {"on_full": "stop"},
    "optimus": {"on_full": "stop", "per_resource": False, "oracle": True, "repack": False},
    "hull": {"oracle": True},
}
POLICIES = {
    "ps": ("fifo", "srtf", "drf", "optimus", "hull"),
    "ps-measured": ("fifo", "srtf", "drf", "optimus", "optimus, told", "hull, fit", "hull"),
}
FIRST_SEED = 2001
NOISES = ("none", "job", "slot", "steps")
"""Of 20 %: of a job's speed, once per job or anew in each slot, or of the steps that policies are told."""


def speed_model(world: str, seed: int, policy: str) -> SpeedModel:
    """The world as this policy is told of it."""
    if world == "ps":
        return PS_FORMULA
    fit = policy == "optimus" or policy.endswith(", fit")
    return ps_measured(seed=seed, oracle_speed="fit" if fit else "truth")


def noise_named(name: str, slot_s: float) -> Noise:
    return {
        "none": Noise(),
        "job": Noise(speed=0.2),
        "slot": Noise(speed=0.2, speed_every_s=slot_s),
        "steps": Noise(estimate=0.2),
    }[name]


def run(
    config: Dl2, world: str, seed: int, policy: str, settings: Settings = SETTINGS, *, noise: Noise = NO_NOISE
) -> RunResult:
    """`policy`: a name of `settings`, which begins with a profile's, and after a comma what it is told."""
    known, _, _ = policy.partition(",")
    profile = known.split()[0]
    said = {"place": "spread", "interval_s": config.slot_s, "on_change": False, **settings[known]}
    made = build(profile, parse_profile(profile, said))
    nodes = uniform_cluster(config.nodes, ACCELERATORS, CPUS, 64)
    speeds = speed_model(world, seed, policy)
    return Simulation(SimulationInput(dl2_jobs(config, seed), nodes, speeds, noise=noise, seed=seed), made).run()


def bound(config: Dl2, world: str, seed: int, reached: RunResult, attempts: int) -> float:
    """Seconds that no mean completion time is below."""
    jobs, names = dl2_jobs(config, seed), list(MODELS)
    model = speed_model(world, seed, "hull")
    kinds = []
    for name in names:
        job = next((job for job in jobs if job.model == name), None)
        kinds.append(_kind(job, model) if job is not None else Kind([[1.0, 0.0]], [1.0]))
    work = [Training(job.submit_s, job.total_steps or 0.0, names.index(job.model)) for job in jobs]
    times = [record.jct_s for record in reached.records if record.jct_s is not None]
    capacity = (config.nodes * CPUS / TASK_CPUS, float(config.nodes * ACCELERATORS))
    slots = int(reached.last_s // config.slot_s) + 3
    least = least_total_jct(
        work, kinds, capacity, slot_s=config.slot_s, slots=slots, reached_s=sum(times), attempts=attempts
    )
    return least / len(jobs)


def _kind(job: WorkloadJob, model: SpeedModel) -> Kind:
    """All sizes: replicas (each holds as many CPUs), accelerators, and the true speed."""
    groups, speed = {group.type: group for group in job.groups}, model.true_speed(job)
    demand, rates = [], []
    for ps in range(groups[PS].minimum, groups[PS].maximum + 1):
        for workers in range(groups[WORKER].minimum, groups[WORKER].maximum + 1):
            demand.append([float(ps + workers), float(workers * groups[WORKER].request.accelerators)])
            rates.append(speed.steps_per_s({PS: ps, WORKER: workers}) or 0.0)
    return Kind(demand, rates)


def compare(
    case: str,
    world: str,
    seed: int,
    attempts: int,
    *,
    policies: Sequence[str] = (),
    settings: Settings = SETTINGS,
    noise: str = "none",
) -> list[dict[str, Any]]:
    """One row per policy (none: those of this world), and one for the bound, which is of speeds without noise."""
    config = CASES[case]
    drawn = noise_named(noise, config.slot_s)
    outcomes = {
        policy: run(config, world, seed, policy, settings, noise=drawn) for policy in policies or POLICIES[world]
    }
    where = {"case": case, "world": world, "noise": noise, "seed": seed}
    rows: list[dict[str, Any]] = []
    for policy, outcome in outcomes.items():
        s = with_losers(summarise(outcome, config.jobs), outcome, outcomes["optimus"])
        assert s.finished == config.jobs, f"{policy}: not all jobs finished"
        rows.append(
            where
            | {"policy": policy, "jct_mean_s": s.avg_jct_s, "jct_median_s": s.median_jct_s, "jct_p95_s": s.p95_jct_s}
            | {"losers": s.losers, "worst_loser": s.worst_loser, "rescales_per_job": s.rescales / config.jobs}
            | {"run_cpu_s": s.cpu_s}
        )
    if drawn.speed:
        return rows
    least = bound(config, world, seed, outcomes["hull"], attempts)
    assert all(least <= row["jct_mean_s"] * (1 + 1e-9) for row in rows), "a schedule is below the bound"
    return [*rows, where | {"policy": "bound", "jct_mean_s": least}]


def table(rows: Sequence[dict[str, Any]]) -> Table:
    words = ("speed model", "nodes x jobs", "noise", "policy")
    figures = ("mean", "vs optimus", "vs drf", "median", "p95", "slower", "worst")
    title = "Mean completion times in slots, and how they compare"
    shown = result_table(title, (*words, *figures), words=len(words))
    groups: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        groups.setdefault((row["world"], row["case"], row["noise"]), {}).setdefault(row["policy"], []).append(row)
    for (world, case, noise), policies in groups.items():
        slot_s = CASES[case].slot_s
        means = {policy: np.array([row["jct_mean_s"] for row in found]) for policy, found in policies.items()}
        for policy, found in policies.items():
            cells = [f"{means[policy].mean() / slot_s:.2f}", change(means[policy], means["optimus"])]
            cells.append(change(means[policy], means["drf"]))
            if policy == "bound":
                cells += ["-"] * 4
            else:
                cells += [f"{np.mean([row[name] for row in found]) / slot_s:.2f}" for name in TIMES]
                cells.append(f"{np.mean([row['losers'] for row in found]):.1f}")
                cells.append(f"{100 * max(row['worst_loser'] for row in found):+.0f} %")
            shown.add_row(world, case, noise, policy, *cells)
        shown.add_section()
    return shown


TIMES = ("jct_median_s", "jct_p95_s")


def change(times: np.ndarray[Any, np.dtype[np.float64]], base: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """Of the mean, with the interval of the mean of what each seed says."""
    if times is base or (times == base).all():
        return "-"
    each = 100 * (times / base - 1)
    spread = f" +-{1.96 * each.std(ddof=1) / len(each) ** 0.5:.1f}" if len(each) > 1 else ""
    return f"{100 * (times.mean() / base.mean() - 1):+.1f}{spread} %"


def run_all(
    todo: Sequence[tuple[str, str, int]], output: Path, run: Callable[[str, str, int], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The rows of each (case, world, seed); written after each, so that a stopped benchmark leaves them."""
    rows: list[dict[str, Any]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for case, world, seed in bar.track(todo, description="runs"):
            rows += run(case, world, seed)
            output.write_text(json.dumps({"runs": rows}, indent=1) + "\n")
    return rows


def asked(cases: str, worlds: str, first_seed: int, seeds: int) -> list[tuple[str, str, int]]:
    """Each (case, world, seed) of the options."""
    return [
        (case, world, first_seed + k) for world in worlds.split(",") for case in cases.split(",") for k in range(seeds)
    ]


@click.command()
@click.option("--cases", default="13x30,6x10", show_default=True, help=f"Of {', '.join(CASES)}.")
@click.option("--worlds", default=",".join(WORLDS), show_default=True)
@click.option("--first-seed", default=FIRST_SEED, show_default=True)
@click.option("--seeds", default=20, show_default=True)
@click.option("--attempts", default=300, show_default=True, help="Of raising the bound.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/hull-simulation.json"))
def main(*, cases: str, worlds: str, first_seed: int, seeds: int, attempts: int, output: Path) -> None:
    rows = run_all(
        asked(cases, worlds, first_seed, seeds), output, lambda case, world, seed: compare(case, world, seed, attempts)
    )
    Console(width=150).print(table(rows))


if __name__ == "__main__":
    sys.exit(main())

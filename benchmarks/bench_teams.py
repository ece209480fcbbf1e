"""Three teams on one cluster, in simulation (make bench-teams).

The jobs are those of mix_workload.py, without deadlines and loans, on ten nodes of 16 CPUs; ten minutes are between two
checkpoints. The teams have the same weight. `uneven`: `large` submits 70 % of the jobs that come one by one, `small`
30 %, and `bursts` those that come eight at a time. `full`: each team submits a third, four times as fast as the cluster
works at declared sizes, so that all teams ask for their part for hours.

- static, declared: each team has a third of the cluster to itself, and its jobs their declared sizes;
- static, elastic: the same under `elastic`, so that jobs also grow;
- no teams: `elastic` as it is;
- shares by stops: jobs have their declared sizes, and jobs of teams above their share are stopped for others, as Kueue
  does with a cohort;
- shares by shrinking: `elastic` with teams;
- shrinking and stops: the same with `reclaim: stop`.

The slowdown of a team is its mean completion time over that of `static, declared`, and in brackets over that of
`static, elastic` (sharing incentive). A loser is a job that takes over 3 % longer than with `static, declared`. Choices
are made on other seeds than those that are reported.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import Progress

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.steps.teams import TeamRules
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.result import JobRecord, RunResult
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.catalogue import speed_model_named
from elastic_tfjob.simulation.teams import TeamNumbers, jain, static_part, team_numbers
from elastic_tfjob.simulation.workload import WorkloadJob
from mix_workload import CORES, NODES, Mix, workload
from result_table import result_table

LOADS: Final = {"uneven": (0.9, 45), "full": (4.0, 250)}
"""The load and the number of jobs."""
TEAMS: Final = ("large", "small", "bursts")
COSTS: Final = Costs(rescale_s=1.0, migrate_s=1.0, boot_cpu_s=12.0, checkpoint_interval_s=600.0)
PACED: Final[Mapping[str, Any]] = {"lend": "none", "cooldown_s": 60.0, "interval_s": 60.0}
"""As bench_elastic_mix.py."""
MARGIN: Final = 0.03
DECLARED, STATIC, NO_TEAMS, STOPS, SHRINKS, BOTH = ROWS = (
    "static, declared",
    "static, elastic",
    "no teams",
    "shares by stops",
    "shares by shrinking",
    "shrinking and stops",
)


def jobs_of(load: str, seed: int) -> list[WorkloadJob]:
    """The jobs of all teams."""
    rng = random.Random(f"teams-{seed}")
    found = []
    drawn = workload(Mix(*LOADS[load]), seed)
    at_once = Counter(job.submit_s for job in drawn)
    for job in drawn:
        if load == "full":
            team = rng.choice(TEAMS)
        else:
            team = "bursts" if at_once[job.submit_s] > 1 else rng.choices(TEAMS[:2], (7, 3))[0]
        found.append(replace(job, key=f"{team}/{job.key}", deadline_s=None, loanable=False))
    return found


def declared(job: WorkloadJob) -> WorkloadJob:
    """The job with its declared size only."""
    groups = tuple(replace(group, minimum=group.count, maximum=group.count) for group in job.groups)
    return replace(job, groups=groups)


def simulated(jobs: Sequence[WorkloadJob], nodes: Sequence[Any], seed: int, teams: Any, rules: TeamRules) -> RunResult:
    profile = build("elastic", parse_profile("elastic", {**PACED, "teams": teams}))
    model = speed_model_named("ps-cpu")
    return Simulation(SimulationInput(jobs, nodes, model, costs=COSTS, seed=seed, teams=rules), profile).run()


def run(row: str, jobs: Sequence[WorkloadJob], seed: int) -> list[RunResult]:
    """The runs of a row: one, or one of each team."""
    nodes, rules = uniform_cluster(NODES, 0, CORES, 64), TeamRules()
    if row in (DECLARED, STATIC):
        jobs = [declared(job) for job in jobs] if row == DECLARED else jobs
        part = static_part(nodes, 1 / len(TEAMS))
        by_team = [[job for job in jobs if job.key.startswith(f"{team}/")] for team in TEAMS]
        return [simulated(each, part, seed, None, rules) for each in by_team]
    teams = {NO_TEAMS: None, SHRINKS: {}}.get(row, {"reclaim": "stop"})
    return [simulated([declared(job) for job in jobs] if row == STOPS else jobs, nodes, seed, teams, rules)]


def figures(
    row: str, outcomes: Sequence[RunResult], static: Mapping[str, JobRecord], elastic: Mapping[str, JobRecord]
) -> dict[str, Any]:
    records = [record for outcome in outcomes for record in outcome.records]
    teams: list[TeamNumbers] = [each for outcome in outcomes for each in team_numbers(outcome)]
    changes = {
        record.key: record.jct_s / usual - 1
        for record in records
        if record.jct_s is not None and (usual := static[record.key].jct_s)
    }
    jcts = [record.jct_s for record in records if record.jct_s is not None]
    return {
        "row": row,
        "jobs": len(records),
        "finished": len(jcts),
        "mean_jct_s": sum(jcts) / len(jcts),
        "jain": jain(outcomes[0]) if len(outcomes) == 1 else [],
        "losers": sum(change > MARGIN for change in changes.values()),
        "worst_loser": max(changes.values(), default=0.0),
        "worst_loser_key": max(changes, key=lambda key: changes[key], default=""),
        "rescales": sum(record.rescales for record in records),
        "stops": sum(record.preemptions for record in records),
        "lost_steps": sum(record.lost_steps for record in records),
        "lost_s": sum(record.lost_s for record in records),
        "reclaim_lost_s": sum(each.lost_s for each in teams),
        "teams": [
            asdict(each.beside(of_team(static, each.team)))
            | {"alone_elastic": each.beside(of_team(elastic, each.team)).alone if elastic else None}
            for each in teams
        ],
    }


def of_team(records: Mapping[str, JobRecord], team: str) -> list[JobRecord]:
    return [record for key, record in records.items() if key.startswith(f"{team}/")]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def table(found: Sequence[Mapping[str, Any]]) -> Any:
    columns = ("load", "row", "mean s", *(f"{team}: slowdown" for team in TEAMS), "worst slowdown")
    more = (
        "Jain mean",
        "Jain least",
        "below share s",
        "to share s",
        "slower jobs",
        "worst",
        "stops",
        "lost by reclaim s",
    )
    shown = result_table("Three teams", (*columns, *more), words=2)
    for load in dict.fromkeys(each["load"] for each in found):
        for k, row in enumerate(ROWS):
            runs = [each for each in found if each["load"] == load and each["row"] == row]
            by_team = {
                key: {
                    team: [each[key] for one in runs for each in one["teams"] if each["team"] == team] for team in TEAMS
                }
                for key in ("alone", "alone_elastic")
            }
            beside = by_team["alone_elastic"] if row != DECLARED else {}
            fair = [index for one in runs for index in one["jain"]]
            teams = [each for one in runs for each in one["teams"]]
            shown.add_row(
                load if not k else "",
                row,
                f"{mean([one['mean_jct_s'] for one in runs]):,.0f}",
                *(
                    f"{mean(by_team['alone'][team]):.2f}" + (f" ({mean(beside[team]):.2f})" if beside else "")
                    for team in TEAMS
                ),
                f"{max(max(each) for each in by_team['alone'].values()):.2f}",
                f"{mean(fair):.3f}" if fair else "",
                f"{min(fair):.3f}" if fair else "",
                f"{sum(each['below_share_s'] for each in teams) / len(runs):,.0f}",
                f"{mean([each['mean_to_share_s'] for each in teams]):,.0f}",
                f"{sum(one['losers'] for one in runs) / sum(one['jobs'] for one in runs):.0%}",
                f"{max(one['worst_loser'] for one in runs):+.0%}",
                f"{mean([one['stops'] for one in runs]):,.0f}",
                f"{mean([one['reclaim_lost_s'] for one in runs]):,.0f}",
            )
        shown.add_section()
    return shown


@click.command()
@click.option("--seeds", default="11-13", show_default=True, help="The first and the last.")
@click.option("--loads", default=",".join(LOADS), show_default=True)
@click.option("--rows", default="/".join(ROWS), show_default=True, help="The static ones are always run.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/bench/teams.json"))
def main(*, seeds: str, loads: str, rows: str, output: Path) -> None:
    first, _, last = seeds.partition("-")
    todo = [(load, seed) for load in loads.split(",") for seed in range(int(first), int(last or first) + 1)]
    found: list[dict[str, Any]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for load, seed in bar.track(todo, description="runs"):
            work = jobs_of(load, seed)
            by_row: dict[str, dict[str, JobRecord]] = {}
            for row in dict.fromkeys((DECLARED, STATIC, *rows.split("/"))):
                outcomes = run(row, work, seed)
                by_row[row] = {record.key: record for outcome in outcomes for record in outcome.records}
                beside = figures(row, outcomes, by_row[DECLARED], by_row.get(STATIC, {}))
                found.append({"load": load, "seed": seed} | beside)
                output.write_text(json.dumps({"runs": found}, indent=1) + "\n")
    Console(width=200).print(table(found))
    print(f"{len(found)} runs: {output}", file=sys.stderr)


if __name__ == "__main__":
    main()

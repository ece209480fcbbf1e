"""Summaries of runs: their numbers, the tables that `elastic-tfjob simulate` prints, and a lower bound for the mean JCT
(job completion time)."""

import heapq
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, product
from math import inf
from typing import Any, Final, get_args

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from elastic_tfjob.scheduling.places import PlaceName
from elastic_tfjob.scheduling.profiles import ProfileParameters, all_profiles, installed_profiles
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import Node
from elastic_tfjob.simulation.formats import FORMATS
from elastic_tfjob.simulation.memory import memory_numbers
from elastic_tfjob.simulation.result import JobRecord, NodeLife, RunResult
from elastic_tfjob.simulation.speed_models.base import SpeedModel, TrueSpeed
from elastic_tfjob.simulation.speed_models.catalogue import SPEED_MODELS
from elastic_tfjob.simulation.teams import TeamNumbers, jain, team_numbers
from elastic_tfjob.simulation.utilisation import by_cause
from elastic_tfjob.simulation.workload import WorkloadJob
from elastic_tfjob.speed.model import FinishTime

__all__ = ["WORLDS", "least_mean_jct_s", "least_total_s", "print_catalogue", "print_runs", "print_teams"]


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one run. Times are in seconds; utilisations and `deadline_met` are fractions; None means that a
    number is not defined.

    JCTs (job completion times) cover finished jobs. Queueing time, also of finished jobs, is all time in which a job
    held no resources. Utilisation is the share of the cluster that jobs held from the first submission to the last
    finish; `cpu_used` is the share of its CPU that they used (if the speed model gives it). `deadline_met` covers all
    jobs with a deadline. `forecast_error` is the median of |forecast - finish| / (finish - start) over jobs whose
    finish was forecast when they started; `forecast_within` is the share of them that finished inside the forecast's 90
    % interval. `cpu_s` is the CPU time of the run's process, the only number that differs between repeated runs.

    `tardiness_s` is the mean lateness over finished jobs with a deadline. `wasted_cpu` is the share of the CPU held
    that was not used. `losers` is the number of jobs with a completion time more than 1 % longer than under the first
    profile (same seed), and `worst_loser` the largest relative increase; both are None for the first profile itself.
    `changes` is the number of changes in plans, by cause. `calibration` compares speeds, by cause and for `all`
    changes: over changes after which the job trained for a minute or more, it has the median of |measured / expected
    speed - 1| (`error`), the median of measured / expected (`ratio`) and their `count`. No schedule
    has a mean JCT below `jct_lower_bound_s` (see least_mean_jct_s; None if it is unknown, or if not all jobs finished).
    `preempted_jobs` is the number of jobs stopped at least once, `lost_work_s` the training time of the steps that were
    lost. `interruptions` counts jobs on nodes that were taken away with notice, once for each job and node, by outcome:
    moved, shrunk, saved, lost.

    With an inference pool: `reclaim_preemptions` is the number of preemptions for the return of a node, `scaled_in` the
    number of jobs that shrank for it instead; `loaned_node_hours` are the node-hours lent, `loaned_used_hours` those
    with jobs on the node; `unmet_inference` are the node-hours that the pool waited for nodes that it wanted back, and
    `reclaim_latency_s` is the wait in seconds per returned node.

    With an autoscaler, or nodes that have a price: `first_step_s` is the mean time from the submission to the first
    step; `node_hours` and `cost` count nodes from their launch to their end, `cost_per_job` is per finished job and
    `cost_per_1000_steps` per 1,000 steps of finished jobs; `nodes_added` are the launched nodes, `most_nodes` the most
    at a time; `failed_orders` are orders without a node in time; `taken_away` are the nodes that the cloud took away,
    `taken_with_pods` those of them with pods. `lost_steps` had to be done again. Utilisation is the share of what these
    nodes had.

    Where the memory of parameter servers grows: `memory_kills` and `memory_raises` count kills by the kernel and raises
    of limits over all jobs, `memory_failed` the jobs that failed after kills. `memory_held_by_used` is the memory that
    parameter servers asked for by what they used.

    With teams: `teams` has the numbers of each; `jain` is Jain's index of service per weight in hours in which each
    team asked for at least its part of the cluster, mean and least over these hours.
    """

    profile: str
    seed: int
    jobs: int
    finished: int
    avg_jct_s: float | None
    median_jct_s: float | None
    p99_jct_s: float | None
    avg_queue_s: float | None
    makespan_s: float | None
    gpu_utilisation: float | None
    cpu_utilisation: float | None
    cpu_used: float | None
    deadline_met: float | None
    forecast_error: float | None
    forecast_within: float | None
    rescales: int
    undone: int
    preemptions: int
    migrations: int
    rounds: int
    cpu_s: float
    oracle: bool
    partial: bool
    p95_jct_s: float | None = None
    tardiness_s: float | None = None
    wasted_cpu: float | None = None
    jct_lower_bound_s: float | None = None
    losers: int | None = None
    worst_loser: float | None = None
    changes: Mapping[str, int] = field(default_factory=dict)
    calibration: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    preempted_jobs: int = 0
    lost_work_s: float = 0.0
    interruptions: Mapping[str, int] = field(default_factory=dict)
    reclaim_preemptions: int | None = None
    scaled_in: int | None = None
    loaned_node_hours: float | None = None
    loaned_used_hours: float | None = None
    unmet_inference: float | None = None
    reclaim_latency_s: float | None = None
    median_queue_s: float | None = None
    p95_queue_s: float | None = None
    first_step_s: float | None = None
    p95_first_step_s: float | None = None
    lost_steps: float | None = None
    node_hours: float | None = None
    cost: float | None = None
    cost_per_job: float | None = None
    cost_per_1000_steps: float | None = None
    nodes_added: int | None = None
    most_nodes: int | None = None
    failed_launches: int | None = None
    failed_orders: int | None = None
    taken_away: int | None = None
    taken_with_pods: int | None = None
    memory_kills: int | None = None
    memory_raises: int | None = None
    memory_failed: int | None = None
    memory_held_by_used: float | None = None
    teams: tuple[TeamNumbers, ...] = ()
    jain: float | None = None
    least_jain: float | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def summarise(outcome: RunResult, jobs: int) -> Summary:
    """The summary of one run on a workload of `jobs` jobs."""
    records = outcome.records
    done = [r for r in records if r.jct_s is not None]
    jcts = np.array([r.jct_s for r in done])
    makespan = outcome.last_s - outcome.first_s
    errors, within = [], []
    for r in done:
        if r.finish_s is not None and r.start_s is not None and (f := forecast_of(r)) is not None:
            errors.append(abs(f.expected_s - r.finish_s) / max(r.finish_s - r.start_s, 1e-9))
            within.append(f.earliest_s - 1e-6 <= r.finish_s <= f.latest_s + 1e-6)
    late = [max(0.0, r.finish_s - r.deadline_s) for r in records if r.finish_s is not None and r.deadline_s is not None]
    with_deadline = [r for r in records if r.deadline_s is not None]
    accelerator_s, millicore_s = outcome.accelerator_capacity * makespan, outcome.cpu_capacity_millicores * makespan
    if outcome.lives:
        accelerator_s = sum(life.capacity.accelerators * (life.until_s - life.from_s) for life in outcome.lives)
        millicore_s = sum(life.capacity.cpu_millicores * (life.until_s - life.from_s) for life in outcome.lives)
    return Summary(
        profile=outcome.profile,
        seed=outcome.seed,
        jobs=jobs,
        finished=len(done),
        avg_jct_s=float(jcts.mean()) if done else None,
        median_jct_s=float(np.median(jcts)) if done else None,
        p99_jct_s=float(np.percentile(jcts, 99)) if done else None,
        avg_queue_s=float(np.mean([r.queue_s for r in done])) if done else None,
        makespan_s=makespan if done else None,
        gpu_utilisation=_share(outcome.held_accelerator_s, accelerator_s),
        cpu_utilisation=_share(outcome.held_millicore_s, millicore_s),
        cpu_used=_share(outcome.used_millicore_s or 0.0, millicore_s),
        forecast_error=float(np.median(errors)) if errors else None,
        forecast_within=sum(within) / len(within) if within else None,
        deadline_met=sum(map(met, with_deadline)) / len(with_deadline) if with_deadline else None,
        rescales=sum(r.rescales for r in records),
        undone=sum(r.undone for r in records),
        preemptions=sum(r.preemptions for r in records),
        migrations=sum(r.migrations for r in records),
        rounds=outcome.rounds,
        cpu_s=round(outcome.cpu_s, 3),
        oracle=outcome.oracle,
        partial=outcome.partial,
        p95_jct_s=float(np.percentile(jcts, 95)) if done else None,
        tardiness_s=float(np.mean(late)) if late else None,
        wasted_cpu=_wasted(outcome),
        changes=dict(sorted(outcome.changes.items())),
        calibration={cause: asdict(found) for cause, found in by_cause(outcome.compared).items()},
        preempted_jobs=sum(r.preemptions > 0 for r in records),
        lost_work_s=sum(r.lost_s for r in records),
        interruptions=dict(sorted(outcome.interruptions.items())),
        teams=tuple(team_numbers(outcome)),
        jain=sum(fair) / len(fair) if (fair := jain(outcome)) else None,
        least_jain=min(fair, default=None),
        **_of_loans(outcome),
        **_of_nodes(outcome, done),
        **memory_numbers(records),
    )


def _of_loans(outcome: RunResult) -> dict[str, Any]:
    if not outcome.pool:
        return {}
    return {
        "reclaim_preemptions": outcome.changes["reclaim"],
        "scaled_in": outcome.scaled_in,
        "loaned_node_hours": outcome.loaned_s / 3600,
        "loaned_used_hours": outcome.loaned_used_s / 3600,
        "unmet_inference": outcome.unmet_s / 3600,
        "reclaim_latency_s": outcome.unmet_s / outcome.returned if outcome.returned else None,
    }


def _of_nodes(outcome: RunResult, done: Sequence[JobRecord]) -> dict[str, Any]:
    if not outcome.lives and outcome.added is None:
        return {}
    waits = [r.queue_s for r in done]
    first_steps = [r.first_step_s - r.submit_s for r in outcome.records if r.first_step_s is not None]
    hours = [(life.until_s - life.from_s) / 3600 for life in outcome.lives]
    cost = sum(each * life.price for each, life in zip(hours, outcome.lives, strict=True))
    steps = sum(r.steps for r in done)
    found: dict[str, Any] = {
        "median_queue_s": float(np.median(waits)) if waits else None,
        "p95_queue_s": float(np.percentile(waits, 95)) if waits else None,
        "first_step_s": float(np.mean(first_steps)) if first_steps else None,
        "p95_first_step_s": float(np.percentile(first_steps, 95)) if first_steps else None,
        "lost_steps": sum(r.lost_steps for r in outcome.records),
        "node_hours": sum(hours),
        "cost": cost,
        "cost_per_job": cost / len(done) if done else None,
        "cost_per_1000_steps": 1000 * cost / steps if steps else None,
        "most_nodes": most_at_a_time(outcome.lives),
    }
    if outcome.added is not None:
        found |= {
            "nodes_added": outcome.added,
            "failed_launches": outcome.failed_launches,
            "failed_orders": outcome.failed_orders,
            "taken_away": outcome.taken_away,
            "taken_with_pods": outcome.taken_with_pods,
        }
    return found


def over_time(lives: Iterable[NodeLife], amount: Callable[[NodeLife], int] = lambda life: 1) -> list[tuple[float, int]]:
    """The sum of this amount over all nodes, launched ones included, from each time (seconds) on; by default their
    number."""
    changes: Counter[float] = Counter()
    for life in lives:
        changes[life.from_s] += amount(life)
        changes[life.until_s] -= amount(life)
    times = sorted(changes)
    return list(zip(times, accumulate(changes[at] for at in times), strict=True))


def most_at_a_time(lives: Iterable[NodeLife], amount: Callable[[NodeLife], int] = lambda life: 1) -> int:
    """The largest sum of this amount at any time."""
    return max((total for _, total in over_time(lives, amount)), default=0)


LOSES = 0.01
"""A job counts as a loser if its completion time is longer by more than this fraction."""


def with_losers(summary: Summary, outcome: RunResult, beside: RunResult, loses: float = LOSES) -> Summary:
    """The summary of `outcome` with the losers: the jobs that take longer than in `beside` by more than the fraction
    `loses`."""
    usual = {r.key: r.jct_s for r in beside.records if r.jct_s}
    more = [r.jct_s / usual[r.key] - 1 for r in outcome.records if r.jct_s is not None and r.key in usual]
    return replace(summary, losers=sum(each > loses for each in more), worst_loser=max(more, default=None))


def beside_the_first(summaries: Sequence[Summary], outcomes: Sequence[RunResult]) -> list[Summary]:
    """The summaries with the losers compared with the first profile of the same seed."""
    first: dict[int, RunResult] = {}
    return [
        summary
        if first.setdefault(outcome.seed, outcome) is outcome
        else with_losers(summary, outcome, first[outcome.seed])
        for summary, outcome in zip(summaries, outcomes, strict=True)
    ]


def _wasted(outcome: RunResult) -> float | None:
    if outcome.used_millicore_s is None or outcome.held_millicore_s <= 0:
        return None
    return max(0.0, 1 - outcome.used_millicore_s / outcome.held_millicore_s)


def forecast_of(record: JobRecord) -> FinishTime | None:
    """The finish time forecast when the job started; None if there was no forecast."""
    found = record.forecast.finish if record.forecast is not None else None
    return found if found is not None and found.expected_s < inf else None


def met(record: JobRecord) -> bool:
    """Whether the job finished by its deadline."""
    return record.deadline_s is not None and record.finish_s is not None and record.finish_s <= record.deadline_s


def _share(used: float, all_: float) -> float | None:
    """The fraction `used / all_`; None if the resource does not exist or was never used."""
    return used / all_ if all_ > 0 and used > 0 else None


COLUMNS = (
    *("profile", "seed", "job_id", "submit_s", "start_s", "finish_s", "jct_s", "queue_s", "executed_s"),
    *("preemptions", "rescales", "migrations", "deadline_s", "deadline_met", "forecast_s"),
    *("memory_kills", "memory_raises"),
)


def job_rows(outcome: RunResult) -> Sequence[tuple[object, ...]]:
    """One row per job in the order of COLUMNS."""
    return [
        (
            *(
                outcome.profile,
                outcome.seed,
                r.key,
                r.submit_s,
                r.start_s,
                r.finish_s,
                r.jct_s,
                r.queue_s,
                r.executed_s,
            ),
            *(r.preemptions, r.rescales, r.migrations, r.deadline_s, None if r.deadline_s is None else met(r)),
            None if (f := forecast_of(r)) is None else f.expected_s,
            *((r.memory_kills, r.memory_raises) if r.ps_used_byte_s else (None, None)),
        )
        for r in outcome.records
    ]


# -- The output of `elastic-tfjob simulate`: the list of profiles and parameters, and the table of runs ----------------

PIPE_WIDTH = 120
"""Line width in characters if the output is not a terminal."""


def print_catalogue() -> None:
    """Print the profiles and their parameters, speed models, placements and formats."""
    common = ProfileParameters.model_fields
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    table = Table(title="Parameters for --set PROFILE.PARAM=VALUE", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("profile")
    table.add_column("parameter", no_wrap=True)
    table.add_column("default")
    table.add_column("meaning")
    for parameter, info in common.items():
        table.add_row("(all)", parameter, _default(info), info.description)
    for name, model in all_profiles().items():
        table.add_section()
        table.add_row(name, "", "", (model.__doc__ or "").strip())
        for parameter, info in model.model_fields.items():
            if parameter not in common or _default(info) != _default(common[parameter]):
                table.add_row("", parameter, _default(info), info.description)
    console.print(table)
    for name, package in installed_profiles().packages.items():
        console.print(f"Profile {name} is from package {package}.", markup=False)
    console.print(f"Speed models: {', '.join(SPEED_MODELS)}.  Placements: {', '.join(get_args(PlaceName))}.")
    for format_ in FORMATS.values():
        optional = f"; optional {', '.join(format_.optional)}" if format_.optional else ""
        console.print(f"Format {format_.name}: {', '.join(format_.required)}{optional}", soft_wrap=True)


def print_runs(summaries: Sequence[Summary], seeds: bool) -> None:
    """Print one row per run, or one column per run if the terminal is too narrow. Columns without a value in any run
    are omitted."""
    headings = (
        *("finished", "JCT s", "median s", "p95 s", "p99 s", "queue s", "makespan s", "GPU", "CPU", "CPU used"),
        *("wasted", "in time", "late s", "losers", "worst", "rescales", "preempted", "migrated", "jobs/CPU-s"),
        *("p95 queue s", "first step s", "node-h", "most nodes", "cost", "cost/job", "lost steps", "failed orders"),
        *("kills", "raises"),
    )
    rows = [(_name(s, seeds), *_numbers(s)) for s in summaries]
    columns = [column for column in zip(("profile", *headings), *rows, strict=True) if set(column[1:]) - {"-"}]
    _print_fitting(columns)
    if bounds := {s.seed: s.jct_lower_bound_s for s in summaries if s.jct_lower_bound_s is not None}:
        least = _seconds(sum(bounds.values()) / len(bounds))
        of = f", mean of {len(bounds)} seeds" if len(bounds) > 1 else ""
        click.echo(f"Lower bound: no schedule of these jobs has a mean JCT below {least} s{of}")
    if any(s.oracle for s in summaries):
        click.echo("* with parameter oracle: the profile knew the true durations and speeds")


def print_teams(summaries: Sequence[Summary], seeds: bool) -> None:
    """Print a table of the teams of each run, and Jain's index of each run. Nothing where no run has teams."""
    headings = (
        *("team", "weight", "finished", "JCT s", "p95 JCT s", "wait s", "p95 wait s", "below share s", "to share s"),
        *("taken", "lost s", "vs alone"),
    )
    for s in summaries:
        rows = [
            (
                each.team or "(none)",
                f"{each.weight:g}",
                f"{each.finished:,}/{each.jobs:,}",
                *map(_seconds, (each.mean_jct_s, each.p95_jct_s, each.mean_wait_s, each.p95_wait_s)),
                *map(_seconds, (each.below_share_s, each.mean_to_share_s)),
                ", ".join(f"{n} {how}" for how, n in each.reclaimed.items()) or "-",
                _seconds(each.lost_s),
                "-" if each.alone is None else f"{each.alone:.2f}",
            )
            for each in s.teams
        ]
        if rows:
            columns = zip(headings, *rows, strict=True)
            click.echo(f"Teams under {_name(s, seeds)}:")
            _print_fitting([column for column in columns if set(column[1:]) - {"-"}])
    for s in summaries:
        if s.jain is not None:
            click.echo(
                f"{_name(s, seeds)}: Jain's index of service per weight in hours of full demand: {s.jain:.3f}, "
                f"least {s.least_jain:.3f}"
            )


def _print_fitting(columns: Sequence[tuple[str, ...]]) -> None:
    """Print the columns, each with its heading, within the width of the terminal."""
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH, highlight=False)
    for cells in _fitting(columns, console.width):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for k, heading in enumerate(cells[0]):
            table.add_column(heading, justify="right" if k else "left", no_wrap=True)
        for row in cells[1:]:
            table.add_row(*row)
        console.print(table)


def _fitting(columns: Sequence[tuple[str, ...]], width: int) -> list[list[tuple[str, ...]]]:
    """Tables, as lists of rows, that show these columns in at most `width` characters: one table with a row per run, or
    else tables with a column per run, as many tables as needed."""
    if not columns:
        return []
    if _width(columns) <= width:
        return [list(zip(*columns, strict=True))]
    names, *runs = zip(*columns, strict=True)
    parts: list[list[tuple[str, ...]]] = [[names]]
    for run in runs:
        if len(parts[-1]) > 1 and _width([*parts[-1], run]) > width:
            parts.append([names])
        parts[-1].append(run)
    return [list(zip(*part, strict=True)) for part in parts]


def _width(columns: Sequence[tuple[str, ...]]) -> int:
    """The width of the table as rich draws it: a space on both sides of each value, except at the edges."""
    return sum(max(map(len, column)) + 3 for column in columns) - 1


def _name(s: Summary, seeds: bool) -> str:
    return (
        s.profile + (f" #{s.seed}" if seeds else "") + (" *" if s.oracle else "") + (" (partial)" if s.partial else "")
    )


def _numbers(s: Summary) -> tuple[str, ...]:
    return (
        f"{s.finished:,}/{s.jobs:,}",
        *(_seconds(v) for v in (s.avg_jct_s, s.median_jct_s, s.p95_jct_s, s.p99_jct_s)),
        *(_seconds(v) for v in (s.avg_queue_s, s.makespan_s)),
        *(_percent(v) for v in (s.gpu_utilisation, s.cpu_utilisation, s.cpu_used, s.wasted_cpu, s.deadline_met)),
        *(_seconds(s.tardiness_s), "-" if s.losers is None else f"{s.losers:,}", _percent(s.worst_loser)),
        *(f"{v:,}" for v in (s.rescales, s.preemptions, s.migrations)),
        f"{s.finished / s.cpu_s:,.0f}" if s.cpu_s else "-",
        *(_seconds(v) for v in (s.p95_queue_s, s.first_step_s)),
        "-" if s.node_hours is None else f"{s.node_hours:,.1f}",
        _seconds(s.most_nodes),
        *("-" if v is None else f"{v:,.2f}" for v in (s.cost, s.cost_per_job)),
        *(_seconds(v) for v in (s.lost_steps, s.failed_orders, s.memory_kills, s.memory_raises)),
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _default(info: Any) -> str:
    """The default of a parameter (a FieldInfo of pydantic) in words. The factory of an installed profile may fail."""
    if info.is_required():
        return "(required)"
    try:
        value = info.get_default(call_default_factory=True, validated_data={})
    except Exception as error:
        return f"({type(error).__name__})"
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(f"{v:g}" for v in value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)


# -- A lower bound for the mean job completion time of any schedule, even one with full knowledge ----------------------
# For each resource, a job uses at least its number of steps times the smallest amount that any of its sizes holds per
# step. If the whole cluster is one machine that runs one job at a time, the mean completion time is smallest when the
# job with the shortest remaining processing time goes first (Schrage, 1968); no schedule of the real cluster is better
# than this machine. Also, no job ends sooner than alone at its fastest size. Pauses, restarts and placement only add to
# both.

WORLDS: Final = frozenset({"fixed", "linear", "elasticflow", "ps", "ps-measured"})
"""Speed models in which a job's speed depends on its size alone."""
# The maximum number of sizes of a job. Jobs with more sizes have no bound.
_MOST_SIZES: Final = 20_000

Areas = tuple[float, float, float]
"""The smallest resource-seconds of a step: CPU (millicores), memory (bytes), accelerators, each times seconds."""


def least_mean_jct_s(jobs: Sequence[WorkloadJob], nodes: Iterable[Node], speed_model: SpeedModel) -> float | None:
    """A lower bound for the mean job completion time, in seconds. None if speeds depend on more than size, if there are
    no jobs, or if a job has no size at which it runs. `nodes`: all nodes that jobs may ever use."""
    if speed_model.name not in WORLDS or not jobs:
        return None
    each = [node.capacity for node in nodes]
    capacity = [
        float(sum(values))
        for values in zip(*((c.cpu_millicores, c.memory_bytes, c.accelerators) for c in each), strict=True)
    ]
    found: dict[tuple[object, ...], tuple[float, Areas] | None] = {}
    alone, areas = 0.0, list[Areas]()
    for job in jobs:
        speed = speed_model.true_speed(job)
        kind = (job.model, job.batch_size, job.groups)
        if kind not in found:
            found[kind] = _cheapest(job, speed, capacity)
        cheapest = found[kind]
        if cheapest is None:
            return None
        rate, per_step = cheapest
        alone += speed.total_steps / rate
        areas.append(tuple(speed.total_steps * area for area in per_step))  # type: ignore[arg-type]
    arrivals = [job.submit_s for job in jobs]
    least = max(
        (least_total_s(arrivals, [area[k] / whole for area in areas]) for k, whole in enumerate(capacity) if whole > 0),
        default=0.0,
    )
    return max(least, alone) / len(jobs)


def _cheapest(job: WorkloadJob, speed: TrueSpeed, capacity: Sequence[float]) -> tuple[float, Areas] | None:
    """The fastest rate, and the smallest resource-seconds of a step for each resource, over all sizes that fit the
    cluster. None if no size runs."""
    fastest, least = 0.0, [inf, inf, inf]
    for size, held in _sizes(job):
        demand = (held.cpu_millicores, held.memory_bytes, held.accelerators)
        if any(part > whole for part, whole in zip(demand, capacity, strict=True)):
            continue
        if (rate := speed.rate(size)) > 0:
            fastest = max(fastest, rate)
            least = [min(before, part / rate) for before, part in zip(least, demand, strict=True)]
    return (fastest, (least[0], least[1], least[2])) if fastest else None


def _sizes(job: WorkloadJob) -> Iterator[tuple[dict[str, tuple[str, ...]], Resources]]:
    """Each size, as a placement on one node, with the resources that it holds. Empty if there are more than _MOST_SIZES
    sizes."""
    ranges = [range(group.minimum, group.maximum + 1) for group in job.groups]
    number = 1
    for each in ranges:
        number *= len(each)
    for counts in product(*ranges) if number <= _MOST_SIZES else ():
        held = Resources()
        for group, count in zip(job.groups, counts, strict=True):
            held = held.plus(group.request.times(count))
        yield {group.type: ("",) * count for group, count in zip(job.groups, counts, strict=True)}, held


def least_total_s(arrivals: Sequence[float], lengths: Sequence[float]) -> float:
    """The sum of completion times on one machine that runs the job with the least remaining work first. No other order
    has a smaller sum."""
    total, now = -sum(arrivals), 0.0
    left: list[float] = []
    for arrival, length in [*sorted(zip(arrivals, lengths, strict=True)), (inf, 0.0)]:
        while left and now < arrival:
            if now + left[0] > arrival:
                heapq.heapreplace(left, left[0] - (arrival - now))
                now = arrival
            else:
                now += heapq.heappop(left)
                total += now
        now = max(now, arrival)
        heapq.heappush(left, length)
    return total

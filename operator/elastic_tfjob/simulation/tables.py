"""What `elastic-tfjob simulate` prints: what may be set, and the numbers of runs."""

import os
import sys
from collections.abc import Sequence
from typing import get_args

import click
from rich import box
from rich.console import Console
from rich.table import Table

from elastic_tfjob.scheduling.profiles import PROFILES, ProfileParameters
from elastic_tfjob.scheduling.stages.place.catalogue import PlaceName
from elastic_tfjob.simulation.formats import FORMATS
from elastic_tfjob.simulation.speed_models.catalogue import SPEED_MODELS
from elastic_tfjob.simulation.summary import Summary

__all__ = ["print_catalogue", "print_runs"]

PIPE_WIDTH = 120
"""Characters of a line where there is no terminal."""


def print_catalogue() -> None:
    """Profiles and their parameters, speed models, placements and formats."""
    common = ProfileParameters.model_fields
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    table = Table(title="What --set PROFILE.PARAM=VALUE may say", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("profile")
    table.add_column("parameter", no_wrap=True)
    table.add_column("default")
    table.add_column("meaning")
    for parameter, info in common.items():
        table.add_row("(every one)", parameter, _default(info.default), info.description)
    for name, model in PROFILES.items():
        table.add_section()
        table.add_row(name, "", "", (model.__doc__ or "").strip())
        for parameter, info in model.model_fields.items():
            if parameter not in common or info.default != common[parameter].default:
                table.add_row("", parameter, _default(info.default), info.description)
    console.print(table)
    console.print(f"Speed models: {', '.join(SPEED_MODELS)}.  Placements: {', '.join(get_args(PlaceName))}.")
    for format_ in FORMATS.values():
        optional = f"; optional {', '.join(format_.optional)}" if format_.optional else ""
        console.print(f"Format {format_.name}: {', '.join(format_.required)}{optional}", soft_wrap=True)


def print_runs(summaries: Sequence[Summary], seeds: bool) -> None:
    """One row per run, or one column where the terminal is too narrow. Numbers that no run has are left out."""
    headings = (
        *("finished", "JCT s", "median s", "p95 s", "p99 s", "queue s", "makespan s", "GPU", "CPU", "CPU used"),
        *("wasted", "in time", "late s", "losers", "worst", "rescales", "preempted", "migrated", "jobs/CPU-s"),
    )
    rows = [(_name(s, seeds), *_numbers(s)) for s in summaries]
    columns = [column for column in zip(("profile", *headings), *rows, strict=True) if set(column[1:]) - {"-"}]
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH, highlight=False)
    for cells in _fitting(columns, console.width):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for k, heading in enumerate(cells[0]):
            table.add_column(heading, justify="right" if k else "left", no_wrap=True)
        for row in cells[1:]:
            table.add_row(*row)
        console.print(table)
    if bounds := {s.seed: s.bound for s in summaries if s.bound is not None}:
        least = _seconds(sum(bounds.values()) / len(bounds))
        of = f", mean of {len(bounds)} seeds" if len(bounds) > 1 else ""
        click.echo(f"bound: no schedule of these jobs has a mean JCT below {least} s{of}")
    if any(s.oracle for s in summaries):
        click.echo("* with the oracle: the policy was told true durations and speeds")


def _fitting(columns: Sequence[tuple[str, ...]], width: int) -> list[list[tuple[str, ...]]]:
    """Tables, row by row, that show these columns in so many characters: one with a row per run; or with a column per
    run, and several of these where there are many runs."""
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
    """As rich lays them out: a space on both sides of each value, but for the edges."""
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
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _default(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(f"{v:g}" for v in value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)

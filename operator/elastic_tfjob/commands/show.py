"""Rows as tables for a terminal. Pure except for writing."""

import io
import re
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import click
import orjson
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.model.target import words
from elastic_tfjob.controller.query.rows.jobs import JobRow

__all__ = [
    "ago",
    "as_json",
    "duration",
    "following",
    "harmless",
    "job_cells",
    "job_head",
    "number",
    "plain",
    "size",
    "table",
    "waiting",
]

_LEAST_LAST: Final = 24
"""Least terminal columns for a readable sentence."""
_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]{0,32}m)")
_COLOURS: Mapping[str, str] = {
    "Running": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Waiting": "yellow",
    "Stopping": "yellow",
    "Restarting": "yellow",
    "Rescaling": "cyan",
    "Starting": "cyan",
}


def plain(text: str) -> str:
    """A text from other people, without control characters."""
    return "".join(c if c == " " or unicodedata.category(c)[0] not in "CZ" else " " for c in text)


def harmless(line: str) -> str:
    """A line of a program's output with its colours, tabs and carriage returns, but without other control
    characters."""
    parts = _COLOUR.split(line)
    kept = (
        part if number % 2 else "".join(c if c in "\t\r" or unicodedata.category(c)[0] != "C" else " " for c in part)
        for number, part in enumerate(parts)
    )
    return "".join(kept) + ("\x1b[0m" if len(parts) > 1 else "")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None = None) -> str:
    """A table as text. On a terminal it has colours and the terminal's width; otherwise it is plain, with one line per
    row. Empty columns are omitted. Words are not split: the last column, which explains, wraps or moves below its row;
    if a row is still too wide, its values are listed below each other."""
    terminal = Console(width=width)
    kept = [[plain(cell) for cell in row] for row in rows]
    shown = [k for k in range(len(head)) if k == 0 or not kept or any(row[k] for row in kept)]
    names, kept = [head[k] for k in shown], [[row[k] for k in shown] for row in kept]
    widths = [max(map(cell_len, column)) for column in zip(names, *kept, strict=True)]
    if not (terminal.is_terminal or width is not None):
        return _grid(names, kept, sum(widths) + 2 * len(widths), terminal)
    room, own = terminal.width, sum(widths[:-1]) + 2 * len(widths[:-1])
    if own + min(widths[-1], _LEAST_LAST) <= room:
        return _grid(names, kept, room, terminal)
    if own - 2 <= room:
        lines = _grid(names[:-1], [row[:-1] for row in kept], room, terminal).splitlines()
        below = [_below(row[-1], room) for row in kept]
        return "\n".join(
            [lines[0], *(line for pair in zip(lines[1:], below, strict=True) for line in (pair[0], *pair[1]))]
        )
    pairs = ([(name, cell) for name, cell in zip(names, row, strict=True) if cell] for row in kept)
    return "\n\n".join(_grid([], each, room, terminal) for each in pairs)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], width: int, terminal: Console) -> str:
    """Columns side by side; the last one wraps."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, show_header=bool(head))
    columns = len(head) or 2
    for k in range(columns):
        made.add_column(head[k] if head else "", no_wrap=k < columns - 1, overflow="fold")
    for cells in rows:
        made.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in cells))
    out = io.StringIO()
    to = Console(file=out, width=width, force_terminal=terminal.is_terminal, no_color=not terminal.is_terminal)
    to.print(made)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _below(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), initial_indent="  ", subsequent_indent="  ")


@contextmanager
def following(output: str | None) -> Iterator[Callable[[str], None]]:
    """Shows successive texts: on a terminal each replaces the last one, otherwise each follows it; JSON is on one
    line."""
    console = Console()
    if console.is_terminal and output != "json":
        with Live(console=console, auto_refresh=False) as live:
            yield lambda text: live.update(Text.from_ansi(text), refresh=True)
    else:
        yield lambda text: click.echo(text.replace("\n", "") if output == "json" else text)


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Shows a waiting message on standard error, if that is a terminal; the result replaces the message. Do not write
    to standard output meanwhile, because that would go to the same place."""
    # Not in a log with forced colours (FORCE_COLOR), which would get ten lines per second.
    with Console(stderr=True, force_terminal=sys.stderr.isatty()).status(Text(plain(text))) as status:
        yield lambda text: status.update(Text(plain(text)))


def as_json(found: Any) -> str:
    """The rows as JSON, as the query API returns them."""
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()


def job_head(*, wide: bool, namespaces: bool) -> list[str]:
    """The column names of jobs."""
    head = ["NAMESPACE"] if namespaces else []
    head += ["NAME", "STATE", "SIZE", "STEP", "STEPS/S", "ENDS IN"]
    return [*head, *(["BOUNDS", "SLACK", "RESCALES", "PAUSE", "AGE"] if wide else []), "REASON"]


def job_cells(row: JobRow, now: datetime, *, wide: bool, namespaces: bool) -> list[str]:
    """The cells of one job."""
    steps = "" if row.step is None else f"{row.step}/{row.total_steps}" if row.total_steps else str(row.step)
    eta = moment_of(row.eta) if row.state in ("Running", "Rescaling") else None
    cells = [row.namespace] if namespaces else []
    cells += [row.name, row.state, size(row.replicas), steps, number(row.steps_per_s)]
    cells.append(duration((eta - now).total_seconds()) if eta is not None else "")
    if wide:
        bounds = " ".join(f"{name} {a}-{b}" for name, (a, b) in row.bounds.items() if a != b)
        cells += [bounds or "fixed", duration(row.slack_s), str(row.rescales), _seconds(row.last_downtime_s)]
        cells.append(ago(row.created, now))
    return [*cells, row.reason]


def size(replicas: Mapping[str, int]) -> str:
    """`1 PS + 4 Worker`; empty for nothing."""
    return words(replicas) if any(replicas.values()) else ""


def number(value: float | None) -> str:
    """A number with three digits."""
    return "" if value is None else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """A duration such as `1h05m` or `90s`; negative ones start with `-`."""
    if seconds is None:
        return ""
    sign, left = ("-" if seconds < 0 else ""), round(abs(seconds))
    if left < 120:
        return f"{sign}{left}s"
    minutes, _ = divmod(left, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d{hours:02}h"
    return f"{sign}{hours}h{minutes:02}m" if hours else f"{sign}{minutes}m"


def ago(time: str | None, now: datetime | None = None) -> str:
    """The time since a moment, as a duration."""
    at = moment_of(time)
    return duration(((now or datetime.now(UTC)) - at).total_seconds()) if at is not None else ""


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}s"

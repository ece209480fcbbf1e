"""What the benchmarks' tables of results have in common."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table


def result_table(title: str, columns: Sequence[str], *, words: int = 1, caption: str | None = None) -> Table:
    """A table without rows. Its first `words` columns are words, on the left; the others are figures, on the right."""
    made = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for k, column in enumerate(columns):
        made.add_column(column, justify="left" if k < words else "right")
    return made


def mean_of(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean over runs of one of their figures, with 0 for what a run does not have; 0 without runs."""
    return float(np.mean([row[key] or 0.0 for row in rows])) if rows else 0.0

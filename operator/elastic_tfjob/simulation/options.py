"""Types of command-line options for runs that may take long: a wrong value is said before the run, with the option."""

import math
import os
from pathlib import Path
from typing import Any

import click

from elastic_tfjob.api.limits import MAX_DURATION_S

__all__ = ["SECONDS", "Amount", "OutputFile"]


class Amount(click.FloatRange):
    """A number from `least` to `most`. NaN is refused, too: it is neither below nor above a bound."""

    name = "number"

    def __init__(self, most: float, *, least: float = 0) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is no number; allowed are {self.min:g} to {self.max:.12g}.", param, ctx)
        return found


SECONDS = Amount(MAX_DURATION_S)


class OutputFile(click.Path):
    """A file that can be written: it is there and admits it, or its folder does."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        found: Any = super().convert(value, param, ctx)
        path = Path(found)
        if not path.exists():
            if not path.parent.is_dir():
                self.fail(f"{path}: there is no folder {path.parent}; it must be there before the run.", param, ctx)
            if not os.access(path.parent, os.W_OK | os.X_OK):
                self.fail(f"{path}: no files can be made in the folder {path.parent}.", param, ctx)
        return path

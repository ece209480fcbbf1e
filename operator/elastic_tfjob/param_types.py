"""Types of command-line options. They need only click, so that help and completion start fast."""

import math
import os
from pathlib import Path
from typing import Any

import click

from elastic_tfjob.api.words import did_you_mean

__all__ = ["Amount", "OneOf", "OutputFile"]


class Amount(click.FloatRange):
    """A number from `least` to `most`. NaN is refused as well, although it is neither below nor above a bound."""

    name = "number"

    def __init__(self, most: float, *, least: float = 0) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number; allowed: {self.min:g} to {self.max:.12g}.", param, ctx)
        return found


class OneOf(click.Choice[str]):
    """One of several words. The error for another word suggests the nearest one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return super().get_invalid_choice_message(value, ctx) + did_you_mean(str(value), map(str, self.choices))


class OutputFile(click.Path):
    """A file that can be written. This is checked before a run that may take long."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        found: Any = super().convert(value, param, ctx)
        path = Path(found)
        if not path.exists():
            if not path.parent.is_dir():
                self.fail(f"{path}: the folder {path.parent} does not exist; create it first.", param, ctx)
            if not os.access(path.parent, os.W_OK | os.X_OK):
                self.fail(f"{path}: the folder {path.parent} is not writable.", param, ctx)
        return path

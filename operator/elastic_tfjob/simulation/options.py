"""Types of command-line options for runs that may take long: a wrong value is refused before the run, with the option.

Help and completion import this module, so it imports little.
"""

import math
import os
from pathlib import Path
from typing import Any

import click

from elastic_tfjob.api.reading import MAX_DURATION_S
from elastic_tfjob.api.words import did_you_mean


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


class OneOf(click.Choice[str]):
    """One of these words; a wrong one is told with the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return super().get_invalid_choice_message(value, ctx) + did_you_mean(str(value), map(str, self.choices))


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


def restart_tiers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[tuple[float, float], ...]:
    """`60`, or `1:7,8:30,60`: 7 s up to 1 accelerator, 30 s up to 8, 60 s above."""
    tiers = []
    try:
        for part in value.split(","):
            limit, _, seconds = part.rpartition(":")
            tiers.append((float(limit) if limit else math.inf, float(seconds)))
    except ValueError:
        raise click.BadParameter(f"{value!r}: give seconds, or tiers such as 1:7,8:30,60") from None
    if not all(0 <= seconds <= MAX_DURATION_S for _, seconds in tiers):
        raise click.BadParameter(f"{value!r}: seconds must be 0 to {MAX_DURATION_S}")
    limits = [limit for limit, _ in tiers]
    if any(map(math.isnan, limits)) or limits != sorted(set(limits)):
        raise click.BadParameter(f"{value!r}: limits must rise")
    return tuple(tiers)


def boot_cpu_s(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, float | None]:
    """`12`, or `12,1`: 12 CPU-seconds for a new replica, 1 for one that stays."""
    try:
        parts = [float(part) for part in value.split(",")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 2 or not all(0 <= part <= MAX_DURATION_S for part in parts):
        raise click.BadParameter(f"{value!r}: give CPU seconds of at least 0, at most {MAX_DURATION_S}, or two: 12,1")
    if parts[-1] > parts[0]:
        raise click.BadParameter(f"{value!r}: the second, of a replica that stays, must not be above the first")
    return parts[0], parts[1] if len(parts) == 2 else None

"""Names on the command line, separated by commas."""

from __future__ import annotations

import click

__all__ = ["some_of"]


def some_of(allowed: tuple[str, ...]) -> click.types.ParamType[list[str]]:
    """A type of option: some of these names."""

    class Some(click.types.ParamType[list[str]]):
        name = "names"

        def convert(
            self, value: str | list[str], param: click.Parameter | None, ctx: click.Context | None
        ) -> list[str]:
            names = value.split(",") if isinstance(value, str) else value
            if unknown := [name for name in names if name not in allowed]:
                self.fail(f"unknown: {', '.join(unknown)}; choose from {', '.join(allowed)}", param, ctx)
            return names

    return Some()

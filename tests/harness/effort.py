"""How much is tried: less in `make test` and `make e2e`, all of it in `make test-all` and `make e2e-all`.

A test that is only one more variant of what another shows, or takes long, has the marker `thorough`, which those two
leave out. Where a test tries many examples or points, `effort(few, all)` says how many.
"""

from typing import TypeVar

import pytest

__all__ = ["configure", "effort"]

T = TypeVar("T")
_left_out = False


def configure(config: pytest.Config) -> None:
    """Find out whether this run leaves out what is marked `thorough`."""
    global _left_out  # noqa: PLW0603
    _left_out = "not thorough" in config.option.markexpr


def effort(few: T, all_of_them: T) -> T:
    """What this run takes: the first in `make test`, the second in `make test-all`."""
    return few if _left_out else all_of_them

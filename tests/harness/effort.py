"""How much is tried: less in `make test` and `make e2e`, all of it in `make test-all` and `make e2e-all`.

A test that is only one more variant of what another shows, or takes long, has the marker `thorough`, which those two
leave out. Where a test tries many examples or points, `effort(few, all)` says how many.
"""

import pytest

__all__ = ["configure", "effort"]

_left_out = False


def configure(config: pytest.Config) -> None:
    """Find out whether this run leaves out what is marked `thorough`."""
    global _left_out  # noqa: PLW0603
    _left_out = "not thorough" in config.option.markexpr


def effort(few: int, all_of_them: int) -> int:
    """How many examples this run tries."""
    return few if _left_out else all_of_them

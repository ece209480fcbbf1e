"""TensorFlow's errors, for people."""

from __future__ import annotations

_LISTED = 10
"""So many names are told of each kind."""


def brief(error: Exception) -> str:
    """What went wrong in one line: without the places in the program that TensorFlow lists before it says that."""
    lines = [line.strip() for line in str(error).splitlines()]
    places = ("Graph execution error", "Detected at node", "File ", "[[", "Hint: ")
    told = " ".join(line for line in lines if line and not line.startswith(places))
    return f"{type(error).__name__}: {told[:300]}"


def some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")

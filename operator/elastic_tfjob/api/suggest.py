"""What somebody may have meant by a word that is not known. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean", "nearest"]

_CUTOFF = 0.6
_MAX_LENGTH = 100
"""A longer word is no slip of the pen, and comparing it would take long."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one; None if none is."""
    if len(word) > _MAX_LENGTH:
        return None
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=_CUTOFF)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?`, to be put behind a message; empty if nothing is near."""
    found = nearest(word, known)
    return f" Did you mean {found}?" if found is not None else ""

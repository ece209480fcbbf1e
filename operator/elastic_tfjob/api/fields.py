"""Values of JSON, YAML and annotations that others wrote, read with a type and bounds. Pure.

Nothing here raises anything but ValueError, whose message names the place, what is wrong there, and what was found; and
nothing takes longer than it takes to look at the value once.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, ParamSpec, TypeVar

from elastic_tfjob.api.limits import (
    EARLIEST,
    LATEST,
    MAX_ENTRIES,
    MAX_PROBLEM_LENGTH,
    MAX_PROBLEMS,
    MAX_TEXT,
    MAX_WORD,
)

__all__ = ["Fields", "Lenient", "UnknownWord", "cut", "describe", "few", "moment"]

P = ParamSpec("P")
T = TypeVar("T")

_SHOWN = 60
_WORD: Final = re.compile(rf"[A-Za-z][A-Za-z0-9-]{{0,{MAX_WORD - 1}}}")


class UnknownWord(ValueError):
    """A word that is none of those known in its place: a newer version may know it."""


def cut(text: str, most: int = MAX_TEXT) -> str:
    """The first characters of a text, all of which can be written again: half of a UTF-16 pair cannot."""
    return text[:most].encode("utf-8", "replace").decode()


def describe(value: object) -> str:
    """A value in an error message: a short one as it is written in JSON or Python, a large one by its kind and size.
    It is never looked into: `repr` of a deep one ends in a RecursionError, and of a large one in a large text."""
    if isinstance(value, str):
        shown = repr(cut(value, _SHOWN))
        return shown if len(value) <= _SHOWN else f"{shown}… ({len(value)} characters)"
    if value is None or isinstance(value, bool | float):
        return str(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else f"a number of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    if isinstance(value, list | tuple | set):
        return f"a list of {len(value)}"
    return f"a {type(value).__name__}"


def few(problems: Iterable[str]) -> list[str]:
    """The first problems, each cut, and how many there are beyond them."""
    found = list(problems)
    kept = [cut(problem, MAX_PROBLEM_LENGTH) for problem in found[:MAX_PROBLEMS]]
    return kept if len(found) <= MAX_PROBLEMS else [*kept, f"and {len(found) - MAX_PROBLEMS} more problems"]


def moment(text: str) -> datetime:
    """A time in RFC 3339, with its zone; fractions of a second are accepted. Raises ValueError for anything else, and
    for years before 1970 or after 9998."""
    if len(text) > MAX_WORD:
        raise ValueError(f"not a time: {describe(text)}")
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if found.tzinfo is None or not EARLIEST <= found <= LATEST:
        raise ValueError(f"not a time with its zone from 1970 to 9998: {describe(text)}")
    return found


class Fields:
    """Typed access to an object of JSON. What is missing is as what is null; keys that nobody asks for are passed over,
    since a newer version may have written them.

    Two kinds of numbers: one that something is decided by (`whole`) is wrong beyond its bounds; one that was measured
    (`number`, `integer`) is then not known, as is one that is not finite (a loss that diverged).
    """

    __slots__ = ("_place", "_raw")

    def __init__(self, raw: object, place: str = "") -> None:
        if not isinstance(raw, dict):
            raise ValueError(f"{place or 'the whole'} is not an object: {describe(raw)}")
        self._raw: dict[str, Any] = raw
        self._place = place

    def place(self, name: str) -> str:
        """Where a key is, for a message."""
        return f"{self._place}.{cut(name, MAX_WORD)}" if self._place else cut(name, MAX_WORD)

    def has(self, name: str) -> bool:
        """Whether there is such a key, null or not."""
        return name in self._raw

    def wrong(self, name: str, wanted: str) -> ValueError:
        """What to raise where a value is not what is wanted."""
        return ValueError(f"{self.place(name)} is not {wanted}: {describe(self._raw.get(name))}")

    def any(self, name: str) -> object:
        """The value as it is, for a reader of its own."""
        return self._raw.get(name)

    def flag(self, name: str) -> bool | None:
        """true or false."""
        value = self._raw.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(name, "true or false")

    def number(self, name: str, most: float, *, least: float | None = 0.0) -> float | None:
        """A measured number; None beyond `most`. `least` None is as `-most`, beyond which it is None too."""
        value = self._raw.get(name)
        if value is None:
            return None
        if type(value) not in (int, float):
            raise self.wrong(name, "a number")
        if least is not None and value < least:
            raise self.wrong(name, f"a number from {least:g} up")
        return float(value) if -most <= value <= most and math.isfinite(value) else None

    def integer(self, name: str, most: int, *, least: int | None = 0) -> int | None:
        """A measured number that is whole; else as `number`."""
        value = self.number(name, most, least=least)
        if value is not None and not value.is_integer():
            raise self.wrong(name, "a whole number")
        return None if value is None else int(self._raw[name])

    def whole(self, name: str, most: int, *, least: int = 0, default: int | None = None) -> int:
        """A whole number within its bounds. Without a default it is required."""
        value = self._raw.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def text(self, name: str, most: int = MAX_TEXT, default: str = "") -> str:
        """A text, of which the first `most` characters are kept."""
        value = self._raw.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return cut(value, most)

    def word(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of these words. Raises UnknownWord for another one, which a newer version may have written."""
        value = self._raw.get(name)
        if not isinstance(value, str) or value not in allowed:
            wrong = self.wrong(name, " or ".join(allowed))
            raise UnknownWord(str(wrong)) if isinstance(value, str) and _WORD.fullmatch(value) else wrong
        return value

    def time(self, name: str, *, empty: bool = False) -> str | None:
        """A time as `moment` reads it; None for an empty text, too, where that is allowed."""
        value = self._raw.get(name)
        if value is None or (empty and value == ""):
            return None
        try:
            moment(value if isinstance(value, str) else "")
        except ValueError:
            raise self.wrong(name, "a time with its zone (2026-01-31T18:00:00Z)") from None
        return str(value)

    def within(self, name: str) -> "Fields | None":
        """The object below a key."""
        value = self._raw.get(name)
        return None if value is None else Fields(value, self.place(name))

    def items(self, name: str, most: int = MAX_ENTRIES) -> list[Any]:
        """A list of at most so many, whatever is in it; empty where it is missing."""
        value = self._raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(name, f"a list of at most {most}")
        return value

    def objects(self, name: str, most: int = MAX_ENTRIES) -> "Iterator[Fields]":
        """A list of objects."""
        for index, each in enumerate(self.items(name, most)):
            yield Fields(each, f"{self.place(name)}[{index}]")

    def __iter__(self) -> Iterator[str]:
        """The keys, whatever they are, for a reader that looks at each."""
        return iter(self._raw)

    def names(self, most: int = MAX_ENTRIES) -> Iterator[str]:
        """The keys, where they are data: each of 1 to MAX_WORD characters, and at most so many."""
        if len(self._raw) > most:
            raise ValueError(f"{self._place} has {len(self._raw)} keys; at most {most} are allowed")
        for name in self._raw:
            if not name or len(name) > MAX_WORD:
                raise ValueError(f"{self._place}: a key has 1 to {MAX_WORD} characters, not {describe(name)}")
            yield name


class Lenient:
    """Reading of what nothing hangs on: a value that is wrong is None, at no cost to the others, and `problems` has its
    message."""

    __slots__ = ("problems",)

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, read: Callable[P, T | None], *args: P.args, **named: P.kwargs) -> T | None:
        """What `read` gives, a method of Fields or a reader that is made of them; None where it raises ValueError."""
        try:
            return read(*args, **named)
        except ValueError as error:
            self.problems.append(str(error))
            return None

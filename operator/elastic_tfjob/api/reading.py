"""Values of JSON, YAML and annotations that others wrote, read with a type and bounds. Pure.

Nothing here raises anything but ValueError, whose message names the place, what is wrong there, and what was found; and
nothing takes longer than it takes to look at the value once.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, ParamSpec, TypeVar

import yaml

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_AFFINITY_VALUES",
    "MAX_ALL_TEMPLATES_VALUES",
    "MAX_ANNOTATION_BYTES",
    "MAX_BYTES",
    "MAX_CONFIGURATION_BYTES",
    "MAX_DEPTH",
    "MAX_DURATION_S",
    "MAX_ENTRIES",
    "MAX_GENERATION",
    "MAX_MEMORY_NAME",
    "MAX_MEMORY_NUMBERS",
    "MAX_MILLICORES",
    "MAX_NODE_NAME",
    "MAX_PLACEMENT_TERMS",
    "MAX_POD_BYTES",
    "MAX_PROBLEMS",
    "MAX_PROBLEM_LENGTH",
    "MAX_QUANTITY_EXPONENT",
    "MAX_QUANTITY_LENGTH",
    "MAX_RATE",
    "MAX_REPLICAS",
    "MAX_REPLICA_TYPES",
    "MAX_RESOURCE_NAMES",
    "MAX_STARTS",
    "MAX_STATUS_BYTES",
    "MAX_STEPS",
    "MAX_TEMPLATE_VALUES",
    "MAX_TEXT",
    "MAX_TOLD_TROUBLES",
    "MAX_TROUBLES_TEXT",
    "MAX_UID",
    "MAX_VALUE",
    "MAX_WORD",
    "Fields",
    "Lenient",
    "UnknownWord",
    "after",
    "cut",
    "describe",
    "document",
    "few",
    "moment",
]


# -- How large may be what others write: annotations, specs, quantities, pods' answers, the ConfigMap ------------------
# A word beyond its limit is refused with a reason where words become types, so that nothing behind has to look again.
# docs/limits.md has those that users can meet as a table, with what happens beyond each.

MAX_REPLICAS: Final = 2_000
"""Replicas of one job, all types together. A dense TF_CONFIG names each of them, and of about 2,500 on it does not fit
into one environment variable any more (Linux: 128 KiB, MAX_ARG_STRLEN)."""

MAX_REPLICA_TYPES: Final = 32
"""Replica types of one job: as many as the CRD admits."""

MAX_TEMPLATE_VALUES: Final = 4_000
"""Keys and entries of lists in one pod template, at all depths. Real ones have some hundreds. Each pod is a copy of
them, which takes 1.5 microseconds for each."""

MAX_ALL_TEMPLATES_VALUES: Final = 8_000
"""The same of all templates of a job together: each pass reads all of them."""

MAX_DEPTH: Final = 64
"""Objects and lists of a pod template inside each other. What a pod may have is about 12 deep."""

MAX_PLACEMENT_TERMS: Final = 64
"""Tolerations of a pod template, entries of its node selector, terms of its required node affinity, and expressions of
these terms together: each has as many. Rounds compare all of them with each node."""

MAX_AFFINITY_VALUES: Final = 256
"""Values of all these expressions together."""

MAX_RESOURCE_NAMES: Final = 64
"""Resources that a container requests, or is limited in."""

MAX_QUANTITY_EXPONENT: Final = 99
"""Of a quantity in a pod template, such as 1e3, without its sign. The largest that counts is 18. The API server thinks
for minutes about 1e-999999999, and the operator would wait for it with each pod that it asks for."""

MAX_QUANTITY_LENGTH: Final = 64
"""Characters of such a quantity."""

MAX_STEPS: Final = 2**53
"""Training steps. Up to here a float holds each whole number exactly, and JSON's numbers are floats."""

MAX_DURATION_S: Final = 36_500 * 86_400
"""Seconds of one duration, about 100 years: what lies beyond is a typing error. `datetime` ends in the year 9999."""

MAX_STATUS_BYTES: Final = 64 * 1024
"""Bytes of a pod's answer to `/status`, which has about 1 KiB."""

MAX_ANNOTATION_BYTES: Final = 256 * 1024
"""Bytes of one annotation: Kubernetes admits as many for all of an object's annotations together."""

MAX_CONFIGURATION_BYTES: Final = 32 * 1024
"""Bytes of `config.yaml`, which has about 1 KiB. PyYAML takes up to a second for so much, in the operator's loop."""

MAX_MILLICORES: Final = 10**9
"""CPU of one replica in thousandths of a core: a million cores, more than any machine has."""

MAX_BYTES: Final = 2**63 - 1
"""Bytes, devices and whatever else is a resource quantity: Kubernetes' own limit (int64). What is more counts as this
much, as in Kubernetes."""

MAX_POD_BYTES: Final = 2**46
"""Bytes of memory or storage, and devices, that a pod is counted with: 64 TiB, more than a node has. Plans add up what
thousands of replicas ask for in numbers of 64 bits."""

MAX_LOAN_GRACE_S: Final = 120
"""Seconds of terminationGracePeriodSeconds that the pods of a job may have that runs on lent nodes: whoever lends one
gets it back within minutes."""

MAX_GENERATION: Final = 2**31
"""Number of a job's newest size. One rescale in each second would take 68 years to get there."""

MAX_MEMORY_NUMBERS: Final = 16
"""Numbers that a profile remembers of one job."""

MAX_MEMORY_NAME: Final = 32
"""Characters of the name of such a number."""

MAX_NODE_NAME: Final = 253
"""Characters of a node's name: a DNS subdomain."""

MAX_WORD: Final = 64
"""Characters of a name among few: a mode of rescaling, a replica type, a size such as "2/8"."""

MAX_TEXT: Final = 1024
"""Characters of a sentence that ends in an event or a condition, or of a path: an event's message has no more."""

MAX_TOLD_TROUBLES: Final = 20
"""Reasons why pods and containers do not run that one pass over a job tells; of the others it tells how many."""

MAX_TROUBLES_TEXT: Final = 4096
"""Characters of all that is told of why one pod does not run: that is kept for each pod."""

MAX_UID: Final = 128
"""Characters of an object's uid where somebody refers to it: it has 36."""

MAX_VALUE: Final = 4096
"""Characters of one annotation that a user writes: the longest is a path (Linux: PATH_MAX)."""

MAX_ENTRIES: Final = 256
"""Entries of a map or list whose entries are no replicas: speeds by size, past rescales."""

MAX_RATE: Final = 1e9
"""Training steps in a second."""

MAX_PROBLEMS: Final = 10
"""Wrong annotations of one job that are named one by one; of the others their number is said."""

MAX_PROBLEM_LENGTH: Final = 512
"""Characters of one such problem."""

MAX_STARTS: Final = 256
"""Characters of how a program will be started, and why so."""

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9998, 12, 31, tzinfo=UTC)
"""Times that are accepted. A year is left to `datetime`'s end, so that a change of zone never reaches it."""


def after(moment: datetime, seconds: float) -> datetime:
    """The moment so many seconds later (earlier where negative), but no later than LATEST and no earlier than EARLIEST,
    whatever the number, NaN (no time at all later) included. `moment` needs a zone."""
    if seconds != seconds:  # noqa: PLR0124
        return moment
    if seconds >= (LATEST - moment).total_seconds():
        return LATEST
    if seconds <= (EARLIEST - moment).total_seconds():
        return EARLIEST
    return moment + timedelta(seconds=seconds)


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


# -- YAML of this project's own files: strict, and bounded whatever is in it -------------------------------------------
# What users give to kubectl is read by `api.manifests`.


class _Loader(yaml.SafeLoader):
    """Without merge keys (`<<`): a few lines of them, each with the one before ten times, are more than fits into
    memory. An alias by itself is a second name, and costs nothing. Nor may a key be there twice, of which PyYAML takes
    the last one without a word."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not read here", node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            left = set(found)
            for key, _ in node.value:
                if (name := self.construct_object(key, deep=True)) not in left:
                    said = f"the key {describe(name)} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
                left.remove(name)
        return found


def document(text: str) -> Any:
    """The only document of a text; None where it has none. Raises ValueError, and nothing else."""
    try:
        found = list(yaml.load_all(text, _Loader))
    except RecursionError:
        raise ValueError("not YAML: nested too deeply") from None
    # Beside its own errors PyYAML lets through what a value's conversion raises: AttributeError for `!!timestamp 9`.
    except Exception as error:
        raise ValueError(f"not YAML: {cut(' '.join(str(error).split()))}") from error
    if len(found) > 1:
        raise ValueError(f"not YAML: {len(found)} documents, where one is expected")
    return found[0] if found else None

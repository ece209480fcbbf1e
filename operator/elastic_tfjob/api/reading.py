"""Untrusted JSON, YAML and annotations, read with types and bounds. Pure.

Everything here raises only ValueError, with the place, the error and the value found, and takes time linear in the size
of the value."""

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
    "MAX_LISTED_TROUBLES",
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


# -- Size limits of annotations, specs, quantities, pods' answers and the ConfigMap ------------------------------------
# A value beyond its limit is refused when it is parsed, so that no other code has to check it again. docs/limits.md
# lists the limits and what happens beyond each.

MAX_REPLICAS: Final = 2_000
"""Replicas of one job, all types together. A dense TF_CONFIG names each replica, and with more than about 2,500 it does
not fit into an environment variable (Linux: 128 KiB, MAX_ARG_STRLEN)."""

MAX_REPLICA_TYPES: Final = 32
"""Replica types of one job, as in the CRD."""

MAX_TEMPLATE_VALUES: Final = 4_000
"""Keys and list entries in one pod template, at all depths. Real templates have a few hundred. Each pod copies them
all, at 1.5 microseconds each."""

MAX_ALL_TEMPLATES_VALUES: Final = 8_000
"""The same for all templates of a job together, since each reconciliation reads all of them."""

MAX_DEPTH: Final = 64
"""Nesting depth of a pod template. Valid pods are about 12 levels deep."""

MAX_PLACEMENT_TERMS: Final = 64
"""Limit of each of: tolerations of a pod template, entries of its node selector, terms of its required node affinity,
and all expressions of these terms. Each scheduling round compares them with each node."""

MAX_AFFINITY_VALUES: Final = 256
"""Values in all these expressions together."""

MAX_RESOURCE_NAMES: Final = 64
"""Resources in a container's requests, and in its limits."""

MAX_QUANTITY_EXPONENT: Final = 99
"""Exponent of a quantity in a pod template, such as 1e3, without its sign. Useful ones are at most 18. The API server
takes minutes to parse 1e-999999999, and the operator would wait for it with each pod."""

MAX_QUANTITY_LENGTH: Final = 64
"""Characters of a quantity in a pod template."""

MAX_STEPS: Final = 2**53
"""Training steps. Up to this number, floats (and so JSON numbers) represent each whole number exactly."""

MAX_DURATION_S: Final = 36_500 * 86_400
"""Seconds of a duration, about 100 years. A longer one is a typing error, and `datetime` ends in the year 9999."""

MAX_STATUS_BYTES: Final = 64 * 1024
"""Bytes of a pod's answer to `/status`, which normally has about 1 KiB."""

MAX_ANNOTATION_BYTES: Final = 256 * 1024
"""Bytes of one annotation. Kubernetes has the same limit for all annotations of an object together."""

MAX_CONFIGURATION_BYTES: Final = 32 * 1024
"""Bytes of `config.yaml`, which normally has about 1 KiB. PyYAML takes up to a second for this size, in the operator's
event loop."""

MAX_MILLICORES: Final = 10**9
"""CPU of one replica in millicores: a million cores, more than any machine has."""

MAX_BYTES: Final = 2**63 - 1
"""Any resource quantity, such as bytes or devices: Kubernetes' own limit (int64). As in Kubernetes, larger values count
as this one."""

MAX_POD_BYTES: Final = 2**46
"""Memory, storage or devices that one pod counts for: 64 TiB, more than a node has. Plans add up thousands of replicas
in 64-bit numbers."""

MAX_LOAN_GRACE_S: Final = 120
"""Most terminationGracePeriodSeconds for pods of loanable jobs, so that lent nodes are returned within minutes."""

MAX_GENERATION: Final = 2**31
"""Number of a job's newest size. One rescale per second would reach it after 68 years."""

MAX_MEMORY_NUMBERS: Final = 16
"""Numbers that a profile stores for one job."""

MAX_MEMORY_NAME: Final = 32
"""Characters of the name of such a number."""

MAX_NODE_NAME: Final = 253
"""Characters of a node's name: a DNS subdomain."""

MAX_WORD: Final = 64
"""Characters of a short name: a rescale mode, a replica type, a size such as "2/8"."""

MAX_TEXT: Final = 1024
"""Characters of a sentence in an event or condition, or of a path. An event's message allows no more."""

MAX_LISTED_TROUBLES: Final = 20
"""Reasons why pods do not run that one reconciliation of a job reports; of further ones, it reports the number."""

MAX_TROUBLES_TEXT: Final = 4096
"""Total characters of the reasons why one pod does not run, which are stored for each pod."""

MAX_UID: Final = 128
"""Characters of a reference to an object's uid, which normally has 36."""

MAX_VALUE: Final = 4096
"""Characters of an annotation written by a user. The longest is a path (Linux: PATH_MAX)."""

MAX_ENTRIES: Final = 256
"""Entries of a map or list other than replicas, such as speeds by size or past rescales."""

MAX_RATE: Final = 1e9
"""Training steps per second."""

MAX_PROBLEMS: Final = 10
"""Problems of one job's annotations that are named; of further ones, the number is given."""

MAX_PROBLEM_LENGTH: Final = 512
"""Characters of the text of a problem."""

MAX_STARTS: Final = 256
"""Characters of the text that says how a program will start, and why."""

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9998, 12, 31, tzinfo=UTC)
"""Latest accepted time. It is a year before `datetime`'s end, so that time zones cannot exceed that."""


def after(moment: datetime, seconds: float) -> datetime:
    """The moment plus a number of seconds (which may be negative), limited to EARLIEST and LATEST for any number; NaN
    counts as 0. `moment` needs a time zone."""
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
    """An unknown word, which a newer version may have written."""


def cut(text: str, most: int = MAX_TEXT) -> str:
    """The first characters of a text; unpaired UTF-16 surrogates, which cannot be encoded, are replaced."""
    return text[:most].encode("utf-8", "replace").decode()


def describe(value: object) -> str:
    """A value for an error message: short values literally, large ones by type and size. The value is not traversed,
    since `repr` of a deep value raises RecursionError, and of a large value is a large text."""
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
    """The first problems, each cut to its maximum length, and the number of further ones."""
    found = list(problems)
    kept = [cut(problem, MAX_PROBLEM_LENGTH) for problem in found[:MAX_PROBLEMS]]
    return kept if len(found) <= MAX_PROBLEMS else [*kept, f"and {len(found) - MAX_PROBLEMS} more problems"]


def moment(text: str) -> datetime:
    """Parse an RFC 3339 time with a time zone; fractions of a second are accepted. Raises ValueError for anything else,
    and for years before 1970 or after 9998."""
    if len(text) > MAX_WORD:
        raise ValueError(f"not a time: {describe(text)}")
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if found.tzinfo is None or not EARLIEST <= found <= LATEST:
        raise ValueError(f"not a time with its zone from 1970 to 9998: {describe(text)}")
    return found


class Fields:
    """Typed access to a JSON object. A missing key counts as null. Unknown keys are ignored, since a newer version may
    have written them.

    There are two kinds of numbers. A number used in decisions (`whole`) is invalid beyond its bounds. A measured number
    (`number`, `integer`) beyond its bounds, or not finite (as a diverged loss), counts as unknown."""

    __slots__ = ("_place", "_raw")

    def __init__(self, raw: object, place: str = "") -> None:
        if not isinstance(raw, dict):
            raise ValueError(f"{place or 'the whole'} is not an object: {describe(raw)}")
        self._raw: dict[str, Any] = raw
        self._place = place

    def place(self, name: str) -> str:
        """The place of a key, for a message."""
        return f"{self._place}.{cut(name, MAX_WORD)}" if self._place else cut(name, MAX_WORD)

    def has(self, name: str) -> bool:
        """Whether the key exists, even if it is null."""
        return name in self._raw

    def wrong(self, name: str, wanted: str) -> ValueError:
        """The error for a value of a wrong type."""
        return ValueError(f"{self.place(name)} is not {wanted}: {describe(self._raw.get(name))}")

    def any(self, name: str) -> object:
        """The raw value, for a separate reader."""
        return self._raw.get(name)

    def flag(self, name: str) -> bool | None:
        """A boolean."""
        value = self._raw.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(name, "true or false")

    def number(self, name: str, most: float, *, least: float | None = 0.0) -> float | None:
        """A measured number; None if it is above `most` or, with `least` None, below `-most`."""
        value = self._raw.get(name)
        if value is None:
            return None
        if type(value) not in (int, float):
            raise self.wrong(name, "a number")
        if least is not None and value < least:
            raise self.wrong(name, f"a number from {least:g} up")
        return float(value) if -most <= value <= most and math.isfinite(value) else None

    def integer(self, name: str, most: int, *, least: int | None = 0) -> int | None:
        """A measured whole number; otherwise as `number`."""
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
        """A string, cut to `most` characters."""
        value = self._raw.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return cut(value, most)

    def word(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of the allowed words. Raises UnknownWord for another one, which a newer version may have written."""
        value = self._raw.get(name)
        if not isinstance(value, str) or value not in allowed:
            wrong = self.wrong(name, " or ".join(allowed))
            raise UnknownWord(str(wrong)) if isinstance(value, str) and _WORD.fullmatch(value) else wrong
        return value

    def time(self, name: str, *, empty: bool = False) -> str | None:
        """A time as `moment` reads it; also None for an empty string, if `empty` allows that."""
        value = self._raw.get(name)
        if value is None or (empty and value == ""):
            return None
        try:
            moment(value if isinstance(value, str) else "")
        except ValueError:
            raise self.wrong(name, "a time with its zone (2026-01-31T18:00:00Z)") from None
        return str(value)

    def within(self, name: str) -> "Fields | None":
        """The object under a key."""
        value = self._raw.get(name)
        return None if value is None else Fields(value, self.place(name))

    def items(self, name: str, most: int = MAX_ENTRIES) -> list[Any]:
        """A list of at most `most` entries of any type; empty if it is missing."""
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
        """All keys, for a reader that handles each of them."""
        return iter(self._raw)

    def names(self, most: int = MAX_ENTRIES) -> Iterator[str]:
        """The keys of a map whose keys are data: at most `most`, each of 1 to MAX_WORD characters."""
        if len(self._raw) > most:
            raise ValueError(f"{self._place} has {len(self._raw)} keys; at most {most} are allowed")
        for name in self._raw:
            if not name or len(name) > MAX_WORD:
                raise ValueError(f"{self._place}: a key has 1 to {MAX_WORD} characters, not {describe(name)}")
            yield name


class Lenient:
    """Reads optional values: an invalid value becomes None, other values are not affected, and `problems` gets the
    message."""

    __slots__ = ("problems",)

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, read: Callable[P, T | None], *args: P.args, **named: P.kwargs) -> T | None:
        """The result of `read`, a method of Fields or a function that uses Fields; None if it raises ValueError."""
        try:
            return read(*args, **named)
        except ValueError as error:
            self.problems.append(str(error))
            return None


# -- Strict and bounded YAML, for this project's own files -------------------------------------------------------------
# `api.manifests` reads kubectl's files.


class _Loader(yaml.SafeLoader):
    """A loader that refuses merge keys (`<<`), because a few nested ones can exceed all memory (aliases alone cannot).
    It also refuses duplicate keys, of which PyYAML silently uses the last."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not allowed here", node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            left = set(found)
            for key, _ in node.value:
                if (name := self.construct_object(key, deep=True)) not in left:
                    problem = f"the key {describe(name)} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                left.remove(name)
        return found


def document(text: str) -> Any:
    """The only document of a text; None if there is none. Raises only ValueError."""
    try:
        found = list(yaml.load_all(text, _Loader))
    except RecursionError:
        raise ValueError("not YAML: nested too deeply") from None
    # Besides its own errors, PyYAML also raises errors from converting values, such as AttributeError for `!!timestamp
    # 9`.
    except Exception as error:
        raise ValueError(f"not YAML: {cut(' '.join(str(error).split()))}") from error
    if len(found) > 1:
        raise ValueError(f"not YAML: {len(found)} documents, where one is expected")
    return found[0] if found else None

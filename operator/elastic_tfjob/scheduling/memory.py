"""What a profile remembers of a job from one plan to the next: a few numbers by name. Pure.

Both worlds keep them for the profile: it returns them in `Plan.memory` and reads them back as `Job.memory`, so that
equal input still gives an equal plan. A name begins with that of the profile, as in `las.forgiven`: numbers outlive a
change of the profile.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

from elastic_tfjob.api.limits import MAX_MEMORY_NAME, MAX_MEMORY_NUMBERS

__all__ = ["NO_MEMORY", "Memory", "readable", "with_number"]

Memory = Mapping[str, float]
"""Finite numbers by name: at most MAX_MEMORY_NUMBERS, each name of at most MAX_MEMORY_NAME characters."""
NO_MEMORY: Memory = {}

_NAME: Final = re.compile(r"[a-z][-a-z0-9_.]*")


def with_number(memory: Memory, name: str, value: float | None) -> Memory:
    """The memory with this number, or with None without it. Where there are too many, the first of the others in the
    order of their names is forgotten: somebody else has written them. Raises ValueError for what no memory can hold."""
    if not _is_name(name):
        raise ValueError(f"{name!r} is no name of 1 to {MAX_MEMORY_NAME} characters, such as las.forgiven")
    if value is None:
        return {known: number for known, number in memory.items() if known != name}
    if not math.isfinite(value):
        raise ValueError(f"{name}: {value} is not finite")
    numbers = {**memory, name: float(value)}
    for other in sorted(numbers.keys() - {name})[: max(0, len(numbers) - MAX_MEMORY_NUMBERS)]:
        del numbers[other]
    return numbers


def readable(raw: object) -> dict[str, float]:
    """The memory in a value of JSON that anybody may have written. What is no memory is passed over: a profile that
    has forgotten something decides as for a new job, and nothing else is lost."""
    if not isinstance(raw, dict):
        return {}
    names = sorted(name for name, value in raw.items() if _is_name(name) and _is_number(value))
    return {name: float(raw[name]) for name in names[:MAX_MEMORY_NUMBERS]}


def _is_name(name: str) -> bool:
    return len(name) <= MAX_MEMORY_NAME and _NAME.fullmatch(name) is not None


def _is_number(value: object) -> bool:
    """JSON's numbers, as orjson reads them: whole ones have at most 64 bits."""
    return (type(value) is int and value.bit_length() <= 64) or (type(value) is float and math.isfinite(value))

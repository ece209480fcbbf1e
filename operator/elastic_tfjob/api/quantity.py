"""Amounts of resources as Kubernetes writes them: `500m`, `2Gi`, `1e3`. Pure."""

import re
from decimal import Context, Decimal
from functools import lru_cache
from math import ceil
from typing import Final

from elastic_tfjob.api.reading import MAX_BYTES, MAX_MILLICORES, MAX_WORD

__all__ = ["is_quantity", "millicores", "quantity", "rounded_up", "thousandths", "whole"]

# QUANTITY_PATTERN of the CRD, except that an exponent is a whole number, as Kubernetes requires.
_QUANTITY: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_THOUSANDS: Final = {"n": -3, "u": -2, "m": -1, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY: Final = "KMGTPE"
_MOST: Final = Decimal(MAX_BYTES)
_LEAST: Final = Decimal("1e-9")
# More digits than any number between these two has.
_DIGITS: Final = 40
_EXACT: Final = Context(prec=2 * _DIGITS)


def quantity(written: object) -> Decimal:
    """Returns an amount of a resource as Kubernetes reads it. Amounts below a billionth count as a billionth, amounts
    that do not fit into 64 bits as the largest that does. Invalid and negative amounts count as 0: the API server
    refuses pods with them, so they take nothing. The running time is proportional to the text's length."""
    if isinstance(written, str):
        return _remembered(written) if len(written) <= MAX_WORD else _read(written)
    if isinstance(written, int) and not isinstance(written, bool):
        return Decimal(min(max(written, 0), MAX_BYTES))
    return Decimal(0)


def _read(written: str) -> Decimal:
    match = _QUANTITY.fullmatch(written)
    if match is None:
        return Decimal(0)
    sign, before, after, suffix = match.group(1), match.group(2), match.group(3) or "", match.group(4) or ""
    digits = (before + after).lstrip("0")
    if sign == "-" or not digits:
        return Decimal(0)
    exponent = -len(after)
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        exponent += _small(suffix[1:])
    elif suffix and not suffix.endswith("i"):
        exponent += 3 * _THOUSANDS[suffix]
    # so that Decimal never gets a number with more digits than matter
    exponent += max(0, len(digits) - _DIGITS)
    number = Decimal((0, tuple(map(int, digits[:_DIGITS])), 0)).scaleb(_within(exponent), _EXACT)
    if suffix.endswith("i"):
        number = _EXACT.multiply(number, Decimal(1024) ** (_BINARY.index(suffix[0]) + 1))
    return min(max(number, _LEAST), _MOST)


_remembered = lru_cache(maxsize=4096)(_read)


def _small(exponent: str) -> int:
    """Returns an exponent from its text; a very long one becomes a number far beyond all that matter."""
    return int(exponent) if len(exponent) < 10 else (-(10**9) if exponent.startswith("-") else 10**9)


def _within(exponent: int) -> int:
    return min(max(exponent, -2 * _DIGITS), _DIGITS)


def is_quantity(written: str) -> bool:
    """Whether the API server accepts a text as an amount that is not negative; 0 is accepted."""
    match = _QUANTITY.fullmatch(written) if len(written) <= MAX_WORD else None
    return match is not None and match.group(1) != "-" and bool(match.group(2) or match.group(3))


def millicores(written: object) -> int:
    """Returns millicores: 500 for `500m` or `0.5`; less than one millicore counts as one. At most MAX_MILLICORES."""
    return min(thousandths(written), MAX_MILLICORES)


def whole(written: object) -> int:
    """Returns a whole number: 1073741824 for `1Gi`; a fraction is rounded up, as Kubernetes does."""
    return rounded_up(thousandths(written))


def thousandths(written: object) -> int:
    """Returns a quantity in thousandths, rounded up as the API server does for every resource."""
    return ceil(quantity(written) * 1000)


def rounded_up(thousandths: int) -> int:
    return -(-thousandths // 1000)

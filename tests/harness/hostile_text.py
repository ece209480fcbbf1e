"""Texts and values that a tenant can write where the operator, a pod or a command reads something, by kind.

Every test of a reader takes its hostile input from here and adds what only that reader knows. Nothing here may be
valid for a reader by chance, except in QUANTITIES, WHOLE_NUMBERS, DURATIONS and TIMES, where some are.
"""

from itertools import pairwise
from typing import Any, Final

DEEP_LIST: Final = "[" * 100_000
"""Lists that never close, deeper than any parser of Python's recurses."""
DEEP_OBJECT: Final = '{"a":' * 5000
LONG_NUMBER: Final = "9" * 5000
"""Longer than the 4,300 digits that Python's `int` converts."""
HUGE_NUMBERS: Final = ("1e999", "1" + "0" * 400, "NaN", "Infinity")
HUGE_NEGATIVE_NUMBERS: Final = ("-1e999", "-1" + "0" * 400, "-Infinity")
"""Numbers in JSON text, as Python writes and reads them, that no float holds, or that are none."""
LONE_SURROGATE: Final = "\ud800"
"""Half a UTF-16 pair: JSON has it (as an escape), UTF-8 has not, so whoever wants to write it again fails."""

NO_JSON_OBJECT: Final = (
    "",
    " ",
    "{",
    "}",
    "[]",
    "[1]",
    "null",
    "true",
    "7",
    "-1",
    "NaN",
    '"text"',
    "nonsense",
    "\x00",
    "{'a': 1}",
    '{"a": 1,}',
    '{"a": 1}{"b": 2}',
    DEEP_LIST,
    DEEP_OBJECT,
    LONG_NUMBER,
    "9" * 200_000,
    "x" * 5000,
)
"""Texts in the place of a JSON object: cut off, of another type, too deep, or no JSON at all."""
NO_UTF8: Final = (b"\xff\xfe", b"\xff\xfe\x00\xd8", b'{"a": "\xff"}')

# What gets into terminals and pages. Each has a bit that must not arrive as it is.

MARKUP: Final = """<img src=x onerror="window.owned=1"><script>window.owned=1</script>"'`javascript:window.owned=1"""
"""HTML that sets `window.owned` wherever it is not escaped: as an element, an attribute, a script or a URL."""
CLOSING_SCRIPT: Final = "</script><script>alert(1)</script>"
TERMINAL_CONTROLS: Final = "\x1b[2J\x1b[31m[red]x[/red]\x07\u202eevil\nnext"
"""Clears the screen, changes the colour, rings, turns the writing direction round, and begins another line; the markup
of the library that prints is a text like any other."""

TEXTS: Final = (
    "",
    " ",
    "x",
    "1",
    "-1",
    "0x10",
    "٣٤",  # digits for str.isdigit and int()
    "１２",
    "²",  # a digit for str.isdigit, none for int()
    "NaN",
    "null",
    "a\nb",
    "a\x00b",
    "\u202e",
    "../..",
    "{{.}}",
    "%s%n",
    "é" * 40,  # two bytes a character: limits are in bytes or in characters
    CLOSING_SCRIPT,
    "\x1b[2J",
)
"""Short texts that an API server takes in any field, and that mean something to some reader."""

COUNTS: Final = (0, -1, 1, 17, 2_000, 20_000, 10**6, 2 * 10**9, 2**31 - 1, 2**53, 10**10, 2**63 - 1, 10**18)
"""Whole numbers around the limits of an API server (32 and 64 bits), of a float, and of what a job may have."""
NUMBERS: Final = (
    *COUNTS, 2**31, 2**63, 2**64, 10**30, 10**400, 1e308, -1e308, 0.5, 1e-320, float("inf"), float("-inf"), float("nan")
)  # fmt: skip

NO_INDEXES: Final = ("²", "٣", "-1", "+1", "", "1.0", "1e3", "0x1", " 1", "1_0", "9" * 63, LONG_NUMBER)
"""No index or count from 0, though `int` reads some of them."""
WHOLE_NUMBERS: Final = (
    "0", "-1", "1", "00000003", "1000000000", "10000000000", "1000000000000", "9" * 401, LONG_NUMBER, "٣", "1.0", "",
)  # fmt: skip
QUANTITIES: Final = (
    "0", "-1", "1e999999999", "-1e999999999", "1e-999999999", "1E999999", "9" * 300, "0." + "0" * 300 + "1", "1e3.5",
    "64000", "1Ei", "999999999999999999999Ei", "1n", "1u", "0.1m", "+.5", "100m", ".1e1", "1e19", "9223372036854775808",
    "1e" + "9" * 10_000, "9" * 10_000, "1e1.5", "8Ei", "0e999999999",
)  # fmt: skip
"""Resource quantities as the CRD's pattern has them, of any size."""
NO_QUANTITIES: Final[tuple[object, ...]] = (
    "", ".", "+", "NaN", "sNaN", "Infinity", "inf", "1_0", "٣", "²", "5 ", "5\n", "0x5", "5ki", "5mi",
    None, True, 5.5, [], {},
)  # fmt: skip
DURATIONS: Final = (
    "0s", "1s", "1000000000d", "99999999999999999999d", "9" * 4400 + "d", "100000000000h", "5m5m", "1e3s", "", "٣d",
)  # fmt: skip
NO_DURATIONS: Final = (
    "", "5", "1h 2m", "-1m", "1.5h", "2m1h", "36500d1s", "999999999999d", "9" * 4000 + "d", "5m5m", "1e3s"
)  # fmt: skip
NO_TIMES: Final = (
    "x", "", "then", "soon", "now", "1970-01-01", "2026-01-02", "0000-00-00T00:00:00Z", "0000-01-01T00:00:00Z",
    "2026-01-02T03:04:05", "9999-12-31T23:59:59Z", LONG_NUMBER,
)  # fmt: skip
"""No times that can be computed with; the year 9999 is one, and a second later there is none."""
TIMES: Final = (
    "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-31T18:00:00",
    "1970-01-01", "2026-01-31T18:00:00Z", "0001-01-01T00:00:00Z", "2026-01-02T03:04:05Z", "now",
)  # fmt: skip

# YAML

ALIASES: Final = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefgh")
)
"""Ten aliases of ten aliases …: a list of 10^8 in a few lines."""
MERGE_KEYS: Final = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{','.join([f'*{a}'] * 10)}]}}\n" for a, b in pairwise("abcdefgh")
)
NO_YAML: Final = ("a: [", "a: [1", "\ta: 1", "a: \x07", "!!timestamp 9", "a: !!int ''", "a: !!int x", "a: !!float x")
"""No YAML, or a tag that does not fit the value; PyYAML raises something else than its own error for some."""


def deep(depth: int) -> Any:
    """Objects and lists in each other."""
    value: Any = {}
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


def named(value: object) -> str:
    """A short id for `pytest.mark.parametrize`: an id goes to every process that a test starts."""
    return ascii(value)[:20]

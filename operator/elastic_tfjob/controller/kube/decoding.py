"""JSON of the API server, of which no object keeps the others from being read.

The decoder refuses what is nested more than 1,024 levels, and a list or a watch has the objects of all tenants. The API
server takes objects that are deeper than that, in places that have no schema (`managedFields` are some). It passes on
what these hold as it came, also bytes that are no UTF-8.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

__all__ = ["MAX_DEPTH", "decode"]

MAX_DEPTH: Final = 200
"""Where an answer is too deep, what is below this many levels is taken for an empty object."""
# A string, in which brackets mean nothing, or brackets in a row. A string may lack its end: what is no JSON must not be
# looked through again from each quotation mark on.
_MARK: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]++|[\]}]++', re.DOTALL)


def decode(data: bytes) -> Any:
    """What is written in `data`. Raises orjson.JSONDecodeError for what is no JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(b"".join(_shallow(data)).decode(errors="replace"))


def _shallow(data: bytes) -> Iterator[bytes]:
    """The parts of `data` that are not too deep, and empty objects for what is."""
    depth = kept = 0
    for mark in _MARK.finditer(data):
        begin, count = mark.start(), mark.end() - mark.start()
        match data[begin : begin + 1]:
            case b"{" | b"[":
                if depth <= MAX_DEPTH < depth + count:
                    yield data[kept : begin + MAX_DEPTH - depth]
                depth += count
            case b"}" | b"]":
                if depth - count <= MAX_DEPTH < depth:
                    yield b"{}"
                    kept = begin + depth - MAX_DEPTH
                depth -= count
    if depth <= MAX_DEPTH:
        yield data[kept:]

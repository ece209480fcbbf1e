"""How objects of the API are read: only what decisions need of them, so that 10,000 jobs fit in memory. Pure.

The API server vouches for the types of what it sends, where the object's schema says them; not for the values: users
write labels and annotations, and whoever may write `pods/status` writes those. `parse` of each class in job.py, pod.py,
dependents.py and cluster.py raises ValueError, and nothing else, for an object that makes no sense: that one is then
left aside.
"""

import sys
import zlib
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import orjson

from elastic_tfjob.api.fields import cut
from elastic_tfjob.api.limits import MAX_UID, MAX_WORD
from elastic_tfjob.api.tfjob import JOB_NAME_LABEL, REPLICA_INDEX_LABEL, REPLICA_TYPE_LABEL

Raw = Mapping[str, Any]

# Namespace and name of a job.
Key = tuple[str, str]


# An index is a Go int in upstream's controller; a replica's is an int32.
_MAX_INDEX: Final = 2**31 - 1

# Bytes of JSON that is not compressed: a usual spec has 2 KiB, and zlib lets other threads run, which on a busy
# interpreter is a wait of 5 ms. Of the largest (1.5 MiB) that is nothing but noise half remains, after 20 ms; higher
# levels save no more.
_PLAIN: Final = 16 * 1024
_FAST: Final = 1


C = TypeVar("C")
T = TypeVar("T")


def readable(parse: Callable[[type[C], Raw], T]) -> Callable[[type[C], Raw], T]:
    """Have a `parse` raise ValueError whatever it finds in an object that makes no sense to it: keys that are missing,
    other types, nesting beyond what can be written again."""

    @wraps(parse)
    def read(cls: type[C], raw: Raw) -> T:
        try:
            return parse(cls, raw)
        except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError, RecursionError) as error:
            what = f"{type(error).__name__}: {cut(str(error), 200)}"
            raise ValueError(f"{cls.__name__} that cannot be read: {what}") from error

    return read


def identity(metadata: Raw) -> dict[str, Any]:
    """The fields that all objects share."""
    return {
        "namespace": sys.intern(metadata["namespace"]),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "version": int(metadata["resourceVersion"]),
    }


def of_replica(metadata: Raw) -> dict[str, Any]:
    """The fields that a replica's pod and service share."""
    labels = metadata.get("labels") or {}
    index = labels.get(REPLICA_INDEX_LABEL, "")
    return {
        **identity(metadata),
        "job": sys.intern(labels.get(JOB_NAME_LABEL, "")),
        "owner": sys.intern(controller_uid(metadata)),
        "replica_type": sys.intern(labels.get(REPLICA_TYPE_LABEL, "")),
        "index": _index(index),
        "terminating": "deletionTimestamp" in metadata,
    }


def _index(label: str) -> int | None:
    """A replica's index; None for what upstream's strconv.Atoi would not take, or what no replica can have."""
    if not (label.isascii() and label.isdecimal() and len(label) <= MAX_WORD):
        return None
    return found if (found := int(label)) <= _MAX_INDEX else None


def short_word(written: str | None) -> str:
    """One of a few words, such as a phase; whoever may write a status may write any other there."""
    return sys.intern(cut(written or "", MAX_WORD))


def controller_uid(metadata: Raw) -> str:
    """The API server does not look at the uid of a reference: a user may write any text there."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return cut(str(reference["uid"]), MAX_UID)
    return ""


def pack(value: Raw) -> bytes:
    """An object of JSON in few bytes."""
    text = orjson.dumps(value)
    # A copy: what orjson gives has a buffer of 4 KiB behind it, whatever it needs of that.
    return bytes(memoryview(text)) if len(text) < _PLAIN else zlib.compress(text, _FAST)


def unpack(packed: bytes) -> dict[str, Any]:
    """The inverse of `pack`: JSON begins with a brace, and zlib's format does not."""
    found: dict[str, Any] = orjson.loads(packed if packed.startswith(b"{") else zlib.decompress(packed))
    return found

"""A TFJob, as far as decisions read it. Pure."""

import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar

import orjson

from elastic_tfjob.api.reading import MAX_UID, MAX_WORD, cut
from elastic_tfjob.api.tfjob import (
    JOB_NAME_LABEL,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    InvalidTFJob,
    TFJobSpec,
    oversized,
)
from elastic_tfjob.controller.model.status import JobStatus, shortened

# -- How objects of the API are read -----------------------------------------------------------------------------------
# Only what decisions need of them, so that 10,000 jobs fit in memory.
#
# The API server vouches for the types of what it sends, where the object's schema says them; not for the values: users
# write labels and annotations, and whoever may write `pods/status` writes those. `parse` of each class in job.py,
# pod.py, dependents.py and cluster.py raises ValueError, and nothing else, for an object that makes no sense: that one
# is then left aside.

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


# kubectl's copy of the whole manifest: of no use here, and as large as the spec.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# By this label Kueue knows the jobs that it admits.
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True, slots=True)
class TFJob:
    """A TFJob. Spec and status stay serialised until a reconcile needs them, a tenth of their size as objects, and
    compressed where they are large. Equal specs are equal bytes.

    `queue` is the Kueue queue that admits it; empty where Kueue has no say. `owner`: uid of its controller, if any.
    `too_large` is what is wrong with a spec that is never looked into: to unpack it alone takes up to 0.1 s."""

    namespace: str
    name: str
    uid: str
    version: int
    deleting: bool
    annotations: dict[str, str]
    raw_spec: bytes
    raw_status: bytes
    created: str = ""
    queue: str = ""
    owner: str = ""
    too_large: tuple[str, ...] = ()

    @classmethod
    @readable
    def parse(cls, raw: Raw) -> "TFJob":
        """Keep what decisions read of a TFJob as the API sends it."""
        metadata = raw["metadata"]
        return cls(
            **identity(metadata),
            deleting="deletionTimestamp" in metadata,
            annotations={
                name: text
                for name, text in (metadata.get("annotations") or {}).items()
                if name != _LAST_APPLIED and isinstance(text, str)
            },
            raw_spec=pack(raw.get("spec") or {}),
            raw_status=pack(shortened(raw.get("status") or {})),
            created=metadata.get("creationTimestamp") or "",
            queue=sys.intern((metadata.get("labels") or {}).get(_QUEUE_LABEL, "")),
            owner=controller_uid(metadata),
            too_large=tuple(oversized(raw.get("spec"))),
        )

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    def spec(self) -> TFJobSpec:
        """Parse the spec. Raises InvalidTFJob on what the CRD should have refused."""
        if self.too_large:
            raise InvalidTFJob(list(self.too_large))
        return TFJobSpec.parse(unpack(self.raw_spec))

    def status(self) -> JobStatus:
        """Parse the status into a fresh working copy."""
        return JobStatus.parse(unpack(self.raw_status))

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
# Only the fields that decisions need are kept, so that 10,000 jobs fit in memory. The API server guarantees the types
# that an object's schema declares, but not the values: users write labels and annotations, and clients with write
# access to `pods/status` write statuses. `parse` of each class in job.py, pod.py, owned_objects.py and cluster.py
# raises ValueError, and nothing else, for an invalid object, which is then ignored.

Raw = Mapping[str, Any]

# Namespace and name of a job.
Key = tuple[str, str]


# An index is a Go int in upstream's controller; a replica's index is an int32.
_MAX_INDEX: Final = 2**31 - 1

# Bytes up to which JSON is not compressed. A usual spec has 2 KiB, and zlib lets other threads run, which means a wait
# of 5 ms on a busy interpreter. The largest spec (1.5 MiB) of random content shrinks to half in 20 ms; higher
# compression levels save no more.
_PLAIN: Final = 16 * 1024
_FAST: Final = 1


C = TypeVar("C")
T = TypeVar("T")


def readable(parse: Callable[[type[C], Raw], T]) -> Callable[[type[C], Raw], T]:
    """Makes a `parse` raise ValueError for every invalid object: missing keys, wrong types, and nesting too deep to be
    written again."""

    @wraps(parse)
    def read(cls: type[C], raw: Raw) -> T:
        try:
            return parse(cls, raw)
        except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError, RecursionError) as error:
            what = f"{type(error).__name__}: {cut(str(error), 200)}"
            raise ValueError(f"{cls.__name__} that cannot be read: {what}") from error

    return read


def identity(metadata: Raw) -> dict[str, Any]:
    """Returns the fields that all objects share."""
    return {
        "namespace": sys.intern(metadata["namespace"]),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "version": int(metadata["resourceVersion"]),
    }


def of_replica(metadata: Raw) -> dict[str, Any]:
    """Returns the fields that a replica's pod and service share."""
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
    """Returns a replica's index; None for text that upstream's strconv.Atoi would refuse, or an index that no replica
    can have."""
    if not (label.isascii() and label.isdecimal() and len(label) <= MAX_WORD):
        return None
    return found if (found := int(label)) <= _MAX_INDEX else None


def short_word(written: str | None) -> str:
    """Returns a short word of a fixed set, such as a phase, cut to MAX_WORD: a client that may write a status may write
    any text there."""
    return sys.intern(cut(written or "", MAX_WORD))


def controller_uid(metadata: Raw) -> str:
    """Returns the uid of an object's controller. The API server does not check the uid of a reference, so a user may
    write any text there."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return cut(str(reference["uid"]), MAX_UID)
    return ""


def pack(value: Raw) -> bytes:
    """Returns a JSON object in compact form, as bytes."""
    text = orjson.dumps(value)
    # A copy, because the bytes that orjson returns keep a buffer of 4 KiB, whatever their length.
    return bytes(memoryview(text)) if len(text) < _PLAIN else zlib.compress(text, _FAST)


def unpack(packed: bytes) -> dict[str, Any]:
    """The inverse of `pack`. JSON begins with a brace, and zlib's format does not."""
    found: dict[str, Any] = orjson.loads(packed if packed.startswith(b"{") else zlib.decompress(packed))
    return found


# kubectl's copy of the whole manifest: unused here, and as large as the spec.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# The label by which Kueue recognises the jobs that it admits.
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True, slots=True)
class TFJob:
    """A TFJob. Spec and status stay serialised until a reconcile needs them, at a tenth of their size as objects, and
    compressed if they are large. Equal specs are equal bytes.

    `queue` is the Kueue queue that admits the job; empty if Kueue does not. `owner` is the uid of its controller, if
    any. `too_large` lists the problems of a spec that is too large to be read: unpacking it would take up to 0.1 s."""

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
        """Keeps what decisions read of a TFJob in the API's form. Raises ValueError for an invalid one."""
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
        """Parses the spec. Raises InvalidTFJob for a spec that the CRD should have refused."""
        if self.too_large:
            raise InvalidTFJob(list(self.too_large))
        return TFJobSpec.parse(unpack(self.raw_spec))

    def status(self) -> JobStatus:
        """Parses the status into a new working copy."""
        return JobStatus.parse(unpack(self.raw_status))

"""A TFJob, as far as decisions read it. Pure."""

import sys
from dataclasses import dataclass

from elastic_tfjob.api.template_size import oversized
from elastic_tfjob.api.tfjob import InvalidTFJob, TFJobSpec
from elastic_tfjob.controller.objects.parsing import Key, Raw, controller_uid, identity, pack, readable, unpack
from elastic_tfjob.controller.objects.status import JobStatus, shortened

# kubectl's copy of the whole manifest: of no use here, and as large as the spec.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# By this label Kueue knows the jobs that it admits.
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True, slots=True)
class Job:
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
    def parse(cls, raw: Raw) -> "Job":
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

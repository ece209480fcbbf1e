"""What must hold of the memory of a job's pods: it is what is allowed and stored, and each kill is named."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from campaign.apiserver import ApiServer, Change, Object
from campaign.cluster import PENDING
from elastic_tfjob.api.annotations import Elasticity
from elastic_tfjob.api.quantity import whole
from elastic_tfjob.api.tfjob import REPLICA_TYPE_LABEL, TFJobSpec
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION
from elastic_tfjob.controller.model.memory import memory_of

__all__ = ["MemoryOracles"]

_RESOURCES: Final = ("cpu", "memory")


@dataclass
class MemoryOracles:
    """Part of Oracles, which calls it with each change of a pod of a job."""

    server: ApiServer
    operators: set[str]
    fail: Callable[[str, str], None]
    _kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of the kernel, by uid of the job and type in small letters."""
    heard: Callable[[str], None] = lambda _: None
    """Called with the type that the kernel has killed a container of."""

    def observe(self, change: Change) -> None:
        """A pod was created, or its spec has changed."""
        old, new = change.old, change.new
        if new is None or (old is not None and old["spec"] is new["spec"]):
            return
        if old is not None:
            self._class_stays(old, new)
        if change.by in self.operators:
            self._rises_as_allowed(old, new)

    def _class_stays(self, old: Object, new: Object) -> None:
        """The pod's class of quality of service."""
        if (before := _class_of(old["spec"])) != (after := _class_of(new["spec"])):
            self.fail("quality_of_service_stays", f"{new['metadata']['name']}: {before} became {after}")

    def _rises_as_allowed(self, old: Object | None, new: Object) -> None:
        """The memory is at most what is allowed, and stored before it is given; the request follows. It falls only
        where that of a second program is given back, or what a node has not given is not asked for any more."""
        name, kind = new["metadata"]["name"], new["metadata"]["labels"][REPLICA_TYPE_LABEL]
        owner = new["metadata"]["ownerReferences"][0]
        job = self.server.get("tfjobs", new["metadata"]["namespace"], owner["name"])
        if job is None or job["metadata"]["uid"] != owner["uid"]:
            return
        given, before = memory_of(new["spec"]), memory_of(old["spec"] if old is not None else {})
        types = job["spec"]["tfReplicaSpecs"]
        spelled, template = next((each, value["template"]) for each, value in types.items() if each.lower() == kind)
        declared, stored = memory_of(template["spec"]), _stored(job).get(spelled, {})
        raised, beside = (max(stored.get(each) or 0, declared.bound) for each in ("raised", "beside"))
        deferred = old is not None and any(each["type"] == PENDING for each in old["status"].get("conditions") or ())
        least = before.bound
        if old is None:
            least = raised
        elif deferred or stored.get("beside"):  # decided before a raise that is not in force yet
            least = max(declared.bound, stored.get("before") or raised)
        if given.bound < least:
            self.fail("memory_never_falls", f"{name}: {given.bound} after {before.bound}, stored: {stored}")
        if given.bound <= declared.bound:
            return
        annotations = job["metadata"].get("annotations") or {}
        spec = TFJobSpec.model_validate(job["spec"])
        most = Elasticity.parse(annotations, spec, job["metadata"]["name"]).most_memory(spelled)
        if given.bound > (most or 0):
            self.fail("max_memory_is_kept", f"{name}: {given.bound} of {most}")
        if given.bound > max(raised, beside):
            self.fail("memory_is_stored_before_it_is_given", f"{name}: {given.bound}, stored: {stored}")
        # By one MiB less, it keeps the pod's class where it is below the limit in the template.
        below = 1 << 20 if declared.request < declared.limit else 0
        if given.request < given.bound - below:
            self.fail("request_follows_limit", f"{name}: {given.request} of {given.bound}")

    def killed(self, job: str, kind: str) -> None:
        """The kernel has killed a container of a job, named by its namespace and name."""
        found = self.server.get("tfjobs", *job.split("/"))
        if found is not None:
            self._kills[found["metadata"]["uid"], kind] += 1
        self.heard(kind)

    def kills_are_named(self) -> None:
        """Each kill has been counted once, and those of a type have an event."""
        for job in self.server.all("tfjobs"):
            stored = {kind.lower(): each.get("kills", 0) for kind, each in _stored(job).items()}
            told = [
                each["message"]
                for each in self.server.all("events")
                if each["reason"] == "OutOfMemory" and each["involvedObject"]["uid"] == job["metadata"]["uid"]
            ]
            for (uid, kind), kills in self._kills.items():
                if uid != job["metadata"]["uid"]:
                    continue
                if stored.get(kind) != kills:
                    self.fail("kills_are_named", f"{stored.get(kind)} of {kills} kills of {kind} are known")
                if not any(f"-{kind}-" in message for message in told):
                    self.fail("kills_are_named", f"no event tells of the {kills} kills of {kind}")


def _stored(job: Object) -> Mapping[str, Any]:
    text = (job["metadata"].get("annotations") or {}).get(STATE_ANNOTATION)
    found: Mapping[str, Any] = json.loads(text).get("memory") or {} if text else {}
    return found


def _class_of(spec: Mapping[str, Any]) -> str:
    """As Kubernetes has it of a pod without pod-level resources."""
    asked = [each.get("resources") or {} for kind in ("containers", "initContainers") for each in spec.get(kind) or ()]
    amounts = [
        tuple(whole((each.get(kind) or {}).get(name, 0)) for kind in ("requests", "limits"))
        for each in asked
        for name in _RESOURCES
    ]
    if all(limit and request in (0, limit) for request, limit in amounts):
        return "Guaranteed"
    return "Burstable" if any(amount for each in amounts for amount in each) else "BestEffort"

"""Memory of a job's replicas: what the state remembers of it, and templates with a raised limit. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from elastic_tfjob.api.annotations import PREFIX, Elasticity
from elastic_tfjob.api.quantity import whole
from elastic_tfjob.api.reading import (
    MAX_GENERATION,
    MAX_POD_BYTES,
    MAX_REPLICA_TYPES,
    MAX_REPLICAS,
    MAX_WORD,
    Fields,
    Lenient,
)
from elastic_tfjob.api.tfjob import CONTAINER, TFJobSpec
from elastic_tfjob.api.words import bytes_in_words
from elastic_tfjob.controller.model.quantities import has_pod_level_resources
from elastic_tfjob.controller.model.status import moment_of

__all__ = [
    "NO_MEMORY",
    "UNSEEN",
    "MemoryAsked",
    "TypeMemory",
    "least_replicas",
    "memory_of",
    "raised_memory",
    "raised_to",
    "read_memory",
    "resources_with",
    "save_requested",
    "why_not_resized",
    "with_memory",
    "without_effect",
    "written_memory",
]

Raw = Mapping[str, Any]


class MemoryAsked(NamedTuple):
    """Memory request and limit of a container, in bytes; 0: none."""

    request: int
    limit: int

    @property
    def bound(self) -> int:
        """What the container may use before something happens: its limit, or without one its request."""
        return self.limit or self.request


NO_MEMORY: Final = MemoryAsked(0, 0)
# Bytes by which a request stays below its limit.
_BELOW: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TypeMemory:
    """Memory of the replicas of one type, in bytes; times are RFC 3339. `raised`: what each may have, if that is more
    than the template says. `before`: what they had before, until they have it; it was raised at `raised_at`. Without
    `before` it could not be raised then. `beside`: what each has while a second program starts beside its own, since
    `beside_at`; without that time it is to be given back. `replicas`: among how many the memory must be divided at
    least. `saved_at`: when the chief was last asked to save because a kill is near. `highest`, `growth_per_s` and
    `limit` are of the one that uses most, as last reported. `kills`: the kills for memory that the job has seen;
    `killed`: when each pod that is there was killed last, by index."""

    raised: int | None = None
    before: int | None = None
    raised_at: str = ""
    beside: int | None = None
    beside_at: str = ""
    replicas: int | None = None
    saved_at: str = ""
    highest: int | None = None
    growth_per_s: float | None = None
    limit: int | None = None
    kills: int = 0
    killed: Mapping[str, str] = field(default_factory=dict)


UNSEEN: Final = TypeMemory()
"""Of a type of which nothing is known."""


def without_effect(elasticity: Elasticity, spec: TFJobSpec) -> list[str]:
    """Returns why `max-memory` has no effect on types of the user's spec, as texts."""
    found = [
        f"{PREFIX}max-memory: the job has no {name}; it has {', '.join(spec.tf_replica_specs)}"
        for name in elasticity.max_memory
        if name and name not in spec.tf_replica_specs
    ]
    idle: list[str] = []
    asked = [name for name in spec.tf_replica_specs if elasticity.most_memory(name) is not None]
    for name in asked:
        pod = spec.tf_replica_specs[name].template.get("spec") or {}
        bound, most = memory_of(pod).bound, elasticity.most_memory(name) or 0
        if why := why_not_resized(pod):
            idle.append(f"{PREFIX}max-memory: {name} {why}")
        elif not bound:
            idle.append(f"{PREFIX}max-memory: {name} has no memory limit or request in its template to be raised")
        elif most <= bound:
            idle.append(
                f"{PREFIX}max-memory: {bytes_in_words(most)} is no more than {name} has in its template, "
                f"{bytes_in_words(bound)}"
            )
    # One amount for all types may fit some of them only.
    if "" not in elasticity.max_memory or len(idle) == len(asked):
        found += idle
    return found


def read_memory(raw: Fields, lenient: Lenient) -> dict[str, TypeMemory]:
    """Reads the state's figures by replica type; invalid ones count as missing."""
    types = lenient(raw.within, "memory") or Fields({})
    names = [name for name in types.names(MAX_REPLICA_TYPES) if len(name) <= MAX_WORD]
    found = {name: lenient(_type_memory, types, name) for name in names}
    return {name: each for name, each in found.items() if each is not None}


def _type_memory(types: Fields, name: str) -> TypeMemory | None:
    if (raw := types.within(name)) is None:
        return None
    return TypeMemory(
        raw.integer("raised", MAX_POD_BYTES),
        raw.integer("before", MAX_POD_BYTES),
        raw.time("raised_at", empty=True) or "",
        raw.integer("beside", MAX_POD_BYTES),
        raw.time("beside_at", empty=True) or "",
        raw.integer("replicas", MAX_REPLICAS),
        raw.time("saved_at", empty=True) or "",
        raw.integer("highest", MAX_POD_BYTES),
        raw.number("growth_per_s", MAX_POD_BYTES),
        raw.integer("limit", MAX_POD_BYTES),
        raw.whole("kills", MAX_GENERATION, default=0),
        _killed(raw.within("killed")),
    )


def _killed(raw: Fields | None) -> dict[str, str]:
    found = {index: raw.time(index) for index in raw.names(MAX_REPLICAS)} if raw is not None else {}
    return {index: at for index, at in found.items() if at is not None}


def memory_of(pod_spec: Raw, trains: str = CONTAINER) -> MemoryAsked:
    """Returns the memory of the container that `trains`; a limit without a request is the request."""
    for container in pod_spec.get("containers") or ():
        if container.get("name") == trains:
            resources = container.get("resources") or {}
            limit = (resources.get("limits") or {}).get("memory", 0)
            request = (resources.get("requests") or {}).get("memory", limit)
            return MemoryAsked(whole(request), whole(limit))
    return NO_MEMORY


def why_not_resized(pod_spec: Raw) -> str:
    """Returns what a template has by which memory cannot be changed while its programs run, as a text; else empty."""
    if has_pod_level_resources(pod_spec):
        return "has resources of the whole pod, which Kubernetes does not change"
    policies = (
        each
        for container in pod_spec.get("containers") or ()
        if container.get("name") == CONTAINER
        for each in container.get("resizePolicy") or ()
    )
    if {"resourceName": "memory", "restartPolicy": "RestartContainer"} in policies:
        return "has the resizePolicy RestartContainer for memory, by which each raise would end its programs"
    return ""


def raised_to(asked: MemoryAsked, raised: int) -> MemoryAsked:
    """Returns the memory with a raised bound: the request follows the limit, as a node must have what is used. One that
    was below its limit stays so, since the API server refuses a pod that would become Guaranteed."""
    if raised <= asked.bound:
        return asked
    below = _BELOW if asked.request < asked.limit else 0
    return MemoryAsked(max(asked.request, raised - below), raised if asked.limit else 0)


def written_memory(memory: Mapping[str, TypeMemory]) -> dict[str, dict[str, Any]]:
    """Returns the state's figures by replica type, without what is not known."""
    return {name: {key: value for key, value in asdict(each).items() if value} for name, each in memory.items()}


def raised_memory(memory: Mapping[str, TypeMemory]) -> dict[str, int]:
    """Returns the raised bytes of each replica, by type; types with their template's memory are left out."""
    return {name: found.raised for name, found in memory.items() if found.raised is not None}


def save_requested(memory: Mapping[str, TypeMemory]) -> int | None:
    """Returns the number of the last save that was asked for because a kill is near; later ones have higher numbers."""
    return max((int(at.timestamp()) for each in memory.values() if (at := moment_of(each.saved_at))), default=None)


def least_replicas(memory: Mapping[str, TypeMemory]) -> dict[str, int]:
    """Returns among how many replicas the memory of a type must be divided at least, by type."""
    return {name: found.replicas for name, found in memory.items() if found.replicas is not None}


def with_memory(spec: TFJobSpec, raised: Mapping[str, int]) -> TFJobSpec:
    """Returns the spec with raised memory in its templates; the same object if nothing is raised."""
    changed = {}
    for name, most in raised.items():
        template = spec.tf_replica_specs[name].template if name in spec.tf_replica_specs else {}
        asked = memory_of(template.get("spec") or {})
        if (wanted := raised_to(asked, most)) != asked:
            changed[name] = spec.tf_replica_specs[name].model_copy(update={"template": _with(template, wanted)})
    return spec.model_copy(update={"tf_replica_specs": {**spec.tf_replica_specs, **changed}}) if changed else spec


def _with(template: Raw, wanted: MemoryAsked) -> dict[str, Any]:
    pod = template.get("spec") or {}
    containers = [
        {**each, "resources": resources_with(each.get("resources") or {}, wanted)}
        if each.get("name") == CONTAINER
        else each
        for each in pod.get("containers") or ()
    ]
    return {**template, "spec": {**pod, "containers": containers}}


def resources_with(resources: Raw, wanted: MemoryAsked) -> dict[str, Any]:
    """Returns a container's resources with this memory."""
    requests = {**(resources.get("requests") or {}), "memory": str(wanted.request)}
    limits = {**(resources.get("limits") or {}), **({"memory": str(wanted.limit)} if wanted.limit else {})}
    return {**resources, "requests": requests, **({"limits": limits} if limits else {})}

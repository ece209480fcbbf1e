"""Resources of the injected containers in a job whose namespace does not admit the configured ones. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from elastic_tfjob.api.quantity import is_quantity, quantity
from elastic_tfjob.api.reading import MAX_TEXT, MAX_WORD, Fields, cut

__all__ = ["DEFAULT_RESOURCES", "RESOURCES", "UNCOUNTED", "ContainerResources", "Injection", "read_injection"]

ContainerResources = Mapping[str, Mapping[str, str]]
"""`requests` and `limits` of a container, by resource name."""

RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources that the operator's containers may request."""

# No CPU is requested (2 millicores are used), so that a pod which requests all of a node's CPU still fits there. The 0
# is explicit, as a namespace with a quota admits no container without a request.
DEFAULT_RESOURCES: Final[ContainerResources] = {
    "requests": {"cpu": "0", "memory": "32Mi"},
    "limits": {"memory": "96Mi"},
}
# These change neither the pod's requests nor its QoS class.
UNCOUNTED: Final[ContainerResources] = {"requests": {"cpu": "0", "memory": "0"}}

_TRIES: Final = 100
# In bytes; as a number of CPUs it exceeds any node.
_LARGEST: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Injection:
    """What a job's namespace admits: the operator's containers with `resources` that differ from the configured ones,
    or, if `refused` has the API server's message, pods without these containers. `at` is when that was found (RFC
    3339). `tries` counts the changes of resources since the job's pods were last created. `recreated`: the job's
    other pods take the amounts that this pod needs, so they are recreated once with these resources; this
    field is not stored."""

    resources: ContainerResources = field(default_factory=dict)
    refused: str = ""
    at: str = ""
    tries: int = 0
    recreated: bool = False

    def __post_init__(self) -> None:
        if len(self.refused) > MAX_TEXT:
            object.__setattr__(self, "refused", cut(self.refused))

    def to_dict(self) -> dict[str, object]:
        """Returns the injection as the state stores it."""
        return {"resources": self.resources, "refused": self.refused, "at": self.at, "tries": self.tries}


def read_injection(raw: Fields) -> Injection:
    """Reads the injection from the state. Raises ValueError for an invalid one, and nothing else."""
    refused = raw.text("refused")
    resources = (
        {} if refused else {kind: _amounts(found) for kind in ("requests", "limits") if (found := _of(raw, kind))}
    )
    if not (refused or resources):
        raise ValueError(f"{raw.place('resources')} is missing")
    return Injection(resources, refused, raw.time("at", empty=True) or "", raw.whole("tries", _TRIES, default=0))


def _of(raw: Fields, kind: str) -> Fields | None:
    resources = raw.within("resources")
    return resources.within(kind) if resources is not None else None


def _amounts(raw: Fields) -> dict[str, str]:
    found = {}
    for name in RESOURCES:
        if text := raw.text(name, MAX_WORD):
            if not is_quantity(text) or quantity(text) > _LARGEST:
                raise raw.wrong(name, "an amount such as 100m or 64Mi")
            found[name] = text
    return found

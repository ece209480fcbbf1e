"""How a job's pods get what the operator adds, where their namespace does not admit it as configured. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from elastic_tfjob.api.reading import MAX_TEXT, MAX_WORD, Fields, cut
from elastic_tfjob.controller.model.quantities import is_quantity, quantity

__all__ = ["DEFAULT_RESOURCES", "RESOURCES", "UNCOUNTED", "ContainerResources", "Injection", "read_injection"]

ContainerResources = Mapping[str, Mapping[str, str]]
"""`requests` and `limits` of a container, by the name of the resource."""

RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
"""What a container of the operator's may ask for."""

# No CPU of its own (it uses 2 millicores), so that a pod which asks for all that a node has still fits there. The 0 is
# written out, as a namespace with a quota admits no container without a request.
DEFAULT_RESOURCES: Final[ContainerResources] = {
    "requests": {"cpu": "0", "memory": "32Mi"},
    "limits": {"memory": "96Mi"},
}
# Changes neither what the pod asks for nor its QoS class.
UNCOUNTED: Final[ContainerResources] = {"requests": {"cpu": "0", "memory": "0"}}

_TRIES: Final = 100
# Bytes, and far beyond any number of CPUs.
_LARGEST: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Injection:
    """What the namespace of a job admits: the operator's containers with other `resources` than the configured ones,
    or, where `refused` has the API server's sentence, pods without any. `at`: since when (RFC 3339). `tries`: how often
    the resources were changed since the job's pods were made last. `anew`: the job's other pods take what this one
    needs, so they are recreated with these resources, once; not stored."""

    resources: ContainerResources = field(default_factory=dict)
    refused: str = ""
    at: str = ""
    tries: int = 0
    anew: bool = False

    def __post_init__(self) -> None:
        if len(self.refused) > MAX_TEXT:
            object.__setattr__(self, "refused", cut(self.refused))

    def to_dict(self) -> dict[str, object]:
        """As the state has it."""
        return {"resources": self.resources, "refused": self.refused, "at": self.at, "tries": self.tries}


def read_injection(raw: Fields) -> Injection:
    """From the state. Raises ValueError for what is wrong in it, and nothing else."""
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

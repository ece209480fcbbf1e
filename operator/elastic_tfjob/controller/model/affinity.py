"""The nodes that a pod may be bound to, by its spec. Pure."""

from collections.abc import Iterable
from typing import Final

from elastic_tfjob.api.reading import MAX_NODE_NAME, cut
from elastic_tfjob.controller.model.job import Raw
from elastic_tfjob.scheduling.resources import Constraints, Requirement, Toleration

# The one field that required node affinity may name beside labels; given to the core as one more label.
NAME_FIELD: Final = "metadata.name"


def required_terms(spec: Raw) -> Iterable[Raw]:
    """The terms of a pod's required node affinity, of which a node must match one."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return affinity.get("nodeSelectorTerms") or ()


def pinned_to(spec: Raw) -> str:
    """The node that inject.pin wrote into a pod's affinity, as the last of a term's fields."""
    for term in required_terms(spec):
        for field in reversed(term.get("matchFields") or ()):
            if field["key"] == "metadata.name" and field["operator"] == "In" and field.get("values"):
                return cut(field["values"][0], MAX_NODE_NAME)
    return ""


def template_pin(template: Raw) -> str:
    """The node that a user's template pins its pods to, if any. Nobody has checked a template but for what the API
    server says when a pod is made of it."""
    try:
        return pinned_to(template.get("spec") or {})
    except (AttributeError, KeyError, TypeError, IndexError, ValueError):
        return ""


def constraints_of(pod: Raw) -> Constraints:
    """Where a pod may run, by its node selector, required node affinity, name of a node and tolerations."""
    affinity = tuple(
        tuple(
            Requirement(each["key"], each["operator"], tuple(each.get("values") or ()))
            for part in ("matchExpressions", "matchFields")
            for each in term.get(part) or ()
        )
        for term in required_terms(pod)
    )
    selector = dict(pod.get("nodeSelector") or {})
    if pod.get("nodeName"):
        selector[NAME_FIELD] = pod["nodeName"]
    tolerations = tuple(
        Toleration(each.get("key", ""), each.get("operator") or "Equal", each.get("value", ""), each.get("effect", ""))
        for each in pod.get("tolerations") or ()
    )
    return Constraints(tuple(sorted(selector.items())), affinity, tolerations)

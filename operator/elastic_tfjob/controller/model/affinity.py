"""Reads from a pod's spec the nodes that it may be bound to. Pure."""

from collections.abc import Iterable
from typing import Final

from elastic_tfjob.api.reading import MAX_NODE_NAME, cut
from elastic_tfjob.controller.model.job import Raw
from elastic_tfjob.scheduling.resources import Constraints, Requirement, Toleration

# The only field that required node affinity may name besides labels; the decision core gets it as one more label.
NAME_FIELD: Final = "metadata.name"


def required_terms(spec: Raw) -> Iterable[Raw]:
    """Returns the terms of a pod's required node affinity; a node must match one of them."""
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return affinity.get("nodeSelectorTerms") or ()


def pinned_to(spec: Raw) -> str:
    """Returns the node that inject.pin wrote into a pod's affinity, as the last of a term's fields; empty if there is
    none."""
    for term in required_terms(spec):
        for field in reversed(term.get("matchFields") or ()):
            if field["key"] == "metadata.name" and field["operator"] == "In" and field.get("values"):
                return cut(field["values"][0], MAX_NODE_NAME)
    return ""


def template_pin(template: Raw) -> str:
    """Returns the node that a user's template pins its pods to; empty if there is none. The API server checks a
    template only when a pod is made from it, so any content is accepted here."""
    try:
        return pinned_to(template.get("spec") or {})
    except (AttributeError, KeyError, TypeError, IndexError, ValueError):
        return ""


def constraints_of(pod: Raw) -> Constraints:
    """Returns where a pod may run, by its node selector, required node affinity, node name and tolerations."""
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

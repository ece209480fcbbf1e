"""How much a spec may hold beside its replicas: what it costs to make a pod of a template, and to plan for it. Pure.

A spec of 1.5 MB, which Kubernetes admits, is half a million objects where it is made of small ones; each pod is a copy
of them all, and each pass and each round reads some. This is looked at before anything else of a spec is, in time that
the limits bound whatever the spec is: nothing here recurses, and a walk ends where there is too much.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from elastic_tfjob.api.fields import cut
from elastic_tfjob.api.limits import (
    MAX_AFFINITY_VALUES,
    MAX_ALL_TEMPLATES_VALUES,
    MAX_DEPTH,
    MAX_PLACEMENT_TERMS,
    MAX_QUANTITY_EXPONENT,
    MAX_QUANTITY_LENGTH,
    MAX_REPLICA_TYPES,
    MAX_RESOURCE_NAMES,
    MAX_TEMPLATE_VALUES,
    MAX_WORD,
)

__all__ = ["oversized", "oversized_jobset"]

_REQUIRED: Final = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


# Where a pod's spec holds quantities, at whatever depth: objects of them, and single ones.
_QUANTITIES: Final = ("limits", "requests", "overhead")
_QUANTITY: Final = ("sizeLimit", "divisor")
_EXPONENT: Final = re.compile(r"[eE][+-]?0*([0-9]+)$")


def oversized(spec: object) -> Iterator[str]:
    """What of a TFJob's spec, as the API sends it, is more than is allowed: where, how much, and what is allowed. What
    is of another type than it should be is passed over."""
    spec = _object(spec)
    policy = _object(_object(spec.get("runPolicy")).get("schedulingPolicy"))
    yield from _many("spec.runPolicy.schedulingPolicy.minResources", policy.get("minResources"), MAX_RESOURCE_NAMES)
    types = _object(spec.get("tfReplicaSpecs"))
    if len(types) > MAX_REPLICA_TYPES:
        yield f"spec.tfReplicaSpecs: {len(types)} replica types, allowed are {MAX_REPLICA_TYPES}"
        return
    total, each_fits = 0, True
    for name, replica in types.items():
        path = f"spec.tfReplicaSpecs[{cut(str(name), MAX_WORD)}].template"
        template = _object(_object(replica).get("template"))
        values, problem = _walk(template)
        total += values
        if problem:
            each_fits = False
            yield f"{path}: {problem}"
        else:
            yield from _lists(template, path)
    if each_fits and total > MAX_ALL_TEMPLATES_VALUES:
        yield (
            f"spec.tfReplicaSpecs: the templates of all types together have {total} values (keys and entries of "
            f"lists), allowed are {MAX_ALL_TEMPLATES_VALUES}"
        )


def oversized_jobset(spec: object) -> Iterator[str]:
    """The same of a JobSet's spec, whose replicated jobs are one replica type each."""
    jobs = _list(_object(spec).get("replicatedJobs"))
    if len(jobs) > MAX_REPLICA_TYPES:
        yield f"spec.replicatedJobs: {len(jobs)} replicated jobs, allowed are {MAX_REPLICA_TYPES}"
        return
    for job in map(_object, jobs):
        path = f"spec.replicatedJobs[{cut(str(job.get('name')), MAX_WORD)}].template.spec.template"
        template = _object(_object(_object(job.get("template")).get("spec")).get("template"))
        _, problem = _walk(template)
        if problem:
            yield f"{path}: {problem}"
        else:
            yield from _lists(template, path)


def _walk(template: Mapping[str, Any]) -> tuple[int, str]:
    """How many keys and entries of lists there are at all depths, and what is wrong with them. Level by level, so that
    no more than the limit is ever held."""
    values, level = 0, [template]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            values += len(each)
            if values > MAX_TEMPLATE_VALUES:
                return values, f"more than {MAX_TEMPLATE_VALUES} values (keys and entries of lists), the most allowed"
            if problem := _quantities(each):
                return values, problem
            inner = each.values() if isinstance(each, dict) else each
            below += [value for value in inner if isinstance(value, dict | list)]
        if not below:
            return values, ""
        level = below
    return values, f"nested deeper than {MAX_DEPTH} levels, the most allowed"


def _quantities(found: object) -> str:
    """What is wrong with the quantities that an object has, whatever they are for."""
    if not isinstance(found, dict):
        return ""
    amounts = [(key, found[key]) for key in _QUANTITY if key in found]
    for name in _QUANTITIES:
        amounts += [(f"{name}[{cut(str(key), MAX_WORD)}]", amount) for key, amount in _object(found.get(name)).items()]
    for where, amount in amounts:
        if not isinstance(amount, str):
            continue
        if len(amount) > MAX_QUANTITY_LENGTH:
            return f"{where}: a quantity of {len(amount)} characters, allowed are {MAX_QUANTITY_LENGTH}"
        exponent = _EXPONENT.search(amount)
        if exponent is not None and int(exponent.group(1)) > MAX_QUANTITY_EXPONENT:
            return f"{where}: {amount} has an exponent beyond {MAX_QUANTITY_EXPONENT}, the most allowed"
    return ""


def _lists(template: Mapping[str, Any], path: str) -> Iterator[str]:
    """Lists that rounds compare with each node, and names of resources, each of which is read. The walk has bounded
    them all together."""
    pod, path = _object(template.get("spec")), f"{path}.spec"
    for name in ("nodeSelector", "tolerations"):
        yield from _many(f"{path}.{name}", pod.get(name), MAX_PLACEMENT_TERMS)
    yield from _many(f"{path}.overhead", pod.get("overhead"), MAX_RESOURCE_NAMES)
    for name in ("limits", "requests"):
        yield from _many(f"{path}.resources.{name}", _object(pod.get("resources")).get(name), MAX_RESOURCE_NAMES)
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(_list(pod.get(kind))):
            resources = _object(_object(container).get("resources"))
            for name in ("limits", "requests"):
                where = f"{path}.{kind}[{index}].resources.{name}"
                yield from _many(where, resources.get(name), MAX_RESOURCE_NAMES)
    if "affinity" in pod:
        yield from _affinity(pod, f"{path}.{_REQUIRED}")


def _affinity(pod: Mapping[str, Any], path: str) -> Iterator[str]:
    found: Any = pod
    for name in _REQUIRED.split("."):
        found = _object(found).get(name)
    terms = _list(found)
    requirements = [
        each
        for term in terms
        for part in ("matchExpressions", "matchFields")
        for each in _list(_object(term).get(part))
    ]
    values = sum(len(_list(_object(each).get("values"))) for each in requirements)
    yield from _many(path, terms, MAX_PLACEMENT_TERMS)
    if len(requirements) > MAX_PLACEMENT_TERMS:
        yield f"{path}: {len(requirements)} expressions of all terms together, allowed are {MAX_PLACEMENT_TERMS}"
    if values > MAX_AFFINITY_VALUES:
        yield f"{path}: {values} values of all expressions together, allowed are {MAX_AFFINITY_VALUES}"


def _many(path: str, found: object, most: int) -> Iterator[str]:
    if isinstance(found, dict | list) and len(found) > most:
        yield f"{path}: {len(found)} entries, allowed are {most}"


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []

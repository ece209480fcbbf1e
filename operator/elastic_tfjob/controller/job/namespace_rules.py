"""Reads a namespace's rules for the operator's containers from the API server's refusal. Pure.

A refusal by LimitRanger or ResourceQuota names the resource and the amount. Reading it needs no additional permission,
and follows the rules as the API server applies them: several LimitRanges, defaults, scopes. The result is only a
proposal: the API server is asked again. If its messages change in a later version, nothing is proposed, and pods run
without the operator's containers.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from math import ceil
from typing import Final

from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.controller.model.injection import ContainerResources

__all__ = ["Freed", "fitted", "room_if_left"]

# Limits for a namespace that requires them when none are configured, and limits for one that bounds the ratio of limit
# to request.
_LIMITS: Final = {"cpu": "500m", "memory": "96Mi", "ephemeral-storage": "64Mi"}
_BY_RATIO: Final = {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "64Mi"}
# The most that the injected container may take in each pod: rescaling without a pause is not worth more to a job.
_MOST: Final = {"cpu": quantity("500m"), "memory": quantity("512Mi"), "ephemeral-storage": quantity("1Gi")}

_NAME: Final = "(cpu|memory|ephemeral-storage)"
_AMOUNT: Final = "([0-9]+(?:e[+-]?[0-9]+|[A-Za-z]*))"
_LEAST: Final = re.compile(rf"minimum {_NAME} usage per Container is {_AMOUNT}")
_GREATEST: Final = re.compile(rf"maximum {_NAME} usage per (Container|Pod) is {_AMOUNT}")
_RATIO: Final = re.compile(rf"{_NAME} max limit to request ratio per (?:Container|Pod) is {_AMOUNT},")
_MISSING: Final = re.compile(r"must specify (.+)")
_EXCEEDED: Final = re.compile(r"exceeded quota: [^,]+, requested: ([^ ]+), used")
_USE: Final = re.compile(r"exceeded quota: [^,]+, requested: ([^ ]+), used: ([^ ]+), limited: ([^ ]+)")
_OF_QUOTA: Final = re.compile(rf"(?:(requests|limits)\.)?{_NAME}")

Amounts = dict[str, dict[str, Decimal]]
Freed = Mapping[tuple[str, str], Decimal]
"""Amounts by kind (`requests` or `limits`) and resource."""


def fitted(resources: ContainerResources, refusal: str) -> ContainerResources | None:
    """Returns resources for the operator's container that meet a refusal; None if no resources would, or they would
    exceed _MOST."""
    found: Amounts = {
        kind: {name: quantity(text) for name, text in (resources.get(kind) or {}).items()}
        for kind in ("requests", "limits")
    }
    before = {kind: dict(amounts) for kind, amounts in found.items()}
    for adapt in (_add_missing, _raise, _meet_ratio, _lower, _leave_out):
        adapt(found, refusal)
    requests, limits = found["requests"], found["limits"]
    for name, most in limits.items():
        requests[name] = min(requests.get(name, Decimal(0)), most)
    if found == before or any(amount > _MOST[name] for name, amount in requests.items()):
        return None
    return {kind: {name: _text(name, amount) for name, amount in amounts.items()} for kind, amounts in found.items()}


def room_if_left(refusal: str, freed: Freed) -> bool:
    """Whether a pod that a quota refuses would fit if the job's other pods gave up the amounts in `freed`."""
    found = _USE.search(refusal)
    if found is None or not freed:
        return False
    requested, used, limited = ({name: quantity(text) for name, _, text in _pairs(part)} for part in found.groups())
    return bool(requested) and all(
        amount + used.get(name, Decimal(0)) - freed.get(_counted(name), Decimal(0)) <= limited.get(name, Decimal(0))
        for name, amount in requested.items()
    )


def _pairs(part: str) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in part.split(",")]


def _counted(name: str) -> tuple[str, str]:
    kind, dot, rest = name.partition(".")
    return (kind, rest) if dot and kind in ("requests", "limits") else ("requests", name)


def _add_missing(found: Amounts, refusal: str) -> None:
    """Adds resources that a quota counts and the container does not name."""
    for text in _MISSING.findall(refusal):
        for kind, name in _OF_QUOTA.findall(text):
            amounts = found["limits" if kind == "limits" else "requests"]
            if name not in amounts:
                amounts[name] = quantity(_LIMITS[name]) if kind == "limits" else Decimal(0)


def _raise(found: Amounts, refusal: str) -> None:
    for name, least in _LEAST.findall(refusal):
        found["requests"][name] = max(found["requests"].get(name, Decimal(0)), quantity(least))
        if name in found["limits"]:
            found["limits"][name] = max(found["limits"][name], quantity(least))


def _meet_ratio(found: Amounts, refusal: str) -> None:
    for name, ratio in _RATIO.findall(refusal):
        limit = found["limits"].get(name) or max(quantity(_BY_RATIO[name]), found["requests"].get(name, Decimal(0)))
        found["limits"][name] = limit
        found["requests"][name] = max(found["requests"].get(name, Decimal(0)), limit / max(quantity(ratio), Decimal(1)))


def _lower(found: Amounts, refusal: str) -> None:
    """Lowers amounts to a container's maximum; for a pod's maximum to 0, as its other containers may take all of it."""
    for name, of, most in _GREATEST.findall(refusal):
        limit = Decimal(0) if of == "Pod" else quantity(most)
        found["limits"][name] = min(found["limits"].get(name, quantity(_LIMITS[name])), limit)


def _leave_out(found: Amounts, refusal: str) -> None:
    """Sets amounts that exceed the rest of a quota to 0: the container takes nothing of it, and gets no default of a
    LimitRange. A limit of 0 means none."""
    for text in _EXCEEDED.findall(refusal):
        for kind, name in _OF_QUOTA.findall(text):
            amounts = found["limits" if kind == "limits" else "requests"]
            amounts[name] = Decimal(0)


def _text(name: str, amount: Decimal) -> str:
    unit = 1000 if name == "cpu" else 1
    whole = ceil(amount * unit)
    return f"{whole}m" if name == "cpu" and whole else str(whole)

"""Computes what several pods together take of a ResourceQuota, as the API server's evaluator of pods counts it. Pure.

A dry run tries one pod at a time, so it cannot tell whether two pods fit together.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Final

from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.controller.model.quantities import of_containers, of_running

__all__ = ["excess"]

Raw = Mapping[str, Any]
_Amounts = dict[str, Decimal]
_UNPREFIXED: Final = ("cpu", "memory", "ephemeral-storage")
_ENDED: Final = ("Succeeded", "Failed")


def excess(quotas: Iterable[Raw], gone: Iterable[Raw], coming: Iterable[tuple[Raw, int]]) -> str:
    """Returns the first quota, in words, that does not admit the pods in `coming` (pairs of pod and count) once the
    pods in `gone` have left; empty if all admit them. Quotas with an unknown scope are ignored."""
    gone, coming = list(gone), list(coming)
    for quota in quotas:
        status, spec = quota.get("status") or {}, quota.get("spec") or {}
        hard = status.get("hard") or spec.get("hard") or {}
        used = status.get("used") or {}
        freed: _Amounts = {}
        for pod in gone:
            if (pod.get("status") or {}).get("phase") not in _ENDED and _counts(spec, pod):
                _add(freed, _use(pod), 1)
        taken: _Amounts = {}
        for pod, count in coming:
            if _counts(spec, pod):
                _add(taken, _use(pod), count)
        for name, most in hard.items():
            take, free = taken.get(name, Decimal(0)), freed.get(name, Decimal(0))
            left = quantity(most) - quantity(used.get(name)) + free
            if take > 0 and take > left:
                about = f"the new pods need {_text(take)} {name} in total, {_text(max(left, Decimal(0)))}"
                return (
                    f"exceeded quota: {quota['metadata']['name']}: {about} of {most} is left after the old pods have "
                    "ended"
                )
    return ""


def _add(total: _Amounts, part: _Amounts, count: int) -> None:
    for name, amount in part.items():
        total[name] = total.get(name, Decimal(0)) + count * amount


def _text(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


def _use(pod: Raw) -> _Amounts:
    """Returns a pod's use, by the names that quotas have for it."""
    found: _Amounts = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for name, amount in _of_kind(pod, "requests").items():
        found[f"requests.{name}"] = amount
        if name in _UNPREFIXED or name.startswith("hugepages-"):
            found[name] = amount
    for name, amount in _of_kind(pod, "limits").items():
        found[f"limits.{name}"] = amount
    return found


def _of_kind(pod: Raw, kind: str) -> _Amounts:
    """Returns the requests or limits of a pod: its containers' total or the pod-level amounts, plus the overhead."""
    spec = pod.get("spec") or {}
    asked = partial(_of_container, kind=kind)
    total = dict(of_containers(spec, of_running(pod.get("status") or {}, kind, asked, _read), asked))
    total |= _read((spec.get("resources") or {}).get(kind))
    for name, amount in (spec.get("overhead") or {}).items():
        if kind == "requests" or total.get(name):
            total[name] = total.get(name, Decimal(0)) + quantity(amount)
    return total


def _of_container(container: Raw, kind: str) -> _Amounts:
    resources = container.get("resources") or {}
    found = resources.get(kind) or {}
    if kind == "requests":  # a limit without a request is the request
        found = {**(resources.get("limits") or {}), **found}
    return _read(found)


def _read(amounts: Raw | None) -> _Amounts:
    return {name: quantity(amount) for name, amount in (amounts or {}).items()}


def _counts(quota: Raw, pod: Raw) -> bool:
    """Whether a pod is in a quota's scopes."""
    selector = (quota.get("scopeSelector") or {}).get("matchExpressions") or ()
    terms = [*((scope, "Exists", ()) for scope in quota.get("scopes") or ()), *_terms(selector)]
    return all(_matches(scope, operator, values, pod) for scope, operator, values in terms)


def _terms(selector: Iterable[Raw]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for each in selector:
        yield str(each.get("scopeName")), str(each.get("operator")), tuple(each.get("values") or ())


def _matches(scope: str, operator: str, values: tuple[str, ...], pod: Raw) -> bool:
    spec = pod.get("spec") or {}
    match scope:
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return not _asks(pod)
        case "NotBestEffort":
            return _asks(pod)
        case "PriorityClass":
            name = spec.get("priorityClassName") or ""
            return {
                "In": name in values,
                "NotIn": name not in values,
                "Exists": bool(name),
                "DoesNotExist": not name,
            }.get(operator, False)
    return False


def _asks(pod: Raw) -> bool:
    """Whether a pod has a request or a limit of CPU or memory."""
    asked = {**_of_kind(pod, "requests"), **_of_kind(pod, "limits")}
    return any(asked.get(name) for name in ("cpu", "memory"))

"""What pods ask for, read from their specs. Pure."""

import re
from collections.abc import Mapping
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from elastic_tfjob.api.limits import MAX_BYTES, MAX_MILLICORES, MAX_NODE_NAME, MAX_POD_BYTES, MAX_WORD
from elastic_tfjob.api.tfjob import CONTAINER
from elastic_tfjob.scheduling.resources import NOTHING, Resources

__all__ = [
    "NO_CPU",
    "CpuAsked",
    "allocatable",
    "amounts",
    "as_allocated",
    "cpu_of",
    "is_accelerator",
    "is_quantity",
    "millicores",
    "quantity",
    "requests_of",
    "whole",
]

Raw = Mapping[str, Any]

# QUANTITY_PATTERN of the CRD, but that an exponent is a whole number: Kubernetes admits no other.
_QUANTITY: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_THOUSANDS: Final = {"n": -3, "u": -2, "m": -1, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY: Final = "KMGTPE"
_MOST: Final = Decimal(MAX_BYTES)
_LEAST: Final = Decimal("1e-9")
# More than the digits of all that lies between these two.
_DIGITS: Final = 40
_EXACT: Final = Context(prec=2 * _DIGITS)
_LIMITS: Final = Resources(MAX_MILLICORES, MAX_POD_BYTES, MAX_POD_BYTES, MAX_POD_BYTES, MAX_POD_BYTES)

_ANY_PODS: Final = 1 << 30

# In a name such as nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915, google.com/tpu, cloud-tpus.google.com/v3,
# aliyun.com/gpu-mem: a word of the vendor's domain or of the resource, and not a part of one (gpulicense).
_ACCELERATOR_WORDS: Final = frozenset({"gpu", "gpus", "vgpu", "tpu", "tpus"})
# Characters: a DNS subdomain, a slash, a label's name.
_NAME: Final = MAX_NODE_NAME + 64
_WORD: Final = re.compile(r"[a-z0-9]+")


def quantity(written: object) -> Decimal:
    """An amount of a resource as Kubernetes reads it: what is less than a billionth counts as that, what is more than
    fits into 64 bits as the most that does. 0 for what is no quantity, or negative: the API server refuses pods with
    it, so they take nothing. Takes no longer than to look at each character."""
    if isinstance(written, str):
        return _remembered(written) if len(written) <= MAX_WORD else _read(written)
    if isinstance(written, int) and not isinstance(written, bool):
        return Decimal(min(max(written, 0), MAX_BYTES))
    return Decimal(0)


def _read(written: str) -> Decimal:
    match = _QUANTITY.fullmatch(written)
    if match is None:
        return Decimal(0)
    sign, before, after, suffix = match.group(1), match.group(2), match.group(3) or "", match.group(4) or ""
    digits = (before + after).lstrip("0")
    if sign == "-" or not digits:
        return Decimal(0)
    exponent = -len(after)
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        exponent += _small(suffix[1:])
    elif suffix and not suffix.endswith("i"):
        exponent += 3 * _THOUSANDS[suffix]
    # So that Decimal never sees a number that is longer than what matters of it.
    exponent += max(0, len(digits) - _DIGITS)
    number = Decimal((0, tuple(map(int, digits[:_DIGITS])), 0)).scaleb(_within(exponent), _EXACT)
    if suffix.endswith("i"):
        number = _EXACT.multiply(number, Decimal(1024) ** (_BINARY.index(suffix[0]) + 1))
    return min(max(number, _LEAST), _MOST)


_remembered = lru_cache(maxsize=4096)(_read)


def _small(exponent: str) -> int:
    """An exponent as text; beyond what matters, any number that is beyond it, too."""
    return int(exponent) if len(exponent) < 10 else (-(10**9) if exponent.startswith("-") else 10**9)


def _within(exponent: int) -> int:
    return min(max(exponent, -2 * _DIGITS), _DIGITS)


def is_quantity(written: str) -> bool:
    """Whether the API server takes a text for an amount, 0 included, that is not negative."""
    match = _QUANTITY.fullmatch(written) if len(written) <= MAX_WORD else None
    return match is not None and match.group(1) != "-" and bool(match.group(2) or match.group(3))


def millicores(written: object) -> int:
    """`500m` or `0.5` as 500; what is less than a millicore counts as one. At most MAX_MILLICORES."""
    return min(-int(-quantity(written) * 1000 // 1), MAX_MILLICORES)


def whole(written: object) -> int:
    """`1Gi` as 1073741824."""
    return int(quantity(written))


def requests_of(pod_spec: Raw) -> Resources:
    """What kube-scheduler counts for a pod: its containers and native sidecars together, or an init container that
    asks for more than those that run beside it; and the overhead of its RuntimeClass, which the API server writes into
    pods, so that templates lack it. A limit without a request is the request."""
    running = starting = NOTHING
    for container in pod_spec.get("initContainers") or ():
        asked = _requests(container)
        if container.get("restartPolicy") == "Always":
            running = _sum(running, asked)
            starting = _most(starting, running)
        else:
            starting = _most(starting, _sum(running, asked))
    for container in pod_spec.get("containers") or ():
        running = _sum(running, _requests(container))
    total = _sum(_most(running, starting), amounts(pod_spec.get("overhead") or {}))
    return total._replace(pods=1)


def as_allocated(spec: Raw, status: Raw) -> Raw:
    """A pod's spec with what its containers were given, where the kubelet says that the node can never give what they
    ask for by now: so kube-scheduler counts it (KEP-1287). Else anybody with a small pod on each node could ask for all
    of them."""
    conditions = status.get("conditions") or ()
    if not any(each["type"] == "PodResizePending" and each.get("reason") == "Infeasible" for each in conditions):
        return spec
    given = {
        each["name"]: each["resources"]
        for kind in ("containerStatuses", "initContainerStatuses")
        for each in status.get(kind) or ()
        if each.get("resources")
    }
    found = dict(spec)
    for kind in ("containers", "initContainers"):
        if kind in spec:
            found[kind] = [{**each, "resources": given.get(each["name"], each.get("resources"))} for each in spec[kind]]
    return found


class CpuAsked(NamedTuple):
    """CPU of a container, in millicores; 0 for none. Without a limit the request is only a weight."""

    request: int = 0
    limit: int = 0


NO_CPU: Final = CpuAsked()


def cpu_of(pod_spec: Raw, trains: str = CONTAINER) -> CpuAsked:
    """CPU of the container that `trains`."""
    for container in pod_spec.get("containers") or ():
        if container.get("name") == trains:
            resources = container.get("resources") or {}
            limit = (resources.get("limits") or {}).get("cpu", 0)
            request = (resources.get("requests") or {}).get("cpu", limit)
            return CpuAsked(millicores(request), millicores(limit))
    return NO_CPU


def _requests(container: Raw) -> Resources:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def amounts(asked: Raw) -> Resources:
    """Quantities by resource name, as a container asks for them."""
    return Resources(
        millicores(asked.get("cpu", 0)),
        whole(asked.get("memory", 0)),
        min(sum(whole(written) for name, written in asked.items() if is_accelerator(name)), MAX_BYTES),
        storage=whole(asked.get("ephemeral-storage", 0)),
    )


def allocatable(has: Raw) -> Resources:
    """Quantities by resource name, as a node has them. One that does not say how many pods it admits, as every kubelet
    does, admits them all."""
    return amounts(has)._replace(pods=min(whole(has.get("pods", _ANY_PODS)), _ANY_PODS))


def is_accelerator(resource: str) -> bool:
    """Whether an extended resource is a device to compute on: by a whole word of its name, or a part of an NVIDIA card
    (nvidia.com/mig-1g.5gb). Only names with a vendor's domain are extended resources."""
    domain, slash, name = resource[:_NAME].partition("/")
    if not slash:
        return False
    words = _WORD.findall(f"{domain} {name}".lower())
    return not _ACCELERATOR_WORDS.isdisjoint(words) or (domain == "nvidia.com" and name.startswith("mig-"))


def _sum(a: Resources, b: Resources) -> Resources:
    """But no more than the limit of each amount."""
    return Resources(*map(min, a.plus(b), _LIMITS))


def _most(a: Resources, b: Resources) -> Resources:
    return Resources(*map(max, a, b))

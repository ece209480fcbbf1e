"""What pods ask for, read from their specs. Pure."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from elastic_tfjob.api.tfjob import CONTAINER

__all__ = ["Requests", "amounts", "cpu_of", "millicores", "requests_of", "whole"]

Requests = tuple[int, int, int]
"""CPU in millicores, memory in bytes, accelerators."""

Raw = Mapping[str, Any]

# Extended resources that are accelerators: nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915, cloud-tpus.google.com/v3.
_ACCELERATOR_WORDS = ("gpu", "tpu")


@lru_cache(maxsize=4096)
def _decimal(quantity: int | str) -> Any:
    # Here and not above: the kubernetes package takes half a second to import, which not every caller pays.
    from kubernetes.utils.quantity import parse_quantity  # noqa: PLC0415

    return parse_quantity(quantity)


def millicores(quantity: int | str) -> int:
    """`500m` or `0.5` as 500; what is less than a millicore counts as one."""
    return -int(-_decimal(quantity) * 1000 // 1)


def whole(quantity: int | str) -> int:
    """`1Gi` as 1073741824."""
    return int(_decimal(quantity))


def requests_of(pod_spec: Raw) -> Requests:
    """What kube-scheduler counts for a pod: its containers and native sidecars together, or an init container that
    asks for more than those that run beside it. A limit without a request is the request."""
    running = (0, 0, 0)
    starting = (0, 0, 0)
    for container in pod_spec.get("initContainers") or ():
        asked = _requests(container)
        if container.get("restartPolicy") == "Always":
            running = _sum(running, asked)
            starting = _most(starting, running)
        else:
            starting = _most(starting, _sum(running, asked))
    for container in pod_spec.get("containers") or ():
        running = _sum(running, _requests(container))
    return _most(running, starting)


def cpu_of(pod_spec: Raw) -> tuple[int, int]:
    """CPU request and limit, in millicores, of the container that trains; 0 for none."""
    for container in pod_spec.get("containers") or ():
        if container.get("name") == CONTAINER:
            resources = container.get("resources") or {}
            limit = (resources.get("limits") or {}).get("cpu", 0)
            return millicores((resources.get("requests") or {}).get("cpu", limit)), millicores(limit)
    return 0, 0


def _requests(container: Raw) -> Requests:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def amounts(asked: Raw) -> Requests:
    """Quantities by resource name, as a pod asks for or a node has them."""
    accelerators = sum(
        whole(quantity) for name, quantity in asked.items() if any(word in name for word in _ACCELERATOR_WORDS)
    )
    return millicores(asked.get("cpu", 0)), whole(asked.get("memory", 0)), accelerators


def _sum(a: Requests, b: Requests) -> Requests:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _most(a: Requests, b: Requests) -> Requests:
    return max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2])

"""Resources that pods take of a node, as kube-scheduler counts them, and resources of nodes. Pure."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar

from elastic_tfjob.api.quantity import millicores, rounded_up, thousandths, whole
from elastic_tfjob.api.reading import MAX_BYTES, MAX_MILLICORES, MAX_NODE_NAME, MAX_POD_BYTES
from elastic_tfjob.api.tfjob import CONTAINER
from elastic_tfjob.scheduling.resources import Resources

__all__ = [
    "NO_CPU",
    "CpuAsked",
    "allocatable",
    "allocated_cpu",
    "allocated_memory",
    "amounts",
    "cpu_of",
    "has_pod_level_resources",
    "is_accelerator",
    "of_containers",
    "of_running",
    "requests_of",
]

Raw = Mapping[str, Any]
_Number = TypeVar("_Number", int, Decimal)

_LIMITS: Final = Resources(MAX_MILLICORES, MAX_POD_BYTES, MAX_POD_BYTES, MAX_POD_BYTES, MAX_POD_BYTES)

_MOST_OF_A_NODE: Final = Resources(MAX_MILLICORES, MAX_BYTES, MAX_BYTES, 0, MAX_BYTES)

_Amounts = Mapping[str, int]
"""Amounts in thousandths, by resource name."""

_NO_STATUS: Final[Raw] = {}
_COUNTED: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
# Huge pages can be requested at pod level, too; no plan counts them.
_POD_LEVEL: Final = frozenset({"cpu", "memory"})

_ANY_PODS: Final = 1 << 30

# Words of accelerator names such as nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915, google.com/tpu,
# cloud-tpus.google.com/v3 and aliyun.com/gpu-mem. Each is a whole word of the vendor's domain or the resource, never a
# part of one (gpulicense).
_ACCELERATOR_WORDS: Final = frozenset({"gpu", "gpus", "vgpu", "tpu", "tpus"})
# Characters of a resource's name: a DNS subdomain, a slash, a label's name.
_NAME: Final = MAX_NODE_NAME + 64
_WORD: Final = re.compile(r"[a-z0-9]+")


def requests_of(spec: Raw, status: Raw = _NO_STATUS) -> Resources:
    """Returns the resources that kube-scheduler counts for a pod, existing (`spec` and `status` as the API server has
    them) or still to be made from a template (`spec` alone: the API server's defaults are applied).

    The rule is that of `PodRequests` in k8s.io/component-helpers v0.34:

    - Containers and native sidecars run together. Other init containers run one after the other, each beside the
      sidecars before it; the larger of both counts, for each resource.
    - A limit without a request is the request.
    - While a container is resized in place (KEP-1287), the largest of what it asks for, what the kubelet has allocated
      and what the container has counts. Where the node can never give what it asks for (Infeasible), that is left out.
    - Requests of the whole pod (`spec.resources`, KEP-2837) replace the sum for the resources that they name.
    - The overhead of the RuntimeClass is added. The API server writes it into pods, so that templates lack it.

    A LimitRange's defaults are in pods only. Each amount is at most what a node may have (api/reading.py)."""
    counted = of_running(status, "requests", _container, _known)
    containers = of_containers(spec, counted, _container)
    total = _sum({**containers, **_pod_level(spec.get("resources") or {}, containers)}, _known(spec.get("overhead")))
    return Resources(*map(min, _resources(total), _LIMITS))._replace(pods=1)


def of_containers(
    spec: Raw, running: Callable[[Raw], Mapping[str, _Number]], starting: Callable[[Raw], Mapping[str, _Number]]
) -> Mapping[str, _Number]:
    """Returns the total of a pod's containers, by resource: the containers that run together, with the native sidecars,
    or an init container with the sidecars before it, whichever is more. `running` and `starting` return the amounts of
    one container of each kind."""
    together: Mapping[str, _Number] = {}
    for container in spec.get("containers") or ():
        together = _sum(together, running(container))
    before: Mapping[str, _Number] = {}
    sidecars: Mapping[str, _Number] = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            asked = running(container)
            together, sidecars = _sum(together, asked), _sum(sidecars, asked)
            before = _most(before, sidecars)
        else:
            before = _most(before, _sum(sidecars, starting(container)))
    return _most(together, before)


def of_running(
    status: Raw,
    kind: str,
    asked: Callable[[Raw], Mapping[str, _Number]],
    read: Callable[[Raw | None], Mapping[str, _Number]],
) -> Callable[[Raw], Mapping[str, _Number]]:
    """Returns a function that gives the counted `kind` (requests or limits) of a running container: the amounts that
    are `asked` for it, and while it is resized also those that its pod's status has, as `read` returns them."""
    statuses = _statuses(status)
    infeasible = bool(statuses) and _infeasible(status)

    def counted(container: Raw) -> Mapping[str, _Number]:
        found = statuses.get(container.get("name", ""))
        if found is None:
            return asked(container)
        given = read(found["resources"].get(kind))
        if kind == "requests":
            given = _most(given, read(found.get("allocatedResources")))
        return given if infeasible else _most(asked(container), given)

    return counted


def has_pod_level_resources(spec: Raw) -> bool:
    """Whether a pod or template has pod-level resources. Kubernetes 1.34 resizes none of its containers."""
    resources = spec.get("resources") or {}
    return bool(resources.get("requests") or resources.get("limits"))


def _statuses(status: Raw) -> dict[str, Raw]:
    """Returns statuses by container name, for containers whose resources the kubelet reports."""
    return {
        each["name"]: each
        for kind in ("containerStatuses", "initContainerStatuses")
        for each in status.get(kind) or ()
        if each.get("resources") is not None
    }


def _infeasible(status: Raw) -> bool:
    pending = (each for each in status.get("conditions") or () if each.get("type") == "PodResizePending")
    return any(each.get("reason") == "Infeasible" for each in pending)


def _container(container: Raw) -> _Amounts:
    resources = container.get("resources") or {}
    return _known({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _pod_level(resources: Raw, containers: _Amounts) -> _Amounts:
    """Returns the pod-level amounts that replace the sum of the containers. A limit without a request is the request
    only if no container names that resource."""
    requests, limits = _known(resources.get("requests")), _known(resources.get("limits"))
    limits = {name: amount for name, amount in limits.items() if name not in containers}
    return {name: amount for name, amount in {**limits, **requests}.items() if name in _POD_LEVEL}


def _known(asked: Raw | None) -> _Amounts:
    """Returns the counted resources, in thousandths."""
    return {name: thousandths(written) for name, written in (asked or {}).items() if _counts(name)}


def _counts(resource: str) -> bool:
    return resource in _COUNTED or is_accelerator(resource)


def _sum(a: Mapping[str, _Number], b: Mapping[str, _Number]) -> Mapping[str, _Number]:
    return {**a, **{name: a[name] + amount if name in a else amount for name, amount in b.items()}}


def _most(a: Mapping[str, _Number], b: Mapping[str, _Number]) -> Mapping[str, _Number]:
    return {**a, **{name: max(a[name], amount) if name in a else amount for name, amount in b.items()}}


def _resources(found: _Amounts) -> Resources:
    return Resources(
        found.get("cpu", 0),
        rounded_up(found.get("memory", 0)),
        rounded_up(sum(amount for name, amount in found.items() if name not in _COUNTED)),
        storage_bytes=rounded_up(found.get("ephemeral-storage", 0)),
    )


class CpuAsked(NamedTuple):
    """CPU of a container; 0 for none. Without a limit the request is only a weight."""

    request_millicores: int = 0
    limit_millicores: int = 0


NO_CPU: Final = CpuAsked()


def cpu_of(pod_spec: Raw, trains: str = CONTAINER) -> CpuAsked:
    """Returns the CPU of the container that `trains`; NO_CPU if there is none."""
    for container in pod_spec.get("containers") or ():
        if container.get("name") == trains:
            resources = container.get("resources") or {}
            limit = (resources.get("limits") or {}).get("cpu", 0)
            request = (resources.get("requests") or {}).get("cpu", limit)
            return CpuAsked(millicores(request), millicores(limit))
    return NO_CPU


def allocated_cpu(status: Raw, container: str) -> int:
    """Returns the millicores that a container has by its pod's status; 0 where the kubelet reports none. They stay what
    they were until the kubelet has carried out a resize, and kube-scheduler counts them until then."""
    return max(millicores((each or {}).get("cpu", 0)) for each in _given(status, container))


def allocated_memory(status: Raw, container: str) -> int:
    """Returns the bytes that a container has by its pod's status, as `allocated_cpu` does for CPU."""
    return max(whole((each or {}).get("memory", 0)) for each in _given(status, container))


def _given(status: Raw, container: str) -> tuple[Raw | None, Raw | None]:
    found: Raw = next((each for each in status.get("containerStatuses") or () if each.get("name") == container), {})
    return found.get("allocatedResources"), (found.get("resources") or {}).get("requests")


def amounts(asked: Raw) -> Resources:
    """Reads quantities by resource name, as in a container's requests or a node's status."""
    return Resources(*map(min, _resources(_known(asked)), _MOST_OF_A_NODE))


def allocatable(has: Raw) -> Resources:
    """Reads a node's quantities by resource name. A node without a number of pods, which every kubelet sets, admits any
    number."""
    return amounts(has)._replace(pods=min(whole(has.get("pods", _ANY_PODS)), _ANY_PODS))


def is_accelerator(resource: str) -> bool:
    """Whether an extended resource is an accelerator: its name has a certain whole word, or it is a part of an NVIDIA
    card (nvidia.com/mig-1g.5gb). Only names with a vendor's domain are extended resources."""
    domain, slash, name = resource[:_NAME].partition("/")
    if not slash:
        return False
    words = _WORD.findall(f"{domain} {name}".lower())
    return not _ACCELERATOR_WORDS.isdisjoint(words) or (domain == "nvidia.com" and name.startswith("mig-"))

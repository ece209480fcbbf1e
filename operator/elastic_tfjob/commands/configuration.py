"""The operator's configuration as commands read it: what is wrong in it, what in it has no effect, and whether jobs
order nodes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from elastic_tfjob.api.reading import cut
from elastic_tfjob.commands.cluster import Cluster, path_of, read_all
from elastic_tfjob.commands.job_findings import Finding
from elastic_tfjob.controller import LEASE_NAME
from elastic_tfjob.controller.kube.autoscaler import serves_autoscaler
from elastic_tfjob.controller.kube.errors import ApiError, Unavailable
from elastic_tfjob.controller.model.cluster import KubeNode, selects
from elastic_tfjob.controller.model.settings import Configuration, parse_configuration
from elastic_tfjob.controller.planning.request import JobRequest

__all__ = ["CONFIG_MAP", "Nodes", "about_configuration", "config_map_path", "no_orders", "order_hint", "read_nodes"]

CONFIG_MAP: Final = LEASE_NAME
"""The name of the ConfigMap in the manifests and the chart."""
_KEY: Final = "config.yaml"
_TIMEOUT_S: Final = 30.0
# Characters of a problem, as in an event.
_PROBLEM: Final = 800


@dataclass(frozen=True, slots=True)
class Nodes:
    """The cluster's nodes, and whether it serves an autoscaler's API."""

    nodes: Sequence[KubeNode]
    autoscaler: bool


async def read_nodes(at: Cluster) -> Nodes | None:
    """None if the user may not read them."""
    try:
        found = read_all(KubeNode.parse, await at.items(path_of("", "nodes")))
        groups = await at.api.once("GET", "/apis", timeout_s=_TIMEOUT_S)
    except Unavailable:
        raise
    except ApiError:
        return None
    return Nodes(found, serves_autoscaler(groups))


def config_map_path(namespace: str) -> str:
    """The path of the operator's ConfigMap."""
    return f"{path_of(namespace, 'configmaps')}/{quote(CONFIG_MAP, safe='')}"


def _parsed(raw: Mapping[str, Any]) -> Configuration:
    """The configuration in a ConfigMap. Raises ValueError in the words of the event InvalidConfiguration."""
    data = raw.get("data")
    text = data.get(_KEY) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        raise ValueError(f"the key {_KEY} is missing")
    return parse_configuration(text)


def about_configuration(raw: Mapping[str, Any], about: str, nodes: Nodes | None) -> list[Finding]:
    """All findings about the ConfigMap. `nodes`: None where they are not known."""
    try:
        found = _parsed(raw)
    except ValueError as error:
        do = "correct it; until then the operator keeps the last valid configuration"
        return [Finding("error", about, cut(f"{_KEY}: {error}", _PROBLEM), do)]
    warnings = [*_without_effect(found, about), *(_about_nodes(found, about, nodes) if nodes is not None else ())]
    return [Finding("ok", about, f"valid: profile {found.profile}, scope {found.scope}"), *warnings]


def _without_effect(found: Configuration, about: str) -> Iterator[Finding]:
    """Blocks that the chosen profile does not read."""
    why = f"the profile is {found.profile}"
    if "profile" not in found.model_fields_set:
        why += ", because the key profile is missing"
    unused = [
        (f"profiles.{name}{'.teams' if 'teams' in settings else ''}", name)
        for name, settings in found.profiles.items()
        if name != found.profile
    ]
    order, compact = found.autoscaling.order, found.autoscaling.compact
    if not found.decides:
        given = found.autoscaling.model_fields_set
        unused += [("autoscaling.order", "elastic")] if "order" in given and order.when != "never" else []
        unused += [("autoscaling.compact", "elastic")] if "compact" in given and compact.nodes else []
    for part, profile in unused:
        do = f"set profile: {profile}, or remove {part}"
        yield Finding("warning", about, f"{part} has no effect: {why}", do)


def _about_nodes(found: Configuration, about: str, known: Nodes) -> Iterator[Finding]:
    """Selectors that match no node, and orders that no autoscaler would fill."""
    compact = found.autoscaling.compact
    selectors = [("autoscaling.compact.nodes", compact.nodes)] if "nodes" in compact.model_fields_set else []
    selectors += [("autoscaling.compact.prices", each) for each in compact.prices]
    selectors.append(("autoscaling.spot", found.autoscaling.spot))
    for place, selector in selectors:
        if selector and known.nodes and not any(selects(selector, node.labels) for node in known.nodes):
            do = "correct the labels, unless such nodes come later (kubectl get nodes --show-labels)"
            yield Finding("warning", about, f"{place}: no node has the labels {selector}", do)
    asked = "order" in found.autoscaling.model_fields_set and found.autoscaling.order.when == "auto"
    if asked and (why := no_orders(found, known)):
        do = "if the cluster has an autoscaler, set autoscaling.order.when: always"
        yield Finding("warning", about, f"autoscaling.order has no effect: {why}", do)


def no_orders(found: Configuration, known: Nodes) -> str:
    """Why waiting jobs order no nodes; empty if they do, or if the profile does not decide."""
    order = found.autoscaling.order
    if not found.decides or order.asks(known.nodes, autoscaler=known.autoscaler):
        return ""
    if order.when == "never":
        return "autoscaling.order.when is never"
    return "no autoscaler was found (autoscaling.order.when: auto)"


async def order_hint(at: Cluster, namespace: str, request: JobRequest) -> str:
    """Why no node will come for a waiting job whose smallest size does not fit on the present nodes, and what helps.
    Empty if it fits, if the job may order nodes, or if the user may not read what is needed to know."""
    try:
        known = await read_nodes(at)
        if known is None or fits_empty(request, known.nodes):
            return ""
        found = _parsed(await at.api.once("GET", config_map_path(namespace), timeout_s=_TIMEOUT_S))
    except (ApiError, ValueError):
        return ""
    why = no_orders(found, known)
    do = "if an autoscaler can add nodes, set autoscaling.order.when: always in the operator's ConfigMap"
    if not why and found.decides and await _serves_one_namespace(at, namespace):
        why, do = "the operator serves one namespace (--namespace)", "add nodes, or run an operator of all namespaces"
    return f"even its smallest size does not fit on the present nodes, and jobs order none: {why}; {do}" if why else ""


def fits_empty(request: JobRequest, nodes: Collection[KubeNode]) -> bool:
    """Whether the smallest size fits on these nodes while nothing else runs there. A node takes as many replicas as it
    holds, those with the largest requests first."""
    found = {node.name: node for node in nodes if node.usable}
    free = {name: node.allocatable for name, node in found.items()}
    constraints = dict(request.constraints)
    for type_, each in sorted(request.requests.items(), key=lambda item: item[1], reverse=True):
        least = request.bounds(type_)[0]
        for name, node in found.items():
            if least and each.within(free[name]) and constraints[type_].admit(node.labels, node.taints):
                parts = zip(free[name], each, strict=True)
                held = min((have // asked for have, asked in parts if asked > 0), default=least)
                taken = min(least, held)
                free[name] = free[name].minus(each.times(taken))
                least -= taken
        if least:
            return False
    return True


async def _serves_one_namespace(at: Cluster, namespace: str) -> bool:
    """Whether the operator's Deployment says so; False if the user may not read it."""
    path = f"/apis/apps/v1/namespaces/{quote(namespace, safe='')}/deployments/{LEASE_NAME}"
    try:
        raw = await at.api.once("GET", path, timeout_s=_TIMEOUT_S)
    except ApiError:
        return False
    pod = ((raw.get("spec") or {}).get("template") or {}).get("spec") or {}
    words = [str(word) for each in pod.get("containers") or () for word in each.get("args") or ()]
    return any(word.partition("=")[0] == "--namespace" for word in words)

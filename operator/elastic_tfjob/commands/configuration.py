"""The operator's configuration as commands read it: what is wrong in it, what in it has no effect, and whether jobs
order nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from elastic_tfjob.api.reading import cut
from elastic_tfjob.commands.cluster import Cluster, path_of, read_all
from elastic_tfjob.commands.job_findings import Finding
from elastic_tfjob.controller import LEASE_NAME
from elastic_tfjob.controller.kube.autoscaler import serves_autoscaler
from elastic_tfjob.controller.kube.errors import ApiError, Unavailable
from elastic_tfjob.controller.model.cluster import AUTOSCALED_LABELS, KubeNode, selects
from elastic_tfjob.controller.model.settings import Configuration, parse_configuration

__all__ = ["CONFIG_MAP", "Nodes", "about_configuration", "config_map_path", "no_orders", "parsed", "read_nodes"]

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


def parsed(raw: Mapping[str, Any]) -> Configuration:
    """The configuration in a ConfigMap. Raises ValueError in the words of the event InvalidConfiguration."""
    data = raw.get("data")
    text = data.get(_KEY) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        raise ValueError(f"the key {_KEY} is missing")
    return parse_configuration(text)


def about_configuration(raw: Mapping[str, Any], about: str, nodes: Nodes | None) -> list[Finding]:
    """All findings about the ConfigMap. `nodes`: None where they are not known."""
    try:
        found = parsed(raw)
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
    when = found.autoscaling.order.when
    if when == "never" and found.decides:
        return "autoscaling.order.when is never"
    labelled = any(not AUTOSCALED_LABELS.isdisjoint(node.labels) for node in known.nodes)
    if when == "auto" and found.decides and not (known.autoscaler or labelled):
        return "no autoscaler was found (autoscaling.order.when: auto)"
    return ""

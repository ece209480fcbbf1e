"""The JSON schema of the Helm chart's values: Kubernetes' roughly, `config` as the operator's own types have it.

Helm refuses what it does not allow before anything is sent to a cluster. What a schema cannot say (which profile lends
nodes to which pools) the operator refuses later, with an event on its ConfigMap.
"""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.scheduling.profiles import PROFILES, parse_profile

__all__ = ["schema"]

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_KEY = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_ANNOTATIONS: Schema = _TEXTS | {"propertyNames": {"pattern": _KEY}}
_LABELS: Schema = _ANNOTATIONS | {
    "additionalProperties": _TEXT | {"pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"}
}
_NAMESPACE: Schema = _TEXT | {"pattern": "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"}
_OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}
_QUANTITIES: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}


def schema() -> Schema:
    """JSON Schema, draft 2020-12, of values.yaml."""
    properties: Schema = {
        "image": _exactly(
            registry=_TEXT | {"minLength": 1},
            repository=_TEXT | {"minLength": 1},
            tag=_TEXT,
            pullPolicy={"enum": ["", "Always", "IfNotPresent", "Never"]},
        ),
        "imagePullSecrets": {"type": "array", "items": _exactly(name=_TEXT)},
        "replicas": {"type": "integer", "minimum": 0, "maximum": 10},
        "config": _configuration(),
        # What a value of the chart sets already would be there twice.
        "extraArgs": {
            "type": "array",
            "items": {
                "type": "string",
                "pattern": "^--",
                "not": {"pattern": "^--(leader-elect|config-map|no-leader-elect)(=|$)"},
            },
        },
        "extraEnv": {
            "type": "array",
            "items": {"type": "object", "required": ["name"], "properties": {"name": _TEXT | {"minLength": 1}}},
        },
        "resources": _exactly(requests=_QUANTITIES, limits=_QUANTITIES, claims=_OBJECTS),
        "podAnnotations": _ANNOTATIONS,
        "podLabels": _LABELS,
        "priorityClassName": _TEXT,
        "nodeSelector": _LABELS,
        "tolerations": _OBJECTS,
        "affinity": {"type": "object"},
        "topologySpreadConstraints": _OBJECTS,
        "crd": _exactly(install={"type": "boolean"}),
        **dict.fromkeys(
            ("kubeflowRoles", "kueueGrowth", "learning", "loans", "statusViaProxy", "trainer"),
            _exactly(enabled={"type": "boolean"}),
        ),
        "prometheus": _exactly(
            enabled={"type": "boolean"},
            labels=_LABELS,
            annotations=_ANNOTATIONS,
            namespace=_NAMESPACE,
            interval={"type": "string", "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$"},  # Prometheus's order
            dashboards=_exactly(labels=_LABELS, annotations=_ANNOTATIONS, namespace=_NAMESPACE),
        ),
        "queryApi": _exactly(enabled={"type": "boolean"}, auth={"enum": ["token", "header"]}),
        "global": {"type": "object"},  # what a chart that has this one as a part passes on
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_exactly(**properties)}


def _exactly(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _configuration() -> Schema:
    """Of `config`, with the parameters of each profile in their places."""
    found = _of(Configuration)
    found["properties"]["profile"]["enum"] = list(PROFILES)
    found["properties"]["profiles"] = _exactly(**{name: _of(type(parse_profile(name, {}))) for name in PROFILES})
    return found


def _of(model: type[BaseModel]) -> Schema:
    """A model's schema in one piece: references would need their targets at the root."""
    made = model.model_json_schema(schema_generator=_Untitled)
    defined = made.pop("$defs", {})

    def whole(node: Any) -> Any:
        match node:
            case {"$ref": str(reference), **rest}:
                return whole(defined[reference.rpartition("/")[2]]) | whole(rest)
            case dict():
                return {key: whole(value) for key, value in node.items()}
            case list():
                return [whole(value) for value in node]
            case _:
                return node

    found: Schema = whole(made)
    return found


class _Untitled(GenerateJsonSchema):
    """Without titles, which repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

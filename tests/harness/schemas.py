"""JSON schemas of all kinds that an API server knows, as kubeconform reads them: one file a kind, and no field more."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["LOCATION", "write_schemas"]

LOCATION: Final = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""How kubeconform is told the names of the files."""
_REF: Final = "#/definitions/"
# A quantity or a port is a text or a number in YAML, whatever OpenAPI 2 says.
_EITHER: Final[Mapping[str, list[str]]] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": ["string", "number"],
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": ["string", "integer"],
}


def write_schemas(openapi: Mapping[str, Any], folder: Path) -> int:
    """Of an OpenAPI 2 document (`kubectl get --raw /openapi/v2`); how many there are."""
    definitions, count = openapi["definitions"], 0
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            group = kind["group"].partition(".")[0]
            suffix = "-".join(filter(None, (group, kind["version"])))
            path = folder / f"{kind['kind']}-{suffix}.json".lower()
            path.write_text(json.dumps(_strict(definitions, schema, (name,))))
            count += 1
    return count


def _strict(definitions: Mapping[str, Any], schema: Any, within: tuple[str, ...]) -> Any:
    """The schema with what it refers to in its place, and unknown fields refused; a kind within itself may be all."""
    if isinstance(schema, list):
        return [_strict(definitions, each, within) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(ref := schema.get("$ref"), str):  # and no property of that name, as schemas of schemas have
        name = ref.removeprefix(_REF)
        if name in _EITHER:
            return {"type": _EITHER[name]}
        return {} if name in within else _strict(definitions, definitions[name], (*within, name))
    found = {key: _strict(definitions, value, within) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    opens = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not opens:
        found["additionalProperties"] = False
    return found

"""The CustomResourceDefinition of TFJob, generated from the models in this package.

Validation is in the schema and in CEL rules, not in a webhook: it needs no certificate, no running operator and no
second round trip, and a job can be created while the operator restarts. The rules have upstream's messages at
upstream's field paths. See docs/designs/validation.md.

The schema of the pod template comes from the models of the `kubernetes` package, so new pod fields come with it.
"""

from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from elastic_tfjob.api.reading import MAX_REPLICA_TYPES
from elastic_tfjob.api.tfjob import (
    CONTAINER,
    GROUP,
    KIND,
    PLURAL,
    QUANTITY_PATTERN,
    VERSION,
    Int32,
    TFJobSpec,
)

__all__ = ["custom_resource_definition", "job_schema"]

Schema = dict[str, Any]

# The API server estimates the cost of CEL rules from the longest possible list. Without a bound it assumes the worst
# and refuses the CRD. No real pod comes near this bound, and no job near MAX_REPLICA_TYPES.
MAX_CONTAINERS: Final = 1024

# Lists that server-side apply merges by key, from the Kubernetes API reference ("list map keys").
LIST_MAP_KEYS: Final[dict[str, list[str]]] = {
    "containers": ["name"],
    "initContainers": ["name"],
    "ephemeralContainers": ["name"],
    "volumes": ["name"],
    "env": ["name"],
    "ports": ["containerPort", "protocol"],
    "volumeMounts": ["mountPath"],
    "volumeDevices": ["devicePath"],
    "imagePullSecrets": ["name"],
    "hostAliases": ["ip"],
    "topologySpreadConstraints": ["topologyKey", "whenUnsatisfiable"],
    "resourceClaims": ["name"],
    "claims": ["name"],
    "schedulingGates": ["name"],
}

KEY_DEFAULTS: Final = {"protocol": "TCP"}

# Fields that the API declares as quantities; the models only say "string".
QUANTITY_MAPS: Final = {"limits", "requests", "overhead"}
QUANTITIES: Final = {"divisor", "sizeLimit"}
INT_OR_STRING: Final[Schema] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
QUANTITY: Final[Schema] = {**INT_OR_STRING, "pattern": QUANTITY_PATTERN}

# Template metadata that a controller passes on; other fields of ObjectMeta are pruned, as in upstream's CRD.
STRINGS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
TEMPLATE_METADATA: Final[Schema] = {
    "type": "object",
    "properties": {
        "annotations": STRINGS,
        "labels": STRINGS,
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "name": {"type": "string"},
        "namespace": {"type": "string"},
    },
}


# What `kubectl scale` and a HorizontalPodAutoscaler read and write. Upstream's PyTorchJob has the same, its TFJob has
# none. A subresource has one path, so the replicas are the workers.
SCALE: Final = {
    "specReplicasPath": ".spec.tfReplicaSpecs.Worker.replicas",
    "statusReplicasPath": ".status.replicaStatuses.Worker.active",
    "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
}


class _Names(GenerateJsonSchema):
    """Generates schemas without pydantic's titles."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class _Condition(BaseModel):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class _ReplicaStatus(BaseModel):
    active: Int32 | None = None
    succeeded: Int32 | None = None
    failed: Int32 | None = None
    selector: str | None = None


def custom_resource_definition() -> dict[str, Any]:
    """The CRD as a plain object, to be printed as YAML or applied."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}, "scale": SCALE},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def job_schema() -> Schema:
    """The schema of a TFJob with the `metadata` fields of the API server. Building it takes a second or two."""
    (version,) = custom_resource_definition()["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    metadata = schema["properties"]["metadata"]
    texts = ("generateName", "namespace", "resourceVersion", "selfLink", "uid")
    others = (
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "ownerReferences",
    )
    metadata["properties"] |= {
        **{key: {"type": "string"} for key in texts},
        **{key: {"x-kubernetes-preserve-unknown-fields": True} for key in others},
        "annotations": STRINGS,
        "labels": STRINGS,
        "finalizers": {"type": "array", "items": {"type": "string"}},
    }
    return schema


def _columns() -> list[dict[str, Any]]:
    def column(name: str, kind: str, path: str, description: str, priority: int = 0) -> dict[str, Any]:
        shown = {"name": name, "type": kind, "jsonPath": path, "description": description}
        return {**shown, "priority": priority} if priority else shown

    own = r".metadata.annotations.elastic\.kubeflow\.org/"
    return [
        column("State", "string", ".status.conditions[-1:].type", "Newest condition."),
        column("Age", "date", ".metadata.creationTimestamp", "Time since the job was created."),
        column("Workers", "integer", ".status.replicaStatuses.Worker.active", "Running workers."),
        column("PS", "integer", ".status.replicaStatuses.PS.active", "Running parameter servers."),
        column("Step", "string", own + "step", "Training steps done, updated about once a minute."),
        column("ETA", "string", own + "eta", "Expected end of training."),
        column("Deadline", "string", own + "verdict", "Whether the job is expected to meet its deadline."),
        column("Slack", "string", own + "slack", "Time from the expected end to the deadline.", 1),
    ]


def _root() -> Schema:
    spec = _structural(TFJobSpec.model_json_schema(schema_generator=_Names))
    replica = spec["properties"]["tfReplicaSpecs"]["additionalProperties"]
    description = replica["properties"]["template"]["description"]
    replica["properties"]["template"] = {**_pod_template(), "description": description}
    replica["x-kubernetes-validations"] = [
        _rule(
            "has(self.template) && has(self.template.spec) && size(self.template.spec.containers) > 0",
            "must be specified",
            ".template.spec.containers",
            "FieldValueRequired",
        ),
        _rule(
            "has(self.template) && has(self.template.spec) && "
            f"self.template.spec.containers.exists(c, c.name == '{CONTAINER}')",
            f"must have at least one container with name {CONTAINER}",
            ".template.spec.containers",
            "FieldValueRequired",
        ),
    ]
    spec["properties"]["tfReplicaSpecs"]["maxProperties"] = MAX_REPLICA_TYPES
    spec["properties"]["tfReplicaSpecs"]["x-kubernetes-validations"] = [
        _rule(
            "!('Chief' in self && 'Master' in self)",
            "must not have more than 1 Chief or Master role",
            reason="FieldValueForbidden",
        )
    ]
    spec["properties"]["runPolicy"]["properties"]["schedulingPolicy"]["properties"]["queue"][
        "x-kubernetes-validations"
    ] = [_rule("self == oldSelf", "spec.runPolicy.schedulingPolicy.queue is immutable")]
    # The length is bounded because the rule compares the value. CEL optionals are avoided: the server cannot bound
    # their cost.
    spec["properties"]["runPolicy"]["properties"]["managedBy"]["maxLength"] = 64
    named = "(has({0}.runPolicy) && has({0}.runPolicy.managedBy))"
    spec["x-kubernetes-validations"] = [
        _rule(
            f"{named.format('self')} == {named.format('oldSelf')} && "
            f"(!{named.format('self')} || self.runPolicy.managedBy == oldSelf.runPolicy.managedBy)",
            "field is immutable",
            ".runPolicy.managedBy",
        )
    ]
    return {
        "type": "object",
        "description": "A TensorFlow job. Its chief, parameter servers, workers and evaluator are pods with "
        "TF_CONFIG set.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "properties": {
                    # A DNS-1035 label, because every replica's Service is named after the job.
                    "name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
                },
            },
            "spec": spec,
            "status": _status(),
        },
    }


def _rule(rule: str, message: str, field_path: str = "", reason: str = "FieldValueInvalid") -> dict[str, str]:
    found = {"rule": rule, "message": message, "reason": reason}
    return {**found, "fieldPath": field_path} if field_path else found


def _status() -> Schema:
    time: Schema = {"type": "string", "format": "date-time"}
    condition = _structural(_Condition.model_json_schema(schema_generator=_Names))
    condition["properties"] |= {"lastUpdateTime": time, "lastTransitionTime": time}
    counts = _structural(_ReplicaStatus.model_json_schema(schema_generator=_Names))
    # Deprecated upstream and never written by a TFJob controller, but old objects may have it.
    counts["properties"]["labelSelector"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "type": "object",
        "properties": {
            "conditions": {"type": "array", "items": condition},
            "replicaStatuses": {"type": "object", "additionalProperties": counts},
            "startTime": time,
            "completionTime": time,
            "lastReconcileTime": time,
        },
    }


def _pod_template() -> Schema:
    # Imported here, because these models take 60 MB and only the generation of the CRD needs them.
    from kubernetes.aio.client.models.v1_pod_template_spec import V1PodTemplateSpec  # noqa: PLC0415

    raw = V1PodTemplateSpec.model_json_schema(by_alias=True, mode="serialization", schema_generator=_Names)
    template = _structural(raw, describe=False)
    containers = template["properties"]["spec"]["properties"]["containers"]
    containers["maxItems"] = MAX_CONTAINERS
    containers["items"]["x-kubernetes-validations"] = [
        _rule("has(self.image) && self.image != ''", "must be required", ".image", "FieldValueRequired")
    ]
    return template


def _structural(schema: Schema, *, describe: bool = True) -> Schema:
    """The JSON schema of a pydantic model as a structural schema: without references, and with `X | None` as optional
    X."""
    definitions = schema.get("$defs", {})

    def convert(node: Schema, name: str = "") -> Schema:
        if reference := node.get("$ref"):
            resolved = definitions[reference.rpartition("/")[2]]
            return convert({**resolved, **{key: value for key, value in node.items() if key != "$ref"}}, name)
        if "anyOf" in node and "x-kubernetes-int-or-string" not in node:
            options = [option for option in node["anyOf"] if option.get("type") != "null"]
            if {option.get("type") for option in options} == {"integer", "string"}:
                return INT_OR_STRING
            rest = {key: value for key, value in node.items() if key != "anyOf"}
            return convert({**options[0], **rest}, name)
        return _convert_plain(node, name)

    def _convert_plain(node: Schema, name: str) -> Schema:
        kept = ("type", "format", "pattern", "enum", "anyOf", "x-kubernetes-int-or-string")
        structural: Schema = {key: node[key] for key in kept if key in node}
        if describe and "description" in node:
            structural["description"] = node["description"]
        if node.get("default") is False and name == "suspend":
            structural["default"] = False  # upstream's only default
        if properties := node.get("properties"):
            structural["properties"] = {
                key: _known(key, convert(value, key)) for key, value in sorted(properties.items())
            }
            if required := node.get("required"):
                structural["required"] = sorted(required)
        if isinstance(node.get("additionalProperties"), dict):
            structural["additionalProperties"] = convert(node["additionalProperties"])
        if "items" in node:
            structural["items"] = convert(node["items"])
        if not structural.keys() - {"description"}:
            structural["x-kubernetes-preserve-unknown-fields"] = True
        return structural

    return convert(schema)


def _known(name: str, schema: Schema) -> Schema:
    """Add what the Kubernetes API defines for a field and its Python model lacks."""
    if name in QUANTITY_MAPS and schema.get("type") == "object" and "additionalProperties" in schema:
        return {**schema, "additionalProperties": QUANTITY}
    if name in QUANTITIES:
        return QUANTITY
    if name == "metadata":
        return TEMPLATE_METADATA
    keys = LIST_MAP_KEYS.get(name)
    if schema.get("type") == "array" and keys and set(keys) <= set(schema["items"].get("properties", ())):
        items = schema["items"]
        # A list map key needs a value; if the key is not required, it gets the API's default.
        optional = set(keys) - set(items.get("required", ()))
        keyed = {key: {**items["properties"][key], "default": KEY_DEFAULTS.get(key, "")} for key in optional}
        return {
            **schema,
            "items": {**items, "properties": {**items["properties"], **keyed}},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": keys,
        }
    return schema

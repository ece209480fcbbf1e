"""Our CRD beside upstream's: whatever a TFJob may hold there, it may hold here, and nothing is pruned that was kept."""

from typing import Any

import pytest
import yaml

from elastic_tfjob.api.crd import custom_resource_definition
from harness import binaries, operators

# Status fields that no TFJob controller ever wrote; ours keeps whatever an old object holds there.
UNWRITTEN = ".status.replicaStatuses{}.labelSelector."
# An alpha field that Kubernetes itself removed in 1.31: no API server would take it in a pod.
REMOVED = ".spec.tfReplicaSpecs{}.template.spec.resourceClaims[].source"


def fields(schema: dict[str, Any], path: str = "") -> dict[str, tuple[Any, ...]]:
    """Path of each field to what decides whether a value is accepted: type, int-or-string, required."""
    found: dict[str, tuple[Any, ...]] = {
        path: (
            schema.get("type"),
            schema.get("x-kubernetes-int-or-string", False),
            sorted(schema.get("required", ())),
        )
    }
    for name, field in schema.get("properties", {}).items():
        found |= fields(field, f"{path}.{name}")
    if isinstance(schema.get("additionalProperties"), dict):
        found |= fields(schema["additionalProperties"], path + "{}")
    if "items" in schema:
        found |= fields(schema["items"], path + "[]")
    return found


@pytest.mark.skipif("config.getoption('--operator') == 'upstream'", reason="compares our CRD with upstream's")
def test_accepts_every_upstream_tfjob() -> None:
    """Each of upstream's fields is there with the same type, and no field is required that is not required upstream."""
    module = binaries.module_dir("training-operator", "github.com/kubeflow/training-operator")
    upstream_crd = yaml.load((module / operators.UPSTREAM_CRD).read_text(), yaml.CSafeLoader)
    theirs = fields(upstream_crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    ours = fields(custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    missing = [path for path in theirs if path not in ours and not path.startswith((UNWRITTEN, REMOVED))]
    assert missing == []
    differing = {path: (theirs[path], ours[path]) for path in theirs if path in ours and theirs[path] != ours[path]}
    assert differing == {
        # Upstream's webhook requires it, not its CRD.
        "": (("object", False, []), ("object", False, ["spec"])),
        # Required of every pod by Kubernetes since 1.31, as it always was by the API server.
        ".spec.tfReplicaSpecs{}.template.spec.hostAliases[]": (("object", False, []), ("object", False, ["ip"])),
    }

"""What kubeconform and kube-score say of the manifests: `make lint-manifests`."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from harness import binaries, operators
from harness.controlplane import ControlPlane
from harness.deploy import kustomized
from harness.progress import run
from harness.schemas import LOCATION, write_schemas

pytestmark = pytest.mark.linters

ROOT = Path(__file__).parents[2]
OVERLAYS = sorted(path.name for path in (ROOT / "manifests" / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (ROOT / "manifests" / "components").iterdir())
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
FOREIGN = (
    "ServiceMonitor",
    "PodMonitor",
    "PrometheusRule",
    "TrainJob",
    "ClusterTrainingRuntime",
    "CustomResourceDefinition",
)
"""Kinds of others' CRDs, which no plain API server knows; and a CRD, whose schema holds itself."""
IGNORED = {
    "container-image-tag": "a released image is pinned by its tag, which the release sets",
    "container-image-pull-policy": "a released tag never moves, and a node that has the image should not ask for it",
    "pod-networkpolicy": "which networks there are is the cluster's own matter",
    "container-security-context-user-group-id": "the image has its user (65532), and OpenShift gives pods its own",
    "container-ephemeral-storage-request-and-limit": "the operator writes nothing to its disk",
}
"""What kube-score is not asked, and why."""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what each overlay installs, of the standalone one with each component, and of the samples."""
    folder = tmp_path_factory.mktemp("rendered")
    for overlay in OVERLAYS:
        made = run([binaries.path("kube"), "kubectl", "kustomize", ROOT / "manifests" / "overlays" / overlay])
        (folder / f"{overlay}.yaml").write_text(made)
    for component in COMPONENTS:
        made = kustomized(tmp_path_factory.mktemp(component), "standalone", [component])
        (folder / f"standalone-{component}.yaml").write_text(made)
    for sample in SAMPLES:
        (folder / f"sample-{sample.name}").write_text(sample.read_text())
    return folder


def test_every_field_is_one_that_the_api_server_knows(rendered: Path, tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "plane") as plane:
        operators.install("ours", plane.kubeconfig)
        openapi = json.loads(operators.kubectl(plane.kubeconfig, "get", "--raw", "/openapi/v2"))
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    assert write_schemas(openapi, schemas) > 100
    command: list[str | Path] = [
        binaries.path("kubeconform"),
        "-strict",
        "-summary",
        "-output=json",
        f"-skip={','.join(FOREIGN)}",
    ]
    command += [f"-schema-location={schemas}/{LOCATION}", rendered]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    said = json.loads(ended.stdout)
    assert said["resources"] == []
    assert ended.returncode == 0, ended.stderr
    documents = [each for path in rendered.iterdir() for each in yaml.safe_load_all(path.read_text()) if each]
    foreign = sum(each["kind"] in FOREIGN for each in documents)
    assert said["summary"] == {"valid": len(documents) - foreign, "invalid": 0, "errors": 0, "skipped": foreign}


def test_a_field_that_is_not_there_is_found(tmp_path: Path) -> None:
    """A check of the check: schemas refuse what they do not know."""
    definitions = {
        "Thing": {
            "properties": {
                **{key: {"type": "string"} for key in ("apiVersion", "kind")},
                "size": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.api.resource.Quantity"},
            },
            "x-kubernetes-group-version-kind": [{"group": "a.b", "kind": "Thing", "version": "v1"}],
        }
    }
    (tmp_path / "schemas").mkdir()
    assert write_schemas({"definitions": definitions}, tmp_path / "schemas") == 1
    for name, field in (("right", "size"), ("wrong", "sise")):
        (tmp_path / f"{name}.yaml").write_text(f"apiVersion: a.b/v1\nkind: Thing\n{field}: 3\n")
    for name, code in (("right", 0), ("wrong", 1)):
        command: list[str | Path] = [
            binaries.path("kubeconform"),
            "-strict",
            f"-schema-location={tmp_path}/schemas/{LOCATION}",
        ]
        ended = subprocess.run([*command, tmp_path / f"{name}.yaml"], check=False, capture_output=True, text=True)
        assert ended.returncode == code, ended.stdout


def test_kube_score_finds_nothing_critical(rendered: Path) -> None:
    ignored = [f"--ignore-test={name}" for name in IGNORED]
    installed = [path for path in rendered.iterdir() if not path.name.startswith("sample-")]
    # An operator that is throttled renews its lease too late.
    ignored.append("--ignore-container-cpu-limit")
    command: list[str | Path] = [binaries.path("kube-score"), "score", "--output-format=json", *ignored, *installed]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    found = [
        f"{each['object_name']}: {check['check']['id']}: {[comment['summary'] for comment in check['comments'] or ()]}"
        for each in json.loads(ended.stdout)
        for check in each["checks"]
        if not check["skipped"] and check["grade"] < 5
    ]
    assert not found, "\n".join(found)

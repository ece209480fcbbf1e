"""What the manifests install, as the API server sees it."""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from elastic_tfjob.controller.operator import Options
from harness import audit, operators
from harness.progress import CommandFailed
from harness.shared import Facts

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("manifests")]

ROOT = Path(__file__).parents[2]
TRAINER = "policy-trainer"
# What is of Kubeflow Trainer, test_trainer.py has admitted by it.
OVERLAYS = sorted({path.name for path in (ROOT / "manifests" / "overlays").iterdir()} - {TRAINER, "trainer-runtime"})
SAMPLES = sorted({path.name for path in (ROOT / "manifests" / "samples").glob("*.yaml")} - {"trainjob.yaml"})
ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="session")
def installed(share: Callable[..., Facts], kubeconfig: Path) -> Path:
    """The kubeconfig of the common control plane, with the namespace of the overlays and a restricted one: nothing here
    is written, so no other test is disturbed."""

    @contextlib.contextmanager
    def make(_: Path) -> Iterator[Facts]:
        labels: dict[str, dict[str, str]] = {"kubeflow": {}, "restricted": {ENFORCE: "restricted"}}
        for name, said in labels.items():
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": said}}
            operators.kubectl(kubeconfig, "apply", "--server-side", "-f", "-", stdin=json.dumps(namespace))
        _wait_enforced(kubeconfig)
        yield {}

    share("installed", make, on=("control-plane",))
    return kubeconfig


def _wait_enforced(kubeconfig: Path) -> None:
    """Wait until the API server heeds the label, which takes it a moment."""
    spec = {"containers": [{"name": "c", "image": "i"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trial", "namespace": "restricted"}, "spec": spec}
    deadline = time.monotonic() + 60
    while True:
        try:
            dry_run(kubeconfig, "-f", "-", stdin=json.dumps(body))
        except CommandFailed as error:
            if "violates PodSecurity" not in str(error):
                raise
            return
        assert time.monotonic() < deadline, "the namespace does not enforce the standard"
        time.sleep(0.2)


def dry_run(kubeconfig: Path, *arguments: str, stdin: str | None = None) -> str:
    return operators.kubectl(kubeconfig, "apply", "--server-side", "--dry-run=server", *arguments, stdin=stdin)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_admitted(installed: Path, overlay: str) -> None:
    """All of it, without a warning, and with the policies that reserve the operator's annotations."""
    folder = ROOT / "manifests" / "overlays" / overlay
    said = dry_run(installed, "--warnings-as-errors", "-k", str(folder))
    built = audit.rendered(folder)
    assert said.count("serverside-applied") == len(built)
    assert sum(item["kind"] == "ValidatingAdmissionPolicyBinding" for item in built) == 2
    names = {item["metadata"]["namespace"] for item in built if item["kind"] == "ServiceAccount"}
    subjects = [who["namespace"] for item in built if item["kind"].endswith("RoleBinding") for who in item["subjects"]]
    assert set(subjects) == names == {"kubeflow"}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_is_admitted(installed: Path, sample: str) -> None:
    dry_run(installed, "--warnings-as-errors", "-f", str(ROOT / "manifests" / "samples" / sample))


def test_the_component_for_the_proxy_adds_its_right(installed: Path, tmp_path: Path) -> None:
    """Only with it may the operator ask pods through the API server."""
    overlay = _with_component("status-via-proxy", tmp_path)
    dry_run(installed, "-k", str(tmp_path))
    for folder, has in ((overlay, False), (tmp_path, True)):
        built = audit.rendered(folder)
        rules = [rule for item in built if item["kind"].endswith("Role") for rule in item["rules"]]
        assert any("pods/proxy" in rule["resources"] for rule in rules) == has


def test_the_component_of_the_query_api_adds_its_rights_flags_and_service(installed: Path, tmp_path: Path) -> None:
    """It may ask who a token is of and what that user may, and nothing more."""
    overlay = _with_component("query-api", tmp_path)
    dry_run(installed, "--warnings-as-errors", "-k", str(tmp_path))
    builds = [audit.rendered(folder) for folder in (overlay, tmp_path)]
    rules = [
        sorted(
            (resource, verb)
            for item in built
            if item["kind"].endswith("Role")
            for rule in item["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        )
        for built in builds
    ]
    assert set(rules[1]) - set(rules[0]) == {("subjectaccessreviews", "create"), ("tokenreviews", "create")}
    (container,) = next(item for item in builds[1] if item["kind"] == "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    assert {"--query-bind-address=:8082", "--query-auth=token"} <= set(container["args"])
    (port,) = next(item for item in builds[1] if item["metadata"]["name"] == "elastic-tfjob-query")["spec"]["ports"]
    assert port["targetPort"] in [each["name"] for each in container["ports"]]


def test_the_component_of_learning_and_the_trainer_share_a_volume(installed: Path, tmp_path: Path) -> None:
    """Both are admitted where `restricted` is enforced, and write as one group."""
    _with_component("learning", tmp_path)
    trainer = ROOT / "manifests" / "overlays" / TRAINER
    pods = []
    for folder in (tmp_path, trainer):
        dry_run(installed, "--warnings-as-errors", "-k", str(folder))
        built = audit.rendered(folder)
        (pod,) = (
            spec["template"]["spec"]
            for item in built
            for spec in (
                [item["spec"]]
                if item["kind"] == "Deployment"
                else item.get("spec", {}).get("tfReplicaSpecs", {}).values()
            )
        )
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "restricted"}, "spec": pod}
        pod.pop("serviceAccountName", None)
        pod.pop("priorityClassName", None)  # of the component, which is not installed here
        dry_run(installed, "-f", "-", stdin=json.dumps(body))
        pods.append(pod)
    assert len({json.dumps(pod["volumes"]) for pod in pods}) == 1
    assert len({json.dumps(pod["containers"][0]["volumeMounts"]) for pod in pods}) == 1
    assert len({pod["containers"][0]["image"] for pod in pods}) == 1
    assert {pod["securityContext"]["fsGroup"] for pod in pods} == {65532}


def test_another_lease_with_the_patch_of_the_docs(installed: Path, tmp_path: Path) -> None:
    """The Role admits the Lease of the operator's default name, or that of the patch."""
    docs = (ROOT / "docs" / "compatibility.md").read_text()
    (patches,) = re.findall(r"```yaml\n(patches:\n.*?)```", docs, re.DOTALL)
    overlay = ROOT / "manifests" / "overlays" / "standalone"
    resources = {"resources": [_relative(overlay, tmp_path)], "namespace": "kubeflow"}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(resources) + patches)
    dry_run(installed, "-k", str(tmp_path))
    for folder, lease, said in ((overlay, Options().leader_election_id, []), (tmp_path, "my-lease", ["my-lease"])):
        built = audit.rendered(folder)
        rules = [rule for item in built if item["kind"] == "Role" for rule in item["rules"]]
        admitted = [
            rule["resourceNames"] for rule in rules if rule["resources"] == ["leases"] and "get" in rule["verbs"]
        ]
        assert admitted == [[lease]]
        (deployment,) = [item for item in built if item["kind"] == "Deployment"]
        args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        flag = "--leader-election-id="
        assert [each.removeprefix(flag) for each in args if each.startswith(flag)] == said


def _with_component(name: str, folder: Path) -> Path:
    """A kustomization in this folder, of the overlay `standalone`, which is given, and this component."""
    overlay, component = (ROOT / "manifests" / part for part in ("overlays/standalone", f"components/{name}"))
    parts = {
        "resources": [_relative(overlay, folder)],
        "components": [_relative(component, folder)],
        "namespace": "kubeflow",
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    return overlay


def _relative(target: Path, start: Path) -> str:
    return str(Path(*[".."] * len(start.resolve().parts[1:]), *target.resolve().parts[1:]))


def test_the_operators_pod_meets_restricted(installed: Path) -> None:
    """The API server itself judges; without the container's settings it refuses the same pod."""
    built = audit.rendered(ROOT / "manifests" / "base")
    spec = next(item for item in built if item["kind"] == "Deployment")["spec"]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator", "namespace": "restricted"}, "spec": spec}
    dry_run(installed, "-f", "-", stdin=json.dumps(pod))
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    del container["securityContext"]
    with pytest.raises(CommandFailed, match="violates PodSecurity"):
        dry_run(installed, "-f", "-", stdin=json.dumps(pod))

"""The operator and the trainer's image on the kind cluster, as a user would install them: by kustomize.

PYTHONPATH=tests python3 -m harness.deploy
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import yaml

from harness import binaries, images, names
from harness import cluster as kind
from harness.cluster import Cluster
from harness.progress import main, run, say, step

NAMESPACE = "kubeflow"
DEPLOYMENT = "deployment/elastic-tfjob-operator"
CONFIG_MAP = "elastic-tfjob-operator"
GO_MODULE = "github.com/kubeflow/training-operator"
GO_DEPLOYMENT = "deployment/training-operator"
ON_CONTROL_PLANE = {
    "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
}
"""For an operator that must not take room from the jobs that a benchmark measures."""


def deploy(config: str = "standard", components: Sequence[str] = ()) -> Cluster:
    """Build what is outdated, bring it to the cluster, and return when the operator of today's sources is ready, with
    these components."""
    kind.check()
    # Much of these images is downloads, much of a cluster is compiled: side by side.
    with ThreadPoolExecutor(1) as pool:
        ours = pool.submit(lambda: (images.operator(), images.trainer()))
        cluster = kind.ensure(config)
        operator, trainer = ours.result()
    cluster.load(trainer)
    install(cluster, operator, components)
    wait_ready(cluster)
    return cluster


def install(cluster: Cluster, operator: str, components: Sequence[str] = ()) -> None:
    """Apply the overlay and `components`, with the operator's image by its hash, so that new sources mean a new pod."""
    cluster.load(operator, everywhere=True)
    with step("installing the CRD and the operator (kustomize)"):
        parts = [f"../../manifests/components/{name}" for name in components]
        apply_overlay(cluster, "standalone", operator, components=parts)


def configure(cluster: Cluster, text: str) -> None:
    """Have the operator's ConfigMap say this: it follows at once."""
    patch = json.dumps({"data": {"config.yaml": text}})
    cluster.kubectl("-n", NAMESPACE, "patch", "configmap", CONFIG_MAP, "--type=merge", "--patch", patch)


@contextmanager
def configured(cluster: Cluster, text: str) -> Iterator[None]:
    """As `configure`, until the block ends."""
    found = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "configmap", CONFIG_MAP, "-o", "json"))
    configure(cluster, text)
    try:
        yield
    finally:
        configure(cluster, found["data"]["config.yaml"])


def apply_overlay(cluster: Cluster, overlay: str, operator: str, **more: object) -> None:
    """Apply one of the overlays with this image of the operator, and what else a kustomization may say."""
    name, _, tag = operator.rpartition(":")
    folder = kind.BUILD / f"deploy-{overlay}"
    folder.mkdir(parents=True, exist_ok=True)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "resources": [f"../../manifests/overlays/{overlay}"],
        "images": [{"name": f"{names.registry()}/elastic-tfjob/operator", "newName": name, "newTag": tag}],
        **more,
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization, indent=1))  # JSON is YAML
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-k", folder)


def kustomized(folder: Path, overlay: str, components: Sequence[str] = (), **more: object) -> str:
    """What kustomize makes of an overlay with these components, and what else a kustomization may say, which is written
    to `folder`."""

    def relative(part: str) -> str:
        return os.path.relpath(images.ROOT / "manifests" / part, folder.resolve())

    parts = {
        "resources": [relative(f"overlays/{overlay}")],
        "components": [relative(f"components/{name}") for name in components],
        "namespace": NAMESPACE,
        **more,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    return run([binaries.path("kube"), "kubectl", "kustomize", folder])


def wait_ready(cluster: Cluster) -> None:
    with step("waiting until the operator is ready"):
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=180s")


def kill_operator(cluster: Cluster) -> None:
    """Delete the operator's pod, which hears nothing of it before; its Deployment makes another."""
    select = "--selector=control-plane=elastic-tfjob-operator"
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", select, "--grace-period=0", "--force")


def operator_log(cluster: Cluster, tail: int = -1) -> str:
    """The last `tail` lines that the operator logged (all by default)."""
    return cluster.kubectl("-n", NAMESPACE, "logs", DEPLOYMENT, f"--tail={tail}")


def mean_s(cluster: Cluster, metric: str) -> float:
    """The mean of a histogram or summary of the operator that runs, in its unit."""
    select = "--selector=control-plane=elastic-tfjob-operator"
    pod = cluster.kubectl("-n", NAMESPACE, "get", "pod", select, "-o", "jsonpath={.items[0].metadata.name}")
    text = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(metric))
    return float(values[f"{metric}_sum"]) / max(float(values[f"{metric}_count"]), 1.0)


@contextmanager
def go_operator(cluster: Cluster) -> Iterator[None]:
    """The Go training-operator v1.8.1 on the cluster, installed by its own manifests with webhook and CRD.

    Only its image is one that was built from the same Go module. Ours must not run; CRD and namespace stay.
    """
    image = images.go_operator()
    cluster.load(image, everywhere=True)
    upstream = binaries.module_dir("training-operator", GO_MODULE)
    name, _, tag = image.rpartition(":")
    only_tfjobs = [
        {"op": "add", "path": "/spec/template/spec/containers/0/args", "value": ["--enable-scheme=tfjob"]},
        {"op": "add", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "IfNotPresent"},
    ]
    kustomization = {
        "resources": ["../manifests/overlays/standalone"],
        "images": [{"name": "kubeflow/training-operator", "newName": name, "newTag": tag}],
        "patches": [{"target": {"kind": "Deployment"}, "patch": json.dumps(only_tfjobs)}],
    }
    with tempfile.TemporaryDirectory(prefix="go-operator-") as folder:
        shutil.copytree(upstream / "manifests", Path(folder) / "manifests", copy_function=shutil.copyfile)
        overlay = Path(folder) / "overlay"
        overlay.mkdir()
        (overlay / "kustomization.yaml").write_text(json.dumps(kustomization))
        rendered = cluster.kubectl("kustomize", str(overlay))
    try:
        with step("installing the Go training-operator"):
            cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=rendered)
            cluster.kubectl("-n", NAMESPACE, "rollout", "status", GO_DEPLOYMENT, "--timeout=240s")
        yield
    finally:
        kept = ("Namespace", "CustomResourceDefinition")
        removed = [item for item in yaml.load_all(rendered, yaml.CSafeLoader) if item["kind"] not in kept]
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(removed))


def move_to_control_plane(cluster: Cluster, deployment: str) -> None:
    """Let an operator run beside the control plane."""
    patch = json.dumps({"spec": {"template": {"spec": ON_CONTROL_PLANE}}})
    cluster.kubectl("-n", NAMESPACE, "patch", deployment, "--type=merge", "--patch", patch)
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", deployment, "--timeout=240s")


@main
def _main() -> None:
    cluster = deploy()
    say(f"the operator runs in namespace {NAMESPACE} of cluster {cluster.name}")


if __name__ == "__main__":
    _main()

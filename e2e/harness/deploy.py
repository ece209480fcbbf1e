"""The operator and the trainer's image on the kind cluster, as a user would install them: by kustomize.

PYTHONPATH=e2e python3 -m harness.deploy
"""

import json

from harness import cluster as kind
from harness import images
from harness.cluster import Cluster
from harness.progress import main, say, step

NAMESPACE = "kubeflow"
DEPLOYMENT = "deployment/elastic-tfjob-operator"


def deploy(config: str = "standard") -> Cluster:
    """Build what is outdated, bring it to the cluster, and return when the operator of today's sources is ready."""
    cluster = kind.ensure(config)
    operator, trainer = images.operator(), images.trainer()
    cluster.load(trainer)
    install(cluster, operator)
    wait_ready(cluster)
    return cluster


def install(cluster: Cluster, operator: str) -> None:
    """Apply the overlay with the operator's image by its hash, so that new sources mean a new pod."""
    cluster.load(operator)
    name, _, tag = operator.rpartition(":")
    folder = kind.BUILD / "deploy"
    folder.mkdir(parents=True, exist_ok=True)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../manifests/overlays/standalone"],
        "images": [{"name": name, "newTag": tag}],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization, indent=1))  # JSON is YAML
    with step("installing the CRD and the operator (kustomize)"):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-k", folder)


def wait_ready(cluster: Cluster) -> None:
    with step("waiting until the operator is ready"):
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=180s")


def operator_log(cluster: Cluster, tail: int = -1) -> str:
    """The last `tail` lines that the operator logged (all by default)."""
    return cluster.kubectl("-n", NAMESPACE, "logs", DEPLOYMENT, f"--tail={tail}")


@main
def _main() -> None:
    cluster = deploy()
    say(f"the operator runs in namespace {NAMESPACE} of cluster {cluster.name}")


if __name__ == "__main__":
    _main()

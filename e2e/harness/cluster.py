"""A kind cluster of three nodes, made if it does not exist, else used as it is.

PYTHONPATH=e2e python3 -m harness.cluster            # ready, with a kubeconfig and kubectl under build/
PYTHONPATH=e2e python3 -m harness.cluster --delete
"""

import argparse
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import binaries, images
from harness.binaries import digest
from harness.engine import engine
from harness.progress import CommandFailed, main, run, say, step

NAME = os.environ.get("ELASTIC_TFJOB_CLUSTER", "elastic-tfjob")
CONFIG = images.ROOT / "e2e" / "kind.yaml"
BUILD = images.ROOT / "build"
KUBECONFIG = BUILD / "kubeconfig"
_DEFINITION_LABEL = "elastic-tfjob/cluster-definition"


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    kubeconfig: Path

    def kubectl(self, *args: str | Path, stdin: str | None = None) -> str:
        """The standard output of `kubectl args`, as administrator. Raises CommandFailed with what kubectl said."""
        return run([binaries.path("kube"), "kubectl", f"--kubeconfig={self.kubeconfig}", *args], stdin=stdin)

    def nodes(self) -> list[dict]:
        return json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]

    def load(self, image: str) -> None:
        """Bring `image`, whose tag is a hash of its inputs, and its `:dev` name to the workers; older ones go."""
        repository, _, tag = image.rpartition(":")
        dev = f"{repository}:dev"
        workers = [node for node in self._containers() if not node.endswith("control-plane")]
        present = {node: self._ctr(node, "images", "ls", "-q").split() for node in workers}
        if missing := [node for node in workers if image not in present[node]]:
            with (
                step(f"loading {repository.rpartition('/')[2]} ({tag}) onto {len(missing)} nodes"),
                tempfile.NamedTemporaryFile(prefix="image-", suffix=".tar") as archive,
            ):
                engine().run("save", "--output", archive.name, image)
                _kind("load", "image-archive", archive.name, f"--name={self.name}", f"--nodes={','.join(missing)}")
        for node in workers:
            self._ctr(node, "images", "tag", "--force", image, dev)
            if old := [x for x in present[node] if x.startswith(f"{repository}:") and x not in (image, dev)]:
                self._ctr(node, "images", "rm", *old)

    def _containers(self) -> list[str]:
        return _kind("get", "nodes", f"--name={self.name}").split()

    def _ctr(self, node: str, *args: str) -> str:
        return engine().run("exec", node, "ctr", "--namespace=k8s.io", *args)


def ensure() -> Cluster:
    """The cluster, ready: the existing one if it is healthy and defined as today, else a new one."""
    node_image = images.node()
    definition = digest(node_image, CONFIG)
    cluster = Cluster(NAME, KUBECONFIG)
    if NAME in _kind("get", "clusters").split():
        if problem := _problem(cluster, definition):
            say(f"  the cluster {NAME} exists, but {problem}: making it anew")
            delete()
        else:
            return cluster
    with step(f"creating the kind cluster {NAME} (1 control plane, 2 workers)", "50 s"):
        _kind(
            "create", "cluster", f"--name={NAME}", f"--image={node_image}", f"--config={CONFIG}",
            f"--kubeconfig={_private(KUBECONFIG)}", "--wait=180s", log="kind-create",
        )  # fmt: skip
    with step("waiting for the nodes and the name service"):
        cluster.kubectl("label", "nodes", "--all", f"{_DEFINITION_LABEL}={definition}")
        cluster.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
        cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s")
    _link_commands()
    return cluster


def delete() -> None:
    """Delete the cluster, if there is one."""
    if NAME in _kind("get", "clusters").split():
        with step(f"deleting the kind cluster {NAME}"):
            _kind("delete", "cluster", f"--name={NAME}", f"--kubeconfig={_private(KUBECONFIG)}")


def _problem(cluster: Cluster, definition: str) -> str:
    """Why the existing cluster cannot be used, or nothing."""
    try:
        _kind("export", "kubeconfig", f"--name={NAME}", f"--kubeconfig={_private(KUBECONFIG)}")
        _link_commands()
        nodes = cluster.nodes()
    except CommandFailed:
        return "its API server does not answer"
    labels = {node["metadata"]["labels"].get(_DEFINITION_LABEL) for node in nodes}
    if labels != {definition}:
        return "its definition has changed"
    for node in nodes:
        ready = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
        if ready["status"] != "True":
            return f"node {node['metadata']['name']} is not ready ({ready['message']})"
    return ""


def _private(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _link_commands() -> None:
    """kubectl and kind under build/bin, for people."""
    folder = BUILD / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in (("kubectl", "kube"), ("kind", "kind")):
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(binaries.path(program))


def _kind(*args: str | Path, log: str = "") -> str:
    file = images.LOGS / f"{log}.log" if log else None
    return run([binaries.path("kind"), *args], env=engine().environment, log=file)


@main
def _main() -> None:
    parser = argparse.ArgumentParser(description="Make the kind cluster, or delete it.")
    parser.add_argument("--delete", action="store_true")
    if parser.parse_args().delete:
        delete()
        return
    cluster = ensure()
    say(f"cluster {cluster.name} is ready. To look around:")
    print(f"export KUBECONFIG={cluster.kubeconfig} PATH={BUILD / 'bin'}:$PATH")


if __name__ == "__main__":
    _main()

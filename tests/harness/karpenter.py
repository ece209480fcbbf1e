"""Karpenter v1.14 with its KWOK provider as a process of this machine: it adds and removes nodes for pods.

with karpenter.running(plane, folder): ...      # a NodePool, and KWOK for the kubelets of its nodes (kwok.kubelets)
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from harness import binaries, operators
from harness.controlplane import ControlPlane, Process, free_port
from harness.operators import page
from harness.progress import CommandFailed

Object = dict[str, Any]

MODULE: Final = "sigs.k8s.io/karpenter"
API: Final = "/apis/karpenter.sh/v1"
NODE_POOL_LABEL: Final = "karpenter.sh/nodepool"
_CLASS: Final = "/apis/karpenter.kwok.sh/v1alpha1"
_READY_S: Final = 60.0


@contextlib.contextmanager
def running(plane: ControlPlane, folder: Path) -> Iterator[Process]:
    """Karpenter while the block runs, ready from its beginning."""
    folder.mkdir(parents=True, exist_ok=True)
    module = binaries.module_dir("karpenter", MODULE)
    for file in (*(module / "pkg/apis/crds").glob("*.yaml"), *(module / "kwok/apis/crds").glob("*.yaml")):
        plane.kubectl("apply", "--server-side", "-f", file)
    operators.wait_served(plane.kubeconfig, f"{API}/nodepools")
    operators.wait_served(plane.kubeconfig, f"{_CLASS}/kwoknodeclasses")
    probes = free_port()
    environment = {
        "KUBECONFIG": plane.kubeconfig,
        "SYSTEM_NAMESPACE": "kube-system",
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": free_port(),
        "HEALTH_PROBE_PORT": probes,
        "LOG_LEVEL": "info",
    }
    variables = [f"{name}={value}" for name, value in environment.items()]
    process = Process(["env", *variables, binaries.path("karpenter")], folder / "karpenter.log")
    try:
        deadline = time.monotonic() + _READY_S
        while page(f"http://127.0.0.1:{probes}/readyz") is None:
            if not process.alive or time.monotonic() > deadline:
                raise CommandFailed(f"Karpenter is not ready ({process.log}):\n{process.tail()}")
            time.sleep(0.2)
        yield process
    finally:
        process.stop()


def node_pool(
    name: str, *, cpu: int = 64, node_cpu: str = "", consolidate: str = "Never", expire: str = "Never"
) -> list[Object]:
    """A node class and a NodePool of at most `cpu` cores, with nodes of `node_cpu`; to be applied in this order.
    `consolidate`: after which time without change empty and underused nodes go; `expire`: after which time any node
    goes."""
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": name}
    requirements = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "karpenter.sh/capacity-type": "on-demand",
        **({"karpenter.kwok.sh/instance-cpu": node_cpu} if node_cpu else {}),
    }
    spec: Mapping[str, Any] = {
        "limits": {"cpu": cpu},
        "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": consolidate},
        "template": {
            "spec": {
                "expireAfter": expire,
                "nodeClassRef": reference,
                "requirements": [
                    {"key": key, "operator": "In", "values": [value]} for key, value in requirements.items()
                ],
            }
        },
    }
    return [
        {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": name}},
        {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec},
    ]

"""Fake nodes: KWOK plays their kubelets, so that thousands of pods run on a control plane alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import yaml

from harness import binaries
from harness.api import NODES, Api, Object
from harness.controlplane import READY_S, Process
from harness.progress import CommandFailed

LABEL = {"type": "kwok"}
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
_STAGES = (
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    "pod/fast/pod-ready",
    "pod/fast/pod-delete",
)
_CONFIGURATION = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    # By default four pods at a time become Running, which would be what a benchmark measures. The others are the
    # defaults, which KWOK does not fill in beside options that are given.
    "options": {
        "cidr": "10.0.0.0/16",
        "podPlayStageParallelism": 32,
        "nodePlayStageParallelism": 4,
        "nodeLeaseParallelism": 4,
        "podsOnNodeSyncParallelism": 1,
    },
}


def pod_template(cpu: str = "1") -> Object:
    """A TFJob's pod template that fits fake nodes only."""
    return {
        "spec": {
            "nodeSelector": LABEL,
            "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
            "containers": [{"name": "tensorflow", "image": "fake", "resources": {"requests": {"cpu": cpu}}}],
        }
    }


@contextlib.contextmanager
def kubelets(kubeconfig: Path, directory: Path, selector: str = "type=kwok") -> Iterator[Process]:
    """KWOK as the kubelets of the nodes with these labels, while the block runs."""
    module = binaries.module_dir("kwok", "sigs.k8s.io/kwok")
    stages = [yaml.safe_load((module / f"kustomize/stage/{name}.yaml").read_text()) for name in _STAGES]
    config = directory / "kwok.yaml"
    config.write_text(yaml.safe_dump_all([_CONFIGURATION, *stages]))
    process = Process(
        [
            binaries.path("kwok"),
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--manage-nodes-with-label-selector={selector}",
            # Heartbeats of a hundred idle nodes should not weigh on what is measured. KWOK renews a lease after a
            # quarter of it, and kube-controller-manager takes a node for lost after 50 s without.
            "--node-lease-duration-seconds=120",
            "--server-address=",
            "--v=WARN",
        ],
        directory / "kwok.log",
    )
    try:
        yield process
    finally:
        process.stop()


@contextlib.asynccontextmanager
async def nodes(api: Api, kubeconfig: Path, directory: Path, count: int, *, cpu: int = 64) -> AsyncIterator[int]:
    """`count` Ready nodes of `cpu` cores with no limit on pods while the block runs; yields the pid of kwok."""
    with kubelets(kubeconfig, directory) as process:
        await asyncio.gather(*(api.create(NODES, _node(i, cpu)) for i in range(count)))
        try:
            await asyncio.wait_for(_all_ready(api, count), READY_S)
        except TimeoutError:
            raise CommandFailed(f"KWOK: no {count} nodes Ready in {READY_S:.0f} s:\n{process.tail()}") from None
        yield process.pid


def _node(index: int, cpu: int) -> Object:
    size = {"cpu": str(cpu), "memory": "1Ti", "pods": "100000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"kwok-{index:03d}", "labels": {**LABEL, "kubernetes.io/hostname": f"kwok-{index:03d}"}},
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": size, "capacity": size},
    }


async def _all_ready(api: Api, count: int) -> None:
    ready: set[str] = set()
    async for _, node in api.watch(NODES, labelSelector="type=kwok"):
        if _ready(node):
            ready.add(node["metadata"]["name"])
        if len(ready) == count:
            return


def _ready(node: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))

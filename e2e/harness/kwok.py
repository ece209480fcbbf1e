"""Fake nodes: KWOK plays their kubelets, so that thousands of pods run on a control plane alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from harness import binaries
from harness.api import NODES, Api, Object
from harness.controlplane import Process

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
    # By default four pods at a time become Running, which would be what a benchmark measures.
    "options": {"podPlayStageParallelism": 32},
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


@contextlib.asynccontextmanager
async def nodes(api: Api, kubeconfig: Path, directory: Path, count: int, *, cpu: int = 64) -> AsyncIterator[int]:
    """`count` Ready nodes of `cpu` cores with no limit on pods while the block runs; yields the pid of kwok."""
    module = binaries.module_dir("kwok", "sigs.k8s.io/kwok")
    stages = [yaml.safe_load((module / f"kustomize/stage/{name}.yaml").read_text()) for name in _STAGES]
    config = directory / "kwok.yaml"
    config.write_text(yaml.safe_dump_all([_CONFIGURATION, *stages]))
    process = Process(
        [
            binaries.path("kwok"),
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            "--manage-nodes-with-label-selector=type=kwok",
            # Heartbeats of a hundred idle nodes should not weigh on what is measured.
            "--node-lease-duration-seconds=200",
            "--server-address=",
        ],
        directory / "kwok.log",
    )
    try:
        await asyncio.gather(*(api.create(NODES, _node(i, cpu)) for i in range(count)))
        ready: set[str] = set()
        async with asyncio.timeout(60):
            async for _, node in api.watch(NODES, labelSelector="type=kwok"):
                if _ready(node):
                    ready.add(node["metadata"]["name"])
                if len(ready) == count:
                    break
        yield process.pid
    finally:
        process.stop()


def _node(index: int, cpu: int) -> Object:
    size = {"cpu": str(cpu), "memory": "1Ti", "pods": "100000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"kwok-{index:03d}", "labels": {**LABEL, "kubernetes.io/hostname": f"kwok-{index:03d}"}},
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": size, "capacity": size},
    }


def _ready(node: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))

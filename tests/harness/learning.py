"""Learning from live jobs on the kind cluster: the volume that operator and trainer share, and the trainer."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness import cluster as kind
from harness import deploy
from harness.cluster import Cluster
from harness.progress import step

__all__ = ["CLAIM", "WEIGHTS", "await_update", "trainer", "updates", "volume"]

CLAIM = "elastic-tfjob-learning"
WEIGHTS = "/var/lib/elastic-tfjob/weights.npz"
TRAINER = "elastic-tfjob-policy-trainer"
CPU = "250m"
"""What the trainer may use: on a machine of few cores all else would be missing to the nodes of the jobs."""


def volume(cluster: Cluster) -> Path:
    """An empty volume for the claim of the component `learning`, on each node; gives this machine's side of it."""
    folder = kind.shared_folder(CLAIM)
    for file in folder.iterdir():
        file.unlink()
    manifest = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": CLAIM},
        "spec": {
            "capacity": {"storage": "256Mi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "standard",  # kind's
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": deploy.NAMESPACE, "name": CLAIM},
            "hostPath": {"path": f"/checkpoints/{CLAIM}"},
        },
    }
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
    return folder


@contextmanager
def trainer(cluster: Cluster, operator: str, arguments: Sequence[str]) -> Iterator[None]:
    """The overlay `policy-trainer`, beside the operator on the control plane, with these arguments and this CPU."""
    pod = "/spec/tfReplicaSpecs/Worker/template/spec"
    there = [{"op": "add", "path": f"{pod}/{key}", "value": value} for key, value in deploy.ON_CONTROL_PLANE.items()]
    there.append({"op": "replace", "path": f"{pod}/containers/0/args", "value": list(arguments)})
    there.append({"op": "add", "path": f"{pod}/containers/0/resources/limits/cpu", "value": CPU})
    patches = [{"target": {"kind": "TFJob"}, "patch": json.dumps(there)}]
    try:
        with step("starting the trainer of the policy"):
            deploy.apply_overlay(cluster, "policy-trainer", operator, patches=patches)
        yield
    finally:
        cluster.kubectl("-n", deploy.NAMESPACE, "delete", "tfjob", TRAINER, "--ignore-not-found")


def updates(folder: Path) -> list[dict[str, object]]:
    """What became of the attempts that the trainer has noted in this folder."""
    file = folder / f"{Path(WEIGHTS).name}.updates.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def await_update(folder: Path, most_s: float) -> None:
    """Wait until the trainer has noted an attempt in this folder, at most so long."""
    with step("waiting for an update of the policy"):
        end = time.monotonic() + most_s
        while not updates(folder) and time.monotonic() < end:
            time.sleep(2.0)

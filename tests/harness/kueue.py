"""Kueue v0.19 as a process of this machine: its own manifests with webhooks and rights, for TFJobs and nothing else.

with kueue.running(plane, folder): ...      # an administrator's queues and a job's label then do the rest
"""

import base64
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from harness import binaries, operators
from harness.controlplane import ControlPlane, Process, free_port
from harness.operators import kubectl, page
from harness.progress import CommandFailed

Object = dict[str, Any]

MODULE: Final = "sigs.k8s.io/kueue"
SYSTEM: Final = "kueue-system"
API: Final = "/apis/kueue.x-k8s.io/v1beta2"

_ACCOUNT: Final = "kueue-controller-manager"
_SECRET: Final = "kueue-webhook-server-cert"
_SERVICE: Final = "kueue-webhook-service"
# Two processes of Kueue start one after the other, the first makes its certificates.
_READY_S: Final = 120.0
_LEFT_OUT: Final = {"APIService", "ConfigMap", "Deployment", "Service"}
_FIRST: Final = {"Namespace", "CustomResourceDefinition"}


@contextlib.contextmanager
def running(plane: ControlPlane, folder: Path, **configuration: Any) -> Iterator[Process]:
    """Kueue while the block runs, ready from its beginning, with more `configuration`. `plane` must have the TFJob
    CRD."""
    folder.mkdir(parents=True, exist_ok=True)
    port, probes = free_port(), free_port()
    certificates = folder / "certificates"
    _install(plane, port)
    written = folder / "kueue.json"
    written.write_text(json.dumps({**_configuration(port, probes, certificates), **configuration}))
    identity = plane.service_account_kubeconfig(SYSTEM, _ACCOUNT)
    process = Process(
        [binaries.path("kueue"), f"--config={written}", f"--kubeconfig={identity}", "--zap-log-level=3"],
        folder / "kueue.log",
    )
    try:
        deadline = time.monotonic() + _READY_S
        while page(f"http://127.0.0.1:{probes}/readyz") is None:
            if not process.alive or time.monotonic() > deadline:
                raise CommandFailed(f"Kueue is not ready ({process.log}):\n{process.tail()}")
            mount(plane.kubeconfig, SYSTEM, _SECRET, certificates)
            time.sleep(0.2)
        yield process
    finally:
        process.stop()


def queue(
    name: str,
    namespace: str,
    *,
    node_labels: Mapping[str, str] | None = None,
    flavor_name: str = "",
    more: Mapping[str, Any] | None = None,
    **quota: str,
) -> list[Object]:
    """A flavor, a ClusterQueue with that much of each resource, where higher priorities preempt, and a LocalQueue of
    the same name; to be applied in this order. `more`: other fields of the ClusterQueue's spec."""
    flavor_name = flavor_name or name
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    flavor = {"metadata": {"name": flavor_name}, "spec": {"nodeLabels": node_labels} if node_labels else {}}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    cluster = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {"coveredResources": list(quota), "flavors": [{"name": flavor_name, "resources": resources}]}
        ],
        **(more or {}),
    }
    local = {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": name}}
    return [
        {**kind, "kind": "ResourceFlavor", **flavor},
        {**kind, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": cluster},
        {**kind, "kind": "LocalQueue", **local},
    ]


def _install(plane: ControlPlane, port: int) -> None:
    """Kueue's own manifests, with its webhooks on `port` of this machine."""
    manifests = binaries.module_dir("kueue", MODULE) / "config" / "default"
    items = [item for item in yaml.load_all(plane.kubectl("kustomize", manifests), yaml.CSafeLoader) if item]
    wanted = [_adapted(item, port) for item in items if item["kind"] not in _LEFT_OUT]
    # The certificate is for the Service's name, which must lead to this machine.
    leads_here = {"type": "ExternalName", "externalName": "localhost"}
    service: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": _SERVICE, "namespace": SYSTEM}}
    apply(plane, [item for item in wanted if item["kind"] in _FIRST])
    operators.wait_served(plane.kubeconfig, f"{API}/workloads")
    apply(plane, [service | {"spec": leads_here}, *(item for item in wanted if item["kind"] not in _FIRST)])


def _adapted(item: Object, port: int) -> Object:
    """With the port of the webhooks, and without those for what is no TFJob."""
    if item["kind"] == "CustomResourceDefinition" and "conversion" in item["spec"]:
        item["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] = port
    if "webhooks" in item:
        item["webhooks"] = [hook for hook in item["webhooks"] if all(map(_ours, hook["rules"]))]
        for hook in item["webhooks"]:
            hook["clientConfig"]["service"]["port"] = port
    return item


def _ours(rule: Object) -> bool:
    return rule["apiGroups"] == ["kueue.x-k8s.io"] or "tfjobs" in rule["resources"]


def _configuration(port: int, probes: int, certificates: Path) -> Object:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": SYSTEM,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probes}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["kubeflow.org/tfjob"]},
        "featureGates": {"VisibilityOnDemand": False},  # a server of its own on a fixed port
    }


def mount(kubeconfig: Path, namespace: str, name: str, folder: Path) -> None:
    """Do the kubelet's part: copy the Secret that a controller fills to where it looks for its certificate."""
    secret = json.loads(kubectl(kubeconfig, "get", "secret", name, f"--namespace={namespace}", "-o", "json"))
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (secret.get("data") or {}).items():
        there = folder / file
        if not there.exists():
            there.write_bytes(base64.b64decode(content))


def apply(plane: ControlPlane, items: list[Object]) -> None:
    """Have these objects on the server, as they are here."""
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body)

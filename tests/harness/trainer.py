"""Kubeflow Trainer v2.3 and JobSet v0.12 as processes of this machine: their own manifests with webhooks and rights.

with trainer.running(plane, folder): ...      # TrainJobs of any ClusterTrainingRuntime then become JobSets
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from harness import binaries, operators
from harness.controlplane import ControlPlane, Process, free_port
from harness.kueue import apply, mount
from harness.operators import page
from harness.progress import CommandFailed

Object = dict[str, Any]

SYSTEM: Final = "kubeflow-system"
API: Final = "/apis/trainer.kubeflow.org/v1alpha1"
JOBSETS: Final = "/apis/jobset.x-k8s.io/v1alpha2"
SERVICE: Final = "kubeflow-trainer-controller-manager"
"""Trainer's Service, and its ServiceAccount. Its certificate is for the Service's name."""
_LEFT_OUT: Final = {"ConfigMap", "Deployment", "Service"}
_FIRST: Final = {"Namespace", "CustomResourceDefinition"}
_READY_S: Final = 120.0
_HERE: Final = {"type": "ExternalName", "externalName": "localhost"}
# Where Trainer looks for its certificate and its own token, whatever its configuration says. Only it sees them there.
_CERTIFICATES: Final = "/tmp/k8s-webhook-server"
_TOKENS: Final = "/var/run/secrets"
_MOUNT: Final = (
    f"mkdir -p {_CERTIFICATES} {_TOKENS} && "
    f'mount --bind "$1" {_CERTIFICATES} && mount --bind "$2" {_TOKENS} && shift 2 && exec "$@"'
)


@dataclass(frozen=True, slots=True)
class Controller:
    """One with webhooks, which makes its certificate itself: where its objects are, and what proves that they are."""

    name: str
    namespace: str
    service: str
    secret: str
    served: str


_JOBSET: Final = Controller(
    "JobSet", "jobset-system", "jobset-webhook-service", "jobset-webhook-server-cert", f"{JOBSETS}/jobsets"
)
_TRAINER: Final = Controller("Trainer", SYSTEM, SERVICE, "kubeflow-trainer-webhook-cert", f"{API}/trainjobs")


@contextlib.contextmanager
def running(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Both while the block runs, ready from its beginning. Tokens of `plane` must name its own address as issuer."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for begin in (_jobset, _trainer):
            controller, process, probes, certificates = begin(plane, folder)
            stack.callback(process.stop)
            deadline = time.monotonic() + _READY_S
            while page(f"http://127.0.0.1:{probes}/readyz") is None:
                if time.monotonic() > deadline:
                    raise CommandFailed(f"{controller.name} is not ready ({process.log}):\n{process.tail()}")
                if not process.alive:  # it ends without its certificate; a kubelet would restart it, too
                    process.start()
                mount(plane.kubeconfig, controller.namespace, controller.secret, certificates)
                time.sleep(0.2)
        yield


Begun = tuple[Controller, Process, int, Path]
"""A controller, its process, the port of its probes, and where it looks for its certificate."""


def _jobset(plane: ControlPlane, folder: Path) -> Begun:
    port, probes, certificates = free_port(), free_port(), folder / "jobset-certificates"
    manifests = binaries.module_dir("trainer", "sigs.k8s.io/jobset") / "config" / "default"
    _install(plane, _JOBSET, _kustomized(plane, manifests), port)
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probes}"},
    }
    identity = plane.service_account_kubeconfig(_JOBSET.namespace, "jobset-controller-manager")
    command: list[str | Path] = [
        binaries.path("jobset"),
        *_files(folder, "jobset", configuration),
        f"--kubeconfig={identity}",
    ]
    return _JOBSET, Process(command, folder / "jobset.log"), probes, certificates


def _trainer(plane: ControlPlane, folder: Path) -> Begun:
    """Its own manifests but for those of JobSet, which it would fetch."""
    port, probes, served, secrets = free_port(), free_port(), folder / "served", folder / "secrets"
    base = binaries.module_dir("trainer", "github.com/kubeflow/trainer/v2") / "manifests" / "base"
    overlay = folder / "overlay"
    overlay.mkdir(exist_ok=True)
    parts = [os.path.relpath(base / each, overlay.resolve()) for each in ("crds", "rbac", "webhook")]
    content = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": SYSTEM}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump({**content, "resources": parts}))
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _TRAINER.secret, "namespace": SYSTEM}}
    _install(plane, _TRAINER, [*_kustomized(plane, overlay), secret], port)
    configuration = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probes}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": port, "host": "127.0.0.1"},
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": True, "webhookServiceName": SERVICE, "webhookSecretName": _TRAINER.secret},
        "statusServer": {"port": free_port()},
        "featureGates": {"TrainJobStatus": True},
    }
    identity = plane.service_account_kubeconfig(SYSTEM, SERVICE)
    _own_token(identity, secrets / "kubernetes.io" / "serviceaccount")
    (served / "serving-certs").mkdir(parents=True, exist_ok=True)
    alone = [] if os.getuid() == 0 else ["--map-root-user"]
    command: list[str | Path] = [
        *("unshare", "--mount", *alone, "sh", "-c", _MOUNT, "sh", str(served), str(secrets)),
        binaries.path("trainer-controller-manager"),
        *_files(folder, "trainer", configuration),
        f"--kubeconfig={identity}",
    ]
    return _TRAINER, Process(command, folder / "trainer.log"), probes, served / "serving-certs"


def _files(folder: Path, name: str, configuration: Mapping[str, Any]) -> Sequence[str]:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(configuration))
    return [f"--config={file}"]


def _own_token(kubeconfig: Path, folder: Path) -> None:
    """What a pod of this account has."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])
    (folder / "namespace").write_text(SYSTEM)


def _kustomized(plane: ControlPlane, folder: Path) -> list[Object]:
    return [item for item in yaml.load_all(plane.kubectl("kustomize", folder), yaml.CSafeLoader) if item]


def _install(plane: ControlPlane, controller: Controller, items: Sequence[Object], port: int) -> None:
    """These objects, with webhooks on `port` of this machine, which the certificate's name leads to."""
    wanted = [item for item in items if item["kind"] not in _LEFT_OUT]
    for item in wanted:
        for hook in item.get("webhooks") or ():
            hook["clientConfig"]["service"]["port"] = port
    named: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": controller.namespace}}
    place = {"name": controller.service, "namespace": controller.namespace}
    here: Object = {"apiVersion": "v1", "kind": "Service", "metadata": place, "spec": _HERE}
    apply(plane, [named, *(item for item in wanted if item["kind"] in _FIRST and item["kind"] != "Namespace")])
    operators.wait_served(plane.kubeconfig, controller.served)
    apply(plane, [here, *(item for item in wanted if item["kind"] not in _FIRST)])


def pod_token(plane: ControlPlane, namespace: str, pod: str, uid: str, audience: str) -> str:
    """A token as the kubelet projects it into this pod, of its account `default`."""
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": bound},
    }
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    made = json.loads(plane.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(request)))
    token: str = made["status"]["token"]
    return token

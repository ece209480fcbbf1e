"""A TFJob operator as a process of this machine: ours, and the Go training-operator v1.8.1 it is compared with.

    install("upstream", kubeconfig)
    with start("upstream", kubeconfig, folder) as operator: ...

Whatever holds for both is asked in the same words, so a test or a benchmark takes the operator's name as a parameter.
"""

import base64
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import yaml

from harness import audit, binaries
from harness.controlplane import Process, free_port
from harness.progress import CommandFailed, run

Name = Literal["ours", "upstream"]

READY_S = 60.0
STOP_S = 20.0

CRD = "manifests/base/crd.yaml"
"""What `elastic-tfjob crd` prints: `make lint` compares."""
UPSTREAM_CRD = "manifests/base/crds/kubeflow.org_tfjobs.yaml"
_RIGHTS = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "PriorityClass"}

_SYSTEM = "kubeflow"
_SECRET = "training-operator-webhook-cert"
_SERVICE = "training-operator"
_WEBHOOKS = "validator.training-operator.kubeflow.org"
_MOUNTED = Path("/tmp/k8s-webhook-server/serving-certs")
"""Where v1.8.1 looks whether its certificates are mounted; the server itself reads them from $TMPDIR."""


@dataclass(slots=True)
class Operator:
    """A running operator. `metrics_url` is its Prometheus page, `probe_url` the root of /healthz and /readyz."""

    name: Name
    process: Process
    log: Path
    metrics_url: str
    probe_url: str
    _stopped: bool = field(default=False, init=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return not self._stopped and self.process.alive

    def stop(self) -> None:
        """Ask it to end (SIGTERM) and wait; safe to call twice."""
        if not self._stopped:
            self._stopped = True
            self.process.stop(signal.SIGTERM, STOP_S)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        if not self._stopped:
            self._stopped = True
            self.process.stop(signal.SIGKILL)

    def ready(self) -> bool:
        return page(f"{self.probe_url}/readyz") is not None

    def metrics(self) -> str:
        """The text of its Prometheus page."""
        if (text := page(self.metrics_url)) is None:
            raise CommandFailed(f"{self.name} serves no metrics at {self.metrics_url}:\n{self.process.tail()}")
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def install(name: Name, kubeconfig: Path) -> None:
    """Install the operator's TFJob CRD and wait until it is served; a second call changes nothing."""
    crd = (_sources(name) / (CRD if name == "ours" else UPSTREAM_CRD)).read_text()
    kubectl(kubeconfig, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd)
    wait_served(kubeconfig, "/apis/kubeflow.org/v1/tfjobs")


def wait_served(kubeconfig: Path, resource: str) -> None:
    """Wait until the API server answers for a resource whose CRD was just applied.

    Not by `kubectl wait`, which gives up on a CRD that has no conditions yet.
    """
    deadline = time.monotonic() + READY_S
    while True:
        try:
            kubectl(kubeconfig, "get", "--raw", f"{resource}?limit=1")
            return
        except CommandFailed:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def service_account(name: Name, kubeconfig: Path) -> Path:
    """A kubeconfig with the rights that the operator's own manifests give it, and no more."""
    target = kubeconfig.with_name(f"{name}-operator.kubeconfig")
    if target.exists():
        return target
    overlay = _sources(name) / "manifests/overlays/standalone"
    items = [item for item in audit.rendered(overlay) if item["kind"] in _RIGHTS]
    _apply(kubeconfig, {"apiVersion": "v1", "kind": "List", "items": items})
    account = next(item["metadata"] for item in items if item["kind"] == "ServiceAccount")
    token = ("create", "token", account["name"], f"--namespace={account['namespace']}", "--duration=24h")
    config = yaml.load(kubeconfig.read_text(), yaml.CSafeLoader)
    config["users"] = [{**user, "user": {"token": kubectl(kubeconfig, *token).strip()}} for user in config["users"]]
    unfinished = target.with_suffix(f".{os.getpid()}")  # several test processes may be at this
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(config))
    unfinished.rename(target)
    return target


def start(
    name: Name,
    kubeconfig: Path,
    folder: Path,
    *,
    namespace: str | None = None,
    gang_scheduler: str | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    webhook: bool = False,
    identity: Path | None = None,
    program: str | None = None,
    command: Sequence[str | Path] = (),
) -> Operator:
    """Start an operator and return it once /readyz says 200. Its log is appended to `folder`/<name>.log.

    identity: the kubeconfig that the operator itself uses (see `service_account`), where that is not `kubeconfig`.
    namespace: act on this one only; gang_scheduler: create PodGroups for it; arguments: added to the command line.
    webhook: register upstream's validating webhook (ours validates in the CRD and has none). One upstream operator
    of a cluster at most: it is the one that answers.
    program: of harness.binaries, in place of the operator's own; command: anything else in its place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics, probes = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    words: list[str | Path] = [
        *(command or ([binaries.path(program)] if program else _program(name))),
        f"--kubeconfig={identity or kubeconfig}",
        f"--metrics-bind-address={metrics}",
        f"--health-probe-bind-address={probes}",
    ]
    if namespace:
        words.append(f"--namespace={namespace}")
    if gang_scheduler:
        words.append(f"--gang-scheduler-name={gang_scheduler}")
    variables = dict(environment or {})
    if name == "upstream":
        port = free_port()
        words += ["--enable-scheme=tfjob", f"--webhook-server-port={port}"]
        variables["TMPDIR"] = str(folder / "tmp")
        _prepare_certificates(kubeconfig, folder / "tmp")
        if webhook:
            _register_webhook(kubeconfig, port)
    words = ["env", *(f"{key}={value}" for key, value in variables.items()), *words, *arguments]

    def launch() -> Operator:
        log = folder / f"{name}.log"
        operator = Operator(name, Process(words, log), log, f"http://{metrics}/metrics", f"http://{probes}")
        try:
            _wait_ready(operator, kubeconfig, folder / "tmp")
        except BaseException:
            operator.kill()
            raise
        return operator

    try:
        return launch()
    except CommandFailed:
        # The first Go operator of a cluster makes the certificate, and may look for the copy before it was made.
        if name != "upstream" or not _mount_certificates(kubeconfig, folder / "tmp"):
            raise
        return launch()


def _sources(name: Name) -> Path:
    if name == "ours":
        return Path(__file__).resolve().parents[2]
    return binaries.module_dir("training-operator", "github.com/kubeflow/training-operator")


def _command() -> Path:
    return Path(sys.executable).with_name("elastic-tfjob")


def _program(name: Name) -> list[str | Path]:
    return [_command(), "operator"] if name == "ours" else [binaries.path("training-operator")]


def _wait_ready(operator: Operator, kubeconfig: Path, temporary: Path) -> None:
    deadline = time.monotonic() + READY_S
    mounted = operator.name != "upstream"
    while not operator.ready():
        if not operator.alive:
            raise CommandFailed(
                f"{operator.name} ended before it was ready ({operator.log}):\n{operator.process.tail()}"
            )
        if time.monotonic() > deadline:
            raise CommandFailed(f"{operator.name} not ready after {READY_S:.0f} s:\n{operator.process.tail()}")
        mounted = mounted or _mount_certificates(kubeconfig, temporary)
        time.sleep(0.1)


# -- the Go operator's webhook: it makes its own certificate, in a Secret that the kubelet would mount


def _prepare_certificates(kubeconfig: Path, temporary: Path) -> None:
    """Make the (empty) Secret that the operator fills, or take the certificate of the operator that ran before."""
    names = {"namespace": _SYSTEM}
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _SYSTEM}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _SECRET, **names}},
        # The certificate covers training-operator.kubeflow.svc only, and that name must lead to this machine.
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _SERVICE, **names},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
    ]
    _apply(kubeconfig, {"apiVersion": "v1", "kind": "List", "items": objects})
    _mount_certificates(kubeconfig, temporary)


def _mount_certificates(kubeconfig: Path, temporary: Path) -> bool:
    """Do the kubelet's part: copy the Secret to where the operator looks. False while the Secret is empty."""
    secret = json.loads(kubectl(kubeconfig, "get", "secret", _SECRET, f"--namespace={_SYSTEM}", "-o", "json"))
    data: dict[str, str] = secret.get("data") or {}
    if "tls.crt" not in data:
        return False
    served = temporary / "k8s-webhook-server" / "serving-certs"
    for target in (served, _MOUNTED):
        target.mkdir(parents=True, exist_ok=True)
    for file, content in data.items():
        (served / file).write_bytes(base64.b64decode(content))
    (_MOUNTED / "tls.crt").touch()
    return True


def _register_webhook(kubeconfig: Path, port: int) -> None:
    """Upstream's ValidatingWebhookConfiguration for TFJobs, as its manifests have it but for the port."""
    webhook = {
        "name": "validator.tfjob.training-operator.kubeflow.org",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {
                "name": _SERVICE,
                "namespace": _SYSTEM,
                "path": "/validate-kubeflow-org-v1-tfjob",
                "port": port,
            }
        },
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "rules": [
            {
                "apiGroups": ["kubeflow.org"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["tfjobs"],
            }
        ],
    }
    _apply(
        kubeconfig,
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": _WEBHOOKS},
            "webhooks": [webhook],
        },
    )


# -- parts


def _apply(kubeconfig: Path, manifest: Mapping[str, Any]) -> None:
    kubectl(kubeconfig, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(manifest))


def kubectl(kubeconfig: Path, *arguments: str, stdin: str | None = None) -> str:
    return run([binaries.path("kube"), "kubectl", f"--kubeconfig={kubeconfig}", *arguments], stdin=stdin)


def page(url: str) -> str | None:
    """The page at `url`; None while nobody answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except OSError:
        return None

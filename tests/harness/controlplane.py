"""A Kubernetes control plane as processes of this machine: etcd and kube-apiserver, and on request the other two.

It has no kubelet, so no pod runs, but every rule of the API (RBAC, admission, CRD schemas and CEL, watches, status
subresources) is the real one. Loopback only; ready in a few seconds.

    PYTHONPATH=tests python3 -m harness.controlplane --scheduler    # keeps one running, for work by hand
"""

import argparse
import json
import os
import random
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from harness import audit, binaries
from harness.progress import CommandFailed, run, say

READY_S = 90.0
"""How long a component may take to become ready: generous, since tests run beside builds on two cores."""


def free_port() -> int:
    """A port of 127.0.0.1 where nobody listens, for this process as long as it lives.

    No other process that asks here is given it (tests run side by side, and a server may listen late, or restart), nor
    does the kernel hand it to an outgoing connection where its range for these leaves any.
    """
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [port for port in range(10000, 65536) if not low <= port <= high] or range(10000, 65536)
    for port in random.sample(ports, len(ports)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0elastic-tfjob-port-{port}")  # a name without a file: it goes with the process
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        claim.detach()  # open until the process ends
        return port
    raise RuntimeError("no free port on 127.0.0.1 from 10000 up")


class Process:
    """A child process whose output goes to a log file."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self.log = log
        self._command = [str(word) for word in command]
        self.start()

    def start(self) -> None:
        """Start the command; also again, after it has ended."""
        with self.log.open("ab") as out:
            self._popen = subprocess.Popen(self._command, stdout=out, stderr=out)
        self.pid = self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def stop(self, sig: signal.Signals = signal.SIGTERM, patience_s: float = 20.0) -> None:
        """Send `sig`, wait for the end, and kill what is not gone in time."""
        if self.alive:
            self._popen.send_signal(sig)
        try:
            self._popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


class ControlPlane:
    """etcd and kube-apiserver, ready when the `with` block begins, gone when it ends.

    scheduler, controller_manager: run kube-scheduler, kube-controller-manager too. Without the second there are no
    ServiceAccounts `default`, so pods are then admitted without one, nothing is garbage-collected and no namespace
    can be deleted.
    environment: variables for all of its processes.
    controllers: those that kube-controller-manager runs, as its flag of that name has them.
    audit: log the operator's requests (harness.audit) in the file `audit_log`.
    reachable_issuer: tokens name the API server's own address, where their issuer's keys can be read, and not that of
        the Service `kubernetes`, which leads nowhere here.
    scheduler_qps: requests a second that the scheduler may make (50 by default, which also bounds pods bound a second).
    """

    def __init__(
        self,
        dir: Path,
        *,
        scheduler: bool = False,
        controller_manager: bool = False,
        scheduler_qps: float | None = None,
        controllers: str = "*",
        environment: Mapping[str, str] | None = None,
        audit: bool = False,
        reachable_issuer: bool = False,
    ) -> None:
        self.dir = Path(dir).resolve()
        self.audit_log = self.dir / "audit.log"
        self._audit = audit
        self._reachable_issuer = reachable_issuer
        self.kubeconfig = self.dir / "admin.kubeconfig"
        self.certificate = self.dir / "certificates" / "apiserver.crt"
        self._scheduler = scheduler
        self._controller_manager = controller_manager
        self._scheduler_qps = scheduler_qps
        self._controllers = controllers
        self._environment = [f"{name}={value}" for name, value in (environment or {}).items()]
        self._kube = binaries.path("kube")
        self._token = secrets.token_urlsafe(32)
        self._processes: dict[str, Process] = {}
        self.url = ""

    # -- life cycle

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self.dir.mkdir(parents=True, exist_ok=True)
        tokens = self.dir / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self._token},admin,admin,"system:masters"\n')
        client, peer, secure = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{secure}"
        self._etcd_url = f"http://127.0.0.1:{client}"
        self._write_kubeconfig(self.kubeconfig, "admin", self._token)
        self._spawn(
            "etcd",
            f"--data-dir={self.dir / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",  # a test's data need not outlive the machine
            "--quota-backend-bytes=4294967296",
            "--log-level=warn",
        )
        self.start_apiserver()
        if self._controller_manager:
            self._spawn(
                "kube-controller-manager",
                *self._client_flags(),
                f"--controllers={self._controllers}",
                f"--service-account-private-key-file={self._key}",
                f"--root-ca-file={self.certificate}",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            )
        if self._scheduler:
            qps = self._scheduler_qps
            limits = [f"--kube-api-qps={qps}", f"--kube-api-burst={2 * qps:.0f}"] if qps else []
            self._spawn("kube-scheduler", *self._client_flags(), *limits)
        if self._controller_manager:
            self._until("kube-controller-manager", "/api/v1/namespaces/default/serviceaccounts/default")

    def stop(self) -> None:
        """Stop everything, the users of the API first; safe to call twice."""
        for name in ("kube-scheduler", "kube-controller-manager"):
            if name in self._processes:
                self._processes.pop(name).stop()
        for name in ("kube-apiserver", "etcd"):
            if name in self._processes:
                self._processes.pop(name).stop(signal.SIGKILL)  # nothing here is worth a graceful end

    def start_apiserver(self) -> None:
        optional = [] if self._controller_manager else ["--disable-admission-plugins=ServiceAccount"]
        if self._audit:
            optional += [f"--audit-policy-file={audit.POLICY}", f"--audit-log-path={self.audit_log}"]
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # the Service `kubernetes` would point to a loopback address: refused
            f"--secure-port={self.url.rsplit(':', 1)[1]}",
            f"--cert-dir={self.certificate.parent}",  # it makes its own certificate there at the first start
            f"--token-auth-file={self.dir / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            # Its own TLS key signs the tokens of ServiceAccounts too: one key less to make without openssl.
            f"--service-account-signing-key-file={self._key}",
            f"--service-account-key-file={self._key}",
            f"--service-account-issuer={self.url if self._reachable_issuer else 'https://kubernetes.default.svc'}",
            "--allow-privileged",
            "--profiling=false",
            *optional,
        )
        self._until("kube-apiserver", "/readyz")
        self._until("kube-apiserver", "/api/v1/namespaces/default")

    def stop_apiserver(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """End the API server at once, as a crash would; with SIGTERM it first ends its requests, as an upgrade does."""
        self._processes.pop("kube-apiserver").stop(sig)

    def restart_apiserver(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Stop and start the API server on the same port, with the same data; returns when it is ready."""
        self.stop_apiserver(sig)
        self.start_apiserver()

    # -- use

    def kubectl(self, *args: str | Path, stdin: str | None = None) -> str:
        """The standard output of `kubectl args`, as administrator. Raises CommandFailed with what kubectl said."""
        return run([self._kube, "kubectl", f"--kubeconfig={self.kubeconfig}", *args], stdin=stdin)

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig that acts as a ServiceAccount, with no more rights than its roles give."""
        token = self.kubectl("create", "token", name, f"--namespace={namespace}", "--duration=24h").strip()
        file = self.dir / f"{namespace}-{name}.kubeconfig"
        self._write_kubeconfig(file, name, token)
        return file

    def pids(self) -> dict[str, int]:
        """Process ids by component."""
        return {name: process.pid for name, process in self._processes.items()}

    # -- parts

    @property
    def _key(self) -> Path:
        return self.certificate.with_suffix(".key")

    def _client_flags(self) -> list[str]:
        return [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0"]

    def _spawn(self, program: str, *flags: str) -> None:
        self._processes[program] = Process(
            ["env", *self._environment, self._kube, program, *flags], self.dir / f"{program}.log"
        )

    def _write_kubeconfig(self, file: Path, user: str, token: str) -> None:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "clusters": [
                {"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.certificate)}}
            ],
            "users": [{"name": user, "user": {"token": token}}],
        }
        file.touch(mode=0o600)
        file.write_text(json.dumps(config, indent=1))  # JSON is YAML

    def _until(self, program: str, resource: str) -> None:
        """Wait until the API server answers 200 for `resource`, which `program` brings about."""
        deadline = time.monotonic() + READY_S
        problem = "no answer"
        while time.monotonic() < deadline:
            process = self._processes[program]
            if not process.alive:
                raise CommandFailed(f"{program} ended before it was ready ({process.log}):\n{process.tail()}")
            try:
                if self.certificate.exists():
                    trust = ssl.create_default_context(cafile=str(self.certificate))
                    request = urllib.request.Request(self.url + resource)
                    request.add_header("Authorization", f"Bearer {self._token}")
                    with urllib.request.urlopen(request, context=trust, timeout=5):
                        return
            except urllib.error.HTTPError as error:
                problem = f"{error.code} {error.reason}"
                error.close()
            except (OSError, ssl.SSLError) as error:
                problem = str(error)
            time.sleep(0.1)
        raise CommandFailed(
            f"{program} not ready after {READY_S:.0f} s ({resource}: {problem}):\n{self._processes[program].tail()}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a control plane until Ctrl-C.")
    parser.add_argument("--scheduler", action="store_true")
    parser.add_argument("--controller-manager", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        tempfile.TemporaryDirectory(prefix="controlplane-") as folder,
        ControlPlane(Path(folder), scheduler=options.scheduler, controller_manager=options.controller_manager) as plane,
    ):
        say(f"{plane.url} is ready (process {os.getpid()}); Ctrl-C stops it")
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            say("stopping")


if __name__ == "__main__":
    main()

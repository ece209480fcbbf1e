"""A kind cluster, made if it does not exist, else used as it is. One at a time: another configuration replaces it.

PYTHONPATH=tests python3 -m harness.cluster            # ready, with a kubeconfig and kubectl under build/
PYTHONPATH=tests python3 -m harness.cluster scarce     # three workers whose CPU adds up to the machine's
PYTHONPATH=tests python3 -m harness.cluster loans      # two workers for training, two of the pool `inference`
PYTHONPATH=tests python3 -m harness.cluster --delete
"""

import argparse
import functools
import json
import os
import string
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import audit, binaries, images
from harness.binaries import digest
from harness.engine import engine
from harness.progress import CommandFailed, Problem, main, run, say, step

NAME = os.environ.get("ELASTIC_TFJOB_CLUSTER", "elastic-tfjob")
E2E = images.ROOT / "e2e"
CONFIGS = {"standard": E2E / "kind.yaml", "scarce": E2E / "kind-scarce.yaml", "loans": E2E / "kind-loans.yaml"}
VOLUMES = E2E / "volumes.yaml"
BUILD = images.ROOT / "build"
KUBECONFIG = BUILD / "kubeconfig"
CHECKPOINTS = BUILD / "checkpoints"
AUDIT_LOGS = "/var/log/kubernetes"
"""This machine's side of /checkpoints on every worker."""
CONTROL_PLANE_CPU_M = 500
"""CPU, in millicores, that a scarce cluster leaves to its control plane and to whoever drives it."""
WORKER_CPU_M = 1000
"""CPU, in millicores, that each worker of a standard cluster offers to pods beside its network's."""
LOANS_CPU_M = 375
"""CPU, in millicores, that each worker of a cluster with loans offers: a job, or two replicas of a model server."""
KINDNET_CPU_M = 100
"""CPU, in millicores, that the network of the stock node image requests on each node; that of our own requests none."""
PERIOD_US = 20_000
"""Period of the quota that caps a scarce node: with the usual 100 ms a full node would stand still for half of it."""
BACK_S = 120
_KILL = """
for process in /proc/[0-9]*; do
  grep -qs "$0" "$process/cgroup" && [ "$(cat "$process/comm")" != pause ] && kill -9 "${process#/proc/}" && killed=1
done
[ -n "$killed" ]
"""
_CAP = """
set -e
cd "$0"
version_1=cpu/kubelet.slice/kubelet-kubepods.slice
if [ -e $version_1/cpu.cfs_quota_us ]; then
  cd $version_1
  was="$(cat cpu.cfs_quota_us) $(cat cpu.cfs_period_us)"
else
  cd kubelet.slice/kubelet-kubepods.slice
  was="$(cat cpu.max)"
fi
[ "$was" != "$1 $2" ] || exit 0
echo "$was"
# systemd, so that it does not take the quota back with a change of its own; it rounds, and an old one knows no period.
systemctl set-property --runtime kubelet-kubepods.slice CPUQuota="$3" CPUQuotaPeriodSec="$2us" || true
if [ -e cpu.cfs_quota_us ]; then
  echo -1 >cpu.cfs_quota_us
  echo "$2" >cpu.cfs_period_us
  echo "$1" >cpu.cfs_quota_us
else
  echo "$1 $2" >cpu.max
fi
"""
"""Caps all pods of a node, of cgroup version 1 or 2. Arguments: where cgroups are, quota and period in microseconds,
the quota in percent of a core. Prints what was there, if that was something else."""
_DEFINITION_LABEL = "elastic-tfjob/cluster-definition"


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    kubeconfig: Path

    def kubectl(self, *args: str | Path, stdin: str | None = None) -> str:
        """The standard output of `kubectl args`, as administrator. Raises CommandFailed with what kubectl said."""
        return run(self.command(*args), stdin=stdin)

    def command(self, *args: str | Path) -> list[str]:
        """The command of `kubectl args`, as administrator: for one that goes on until it is ended."""
        return [str(each) for each in (binaries.path("kube"), "kubectl", f"--kubeconfig={self.kubeconfig}", *args)]

    def workers(self) -> list[str]:
        """Names of all nodes but the control plane."""
        return [node for node in self._containers() if not node.endswith("control-plane")]

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        return found

    def load(self, image: str, *, everywhere: bool = False) -> None:
        """Bring `image`, whose tag is a hash of its inputs, and its `:dev` name to the workers; older ones go.

        everywhere: to the control plane, too.
        """
        repository, _, tag = image.rpartition(":")
        dev = f"{repository}:dev"
        nodes = self._containers() if everywhere else self.workers()
        present = {node: self._ctr(node, "images", "ls", "-q").split() for node in nodes}
        if missing := [node for node in nodes if image not in present[node]]:
            with (
                step(f"loading {repository.rpartition('/')[2]} ({tag}) onto {len(missing)} nodes"),
                tempfile.NamedTemporaryFile(prefix="image-", suffix=".tar") as archive,
            ):
                engine().run("save", "--output", archive.name, image)
                _kind("load", "image-archive", archive.name, f"--name={self.name}", f"--nodes={','.join(missing)}")
        for node in nodes:
            self._ctr(node, "images", "tag", "--force", image, dev)
            if old := [x for x in present[node] if x.startswith(f"{repository}:") and x not in (image, dev)]:
                self._ctr(node, "images", "rm", *old)

    def cpu_seconds(self) -> float:
        """CPU time that the pods of all workers have used so far, those that are gone included."""
        script = (
            "cd /sys/fs/cgroup; cat cpuacct/kubelet.slice/kubelet-kubepods.slice/cpuacct.usage 2>/dev/null || "
            "sed -n 's/usage_usec \\(.*\\)/\\1000/p' kubelet.slice/kubelet-kubepods.slice/cpu.stat"
        )
        return sum(int(self.on_node(node, "sh", "-c", script)) for node in self.workers()) / 1e9

    def allocatable_cores(self) -> float:
        """CPU that the workers offer to pods."""
        return sum(self.offered().values())

    def offered(self) -> dict[str, float]:
        """Cores that each worker offers to pods."""
        # Here and not above: the kubernetes package takes half a second to import, which not every command pays.
        from kubernetes.utils.quantity import parse_quantity  # noqa: PLC0415

        cores = {n["metadata"]["name"]: float(parse_quantity(n["status"]["allocatable"]["cpu"])) for n in self.nodes()}
        return {name: cores[name] for name in self.workers()}

    def cap(self, period_us: int = PERIOD_US) -> list[str]:
        """Hold the pods of each worker, together, to the CPU that it offers: what a kubelet reserves is not kept back,
        and pods without a limit would take what other nodes offer. In a longer period their weights count for more,
        as the kernel hands out CPU in slices of some milliseconds. The workers that had no such cap: all of a new
        cluster, those that were restarted, none else. Raises CommandFailed where a pod has a larger limit."""
        return [
            node
            for node, cores in self.offered().items()
            if self.on_node(
                node, "sh", "-c", _CAP, "/sys/fs/cgroup", f"{cores * period_us:.0f}", str(period_us), f"{cores:.2%}"
            )
        ]

    def on_node(self, node: str, *command: str) -> str:
        """The standard output of a command on a node, as root. Raises CommandFailed."""
        return engine().run("exec", node, *command)

    def kill_pod(self, namespace: str, pod: str) -> None:
        """SIGKILL to all processes of a pod, untold. Raises CommandFailed, also where none runs."""
        where = "jsonpath={.spec.nodeName} {.metadata.uid}"
        node, uid = self.kubectl("-n", namespace, "get", "pod", pod, "-o", where).split()
        # A cgroup's name has it with underscores where systemd makes the cgroups.
        self.on_node(node, "sh", "-c", _KILL, uid.replace("-", "[-_]"))

    def audit_log(self) -> list[str]:
        """What the API server logged of the operator's requests since the cluster was made, or what is kept of it
        (standard clusters only), the oldest first."""
        (control_plane,) = [node for node in self._containers() if node.endswith("control-plane")]
        # A file that is full is renamed: audit-2026-01-01T00-00-00.000.log.
        return self.on_node(control_plane, "sh", "-c", f"cat {AUDIT_LOGS}/audit*.log").splitlines()

    @contextmanager
    def frozen(self, node: str) -> Iterator[None]:
        """A node that is gone, as from a power cut or a broken cable: nothing on it runs, nobody reaches it. Then it
        comes back, also if somebody deleted it meanwhile."""
        labels = json.loads(self.kubectl("get", "node", node, "-o", "json"))["metadata"]["labels"]
        engine().run("pause", node)
        try:
            yield
        finally:
            engine().run("unpause", node)
            self.on_node(node, "systemctl", "restart", "kubelet")  # only then it registers anew
            deadline = time.monotonic() + BACK_S
            while not self.kubectl("get", "node", node, "--ignore-not-found"):
                if time.monotonic() > deadline:
                    raise Problem(f"the node {node} is not back after {BACK_S} s")
                time.sleep(1)
            self.kubectl("label", "node", node, "--overwrite", *(f"{key}={value}" for key, value in labels.items()))
            self.kubectl("wait", "--for=condition=Ready", f"node/{node}", f"--timeout={BACK_S}s")
            # Its network is there when the pods that make it are.
            for each in self.kubectl("-n", "kube-system", "get", "daemonsets", "-o", "name").split():
                self.kubectl("-n", "kube-system", "rollout", "status", each, f"--timeout={BACK_S}s")

    def _containers(self) -> list[str]:
        return _kind("get", "nodes", f"--name={self.name}").split()

    def _ctr(self, node: str, *args: str) -> str:
        return self.on_node(node, "ctr", "--namespace=k8s.io", *args)


def ensure(config: str = "standard") -> Cluster:
    """The cluster, ready: the existing one if it is healthy and defined as `config` is today, else a new one."""
    exists = check()
    node_image = images.node()
    text = _config(config, stock=node_image == images.STOCK_NODE_IMAGE)
    # The folder's path, too: another checkout's nodes have another one.
    definition = digest(node_image, text, VOLUMES, audit.POLICY, str(CHECKPOINTS))
    cluster = Cluster(NAME, KUBECONFIG)
    if exists:
        if problem := _problem(cluster, definition):
            say(f"  the cluster {NAME} exists, but {problem}: making it anew")
            delete()
        else:
            return cluster
    shared_folder("default")
    with step(f"creating the kind cluster {NAME} ({config}, {text.count('role: worker')} workers)", "50 s"):
        _kind(
            "create", "cluster", f"--name={NAME}", f"--image={node_image}", "--config=-",
            f"--kubeconfig={_private(KUBECONFIG)}", "--wait=180s", log="kind-create", stdin=text,
        )  # fmt: skip
    with step("waiting for the nodes and the name service"):
        _registered(cluster)
        cluster.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
        cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s")
        cluster.kubectl("apply", "-f", VOLUMES)
        # The last of all: who finds it takes the cluster for complete.
        cluster.kubectl("label", "nodes", "--all", f"{_DEFINITION_LABEL}={definition}")
    _link_commands()
    return cluster


def _registered(cluster: Cluster) -> None:
    """Wait until the API server knows all nodes: kind waits for the control plane alone."""
    expected = cluster._containers()
    deadline = time.monotonic() + BACK_S
    while missing := set(expected) - {node["metadata"]["name"] for node in cluster.nodes()}:
        if time.monotonic() > deadline:
            raise Problem(f"after {BACK_S} s {', '.join(sorted(missing))} did not join the cluster")
        time.sleep(0.5)


def check() -> bool:
    """Whether there is a cluster. If not, make sure that this machine can make one: before anything is built, but for
    the small image with which the last of it is tried. Raises Problem with what is missing."""
    exists = bool(engine().containers_of(NAME))
    if not exists:
        _need_all()
    return exists


@functools.cache
def _need_all() -> None:
    """Once: containers are run for it, and it is asked for before images are built and before the cluster is made."""
    engine().need_builds()
    engine().need_room()
    engine().need_privileged(images.base())


def _config(name: str, *, stock: bool) -> str:
    """The kind configuration, with the CPU that a worker must reserve on this machine so as to offer what it should."""
    text = CONFIGS[name].read_text()
    cores_m = 1000 * (os.cpu_count() or 1)
    scarce_m = (cores_m - CONTROL_PLANE_CPU_M) // text.count("role: worker")
    offered_m = {"scarce": scarce_m, "loans": min(scarce_m, LOANS_CPU_M)}.get(name, WORKER_CPU_M)
    offered_m += KINDNET_CPU_M if stock else 0
    return string.Template(text).substitute(RESERVED=max(0, cores_m - offered_m))


def shared_folder(name: str) -> Path:
    """This machine's side of /checkpoints/`name`, which every user of the cluster's containers may write to."""
    for folder in (CHECKPOINTS, CHECKPOINTS / name):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    return CHECKPOINTS / name


def delete() -> None:
    """Delete the cluster, if there is one."""
    if engine().containers_of(NAME):
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
        return "its definition has changed, or another checkout made it"
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


def _kind(*args: str | Path, log: str = "", stdin: str | None = None) -> str:
    file = images.LOGS / f"{log}.log" if log else None
    # in the repository: paths of the configuration are relative to it
    return run([binaries.path("kind"), *args], cwd=images.ROOT, env=engine().environment, log=file, stdin=stdin)


@main
def _main() -> None:
    parser = argparse.ArgumentParser(description="Make the kind cluster, or delete it.")
    parser.add_argument("config", nargs="?", choices=sorted(CONFIGS), default="standard")
    parser.add_argument("--delete", action="store_true")
    options = parser.parse_args()
    if options.delete:
        delete()
        return
    cluster = ensure(options.config)
    say(f"cluster {cluster.name} is ready. To look around:")
    print(f"export KUBECONFIG={cluster.kubeconfig} PATH={BUILD / 'bin'}:$PATH")


if __name__ == "__main__":
    _main()

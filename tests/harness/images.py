"""The container images: the project's own (operator, trainer), and a kind node where no registry can be reached.

    PYTHONPATH=tests python3 -m harness.images operator trainer    # builds what is missing or outdated

An image's tag is a hash of what it is made from, so an image that exists is current. What a person names in a manifest
is `localhost/elastic-tfjob/NAME:dev`: `localhost` keeps anybody from looking for it in a public registry.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness import binaries
from harness.binaries import CACHE, KUBERNETES_VERSION, digest
from harness.engine import Engine, engine, registry_reachable
from harness.machine import need
from harness.progress import Problem, main, run, step

ROOT = Path(__file__).resolve().parents[2]
NODE_SOURCES = ROOT / "e2e" / "node-image"
PREFIX = "localhost/elastic-tfjob"
LOGS = CACHE / "logs"

PYTHON_IMAGE = "docker.io/library/python:3.11-slim-bookworm"
STOCK_NODE_IMAGE = "kindest/node:v1.34.0@sha256:7416a61b42b1662ca6ca89f02028ac133a309a2a30ba309614e8ec94d976dc5a"
"""kind v0.30.0's own; the patch release differs from what binaries.py builds, the minor one is what counts."""

# The names under which kubeadm looks for the parts of this Kubernetes release, by the stage that makes them.
_STAGES = {
    "components": [
        *(
            f"registry.k8s.io/{name}:v{KUBERNETES_VERSION}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
        ),
        "registry.k8s.io/etcd:3.6.5-0",
        f"{PREFIX}/components:node",
    ],
    "coredns": ["registry.k8s.io/coredns/coredns:v1.12.1"],
    "pause": ["registry.k8s.io/pause:3.10.1"],
}
COMPONENT_IMAGES = {name for names in _STAGES.values() for name in names}
_NODE_PROGRAMS = ("kube", "coredns", "pause")


def tag(name: str, hashed: str) -> str:
    return f"{PREFIX}/{name}:{hashed}"


def base() -> str:
    """An image with Debian 12 and Python 3.11: Docker's official one, or the same made of Debian's packages."""
    docker = engine()
    suite, packages = "bookworm", "python3,python3-venv,ca-certificates"
    own = tag("base", digest(suite, packages))
    if docker.has(own):
        return own
    if registry_reachable():
        return PYTHON_IMAGE
    need("mmdebstrap")
    with binaries.lock("image-base"), tempfile.TemporaryDirectory(prefix="base-image-") as folder:
        if not docker.has(own):
            with step("making a base image of Debian packages", "50 s"):
                archive = Path(folder) / "base.tar"
                command: list[str | Path] = ["mmdebstrap", "--variant=minbase", f"--include={packages}", suite, archive]
                run(command, log=LOGS / "image-base.log")
                docker.run("import", "--change", "ENV LANG=C.UTF-8", archive, own)
    return own


def _build(name: str, hashed: str, expect: str, make: Callable[[str], None]) -> str:
    """The image `name` for inputs `hashed`, made by `make(image)` if it does not exist; also tagged `:dev`."""
    docker, image = engine(), tag(name, hashed)
    if not docker.has(image):
        with binaries.lock(f"image-{name}"):
            if not docker.has(image):
                with step(f"building the {name} image", expect):
                    make(image)
    docker.run("tag", image, tag(name, "dev"))
    same = docker.run("images", "--format", "{{.Repository}}:{{.Tag}}", f"{PREFIX}/{name}").split()
    if old := [other for other in same if other not in (image, tag(name, "dev"))]:
        docker.forget(*old)
    return image


def operator() -> str:
    """The operator: the locked dependencies and this project."""
    sources = [ROOT / path for path in ("operator", "pyproject.toml", "uv.lock", "README.md", "LICENSE")]
    return _from_dockerfile("operator", ROOT, ROOT / "operator" / "Dockerfile", sources, "60 s")


def trainer() -> str:
    """TensorFlow, the digits data set, the example programs, and what they report with."""
    folder, package = ROOT / "trainer_images" / "digits", ROOT / "operator" / "elastic_tfjob"
    sources = [folder, package / "__init__.py", package / "runtime"]
    return _from_dockerfile("trainer", ROOT, folder / "Dockerfile", sources, "2 min")


def go_operator() -> str:
    """The Go training-operator, which the tests compare with and take over from."""

    def make(image: str) -> None:
        with tempfile.TemporaryDirectory(prefix="go-operator-") as folder:
            context = Path(folder)
            shutil.copy2(binaries.path("training-operator"), context / "manager")
            dockerfile = context / "Dockerfile"
            dockerfile.write_text('FROM scratch\nCOPY manager /manager\nUSER 65532:65532\nENTRYPOINT ["/manager"]\n')
            engine().build(context, image, dockerfile=dockerfile, log=LOGS / "image-go-operator.log", args={})

    return _build("go-operator", binaries.version("training-operator"), "5 s", make)


def _from_dockerfile(name: str, context: Path, dockerfile: Path, sources: list[Path], expect: str) -> str:
    below = base()

    def make(image: str) -> None:
        engine().build(context, image, dockerfile=dockerfile, log=LOGS / f"image-{name}.log", args={"BASE": below})

    return _build(name, digest(below, *sources), expect, make)


def node() -> str:
    """The image of a kind node: the stock one where it can be pulled, else Debian with what binaries.py built."""
    docker = engine()
    hashed = digest(NODE_SOURCES, *(binaries.version(name) for name in _NODE_PROGRAMS), repr(_STAGES))
    if not docker.has(tag("node", hashed)) and registry_reachable():
        return STOCK_NODE_IMAGE
    below = base()
    return _build("node", hashed, "2 min", lambda image: _make_node(docker, below, image))


def _make_node(docker: Engine, below: str, image: str) -> None:
    """Build the stages, then let containerd of a node import the components, so that kubeadm pulls nothing."""
    with tempfile.TemporaryDirectory(prefix="node-image-") as folder:
        context = Path(folder)
        shutil.copytree(NODE_SOURCES, context, dirs_exist_ok=True)
        (context / "programs").mkdir()
        for name in _NODE_PROGRAMS:
            shutil.copy2(binaries.path(name), context / "programs")
        for stage in (*_STAGES, "node"):
            docker.build(
                context,
                tag(stage, "unfinished"),
                dockerfile=context / "Dockerfile",
                target=stage,
                log=LOGS / f"image-{stage}.log",
                args={"BASE": below, "KUBERNETES_VERSION": KUBERNETES_VERSION},
            )
        names = []
        for stage, wanted in _STAGES.items():
            for name in wanted:
                docker.run("tag", tag(stage, "unfinished"), name)
                names.append(name)
        archive = context / "components.tar"
        many = ["--multi-image-archive"] if docker.name == "podman" else []
        docker.run("save", *many, "--output", archive, *names)
        import_all = (
            "containerd >/dev/null 2>&1 & "
            "until ctr version >/dev/null 2>&1; do sleep 0.2; done; "
            "ctr -n k8s.io images import --no-unpack /components.tar; kill $!; wait $! || true"
        )
        container = "elastic-tfjob-node-image"
        docker.run("rm", "--force", container)
        docker.in_container(tag("node", "unfinished"), container, import_all, [f"{archive}:/components.tar:ro"])
        docker.run(
            "commit", "--change", 'ENTRYPOINT ["/usr/local/bin/entrypoint"]', "--change", "CMD []", container, image
        )
        docker.run("rm", "--force", container)


BUILDERS = {"base": base, "node": node, "operator": operator, "trainer": trainer}


@main
def _main() -> None:
    if unknown := [name for name in sys.argv[1:] if name not in BUILDERS]:
        raise Problem(f"unknown image {', '.join(unknown)}: choose from {', '.join(BUILDERS)}")
    for wanted in sys.argv[1:] or BUILDERS:
        print(BUILDERS[wanted]())


if __name__ == "__main__":
    _main()

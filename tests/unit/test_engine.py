"""What a container engine lacks is said before anything is built, and how to get it (harness.engine)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import binaries, cluster, engine, images, machine
from harness.progress import Problem

RUNC = "docker: Error response from daemon: OCI runtime create failed: runc create failed: operation not permitted"

Docker = Callable[..., Path]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """`docker(word="what it does")` puts a docker on the PATH that does so for its commands that begin with the word.

    Others succeed without doing anything, but there is no image. Returns the file with the commands that it was given.
    """

    def make(**commands: str) -> Path:
        calls = tmp_path / "calls"
        calls.touch()
        cases = {"image": "exit 1", "version": "echo 27.0", **commands}
        lines = [f"{word}) {does} ;;" for word, does in cases.items()]
        program = tmp_path / "docker"
        program.write_text("\n".join(["#!/bin/sh", f'echo "$*" >>{calls}', 'case "$1" in', *lines, "esac"]))
        program.chmod(0o755)
        return calls

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("ELASTIC_TFJOB_ENGINE", raising=False)
    monkeypatch.setenv("ELASTIC_TFJOB_REGISTRY", "yes")
    monkeypatch.setattr(binaries, "path", lambda name: pytest.fail(f"began to build {name}"))
    monkeypatch.setattr(images, "node", lambda: pytest.fail("began to build the node image"))
    for cached in (engine.engine, cluster._need_all):
        cached.cache_clear()
    yield make
    for cached in (engine.engine, cluster._need_all):
        cached.cache_clear()


def test_a_docker_without_buildx_is_told_before_anything_is_built(docker: Docker) -> None:
    calls = docker(buildx="echo \"docker: 'buildx' is not a docker command.\" >&2; exit 1")
    with pytest.raises(Problem, match="docker-buildx-plugin") as told:
        cluster.ensure()
    assert "ELASTIC_TFJOB_ENGINE=podman" in str(told.value)
    assert not [call for call in calls.read_text().splitlines() if call.startswith(("build ", "run "))]


def test_builds_are_by_buildkit_also_where_the_older_builder_is_the_default(docker: Docker, tmp_path: Path) -> None:
    """Docker 20.10 with buildx ended with `unknown flag: --secret`."""
    docker(build='[ "$DOCKER_BUILDKIT" = 1 ] || { echo "unknown flag: --secret"; exit 125; }')
    engine.engine().build(tmp_path, "x", dockerfile=tmp_path / "Dockerfile", log=tmp_path / "log", args={})


def test_an_old_image_that_a_node_still_uses_stays(docker: Docker) -> None:
    calls = docker(rmi='[ "$2" != used ] || { echo "conflict: a container is using it" >&2; exit 1; }')
    engine.engine().forget("used", "old")
    assert calls.read_text().splitlines()[-2:] == ["rmi used", "rmi old"]


def test_a_cluster_that_exists_is_not_checked_again(docker: Docker) -> None:
    calls = docker(ps="echo elastic-tfjob-control-plane", buildx="exit 1")
    cluster.check()
    assert calls.read_text().startswith("version ")
    assert "label=io.x-k8s.kind.cluster=" in calls.read_text()


def test_an_image_is_not_built_without_buildx(docker: Docker, tmp_path: Path) -> None:
    """`make image` needs no cluster."""
    docker(buildx="exit 1")
    with pytest.raises(Problem, match="docker-buildx-plugin"):
        engine.engine().build(tmp_path, "x", dockerfile=tmp_path / "Dockerfile", log=tmp_path / "log", args={})


def test_an_engine_that_refuses_privileged_containers_is_told(docker: Docker) -> None:
    calls = docker(run=f'echo "{RUNC}" >&2; exit 125')
    with pytest.raises(Problem, match="privileged") as told:
        cluster.ensure()
    assert RUNC in str(told.value)
    assert "make test" in str(told.value)
    (tried,) = [call for call in calls.read_text().splitlines() if call.startswith("run ")]
    assert "--privileged" in tried
    assert images.PYTHON_IMAGE in tried


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    2097152 kB\n"},
            "memory: 2.0 GiB are free, a cluster needs 3",
        ),
        (
            {
                "cg/memory.max": f"{4 << 30}\n",
                "cg/memory.current": f"{3 << 30}\n",
                "cg/memory.stat": "inactive_file 0\n",
            },
            "memory: 1.0 GiB are free",
        ),
        ({"cg/cgroup.controllers": "cpu io\n"}, "control groups: no memory, pids below"),
    ],
)
def test_missing_parts_of_a_machine_are_reported(tmp_path: Path, files: dict[str, str], says: str) -> None:
    usual = {
        "proc/meminfo": "MemAvailable: 99999999 kB\n",
        "cg/cgroup.controllers": "cpuset cpu io memory pids\n",
        "cg/memory.max": "max\n",
        "cg/memory.current": "1\n",
        "cg/memory.stat": "",
    }
    for name, text in (usual | files).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(Problem) as told:
        machine.need_room(tmp_path / "no such folder", proc=tmp_path / "proc", cgroups=tmp_path / "cg")
    assert says in str(told.value)


def test_a_full_disk_is_told_and_may_be_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LEAST_DISK", 1 << 60)
    with pytest.raises(Problem, match="GiB are free at"):
        machine.need_room(tmp_path)
    monkeypatch.setenv("ELASTIC_TFJOB_ROOM", "any")
    machine.need_room(tmp_path)


def test_the_older_control_groups_are_as_good_and_no_proc_is_no_reason(tmp_path: Path) -> None:
    for name in ("cpu", "memory", "pids"):
        (tmp_path / name).mkdir()
    machine.need_room(tmp_path / "none", proc=tmp_path / "none", cgroups=tmp_path)
    machine.need_room(tmp_path / "none", proc=tmp_path / "none", cgroups=tmp_path / "none")


def test_an_engine_that_has_both_goes_on(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    docker()

    def begin() -> str:
        raise InterruptedError("begins to build")

    monkeypatch.setattr(images, "node", begin)
    with pytest.raises(InterruptedError):
        cluster.ensure()

"""What `pip install elastic-tfjob` gives: the hook alone; with extras the simulator, the commands and the operator."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_tfjob.extras import EXTRAS
from harness.names import ROOT
from harness.progress import run
from harness.shared import Facts
from harness.versions import DEFAULT

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]

HOOK = "from elastic_tfjob.runtime.elastic import ElasticCheckpoint; from elastic_tfjob.runtime import launcher"


@pytest.fixture(scope="session")
def wheel(share: Callable[..., Facts]) -> Facts:
    """`uv`, and the `wheel` of today's sources."""

    @contextlib.contextmanager
    def make(folder: Path) -> Iterator[Facts]:
        uv = run([ROOT / "e2e" / "bootstrap"]).strip()
        run([uv, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT])
        (made,) = folder.glob("*.whl")
        yield {"uv": uv, "wheel": str(made)}

    return share("wheel", make)


def installed(wheel: Facts, folder: Path, python: str | Path = sys.executable, extra: str = "") -> Path:
    """bin/ of a new environment with the wheel, and what it requires, from the package index."""
    run([wheel["uv"], "venv", "--quiet", "--python", python, folder])
    wanted = wheel["wheel"] + extra
    run([wheel["uv"], "pip", "install", "--quiet", "--python", folder / "bin" / "python", wanted], cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="session")
def plain(wheel: Facts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("plain"))


def said(*command: str | Path) -> tuple[int, str]:
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return ended.returncode, ended.stdout + ended.stderr


def older_python() -> Path:
    """One that only training programs may have; skips where the machine has none."""
    found = [shutil.which(f"python3.{minor}") for minor in (9, 10)]
    places = [*map(str, sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python"))), *filter(None, found)]
    works = (
        each for each in places if said(each, "-c", "import sys; assert (3, 9) <= sys.version_info < (3, 11)")[0] == 0
    )
    return Path(next(works, "") or pytest.skip("no Python 3.9 or 3.10 here"))


def test_without_extras_it_brings_nothing(wheel: Facts, plain: Path) -> None:
    modules = sorted({*sum(EXTRAS.values(), ())})
    find = f"import importlib.util as u; print([each for each in {modules} if u.find_spec(each)])"
    assert said(plain / "python", "-c", find) == (0, "[]\n")


def test_without_extras_the_hook_can_be_imported(plain: Path) -> None:
    assert said(plain / "python", "-c", HOOK) == (0, "")


@pytest.mark.parametrize(
    ("command", "extra"),
    [("jobs", "cli"), ("crd", "operator"), ("operator", "operator"), ("simulate", "simulation"), ("--help", "cli")],
)
def test_without_extras_a_command_names_the_extra(plain: Path, command: str, extra: str) -> None:
    code, text = said(plain / "elastic-tfjob", command)
    assert code == 1
    assert f"elastic-tfjob[{extra}]" in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    "pair", [DEFAULT[0], *(pytest.param(each, marks=pytest.mark.thorough) for each in DEFAULT[1:])]
)
def test_the_wheel_can_be_installed_beside_each_tensorflow(wheel: Facts, pair: str) -> None:
    """As pip resolves it: the wheel, and the TensorFlow of each pair that `make test-versions` tries."""
    python, tensorflow = pair.split("/")
    wanted = f"{wheel['wheel']}\ntensorflow-cpu~={tensorflow}.0\n"
    resolve = [wheel["uv"], "pip", "compile", "--quiet", "--no-header", "--python-version", python, "--python-platform"]
    ended = subprocess.run(
        [*resolve, "x86_64-manylinux_2_28", "-"], input=wanted, capture_output=True, text=True, check=False, cwd="/"
    )
    assert ended.returncode == 0, ended.stderr
    assert "tensorflow-cpu==" in ended.stdout


def test_with_its_extra_the_simulator_runs(wheel: Facts, tmp_path: Path) -> None:
    bin = installed(wheel, tmp_path / "simulation", extra="[simulation]")
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,submit_s,duration_s,num_gpus\na,0,100,1\nb,10,50,2\n")
    code, text = said(bin / "elastic-tfjob", "simulate", trace, "--nodes=2", "--profile=fifo")
    assert code == 0, text
    assert "2/2" in text
    assert "Needs pip install" in said(bin / "elastic-tfjob", "jobs")[1]


@pytest.mark.thorough  # the image of the e2e has this extra and no other
def test_with_its_extra_the_operator_is_complete(wheel: Facts, tmp_path: Path) -> None:
    bin = installed(wheel, tmp_path / "operator", extra="[operator]")
    assert said(bin / "elastic-tfjob", "crd") == (0, (ROOT / "manifests" / "base" / "crd.yaml").read_text())
    assert said(bin / "python", "-c", "import elastic_tfjob.controller.operator, elastic_tfjob.exporter.server")[0] == 0
    for command in ("jobs", "pipeline", "train-policy"):  # a component of pipelines and an overlay call these two
        code, text = said(bin / "elastic-tfjob", command, "--help")
        assert code == 0, text
    assert "Needs pip install" not in said(bin / "elastic-tfjob", "--help")[1]


def test_on_an_older_python_it_is_the_hook_and_nothing_else(wheel: Facts, tmp_path: Path) -> None:
    bin = installed(wheel, tmp_path / "older", python=older_python())
    assert said(bin / "python", "-c", HOOK) == (0, "")
    listed = run([wheel["uv"], "pip", "list", "--python", bin / "python", "--format=json"])
    assert [each["name"] for each in json.loads(listed)] == ["elastic-tfjob"]
    code, text = said(bin / "elastic-tfjob", "jobs")
    assert code == 1
    assert "need Python 3.11 or newer" in text

"""Replicas that only serve: what they do without `import tensorflow`, and when they import it all the same."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.runtime import preload
from elastic_tfjob.runtime.light_server import needs_tensorflow
from elastic_tfjob.runtime.preload import LIGHT, Program, Step
from elastic_tfjob.runtime.protocol import cluster_of
from harness.controlplane import free_port

from .pods import PYTHON, until

CALL = "from elastic_tfjob.runtime import serve_replica\nserve_replica()\n"
PROGRAM = CALL + "import tensorflow\nprint('on its own:', tensorflow.__doc__)\n"


def config(kind: str, index: int = 0, **cluster: list[str]) -> dict[str, Any]:
    found = cluster or {name: [f"127.0.0.1:{free_port()}"] for name in ("chief", "ps", "worker")}
    return {"cluster": found, "task": {"type": kind, "index": index}}


def environment(kind: str, **more: str) -> dict[str, str]:
    return {**os.environ, "TF_CONFIG": json.dumps(config(kind)), **more}


@pytest.mark.parametrize(
    ("found", "cluster", "task"),
    [
        (config("ps", 1, chief=["c"], ps=["p", "q"]), {"chief": ["c"], "ps": ["p", "q"]}, ("ps", 1)),
        (
            config("worker", master=["m"], ps=["p"], worker=["w"]),
            {"chief": ["m"], "ps": ["p"], "worker": ["w"]},
            ("worker", 0),
        ),
        (
            config("worker", 2, ps=["p"], worker=["a", "b"]),
            {"chief": ["a"], "ps": ["p"], "worker": ["b"]},
            ("worker", 1),
        ),
        (config("ps", ps=["p"], worker=["a"], evaluator=["e"]), {"chief": ["a"], "ps": ["p"], "worker": []}, ("ps", 0)),
    ],
)
def test_the_cluster_has_exactly_one_chief(
    found: dict[str, Any], cluster: dict[str, list[str]], task: tuple[str, int]
) -> None:
    assert cluster_of(found) == (cluster, *task)


@pytest.mark.parametrize("text", ["tf.load_op_library('x.so')", "import tensorflow_text", "import horovod.tensorflow"])
@pytest.mark.parametrize("where", ["train.py", "layers.py"])
def test_custom_ops_are_found_and_named(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "train.py").write_text("import layers\n")
    assert needs_tensorflow(str(tmp_path / "train.py")) == ""
    (tmp_path / where).write_text(text)
    why = needs_tensorflow(str(tmp_path / "train.py"))
    assert why.startswith(f"{where} has ")
    assert why.endswith(", which may load custom ops or devices")
    assert needs_tensorflow(None) == ""


@pytest.mark.parametrize("kind", ["ps", "worker", "chief"])
def test_what_is_imported_ahead_depends_on_what_the_replica_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CALL + "import numpy\n")
    monkeypatch.setenv("TF_CONFIG", json.dumps(config(kind)))
    serves = [Step("import", LIGHT)]
    assert preload.steps(Program("script", str(script))) == ([Step("import", "numpy")] if kind == "chief" else serves)
    script.write_text(CALL + "import numpy  # and tf.load_library\n")
    assert preload.steps(Program("script", str(script))) == [Step("import", "numpy")]


def run(script: Path, kind: str, **more: str) -> tuple[str, str]:
    done = subprocess.run(
        [PYTHON, script], env=environment(kind, **more), capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout, done.stderr


@pytest.fixture
def foreign(tmp_path: Path) -> str:
    """A folder with a TensorFlow whose files are arranged in another way."""
    package = tmp_path / "other" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"another one"')
    return str(package.parent)


def test_where_the_native_library_is_elsewhere_the_program_starts_as_without_the_call(
    tmp_path: Path, foreign: str
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    path = f"{foreign}:{os.environ.get('PYTHONPATH', '')}"
    out, told = run(tmp_path / "train.py", "worker", PYTHONPATH=path)
    assert out == "on its own: another one\n"
    assert "this replica imports TensorFlow: the light server failed: ImportError" in told


def test_other_replicas_and_programs_with_custom_ops_go_on(tmp_path: Path, foreign: str) -> None:
    path = f"{foreign}:{os.environ.get('PYTHONPATH', '')}"
    (tmp_path / "train.py").write_text(PROGRAM)
    assert run(tmp_path / "train.py", "chief", PYTHONPATH=path) == ("on its own: another one\n", "")
    (tmp_path / "train.py").write_text("import tensorflow\n" + PROGRAM)
    told = run(tmp_path / "train.py", "ps", PYTHONPATH=path)[1]
    assert told == "this replica imports TensorFlow: the program has imported it before serve_replica()\n"
    (tmp_path / "train.py").write_text(PROGRAM + "# load_op_library\n")
    out, told = run(tmp_path / "train.py", "ps", PYTHONPATH=path)
    assert out == "on its own: another one\n"
    assert "train.py has load_op_library" in told


KERNELS = """
import {module}
from tensorflow.core.framework.kernel_def_pb2 import KernelList
from tensorflow.python.client import pywrap_tf_session
known = KernelList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllRegisteredKernels()))
print(*sorted(f"{{each.op}}/{{each.device_type}}/{{each.label}}/{{each.constraint}}" for each in known.kernel), sep=";")
"""


def test_it_has_every_kernel_that_a_full_server_has() -> None:
    light, full = (
        subprocess.run(
            [PYTHON, "-c", KERNELS.format(module=module)], capture_output=True, text=True, timeout=120, check=True
        ).stdout.split(";")
        for module in (LIGHT, "tensorflow")
    )
    assert len(light) > 1000
    assert sorted(set(full) - set(light)) == []


def test_it_loads_no_python_of_tensorflow_and_ends_as_other_servers_do(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CALL + "raise SystemExit('it returned')\n")
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen([PYTHON, tmp_path / "train.py"], env=environment("ps"), stdout=file, stderr=file)
    try:
        until("it serves", lambda: "ps 0 serves at grpc://127.0.0.1" in output.read_text(), 120)
        opened = Path(f"/proc/{process.pid}/maps").read_text()
        assert "tensorflow" in opened
        assert "ml_dtypes" not in opened, "the Python of TensorFlow imports it"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    finally:
        process.kill()
        process.wait()

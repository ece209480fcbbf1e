"""Who writes checkpoints where variables are on parameter servers."""

import contextlib
import importlib
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_tfjob.runtime import shared_folder_probe

from .jobs import Job, Replica

pytestmark = pytest.mark.xdist_group("tensorflow-1")

CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"
PROGRAM = """
import json, os, sys
import tensorflow as tf
from elastic_tfjob.runtime.elastic import ElasticCheckpoint

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type != "chief":
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
                                  protocol="grpc", start=True)
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    a, b = tf.Variable(1.0), tf.Variable(2.0)
sharded = json.loads(sys.argv[1])
elastic = ElasticCheckpoint(tf.train.Checkpoint(a=a, b=b), "here", total_steps=1, sharded=sharded)
before = sorted(os.listdir("here")) if os.path.exists("here") else []
elastic.resume()
a.assign(3.0)
elastic.step(1)
a.assign(4.0)
again = ElasticCheckpoint(tf.train.Checkpoint(a=a, b=b), "here", sharded=sharded).resume()
there = sorted(os.listdir("here"))
writer = elastic._checkpoints.options[0].experimental_io_device
print(json.dumps({"writer": writer, "before": before, "there": there, "step": again, "a": float(a), "b": float(b)}))
sys.stdout.flush()
os._exit(0)
"""


def _train(directory: Path, places: dict[str, Path], sharded: bool | None) -> dict[str, object]:
    """Run a chief, two parameter servers and a worker, each in its own working directory; what the chief prints."""
    job = Job(directory, "-c", PROGRAM, json.dumps(sharded))
    job.configure({"chief": 1, "ps": 2, "worker": 1})

    def start(replica: Replica, output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        environment = {**os.environ, "TF_CONFIG": job.configs[replica], "TF_CPP_MIN_LOG_LEVEL": "2"}
        place = places["{}-{}".format(*replica)]
        return subprocess.Popen(job.program, cwd=place, env=environment, stdout=output, text=True)

    leads = ("chief", 0)
    others = [start(replica) for replica in job.configs if replica != leads]
    try:
        with start(leads, subprocess.PIPE) as chief:
            told, _ = chief.communicate(timeout=400)
        found: dict[str, object] = json.loads(told.strip().rpartition("\n")[2])
        return found
    finally:
        for each in others:
            each.kill()
            each.wait()


@pytest.mark.parametrize(
    ("apart", "sharded", "writer"),
    [
        pytest.param((), None, None, id="all-see-it", marks=pytest.mark.thorough),  # as in the sample of the e2e
        # The next test has what the chief finds out of the folder, test_elastic.py that it writes where servers fail.
        pytest.param(("ps-1",), None, CHIEF, id="one-does-not", marks=pytest.mark.thorough),
        pytest.param((), False, CHIEF, id="chief-is-told-to", marks=pytest.mark.thorough),
    ],
)
def test_parameter_servers_write_their_parts_to_a_shared_folder(
    tmp_path: Path, apart: tuple[str, ...], sharded: bool | None, writer: str | None
) -> None:
    """And what is written is read again; nothing else is left in the folder, of anybody."""
    places = {}
    for name in ("chief-0", "ps-0", "ps-1", "worker-0"):
        places[name] = tmp_path / (name if name in apart else "shared")
        places[name].mkdir(exist_ok=True)
    found = _train(tmp_path, places, sharded)
    data = [f"elastic-1.data-{part:05}-of-00003" for part in range(3)]
    assert found["there"] == sorted(["elastic-1.complete", "elastic-1.index", *data])
    assert (found["before"], found["writer"]) == ([], writer)
    assert (found["step"], found["a"], found["b"]) == (1, 3.0, 2.0)
    for name in apart:
        assert list(places[name].iterdir()) == []


@pytest.mark.parametrize("fails", [None, "write_file", "read_file"])
def test_the_chief_writes_to_a_folder_that_is_read_only_for_servers(tmp_path: Path, fails: str | None) -> None:
    """Nor is one of theirs that fails any trouble of the program's."""
    tf: Any = importlib.import_module("tensorflow")

    def refuse(*_: object) -> None:
        raise tf.errors.PermissionDeniedError(None, None, "read-only")

    calls = {name: getattr(tf.io, name) for name in ("read_file", "write_file")}
    here = SimpleNamespace(
        config=SimpleNamespace(
            list_logical_devices=lambda _: [SimpleNamespace(name=f"/job:{job}/task:0") for job in ("chief", "ps")]
        ),
        device=lambda _: contextlib.nullcontext(),
        io=SimpleNamespace(gfile=tf.io.gfile, **{**calls, **({fails: refuse} if fails else {})}),
        train=tf.train,
    )
    options = shared_folder_probe.options(here, str(tmp_path / "new"), None)
    writers = [each.experimental_io_device for each in options]
    assert writers == ([None, "/job:chief/task:0"] if fails is None else ["/job:chief/task:0"])
    assert list((tmp_path / "new").iterdir()) == []


MIRRORED = """
import json, os, sys
import tensorflow as tf
from elastic_tfjob.runtime.elastic import ElasticCheckpoint

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    mean = tf.Variable(0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ,
                       aggregation=tf.VariableAggregation.MEAN)  # as those of a batch normalization
elastic = ElasticCheckpoint(tf.train.Checkpoint(mean=mean), sys.argv[1], total_steps=4, every_steps=2, every_s=None,
                            strategy=strategy)
add = tf.function(lambda: strategy.run(lambda: mean.assign_add(1.0)))
for step in range(elastic.resume() + 1, 5):
    add()
    elastic.step(step)
print(json.dumps({"step": step, "error": elastic.progress.save_error}))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(
    "fails",
    [pytest.param("chief", marks=pytest.mark.thorough), "worker", pytest.param("none", marks=pytest.mark.thorough)],
)
def test_a_worker_that_cannot_write_its_part_does_not_block_the_others(tmp_path: Path, fails: str) -> None:
    """Writing adds up over all workers what each has of such variables."""
    (tmp_path / "file").touch()
    there = tmp_path / ("file/checkpoints" if fails == "chief" else "checkpoints")  # below a file nothing can be made
    job = Job(tmp_path, "-c", MIRRORED, str(there))
    job.configure({"worker": 2})
    running = []
    for (_, index), config in job.configs.items():
        environment = {**os.environ, "TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "2"}
        output = open(tmp_path / f"output-{index}", "w+")  # noqa: SIM115
        program = [*job.program]
        if fails == "worker" and index == 1:  # no temporary folder anywhere
            program[2] = "import tempfile; tempfile.tempdir = '/dev/null/none'\n" + program[2]
        running.append((subprocess.Popen(program, env=environment, stdout=output), output))
    try:
        for process, output in running:
            assert process.wait(120) == 0
            output.seek(0)
            told = json.loads(output.read().strip().rpartition("\n")[2])
            assert told["step"] == 4
            assert (told["error"] is None) is (fails == "none")
    finally:
        for process, output in running:
            process.kill()
            process.wait()
            output.close()

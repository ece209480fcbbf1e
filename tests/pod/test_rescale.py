"""Real training jobs as processes of this machine: every replica has a launcher, commands are written as the operator
writes them. What is measured is printed (pytest -rP), not judged: machines differ."""

import os
import re
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from elastic_tfjob.runtime.forkserver import MOST_OWN_BYTES

from .jobs import PROGRAMS, SLOW, Job
from .pods import PYTHON, until


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return tmp_path


def _private_bytes(pid: int) -> int:
    """Memory that only this process has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB", text, re.MULTILINE)) << 10


def _saved(job: Job, step: int) -> bool:
    """Whether the newest of the checkpoints that TensorFlow names by their steps is as new as this."""
    state = job.checkpoints / "checkpoint"
    found = re.search(r'model_checkpoint_path: "[^"]*-(\d+)"', state.read_text()) if state.exists() else None
    return found is not None and int(found[1]) >= step


def _version(package: str) -> str:
    """Of a package that the Python under test has."""
    program = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return subprocess.run([PYTHON, "-c", program, package], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.thorough  # e2e/test_elastic.py plays it in real pods
@pytest.mark.xdist_group("tensorflow-2")
@pytest.mark.timeout(1800)
def test_parameter_servers_and_workers_change(directory: Path) -> None:
    job = Job(directory, PROGRAMS / "digits.py", "--steps=1000000", "--embedding-mb=8", "--checkpoint-every=1000")

    try:
        job.start(chief=1, ps=1, worker=1)
        told = ("loss", "steps_per_s", "examples_per_s", "total_steps")
        until("all is told", lambda: all(map(job.chief.status.get, told)), SLOW)
        grown = job.rescale(1, chief=1, ps=2, worker=2)
        assert grown["lost_steps"] == 0
        until("it trains on", lambda: job.chief.status["step"] > grown["step"] + 50, SLOW)
        shrunk = job.rescale(2, chief=1, ps=1, worker=1)
        assert shrunk["lost_steps"] == 0
        for kind in ("chief", "ps", "worker"):
            log = job.pods[kind, 0].log
            assert log.count("was forked") == 2, "TensorFlow was imported once in each pod that was kept"
            assert _private_bytes(int(re.findall(r"interpreter with .* started as (\d+)", log)[-1])) <= MOST_OWN_BYTES
        assert shrunk["checkpoint"]["bytes"] < 1.1 * grown["checkpoint"]["bytes"], "however many PS hold it"
        resumed_at = shrunk["resumed_step"]
        until(
            "the last size has a good model",
            lambda: any(line["resumed_at"] == resumed_at and line["accuracy"] >= 0.95 for line in job.lines()),
            SLOW,
        )
        steps = [line["step"] for line in job.lines()]
        assert steps == sorted(set(steps)), "no step was done twice"
    finally:
        job.stop()


@pytest.mark.thorough  # unit/test_coordinator.py has the cause, e2e kills a PS
@pytest.mark.xdist_group("tensorflow-2")
@pytest.mark.timeout(1800)
def test_a_parameter_server_is_lost_while_a_worker_is_away(directory: Path) -> None:
    """TensorFlow's coordinator may then wait for ever (unit/test_coordinator.py). The chief ends, and started again it
    goes on."""
    job = Job(directory, PROGRAMS / "digits.py", "--steps=1000000", "--checkpoint-every=1")
    try:
        job.start(chief=1, ps=1, worker=1)
        until("there is a checkpoint", lambda: job.chief.status["checkpoint"], SLOW)
        until("it has told a step", job.lines, SLOW)
        job.pods["worker", 0].stop()
        until("the chief misses its worker", lambda: "Worker /job:worker" in job.chief.output, SLOW)
        job.pods["ps", 0].stop()
        job.pods["ps", 0].start()
        job.pods["worker", 0].start()
        assert job.chief.wait(SLOW) == 1
        before = job.lines()[-1]["step"]
        job.chief.start()
        until("it trains on", lambda: job.lines()[-1]["step"] > before + 100, SLOW)
        # It tells every hundredth step, and saves between them, too.
        assert 0 < job.lines()[-1]["resumed_at"] < before + 100
    finally:
        job.stop()


@pytest.mark.thorough  # test_elastic.py has Keras in one process
@pytest.mark.xdist_group("tensorflow-2")
@pytest.mark.timeout(1800)
def test_keras_on_parameter_servers_changes(directory: Path) -> None:
    """Model.fit saves in the middle of an epoch."""
    job = Job(directory, PROGRAMS / "keras_digits.py", "--steps=1000000")
    try:
        job.start(chief=1, ps=1, worker=1)
        until("its loss is told", lambda: job.chief.status["loss"], SLOW)
        until("it has a hook", lambda: job.chief.status["hook"] is True, SLOW)

        def crash() -> None:
            """The prepared chief, as TensorFlow's native code does by chance."""
            os.kill(int(re.findall(r"generation 1 .*started as (\d+)", job.chief.log)[-1]), signal.SIGSEGV)
            until("that is noticed", lambda: "prepared generation 1 ended with 139" in job.chief.log, SLOW)
            # What the launcher says of it is a moment older than its log: by then it is not the first one's any more.
            until("another is ready", lambda: job.chief.log.count("generation 1 is ready") == 2, SLOW)

        job.while_prepared = crash
        grown = job.rescale(1, chief=1, ps=1, worker=2)
        assert grown["lost_steps"] == 0
        until("it trains on", lambda: job.chief.status["step"] > grown["step"] + 100, SLOW)
    finally:
        job.stop()


@pytest.mark.thorough  # e2e/test_elastic.py rescales; test_sharing.py has two such workers
@pytest.mark.xdist_group("tensorflow-1")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param([PROGRAMS / "keras_digits.py", "--steps=100000"], id="keras", marks=pytest.mark.thorough),
        pytest.param([PROGRAMS / "mirrored_digits.py", "--steps=1000000"], id="own-loop"),
    ],
)
def test_workers_without_parameter_servers_change(directory: Path, program: list[object]) -> None:
    job = Job(directory, *program)
    try:
        job.start(worker=1)
        grown = job.rescale(1, worker=2)
        assert grown["lost_steps"] == 0
        until("it trains on", lambda: job.chief.status["step"] > grown["step"] + 20, SLOW)
        alone = job.rescale(2, operator=False, worker=2)
        assert alone["lost_steps"] == 0
        until("the other worker runs it, too", lambda: job.pods["worker", 1].status["generation"] == 2, SLOW)
        until("it trains on", lambda: job.chief.status["step"] > alone["step"] + 20, SLOW)
        assert job.rescale(3, worker=1)["lost_steps"] == 0
    finally:
        job.stop()


@pytest.mark.thorough  # test_launcher.py finds a program without the hook
@pytest.mark.xdist_group("tensorflow-1")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("program", "ps"),
    [
        pytest.param("monitored_digits.py", 1, id="monitored-session"),
        pytest.param("own_checkpoints_digits.py", 0, id="own-loop"),
    ],
)
def test_programs_with_checkpoints_of_their_own_change(directory: Path, program: str, ps: int) -> None:
    """They do not know the hook, which is found out; made anew with another size they go on. Worker 0 leads."""
    job = Job(directory, PROGRAMS / program, "--steps=1000000", "--report-every=20", "--at-most=50")
    servers = {"ps": ps} if ps else {}
    try:
        job.launch(**servers, worker=1)
        until("it trains", lambda: any(line["step"] > 100 for line in job.lines()), SLOW)
        assert job.chief.status["hook"] is not True
        until("it is known that it has no hook", lambda: job.chief.status["hook"] is False, SLOW)
        assert job.chief.status["modes"] == [], "only recreate is left"
        until("it has saved such a step", partial(_saved, job, 100), SLOW)
        job.recreate(**servers, worker=2)
        until("it trains on", lambda: len(job.lines()) > 3, SLOW)
        assert job.lines()[0]["resumed_at"] >= 100
        if not ps:
            assert job.lines()[0]["workers"] == 2
    finally:
        job.stop()


@pytest.mark.thorough  # test_elastic.py has Keras 3 in one process
@pytest.mark.xdist_group("tensorflow-1")
@pytest.mark.timeout(1800)
def test_keras_3_with_one_worker_changes(directory: Path) -> None:
    """To a generation of the same size: no other is possible."""
    if (keras := _version("keras")).startswith("2."):
        pytest.skip(f"{PYTHON} has Keras {keras}")
    job = Job(directory, PROGRAMS / "keras_3_digits.py", "--steps=1000000")
    try:
        job.launch(worker=1)
        until("it trains", lambda: (job.chief.status["step"] or 0) > 50, SLOW)
        assert job.rescale(1, worker=1)["lost_steps"] == 0
        step = job.chief.status["step"]
        until("it trains on", lambda: job.chief.status["step"] > step + 50, SLOW)
    finally:
        job.stop()

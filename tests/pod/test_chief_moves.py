"""The chief goes to another pod while the job trains: launchers, exporter, hook and TensorFlow are real."""

import contextlib
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

from elastic_tfjob.runtime import protocol

from .jobs import PROGRAMS, SLOW, Job
from .pods import Pod, until

LATE_S = 3.0

pytestmark = [pytest.mark.xdist_group("tensorflow-3"), pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")


def _goes_on(job: Job, begun: int) -> None:
    until("it trains on", lambda: job.chief.status["step"] > begun + 50, SLOW)


def test_the_chief_moves(tmp_path: Path) -> None:
    """Twice: its next pod learns from the old one that it has left, or from the operator."""
    job = Job(tmp_path, PROGRAMS / "digits.py", "--steps=1000000", "--embedding-mb=8", "--checkpoint-every=100000")
    try:
        job.start(chief=1, ps=1, worker=1)
        for generation, reachable in ((1, True), (2, False)):
            before = job.chief.shared
            moved = job.move_chief(generation, reachable=reachable)
            saved = protocol.read(before / protocol.PROGRESS) or {}
            assert (moved["resumed_step"], moved["lost_steps"]) == (saved["step"], 0 if reachable else None)
            assert (moved["downtime_s"] is not None) == reachable
            _goes_on(job, moved["resumed_step"])
    finally:
        job.stop()


@pytest.mark.thorough  # campaign: chief-moves
@pytest.mark.parametrize("reachable", [True, False])
def test_the_last_checkpoint_is_shown_late(tmp_path: Path, reachable: bool) -> None:
    """The next pod's view of the directory is some seconds old, as a client of NFS has it."""
    job = Job(tmp_path, PROGRAMS / "mirrored_digits.py", "--steps=1000000")
    ended = threading.Event()
    try:
        job.start(worker=1)
        written = job.checkpoints
        until("there is a checkpoint", lambda: any(written.glob("*.complete")), SLOW)
        job.checkpoints = shutil.copytree(written, tmp_path / "view")

        def show() -> None:
            """Files first, each a while after it was written."""
            while not ended.wait(0.5):
                for path in sorted(written.iterdir(), key=lambda each: each.suffix == ".complete"):
                    with contextlib.suppress(OSError):
                        if path.is_file() and time.time() - path.stat().st_mtime > LATE_S:
                            shutil.copy2(path, job.checkpoints / path.name)

        threading.Thread(target=show).start()
        before = job.chief.shared
        moved = job.move_chief(1, reachable=reachable)
        saved = protocol.read(before / protocol.PROGRESS) or {}
        assert moved["resumed_step"] == saved["step"]
    finally:
        ended.set()
        job.stop()


WAITS = """
import json, os, sys, time
from pathlib import Path
from elastic_tfjob.runtime import protocol

shared = Path(os.environ["ELASTIC_TFJOB_DIR"])
folder = protocol.generation_directory(shared, int(os.environ["ELASTIC_TFJOB_GENERATION"]))
protocol.write(folder / protocol.HELLO, {})
protocol.write(folder / protocol.READY, {"checkpoint": 30})
while not (go := protocol.read(folder / protocol.GO)):
    time.sleep(0.01)
print(json.dumps(go["old_chief"]), flush=True)
time.sleep(600)
"""


def test_a_restarted_container_needs_the_checkpoint_until_its_program_has_begun(tmp_path: Path) -> None:
    """Else it would train from an older one."""
    pod = Pod(tmp_path, [sys.executable, "-c", WAITS])
    pod.command("prepare", 1)
    pod.start()
    try:
        until("it is ready", lambda: (pod.status["prepared"] or {}).get("checkpoint") == 30)
        pod.command("run", 1, saved=40)
        until("it runs", lambda: '{"checkpoint": 40}' in pod.output)
        pod.stop()
        pod.start()
        until("it runs again", lambda: pod.output.count('{"checkpoint": 40}') == 2)
        pod.stop()
        protocol.write(pod.shared / protocol.PROGRESS, {"generation": 1})
        pod.start()
        until("it needs nothing any more", lambda: "{}" in pod.output)
    finally:
        pod.stop()


@pytest.mark.thorough  # campaign: chief-moves
@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_of_so_many_workers_moves(tmp_path: Path, workers: int) -> None:
    job = Job(tmp_path, PROGRAMS / "mirrored_digits.py", "--steps=1000000")
    try:
        job.start(worker=workers)
        moved = job.move_chief(1)
        assert moved["lost_steps"] == 0
        _goes_on(job, moved["resumed_step"])
    finally:
        job.stop()

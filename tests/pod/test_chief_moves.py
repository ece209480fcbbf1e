"""The chief goes to another pod while the job trains: launchers, exporter, hook and TensorFlow are real."""

from pathlib import Path

import pytest

from elastic_tfjob.runtime import protocol

from .jobs import PROGRAMS, SLOW, Job
from .pods import until

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


def test_a_job_of_one_replica_moves(tmp_path: Path) -> None:
    job = Job(tmp_path, PROGRAMS / "mirrored_digits.py", "--steps=1000000")
    try:
        job.start(worker=1)
        moved = job.move_chief(1)
        assert moved["lost_steps"] == 0
        _goes_on(job, moved["resumed_step"])
    finally:
        job.stop()


def test_the_first_of_several_workers_moves(tmp_path: Path) -> None:
    job = Job(tmp_path, PROGRAMS / "mirrored_digits.py", "--steps=1000000")
    try:
        job.start(worker=2)
        moved = job.move_chief(1)
        assert moved["lost_steps"] == 0
        _goes_on(job, moved["resumed_step"])
    finally:
        job.stop()

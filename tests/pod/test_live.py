"""Workers join and leave a training program: launchers, hook and TensorFlow are real."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from .jobs import PROGRAMS, SLOW, Job
from .pods import until


def _programs(job: Job) -> dict[str, str]:
    """The process ids of the programs that chief, PS and the first worker were started as."""
    kept = {kind: job.pods[kind, 0].log for kind in ("chief", "ps", "worker")}
    return {kind: " ".join(re.findall(r"generation \d+ .*started as (\d+)", log)) for kind, log in kept.items()}


def _is_beyond(job: Job, step: int) -> bool:
    return bool(job.chief.status["step"] > step)


@pytest.mark.xdist_group("tensorflow-2")
@pytest.mark.timeout(1800)
def test_workers_join_and_leave(tmp_path: Path) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    job = Job(tmp_path, PROGRAMS / "digits.py", "--steps=1000000", "--checkpoint-every=1000", "--report-every=20")
    try:
        job.start(chief=1, ps=1, worker=1)
        until("it can be changed", lambda: "live" in job.chief.status["modes"], SLOW)
        programs = _programs(job)
        for generation, workers in ((1, 3), (2, 2), (3, 1), (4, 2)):
            before = job.chief.status["step"]
            status = job.change_workers(generation, workers)
            assert (status["lost_steps"], status["generation"]) == (0, generation)
            assert status["resumed_step"] >= before
            until("it trains on", partial(_is_beyond, job, status["step"] + 50), SLOW)
        assert _programs(job) == programs, "no program was started beside those that train"
        until("it has told steps", job.lines, SLOW)
        assert {line["resumed_at"] for line in job.lines()} == {0}
        steps = [line["step"] for line in job.lines()]
        assert steps == sorted(set(steps)), "no step was done twice"
        job.chief.signal(signal.SIGTERM)  # it saves, and its container starts again
        job.chief.wait(SLOW)
        job.chief.start()
        until("it trains with the workers that there are", lambda: job.lines()[-1]["resumed_at"] > 0, SLOW)
        assert job.chief.status["generation"] == 4
        until("they can change again", lambda: "live" in job.chief.status["modes"], SLOW)
        assert job.change_workers(5, 3)["lost_steps"] == 0
    finally:
        job.stop()

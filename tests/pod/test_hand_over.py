"""Values go through memory when parameter servers change: launchers, hook and TensorFlow are real."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .jobs import SLOW, Job
from .pods import PYTHON, until

PROGRAM = Path(__file__).with_name("variables.py")
SAVED = """
import json, sys
import numpy as np
import tensorflow as tf

reader = tf.train.load_checkpoint(sys.argv[1])
types = reader.get_variable_to_dtype_map()

def value(key):
    return tf.cast(tf.raw_ops.RestoreV2(prefix=sys.argv[1], tensor_names=[key], shape_and_slices=[""],
                                        dtypes=[types[key]])[0], tf.float64).numpy()

keys = [key for key in types if key.endswith("/.ATTRIBUTES/VARIABLE_VALUE")]
print(json.dumps({key.split("/.ATTRIBUTES")[0].split("/")[-1]: np.atleast_1d(value(key)).tolist() for key in keys}))
"""

pytestmark = [pytest.mark.xdist_group("tensorflow-3"), pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")


def saved(path: str) -> dict[str, list[float]]:
    """The values in a checkpoint."""
    ended = subprocess.run([PYTHON, "-c", SAVED, path], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return dict(json.loads(ended.stdout))


def begun(job: Job, count: int) -> dict[str, Any]:
    """What the program of the newest generation says when it begins; `count` have begun by then."""
    until("it has begun", lambda: len(job.lines()) >= count, SLOW)
    return job.lines()[-1]


def has_checkpoint(job: Job) -> bool:
    return any(job.checkpoints.glob("*.complete")) and (job.chief.status["checkpoint"] or {}).get("step", 0) > 0


def start(job: Job, ps: int = 1) -> None:
    job.start(chief=1, ps=ps, worker=1)
    until("there is a checkpoint", lambda: has_checkpoint(job), SLOW)


def test_all_values_are_as_they_were(tmp_path: Path) -> None:
    job = Job(tmp_path, PROGRAM)
    try:
        start(job)
        for generation, ps in enumerate((3, 2), 1):
            status = job.rescale(generation, chief=1, ps=ps, worker=1)
            assert status["preparation"]["in_memory"] is True, status["preparation"]
            assert status["switch"]["in_memory"] is True, job.chief.output[-3000:]
            assert status["lost_steps"] == 0
            now = begun(job, generation + 1)
            path = job.checkpoints / f"elastic-{now['step']}"
            assert json.loads(path.with_suffix(".complete").read_text())["durable"] is True
            kept = saved(str(path))
            assert kept.keys() == now["values"].keys()
            for name, values in kept.items():
                assert values == now["values"][name], name
                assert any(values), f"{name} says nothing"
            goes_on(job, now["step"], generation)
    finally:
        job.stop()


def goes_on(job: Job, step: int, count: int) -> None:
    """It trains on from there, has counted this many hand-overs, and saves again."""
    until("it trains on", lambda: job.chief.status["step"] > step + 20, SLOW)
    until("it is counted", lambda: hand_overs(job) == {"durable": count, "failed": 0, "pending": 0}, SLOW)
    until("it saves again", lambda: job.chief.status["checkpoint"]["step"] > step, SLOW)


def hand_overs(job: Job) -> dict[str, int]:
    return dict(json.loads((job.chief.shared / "progress.json").read_text())["hand_overs"])


@pytest.mark.thorough  # pod/test_rescale.py, whose servers import TensorFlow
@pytest.mark.parametrize(
    ("options", "more", "why"),
    [
        (("--table",), {}, "words is not a variable of the program"),
        ((), {"durable": True}, None),
    ],
)
def test_values_that_cannot_go_through_memory_go_through_files(
    tmp_path: Path, options: tuple[str, ...], more: dict[str, Any], why: str | None
) -> None:
    job = Job(tmp_path, PROGRAM, *options)
    job.more = more
    try:
        start(job)
        status = job.rescale(1, chief=1, ps=2, worker=1)
        assert status["switch"]["in_memory"] is False
        assert (status["preparation"]["in_memory"], status["preparation"]["why_files"]) == (
            (None, "") if why is None else (False, why)
        )
        assert status["lost_steps"] == 0
        now = begun(job, 2)
        assert saved(str(job.checkpoints / f"elastic-{now['step']}")).items() <= now["values"].items()
    finally:
        job.stop()


@pytest.mark.thorough  # the campaign's scenario handed-not-taken
def test_values_that_are_not_taken_are_restored(tmp_path: Path) -> None:
    """The parameter servers that have the values stop answering when the next program would fetch them, and answer
    again later: the next program waits for the checkpoint, and no step is lost."""
    job = Job(tmp_path, PROGRAM)
    try:
        start(job)
        job.while_prepared = lambda: spoil(job)
        status = job.rescale(1, chief=1, ps=2, worker=1)
        assert status["switch"]["in_memory"] is True
        assert "this program waits for a checkpoint" in job.chief.output
        assert status["lost_steps"] == 0
        now = begun(job, 2)
        kept = saved(str(job.checkpoints / f"elastic-{now['step']}"))
        assert kept.items() <= now["values"].items()
    finally:
        job.stop()


def spoil(job: Job) -> None:
    """Have the offer name another one than what is given."""
    path = job.chief.shared / "generation-0" / "offered.json"
    offer = json.loads(path.read_text())
    assert offer["why"] == ""
    # The prepared program has read it: the running one is asked for another one, which closes the first.
    (job.chief.shared / "generation-0" / "offer.json").write_text(json.dumps({"id": "another"}))
    until("another offer is made", lambda: json.loads(path.read_text())["id"] == "another", SLOW)


@pytest.mark.thorough  # the campaign's scenario handed-chief-ends
def test_a_chief_that_ends_before_its_values_are_saved(tmp_path: Path) -> None:
    """Its container goes on from the checkpoint before."""
    job = Job(tmp_path, PROGRAM)
    try:
        start(job, ps=2)
        before = job.chief.status["checkpoint"]["step"]
        job.while_handed_over = lambda: end(job)
        job.rescale(1, chief=1, ps=1, worker=1)
        assert job.lines()[-1]["step"] >= before
        until("it trains", lambda: job.chief.status["step"] > job.lines()[-1]["step"] + 20, SLOW)
    finally:
        job.stop()


def end(job: Job) -> None:
    job.chief.signal(signal.SIGKILL)
    job.chief.wait(SLOW)
    job.chief.start()

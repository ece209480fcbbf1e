"""ElasticCheckpoint with real TensorFlow in one process: what counts as a checkpoint, what a failing one does, cost."""

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic_tfjob.controller.model.settings import RescaleLimits
from elastic_tfjob.runtime import (
    ElasticCheckpoint,
    batch_size_per_worker,
    checkpoints,
    hand_over,
    keras_callback,
    protocol,
)
from elastic_tfjob.runtime.progress import Progress
from elastic_tfjob.runtime.protocol import brief
from elastic_tfjob.runtime.worker_datasets import without_autotuning

from .pods import Pod, until

pytestmark = [
    pytest.mark.xdist_group("tensorflow-1"),  # two at once are enough for two cores
    pytest.mark.usefixtures("sigterm_handler"),
]


def tensorflow() -> Any:
    """Imported by the process that needs it, not by each that looks for tests: it takes seconds and half a gigabyte."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf  # noqa: PLC0415

    return tf


def elastic(directory: Path | str, value: float = 0.0, **options: Any) -> tuple[ElasticCheckpoint, Any]:
    tf = tensorflow()
    variable = tf.Variable([value] * 4)
    options = {"every_s": None, **options}
    return ElasticCheckpoint(tf.train.Checkpoint(variable=variable), str(directory), **options), variable


def train(directory: Path | str, steps: int, **options: Any) -> int:
    """Train until `steps`; the step it went on from."""
    job, variable = elastic(directory, every_steps=10, **options)
    begin = job.resume()
    for step in range(begin + 1, steps + 1):
        variable.assign_add([1.0] * 4)
        job.step(step, loss=1.0, examples=2)
    settled(job)
    return begin


def settled(job: ElasticCheckpoint) -> None:
    """What was saved is durable, and what it replaces is deleted."""
    assert checkpoints_of(job).wait(60)


def names(directory: Path) -> set[str]:
    return {path.name.removesuffix(".complete") for path in directory.glob("*.complete")}


def test_training_resumes_from_the_newest_checkpoint_and_keeps_the_last_ones(tmp_path: Path) -> None:
    assert train(tmp_path, 55) == 0
    assert names(tmp_path) == {"elastic-30", "elastic-40", "elastic-50"}
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == names(tmp_path), "nothing else is left"
    job, variable = elastic(tmp_path)
    assert job.resume() == 50
    assert variable.numpy().tolist() == [50.0] * 4


@pytest.mark.parametrize("verify", [False, True])
def test_a_checkpoint_with_a_root_has_its_names(tmp_path: Path, verify: bool) -> None:
    tf = tensorflow()

    def make(value: float) -> tuple[Any, Any, Any]:
        model = tf.Module()
        model.weights = [tf.Variable([value] * 3)]
        beside = tf.Variable(value)
        return ElasticCheckpoint(tf.train.Checkpoint(model, beside=beside), str(tmp_path), every_steps=1), model, beside

    job, *_ = make(7.0)
    job.resume()
    job.step(1)
    settled(job)
    again, model, beside = make(0.0)
    again._checkpoints.compare()
    [newest] = again._checkpoints.complete()
    again._checkpoints.restore(newest["path"], verify=verify)
    assert (model.weights[0].numpy().tolist(), float(beside.numpy())) == ([7.0] * 3, 7.0)
    model.more = tf.Variable(1.0)
    with pytest.raises(checkpoints.Mismatch, match="has no value for more of this program"):
        again._checkpoints.compare()


def test_slots_that_are_made_after_the_newest_checkpoint_are_not_forgotten(tmp_path: Path) -> None:
    tf = tensorflow()
    first, second = tf.Variable([1.0]), tf.Variable([2.0])
    optimizer = tf.compat.v1.train.AdamOptimizer()
    job = ElasticCheckpoint(
        tf.train.Checkpoint(first=first, second=second, optimizer=optimizer), str(tmp_path), every_steps=1
    )
    job.resume()
    optimizer.apply_gradients([(tf.ones(1), first)])
    job.step(1)
    settled(job)
    assert "first/.OPTIMIZER_SLOT/optimizer/m" in [each.name for each in hand_over.values_of(tf, job._checkpoints)]
    optimizer.apply_gradients([(tf.ones(1), second)])
    with pytest.raises(hand_over.Unable, match=r"no value for second/.OPTIMIZER_SLOT/optimizer/m"):
        hand_over.values_of(tf, job._checkpoints)


def test_a_program_that_is_to_save_soon_saves_once_and_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shared" / "generation-0"
    folder.mkdir(parents=True)
    monkeypatch.setenv(protocol.DIRECTORY, str(folder.parent))
    monkeypatch.setenv(protocol.GENERATION, "0")
    monkeypatch.setenv(protocol.OPEN, "1")
    directory = tmp_path / "checkpoints"
    job, _ = elastic(directory)
    job.resume()
    job.step(1)
    assert names(directory) == set()
    for step, request in ((2, 7), (4, 8)):
        protocol.write(folder / protocol.SOON, {"request": request})
        until("it is asked", lambda: job._has_work, 10)
        job.step(step)
        settled(job)
        assert f"elastic-{step}" in names(directory)
        time.sleep(0.6)  # the file is read four times a second
        job.step(step + 1)
    assert names(directory) == {"elastic-2", "elastic-4"}


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ElasticCheckpoint:
    """A program that is asked for its values, and gives them at its next step."""
    folder = tmp_path / "shared" / "generation-0"
    folder.mkdir(parents=True)
    monkeypatch.setenv(protocol.DIRECTORY, str(folder.parent))
    monkeypatch.setenv(protocol.GENERATION, "0")
    monkeypatch.setenv(protocol.OPEN, "1")
    job, _ = elastic(tmp_path / "checkpoints")
    job.resume()
    protocol.write(folder / protocol.SAVE, {"id": "1", "generation": 1, "hand_over": True})
    until("it is asked", lambda: job._save_request, 10)
    monkeypatch.setattr(job._hand_over, "give", lambda *_: {"id": "1", "step": 7, "checkpoint": None})
    return job


def test_values_that_were_given_are_saved_when_the_program_must_end(
    given: ElasticCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given._hand_over, "is_taken", lambda _: False)
    monkeypatch.setattr(os, "_exit", sys.exit)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(SystemExit):
        given.step(7)
    assert (tmp_path / "checkpoints" / "elastic-7.complete").exists()


def test_a_checkpoint_that_is_not_durable_in_time_does_not_count(
    given: ElasticCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, backs = tmp_path / "shared" / "generation-0", []
    monkeypatch.setattr(given._checkpoints, "wait", lambda _: False)
    monkeypatch.setattr(given._hand_over, "is_taken", lambda _: True)
    monkeypatch.setattr(given._hand_over, "take_back", lambda: backs.append(1))
    report = given._hand_over.report_kept

    def withdraw(why: str | None, checkpoint: Any) -> None:
        report(why, checkpoint)
        (folder / protocol.SAVE).unlink()

    monkeypatch.setattr(given._hand_over, "report_kept", withdraw)
    given.step(7)
    kept = protocol.read(folder / protocol.KEPT)
    assert kept is not None
    assert (kept["ok"], "not durable" in kept["why"]) == (False, True)
    assert backs, "the launcher withdrew the request: servers must not keep the values"


def test_checkpoints_that_the_previous_program_saved_meanwhile_are_deleted_too(tmp_path: Path) -> None:
    train(tmp_path, 10)
    job, _ = elastic(tmp_path, keep=1)
    beside = job._checkpoints
    assert beside is not None
    beside.compare()  # as a prepared program does
    train(tmp_path, 30)
    beside.take_over()
    beside.save(40, bool)
    beside.settle()
    assert beside.wait(20)
    assert sorted(each.stem for each in tmp_path.glob("*.complete")) == ["elastic-40"]


def test_the_first_checkpoint_is_early_for_any_interval(tmp_path: Path) -> None:
    job, _ = elastic(tmp_path, every_s=1000.0)
    step, end = job.resume(), time.monotonic() + 60
    while not names(tmp_path):
        assert time.monotonic() < end, "no checkpoint within a minute"
        time.sleep(0.1)
        step += 1
        job.step(step)
    assert names(tmp_path) == {f"elastic-{step}"}
    later = job._due_at_s - time.monotonic()
    assert 900 < later <= 1000, "the next one comes after the interval"


def test_the_last_step_is_saved(tmp_path: Path) -> None:
    train(tmp_path, 55, total_steps=55)
    assert "elastic-55" in names(tmp_path)


@pytest.mark.parametrize("harm", ["no marker", "cut off", "file missing", "marker is nonsense", "content is nonsense"])
def test_an_incomplete_checkpoint_is_ignored(tmp_path: Path, harm: str) -> None:
    train(tmp_path, 20)
    marker, data = tmp_path / "elastic-20.complete", tmp_path / "elastic-20.data-00000-of-00001"
    if harm == "no marker":
        marker.unlink()
    elif harm == "cut off":
        os.truncate(data, data.stat().st_size - 1)
    elif harm == "file missing":
        data.unlink()
    elif harm == "marker is nonsense":
        marker.write_text('{"step": 20')
    else:
        data.write_bytes(b"\xff" * data.stat().st_size)
    job, variable = elastic(tmp_path)
    assert job.resume() == 10
    assert variable.numpy().tolist() == [10.0] * 4
    assert train(tmp_path, 30) == 10, "and it is written again"
    assert {"elastic-20", "elastic-30"} <= names(tmp_path)


def test_checkpoints_of_another_model_are_an_error(tmp_path: Path) -> None:
    train(tmp_path, 20)
    tf = tensorflow()
    other = tf.train.Checkpoint(variable=tf.Variable([[0.0]]))
    with pytest.raises(RuntimeError, match=r"variable \(.*\) has shape \(4,\) in the checkpoint and \(1, 1\) in the"):
        ElasticCheckpoint(other, str(tmp_path)).resume()


def test_a_save_that_fails_does_not_end_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    job, _ = elastic(blocked / "checkpoints", every_steps=10)
    assert job.resume() == 0
    for step in range(1, 25):
        job.step(step)
    assert capfd.readouterr().err.count("failed") == 2
    assert job.progress.save_error


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of generation 0, whose program runs, as a launcher makes it."""
    folder = protocol.generation_directory(tmp_path / "shared", 0)
    folder.mkdir(parents=True)
    protocol.write(folder / protocol.GO, {})
    monkeypatch.setenv(protocol.DIRECTORY, str(folder.parent))
    monkeypatch.setenv(protocol.GENERATION, "0")
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    path = tmp_path / "volume"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", path], check=False).returncode:
        pytest.skip("only root can mount")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.parametrize("harm", ["full", "read-only"])
def test_a_volume_without_space_refuses_the_save(volume: Path, launched: Path, harm: str) -> None:
    directory, filler = volume / "checkpoints", volume / "filler"
    directory.mkdir()
    if harm == "full":
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    else:
        subprocess.run(["mount", "-o", "remount,ro", volume], check=True)
    job, variable = elastic(directory, every_steps=10)
    job.resume()
    for step in range(1, 12):
        job.step(step)
    assert job.progress.save_error
    protocol.write(launched / protocol.SAVE, {"id": "asked"})
    until("it has seen the request", lambda: job._save_request and job._has_work)  # in this order
    job.step(12)
    answer = protocol.read(launched / protocol.SAVED)
    assert answer
    assert (answer["id"], answer["ok"]) == ("asked", False)
    assert {"full": "No space left", "read-only": "Read-only"}[harm] in answer["why"]
    (launched / protocol.SAVE).unlink()
    if harm == "full":
        assert not list(directory.iterdir()), "nothing of what failed is left"
        filler.unlink()
    else:
        subprocess.run(["mount", "-o", "remount,rw", volume], check=True)
    for step in range(13, 23):
        variable.assign_add([1.0] * 4)
        job.step(step)
    assert job.progress.save_error is None
    assert names(directory) == {"elastic-22"}


def test_old_checkpoints_are_deleted_after_training_continues(
    tmp_path: Path, launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = elastic(tmp_path / "checkpoints", every_steps=10)
    job.resume()
    for step in range(1, 31):
        job.step(step)
    settled(job)
    there: list[set[str]] = []
    answer = job._hello.answer_save

    def noting(*said: Any, **more: Any) -> None:
        answer(*said, **more)
        there.append(names(tmp_path / "checkpoints"))
        (launched / protocol.SAVE).unlink()  # so that the program goes on

    monkeypatch.setattr(job._hello, "answer_save", noting)
    protocol.write(launched / protocol.SAVE, {"id": "asked"})
    until("it has seen the request", lambda: job._save_request and job._has_work)
    job.step(31)
    settled(job)
    assert there == [{"elastic-10", "elastic-20", "elastic-30", "elastic-31"}]
    assert names(tmp_path / "checkpoints") == {"elastic-20", "elastic-30", "elastic-31"}


SLOW_S = 5.0
"""What a slow volume takes to answer a question."""


class Files:
    """tf.io.gfile of a volume that misbehaves: `fails` says how often each function does from now on."""

    def __init__(self, **fails: int) -> None:
        self.fails, self.calls, self.wait_s = fails, 0, 0.0

    def __getattr__(self, name: str) -> Any:
        tf = tensorflow()

        def call(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            time.sleep(self.wait_s)
            if self.fails.get(name, 0):
                self.fails[name] -= 1
                if name == "listdir":  # what tf.io.gfile.listdir says when it cannot look
                    raise tf.errors.NotFoundError(None, None, "Could not find directory")
                raise tf.errors.UnavailableError(None, None, f"{name}: no connection")
            return getattr(tf.io.gfile, name)(*arguments, **more)

        return call


def checkpoints_of(job: ElasticCheckpoint) -> checkpoints.Checkpoints:
    assert job._checkpoints is not None
    return job._checkpoints


def on(files: Files, directory: Path, **options: Any) -> tuple[ElasticCheckpoint, Any]:
    job, variable = elastic(directory, **{"every_steps": 10, **options})
    checkpoints_of(job)._files = files
    return job, variable


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow one another without waiting."""
    monkeypatch.setattr(checkpoints, "_RETRY_WAITS_S", (0.0,) * 4)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("function", ["listdir", "GFile", "stat"])
def test_a_failed_read_is_retried(tmp_path: Path, function: str) -> None:
    train(tmp_path, 20)
    job, variable = on(Files(**{function: 1}), tmp_path)
    assert job.resume() == 20
    assert variable.numpy().tolist() == [20.0] * 4


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("function", ["listdir", "GFile", "stat"])
def test_an_unreadable_directory_is_not_taken_for_an_empty_one(tmp_path: Path, function: str) -> None:
    train(tmp_path, 20)
    before = sorted(tmp_path.iterdir())
    job, _ = on(Files(**{function: 1000}), tmp_path)
    with pytest.raises(Exception, match=r"cannot be listed|no connection"):
        job.resume()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("at_once")
def test_an_unreadable_checkpoint_is_not_deleted(tmp_path: Path) -> None:
    train(tmp_path, 20)
    job, variable = on(Files(GFile=5), tmp_path, every_steps=15)  # that of step 20 is looked at first
    assert job.resume() == 10
    for step in range(11, 56):
        variable.assign_add([1.0] * 4)
        job.step(step)
        assert job.progress.save_error is None
    settled(job)
    assert names(tmp_path) == {"elastic-20", "elastic-25", "elastic-40", "elastic-55"}


def test_a_checkpoint_of_another_machine_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may show it late. One that never comes is an error: training does not start over."""
    train(tmp_path / "late", 20)
    job, _ = elastic(tmp_path / "seen")
    saved = checkpoints_of(job)
    threading.Timer(0.3, (tmp_path / "late").rename, [tmp_path / "seen"]).start()
    saved.wait_for(20)
    assert saved.compare() == 20
    monkeypatch.setattr(checkpoints, "VISIBLE_S", 0.2)
    with pytest.raises(
        RuntimeError, match=r"saved step 21, which is not in .*: the directory must be on a volume that"
    ):
        saved.wait_for(21)


def test_a_chief_in_another_pod_continues_the_figures(tmp_path: Path, launched: Path) -> None:
    """Its own pod has none: what the one before did is in the file that opens the barrier."""
    train(tmp_path, 20)
    (launched.parent / protocol.PROGRESS).unlink()
    go = {"generation": 3, "old_chief": {"step": 20, "last_step_at": time.time() - 5, "checkpoint": 20}}
    protocol.write(launched / protocol.GO, go)
    job, _ = elastic(tmp_path)
    assert job.resume() == 20
    job.step(21)
    job.progress.write()
    told = protocol.read(launched.parent / protocol.PROGRESS) or {}
    assert 5 <= told["downtime_s"] < 60
    assert (told["lost_steps"], told["resumed_step"]) == (0, 20)


def test_a_new_checkpoint_is_kept_even_below_higher_steps(tmp_path: Path) -> None:
    train(tmp_path, 100)
    job, _ = elastic(tmp_path)
    checkpoints_of(job).complete()
    assert checkpoints_of(job).save(5, bool)["step"] == 5
    checkpoints_of(job).settle()
    settled(job)
    assert names(tmp_path) == {"elastic-5", "elastic-80", "elastic-90", "elastic-100"}


@pytest.mark.parametrize("error", ["NotFoundError", "InvalidArgumentError"])
def test_a_complete_checkpoint_is_read_again_after_an_error(tmp_path: Path, error: str) -> None:
    """TensorFlow says so, too, where it could not list the directory."""
    tf = tensorflow()
    train(tmp_path, 20)
    job, variable = elastic(tmp_path)
    checkpoint = checkpoints_of(job).checkpoint
    failed: list[str] = []
    read = checkpoint.read

    def fail_once(path: str, **options: Any) -> Any:
        if failed:
            return read(path, **options)
        failed.append(path)
        raise getattr(tf.errors, error)(None, None, "Failed to find any matching files")

    checkpoint.read = fail_once
    assert job.resume() == 20
    assert variable.numpy().tolist() == [20.0] * 4


class Stale(Files):
    """Of which so many listings after a save lack the file that holds the values."""

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)

        def listdir(path: str) -> list[str]:
            found: list[str] = call(path)
            if self.fails.get("stale") and any("elastic-10.data" in each for each in found):
                self.fails["stale"] -= 1
                return [each for each in found if "elastic-10.data" not in each]
            return found

        return listdir if name == "listdir" else call


@pytest.mark.parametrize(("stale", "saved"), [(1, True), (100, False)])
def test_a_marker_is_written_only_if_all_files_are_listed(tmp_path: Path, stale: int, saved: bool) -> None:
    job, variable = on(Stale(stale=stale), tmp_path, every_steps=5)
    assert job.resume() == 0
    for step in range(1, 11):
        variable.assign_add([1.0] * 4)
        job.step(step)
    assert names(tmp_path) == ({"elastic-5", "elastic-10"} if saved else {"elastic-5"})
    assert (job.progress.save_error is None) is saved


def test_the_chief_writes_and_reads_if_parameter_servers_cannot(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether they see the directory was tried when the program started; mounts go read-only later."""
    tf = tensorflow()
    job, variable = elastic(tmp_path, every_steps=5)
    found, here = checkpoints_of(job), tf.config.list_logical_devices("CPU")[0].name
    chief = tf.train.CheckpointOptions(experimental_io_device=here)
    found.options = [tf.train.CheckpointOptions(), chief]
    write = found.checkpoint.write

    def refuse(path: str, options: Any) -> Any:
        if options is not chief:
            raise tf.errors.PermissionDeniedError(None, None, "Read-only file system")
        return write(path, options=options)

    found.checkpoint.write = refuse
    assert job.resume() == 0
    for step in range(1, 11):
        variable.assign_add([1.0] * 4)
        job.step(step)
    assert names(tmp_path) == {"elastic-5", "elastic-10"}
    assert job.progress.save_error is None
    assert capfd.readouterr().err.count("the chief writes checkpoints for parameter servers") == 1


@pytest.mark.parametrize("odd", ["run[1]", "a*", "b?", "c\\d"])
def test_a_directory_with_pattern_characters_is_refused(tmp_path: Path, odd: str) -> None:
    """It writes there as it should, and finds nothing when it reads."""
    with pytest.raises(ValueError, match="checkpoint directory"):
        elastic(tmp_path / odd)


def test_damage_of_all_checkpoints_is_an_error(tmp_path: Path) -> None:
    train(tmp_path, 20)
    for data in tmp_path.glob("*.data-*"):
        os.truncate(data, 10)
    job, _ = elastic(tmp_path)
    with pytest.raises(RuntimeError, match=r"elastic-20\.complete, elastic-10\.complete.*delete the directory's files"):
        job.resume()
    assert {"elastic-10", "elastic-20"} <= names(tmp_path)


def test_a_save_on_a_slow_volume_asks_no_more_than_it_must(tmp_path: Path) -> None:
    """Each question costs SLOW_S in which nothing is trained, and the operator waits for the save only so long."""
    train(tmp_path, 100)
    files = Files()
    job, variable = on(files, tmp_path)
    assert job.resume() == 100
    files.calls, files.wait_s = 0, 0.01
    for step in range(101, 111):
        variable.assign_add([1.0] * 4)
        job.step(step)
    print(f"questions to the file system for a save: {files.calls}")
    settled(job)
    assert names(tmp_path) == {"elastic-90", "elastic-100", "elastic-110"}
    assert files.calls <= 15
    # TensorFlow itself writes files, too, which is not counted here: it has the rest.
    assert SLOW_S * files.calls <= RescaleLimits().checkpoint_timeout_s


def test_a_start_on_a_slow_volume_asks_no_more_than_it_must(tmp_path: Path) -> None:
    """Once what there is, then of each checkpoint its marker and the sizes of its two files. A prepared program does it
    twice: while the one before it trains, and when it takes over, which has a time limit of its own."""
    train(tmp_path, 100)
    assert len(names(tmp_path)) == 3
    at_most = 1 + 3 * (1 + 2)
    files = Files()
    job, variable = on(files, tmp_path)
    checkpoints_of(job).compare()
    print(f"questions to the file system for a comparison: {files.calls}")
    assert 0 < files.calls <= at_most
    assert SLOW_S * files.calls <= RescaleLimits().prepare_timeout_s
    files.calls = 0
    assert job.resume() == 100
    print(f"questions to the file system for resuming: {files.calls}")
    assert 0 < files.calls <= at_most
    assert SLOW_S * files.calls <= RescaleLimits().switch_timeout_s
    assert variable.numpy().tolist() == [100.0] * 4


def test_numbers_of_numpy_and_tensorflow_are_accepted(tmp_path: Path, launched: Path) -> None:
    tf = tensorflow()
    integers = [5, np.int64(6), np.array(7), tf.constant(8, tf.int64), tf.Variable(9), np.uint8(10)]
    job, _ = elastic(tmp_path / "checkpoints", every_steps=np.int64(1), total_steps=np.int64(100), keep=tf.constant(9))
    job.resume()
    for each in integers:
        job.step(each, loss=np.float32(0.5), examples=each)
    for loss in (0.5, 1, np.float64(0.5), tf.constant(0.5), tf.Variable(0.5), np.array([0.5]), None):
        job.step(11, loss=loss)

    def reported() -> tuple[object, ...]:  # from another thread: also in the middle of a step
        progress = protocol.read(launched.parent / protocol.PROGRESS) or {}
        saved = progress.get("checkpoint") or {}
        return *(progress.get(each) for each in ("step", "examples", "total_steps", "loss")), saved.get("step")

    until("all of it is reported", lambda: reported() == (11, 45, 100, 0.5, 11))
    assert names(tmp_path / "checkpoints") == {f"elastic-{step}" for step in range(5, 12)}


def test_a_value_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    tf = tensorflow()
    job, _ = elastic(tmp_path)
    job.resume()
    wrong: Any
    for wrong in ("5", 5.5, 5.0, True, None, np.array([1, 2]), tf.constant(0.5), object()):
        with pytest.raises(TypeError, match=r"step is .*; it must be a whole number: an int, a NumPy integer"):
            job.step(wrong)
        if wrong is not None:
            with pytest.raises(TypeError, match="examples is"):
                job.step(1, examples=wrong)
    for wrong in ("0.5", [0.5], {"loss": 1}, np.array([1.0, 2.0]), tf.constant([1.0, 2.0])):
        with pytest.raises(TypeError, match=r"loss is .*; it must be a number: a float"):
            job.step(1, loss=wrong)
    with pytest.raises(ValueError, match="step is -1"):
        job.step(-1)
    with pytest.raises(TypeError, match="total_steps is '100'"):
        elastic(tmp_path, total_steps="100")
    job.step(1)
    assert job._step == 1


def test_the_reporting_thread_survives_any_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    looked = []

    def watch() -> None:
        looked.append(1)
        raise RuntimeError(f"look {len(looked) % 2}")

    progress = Progress(tmp_path, 0, watch)
    progress.begin(0, None)
    progress.checkpoint = {"step": object()}  # JSON cannot hold it
    until("it looks again", lambda: len(looked) > 8)
    until("it has tried to write", lambda: any("not JSON serializable" in each for each in progress._printed_errors))
    progress.checkpoint = None
    progress.count(7, None, 1)
    until("it writes again", lambda: (protocol.read(tmp_path / protocol.PROGRESS) or {}).get("step") == 7)
    told = capfd.readouterr().err
    assert told.count("look 0") == told.count("look 1") == 1, "each is told once"
    assert told.count("not JSON serializable") == 1


def test_a_renamed_variable_is_an_error(tmp_path: Path) -> None:
    tf = tensorflow()
    train(tmp_path, 10)
    train(tmp_path, 20)

    def renamed(**options: Any) -> tuple[ElasticCheckpoint, Any]:
        variable = tf.Variable([7.0] * 4)
        layer = tf.train.Checkpoint(**{f"weight{index}": tf.Variable(0.0) for index in range(20)})
        checkpoint = tf.train.Checkpoint(renamed=variable, layer=layer)
        return ElasticCheckpoint(checkpoint, str(tmp_path), every_s=None, **options), variable

    with pytest.raises(RuntimeError, match=r"has no value for renamed, layer/weight0, .* and 11 more") as error:
        renamed()[0].resume()
    assert "elastic-20" in str(error.value), "an older one would hide it"
    assert "it has variable, which the program lacks" in str(error.value)
    job, variable = renamed(partial=True)
    assert job.resume() == 20
    assert variable.numpy().tolist() == [7.0] * 4


@pytest.mark.parametrize("later", ["kernel", "renamed"])
def test_a_variable_created_after_resuming_is_checked_at_the_first_save(
    tmp_path: Path, launched: Path, capfd: pytest.CaptureFixture[str], later: str
) -> None:
    tf = tensorflow()

    def run(steps: int, name: str) -> Any:
        layer = tf.Module()
        checkpoint = tf.train.Checkpoint(layer=layer)
        job = ElasticCheckpoint(checkpoint, str(tmp_path / "checkpoints"), every_steps=5, every_s=None)
        begin = job.resume()
        setattr(layer, name, tf.Variable(1.0))  # as a layer does when it sees its first batch
        value = getattr(layer, name).numpy()
        getattr(layer, name).assign(2.0)
        for step in range(begin, begin + steps):
            job.step(step + 1)
        return value

    run(10, "kernel")
    assert run(10, later) == (2.0 if later == "kernel" else 1.0)
    told = capfd.readouterr().err

    def written() -> dict[str, Any] | None:  # the first run's thread goes on writing what that one did
        progress = protocol.read(launched.parent / protocol.PROGRESS) or {}
        return progress if progress.get("step") == 20 else None

    reported = until("it is written", written)["not_restored"]
    if later == "kernel":
        assert reported is None
        assert "initial values" not in told
    else:
        assert told.count("WARNING: variables keep their initial values") == 1, "there is a second save"
        assert "elastic-10 has no value for layer/renamed of this program; it has layer/kernel" in reported


def test_a_prepared_program_reports_a_mismatch_while_the_old_one_trains(
    tmp_path: Path, launched: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once it has said that it is ready, the running one is ended for it."""
    tf = tensorflow()
    train(tmp_path, 10)
    (launched / protocol.GO).unlink()
    begin = threading.Timer(60.0, protocol.write, (launched / protocol.GO, {}))  # it must not come to this
    begin.start()
    with pytest.raises(RuntimeError, match="has no value for renamed"):
        ElasticCheckpoint(tf.train.Checkpoint(renamed=tf.Variable(0.0)), str(tmp_path), every_s=None).resume()
    begin.cancel()
    assert not (launched / protocol.READY).exists()
    (tmp_path / "elastic-10.index").write_text("no index")

    def let_it_go_on() -> None:
        try:
            until("it is ready", (launched / protocol.READY).exists)
        finally:
            protocol.write(launched / protocol.GO, {})

    other = threading.Thread(target=let_it_go_on)
    other.start()
    with pytest.raises(RuntimeError, match="are damaged"):
        elastic(tmp_path)[0].resume()
    other.join()
    assert (launched / protocol.READY).exists(), "the one before may save another one"
    assert "cannot compare" in capfd.readouterr().err


def test_a_layer_with_a_shape_is_not_a_variable(tmp_path: Path) -> None:
    tf = tensorflow()
    train(tmp_path, 10)
    layer = tf.Module()
    layer.shape, layer.dtype = (2, 2), tf.float32
    checkpoint = tf.train.Checkpoint(variable=tf.Variable([0.0] * 4), layer=layer)
    assert ElasticCheckpoint(checkpoint, str(tmp_path), every_s=None).resume() == 10


def test_later_variables_and_the_save_counter_are_not_missed(tmp_path: Path) -> None:
    tf = tensorflow()
    train(tmp_path, 10)
    checkpoint = tf.train.Checkpoint(variable=tf.Variable([0.0] * 4))
    checkpoint.save(str(tmp_path / "own"))  # makes a variable that counts
    assert ElasticCheckpoint(checkpoint, str(tmp_path), every_s=None).resume() == 10


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_a_custom_loop_with_keras_resumes_built_or_not(tmp_path: Path, package: str) -> None:
    tf, keras = tensorflow(), importlib.import_module(package)

    def loop(steps: int, *, built: bool, layer: str = "dense") -> Any:
        inner = keras.layers.Dense(2)
        model = keras.Sequential([inner, keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
        optimizer = keras.optimizers.Adam(0.1)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, **{layer: model})
        job = ElasticCheckpoint(checkpoint, str(tmp_path), every_steps=1, every_s=None)

        def one() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(tf.ones((4, 3)), training=True) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905  # as on Python 3.9

        if built:
            one()
        begin = job.resume()
        for step in range(begin + 1, steps + 1):
            one()
            job.step(step)
        return int(optimizer.iterations), begin

    assert loop(2, built=False) == (2, 0)
    assert loop(4, built=True) == (4, 2)
    assert loop(6, built=False) == (6, 4)
    with pytest.raises(RuntimeError, match="has no value for other/"):
        loop(8, built=True, layer="other")


def test_unknown_url_schemes_are_refused_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="scheme 's3' not implemented"):
        elastic("s3://bucket/checkpoints")[0].resume()
    assert "tried again" not in capfd.readouterr().err, "each wait before another try is told"
    train(f"file://{tmp_path}", 10)
    assert train(tmp_path, 20) == 10


def test_a_program_started_directly_does_not_wait(
    tmp_path: Path, launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the volume is full, so that the launcher cannot say so."""
    (launched / protocol.GO).unlink()
    monkeypatch.setenv(protocol.OPEN, "1")
    assert elastic(tmp_path / "checkpoints")[0].resume() == 0


def test_without_a_directory_steps_are_only_reported() -> None:
    job = ElasticCheckpoint(tensorflow().train.Checkpoint(), total_steps=3)
    assert job.resume() == 0
    job.step(3)


def test_datasets_that_a_program_replaces_are_not_autotuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it says so: a worker that drops an autotuned one may hang for up to a minute."""
    tf = tensorflow()
    from tensorflow.python.distribute.coordinator import cluster_coordinator  # noqa: PLC0415

    kind: Any = cluster_coordinator.ClusterCoordinator
    monkeypatch.setattr(kind, "create_per_worker_dataset", lambda _, made: made() if callable(made) else made)
    without_autotuning.cache_clear()
    without_autotuning()
    data, chosen = tf.data.Dataset.range(3), tf.data.Options()
    chosen.autotune.enabled = True
    made = (data, lambda: data, lambda: data.with_options(chosen), tf.function(lambda: data))
    enabled = [kind.create_per_worker_dataset(None, each).options().autotune.enabled for each in made]
    assert enabled == [False, False, True, None]
    assert kind.create_per_worker_dataset(None, lambda: "distributed") == "distributed"


def test_wrong_use_raises_an_error_that_explains_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep is 0"):
        elastic(tmp_path, keep=0)
    with pytest.raises(ValueError, match="every_steps is 0"):
        elastic(tmp_path, every_steps=0)
    with pytest.raises(RuntimeError, match="resume"):
        elastic(tmp_path)[0].step(1)


@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_keras(tmp_path: Path, package: str) -> None:
    tf, keras = tensorflow(), importlib.import_module(package)
    data = tf.data.Dataset.from_tensor_slices((tf.random.uniform((64, 4)), tf.random.uniform((64, 1)))).batch(8)

    def fit(steps: int) -> tuple[ElasticCheckpoint, Any]:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        job = ElasticCheckpoint(checkpoint, str(tmp_path), total_steps=steps, every_steps=10, batch_size=8)
        model.fit(data, epochs=20, verbose=0, callbacks=[job.callback()])
        return job, model

    job, first = fit(25)
    assert int(first.optimizer.iterations) == 25
    assert job.progress._examples == 25 * 8
    assert isinstance(job.progress.loss, float)
    assert names(tmp_path) == {"elastic-10", "elastic-20", "elastic-25"}
    job, model = fit(40)
    assert job.progress._steps == 15
    assert int(model.optimizer.iterations) == 40, "the optimizer went on, too"
    job, _ = fit(40)
    assert job.progress._steps == 0, "all is done"


class Coordinator:
    """Does at once what it is given, where Keras has workers do it."""

    def __init__(self) -> None:
        self.waits = 0

    def schedule(self, function: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
        return Logs(function(*args))

    def create_per_worker_dataset(self, dataset: Any) -> Any:
        return dataset

    def join(self) -> None:
        self.waits += 1


class Logs(dict[str, Any]):
    def fetch(self) -> dict[str, Any]:
        return self


@pytest.mark.parametrize("known", [True, False])
def test_batch_sizes_with_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """Each is counted, and `fit` ends with the last; where Keras has no such coordinator, each epoch is."""
    tf, keras = tensorflow(), importlib.import_module("tf_keras")
    monkeypatch.setattr(keras_callback, "chief_device", lambda _: "/job:chief/device:CPU:0")
    examples = tf.random.uniform((64, 4)), tf.random.uniform((64, 1))
    data = tf.data.Dataset.from_tensor_slices(examples).repeat().batch(8)

    def train(steps: int) -> tuple[ElasticCheckpoint, Any, Coordinator]:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        coordinator = Coordinator()
        if known:
            model._cluster_coordinator = coordinator
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        job = ElasticCheckpoint(checkpoint, str(tmp_path), total_steps=steps, every_steps=100)
        model.fit(data, steps_per_epoch=8, epochs=20, verbose=0, callbacks=[job.callback()])
        return job, model, coordinator

    job, model, coordinator = train(25)
    assert int(model.optimizer.iterations) == job._step == (25 if known else 32)
    assert job.progress.loss is not None
    assert not hasattr(model.train_function, "hands_out"), "what Keras had is back"
    assert (coordinator.waits > 0) is known
    job, model, _ = train(50)
    assert int(model.optimizer.iterations) == job._step == (50 if known else 56), "it went on"


def test_batch_size() -> None:
    assert batch_size_per_worker(64, "fixed", 3) == 22
    assert batch_size_per_worker(64, "scaled", 3) == 64
    with pytest.raises(ValueError, match="'fixed' or 'scaled'"):
        batch_size_per_worker(64, "other", 3)


@pytest.mark.parametrize(
    ("cluster", "kind", "trains", "chief", "workers"),
    [
        ({"chief": 1, "ps": 1, "worker": 2}, "chief", True, True, 2),
        ({"chief": 1, "ps": 1, "worker": 2}, "worker", False, False, 2),
        ({"ps": 1, "worker": 3}, "worker", True, True, 2),
        ({"ps": 1, "worker": 3}, "ps", False, False, 2),
        ({"worker": 3}, "worker", True, True, 3),
        ({"master": 1, "worker": 3}, "worker", True, False, 4),
        ({"chief": 1, "ps": 1, "worker": 2}, "evaluator", False, False, 2),
    ],
)
def test_the_task_of_a_replica(cluster: dict[str, int], kind: str, trains: bool, chief: bool, workers: int) -> None:
    addresses = {name: [f"{name}-{index}:2222" for index in range(count)] for name, count in cluster.items()}
    task = protocol.Task.of(json.dumps({"cluster": addresses, "task": {"type": kind, "index": 0}}))
    assert (task.trains, task.chief, task.workers) == (trains, chief, workers)


@pytest.mark.usefixtures("launched")
def test_a_step_costs_less_than_10_microseconds(tmp_path: Path) -> None:
    job, _ = elastic(tmp_path / "checkpoints")
    job.resume()
    steps = 20_000
    gc.freeze()  # what TensorFlow has made is no garbage, and to look through it no cost of the hook
    begin = time.thread_time()  # of this thread: other programs of a busy machine are not the hook's cost
    for step in range(1, steps + 1):
        job.step(step, loss=0.5, examples=32)
    cost = (time.thread_time() - begin) / steps
    gc.unfreeze()
    print(f"hook: {cost * 1e6:.2f} µs a step in the thread that trains")
    assert cost < 10e-6


ALONE = """
import sys, time
import tensorflow as tf
from elastic_tfjob.runtime import ElasticCheckpoint

variable = tf.Variable(0)
elastic = ElasticCheckpoint(tf.train.Checkpoint(variable=variable), total_steps=int(sys.argv[1]), every_s=None)
step = elastic.resume(warm_up=lambda: variable.assign(-1))
print("from", step, "with", int(variable.numpy()), flush=True)
while step < int(sys.argv[1]):
    time.sleep(0.002)
    step += 1
    variable.assign(step)
    elastic.step(step)
"""


@pytest.mark.timeout(900)
def test_sigterm_saves_without_launcher(tmp_path: Path) -> None:
    environment = {**os.environ, "ELASTIC_TFJOB_CHECKPOINT_DIR": str(tmp_path)}

    command = [sys.executable, "-c", ALONE, "1000000"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "from 0 with 0\n"
    time.sleep(0.3)  # some steps, or none yet: it saves at the next one
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 143
    (saved,) = names(tmp_path)
    reader = tensorflow().train.load_checkpoint(str(tmp_path / saved))
    assert saved == f"elastic-{reader.get_tensor('variable/.ATTRIBUTES/VARIABLE_VALUE')}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["overlap", pytest.param("spare", marks=pytest.mark.thorough)])
def test_one_process_hands_training_over_to_the_next(tmp_path: Path, mode: str) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    environment = {"ELASTIC_TFJOB_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    pod = Pod(tmp_path / "pod", [sys.executable, tmp_path / "alone.py", "1000000"], environment).start()
    try:
        until("it trains", lambda: pod.status["step"], 300)
        pod.command("prepare", 1, mode=mode)
        until("it is ready", lambda: (pod.status["prepared"] or {}).get("state") == "ready", 300)
        pod.command("switch", 1, mode=mode)
        until("it trains", lambda: pod.status["generation"] == 1 and pod.status["first_step_at"], 300)
        status = pod.status
        assert status["lost_steps"] == 0
        saved = status["checkpoint"]["step"]
        assert f"from {saved} with {saved}" in pod.output, "the warm-up has left no trace"
        print(f"{mode}: {status['downtime_s']:.2f} s")
        pod.signal(signal.SIGTERM)
        assert pod.wait(300) == 143
    finally:
        pod.stop()


REMOTE = """Graph execution error:

Detected at node SaveV2 defined at (most recent call last):
  File "/app/train.py", line 192, in <module>

  File "/app/train.py", line 146, in train

/checkpoints/elastic-35_temp/part-00000-of-00001.data; No space left on device
\t [[{{node SaveV2}}]] [Op:__inference_tf_function_save_412]"""
"""What TensorFlow says when another process could not write."""


def test_a_tensorflow_error_is_shortened_to_its_cause() -> None:
    told = brief(OSError(REMOTE))
    assert told == "OSError: /checkpoints/elastic-35_temp/part-00000-of-00001.data; No space left on device"


def test_a_plain_message_is_not_shortened() -> None:
    assert brief(ValueError("no such thing")) == "ValueError: no such thing"


def test_the_speed_counts_from_the_first_step(tmp_path: Path) -> None:
    """The first one takes long: it traces, and waits for the other replicas."""
    progress = Progress(tmp_path, 0, watch=lambda: None)
    progress.begin(0, None)
    time.sleep(3)
    progress.count(1, None, 1)
    begin = time.monotonic()
    until("that is noticed", lambda: progress._window and progress._window[0][1] == 1)
    until("and written", lambda: (protocol.read(tmp_path / protocol.PROGRESS) or {}).get("first_step_at"))
    for step in range(2, 52):
        time.sleep(0.02)
        progress.count(step, None, 1)
    progress.write()
    assert progress.rate() > 0.5 * 50 / (time.monotonic() - begin)

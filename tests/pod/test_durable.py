"""Which checkpoints stay until a newer one is durable, which are skipped, and whose they are. Real TensorFlow."""

import errno
import importlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.runtime import (
    ElasticCheckpoint,
    checkpoint_variables,
    checkpoints,
    durability,
    elastic,
    lease,
    protocol,
)

from .pods import until
from .test_elastic import checkpoints_of, names, settled, tensorflow, train
from .test_elastic import elastic as make

pytestmark = [pytest.mark.xdist_group("tensorflow-1"), pytest.mark.usefixtures("sigterm_handler")]


def steps(job: ElasticCheckpoint, *which: int) -> None:
    for step in which:
        job.step(step)


def test_a_flush_that_fails_keeps_the_last_durable_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job, _ = make(tmp_path, every_steps=1, keep=1)
    job.resume()
    steps(job, 1)
    settled(job)
    sync = durability.sync

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(durability, "sync", fail)
    for step in (2, 3, 4):
        steps(job, step)
        settled(job)
        assert names(tmp_path) == {"elastic-1", f"elastic-{step}"}
    job._note_durability()
    assert "the checkpoint of step 4 may not survive a power loss" in str(job.progress.durability_error)
    assert capfd.readouterr().err.count("Input/output error") == 3
    assert make(tmp_path)[0].resume() == 4, "it is whole, as long as the machine runs"
    monkeypatch.setattr(durability, "sync", sync)
    steps(job, 5)
    settled(job)
    job._note_durability()
    assert (names(tmp_path), job.progress.durability_error) == ({"elastic-5"}, None)


def test_a_failed_flush_is_not_trusted_by_the_next_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports a failed write once; then a flush succeeds, though the disk does not have the data."""
    before, _ = make(tmp_path, every_steps=1, keep=1)
    before.resume()
    steps(before, 1)
    settled(before)
    with monkeypatch.context() as failing:

        def fail(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        failing.setattr(os, "fsync", fail)
        steps(before, 2)
        settled(before)
    job, _ = make(tmp_path, every_steps=1, keep=1)
    assert job.resume() == 2
    settled(job)
    assert names(tmp_path) == {"elastic-1", "elastic-2"}
    assert "step 2 may not survive a power loss" in str(checkpoints_of(job).not_durable)
    steps(job, 3)
    settled(job)
    assert (names(tmp_path), checkpoints_of(job).not_durable) == ({"elastic-3"}, None)


def test_a_checkpoint_is_durable_only_once_its_parent_folders_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = durability.sync

    def fail(path: str) -> None:
        if path == str(tmp_path):
            raise OSError(errno.EIO, "Input/output error", path)
        sync(path)

    monkeypatch.setattr(durability, "sync", fail)
    job, _ = make(tmp_path / "new" / "checkpoints", every_steps=1)
    job.resume()
    steps(job, 1)
    settled(job)
    assert "Input/output error" in str(checkpoints_of(job).not_durable)


def test_a_file_system_without_fsync_loses_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", unsupported)
    job, _ = make(tmp_path, every_steps=1, keep=1)
    job.resume()
    steps(job, 1, 2)
    settled(job)
    assert names(tmp_path) == {"elastic-2"}
    assert checkpoints_of(job).not_durable is None


def test_the_next_program_flushes_before_it_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of size it goes on from a checkpoint that is not durable yet."""
    before, _ = make(tmp_path, every_steps=1, keep=1)
    before.resume()
    steps(before, 1)
    settled(before)
    monkeypatch.setattr(checkpoints_of(before), "settle", lambda: None)  # it was ended
    steps(before, 2)
    flush, sync = threading.Event(), durability.sync

    def slow(path: str) -> None:
        assert flush.wait(60)
        sync(path)

    monkeypatch.setattr(durability, "sync", slow)
    job, _ = make(tmp_path, every_steps=1, keep=1)
    assert job.resume() == 2
    steps(job, 3)
    assert not checkpoints_of(job).wait(0.3)
    assert names(tmp_path) == {"elastic-1", "elastic-2", "elastic-3"}
    flush.set()
    settled(job)
    assert names(tmp_path) == {"elastic-3"}


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def not_durable(directory: Path, step: int) -> None:
    marker = directory / f"elastic-{step}.complete"
    marker.write_text(marker.read_text().replace('"durable": true', '"durable": false'))


@pytest.mark.parametrize("harm", [zeros, empty])
@pytest.mark.parametrize("ending", ["complete", "index", "data-00000-of-00001"])
def test_an_incomplete_checkpoint_after_a_power_loss_is_skipped(
    tmp_path: Path, harm: Callable[[Path], None], ending: str
) -> None:
    train(tmp_path, 20)
    not_durable(tmp_path, 20)
    harm(tmp_path / f"elastic-20.{ending}")
    job, variable = make(tmp_path)
    assert job.resume() == 10
    assert variable.numpy().tolist() == [10.0] * 4


def test_a_marker_replaced_during_reading_counts(tmp_path: Path) -> None:
    """The program before this one makes its last checkpoint durable just when this one looks for it."""
    job, _ = make(tmp_path, every_steps=1)
    job.resume()
    steps(job, 1, 2)
    settled(job)
    saved = checkpoints_of(job)
    marker = json.loads((tmp_path / "elastic-2.complete").read_text())
    over = threading.Event()

    def replace() -> None:
        durable = True
        while not over.is_set():
            durable = not durable
            saved._replace_marker(2, {**marker, "durable": durable}, flush=False)

    beside = threading.Thread(target=replace)
    beside.start()
    try:
        newest = {saved.complete()[0]["step"] for _ in range(1500)}
    finally:
        over.set()
        beside.join()
    assert newest == {2}


def test_a_job_starts_after_its_first_save_was_interrupted(tmp_path: Path) -> None:
    for harm, ending in ((empty, "complete"), (empty, "index"), (zeros, "data-00000-of-00001")):
        directory = tmp_path / ending
        train(directory, 10)
        not_durable(directory, 10)
        harm(directory / f"elastic-10.{ending}")
        assert make(directory)[0].resume() == 0
        assert train(directory, 20) == 0, "and it is written again"
        assert names(directory) == {"elastic-10", "elastic-20"}


def test_a_damaged_durable_checkpoint_is_an_error_instead_of_a_new_start(tmp_path: Path) -> None:
    train(tmp_path, 20)
    not_durable(tmp_path, 20)
    zeros(tmp_path / "elastic-20.data-00000-of-00001")
    empty(tmp_path / "elastic-10.data-00000-of-00001")
    with pytest.raises(RuntimeError, match=r"elastic-10\.complete.*delete the directory's files"):
        make(tmp_path)[0].resume()


def test_damage_is_detected_at_the_start_even_if_variables_are_created_later(tmp_path: Path) -> None:
    tf = tensorflow()
    train(tmp_path, 20)
    zeros(tmp_path / "elastic-20.data-00000-of-00001")
    checkpoint = tf.train.Checkpoint()
    job = ElasticCheckpoint(checkpoint, str(tmp_path), every_s=None)
    assert job.resume() == 10
    checkpoint.variable = tf.Variable([0.0] * 4)
    assert checkpoint.variable.numpy().tolist() == [10.0] * 4


class Agreement:
    """Of two workers, of which the other cannot restore the newest."""

    def __init__(self) -> None:
        self.bad = 1

    def sum(self, value: int) -> list[int]:
        return [value]

    def all(self, here: bool) -> bool:
        self.bad -= 1
        return here and self.bad < 0


def test_all_workers_fall_back_to_the_same_older_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, 20)
    job, variable = make(tmp_path)
    found = checkpoints_of(job).restore_newest(Agreement(), chief=True)
    assert found is not None
    assert (found["step"], variable.numpy().tolist()) == (10, [10.0] * 4)


def sharded(*parts: int) -> Any:
    """A variable of rows in so many parts, as on parameter servers."""
    tf = tensorflow()
    module = importlib.import_module("tensorflow.python.distribute.sharded_variable")
    return module.ShardedVariable([tf.Variable(tf.ones((rows, 2))) for rows in parts])


def test_unrestorable_variables_are_named_and_the_others_restored(tmp_path: Path) -> None:
    """A comparison that differs from TensorFlow's own would refuse what works, or let through what does not."""
    tf = tensorflow()
    made: dict[str, Callable[[], Any]] = {
        "rows": lambda: tf.Variable(tf.ones((8, 2))),
        "more": lambda: tf.Variable(tf.ones((9, 2))),
        "turned": lambda: tf.Variable(tf.ones((2, 8))),
        "double": lambda: tf.Variable(tf.ones((8, 2), tf.float64)),
        "any": lambda: tf.Variable(tf.ones((8, 2)), shape=tf.TensorShape([None, 2])),
        "two-parts": lambda: sharded(4, 4),
        "three-parts": lambda: sharded(3, 3, 2),
        "more-parts": lambda: sharded(3, 3, 3),
    }
    refused = 0
    for saved, save in made.items():
        path = tf.train.Checkpoint(table=save()).write(str(tmp_path / saved))
        for here, variable in made.items():
            checkpoint = tf.train.Checkpoint(table=variable())
            told = checkpoint_variables.shape_differences(tf, checkpoint, path)
            restored = True
            try:
                checkpoint.read(path).assert_consumed()
            except (ValueError, tf.errors.InvalidArgumentError):
                restored = False
            assert bool(told) is not restored, (saved, here, told)
            assert all(each.startswith("table (") for each in told)
            refused += bool(told)
    assert refused > len(made)


@pytest.mark.parametrize("package", ["keras", "tf_keras", "legacy"])
@pytest.mark.parametrize("partial", [False, True])
def test_a_layer_of_another_size_is_named_with_both_shapes(tmp_path: Path, package: str, partial: bool) -> None:
    tf, keras = tensorflow(), importlib.import_module("keras" if package == "keras" else "tf_keras")
    adam = keras.optimizers.legacy.Adam if package == "legacy" else keras.optimizers.Adam

    def job(units: int) -> ElasticCheckpoint:
        model, optimizer = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)]), adam(0.1)
        pairs = [(tf.zeros(variable.shape), variable) for variable in model.trainable_variables]
        optimizer.apply_gradients(pairs)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        return ElasticCheckpoint(checkpoint, str(tmp_path), every_steps=1, every_s=None, partial=partial)

    first = job(2)
    first.resume()
    steps(first, 1)
    assert job(2).resume() == 1
    other = job(4)
    for refuse in (checkpoints_of(other).compare, other.resume):
        with pytest.raises(
            checkpoints.Mismatch, match=r"kernel.*shape \(3, 2\) in the checkpoint and \(3, 4\)"
        ) as error:
            refuse()
        assert ("OPTIMIZER_SLOT" in str(error.value)) is (package == "legacy"), "what the optimizer keeps is told, too"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of moments."""
    monkeypatch.setattr(lease, "EXPIRES_S", 1.5)
    monkeypatch.setattr(lease, "_POLL_S", 0.05)
    monkeypatch.setattr(checkpoints, "RENEW_S", 0.1)


@pytest.fixture
def of_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ElasticCheckpoint]:
    def of(name: str, uid: str, **options: Any) -> ElasticCheckpoint:
        monkeypatch.setenv(protocol.JOB, f"ns/{name}/{uid}")
        return make(tmp_path, **{"every_steps": 1, "keep": 1, **options})[0]

    return of


def kill(job: ElasticCheckpoint) -> None:
    """As SIGKILL does: it renews nothing more, and gives nothing back."""
    held = checkpoints_of(job).lease
    with held._lock:  # a renewal that is under way would be written later
        held._acquired = False


@pytest.mark.usefixtures("quick")
def test_a_second_job_in_the_same_directory_is_refused(
    tmp_path: Path, of_job: Callable[..., ElasticCheckpoint]
) -> None:
    one = of_job("one", "1")
    one.resume()
    steps(one, 10)
    with pytest.raises(lease.InUse, match=r"job ns/one \(uid 1\) is running and writes its checkpoints to .*, too"):
        of_job("two", "2").resume()
    steps(one, 11)
    settled(one)
    assert names(tmp_path) == {"elastic-11"}
    assert of_job("one", "1").resume() == 11, "a program of the same job waits for nothing"


@pytest.mark.usefixtures("quick")
def test_a_recreated_job_continues_in_its_directory(
    tmp_path: Path, of_job: Callable[..., ElasticCheckpoint], capfd: pytest.CaptureFixture[str]
) -> None:
    one = of_job("one", "1")
    one.resume()
    steps(one, 10)
    kill(one)
    begin = time.monotonic()
    again = of_job("one", "2", total_steps=11)
    assert again.resume() == 10
    assert time.monotonic() - begin >= 1.0, "it cannot know at once that the other one has ended"
    assert "Waiting up to" in capfd.readouterr().err
    steps(again, 11)
    assert names(tmp_path) == {"elastic-11"}, "what the one before it left is its own"
    assert not (tmp_path / lease.FILE).exists(), "it has ended, and says so"
    begin = time.monotonic()
    assert of_job("one", "3").resume() == 11
    assert time.monotonic() - begin < 1.0


def test_a_renewal_in_flight_does_not_undo_a_release(
    tmp_path: Path, of_job: Callable[..., ElasticCheckpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = of_job("one", "1")
    job.resume()
    own = checkpoints_of(job).lease
    write, begun, go_on = own._write, threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert go_on.wait(60)
        write()

    monkeypatch.setattr(own, "_write", slow)
    both = [threading.Thread(target=own.renew), threading.Thread(target=own.release)]
    both[0].start()
    assert begun.wait(60)
    both[1].start()
    both[1].join(0.3)
    go_on.set()
    for each in both:
        each.join(60)
    assert not (tmp_path / lease.FILE).exists(), "the next job would wait for this one"


@pytest.mark.usefixtures("quick")
def test_checkpoints_of_a_deleted_job_are_used_and_kept(
    tmp_path: Path, of_job: Callable[..., ElasticCheckpoint], capfd: pytest.CaptureFixture[str]
) -> None:
    one = of_job("one", "1", total_steps=10)
    one.resume()
    steps(one, 10)
    two = of_job("two", "2")
    assert two.resume() == 10
    assert "resumed from step 10 of job ns/one (uid 1), which is not running" in capfd.readouterr().err
    steps(two, 10, 11, 12)
    settled(two)
    assert names(tmp_path) == {"elastic-10", "elastic-12"}
    kill(two)
    (tmp_path / lease.FILE).unlink()
    back = of_job("one", "1")
    assert back.resume() == 10, "its own, though another job has a newer one"
    steps(back, 12)
    assert "is a checkpoint of job ns/two" in str(back.progress.save_error)
    steps(back, 13)
    settled(back)
    assert names(tmp_path) == {"elastic-12", "elastic-13"}


@pytest.mark.usefixtures("quick")
def test_the_next_size_of_a_job_takes_the_lease_without_waiting(
    tmp_path: Path, of_job: Callable[..., ElasticCheckpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training stands still meanwhile."""
    of_job("one", "1").resume()
    before = (tmp_path / lease.FILE).read_text()
    job = of_job("one", "1")
    monkeypatch.setattr(checkpoints_of(job).lease, "acquire", lambda: pytest.fail("asked"))
    checkpoints_of(job).restore_newest(None, chief=True, after_switch=True)
    nonce = checkpoints_of(job).lease._nonce
    until("it renews it", lambda: nonce in (tmp_path / lease.FILE).read_text())
    assert nonce not in before


@pytest.mark.usefixtures("quick")
def test_only_one_of_two_jobs_that_start_together_keeps_saving(
    tmp_path: Path, of_job: Callable[..., ElasticCheckpoint]
) -> None:
    one = of_job("one", "1")
    one.resume()
    kill(one)
    (tmp_path / lease.FILE).unlink()
    two = of_job("two", "2")
    two.resume()
    checkpoints_of(one).lease._acquired = True  # it had not seen the other one either
    until("the first notices", lambda: checkpoints_of(one).lease.lost)
    steps(one, 10)
    assert "job ns/two (uid 2) is running" in str(one.progress.save_error)
    steps(two, 11)
    assert names(tmp_path) == {"elastic-11"}
    checkpoints_of(two).lease.release()
    until("the first has it", lambda: not checkpoints_of(one).lease.lost)
    steps(one, 12)
    assert one.progress.save_error is None


def test_a_directory_may_be_a_path_object(tmp_path: Path) -> None:
    tf = tensorflow()
    hook = ElasticCheckpoint(tf.train.Checkpoint(v=tf.Variable(0.0)), tmp_path / "a", total_steps=1)
    hook.resume()
    hook.step(1)
    assert (tmp_path / "a" / "elastic-1.complete").exists()
    with pytest.raises(TypeError, match="not int"):
        ElasticCheckpoint(tf.train.Checkpoint(), 3)  # type: ignore[arg-type]


def test_a_program_without_a_directory_is_warned_once(capfd: pytest.CaptureFixture[str]) -> None:
    elastic._warn_without_directory.cache_clear()
    for _ in range(2):
        ElasticCheckpoint(tensorflow().train.Checkpoint()).resume()
    assert capfd.readouterr().err.count("WARNING: ElasticCheckpoint has no directory: nothing is saved") == 1

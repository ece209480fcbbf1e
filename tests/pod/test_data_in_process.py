"""`ElasticCheckpoint.data()` with real TensorFlow in one process: `fit` of both Keras, record files, bad input."""

import contextlib
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic_tfjob.runtime import ElasticCheckpoint, TFRecords, keras_callback
from elastic_tfjob.runtime.checkpoints import Mismatch

from .test_elastic import Coordinator, tensorflow

pytestmark = [
    pytest.mark.xdist_group("tensorflow-1"),
    pytest.mark.usefixtures("sigterm_handler"),
]
EXAMPLES, EPOCHS = 100, 3


class Stopped(Exception):
    """The program ends here."""


def counting(keras: Any, counts: Any) -> Any:
    """A model that counts its examples, by the number of the epoch that Keras gives, and a callback for that."""
    tf = tensorflow()
    epoch_now = tf.Variable(0, dtype=tf.int64, trainable=False)

    class Counting(keras.Sequential):  # type: ignore[misc]
        def train_step(self, numbers: Any) -> dict[str, Any]:
            counts.scatter_nd_add(tf.stack([tf.fill(tf.shape(numbers), epoch_now), numbers], 1), tf.ones_like(numbers))
            return {"loss": tf.constant(0.5)}

    class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self, stop_after: int | None) -> None:
            super().__init__()
            self.begun: list[int] = []
            self._left = stop_after

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begun.append(epoch)
            epoch_now.assign(epoch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    raise Stopped

    model = Counting([keras.Input((1,))])
    model.compile()
    return model, Epochs


def fit(
    directory: Path, package: str, batch: int, *, stop_after: int | None = None, coordinator: Any = None
) -> tuple[Any, list[int], ElasticCheckpoint]:
    """Train until it ends, or stops after so many batches; counts by epoch and example, and the epochs that began."""
    tf, keras = tensorflow(), importlib.import_module(package)
    counts = tf.Variable(tf.zeros([EPOCHS, EXAMPLES], tf.int64))
    model, epochs = counting(keras, counts)
    if coordinator is not None:
        model._cluster_coordinator = coordinator
    job = ElasticCheckpoint(
        tf.train.Checkpoint(counts=counts), str(directory), every_steps=2, every_s=None, batch_size=batch
    )
    data = job.data(EXAMPLES, epochs=EPOCHS, seed=2)
    callback = epochs(stop_after)
    with contextlib.suppress(Stopped):
        model.fit(
            data.dataset(tf.identity),
            steps_per_epoch=data.steps_per_epoch,
            epochs=EPOCHS,
            verbose=0,
            callbacks=[job.callback(), callback],
        )
    return counts.numpy(), callback.begun, job


@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_fit_continues_in_the_epoch_where_it_was(tmp_path: Path, package: str) -> None:
    """It stops in the second epoch, one step after a checkpoint, and continues with another batch size."""
    counts, begun, _ = fit(tmp_path, package, 30, stop_after=7)
    assert begun == [0, 1]
    assert (counts[0] == 1).all()
    assert counts[1].sum() == 90
    counts, begun, job = fit(tmp_path, package, 16)
    assert begun == [1, 2]
    assert (counts == 1).all(), "each example once in each epoch"
    assert job._step == job.progress.total_steps == 6 + 3 + 7, "40 examples were left of the second epoch"
    counts, begun, job = fit(tmp_path, package, 16)
    assert (begun, job._step) == ([], 16), "all is done"
    assert (counts == 1).all()


def test_fit_on_parameter_servers_trains_on_the_chiefs_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_callback, "chief_device", lambda _: "/job:chief/device:CPU:0")
    monkeypatch.setattr(ElasticCheckpoint, "has_parameter_servers", True)
    keras = importlib.import_module("tf_keras")
    # `fit` of one process cannot read a DatasetCreator; what it reads is not used.
    monkeypatch.setattr(keras.utils.experimental, "DatasetCreator", lambda make: make())
    counts, begun, job = fit(tmp_path, "tf_keras", 30, coordinator=Coordinator())
    assert begun == [0, 1, 2]
    assert (counts == 1).all()
    assert job._step == 12


def test_an_argument_of_fit_that_cannot_be_followed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_callback, "chief_device", lambda _: "/job:chief/device:CPU:0")
    with pytest.raises(RuntimeError, match="needs a known version of tf-keras, and compile"):
        fit(tmp_path, "tf_keras", 30)  # without a coordinator


def job_with_data(directory: Path, **options: Any) -> tuple[ElasticCheckpoint, Any]:
    tf = tensorflow()
    options = {"examples": 10, "epochs": 2, "seed": 1, **options}
    job = ElasticCheckpoint(tf.train.Checkpoint(v=tf.Variable(0)), str(directory), every_steps=1, every_s=None)
    return job, job.data(options.pop("examples"), **options)


def test_other_data_than_in_the_checkpoint_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, data = job_with_data(tmp_path)
    job.resume()
    data.take(4)
    job.step(1)
    assert job.progress.checkpoint is not None
    assert job.progress.checkpoint["data"] == {"position": 4, "examples": 10, "seed": 1, "order": "shuffled-1"}
    for options, why in (({"examples": 11}, "examples 10 instead of 11"), ({"seed": 2}, "seed 1 instead of 2")):
        other, _ = job_with_data(tmp_path, **options)
        with pytest.raises(Mismatch, match=f"made with other data: {why}. Give elastic.data"):
            other.resume()
        monkeypatch.setattr(ElasticCheckpoint, "is_prepared", lambda _: True)
        monkeypatch.setattr(ElasticCheckpoint, "_barrier", lambda *_: pytest.fail("the running program trains on"))
        with pytest.raises(Mismatch, match=why):
            other.resume()
        monkeypatch.undo()
    more, data = job_with_data(tmp_path, epochs=5)
    assert (more.resume(), data.position, data.left) == (1, 4, 46)


def test_a_program_ends_when_no_example_is_left(tmp_path: Path) -> None:
    job, data = job_with_data(tmp_path, epochs=1)
    step = job.resume()
    while data.left:
        data.take(4)
        step += 1
        job.step(step)
        assert job.progress.total_steps == 3
    assert (tmp_path / "elastic-3.complete").exists()
    with pytest.raises(RuntimeError, match="no example is left"):
        data.take(4)
    with pytest.raises(RuntimeError, match="must be called once, before resume"):
        job.data(3)


def test_a_load_that_is_no_tensorflow_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tf = tensorflow()
    images = np.zeros((10, 3), np.float32)

    def python(numbers: Any) -> Any:
        return tf.numpy_function(lambda k: images[k], [numbers], tf.float32)

    def nested(numbers: Any) -> Any:
        return tf.data.Dataset.from_tensors(numbers).map(python).get_single_element()

    def dataset(load: Callable[[Any], Any], **options: Any) -> Any:
        checkpoint = tf.train.Checkpoint(v=tf.Variable(0))
        return ElasticCheckpoint(checkpoint, str(tmp_path), **options).data(10).dataset(load)

    with pytest.raises(ValueError, match=r"needs the batch's size: ElasticCheckpoint\(..., batch_size=32\)"):
        dataset(tf.identity)
    batches = list(dataset(python, batch_size=4))
    assert [len(each) for each in batches] == [4, 4, 2], "one worker may read in Python"
    for load in (lambda numbers: images[numbers], 3, lambda: 3):
        with pytest.raises(TypeError, match=r"cannot be traced by TensorFlow; .* such as tf.gather\(images, numbers\)"):
            dataset(load, batch_size=4)  # type: ignore[arg-type]
    monkeypatch.setattr(ElasticCheckpoint, "has_parameter_servers", True)
    for load in (python, nested):
        with pytest.raises(TypeError, match=r"calls Python \(PyFunc\), which workers do not have; use TensorFlow"):
            dataset(load, batch_size=4)
    _, data = job_with_data(tmp_path)
    data.take(1)
    with pytest.raises(RuntimeError, match=r"has called data\.take"):
        data.dataset(tf.identity)
    with pytest.raises(TypeError, match=r"examples is a dataset; .* count them once, for example int"):
        ElasticCheckpoint(tf.train.Checkpoint()).data(tf.data.Dataset.range(3))


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_records_are_read_by_number(tmp_path: Path, compression: str | None) -> None:
    tf = tensorflow()
    written = [bytes([k]) * (k % 7) for k in range(50)]
    files = [tmp_path / "a", tmp_path / "empty", tmp_path / "b"]
    for path, content in zip(files, (written[:20], [], written[20:]), strict=True):
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            for each in content:
                writer.write(each)
    records = TFRecords(files, block=8, compression=compression)
    assert len(records) == len(written)
    load = tf.function(records.load, input_signature=[tf.TensorSpec([None], tf.int64)])
    numbers = np.random.default_rng(0).permutation(len(written))
    for some in (numbers, numbers[:5], numbers[:1], np.arange(16, 24), np.array([49])):
        assert load(some).numpy().tolist() == [written[k] for k in some]


def test_files_that_are_no_records_are_refused(tmp_path: Path) -> None:
    tf = tensorflow()
    with tf.io.TFRecordWriter(str(tmp_path / "zip"), "GZIP") as writer:
        writer.write(b"some")
    with pytest.raises(ValueError, match="is no TFRecord file, or is compressed or damaged: see its record 0"):
        TFRecords([tmp_path / "zip"])
    with pytest.raises(ValueError, match="there are 0 files, and block is 1024; both must be at least 1"):
        TFRecords([])


def test_choosing_numbers_costs_less_than_20_microseconds_a_batch(tmp_path: Path) -> None:
    job, data = job_with_data(tmp_path, examples=1_200_000, epochs=None)
    job._checkpoints = None
    job.resume()
    batches = 5_000
    begin = time.thread_time()
    for _ in range(batches):
        data.take(32)
    took = (time.thread_time() - begin) / batches
    print(f"{took * 1e6:.1f} µs a batch")
    assert took < 20e-6

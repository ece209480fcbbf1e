"""`ElasticCheckpoint.callback()`: reports, saves and resumes in `Model.fit`, of Keras 3 or tf-keras.

With one worker, or several without parameter servers, each batch is a step, and Keras calls the callback after it. With
parameter servers (tf-keras only) Keras schedules batches ahead of the workers, as many as it can, and refuses callbacks
for each batch. There the callback replaces the function by which Keras schedules a batch, and from time to time waits
for the scheduled batches: then none is in flight, and a checkpoint can be saved in the middle of a long epoch.

Where training reads `ElasticCheckpoint.data().dataset()`, it continues in the epoch where it was. Keras makes its
iterator after `on_train_begin`, so the callback resumes there, after a warm-up of its own. The first epoch is shorter
then; Keras ends an epoch early if `stop_training` is set.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from elastic_tfjob.runtime.progress import scalar
from elastic_tfjob.runtime.shared_folder_probe import chief_device

_SCHEDULE_S = 0.25
"""With parameter servers, batches are scheduled for about this time and then waited for; workers idle briefly then."""
_LEAST_PER_WORKER = 2
"""The least number of batches scheduled for each worker."""
_EPOCH_ENDS: Any = "the epoch ends"
"""For `stop_training`, in place of True, which another callback may set in the meantime."""


class _Batch:
    """An iterator, as Keras expects, of one batch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __next__(self) -> Any:
        return self._batch


class _Begun:
    """Tells tf-keras, in place of its own record of an interrupted `fit`, in which epoch it continues."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._epoch, 0


def _begin_in(model: Any, epoch: int | None) -> None:
    """Have `fit` begin in this epoch; None: where its argument says, as without this call."""
    if hasattr(model, "_training_state"):  # tf-keras
        model._training_state = None if epoch is None else _Begun(epoch)
    else:
        model._initial_epoch = epoch


def callback(elastic: Any) -> Any:
    """A callback for `fit` of the Keras that the program uses. `elastic`: the ElasticCheckpoint."""
    import tensorflow as tf  # noqa: PLC0415

    # A program may import tf-keras by its own name. Its callbacks work with Keras 3, but not the reverse.
    keras: Any = sys.modules.get("tf_keras") or tf.keras

    def data() -> Any:
        """The data, if `fit` trains on `data.dataset()`."""
        found = elastic.training_data
        return found if found is not None and found.load is not None else None

    class ElasticCheckpointCallback(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._done = 0
            self._data: Any = None  # what `fit` trains on, if it is `data.dataset()`
            self._epoch = 0  # of the data, when this epoch began

        def on_train_begin(self, logs: Any = None) -> None:
            optimizer = getattr(self.model, "optimizer", None)
            if optimizer is not None and self.model.built and hasattr(optimizer, "build"):
                with contextlib.suppress(Exception):  # else its variables are restored when they are created
                    optimizer.build(self.model.trainable_variables)
            self._data = data()
            if self._data is None:
                if not elastic.is_prepared():
                    self._begin()
                return
            if elastic.is_prepared():
                self._warm_up()
            self._begin()
            _begin_in(self.model, sys.maxsize if self.model.stop_training else self._data.epoch)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch = self._data.epoch if self._data is not None else 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self.model.stop_training is _EPOCH_ENDS:
                self.model.stop_training = False

        def on_train_end(self, logs: Any = None) -> None:
            if self._data is not None:
                _begin_in(self.model, None)

        def _warm_up(self) -> None:
            """Train one batch as `fit` will."""
            self.model.train_function(iter(self._data.dataset(self._data.load)))

        def _count(self, done: int, loss: Any) -> None:
            if not self.model.stop_training:  # else all steps were done before, and Keras notices that afterwards
                self._done += done
                elastic.step(self._done, loss=loss, examples=done * elastic.examples_of_a_batch)
                self._end_if_done()
                if not self.model.stop_training and self._epoch_ends():
                    self.model.stop_training = _EPOCH_ENDS

        def _epoch_ends(self) -> bool:
            """Whether the next example is of another epoch."""
            return self._data is not None and self._data.epoch != self._epoch

        def _begin(self) -> None:
            self._done = elastic.resume()
            self._end_if_done()

        def _end_if_done(self) -> None:
            total = elastic.progress.total_steps
            nothing_left = self._data is not None and not self._data.left
            if nothing_left or (total is not None and self._done >= total):
                self.model.stop_training = True

    class BatchCallback(ElasticCheckpointCallback):
        """For strategies in which Keras calls the callback after each batch."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_begin(epoch, logs)
            self._batch = -1

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done, self._batch = batch - self._batch, batch
            if not elastic.resumed:  # this batch was the warm-up
                self._begin()
            else:
                self._count(done, _loss(logs))

    class ScheduledBatchCallback(ElasticCheckpointCallback):
        """For parameter servers. Where Keras schedules batches in a way that is not known here, epochs are counted."""

        def on_train_begin(self, logs: Any = None) -> None:
            schedule_batch = getattr(self.model, "train_function", None)
            coordinator = getattr(self.model, "_cluster_coordinator", None)
            self._by_epoch = not callable(schedule_batch) or not hasattr(coordinator, "join")
            self._scheduled, self._since_s = 0, time.monotonic()
            self._result: Any = None
            # The replacement of an earlier `fit` that ended with an error may still be in place.
            self._schedule_batch: Any = getattr(schedule_batch, "elastic_original", schedule_batch)
            self._least = _LEAST_PER_WORKER * elastic.task.workers
            self._limit = self._least
            self._steps_of_batch = 1
            with contextlib.suppress(Exception):
                self._steps_of_batch = max(int(self.model._steps_per_execution.numpy()), 1)
            self._numbers_step: Any = None
            if data() is not None and (self._by_epoch or self._steps_of_batch != 1):
                raise RuntimeError(
                    "data.dataset() with parameter servers needs a known version of tf-keras, and compile() with "
                    f"steps_per_execution=1 (it is {self._steps_of_batch})"
                )
            if not self._by_epoch:

                def one(iterator: Any) -> Any:
                    return self._schedule_one(iterator)

                one.elastic_original = self._schedule_batch  # type: ignore[attr-defined]
                self.model.train_function = one
            super().on_train_begin(logs)
            if self._by_epoch and not elastic.resumed:
                self._begin()

        def _warm_up(self) -> None:
            self._schedule(None)
            self.model._cluster_coordinator.join()

        def _schedule(self, iterator: Any) -> Any:
            """Schedule the next batch: one of the data, or one that a worker chooses."""
            if self._data is None:
                return self._schedule_batch(iterator)
            if self._numbers_step is None:
                train, load = self.model.train_tf_function.python_function, self._data.load
                numbers_of_batch = tf.TensorSpec([None], tf.int64)
                self._numbers_step = tf.function(
                    lambda numbers: train(_Batch(load(numbers))), input_signature=[numbers_of_batch]
                )
            numbers = tf.constant(self._data.take_batch())
            return self.model._cluster_coordinator.schedule(self._numbers_step, args=(numbers,))

        def on_train_end(self, logs: Any = None) -> None:
            super().on_train_end(logs)
            if not self._by_epoch:
                self.model.train_function = self._schedule_batch

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_begin(epoch, logs)
            self._since_s = time.monotonic()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self._by_epoch:
                self._count(self.params["steps"], _loss(logs))
            elif self._scheduled:
                self._wait_and_count()
            super().on_epoch_end(epoch, logs)

        def _schedule_one(self, iterator: Any) -> Any:
            """Schedule one batch; returns the result that Keras expects."""
            result = self._result = self._schedule(iterator)
            if not elastic.resumed:  # the warm-up
                self.model._cluster_coordinator.join()
                self._begin()
                self._since_s = time.monotonic()
                return result
            self._scheduled += self._steps_of_batch
            total = elastic.progress.total_steps
            left = sys.maxsize if total is None else total - self._done
            if self._epoch_ends() or self._scheduled >= min(self._limit, left):
                self._wait_and_count()
            return result

        def _wait_and_count(self) -> None:
            """Wait for the scheduled batches, and count them."""
            self.model._cluster_coordinator.join()
            logs = None
            with contextlib.suppress(Exception):
                logs = self._result.fetch()
            scheduled, self._scheduled = self._scheduled, 0
            seconds = max(time.monotonic() - self._since_s, 1e-6)
            # At most twice as many as this time: a single slow or fast time says little.
            self._limit = max(min(int(scheduled * _SCHEDULE_S / seconds), 2 * scheduled), self._least)
            self._count(scheduled, _loss(logs))
            self._since_s = time.monotonic()

    return ScheduledBatchCallback() if chief_device(tf) is not None else BatchCallback()


def _loss(logs: Any) -> Any:
    """The loss that Keras reports; None if it is not a number."""
    try:
        return scalar("loss", (logs or {}).get("loss"))
    except TypeError:
        return None

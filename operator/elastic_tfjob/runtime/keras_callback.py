"""`ElasticCheckpoint.callback()`: what reports, saves and resumes in `Model.fit`, of Keras 3 or of tf-keras.

With one worker, or several without parameter servers, each batch is a step, and Keras says when it is done. With
parameter servers (tf-keras only) Keras hands batches out ahead of the workers, as many as it can, and refuses callbacks
that want to hear of each. There the callback takes the place of the function by which Keras hands out a batch, and now
and then waits for those that were: then nothing is in flight, and a checkpoint can be saved in the middle of an
epoch, however long it is.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from elastic_tfjob.runtime.progress import scalar
from elastic_tfjob.runtime.shared_folder_probe import chief_device

_SETTLE_S = 0.25
"""With parameter servers batches are handed out for about this long, then waited for: workers idle for that moment."""
_AHEAD = 2
"""So many batches are handed out for each worker at least."""


def callback(elastic: Any) -> Any:
    """A callback for `fit`, of the Keras that the program uses."""
    import tensorflow as tf  # noqa: PLC0415

    # A program may have tf-keras by its own name. Its callbacks will do for Keras 3, but not the other way round.
    keras: Any = sys.modules.get("tf_keras") or tf.keras
    total = elastic.progress.total_steps

    class ElasticCheckpointCallback(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._done = 0

        def on_train_begin(self, logs: Any = None) -> None:
            optimizer = getattr(self.model, "optimizer", None)
            if optimizer is not None and self.model.built and hasattr(optimizer, "build"):
                with contextlib.suppress(Exception):  # else its variables are restored when they are made
                    optimizer.build(self.model.trainable_variables)
            if not elastic.is_prepared():
                self._begin()

        def _count(self, done: int, loss: Any) -> None:
            if not self.model.stop_training:  # else all was done before, and Keras only sees it afterwards
                self._done += done
                elastic.step(self._done, loss=loss, examples=done * elastic.examples_of_a_batch)
                self._end_if_done()

        def _begin(self) -> None:
            self._done = elastic.resume()
            self._end_if_done()

        def _end_if_done(self) -> None:
            if total is not None and self._done >= total:
                self.model.stop_training = True

    class Batches(ElasticCheckpointCallback):
        """Keras says when a batch is done."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._batch = -1

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done, self._batch = batch - self._batch, batch
            if not elastic.resumed:  # that was the warm-up
                self._begin()
            else:
                self._count(done, _loss(logs))

    class HandedOut(ElasticCheckpointCallback):
        """Keras hands batches out. Where it does so in another way than is known here, epochs are counted."""

        def on_train_begin(self, logs: Any = None) -> None:
            hand_out = getattr(self.model, "train_function", None)
            coordinator = getattr(self.model, "_cluster_coordinator", None)
            self._by_epoch = not callable(hand_out) or not hasattr(coordinator, "join")
            self._handed, self._since = 0, time.monotonic()
            self._result: Any = None
            # What handed out the batches of a `fit` that an error has ended may be still there.
            self._hand_out: Any = getattr(hand_out, "hands_out", hand_out)
            self._least = _AHEAD * elastic.task.workers
            self._todo = self._least
            self._at_once = 1  # steps of one batch
            with contextlib.suppress(Exception):
                self._at_once = max(int(self.model._steps_per_execution.numpy()), 1)
            if not self._by_epoch:

                def one(iterator: Any) -> Any:
                    return self._one(iterator)

                one.hands_out = self._hand_out  # type: ignore[attr-defined]
                self.model.train_function = one
            super().on_train_begin(logs)
            if self._by_epoch and not elastic.resumed:
                self._begin()

        def on_train_end(self, logs: Any = None) -> None:
            if not self._by_epoch:
                self.model.train_function = self._hand_out

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._since = time.monotonic()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self._by_epoch:
                self._count(self.params["steps"], _loss(logs))
            elif self._handed:
                self._settle()

        def _one(self, iterator: Any) -> Any:
            """Hand out one batch; gives what Keras is given for it."""
            result = self._result = self._hand_out(iterator)
            if not elastic.resumed:  # the warm-up
                self.model._cluster_coordinator.join()
                self._begin()
                self._since = time.monotonic()
                return result
            self._handed += self._at_once
            left = sys.maxsize if total is None else total - self._done
            if self._handed >= min(self._todo, left):
                self._settle()
            return result

        def _settle(self) -> None:
            """Wait for what was handed out, and count it."""
            self.model._cluster_coordinator.join()
            logs = None
            with contextlib.suppress(Exception):
                logs = self._result.fetch()
            handed, self._handed = self._handed, 0
            seconds = max(time.monotonic() - self._since, 1e-6)
            # Twice as many as this time at most: one slow time or a fast one says little.
            self._todo = max(min(int(handed * _SETTLE_S / seconds), 2 * handed), self._least)
            self._count(handed, _loss(logs))
            self._since = time.monotonic()

    return HandedOut() if chief_device(tf) is not None else Batches()


def _loss(logs: Any) -> Any:
    """What Keras says of the loss, if that is a number."""
    try:
        return scalar("loss", (logs or {}).get("loss"))
    except TypeError:
        return None

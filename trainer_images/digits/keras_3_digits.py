"""The digits with `Model.fit` of Keras 3: an example program for a TFJob of one worker.

Keras 3 trains neither with several workers nor with parameter servers; keras_digits.py, with Keras 2, does both. The
program prints one JSON object per line, like digits.py.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from elastic_tfjob.runtime import ElasticCheckpoint


class Report(keras.callbacks.Callback):
    """Prints the progress of training at intervals. List it after the callback that resumes."""

    def __init__(self, elastic: ElasticCheckpoint, options: argparse.Namespace) -> None:
        super().__init__()
        self.elastic, self.options = elastic, options
        self.resumed_at = None

    def on_train_begin(self, logs: Any = None) -> None:
        if self.elastic.resumed:  # otherwise it resumes after the first batch, its warm-up
            self.resumed_at = int(self.model.optimizer.iterations)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations)
        if self.resumed_at is None:
            self.resumed_at = step
        elif step % self.options.report_every == 0:
            done = {"step": step, "steps": self.options.steps, "resumed_at": self.resumed_at}
            print(json.dumps({**done, "loss": round(float(logs["loss"]), 4)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="total training steps")
    parser.add_argument("--report-every", type=int, default=100, metavar="STEPS", help="steps between two reports")
    options = parser.parse_args()
    assert keras.__version__.startswith("3."), (
        f"this program needs Keras 3, found {keras.__version__}; use keras_digits.py"
    )

    table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype=np.float32)
    images, labels = table[:, :-1] / 16, table[:, -1].astype(np.int64)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    elastic = ElasticCheckpoint(
        tf.train.Checkpoint(model=model, optimizer=model.optimizer), total_steps=options.steps, batch_size=32
    )
    data = elastic.data(len(images), epochs=None)  # each image once in an epoch, also after a restart

    def load(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:  # called with the numbers of a batch
        return tf.gather(images, numbers), tf.gather(labels, numbers)

    model.fit(
        data.dataset(load),
        steps_per_epoch=data.steps_per_epoch,
        epochs=options.steps // data.steps_per_epoch + 1,
        verbose=0,
        callbacks=[elastic.callback(), Report(elastic, options)],
    )


if __name__ == "__main__":
    main()

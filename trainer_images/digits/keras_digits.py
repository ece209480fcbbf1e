"""The digits with Keras' `Model.fit`: an example program for a TFJob of workers without parameter servers.

One worker trains alone; several train together (MultiWorkerMirroredStrategy), each with its part of the batch. Keras 3
cannot do the latter (github.com/keras-team/keras/issues/20585), so this uses Keras 2, the package tf-keras.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # tf.keras is tf-keras

import tensorflow as tf
from sklearn.datasets import load_digits

from elastic_tfjob.runtime import ElasticCheckpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="batches to train in all")
    parser.add_argument("--batch-size", type=int, default=64, help="images a step, of all workers together")
    options = parser.parse_args()

    several = "TF_CONFIG" in os.environ
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    images, labels = load_digits(return_X_y=True)
    with strategy.scope():
        layers = [tf.keras.Input((64,)), tf.keras.layers.Dense(128, "relu"), tf.keras.layers.Dense(10)]
        model = tf.keras.Sequential(layers)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])

    elastic = ElasticCheckpoint(
        tf.train.Checkpoint(model=model, optimizer=model.optimizer),
        total_steps=options.steps,
        batch_size=options.batch_size,
        strategy=strategy,
    )
    # Batches are of all workers together: Keras gives each its part.
    data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
    data = data.shuffle(len(images)).repeat().batch(elastic.batch_size * strategy.num_replicas_in_sync)
    model.fit(data, steps_per_epoch=100, epochs=options.steps // 100 + 1, verbose=2, callbacks=[elastic.callback()])


if __name__ == "__main__":
    main()

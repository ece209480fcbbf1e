"""The digits with Keras' `Model.fit`: an example program for a TFJob of workers without parameter servers.

One worker trains alone; several train together (MultiWorkerMirroredStrategy), each with its part of the batch.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

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

    # Batches are of all workers together: Keras gives each its part.
    data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
    data = data.shuffle(len(images)).repeat().batch(options.batch_size, drop_remainder=True)
    elastic = ElasticCheckpoint(
        tf.train.Checkpoint(model=model, optimizer=model.optimizer), total_steps=options.steps, strategy=strategy
    )
    model.fit(data, steps_per_epoch=100, epochs=options.steps // 100 + 1, verbose=2, callbacks=[elastic.callback()])


if __name__ == "__main__":
    main()

"""The digits with Keras' `Model.fit`: an example program for a TFJob of workers without parameter servers.

One worker trains alone; several train together (MultiWorkerMirroredStrategy), each with its part of the batch. With
parameter servers the chief schedules the batches (ParameterServerStrategy). Keras 3 supports neither of the latter two
(github.com/keras-team/keras/issues/20585), so this program uses Keras 2, the package tf-keras.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # tf.keras is tf-keras
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a chief that starts first waits for the others

from elastic_tfjob.runtime import ElasticCheckpoint, serve, serve_replica

serve_replica()  # parameter servers and workers beside them serve here, without importing TensorFlow

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def strategy_of(config: dict) -> tf.distribute.Strategy:
    """The strategy for the cluster's replicas. Does not return in a parameter server or a worker beside one: it
    serves."""
    if not config:
        return tf.distribute.get_strategy()
    if "ps" not in config["cluster"]:
        return tf.distribute.MultiWorkerMirroredStrategy()
    cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
    if task["type"] != "chief":
        serve(cluster, task["type"], task["index"])
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0)
    return tf.distribute.ParameterServerStrategy(resolver)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="total training steps")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, in total for all workers")
    options = parser.parse_args()

    strategy = strategy_of(json.loads(os.environ.get("TF_CONFIG") or "{}"))
    table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype=np.float32)
    images, labels = table[:, :-1] / 16, table[:, -1].astype(np.int64)
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

    data = elastic.data(len(images), epochs=None)  # each image once in an epoch, also if the job changes its size

    def load(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:  # called with the numbers of a batch
        return tf.gather(images, numbers), tf.gather(labels, numbers)

    model.fit(
        data.dataset(load),
        steps_per_epoch=data.steps_per_epoch,
        epochs=options.steps // data.steps_per_epoch + 1,
        verbose=2,
        callbacks=[elastic.callback()],
    )
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        # A return would have TensorFlow ask each server to drop each function; with 2.21 some calls take 33 s.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()

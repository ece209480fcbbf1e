"""The digits with a custom training loop under MultiWorkerMirroredStrategy: an example program for a TFJob of workers
without parameter servers.

Each worker computes the gradients of its part of a batch, and all keep the same weights: a softmax regression. Every
worker prints one JSON object per line, like digits.py.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a worker that starts first waits for the others

import numpy as np
import tensorflow as tf

from elastic_tfjob.runtime import ElasticCheckpoint

BATCH_SIZE, RATE = 64, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="total training steps")
    parser.add_argument("--report-every", type=int, default=100, metavar="STEPS", help="steps between two reports")
    options = parser.parse_args()

    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()
    )
    with strategy.scope():
        mean = tf.VariableAggregation.MEAN
        weights = tf.Variable(tf.zeros((64, 10)), aggregation=mean)
        bias = tf.Variable(tf.zeros(10), aggregation=mean)
    elastic = ElasticCheckpoint(
        tf.train.Checkpoint(weights=weights, bias=bias),
        total_steps=options.steps,
        batch_size=BATCH_SIZE,
        strategy=strategy,
    )
    table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype=np.float32)
    images, labels = table[:, :-1] / 16, table[:, -1].astype(np.int64)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat()
    data = data.batch(elastic.batch_size * strategy.num_replicas_in_sync)
    batches = iter(strategy.experimental_distribute_dataset(data))

    def descend(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = tf.matmul(images, weights) + bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for variable, gradient in zip((weights, bias), tape.gradient(loss, [weights, bias])):
            variable.assign_sub(RATE * gradient)
        return loss

    @tf.function
    def one_step(batch: tuple) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(descend, batch), axis=None)

    step = resumed_at = elastic.resume(warm_up=lambda: one_step(next(batches)))
    while step < options.steps:
        loss = one_step(next(batches))
        step += 1
        elastic.step(step, loss=loss, examples=BATCH_SIZE)
        if step % options.report_every == 0:
            done = {"step": step, "steps": options.steps, "resumed_at": resumed_at}
            print(json.dumps({**done, "loss": round(float(loss), 4)}), flush=True)


if __name__ == "__main__":
    main()

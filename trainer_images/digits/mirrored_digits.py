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
    data = elastic.data(len(images), epochs=None)  # each image once in an epoch, also if the job changes its size

    def descend(numbers: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = tf.matmul(tf.gather(images, numbers), weights) + bias
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(labels, numbers), logits)
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip((weights, bias), tape.gradient(loss, [weights, bias])):
            variable.assign_sub(RATE * gradient)
        return loss

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def one_step(numbers: tf.Tensor) -> tf.Tensor:  # this worker's numbers, a part of the batch's
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(descend, (numbers,)), axis=None)

    step = resumed_at = elastic.resume(warm_up=lambda: one_step(data.take(BATCH_SIZE)))
    while step < options.steps:
        loss = one_step(data.take(BATCH_SIZE))
        step += 1
        elastic.step(step, loss=loss, examples=BATCH_SIZE)
        if step % options.report_every == 0:
            done = {"step": step, "steps": options.steps, "resumed_at": resumed_at}
            print(json.dumps({**done, "loss": round(float(loss), 4)}), flush=True)


if __name__ == "__main__":
    main()

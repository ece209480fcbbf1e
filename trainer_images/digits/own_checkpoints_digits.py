"""The digits with the program's own checkpoints and without this project's hook: an example program for a TFJob of
workers without parameter servers, which a resize recreates (`recreate`).

It reads its size once, at its start, and resumes from the newest of TensorFlow's own checkpoints in the job's
checkpoint-dir. The steps since that checkpoint are repeated. Every worker prints one JSON object per line.
"""

import argparse
import json
import os
import signal
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a worker that starts first waits for the others

import numpy as np
import tensorflow as tf

BATCH_SIZE, RATE = 64, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="total training steps")
    parser.add_argument("--report-every", type=int, default=100, metavar="STEPS", help="steps between two reports")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS", help="steps between checkpoints")
    parser.add_argument(
        "--at-most", type=float, default=0.0, metavar="STEPS", help="maximum steps per second; 0: no limit"
    )
    options = parser.parse_args()

    config = json.loads(os.environ.get("TF_CONFIG") or "{}")  # a job of one replica has none
    workers, index = (len(config["cluster"]["worker"]), config["task"]["index"]) if config else (1, 0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # TensorFlow has installed a handler by now, and would train on until the end of the grace period.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with strategy.scope():
        mean = tf.VariableAggregation.MEAN
        weights = tf.Variable(tf.zeros((64, 10)), aggregation=mean)
        bias = tf.Variable(tf.zeros(10), aggregation=mean)
    count = tf.Variable(0, dtype=tf.int64)
    directory = os.environ["ELASTIC_TFJOB_CHECKPOINT_DIR"]
    checkpoint = tf.train.Checkpoint(weights=weights, bias=bias, step=count)
    checkpoint.restore(tf.train.latest_checkpoint(directory))
    # TensorFlow needs all workers to save; only the first worker's checkpoint counts.
    mine = directory if index == 0 else tempfile.mkdtemp()
    manager = tf.train.CheckpointManager(checkpoint, mine, max_to_keep=2)

    table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype=np.float32)
    images, labels = table[:, :-1] / 16, table[:, -1].astype(np.int64)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat().batch(BATCH_SIZE)
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

    step = resumed_at = int(count)
    while step < options.steps:
        begin = time.monotonic()
        loss = one_step(next(batches))
        step = int(count.assign_add(1))
        if step % options.checkpoint_every == 0 or step == options.steps:
            manager.save(checkpoint_number=step)
        if step % options.report_every == 0:
            done = {"step": step, "steps": options.steps, "resumed_at": resumed_at, "loss": round(float(loss), 4)}
            print(json.dumps({**done, "workers": workers}), flush=True)
        if options.at_most:
            time.sleep(max(0.0, begin + 1 / options.at_most - time.monotonic()))


if __name__ == "__main__":
    main()

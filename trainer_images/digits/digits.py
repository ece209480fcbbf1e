"""Train a small network on handwritten digits with parameter servers: an example program for a TFJob.

Every replica of the job runs this file; TF_CONFIG, which the operator sets, tells each one its task. The chief
schedules the steps, the workers compute gradients, and the parameter servers (PS) hold the weights. In a job without a
chief the first worker is the chief, for the operator as well.

The data are 1,797 real digits of 8x8 pixels (the test set of UCI's "Optical Recognition of Handwritten Digits", from
scikit-learn); a fifth is held out to measure accuracy.
The chief prints one JSON object per line: step, steps (in all), resumed_at (the step of the restored checkpoint), loss,
steps_per_second, and accuracy where it was measured. It saves checkpoints to the job's checkpoint-dir, if there is one,
and resumes from there, also with a different number of workers or PS.
"""

import argparse
import functools
import json
import os
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a chief that starts first waits for the others

from elastic_tfjob.runtime import ElasticCheckpoint, serve, serve_replica

serve_replica()  # parameter servers and workers serve here until the job is done, without importing TensorFlow

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

DISPATCH_S, STEPS_AHEAD = 0.05, 2
"""Steps are scheduled for about this time, and at least this number for each worker; a checkpoint can be saved between
two such chunks."""
EMBEDDING = 16
MEBIBYTE = 1 << 20


def cluster_of(tf_config: dict) -> tuple[tf.train.ClusterSpec, str, int]:
    """The cluster with exactly one chief, and this replica's task type and index in it."""
    cluster, task = tf_config["cluster"], tf_config["task"]
    kind, index = task["type"], task["index"]
    if "master" in cluster:  # an older name for the chief
        cluster["chief"] = cluster.pop("master")
        kind = "chief" if kind == "master" else kind
    if "chief" not in cluster:
        first, *others = cluster["worker"]
        cluster |= {"chief": [first], "worker": others}
        if kind == "worker":
            kind, index = ("chief", 0) if index == 0 else ("worker", index - 1)
    return tf.train.ClusterSpec(cluster), kind, index


def digits(folder: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images (n, 64) in 0..1, held-out images, training labels, held-out labels. They are read from the files
    train.csv.gz and held_out.csv.gz of `folder`, if one is given: 64 pixels in 0..16 and the label per line."""

    def read(path: Path) -> np.ndarray:
        # Without scikit-learn: where that is installed, Keras imports it in every replica.
        return np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)

    if folder:
        train, held_out = (read(Path(folder) / name) for name in ("train.csv.gz", "held_out.csv.gz"))
    else:
        table = np.random.default_rng(0).permutation(read(Path(__file__).with_name("digits.csv.gz")))
        held_out, train = np.split(table, [len(table) // 5])
    images, labels = ([each[:, :-1] / 16 for each in (train, held_out)], [each[:, -1] for each in (train, held_out)])
    return *images, *(each.astype(np.int64) for each in labels)


class Network(tf.Module):
    """64 pixels -> hidden units -> 10 classes. With `embedding_mb`, also a large table with a row for each pixel and
    grey level, spread over the parameter servers: a step reads and changes only the rows that its images need."""

    def __init__(self, hidden: int = 128, embedding_mb: int = 0) -> None:
        super().__init__()
        glorot = tf.keras.initializers.GlorotUniform(seed=0)
        self.w1, self.b1 = tf.Variable(glorot((64, hidden))), tf.Variable(tf.zeros(hidden))
        self.w2, self.b2 = tf.Variable(glorot((hidden, 10))), tf.Variable(tf.zeros(10))
        self.rows = embedding_mb * MEBIBYTE // (4 * EMBEDDING)
        if self.rows:
            shape = (self.rows, EMBEDDING)
            # A function, so that each parameter server fills its part; the chief would have to send a tensor.
            zeros = functools.partial(tf.zeros_initializer(), shape, dtype=tf.float32)
            self.table = tf.Variable(zeros, shape=shape, dtype=tf.float32)
            self.w3 = tf.Variable(glorot((EMBEDDING, hidden)))

    @property
    def weights(self) -> list[tf.Variable]:
        """All trained variables. Not an attribute: a checkpoint would hold the parts of the table twice."""
        small = [self.w1, self.b1, self.w2, self.b2]
        if not self.rows:
            return small
        # A partitioner splits a large variable into several.
        return [*small, self.w3, *getattr(self.table, "variables", [self.table])]

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        hidden = images @ self.w1 + self.b1
        if self.rows:
            grey = tf.cast(tf.round(images * 16), tf.int64)
            row = (tf.range(64, dtype=tf.int64) * 17 + grey) * (self.rows // (64 * 17))
            hidden += tf.reduce_mean(tf.nn.embedding_lookup(self.table, row), axis=1) @ self.w3
        return tf.nn.relu(hidden) @ self.w2 + self.b2


def train(cluster: tf.train.ClusterSpec, options: argparse.Namespace) -> None:
    """The chief's part: schedule steps, and report every `report_every` of them. Does not return."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0)
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        MEBIBYTE, max_shards=cluster.num_tasks("ps")
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():  # its variables are on the parameter servers
        network = Network(options.hidden, options.embedding_mb)
    elastic = ElasticCheckpoint(
        tf.train.Checkpoint(network=network),
        total_steps=options.steps,
        every_s=options.checkpoint_every,
        batch_size=options.batch_size,
        batch=options.batch,
    )
    images, held_out_images, labels, held_out_labels = digits(options.data)
    data = elastic.data(len(images), epochs=None)  # each image once in an epoch, also if the job changes its size

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(numbers: tf.Tensor) -> tf.Tensor:
        def update(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images))
                loss = tf.reduce_mean(losses)
            for variable, gradient in zip(network.weights, tape.gradient(loss, network.weights)):
                if isinstance(gradient, tf.IndexedSlices):
                    scaled = tf.IndexedSlices(options.learning_rate * gradient.values, gradient.indices)
                    variable.scatter_sub(scaled)
                else:
                    variable.assign_sub(options.learning_rate * gradient)
            return loss

        return strategy.run(update, args=(tf.gather(images, numbers), tf.gather(labels, numbers)))

    def run(count: int) -> float:
        """Run `count` steps; returns their mean loss."""
        losses = [coordinator.schedule(step, args=(data.take(elastic.batch_size),)) for _ in range(count)]
        coordinator.join()
        return float(np.mean([loss.fetch() for loss in losses]))

    workers = cluster.num_tasks("worker")
    done = resumed_at = evaluated_at = elastic.resume(warm_up=lambda: run(2 * workers))
    begin = time.monotonic()
    losses: list[float] = []
    todo = workers
    while done < options.steps:
        next_report = (done // options.report_every + 1) * options.report_every
        todo = min(todo, next_report - done, options.steps - done)
        chunk = time.monotonic()
        losses += [run(todo)] * todo
        done += todo
        elastic.step(done, loss=losses[-1], examples=todo * elastic.batch_size)
        if done in (next_report, options.steps):
            report = {
                "step": done,
                "steps": options.steps,
                "resumed_at": resumed_at,
                "loss": round(float(np.mean(losses)), 4),
                "steps_per_second": round((done - resumed_at) / (time.monotonic() - begin), 1),
            }
            if done == options.steps or done - evaluated_at >= options.evaluate_every:
                correct = tf.argmax(network(held_out_images), axis=1).numpy() == held_out_labels
                report["accuracy"] = round(float(np.mean(correct)), 4)
                evaluated_at = done
            print(json.dumps(report), flush=True)
            losses = []
        took = time.monotonic() - chunk
        if options.at_most:
            time.sleep(max(0.0, todo / options.at_most - took))
        # At most twice as many as this time (a single slow or fast chunk says little), and enough to keep workers busy.
        todo = max(min(int(todo * DISPATCH_S / took), 2 * todo), STEPS_AHEAD * elastic.workers)
    # A return would have TensorFlow ask each server to drop each function; with 2.21 some of these calls take 33 s.
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="total training steps of all workers")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step")
    parser.add_argument(
        "--batch",
        choices=["fixed", "scaled"],
        default="scaled",
        help="fixed: --batch-size is the total of all workers; scaled: each worker has its own batch of this size",
    )
    parser.add_argument("--learning-rate", type=float, default=0.1, help="learning rate")
    parser.add_argument("--report-every", type=int, default=100, metavar="STEPS", help="steps between two reports")
    parser.add_argument(
        "--evaluate-every",
        type=int,
        default=0,
        metavar="STEPS",
        help="evaluate every STEPS steps and at the end; 0: in each report",
    )
    parser.add_argument(
        "--at-most",
        type=float,
        default=0.0,
        metavar="STEPS",
        help="maximum steps per second; 0: no limit",
    )
    parser.add_argument(
        "--checkpoint-every", type=float, default=30.0, metavar="SECONDS", help="seconds between checkpoints"
    )
    parser.add_argument("--hidden", type=int, default=128, help="units of the hidden layer")
    parser.add_argument(
        "--embedding-mb", type=int, default=0, help="size in MiB of an additional table of weights, for a large model"
    )
    parser.add_argument(
        "--data",
        default="",
        metavar="FOLDER",
        help="folder with train.csv.gz and held_out.csv.gz; a relative one is below the job's checkpoint-dir",
    )
    options = parser.parse_args()
    if options.data:
        options.data = os.path.join(os.environ.get("ELASTIC_TFJOB_CHECKPOINT_DIR", ""), options.data)

    cluster, kind, index = cluster_of(json.loads(os.environ["TF_CONFIG"]))
    if kind == "chief":
        if not os.environ.get("ELASTIC_TFJOB_CHECKPOINT_DIR"):
            # Nothing to save: end at once. The first process of a container gets no SIGTERM without a handler, and a
            # deleted pod would stay for its whole grace period. 143 tells the operator that the replica was ended.
            signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
        train(cluster, options)
    else:  # serves until the job is done and the operator ends it (cleanPodPolicy)
        serve(cluster, kind, index)


if __name__ == "__main__":
    main()

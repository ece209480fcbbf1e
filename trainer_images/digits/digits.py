"""Train a small network on handwritten digits with parameter servers: an example program for a TFJob.

Every replica of the job runs this same file; TF_CONFIG, which the operator sets, says which one it is. The chief
decides what the workers compute, the workers compute gradients, the parameter servers (PS) keep the weights. A job
without a chief has its first worker for one, as the operator has too.

The data are scikit-learn's 1,797 real digits of 8x8 pixels; a fifth is held out and only used to measure accuracy.
The chief prints one JSON object a line: step, steps (in all), loss, accuracy, steps_per_second.
"""

import argparse
import json
import os
import signal
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a chief that starts first waits for the others

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


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


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images (n, 64) in 0..1, held-out images, training labels, held-out labels."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split((images / 16).astype("float32"), labels, test_size=0.2, random_state=0, stratify=labels)


class Network(tf.Module):
    """64 pixels -> 128 hidden units -> 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        glorot = tf.keras.initializers.GlorotUniform(seed=0)
        self.w1, self.b1 = tf.Variable(glorot((64, 128))), tf.Variable(tf.zeros(128))
        self.w2, self.b2 = tf.Variable(glorot((128, 10))), tf.Variable(tf.zeros(10))

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(images @ self.w1 + self.b1) @ self.w2 + self.b2


def train(cluster: tf.train.ClusterSpec, options: argparse.Namespace) -> None:
    """The chief's part: hand out steps, and report every `report_every` of them."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():  # its variables are on the parameter servers
        network = Network()

    images, held_out_images, labels, held_out_labels = digits()

    def batches() -> tf.data.Dataset:  # made once in every worker
        data = tf.data.Dataset.from_tensor_slices((images, labels))
        return data.shuffle(len(images)).repeat().batch(options.batch_size).prefetch(2)

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        def update(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images))
                loss = tf.reduce_mean(losses)
            variables = network.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(options.learning_rate * gradient)
            return loss

        return strategy.run(update, args=next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    begin = time.monotonic()
    for done in range(0, options.steps, options.report_every):
        todo = min(options.report_every, options.steps - done)
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(todo)]
        coordinator.join()
        correct = tf.argmax(network(held_out_images), axis=1).numpy() == held_out_labels
        report = {
            "step": done + todo,
            "steps": options.steps,
            "loss": round(float(np.mean([loss.fetch() for loss in losses])), 4),
            "accuracy": round(float(np.mean(correct)), 4),
            "steps_per_second": round((done + todo) / (time.monotonic() - begin), 1),
        }
        print(json.dumps(report), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="batches to train in all, by all workers")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--report-every", type=int, default=100, metavar="STEPS")
    options = parser.parse_args()

    # The first process of a container gets no SIGTERM unless it asks for it: without this, a deleted pod stays for its
    # whole grace period. 143 tells the operator that the replica was ended and may be restarted.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    cluster, kind, index = cluster_of(json.loads(os.environ["TF_CONFIG"]))
    if kind == "chief":
        train(cluster, options)
    else:  # serves until the job is done and the operator ends it (cleanPodPolicy)
        server = tf.distribute.Server(cluster, job_name=kind, task_index=index)
        print(f"{kind} {index} serves at {server.target}", flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()

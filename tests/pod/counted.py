"""A training program that counts, in its model, how often it was trained on each example in each epoch.

The chief prints one JSON object at the end: `epochs`, a table for each epoch of how many examples were trained on how
often. It stands still, but answers its launcher, where it has read as many examples as the file `hold` says.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
os.environ["TF_USE_LEGACY_KERAS"] = "1"

from elastic_tfjob.runtime import ElasticCheckpoint, serve, serve_replica

serve_replica()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

CHUNK, PAUSE_S = 4, 0.05


class Counts:
    """How often each example was trained on, by epoch: a variable, on the parameter servers or in each worker."""

    def __init__(self, examples: int, epochs: int, *, on_servers: bool) -> None:
        self.examples, self.epochs, self.on_servers = examples, epochs, on_servers
        aggregation = tf.VariableAggregation.NONE if on_servers else tf.VariableAggregation.SUM
        zeros = tf.zeros([epochs * examples], tf.int32)
        self.variable = tf.Variable(zeros, aggregation=aggregation, trainable=False)

    def add(self, epochs: tf.Tensor, numbers: tf.Tensor) -> None:
        places = tf.cast(epochs * self.examples + numbers, tf.int32)
        if self.on_servers:
            self.variable.scatter_add(tf.IndexedSlices(tf.ones_like(places), places))
        else:
            size = self.epochs * self.examples
            self.variable.assign_add(tf.math.bincount(places, minlength=size, maxlength=size))

    def report(self, **more: Any) -> None:
        table = self.variable.numpy().reshape(self.epochs, self.examples)
        epochs = [dict(sorted(Counter(row.tolist()).items())) for row in table]
        sys.stdout.write("\n" + json.dumps({"epochs": epochs, **more}) + "\n")
        sys.stdout.flush()


class Held:
    """`elastic.step`, after which training stands still where it is told to: in all workers, as the chief says."""

    def __init__(self, elastic: ElasticCheckpoint, position: Any, file: Path) -> None:
        self.elastic, self.position, self.file = elastic, position, file
        self._step, elastic.step = elastic.step, self  # type: ignore[method-assign,assignment]

    def __call__(self, step: int, **more: Any) -> None:
        self._step(step, **more)
        while self._holds():
            time.sleep(0.02)
            self.elastic._next_agreement_step = 0  # all workers ask each other, at the same step
            self._step(step)

    def _holds(self) -> bool:
        if self.elastic.task.chief:
            self.file.with_suffix(".at").write_text(str(self.position()))
        holds = self.elastic.task.chief and self.position() >= int(self.file.read_text())
        barrier = self.elastic._start_barrier
        return bool(holds if barrier is None else barrier.sum(int(holds))[0])


def strategy_of(config: dict[str, Any]) -> Any:
    if "ps" not in config["cluster"]:
        return tf.distribute.MultiWorkerMirroredStrategy()
    cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
    if task["type"] != "chief":
        serve(cluster, task["type"], task["index"])
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0)
    return tf.distribute.ParameterServerStrategy(resolver)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["loop", "fit", "today"], required=True)
    parser.add_argument("--hold", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--batch", default="scaled")
    parser.add_argument("--order", default="shuffled")
    options = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    strategy = strategy_of(config)
    on_servers = "ps" in config["cluster"]
    with strategy.scope():
        counts = Counts(options.examples, options.epochs, on_servers=on_servers)
    elastic = ElasticCheckpoint(
        tf.train.Checkpoint(counts=counts.variable),
        every_s=3600.0,
        every_steps=10,
        batch_size=options.batch_size,
        batch=options.batch,
        strategy=strategy,
        total_steps=options.examples * options.epochs // options.batch_size if options.kind == "today" else None,
    )
    train = {"loop": loop, "fit": fit, "today": today}[options.kind]
    if elastic.task.chief:
        print(json.dumps({"begins": os.environ.get("ELASTIC_TFJOB_GENERATION")}), flush=True)
    more = train(elastic, strategy, counts, options)
    if elastic.task.chief:
        counts.report(total_steps=elastic.progress.total_steps, **more)
    os._exit(0)


def loop(elastic: Any, strategy: Any, counts: Counts, options: argparse.Namespace) -> dict[str, Any]:
    """A loop of its own that takes numbers."""
    data = elastic.data(options.examples, epochs=options.epochs, seed=1, order=options.order, block=64)
    Held(elastic, lambda: data.position, options.hold)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy) if counts.on_servers else None

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(epochs: tf.Tensor, numbers: tf.Tensor) -> None:
        if counts.on_servers:
            counts.add(epochs, numbers)
        else:
            strategy.run(counts.add, args=(epochs, numbers))

    def one() -> None:
        before, batch = data.position, elastic.examples_of_a_batch
        numbers = data.take(batch)
        # Of a worker's share of a batch.
        at = before + np.arange(data.position - before)[elastic.task.place :: elastic.parts_of_a_batch]
        arguments = (tf.constant(at // options.examples), tf.constant(numbers))
        if coordinator is None:
            step(*arguments)
        else:
            coordinator.schedule(step, args=arguments)

    def run(count: int) -> int:
        done = 0
        while data.left and done < count:
            one()
            done += 1
        if coordinator is not None:
            coordinator.join()
        return done

    at = elastic.resume(warm_up=lambda: run(CHUNK))
    while data.left:
        at += run(CHUNK if coordinator is not None else 1)
        elastic.step(at, examples=CHUNK)
        time.sleep(PAUSE_S)
    return {"position": data.position, "step": at}


def today(elastic: Any, strategy: Any, counts: Counts, options: argparse.Namespace) -> dict[str, Any]:
    """A loop of its own on datasets of the workers, as before there were positions."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def batches() -> tf.data.Dataset:
        return tf.data.Dataset.range(options.examples).shuffle(options.examples).repeat().batch(options.batch_size)

    @tf.function  # type: ignore[untyped-decorator]
    def step(epoch: tf.Tensor, iterator: Any) -> None:
        counts.add(epoch, next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    at, total = 0, elastic.progress.total_steps
    Held(elastic, lambda: at * options.batch_size, options.hold)

    def run(count: int) -> None:
        for k in range(at, at + count):
            epoch = tf.constant(k * options.batch_size // options.examples, tf.int64)
            coordinator.schedule(step, args=(epoch, iterator))
        coordinator.join()

    at = elastic.resume(warm_up=lambda: run(CHUNK))
    while at < total:
        run(CHUNK)
        at += CHUNK
        elastic.step(at, examples=CHUNK)
        time.sleep(PAUSE_S)
    return {"position": at * options.batch_size, "step": at}


def fit(elastic: Any, strategy: Any, counts: Counts, options: argparse.Namespace) -> dict[str, Any]:
    """`Model.fit`; its own number of the epoch counts."""
    with strategy.scope():
        epoch_now = tf.Variable(0, dtype=tf.int64, trainable=False)

        class Counting(tf.keras.Model):  # type: ignore[misc]
            def train_step(self, numbers: Any) -> dict[str, Any]:
                counts.add(epoch_now + tf.zeros_like(numbers), numbers)
                return {"loss": tf.constant(0.0)}

        model = Counting()
        model.compile()
    begun = []

    class Epochs(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            begun.append(epoch)
            epoch_now.assign(epoch)

    data = elastic.data(options.examples, epochs=options.epochs, seed=1, order=options.order, block=64)
    Held(elastic, lambda: data.position, options.hold)
    model.fit(
        data.dataset(lambda numbers: numbers),
        steps_per_epoch=data.steps_per_epoch,
        epochs=options.epochs,
        verbose=0,
        callbacks=[elastic.callback(), Epochs()],
    )
    return {"position": data.position, "begun": begun}


main()

"""A training program with variables of many kinds, which says their values whenever it begins."""

import argparse
import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from elastic_tfjob.runtime import ElasticCheckpoint, serve, serve_replica

if not os.environ.get("FULL_SERVER"):
    serve_replica()

import numpy as np
import tensorflow as tf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", action="store_true", help="also a hash table, which cannot be handed over")
    options = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    cluster = tf.train.ClusterSpec(config["cluster"])
    if config["task"]["type"] != "chief":
        serve(cluster, config["task"]["type"], config["task"]["index"])
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0)
    shards = tf.distribute.experimental.partitioners.MinSizePartitioner(1, max_shards=cluster.num_tasks("ps"))
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=shards)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    names = {"float32": (7, 3), "float64": (5,), "bfloat16": (6, 2), "float16": (), "int64": (), "bool": (9,)}
    root = tf.Module()
    root.single = tf.Variable(tf.ones((), tf.int32))  # on the chief
    with strategy.scope():
        root.all = {
            name: tf.Variable(
                lambda name=name, shape=shape: tf.cast(tf.zeros(shape), name), shape=shape, dtype=tf.as_dtype(name)
            )
            for name, shape in names.items()
        }
        root.table = tf.Variable(lambda: tf.zeros((40, 4)), shape=(40, 4), dtype=tf.float32)
    if options.table:
        root.words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    elastic = ElasticCheckpoint(tf.train.Checkpoint(root), every_s=2.0, keep=50)
    tables = getattr(root.table, "variables", [root.table])

    @tf.function  # type: ignore[untyped-decorator]
    def step(count: tf.Tensor) -> tf.Tensor:
        for name, variable in root.all.items():
            for part in getattr(variable, "variables", [variable]):
                seeds = tf.stack([count, tf.cast(tf.strings.to_hash_bucket_fast(name, 1000), tf.int64)])
                part.assign(tf.cast(tf.random.stateless_uniform(part.shape, seeds, minval=1.0, maxval=9.0), part.dtype))
        for table in tables:
            values = tf.ones((2, 4)) * tf.cast(count, tf.float32)
            table.scatter_add(tf.IndexedSlices(values, tf.constant([0, 3]) % table.shape[0]))
        return tf.cast(count, tf.float32)

    def one(count: int) -> float:
        result = coordinator.schedule(step, args=(tf.constant(count, tf.int64),))
        coordinator.join()
        root.single.assign(count)
        return float(result.fetch())

    def values() -> dict[str, Any]:
        whole = {**root.all, "table": root.table, "single": root.single}
        parts = {name: getattr(each, "variables", [each]) for name, each in whole.items()}
        read = {name: [np.asarray(each.numpy(), np.float64) for each in found] for name, found in parts.items()}
        return {name: np.concatenate([np.atleast_1d(each) for each in found]).tolist() for name, found in read.items()}

    at = elastic.resume(warm_up=lambda: one(0))
    print(json.dumps({"step": at, "values": values()}), flush=True)
    for k in range(at + 1, 1_000_000):
        loss = one(k)
        elastic.step(k, loss=loss, examples=1)
        time.sleep(0.2)


main()

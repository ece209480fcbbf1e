"""What TensorFlow would give to the training of `dl2`: the same network and update in numpy and in TensorFlow.

    python benchmarks/bench_dl2_tensorflow.py

One update is a gradient step (cross-entropy, Adam) on 256 decisions, one decision the scores of 30 sizes. Figures are
CPU time on one core. Evolution strategies, the default method, make no updates of this kind: they simulate workloads.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from elastic_tfjob.learning.actor_critic import Moments, adam
from elastic_tfjob.learning.episodes import draw, mean_jct_s, of_network
from elastic_tfjob.learning.training import UNITS, Examples, gradient
from elastic_tfjob.scheduling.profiles.dl2.network import JOB_FEATURES, SIZE_FEATURES, flat, greedy, of_flat

BATCH, RATE, TIMES, WORKLOADS = 256, 0.01, 2000, 20


def cpu_s(work: Callable[[], object], times: int) -> float:
    for _ in range(min(20, times)):
        work()
    begun = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begun) / times


def mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    rng, network = np.random.default_rng(0), greedy(UNITS, 0.3)
    sizes, jobs = (rng.normal(size=(BATCH, len(names))) for names in (SIZE_FEATURES, JOB_FEATURES))
    given = Examples(sizes, jobs, np.ones((BATCH, 3), dtype=np.bool_), rng.integers(0, 4, BATCH))
    some = rng.normal(size=(30, len(SIZE_FEATURES)))
    weights = flat(network)
    moments = Moments(np.zeros_like(weights), np.zeros_like(weights))

    def update() -> None:
        _, slope = gradient(of_flat(weights, UNITS), given)
        adam(weights, slope, moments, RATE)

    print(f"{len(weights)} weights")
    print(f"numpy: update {1e6 * cpu_s(update, TIMES):.0f} us", end="; ")
    print(f"decision {1e6 * cpu_s(lambda: network.of_sizes(some), TIMES):.0f} us")
    workloads = [draw("train", k) for k in range(WORKLOADS)]
    spent = cpu_s(lambda: [mean_jct_s(of_network(network, each), each) for each in workloads], 1) / WORKLOADS
    print(f"a simulated workload: {1e3 * spent:.0f} ms")

    begun, before = time.process_time(), mebibytes()
    import tensorflow as tf  # noqa: PLC0415  its import is measured

    print(f"TensorFlow: import {time.process_time() - begun:.1f} s, {mebibytes() - before:.0f} MiB", end="; ")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hidden, bias, output, output_bias, size_skip, job_skip = variables = [
        tf.Variable(array.astype(np.float32)) for array in network.arrays
    ]
    optimiser = tf.keras.optimizers.Adam(RATE)
    of_size, of_job, taken = (
        *(tf.constant(each, tf.float32) for each in (sizes, jobs)),
        tf.constant(given.taken),
    )

    def scores(of_size: Any) -> Any:
        return tf.tanh(of_size @ hidden + bias) @ output + output_bias + of_size @ size_skip

    def learn() -> None:
        with tf.GradientTape() as tape:
            found = tf.concat([scores(of_size) + of_job @ job_skip, tf.zeros((BATCH, 1))], 1)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(taken, found))
        optimiser.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    decide, its = tf.function(scores), tf.constant(some, tf.float32)
    print(f"update {1e6 * cpu_s(tf.function(learn), TIMES):.0f} us", end="; ")
    print(f"decision {1e6 * cpu_s(lambda: decide(its).numpy(), TIMES):.0f} us")


if __name__ == "__main__":
    main()

"""Decisions that all workers of a MultiWorkerMirroredStrategy take together."""

from __future__ import annotations

from typing import Any

__all__ = ["StartBarrier", "needs_barrier"]


class StartBarrier:
    """Sums over all workers of a MultiWorkerMirroredStrategy, from which each worker takes the same decision. Each call
    waits for all workers, and every worker must make the same calls in the same order."""

    def __init__(self, tf: Any, strategy: Any) -> None:
        self._tf, self._strategy = tf, strategy

        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def total(values: Any) -> Any:
            def reduce(values: Any) -> Any:
                here = tf.identity(values)  # an argument is on no device, and all_reduce needs a tensor on one
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

            return strategy.run(reduce, args=(values,))

        self._total = total

    def all(self, here: bool) -> bool:
        """Whether `here` is true in every worker. Raises what `sum` raises."""
        return not self.sum(int(not here))[0]

    def sum(self, *values: int) -> list[int]:
        """The sum of each value over all workers. Raises what TensorFlow raises when a worker is gone."""
        results = self._strategy.experimental_local_results(self._total(self._tf.constant(values, self._tf.int64)))
        # Every replica of a worker contributes the worker's value, so the sum has it once per replica.
        return [int(value) // len(results) for value in results[0].numpy()]


def needs_barrier(tf: Any, strategy: Any) -> bool:
    """Whether the strategy has other workers."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and strategy.num_replicas_in_sync > len(
        strategy.extended.worker_devices
    )

"""How the workers of a MultiWorkerMirroredStrategy decide alike: each learns the sum of what all say."""

from __future__ import annotations

from typing import Any


class Agreement:
    """Sums over all workers of a MultiWorkerMirroredStrategy, by which they decide alike. Every worker must call in the
    same order."""

    def __init__(self, tf: Any, strategy: Any) -> None:
        self._tf, self._strategy = tf, strategy

        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def total(values: Any) -> Any:
            def reduce(values: Any) -> Any:
                here = tf.identity(values)  # an argument is on no device, and only what is on one can be summed
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

            return strategy.run(reduce, args=(values,))

        self._total = total

    def all(self, here: bool) -> bool:
        """Whether it is so in every worker. Raises as `sum` does."""
        return not self.sum(int(not here))[0]

    def sum(self, *values: int) -> list[int]:
        """The sum of each value. Raises what TensorFlow raises when a worker is gone."""
        results = self._strategy.experimental_local_results(self._total(self._tf.constant(values, self._tf.int64)))
        # Every replica of a worker brings the worker's value, so a chief's own value comes back once per replica.
        return [int(value) // len(results) for value in results[0].numpy()]


def needed(tf: Any, strategy: Any) -> bool:
    """Whether there are other workers to agree with."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and strategy.num_replicas_in_sync > len(
        strategy.extended.worker_devices
    )

"""Datasets of workers that a program replaces while it trains."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["without_autotuning"]


@functools.cache  # a method is replaced once in a process
def without_autotuning() -> None:
    """From now on, the datasets that the program makes for its workers are not autotuned, unless their options say so.
    What a strategy distributes still is: its iterator has another one for each device, of which options say nothing.

    A worker that drops an iterator waits for its autotuning thread, and serves nothing meanwhile. TensorFlow wakes that
    thread while `CancellationManager::IsCancelled` is still false, so that it often sleeps on: for up to its period,
    which grows to 60 s (`model::Model::OptimizeLoop`, TensorFlow 2.15 to 2.21). Does nothing where a version lacks
    a name.
    """
    import tensorflow as tf  # noqa: PLC0415
    from tensorflow.python.distribute.coordinator import cluster_coordinator  # noqa: PLC0415

    coordinators = cluster_coordinator.ClusterCoordinator
    try:
        autograph, original = tf.__internal__.autograph, coordinators.create_per_worker_dataset
        options = tf.data.Options()
        options.autotune.enabled = False
    except AttributeError:
        return

    def plain(made: Any) -> Any:
        if not isinstance(made, tf.data.Dataset) or made.options().autotune.enabled is not None:
            return made
        return made.with_options(options)

    @functools.wraps(original)
    def create_per_worker_dataset(coordinator: Any, dataset_fn: Any) -> Any:
        if not callable(dataset_fn):
            return original(coordinator, plain(dataset_fn))
        if hasattr(dataset_fn, "get_concrete_function") or hasattr(dataset_fn, "structured_outputs"):
            return original(coordinator, dataset_fn)  # it is a graph already
        converted = autograph.tf_convert(dataset_fn, autograph.control_status_ctx())
        return original(coordinator, tf.autograph.experimental.do_not_convert(lambda: plain(converted())))

    coordinators.create_per_worker_dataset = create_per_worker_dataset

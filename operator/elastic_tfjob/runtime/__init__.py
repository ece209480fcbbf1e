"""The part of elastic-tfjob inside a training container: stdlib, TensorFlow and NumPy only, Python 3.9 and later.

Training programs use `ElasticCheckpoint`. The launcher, the first process of the container, must not import TensorFlow,
so the names below are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_tfjob.runtime.elastic import ElasticCheckpoint, batch_size_per_worker
    from elastic_tfjob.runtime.light_server import serve_replica
    from elastic_tfjob.runtime.serving import serve
    from elastic_tfjob.runtime.tfrecords import TFRecords

__all__ = ["ElasticCheckpoint", "TFRecords", "batch_size_per_worker", "serve", "serve_replica"]


def __getattr__(name: str) -> Any:
    if name in ("ElasticCheckpoint", "batch_size_per_worker"):
        from elastic_tfjob.runtime import elastic  # noqa: PLC0415

        return getattr(elastic, name)
    if name == "serve":
        from elastic_tfjob.runtime.serving import serve  # noqa: PLC0415

        return serve
    if name == "serve_replica":
        from elastic_tfjob.runtime.light_server import serve_replica  # noqa: PLC0415

        return serve_replica
    if name == "TFRecords":
        from elastic_tfjob.runtime.tfrecords import TFRecords  # noqa: PLC0415

        return TFRecords
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

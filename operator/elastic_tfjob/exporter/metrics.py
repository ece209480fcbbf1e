"""Progress as Prometheus metrics, read from the files at every scrape."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from elastic_tfjob.exporter.status import UntrustedFields, read

__all__ = ["ProgressCollector", "page"]

_PREFIX = "elastic_tfjob"


class ProgressCollector(Collector):
    """The metrics of one pod. Unknown values are left out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        launcher, progress = read(self._directory)
        cgroup, saved = launcher.within("cgroup"), progress.within("checkpoint")
        yield from _counter("steps", "Training steps done in this pod.", progress.number("steps"))
        yield from _counter("examples", "Examples trained on in this pod.", progress.number("examples"))
        yield from _gauge(
            "step", "Steps done in all, including those of restored checkpoints.", progress.number("step")
        )
        yield from _gauge("target_steps", "Steps after which training ends.", progress.number("total_steps"))
        yield from _gauge("loss", "The last reported loss.", progress.measured("loss"))
        yield from _histogram(
            "step_seconds", "Duration of a training step in seconds.", progress.within("step_seconds")
        )
        yield from _histogram(
            "rescale_downtime_seconds",
            "Seconds from the last step before a switch or restart to the first step after it.",
            progress.within("downtimes"),
        )
        handed_over = progress.within("hand_overs")
        if handed_over:
            family = CounterMetricFamily(
                f"{_PREFIX}_hand_overs",
                "Switches whose values went through memory, by whether a checkpoint of them became durable.",
                labels=["durable"],
            )
            for label, name in (("true", "durable"), ("false", "failed")):
                family.add_metric([label], handed_over.number(name) or 0)
            yield family
            yield from _gauge(
                "hand_over_pending",
                "1 from such a switch until its checkpoint is durable: a crash goes back to the one before.",
                handed_over.number("pending"),
            )
        generation = launcher.number("generation") if launcher else progress.number("generation")
        yield from _gauge("generation", "The running generation: the number of times the job was rescaled.", generation)
        at = saved.number("at")
        age = None if at is None else max(time.time() - at, 0.0)
        yield from _gauge("checkpoint_age_seconds", "Seconds since the newest complete checkpoint.", age)
        yield from _gauge("checkpoint_size_bytes", "Size of the newest checkpoint in bytes.", saved.number("bytes"))
        yield from _gauge(
            "checkpoint_duration_seconds", "Seconds that saving the newest checkpoint took.", saved.number("seconds")
        )
        if progress:
            failing = float(bool(progress.text("save_error")))
            yield from _gauge("checkpoint_failing", "1 while the last checkpoint could not be saved.", failing)
        yield from _counter(
            "container_cpu_seconds", "CPU seconds used by the training container.", cgroup.number("usage_s")
        )
        yield from _counter(
            "container_cpu_throttled_seconds",
            "Seconds for which the training container was throttled by its CPU limit.",
            cgroup.number("throttled_s"),
        )
        yield from _gauge(
            "container_memory_bytes", "Bytes of memory in use by the training container.", cgroup.number("used_bytes")
        )
        yield from _gauge(
            "container_memory_held_bytes",
            "Bytes of memory that the kernel cannot take back from the training container.",
            cgroup.number("held_bytes"),
        )
        yield from _gauge(
            "container_memory_limit_bytes", "The training container's memory limit.", cgroup.number("limit_bytes")
        )
        yield from _counter(
            "container_memory_kills",
            "Processes of the training container that the kernel has killed for memory.",
            cgroup.number("kills"),
        )


def page(directory: Path) -> tuple[str, bytes]:
    """Content type and text of the metrics, from the files in `directory`."""
    registry = CollectorRegistry()
    registry.register(ProgressCollector(directory))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


def _counter(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _histogram(name: str, text: str, raw: UntrustedFields) -> Iterator[Metric]:
    bounds, counts, total = raw.numbers("bounds"), raw.numbers("counts"), raw.number("sum")
    if total is None or len(counts) != len(bounds) + 1:
        return
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    buckets = list(zip(names, accumulate(counts), strict=True))
    yield HistogramMetricFamily(f"{_PREFIX}_{name}", text, buckets=buckets, sum_value=total)

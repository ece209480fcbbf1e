"""The speed model `elasticflow`: iterations per second by number of accelerators, measured by ElasticFlow's authors
(ASPLOS'23)."""

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from elastic_tfjob.scheduling.snapshot import WORKER, Placement
from elastic_tfjob.simulation.speed_models.base import TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob

Rates = Mapping[int, float]
"""Iterations per second by number of accelerators."""


@cache
def tables() -> dict[tuple[str, str, int], dict[int, float]]:
    """The measured rates by (accelerator type, model, global batch size)."""
    result: dict[tuple[str, str, int], dict[int, float]] = {}
    source = files("elastic_tfjob.simulation") / "data" / "elasticflow_throughputs.csv.gz"
    with source.open("rb") as packed, gzip.open(packed, "rt") as lines:
        for row in csv.DictReader(lines):
            key = (row["gpu_type"], row["model"], int(row["global_batch_size"]))
            result.setdefault(key, {})[int(row["gpus"])] = float(row["iters_per_s"])
    return result


@dataclass(frozen=True, slots=True)
class TabledTrueSpeed:
    """A step is an iteration at the fixed global batch size. Accelerators beyond a measured number are idle. A job with
    too many accelerators is as slow as it was measured with that number.
    """

    total_steps: float
    rates: Rates

    def rate(self, placement: Placement) -> float:
        return rate_with(self.rates, len(placement.get(WORKER, ())))

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        return self.rates.get(counts.get(WORKER, 0))


@dataclass(frozen=True, slots=True)
class ElasticFlowSpeedModel:
    """The speed model. `accelerator` None: each job uses the first type, A100 before T4, whose table has its model and
    batch size."""

    accelerator: str | None = None
    name: str = "elasticflow"
    contended: bool = False

    def true_speed(self, job: WorkloadJob) -> TrueSpeed:
        types = [self.accelerator] if self.accelerator else ["A100", "T4"]
        for type_ in types:
            rates = tables().get((type_, job.model, job.batch_size))
            if rates is not None:
                break
        else:
            known = sorted(f"{m} at {b} on {t}" for t, m, b in tables() if t in types)
            raise ValueError(
                f"job {job.key}: no measured speed of {job.model!r} at batch size {job.batch_size}; allowed: "
                f"{', '.join(known)}"
            )
        positive = {n: rate for n, rate in rates.items() if rate > 0}
        if job.total_steps is not None:
            return TabledTrueSpeed(job.total_steps, positive)
        if job.duration_s is None:
            raise ValueError(f"job {job.key}: the speed model elasticflow needs iterations or a duration")
        held = sum(group.count for group in job.groups if group.type == WORKER)
        return TabledTrueSpeed(job.duration_s * rate_with(positive, max(held, 1)), positive)


def rate_with(rates: Rates, held: int) -> float:
    """The rate at the largest measured number of accelerators that is not above `held`; 0 below the smallest."""
    return rates.get(max((n for n in rates if n <= held), default=0), 0.0)

"""The speed model `pollux`: six applications on 16 x 4 T4 GPUs, profiled by Pollux' authors (Qiao et al., OSDI'21).

Every job trains at its requested batch size. Its work is the number of steps through all epochs at that size: the sum
over epochs of progress divided by the statistical gain measured in the epoch. Its speed is one divided by the step time
measured for its placement, including gradient accumulation.

With `pollux-tuned` every job instead trains each epoch at the batch size that makes most progress per second in its
placement, as if the trainer tuned it (Pollux' agents do), under every profile alike. Its speed in a placement is the
mean over all epochs, in steps at the requested batch size.
"""

import csv
import gzip
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files

import numpy as np

from elastic_tfjob.scheduling.snapshot import WORKER, Placement
from elastic_tfjob.simulation.speed_models.base import SpeedModel, TrueSpeed
from elastic_tfjob.simulation.workload import WorkloadJob

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MAX_LOCAL_BATCH = {"yolov3": 8}
GPUS_PER_NODE = 4
MAX_NODES = 16
CEIL = 1e-8
"""Subtracted before rounding up, so that 4.000000001 becomes 4."""

Times = tuple[float, float]
"""(step time, synchronisation time) in seconds."""


@dataclass(slots=True)
class Application:
    """The measurements of one application. `validation`: (progress, grad_sqr, grad_var) per epoch, by batch size."""

    name: str
    validation: dict[int, list[tuple[float, float, float]]]
    by_placement: dict[tuple[int, ...], list[tuple[float, float, float]]]
    points: list[tuple[int, int, float, float, float]]
    max_epochs: int
    min_local: float
    max_local: float
    _interpolator: object = None
    _memo: dict[tuple[tuple[int, ...], float], Times] = field(default_factory=dict)

    _seconds: dict[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def init_batch(self) -> int:
        return min(self.validation)

    @property
    def max_batch(self) -> int:
        return max(self.validation)

    def step_times(self, placement: tuple[int, ...], local_batch: float) -> Times:
        """The step times at this placement (replicas per node, in any rotation), interpolated linearly between local
        batch sizes. For a placement that was not measured, they are interpolated linearly between all points (nodes,
        replicas, local batch size)."""
        shape = min(placement[i:] + placement[:i] for i in range(len(placement)))
        key = (shape, local_batch)
        if key not in self._memo:
            rows = self.by_placement.get(shape)
            self._memo[key] = between(rows, local_batch) if rows else self._scattered(shape, local_batch)
        return self._memo[key]

    def _scattered(self, shape: tuple[int, ...], local_batch: float) -> Times:
        if self._interpolator is None:
            try:
                from scipy.interpolate import LinearNDInterpolator  # noqa: PLC0415
            except ImportError as e:
                raise RuntimeError("the speed model pollux needs SciPy: pip install 'elastic-tfjob[simulation]'") from e
            points = np.array(self.points)
            self._interpolator = LinearNDInterpolator(points[:, :3], points[:, 3:])
        nodes = min(len(shape), MAX_NODES)
        step, sync = self._interpolator((nodes, sum(shape), local_batch))  # type: ignore[operator]
        if math.isnan(step):
            raise ValueError(f"{self.name}: no measurement around placement {shape} at local batch size {local_batch}")
        return float(step), float(sync)

    def progress_after(self, epoch: int) -> float:
        return 0.0 if epoch == 0 else min(rows[epoch - 1][0] for rows in self.validation.values())

    def gain(self, batch: float, epoch: int) -> float:
        """Progress per step relative to the smallest batch size: statistical efficiency times scale."""
        sizes = sorted(self.validation)
        upper = sizes[min(bisect_left(sizes, batch), len(sizes) - 1)]
        lower = max((size for size in sizes if size <= batch), default=sizes[0])
        (_, sqr0, var0), (_, sqr1, var1) = self.validation[lower][epoch], self.validation[upper][epoch]
        if lower != upper:
            share = (batch - lower) / (upper - lower)
            sqr0, var0 = sqr0 + share * (sqr1 - sqr0), var0 + share * (var1 - var0)
        return (var0 + sqr0) / (var0 * self.init_batch / batch + sqr0)

    def steps(self, batch: float) -> float:
        """The number of steps through all epochs at this batch size."""
        return sum(
            (self.progress_after(epoch + 1) - self.progress_after(epoch)) / self.gain(batch, epoch)
            for epoch in range(self.max_epochs)
        )

    def tuned_seconds(self, placement: tuple[int, ...]) -> float:
        """The seconds through all epochs at this placement, each at the batch size with the most progress per
        second."""
        if placement not in self._seconds:
            epochs = range(self.max_epochs)
            progress = np.diff([self.progress_after(epoch) for epoch in (*epochs, self.max_epochs)])
            per_s = [
                np.array([self.gain(batch, epoch) for epoch in epochs]) / seconds
                for batch, seconds in self.batches(placement)
            ]
            self._seconds[placement] = float((progress / np.max(per_s, axis=0)).sum())
        return self._seconds[placement]

    def batches(self, placement: tuple[int, ...]) -> Iterator[tuple[int, float]]:
        """Batch sizes that are possible at this placement, with the seconds that a step takes: multiples of the
        measured local batch sizes, from the smallest batch size that was measured to the largest."""
        replicas = sum(placement)
        smallest = max(math.ceil(self.min_local), math.ceil(self.init_batch / replicas))
        measured = {int(local) for rows in self.by_placement.values() for local, _, _ in rows}
        for local in sorted({smallest, *(local for local in measured if smallest <= local <= self.max_local)}):
            for passes in range(1, self.max_batch // (replicas * local) + 1):
                batch = replicas * local * passes
                # With one replica, the gradient noise is measured between the passes of a step.
                if replicas == 1 and passes == 1 and batch > self.init_batch:
                    continue
                step, sync = self.step_times(placement, local)
                yield batch, step + (step - sync) * (passes - 1)


def between(rows: list[tuple[float, float, float]], x: float) -> Times:
    """Linear interpolation in sorted rows (x, step, sync). Raises ValueError outside the measured range."""
    k = bisect_left(rows, (x,))
    if k < len(rows) and rows[k][0] == x:
        return rows[k][1], rows[k][2]
    if k in (0, len(rows)):
        raise ValueError(f"local batch size {x} is outside the measured {rows[0][0]:g} to {rows[-1][0]:g}")
    (x0, step0, sync0), (x1, step1, sync1) = rows[k - 1], rows[k]
    share = (x - x0) / (x1 - x0)
    return step0 + share * (step1 - step0), sync0 + share * (sync1 - sync0)


@cache
def application(name: str) -> Application:
    by_placement: dict[tuple[int, ...], list[tuple[float, float, float]]] = {}
    grouped: dict[tuple[int, int, float], list[Times]] = {}
    for row in _rows(f"pollux_{name}_placements.csv.gz"):
        shape = tuple(int(digit) for digit in row["placement"])
        local, step, sync = float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"])
        by_placement.setdefault(shape, []).append((local, step, sync))
        grouped.setdefault((len(shape), sum(shape), local), []).append((step, sync))
    points = [
        (nodes, replicas, local, sum(t[0] for t in times) / len(times), sum(t[1] for t in times) / len(times))
        for (nodes, replicas, local), times in sorted(grouped.items())
    ]
    points += [
        (
            int(r["num_nodes"]),
            int(r["num_replicas"]),
            float(r["local_bsz"]),
            float(r["step_time"]),
            float(r["sync_time"]),
        )
        for r in _rows(f"pollux_{name}_scalability.csv.gz")
    ]
    validation: dict[int, list[tuple[float, float, float]]] = {}
    for row in _rows(f"pollux_{name}_validation.csv.gz"):
        epoch = (float(row["progress"]), float(row["grad_sqr"]), float(row["grad_var"]))
        validation.setdefault(int(row["batch_size"]), []).append(epoch)
    locals_ = [row[0] for rows in by_placement.values() for row in rows]
    for rows in by_placement.values():
        rows.sort()
    return Application(
        name,
        validation,
        by_placement,
        points,
        EPOCHS[name],
        min(locals_),
        MAX_LOCAL_BATCH.get(name, max(locals_)),
    )


def _rows(file: str) -> list[dict[str, str]]:
    with (files("elastic_tfjob.simulation") / "data" / file).open("rb") as packed, gzip.open(packed, "rt") as lines:
        return list(csv.DictReader(lines))


@dataclass(slots=True)
class PolluxTrueSpeed:
    """The true speed of one job. `batch` is the target batch size, at which steps are counted. `tuned`: it trains at
    the best batch size instead."""

    app: Application
    batch: int
    total_steps: float
    tuned: bool = False
    _rates: dict[tuple[int, ...], float] = field(default_factory=dict)

    def rate(self, placement: Placement) -> float:
        per_node: dict[str, int] = {}
        for name in placement.get(WORKER, ()):
            per_node[name] = per_node.get(name, 0) + 1
        return self._rate(tuple(per_node.values())) if per_node else 0.0

    def steps_per_s(self, counts: Mapping[str, int]) -> float | None:
        workers = counts.get(WORKER, 0)
        if not 0 < workers <= self.largest:
            return None
        full, rest = divmod(workers, GPUS_PER_NODE)
        return self._rate((GPUS_PER_NODE,) * full + ((rest,) if rest else ()))

    @property
    def largest(self) -> int:
        """The largest number of replicas with a measured local batch size. ncf runs on one GPU only, as in Pollux'
        runs."""
        batch = self.app.max_batch if self.tuned else self.batch
        return 1 if self.app.name == "ncf" else int(batch // self.app.min_local)

    def _rate(self, shape: tuple[int, ...]) -> float:
        if self.tuned:
            return self.total_steps / self.app.tuned_seconds(shape)
        if shape not in self._rates:
            replicas = sum(shape)
            atomic, accumulated = self.local_batch(replicas)
            step, sync = self.app.step_times(shape, atomic)
            used = replicas * atomic * (accumulated + 1)
            work = self.total_steps / self.app.steps(used) if used != self.batch else 1.0
            self._rates[shape] = work / (step + (step - sync) * accumulated)
        return self._rates[shape]

    def local_batch(self, replicas: int) -> tuple[int, int]:
        """(samples per replica and pass, passes accumulated before a step) with `replicas` replicas."""
        local = math.ceil(self.batch / replicas - CEIL)
        accumulated = math.ceil(local / self.app.max_local - CEIL) - 1
        if replicas == 1 and self.batch > self.app.init_batch:
            accumulated = max(1, accumulated)
        atomic = math.ceil(local / (accumulated + 1) - CEIL)
        return min(atomic, int(self.app.max_batch / (replicas * (accumulated + 1)))), accumulated


def pollux_speed(job: WorkloadJob, *, tuned: bool = False) -> TrueSpeed:
    if job.model not in APPLICATIONS:
        raise ValueError(
            f"job {job.key}: the speed model pollux does not know application {job.model!r}; allowed: "
            f"{', '.join(APPLICATIONS)}"
        )
    app = application(job.model)
    if not app.init_batch <= job.batch_size <= app.max_batch:
        raise ValueError(
            f"job {job.key}: {job.model} was measured at batch sizes "
            f"{app.init_batch} to {app.max_batch}, not {job.batch_size}"
        )
    return PolluxTrueSpeed(app, job.batch_size, app.steps(job.batch_size), tuned)


POLLUX = SpeedModel("pollux", pollux_speed)
POLLUX_TUNED = SpeedModel("pollux-tuned", partial(pollux_speed, tuned=True))

"""The setting of Aryl (arXiv 2202.07896, Lyra in EuroSys'23) from public traces: jobs, two pools, and what is drawn.

Its own trace is private: 15 days of 50,000 jobs on 443 training servers of 8 accelerators, beside 520 inference servers
that run half as fast. Here jobs of the ITP clusters (Microsoft, MIT licence) are pooled and sampled, their arrivals
folded onto 15 days, their durations capped at 5 days and scaled until the work is `load` of what the training servers
can do in that time. `scale` takes a part of all that. Jobs of Philly (Microsoft, 2017, CC-BY-4.0) can take the place of
those of ITP.
"""

import csv
import gzip
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import WORKER, ReplicaGroup, fixed_group
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.scenario import DAY_S, InferencePool
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = [
    "CLUSTERS",
    "COSTS",
    "DAYS",
    "PHILLY",
    "SERVER",
    "TRACES",
    "Row",
    "Setting",
    "Trace",
    "elastic_part",
    "inference",
    "read_philly",
    "read_rows",
    "servers",
    "workload",
]

Trace = Literal["itp", "philly"]
TRACES: Final[tuple[Trace, ...]] = ("itp", "philly")
PHILLY: Final = "philly/philly_jobs_until_oct31.csv.gz"
CLUSTERS: Final = ("01", "02", "03", "04", "05", "06", "07", "09", "10")
DAYS, LONGEST_S, JOBS = 15, 5 * DAY_S, 50_000
TRAINING, INFERENCE = 443, 520
SERVER: Final = Resources(accelerators=8)
ELASTIC, FUNGIBLE = 0.05, 0.21
COSTS: Final = Costs(restart_s=((float("inf"), 63.0),), rescale_s=1.0)
"""A preemption costs what Aryl's did; a rescale what ours does."""
SMALLEST_ELASTIC = 8
"""Accelerators. Elastic jobs are large ones: a twentieth of all jobs with about a third of the work. Where fewer
jobs are that large, as in Philly, all of them are, unless `Setting.elastic_work` says that it is too much work."""
EACH = 2
"""Accelerators of one worker of an elastic job; rigid jobs have one worker on each server."""

Row = tuple[float, float, int]
"""Submission and duration in seconds, accelerators."""


@dataclass(frozen=True, slots=True)
class Setting:
    scale: float = 1 / 8
    load: float = 0.8
    fungible: float = FUNGIBLE
    clusters: tuple[str, ...] = CLUSTERS
    """Of ITP; Philly is one trace."""
    trace: Trace = "itp"
    elastic_work: float = 1.0
    """About as much of the work is in elastic jobs at most."""


def read_rows(traces: Path, clusters: Sequence[str] = CLUSTERS) -> list[Row]:
    rows: list[Row] = []
    for cluster in clusters:
        rows += _read(traces / "itp" / f"itp_cluster{cluster}.csv.gz")
    return rows


def read_philly(traces: Path) -> list[Row]:
    """Submissions before 1 October 2017, the zero of the trace, are negative."""
    return list(_read(traces / PHILLY))


def _read(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            yield float(row["submit_s"]), float(row["duration_s"]), int(row["num_gpus"])


def servers(scale: float) -> int:
    return round(TRAINING * scale)


def inference(scale: float) -> InferencePool:
    return InferencePool(round(INFERENCE * scale), SERVER, accelerator_speed=0.5)


def workload(rows: Sequence[Row], setting: Setting, seed: int) -> list[WorkloadJob]:
    """The jobs of one seed. Those that no server count of this scale could run are left out of the draw."""
    rng = random.Random(f"aryl-{seed}")
    capacity = servers(setting.scale) * SERVER.accelerators
    fitting = [row for row in rows if 2 * row[2] <= capacity]
    wanted = round(JOBS * setting.scale)
    drawn = rng.sample(fitting, wanted) if wanted <= len(fitting) else rng.choices(fitting, k=wanted)
    durations = _scaled([(duration, gpus) for _, duration, gpus in drawn], setting.load * capacity * DAYS * DAY_S)
    # Of the durations as they are in the trace, so that the same jobs are elastic at each load.
    work = [gpus * min(LONGEST_S, duration) for _, duration, gpus in drawn]
    large = [seconds for (_, _, gpus), seconds in zip(drawn, work, strict=True) if gpus >= SMALLEST_ELASTIC]
    share = min(1.0, ELASTIC * wanted / len(large), setting.elastic_work * sum(work) / sum(large)) if large else 0.0
    jobs = []
    for k, ((submit, _, gpus), duration) in enumerate(zip(drawn, durations, strict=True)):
        elastic = gpus >= SMALLEST_ELASTIC and rng.random() < share
        loanable = rng.random() < setting.fungible
        jobs.append(
            WorkloadJob(f"job-{k:05}", submit % (DAYS * DAY_S), (_group(gpus, elastic),), duration, loanable=loanable)
        )
    return jobs


def elastic_part(jobs: Sequence[WorkloadJob]) -> tuple[float, float]:
    """Of all jobs, and of the work, the part that is elastic."""
    work = [(job.duration_s or 0.0) * sum(g.count * g.request.accelerators for g in job.groups) for job in jobs]
    elastic = [any(group.maximum > group.count for group in job.groups) for job in jobs]
    return sum(elastic) / len(jobs), sum(w for w, e in zip(work, elastic, strict=True) if e) / sum(work)


def _group(gpus: int, elastic: bool) -> ReplicaGroup:
    if elastic:
        n = gpus // EACH
        return ReplicaGroup(WORKER, Resources(accelerators=EACH), n, n, 2 * n)
    on = -(-gpus // SERVER.accelerators)
    return fixed_group(WORKER, Resources(accelerators=gpus // on), on)


def _scaled(work: Sequence[tuple[float, int]], wanted: float) -> list[float]:
    """Durations times one factor, none above the longest, so that the work is this many accelerator-seconds."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        total = sum(min(LONGEST_S, max(1.0, duration * middle)) * gpus for duration, gpus in work)
        low, high = (middle, high) if total < wanted else (low, middle)
    return [min(LONGEST_S, max(1.0, duration * high)) for duration, _ in work]

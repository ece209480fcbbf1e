"""Windows of public traces, drawn by seed: consecutive jobs of one trace, on a cluster between ample and scarce."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from bounds import Work, measured_rates, with_deadlines
from elastic_tfjob.simulation.formats import made_elastic, read_csv
from elastic_tfjob.simulation.speed_models.elasticflow import rate_with, tables
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = ["ACCELERATOR", "NODE", "SOURCES", "Window", "drawn", "work"]

ACCELERATOR: Final = "A100"
ITP: Final = tuple(f"itp/itp_cluster{n:02}.csv.gz" for n in (1, 2, 3, 4, 5, 6, 7, 9, 10))
SOURCES: Final[Mapping[str, Sequence[str]]] = {
    "ITP": ITP,
    "Philly": ("philly/philly_jobs_until_oct31.csv.gz",),
    "Chronus": ("philly_deadline/chronus_philly_slo.csv.gz", "philly_deadline/chronus_philly_mix1.csv.gz"),
}
"""The traces of each window of a seed. Helios has no jobs, only the number of accelerators in use."""
JOBS: Final = (100, 250)
LOAD: Final = (0.5, 2.0)
"""What jobs need to meet their deadlines, relative to what the cluster has from the first submission to the last
deadline."""
DEADLINE: Final = (0.5, 1.5)
"""Seconds from submission to deadline, relative to the duration: ElasticFlow's rule, which is also that of ITP."""
NODE: Final = 4
"""Accelerators of a node."""


@dataclass(frozen=True)
class Window:
    """Jobs of a trace that are submitted one after the other, and the nodes of the cluster."""

    source: str
    seed: int
    trace: str
    load: float
    nodes: int
    jobs: tuple[WorkloadJob, ...]

    @property
    def name(self) -> str:
        return f"{self.source} {self.seed}"

    @property
    def accelerators(self) -> int:
        return self.nodes * NODE


@cache
def _jobs(path: Path) -> tuple[WorkloadJob, ...]:
    return tuple(sorted(read_csv(path, skip_bad=True)[0].jobs, key=lambda job: (job.submit_s, job.key)))


def drawn(traces: Path, seed: int, source: str) -> Window:
    """The window of a seed and a source. Jobs without a model of ElasticFlow's tables get one at random, with the steps
    that take as long as the job did; jobs without any deadline in their trace get one by ElasticFlow's rule."""
    draw = random.Random(f"{source} {seed}")
    trace = draw.choice(SOURCES[source])
    jobs = _jobs(traces / trace)
    count = min(draw.randint(*JOBS), len(jobs))
    first = draw.randint(0, len(jobs) - count)
    timed = any(job.deadline_s is not None for job in jobs)
    chosen = [_completed(job, draw, timed) for job in jobs[first : first + count]]
    load = draw.uniform(*LOAD)
    begin, end = chosen[0].submit_s, max(job.deadline_s or job.submit_s for job in chosen)
    needed = sum(_area(each) for each in work(chosen))
    nodes = max(1, round(needed / (end - begin) / load / NODE))
    return Window(source, seed, trace, load, nodes, tuple(chosen))


def _completed(job: WorkloadJob, draw: random.Random, timed: bool) -> WorkloadJob:
    rates, known = tables(), sorted(key for key in tables() if key[0] == ACCELERATOR)
    held = sum(group.count * group.request.accelerators for group in job.groups)
    if (ACCELERATOR, job.model, job.batch_size) not in rates:
        # The models that scale, as in ITP.
        _, model, batch = draw.choice(
            [key for key in known if rate_with(measured_rates(key), 32) == measured_rates(key).get(32)]
        )
        steps = (job.duration_s or 0.0) * rate_with(measured_rates((ACCELERATOR, model, batch)), held)
        job = replace(job, model=model, batch_size=batch, total_steps=max(1.0, steps))
    if not timed:
        job = replace(job, deadline_s=job.submit_s + draw.uniform(*DEADLINE) * (job.duration_s or 0.0))
    return made_elastic(job)


def work(jobs: Sequence[WorkloadJob]) -> list[Work]:
    """The jobs with deadlines, for the bounds."""
    return with_deadlines(jobs, ACCELERATOR)


def _area(job: Work) -> float:
    """Accelerator-seconds at the smallest size that meets the deadline; 0 if none does."""
    for n, rate in sorted(job.rates.items()):
        if job.steps <= rate * (job.by_s - job.from_s):
            return n * job.steps / rate
    return 0.0

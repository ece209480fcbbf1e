"""How many deadlines anybody could meet: an upper bound for each input of bench_deadline_simulation (make bounds).

    python benchmarks/bounds.py [--traces DIR] [--only WORD] [--json FILE]

A linear program over jobs, intervals of time and sizes, solved by HiGHS (SciPy). It knows all jobs in advance, may give
a job a part of an accelerator and change its size at no cost at any moment, and may accept a part of a job; the sum of
the accepted parts, rounded down, is the bound: no schedule meets more, and perhaps none meets as many. Intervals end
where jobs come and where deadlines are; of more than MOST_INTERVALS, neighbours are joined, which can only raise the
bound. tests/benchmarks/test_bounds.py compares it with all schedules of tiny inputs.

Where a case has pauses, one of them is charged to each job: a job makes no step before it has once stood still for the
whole pause, and meanwhile it holds at least its least size. So this is a bound still. The pauses of later changes are
left out, and the one that is charged may lie anywhere between its arrival and its deadline.
"""

import argparse
import json
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, inf
from pathlib import Path

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array

from elastic_tfjob.simulation.speed_models.elasticflow import tables
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = ["Work", "hull", "measured_rates", "most_met", "with_deadlines"]

REPOSITORY = Path(__file__).resolve().parents[1]
OUTPUT = REPOSITORY / "build/bench/bounds.json"
MOST_INTERVALS = 160
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Work:
    """A job: from when to when (seconds), its steps, and steps per second by accelerators. It stands still for
    `pause_s` before its first step."""

    from_s: float
    by_s: float
    steps: float
    rates: Mapping[int, float]
    pause_s: float = 0.0


def with_deadlines(jobs: Iterable[WorkloadJob], accelerator: str, pause_s: float = 0.0) -> list[Work]:
    """The jobs with deadlines, with the speeds that ElasticFlow measured on this accelerator."""
    return [
        Work(
            job.submit_s,
            job.deadline_s,
            job.total_steps or 0.0,
            measured_rates((accelerator, job.model, job.batch_size)),
            pause_s,
        )
        for job in jobs
        if job.deadline_s is not None
    ]


def measured_rates(key: tuple[str, str, int]) -> dict[int, float]:
    """Iterations per second by number of accelerators, where above 0. `key`: accelerator, model, batch size."""
    return {n: rate for n, rate in tables()[key].items() if rate > 0}


def hull(rates: Mapping[int, float]) -> list[tuple[int, float]]:
    """The corners of the least concave function that is not below these speeds, and is 0 at 0; without that corner. A
    job that goes back and forth between two sizes has any speed between them."""
    corners: list[tuple[int, float]] = [(0, 0.0)]
    for size, rate in sorted(rates.items()):
        if rate <= corners[-1][1]:
            continue
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-1], (size, rate)):
            corners.pop()
        corners.append((size, rate))
    return corners[1:]


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def most_met(
    jobs: Sequence[Work], accelerators: int, most_intervals: int = MOST_INTERVALS, whole_s: float = 0.0
) -> int:
    """No schedule on so many accelerators has more of these jobs done in time. With `whole_s`, no job is accepted in
    part, and the solver searches for so many seconds; its bound is valid even if it has not finished then. Raises
    RuntimeError where the solver fails."""
    easy, hard = [], []
    for job in jobs:
        corners = hull({n: rate for n, rate in job.rates.items() if n <= accelerators})
        if job.steps <= 0:
            easy.append(job)
        elif corners and job.steps <= corners[-1][1] * (job.by_s - job.from_s - job.pause_s) * (1 + 1e-9):
            hard.append((job, corners))
    if not hard:
        return len(easy)
    edges = _edges([job for job, _ in hard], most_intervals)
    value = _solve(hard, edges, accelerators, whole_s)
    return len(easy) + min(len(hard), floor(value + _TOLERANCE * len(hard)))


def _edges(jobs: Sequence[Work], most: int) -> list[float]:
    times = sorted({at for job in jobs for at in (job.from_s, job.by_s)})
    if len(times) <= most + 1:
        return times
    chosen = np.unique(np.linspace(0, len(times) - 1, most + 1).round().astype(int))
    return [times[k] for k in chosen]


def _solve(
    jobs: Sequence[tuple[Work, Sequence[tuple[int, float]]]],
    edges: Sequence[float],
    accelerators: int,
    whole_s: float,
) -> float:
    """Columns: the accepted part of each job, then seconds of each job, interval and corner of its speed; where it has
    a pause, also seconds of that. Rows: what a job does covers its accepted part, and so does its pause; it is not in
    two sizes at once, or in one and its pause; an interval's accelerators are enough."""
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    limits: list[float] = []

    def row(entries: Iterator[tuple[int, float]], limit: float) -> None:
        for column, value in entries:
            rows.append(len(limits))
            columns.append(column)
            values.append(value)
        limits.append(limit)

    column = len(jobs)
    used: list[list[tuple[int, float]]] = [[] for _ in edges]
    for k, (job, corners) in enumerate(jobs):
        done: list[tuple[int, float]] = []
        paused: list[tuple[int, float]] = []
        least = min(job.rates)
        first = max(0, bisect_right(edges, job.from_s) - 1)
        for t, (begin, end) in enumerate(pairwise(edges[first:]), first):
            lasts = min(end, job.by_s) - max(begin, job.from_s)
            if begin >= job.by_s:
                break
            if lasts <= 0:
                continue
            own = range(column, column + len(corners) + (job.pause_s > 0))
            column += len(own)
            # Of a job that is accepted in part, the same part of the time: else it would be slower than it is.
            row(iter([*((c, 1.0) for c in own), (k, -lasts)]), 0.0)
            for c, (n, rate) in zip(own, corners, strict=False):
                done.append((c, -rate / job.steps))
                used[t].append((c, float(n)))
            if job.pause_s > 0:
                paused.append((own[-1], -1.0 / job.pause_s))
                used[t].append((own[-1], float(least)))
        row(iter([(k, 1.0), *done]), 0.0)
        if job.pause_s > 0:
            row(iter([(k, 1.0), *paused]), 0.0)
    for t, (begin, end) in enumerate(pairwise(edges)):
        if used[t]:
            row(iter(used[t]), accelerators * (end - begin))
    matrix = coo_array((values, (rows, columns)), shape=(len(limits), column)).tocsr()
    goal = np.zeros(column)
    goal[: len(jobs)] = -1.0
    bounds = np.zeros((column, 2))
    bounds[:, 1] = inf
    bounds[: len(jobs), 1] = 1.0
    if whole_s:
        whole = np.zeros(column)
        whole[: len(jobs)] = 1
        rules = LinearConstraint(matrix, -np.inf, np.array(limits))
        chosen = milp(
            goal,
            integrality=whole,
            bounds=Bounds(bounds[:, 0], bounds[:, 1]),
            constraints=rules,
            options={"time_limit": whole_s},
        )
        if chosen.mip_dual_bound is not None:
            return -float(chosen.mip_dual_bound)
    found = linprog(goal, A_ub=matrix, b_ub=np.array(limits), bounds=bounds, method="highs")
    if found.x is None:
        raise RuntimeError(f"no bound: {found.message}")
    return -float(found.fun)


def main() -> int:
    from anchors import traces_dir  # noqa: PLC0415
    from bench_deadline_simulation import CASES, read_jobs  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--json", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    traces = traces_dir(arguments.traces)
    known: dict[str, dict[str, float]] = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    chosen = [case for case in CASES if not arguments.only or arguments.only in case.name]
    for case in {case.key: case for case in chosen if not case.noise.speed}.values():
        if not (traces / case.file).exists():
            continue
        begun = time.monotonic()
        jobs = read_jobs(traces / case.file)
        work = with_deadlines(jobs, case.accelerator, case.pause_s)
        met = most_met(work, case.nodes * case.gpus)
        known[case.key] = {"met": met, "jobs": len(work), "bound": 100 * met / len(work)}
        took = time.monotonic() - begun
        print(f"{case.key}: at most {met} of {len(work)}, {100 * met / len(work):.1f} % ({took:.0f} s)", flush=True)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(known, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

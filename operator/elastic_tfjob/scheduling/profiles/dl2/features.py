"""The network's inputs: features of a job's sizes, cached until its speed changes, and features of the jobs of a
round."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log10
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.scheduling.profiles.dl2.network import ACTIONS, JOB_FEATURES, Floats
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, JobSpec, ReplicaGroup
from elastic_tfjob.scheduling.steps.hull import NOTICEABLE, bounds, relative_to
from elastic_tfjob.speed.model import counts_between, known_sizes

__all__ = ["Grid", "Known", "ends", "grid_of", "job_features", "known_of", "slots_left"]

LEAST_GAIN: Final = 1e-4
"""The minimum gain in a logarithm; smaller gains count as this value."""
FURTHEST: Final = 3.0
"""The maximum absolute value of a feature."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The sizes of jobs with equal replica groups, sorted by PSs and then by workers; the first is the minimum.
    `demand`: the resources of each size."""

    ps: tuple[int, ...]
    workers: tuple[int, ...]
    sizes: tuple[Counts, ...]
    demand: tuple[Resources, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The knowledge about a job: its grid, and its steps per second with `one` PS and one worker. For each size: the
    features (None: the job's speed is unknown), the actions that `may` be taken there, the size that the job gets
    `for_it`, and its relative speed then."""

    grid: Grid
    one: float = 0.0
    features: Floats | None = None
    may: NDArray[np.bool_] | None = None
    for_it: tuple[int, ...] = ()
    speeds: tuple[float, ...] = ()


def grid_of(spec: JobSpec) -> Grid:
    return _grid(spec.groups)


@lru_cache(maxsize=256)
def _grid(groups: tuple[ReplicaGroup, ...]) -> Grid:
    spec = JobSpec("", 0.0, groups)
    ps, workers = (counts_between(*bounds(spec, type_)) for type_ in (PS, WORKER))
    sizes = []
    for p in ps:
        for w in workers:
            size = dict(spec.minimum)
            size.update({type_: n for type_, n in ((PS, p), (WORKER, w)) if spec.group(type_) is not None})
            sizes.append(size)
    return Grid(tuple(ps), tuple(workers), tuple(sizes), tuple(map(spec.demand, sizes)))


def _within(grid: Grid) -> NDArray[np.bool_]:
    """For each size (row) the sizes that hold no more of any resource. The array is not cached, as it has 5 MB for a
    job of 2,000 replicas."""
    held = np.array(grid.demand, dtype=np.int64)
    within = np.ones((len(held), len(held)), dtype=np.bool_)
    for of_all in held.T:
        within &= of_all[None, :] <= of_all[:, None]
    return within


def known_of(job: Job, total: Resources) -> Known:
    """The knowledge about this job in a cluster with these totals."""
    spec, speed = job.spec, job.speed
    grid = grid_of(spec)
    start = speed.steps_per_s(spec.minimum) if speed is not None and spec.elastic else None
    if speed is None or not start:
        return Known(grid)
    one = relative_to(job, start)
    known = known_sizes(speed, bounds(spec, PS), bounds(spec, WORKER))
    rates = np.zeros((len(grid.ps), len(grid.workers)))
    rows, columns = np.searchsorted(grid.ps, known.ps), np.searchsorted(grid.workers, known.workers)
    on = (np.array(grid.ps)[rows] == known.ps) & (np.array(grid.workers)[columns] == known.workers)
    rates[rows[on], columns[on]] = known.steps_per_s[on] / one
    rates[0, 0] = start / one
    shares = tuple(
        group.request.dominant_share(total) if (group := spec.group(type_)) is not None else 0.0
        for type_ in (WORKER, PS)
    )
    return Known(grid, one, *_of_sizes(spec.groups, rates.tobytes(), shares))


@lru_cache(maxsize=256)
def _of_sizes(
    groups: tuple[ReplicaGroup, ...], told: bytes, shares: tuple[float, ...]
) -> tuple[Floats, NDArray[np.bool_], tuple[int, ...], tuple[float, ...]]:
    """For each size the features, the allowed actions, and the size that the job gets for it, which is the fastest one
    that holds no more of any resource, with its relative speed. `told`: relative speeds, 0 if unknown. Jobs with equal
    speeds share the result."""
    grid = _grid(groups)
    p, w = np.array(grid.ps, dtype=np.float64), np.array(grid.workers, dtype=np.float64)
    known = np.frombuffer(told)
    for_it = np.where(_within(grid), known[None, :], 0.0).argmax(axis=1)
    replicas = (p[:, None] + w[None, :]).ravel()[for_it].reshape(len(p), len(w))
    root = np.sqrt(known[for_it]).reshape(len(p), len(w))
    best = best_gains(root, replicas, p, w)
    top = best.max(axis=0)
    logs = np.log10(np.maximum(best, LEAST_GAIN)) + 2.0
    log_top = np.log10(np.maximum(top, LEAST_GAIN)) + 2.0
    at_once = next_gains(root, p, w)
    log_p, log_w = np.log(np.maximum(p, 1.0)), np.log(np.maximum(w, 1.0))
    whole = np.ones_like(root)
    features = np.stack(
        [
            log_top,
            *(logs - log_top),
            top,
            *at_once,
            log_w[None, :] * whole,
            log_p[:, None] * whole,
            log_p[:, None] * log_w[None, :],
            root,
            *((np.log10(max(share, LEAST_GAIN)) + 2.0) * whole for share in shares),
        ],
        axis=-1,
    ).reshape(root.size, -1)
    # Actions that lead to no faster size are not allowed.
    may = (best.reshape(len(ACTIONS), -1) > NOTICEABLE).T
    return np.clip(features, -FURTHEST, FURTHEST), may, tuple(for_it.tolist()), tuple(known[for_it].tolist())


def best_gains(root: Floats, replicas: Floats, p: Floats, w: Floats) -> Floats:
    """By action (first axis) and size (PSs, workers): the best gain in `root` per replica over all sizes at or beyond
    the size that the action leads to; -inf if there is none. `replicas`: the number of replicas for each size."""
    cost = replicas[None, None] - replicas[:, :, None, None]
    gain = (root[None, None] - root[:, :, None, None]) / np.where(cost > 0, cost, np.inf)
    as_many, more = p[None, :] >= p[:, None], p[None, :] > p[:, None]
    as_wide, wider = w[None, :] >= w[:, None], w[None, :] > w[:, None]
    columns = [
        np.where(up[:, None, :, None] & across[None, :, None, :], gain, -np.inf).max(axis=(2, 3))
        for up, across in ((as_many, wider), (more, as_wide), (more, wider))
    ]
    return np.stack(columns)


def next_gains(root: Floats, p: Floats, w: Floats) -> Floats:
    """By action and size: the gain per replica of the next size; 0 if there is none."""
    gains = np.zeros((len(ACTIONS), *root.shape))
    gains[0, :, :-1] = np.diff(root, axis=1) / np.diff(w)
    gains[1, :-1, :] = np.diff(root, axis=0) / np.diff(p)[:, None]
    gains[2, :-1, :-1] = (root[1:, 1:] - root[:-1, :-1]) / (np.diff(p)[:, None] + np.diff(w)[None, :])
    return gains


def job_features(jobs: Sequence[Job], known: Sequence[Known], total: Resources, now: float) -> Floats:
    """The job features (n x JOB_FEATURES) of all jobs that a round decides on. `ends`, which changes with the size, is
    0."""
    if not jobs:
        return np.zeros((0, len(JOB_FEATURES)))
    done = np.array([job.steps_at(now) for job in jobs])
    whole = np.array([job.spec.total_steps or 0.0 for job in jobs])
    one = np.array([job.one for job in known])
    age = np.array([now - job.spec.arrival_s for job in jobs])
    unknown = (whole <= 0) | (one <= 0)
    seconds = np.divide(whole - done, one, out=np.ones(len(jobs)), where=~unknown)
    left = np.where(unknown, 0.0, np.log10(np.maximum(seconds, 1.0)) - 4.0)
    told = left[~unknown]
    mean = told.mean() if len(told) else 0.0
    # Python integers, not an array: the total request of many waiting jobs may exceed 64 bits.
    least = Resources(*map(sum, zip(*(job.grid.demand[0] for job in known), strict=True)))
    crowd = np.log10(max(least.dominant_share(total), LEAST_GAIN))
    features = np.stack(
        [
            left,
            np.where(unknown, 0.0, left - mean),
            unknown.astype(np.float64),
            np.divide(done, whole, out=np.zeros(len(jobs)), where=whole > 0),
            np.log10(np.maximum(age, 1.0)) - 4.0,
            np.full(len(jobs), crowd),
            crowd * left,
            np.zeros(len(jobs)),
        ],
        axis=-1,
    )
    clipped: Floats = np.clip(features, -FURTHEST, FURTHEST)
    return clipped


def slots_left(jobs: Sequence[Job], known: Sequence[Known], slot_s: float, now: float) -> list[float]:
    """The slots that each job still takes with one PS and one worker; infinite if that is unknown, or there are no
    slots."""
    if not slot_s:
        return [inf] * len(jobs)
    return [
        max(0.0, job.spec.total_steps - job.steps_at(now)) / (each.one * slot_s)
        if job.spec.total_steps and each.one > 0
        else inf
        for job, each in zip(jobs, known, strict=True)
    ]


def ends(left: float, speed: float) -> float:
    """The feature of this name for a job with so many slots left, at a size of this relative speed."""
    return 0.0 if left >= speed else max(log10(left / speed), -FURTHEST) if left > 0 else -FURTHEST

"""From scores to sizes: one action after the other, the highest score first, until none is above 0 or fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from elastic_tfjob.scheduling.profiles.dl2.features import Known, job_features, known_of
from elastic_tfjob.scheduling.profiles.dl2.network import ACTIONS, Network
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job
from elastic_tfjob.scheduling.toolkit.apply_sizes import apply_rows, candidates
from elastic_tfjob.scheduling.toolkit.open_jobs import OpenJobs

__all__ = ["LearnedSizes", "Scored", "give"]

NEVER: Final = float("-inf")
Scores = tuple[float, float, float]
"""Of one more worker, one more PS, both."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """What is known of a job, and for each of its sizes that part of the scores which stays as long as its speed does:
    below every number where an action is not allowed. None: it stays at its minimum."""

    known: Known
    scores: Sequence[Scores] | None

    @property
    def sizes(self) -> Sequence[Counts]:
        return self.known.grid.sizes


@dataclass(frozen=True, slots=True)
class LearnedSizes:
    """DL2's loop (Peng et al., arXiv 1909.06040, section 4.1): each round hands out anew what its jobs share. Every job
    first gets its minimum in the profile's order; then the network's best action of all jobs is taken, and that job
    scored at its new size, until no action has a score above 0 (which stands for DL2's void action) or fits. An action
    that does not fit is out, and another one of that job may be taken. For the size that its actions lead to a job gets
    the fastest one that holds no more of anything: what lies on the way to a better size may be slower than less.
    """

    network: Network

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenJobs[Scored], self.sizes_of, self)
        known = [job.known for job in jobs.known]
        moment = self.network.of_jobs(job_features(jobs.jobs, known, round_.room.total, round_.now))
        apply_rows(round_, jobs, give(jobs.known, moment.tolist(), free), Reason("learned"))

    def sizes_of(self, job: Job, total: Resources) -> Scored:
        known = known_of(job, total)
        if known.features is None or known.may is None:
            return Scored(known, None)
        scores = np.where(known.may, self.network.of_sizes(known.features), NEVER)
        return Scored(known, list(map(tuple, scores.tolist())))


def give(jobs: Sequence[Scored], moment: Sequence[Sequence[float]], free: Resources) -> list[int]:
    """Which size each job gets of those that are known of it: 1 for the first, 0 for nothing. `moment`: what is added
    to a job's scores."""
    rows, at, left = [0] * len(jobs), [0] * len(jobs), free
    for k, job in enumerate(jobs):
        if job.known.grid.demand[0].within(left):
            left, rows[k] = left.minus(job.known.grid.demand[0]), 1
    heap = [first for k, job in enumerate(jobs) if rows[k] and (first := best(job, 0, moment[k], k, left))]
    heapify(heap)
    while heap:
        _, k, action = heappop(heap)
        job = jobs[k]
        then = after(job.known, at[k], action)
        more = demand(job.known, at[k], then)
        if more.within(left):
            left, at[k], rows[k] = left.minus(more), then, job.known.for_it[then] + 1
        if following := best(job, at[k], moment[k], k, left):
            heappush(heap, following)
    return rows


def after(known: Known, at: int, action: int) -> int:
    """The size that an action leads to from the size `at`, where it is allowed."""
    return at + (action != 1) + (action != 0) * len(known.grid.workers)


def demand(known: Known, at: int, then: int) -> Resources:
    """What a job holds more for one size than for another; less of something where it exchanges replicas."""
    held = known.grid.demand
    return held[known.for_it[then]].minus(held[known.for_it[at]])


def best(job: Scored, at: int, moment: Sequence[float], k: int, left: Resources) -> tuple[float, int, int] | None:
    """Minus the score, the job and the action that is best of those which fit; None where none is above 0."""
    if job.scores is None:
        return None
    scores = job.scores[at]
    for score, action in sorted((-(scores[action] + moment[action]), action) for action in range(len(ACTIONS))):
        if score >= 0:
            break
        if demand(job.known, at, after(job.known, at, action)).within(left):
            return score, k, action
    return None

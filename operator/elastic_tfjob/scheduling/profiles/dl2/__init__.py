"""DL2: sizes by a learned policy, one small network for all jobs, which is trained in simulation (`train-policy`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
from pydantic import Field

from elastic_tfjob.scheduling.core import Seconds, Stages, TryingParameters, needs
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.places import PlaceName
from elastic_tfjob.scheduling.profile import Step
from elastic_tfjob.scheduling.profiles.dl2.features import Known, job_features, known_of
from elastic_tfjob.scheduling.profiles.dl2.network import Network, read
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job
from elastic_tfjob.scheduling.steps.hull import HullRule, TrySizes
from elastic_tfjob.scheduling.steps.open_jobs import OpenJobs, usable_total
from elastic_tfjob.scheduling.steps.sizes import apply_rows, candidates

__all__ = ["Dl2Parameters", "FromFile", "LearnedSizes", "Scored", "give"]


# -- From scores to sizes ----------------------------------------------------------------------------------------------
# One action after the other, the highest score first, until none is above 0 or fits.

NEVER: Final = float("-inf")
Scores = tuple[float, float, float]
"""For one more worker, one more PS, or both."""


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
        moment = self.network.of_jobs(job_features(jobs.jobs, known, usable_total(round_), round_.now))
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
    rows, left = minima(jobs, free)
    at = [0] * len(jobs)
    heap = [first for k, job in enumerate(jobs) if rows[k] and (first := best(job, 0, moment[k], k, left))]
    heapify(heap)
    while heap:
        _, k, then = heappop(heap)
        job = jobs[k]
        held, for_it = job.known.grid.demand, job.known.for_it
        had, has = held[for_it[at[k]]], held[for_it[then]]
        if fits(had, has, left):
            left, at[k], rows[k] = exchanged(had, has, left), then, for_it[then] + 1
        if following := best(job, at[k], moment[k], k, left):
            heappush(heap, following)
    return rows


def minima(jobs: Sequence[Scored], free: Resources) -> tuple[list[int], Resources]:
    """Every job its minimum (row 1) as long as that fits, else nothing (0); and what is left."""
    rows, left = [0] * len(jobs), free
    for k, job in enumerate(jobs):
        if job.known.grid.demand[0].within(left):
            left, rows[k] = left.minus(job.known.grid.demand[0]), 1
    return rows, left


def best(job: Scored, at: int, moment: Sequence[float], k: int, left: Resources) -> tuple[float, int, int] | None:
    """Minus the score, the job and the size that it leads to, of the best action from the size `at` that fits; None
    where none is above 0."""
    if job.scores is None:
        return None
    known = job.known
    held, for_it, wide = known.grid.demand, known.for_it, len(known.grid.workers)
    had = held[for_it[at]]
    found, most = -1, 0.0
    # One by one, as a round of many jobs is hardly anything else. What is not allowed leads nowhere, and has a score
    # below every number.
    worker, ps, both = job.scores[at]
    if (score := worker + moment[0]) > most and fits(had, held[for_it[at + 1]], left):
        found, most = at + 1, score
    if (score := ps + moment[1]) > most and fits(had, held[for_it[at + wide]], left):
        found, most = at + wide, score
    if (score := both + moment[2]) > most and fits(had, held[for_it[at + wide + 1]], left):
        found, most = at + wide + 1, score
    return None if found < 0 else (-most, k, found)


def fits(had: Resources, has: Resources, left: Resources) -> bool:
    """Whether what is left has what somebody holds more than before; less of something where it exchanges replicas."""
    return (
        has[0] - had[0] <= left[0]
        and has[1] - had[1] <= left[1]
        and has[2] - had[2] <= left[2]
        and has[3] - had[3] <= left[3]
        and has[4] - had[4] <= left[4]
    )


def exchanged(had: Resources, has: Resources, left: Resources) -> Resources:
    """What is left once somebody has that for this."""
    return Resources(
        left[0] + had[0] - has[0],
        left[1] + had[1] - has[1],
        left[2] + had[2] - has[2],
        left[3] + had[3] - has[3],
        left[4] + had[4] - has[4],
    )


# -- The step of a profile whose weights are in a file -----------------------------------------------------------------


class FromFile:
    """`LearnedSizes` with the network in this file (empty: the one that is shipped), or `HullRule` where there is none.
    It is read by `read`, or else by the first round."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._step: Step | None = None

    def later(self) -> None:
        """No round reads the file: until `read` has, it decides as `HullRule`."""
        self._step = HullRule(instead_of=f"{self._path} is still being read")

    def read(self) -> None:
        """Read the file, whatever was known of it."""
        network = read(self._path)
        self._step = HullRule(instead_of=network) if isinstance(network, str) else LearnedSizes(network)

    def __call__(self, round_: Round) -> None:
        if self._step is None:
            self.read()
        assert self._step is not None
        self._step(round_)


SLOT_S = 300.0
"""DL2's testbed had slots of this length."""


class Dl2Parameters(TryingParameters):
    """DL2: sizes by a learned policy; as `hull` where its weights cannot be used."""

    place: PlaceName = Field("even", description="which nodes replicas go to; count looks at totals only")
    interval_s: Seconds = Field(
        SLOT_S, gt=0, description="length of a slot: sizes are decided again at least this often"
    )
    cooldown_s: Seconds = Field(
        SLOT_S, description="least time between two rescales of one job; starts and repairs do not wait for it"
    )
    weights: str = Field("", max_length=4096, description="a .npz file of train-policy; empty: the one that is shipped")

    @property
    def files(self) -> tuple[str, ...]:
        return (self.weights,) if self.weights else ()

    def stages(self) -> Stages:
        return Stages(Fifo(), (FromFile(self.weights), TrySizes(self.try_sizes)), needs("speed", "stop"), drifts=True)

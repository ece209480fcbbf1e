"""dl2: job sizes chosen by a learned policy, one small network for all jobs, trained in simulation (`train-policy`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, NamedTuple

import numpy as np
from pydantic import Field

from elastic_tfjob.scheduling.core import Seconds, Stages, TryingParameters, needs
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.places import PlaceName
from elastic_tfjob.scheduling.profile import Step
from elastic_tfjob.scheduling.profiles.dl2.features import Known, ends, job_features, known_of, slots_left
from elastic_tfjob.scheduling.profiles.dl2.network import ENDS, Network, read
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Counts, Job
from elastic_tfjob.scheduling.steps.hull import HullRule, TrySizes
from elastic_tfjob.scheduling.steps.open_jobs import OpenJobs, usable_total
from elastic_tfjob.scheduling.steps.sizes import apply_rows, candidates

__all__ = ["Dl2Parameters", "FromFile", "LearnedSizes", "Moment", "Scored", "give"]


# -- From scores to sizes ----------------------------------------------------------------------------------------------
# Actions are taken one at a time, the highest score first, until no action has a score above 0 or none fits.

NEVER: Final = float("-inf")
Scores = tuple[float, float, float]
"""The scores of the three actions: one more worker, one more PS, or both."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The knowledge about a job, and for each of its sizes the part of the scores that changes only with its speed
    (minus infinity for actions that are not allowed). None: the job stays at its minimum."""

    known: Known
    scores: Sequence[Scores] | None

    @property
    def sizes(self) -> Sequence[Counts]:
        return self.known.grid.sizes


class Moment(NamedTuple):
    """The part of a job's scores that depends on the job and the round, the slots that it still takes with one PS and
    one worker, and the network's weights of the feature `ends`."""

    scores: Sequence[float]
    left: float = inf
    ends: Scores = (0.0, 0.0, 0.0)

    def at(self, speed: float) -> Sequence[float]:
        """The part of the scores at a size of this relative speed."""
        if self.left >= speed:
            return self.scores
        late = ends(self.left, speed)
        return [score + weight * late for score, weight in zip(self.scores, self.ends, strict=True)]


@dataclass(frozen=True, slots=True)
class LearnedSizes:
    """DL2's loop (Peng et al., arXiv 1909.06040, section 4.1). Each round redistributes the resources shared by its
    jobs. First every job gets its minimum, in the profile's order. Then the best action over all jobs is taken and its
    job is scored at the new size, until no action has a score above 0 (which stands for DL2's void action) or none
    fits. If an action does not fit, another action of the job may be taken. In the end a job gets the fastest size that
    holds no more of any resource than the size reached, because a size on the path to a better one may be slower than a
    smaller size.
    """

    network: Network

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenJobs[Scored], self.sizes_of, self)
        known = [job.known for job in jobs.known]
        moment = self.network.of_jobs(job_features(jobs.jobs, known, usable_total(round_), round_.now))
        left = slots_left(jobs.jobs, known, round_.rules.slot_s, round_.now)
        moments = [Moment(scores, slots, self._ends) for scores, slots in zip(moment.tolist(), left, strict=True)]
        apply_rows(round_, jobs, give(jobs.known, moments, free), Reason("learned"))

    @property
    def _ends(self) -> Scores:
        worker, ps, both = self.network.job_skip[ENDS].tolist()
        return worker, ps, both

    def sizes_of(self, job: Job, total: Resources) -> Scored:
        known = known_of(job, total)
        if known.features is None or known.may is None:
            return Scored(known, None)
        scores = np.where(known.may, self.network.of_sizes(known.features), NEVER)
        return Scored(known, list(map(tuple, scores.tolist())))


def give(jobs: Sequence[Scored], moment: Sequence[Moment], free: Resources) -> list[int]:
    """The size of each job as an index into its known sizes: 1 for the first, 0 for nothing. `moment`: the part of the
    scores that is added to the sizes' part."""
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
    """Gives every job its minimum (row 1) if it fits, else nothing (0). Also returns the remaining resources."""
    rows, left = [0] * len(jobs), free
    for k, job in enumerate(jobs):
        if job.known.grid.demand[0].within(left):
            left, rows[k] = left.minus(job.known.grid.demand[0]), 1
    return rows, left


def best(job: Scored, at: int, moment: Moment, k: int, left: Resources) -> tuple[float, int, int] | None:
    """The best action from the size `at` that fits, as (minus its score, job, resulting size); None if no score is
    above 0."""
    if job.scores is None:
        return None
    known = job.known
    held, for_it, wide = known.grid.demand, known.for_it, len(known.grid.workers)
    had = held[for_it[at]]
    found, most = -1, 0.0
    # The three actions are written out, as a round of many jobs spends most of its time here. Actions that are not
    # allowed have a score of minus infinity.
    worker, ps, both = job.scores[at]
    more = moment.at(known.speeds[at])
    if (score := worker + more[0]) > most and fits(had, held[for_it[at + 1]], left):
        found, most = at + 1, score
    if (score := ps + more[1]) > most and fits(had, held[for_it[at + wide]], left):
        found, most = at + wide, score
    if (score := both + more[2]) > most and fits(had, held[for_it[at + wide + 1]], left):
        found, most = at + wide + 1, score
    return None if found < 0 else (-most, k, found)


def fits(had: Resources, has: Resources, left: Resources) -> bool:
    """Whether the remaining resources cover the change from `had` to `has`, which may also release some resources."""
    return (
        has[0] - had[0] <= left[0]
        and has[1] - had[1] <= left[1]
        and has[2] - had[2] <= left[2]
        and has[3] - had[3] <= left[3]
        and has[4] - had[4] <= left[4]
    )


def exchanged(had: Resources, has: Resources, left: Resources) -> Resources:
    """The remaining resources after the change from `had` to `has`."""
    return Resources(
        left[0] + had[0] - has[0],
        left[1] + had[1] - has[1],
        left[2] + had[2] - has[2],
        left[3] + had[3] - has[3],
        left[4] + had[4] - has[4],
    )


# -- The scheduling step with weights from a file ----------------------------------------------------------------------


class FromFile:
    """`LearnedSizes` with the network in this file (empty: the shipped network), or `HullRule` if it has no usable
    network. The file is read by `read`, or else by the first round."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._step: Step | None = None

    def later(self) -> None:
        """Do not read the file in a round. Until `read` is called, the step decides like `HullRule`."""
        self._step = HullRule(instead_of=f"{self._path} is still being read")

    def read(self) -> None:
        """Read the file, even if it was read before."""
        network = read(self._path)
        self._step = HullRule(instead_of=network) if isinstance(network, str) else LearnedSizes(network)

    def __call__(self, round_: Round) -> None:
        if self._step is None:
            self.read()
        assert self._step is not None
        self._step(round_)


SLOT_S = 60.0
"""Shorter than the 300 s of DL2's testbed: a worker joins or leaves within 0.1 s, and speeds are known sooner."""


class Dl2Parameters(TryingParameters):
    """DL2: sizes by a learned policy; as `hull` if its weights cannot be used."""

    place: PlaceName = Field("even", description="rule that places replicas on nodes; count: totals only")
    interval_s: Seconds = Field(SLOT_S, gt=0, description="seconds of a slot: most time between two decisions of sizes")
    cooldown_s: Seconds = Field(
        SLOT_S, description="least seconds between two resizes of one job; starts and repairs do not wait for it"
    )
    weights: str = Field("", max_length=4096, description="a .npz file of train-policy; empty: the shipped one")

    @property
    def files(self) -> tuple[str, ...]:
        return (self.weights,) if self.weights else ()

    def stages(self) -> Stages:
        steps = (FromFile(self.weights), TrySizes(self.try_sizes, self.try_part))
        return Stages(Fifo(), steps, needs("speed", "stop"), drifts=True)

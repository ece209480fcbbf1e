"""A run of a policy that draws its actions by their chance, and what came of them: the actor-critic learns from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.learning.episodes import Episode, mean_jct_s, of_profile
from elastic_tfjob.learning.gradients import chances
from elastic_tfjob.scheduling.profiles.dl2.allocate import NEVER, LearnedSizes, Scored, minima
from elastic_tfjob.scheduling.profiles.dl2.features import job_features
from elastic_tfjob.scheduling.profiles.dl2.network import ACTIONS, Floats, Network
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.toolkit.apply_sizes import apply_rows, candidates
from elastic_tfjob.scheduling.toolkit.open_jobs import OpenJobs
from elastic_tfjob.scheduling.toolkit.outside import usable_total

__all__ = ["Decision", "Explorer", "Seen", "Slot", "explore"]

POOR_RATIO: Final = 10
"""A job with so many times more of one replica type than of the other is in a poor state (DL2, section 4.3)."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A state: of n jobs the features of the size that each has so far in this slot, and of the job."""

    sizes: Floats
    jobs: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """In this state, which actions (n x 3) were possible, which was taken (job by job; 3 n: stop), and its chance."""

    seen: Seen
    may: NDArray[np.bool_]
    taken: int
    chance: float


@dataclass(slots=True, eq=False)
class Slot:
    """The decisions of one round, the state that it began with, and the `reward`: the sum over jobs of the part of
    their steps that was done until the next round (DL2, equation 1)."""

    opening: Seen
    decisions: list[Decision]
    reward: float = 0.0


@dataclass(slots=True)
class Explorer:
    """A profile's step. In a poor state the scarce replica is added with the chance `explore`, whatever the policy
    says (DL2's job-aware exploration)."""

    network: Network
    rng: np.random.Generator
    explore: float
    slots: list[Slot] = field(default_factory=list)
    _policy: LearnedSizes = field(init=False)
    _done: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._policy = LearnedSizes(self.network)

    def __call__(self, round_: Round) -> None:
        jobs, free = candidates(round_, OpenJobs[Scored], self._policy.sizes_of, self._policy)
        now = round_.now
        self.reward(
            {
                key: min(job.steps_at(now) / job.spec.total_steps, 1.0) if job.spec.total_steps else 0.0
                for key, job in round_.snapshot.jobs.items()
            }
        )
        features = job_features(jobs.jobs, [job.known for job in jobs.known], usable_total(round_), now)
        apply_rows(round_, jobs, self._give(jobs.known, features, free), Reason("learned"))

    def reward(self, done: dict[str, float]) -> None:
        """Which part of each job is done by now; a job that is not there any more is done."""
        if self.slots:
            self.slots[-1].reward = sum(done.get(key, 1.0) - before for key, before in self._done.items())
        self._done = done

    def _give(self, jobs: Sequence[Scored], features: Floats, free: Resources) -> list[int]:
        """As `allocate.give`, but by chance."""
        rows, left = minima(jobs, free)
        open_ = [k for k, job in enumerate(jobs) if rows[k] and job.scores is not None]
        choices = Choices(self.network, [jobs[k] for k in open_], features[open_], left)
        slot = Slot(choices.seen(), [])
        while (may := choices.may()).any():
            chances = choices.chances(may)
            taken = int(self.rng.choice(len(chances), p=chances))
            chance = float(chances[taken])
            if (scarce := choices.scarce(may)) is not None:
                taken = scarce if self.rng.random() < self.explore else taken
                chance = (1 - self.explore) * float(chances[taken]) + self.explore * (taken == scarce)
            slot.decisions.append(Decision(choices.seen(), may, taken, chance))
            if taken == may.size:
                break
            choices.take(*divmod(taken, len(ACTIONS)))
        self.slots.append(slot)
        for k, job, at in zip(open_, choices.jobs, choices.at, strict=True):
            rows[k] = job.known.for_it[at] + 1
        return rows


class Choices:
    """What can be done next, as actions are taken. `at`: the size of each job that its actions led to."""

    def __init__(self, network: Network, jobs: Sequence[Scored], features: Floats, left: Resources) -> None:
        self.jobs, self.at = jobs, [0] * len(jobs)
        self._features, self._moment = features, network.of_jobs(features)
        self._left = np.array(left, dtype=np.float64)
        n = len(jobs)
        self._sizes = np.zeros((n, network.hidden.shape[0]))
        self._scores = np.full((n, len(ACTIONS)), NEVER)
        self._more = np.zeros((n, len(ACTIONS), len(self._left)))
        for k in range(n):
            self._look(k)

    def _look(self, k: int) -> None:
        """At what this job may do from where it is."""
        known, at = self.jobs[k].known, self.at[k]
        scores = self.jobs[k].scores
        assert known.features is not None
        assert scores is not None
        self._sizes[k] = known.features[at]
        self._scores[k] = np.array(scores[at]) + self._moment[k]
        had = np.array(known.grid.demand[known.for_it[at]], dtype=np.float64)
        for action in range(len(ACTIONS)):
            if self._scores[k, action] > NEVER:
                then = known.for_it[self._then(k, action)]
                self._more[k, action] = np.array(known.grid.demand[then], dtype=np.float64) - had

    def _then(self, k: int, action: int) -> int:
        wide = len(self.jobs[k].known.grid.workers)
        return self.at[k] + (1, wide, wide + 1)[action]

    def seen(self) -> Seen:
        return Seen(self._sizes.astype(np.float32), self._features.astype(np.float32))

    def may(self) -> NDArray[np.bool_]:
        """Which actions (n x 3) are allowed and fit."""
        fits = np.asarray(np.all(self._more <= self._left, axis=2), dtype=np.bool_)
        return fits & (self._scores > NEVER)

    def chances(self, may: NDArray[np.bool_]) -> Floats:
        """Of each action, job by job, and of stopping, which has the score 0."""
        (found,) = chances(self._scores.reshape(1, -1), may.reshape(1, -1))
        return np.asarray(found)

    def scarce(self, may: NDArray[np.bool_]) -> int | None:
        """The action that adds what a job in a poor state lacks; None where none is, or it cannot be done."""
        for k, (job, at) in enumerate(zip(self.jobs, self.at, strict=True)):
            p, w = divmod(at, len(job.known.grid.workers))
            ps, workers = job.known.grid.ps[p], job.known.grid.workers[w]
            action = 1 if workers > POOR_RATIO * ps else 0 if ps > POOR_RATIO * workers else None
            if action is not None and may[k, action]:
                return k * len(ACTIONS) + action
        return None

    def take(self, k: int, action: int) -> None:
        self._left = self._left - self._more[k, action]
        self.at[k] = self._then(k, action)
        self._look(k)


def explore(network: Network, episode: Episode, rng: np.random.Generator, chance: float) -> tuple[list[Slot], float]:
    """The slots of one run, and the mean completion time in seconds."""
    explorer = Explorer(network, rng, chance)
    mean_s = mean_jct_s(replace(of_profile("dl2", episode), steps=(explorer,)), episode)
    explorer.reward({})  # all jobs are done
    return explorer.slots, mean_s

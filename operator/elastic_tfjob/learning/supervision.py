"""What a scheduler decided, as examples: at each size on the way to a job's size, which action it took, or that it
stopped there. The network learns them by cross-entropy (DL2, section 4.2), with stopping as a fourth action of score 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.learning.episodes import Episode, mean_jct_s, of_profile
from elastic_tfjob.learning.gradients import Moments, adam, backward, chances, forward
from elastic_tfjob.scheduling.profiles.dl2.features import Known, job_features, known_of
from elastic_tfjob.scheduling.profiles.dl2.network import Floats, Network, flat, of_flat
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, counts_of

__all__ = ["STOP", "Examples", "examples_of", "fit", "gradient", "way"]

STOP: Final = 3
RATE: Final = 0.01
BATCH: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """n rows each: features of the size, of the job, which actions were allowed, and the one taken."""

    sizes: Floats
    jobs: Floats
    may: NDArray[np.bool_]
    taken: NDArray[np.int64]


@dataclass(slots=True)
class Recorder:
    """A last step of a round, which notes what the steps before it decided."""

    most: int
    rng: np.random.Generator
    rows: list[tuple[Floats, Floats, NDArray[np.bool_], int]] = field(default_factory=list)
    seen: int = 0

    def __call__(self, round_: Round) -> None:
        total = round_.room.total
        jobs = list(round_.snapshot.jobs.values())
        known = [known_of(job, total) for job in jobs]
        moments = job_features(jobs, known, total, round_.now)
        for job, each, moment in zip(jobs, known, moments, strict=True):
            if each.features is None or each.may is None:
                continue
            for at, action in way(each, self._size(round_, job)):
                if each.may[at].any() and (action == STOP or each.may[at, action]):
                    self._keep((each.features[at], moment, each.may[at], action))

    def _size(self, round_: Round, job: Job) -> Counts:
        return counts_of(round_.placement(job))

    def _keep(self, row: tuple[Floats, Floats, NDArray[np.bool_], int]) -> None:
        """Of all rows each is as likely to be kept (reservoir sampling)."""
        self.seen += 1
        if len(self.rows) < self.most:
            self.rows.append(row)
        elif (k := int(self.rng.integers(self.seen))) < self.most:
            self.rows[k] = row


def way(known: Known, size: Counts) -> list[tuple[int, int]]:
    """(row, action) from the minimum to this size: both as long as both are lacking. Empty for less than the
    minimum."""
    grid = known.grid
    p, w = (
        int(np.searchsorted(counts, size.get(type_, 0), side="right")) - 1
        for counts, type_ in ((grid.ps, PS), (grid.workers, WORKER))
    )
    found, at_p, at_w = [], 0, 0
    if p < 0 or w < 0:
        return []
    while (at_p, at_w) != (p, w):
        action = 2 if at_p < p and at_w < w else int(at_p < p)
        found.append((at_p * len(grid.workers) + at_w, action))
        at_p, at_w = at_p + (action != 0), at_w + (action != 1)
    return [*found, (p * len(grid.workers) + w, STOP)]


def examples_of(teacher: str, episodes: Sequence[Episode], each: int, seed: int) -> Examples:
    """What this profile decides on these episodes, at most `each` rows of one."""
    rows = []
    for k, episode in enumerate(episodes):
        recorder = Recorder(each, np.random.default_rng([seed, k]))
        mean_jct_s(of_profile(teacher, episode), episode, recorder)
        rows += recorder.rows
    if not rows:
        raise ValueError(f"{teacher} decided nothing on these episodes")
    sizes, jobs, may, taken = zip(*rows, strict=True)
    return Examples(np.array(sizes), np.array(jobs), np.array(may), np.array(taken, dtype=np.int64))


def gradient(network: Network, given: Examples) -> tuple[float, Floats]:
    """The mean cross-entropy of these examples, and how it changes with each weight (as `flat`)."""
    scores, inner = forward(network, given.sizes, given.jobs)
    chance = chances(scores, given.may)
    at = np.arange(len(scores)), given.taken
    loss = -float(np.mean(np.log(np.maximum(chance[at], 1e-12))))
    chance[at] -= 1.0
    slope = chance[:, :STOP] / len(scores)
    return loss, backward(network, given.sizes, given.jobs, inner, slope)


def fit(network: Network, given: Examples, passes: int, seed: int) -> tuple[Network, list[float]]:
    """The network after so many passes over the examples, by Adam, and the mean loss of each pass."""
    units, weights = len(network.hidden_bias), flat(network)
    moments = Moments(np.zeros_like(weights), np.zeros_like(weights))
    rng, losses = np.random.default_rng(seed), []
    for _ in range(passes):
        order, sums = rng.permutation(len(given.taken)), 0.0
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            some = Examples(given.sizes[rows], given.jobs[rows], given.may[rows], given.taken[rows])
            loss, slope = gradient(of_flat(weights, units), some)
            sums += loss * len(rows)
            weights, moments = adam(weights, slope, moments, RATE)
        losses.append(sums / len(order))
    return of_flat(weights, units), losses

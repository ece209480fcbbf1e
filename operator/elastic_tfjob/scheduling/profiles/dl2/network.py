"""The network that all jobs share: scores of one more worker, one more PS, or both, for a job at a size. Pure.

What is known of a size goes through one hidden layer and past it; what is known of the job and of the moment goes past
it only. So a size's part of the scores is kept as long as the job's speed is, and a round adds three numbers a job.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["ACTIONS", "JOB_FEATURES", "SIZE_FEATURES", "Floats", "Network", "flat", "greedy", "of_flat", "shapes"]

Floats = NDArray[np.float64]

ACTIONS: Final = ("worker", "ps", "both")
SIZE_FEATURES: Final = (
    "best",  # logarithm of the best gain in sqrt(speed) per replica over all larger sizes
    "best by worker",  # of those with more workers, how far that is below the best
    "best by ps",
    "best by both",
    "best gain",  # the best, not its logarithm
    "gain of worker",  # of the next worker alone
    "gain of ps",
    "gain of both",
    "workers",  # logarithm
    "ps",
    "workers and ps",  # their product
    "speed",  # sqrt(speed)
    "share of worker",  # logarithm of its dominant share
    "share of ps",
)
JOB_FEATURES: Final = (
    "left",  # logarithm of what it would take with one PS and one worker
    "left beside others",  # how far that is above the mean
    "unknown",  # whether how much is left is not known
    "done",  # part of its steps
    "age",  # logarithm of the time since it came
    "crowd",  # logarithm of what all jobs ask for at least, as a part of what there is
    "crowd and left",  # their product
)


@dataclass(frozen=True, eq=False)
class Network:
    """`hidden` (size features x units), `hidden_bias` (units), `output` (units x actions), `output_bias` (actions),
    `size_skip` (size features x actions), `job_skip` (job features x actions)."""

    hidden: Floats
    hidden_bias: Floats
    output: Floats
    output_bias: Floats
    size_skip: Floats
    job_skip: Floats

    @property
    def arrays(self) -> tuple[Floats, ...]:
        return (self.hidden, self.hidden_bias, self.output, self.output_bias, self.size_skip, self.job_skip)

    def of_sizes(self, features: Floats) -> Floats:
        """The sizes' part of the scores: n x 3."""
        inner = np.tanh(features @ self.hidden + self.hidden_bias)
        values: Floats = inner @ self.output + self.output_bias + features @ self.size_skip
        return values

    def of_jobs(self, features: Floats) -> Floats:
        """The part of jobs and moment: n x 3."""
        values: Floats = features @ self.job_skip
        return values


def shapes(units: int) -> tuple[tuple[int, ...], ...]:
    sizes, jobs, actions = len(SIZE_FEATURES), len(JOB_FEATURES), len(ACTIONS)
    return (sizes, units), (units,), (units, actions), (actions,), (sizes, actions), (jobs, actions)


def flat(network: Network) -> Floats:
    """All weights, one after the other."""
    return np.concatenate([array.ravel() for array in network.arrays])


def of_flat(weights: Floats, units: int) -> Network:
    """The network with these weights. Raises ValueError where they are not as many as it has."""
    parts: list[Floats] = []
    at = 0
    for shape in shapes(units):
        parts.append(weights[at : at + int(np.prod(shape))].reshape(shape))
        at += int(np.prod(shape))
    if at != len(weights):
        raise ValueError(f"{len(weights)} weights, not {at}")
    return Network(*parts)


def greedy(units: int, spread: float = 0.0, seed: int = 0) -> Network:
    """One that goes for the best gain over all larger sizes, by what leads there, and adds at once what helps at once.
    `spread`: the standard deviation of the weights into hidden units, which add nothing yet. Where learning begins."""
    sizes, jobs, actions = len(SIZE_FEATURES), len(JOB_FEATURES), len(ACTIONS)
    skip = np.zeros((sizes, actions))
    skip[SIZE_FEATURES.index("best")] = 1.0
    for k, action in enumerate(ACTIONS):
        skip[SIZE_FEATURES.index(f"best by {action}"), k] = 1.0
        skip[SIZE_FEATURES.index(f"gain of {action}"), k] = 0.3
    return Network(
        np.random.default_rng(seed).normal(0.0, spread, (sizes, units)),
        np.zeros(units),
        np.zeros((units, actions)),
        np.full(actions, 2.5),
        skip,
        np.zeros((jobs, actions)),
    )

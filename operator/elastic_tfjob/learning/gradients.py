"""What learning by gradients shares: the network forward and backward, and Adam. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.scheduling.profiles.dl2.network import Floats, Network

__all__ = ["Moments", "adam", "backward", "chances", "forward"]

DECAY = (0.9, 0.999)
"""Of Adam (Kingma and Ba, arXiv 1412.6980)."""


def forward(network: Network, sizes: Floats, jobs: Floats) -> tuple[Floats, Floats]:
    """The scores (n x actions) of n sizes of jobs, and the values of the hidden units (n x units)."""
    inner = np.tanh(sizes @ network.hidden + network.hidden_bias)
    scores = inner @ network.output + network.output_bias + sizes @ network.size_skip + jobs @ network.job_skip
    return scores, inner


def chances(scores: Floats, may: NDArray[np.bool_]) -> Floats:
    """How likely each of these actions is (n x actions), of which some `may` be taken, and, in a last column, stopping,
    which has the score 0."""
    scores = np.column_stack([np.where(may, scores, -np.inf), np.zeros(len(scores))])
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: Floats = odds / odds.sum(axis=1, keepdims=True)
    return found


def backward(network: Network, sizes: Floats, jobs: Floats, inner: Floats, slope: Floats) -> Floats:
    """How a loss changes with each weight (as `flat`), where it changes by `slope` (n x actions) with the scores."""
    back = (slope @ network.output.T) * (1.0 - inner**2)
    parts = sizes.T @ back, back.sum(axis=0), inner.T @ slope, slope.sum(axis=0), sizes.T @ slope, jobs.T @ slope
    return np.concatenate([part.ravel() for part in parts])


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Adam's memory after `steps` steps."""

    first: Floats
    second: Floats
    steps: int = 0


def adam(weights: Floats, slope: Floats, moments: Moments, rate: float) -> tuple[Floats, Moments]:
    """The weights after one step down this slope."""
    first = DECAY[0] * moments.first + (1 - DECAY[0]) * slope
    second = DECAY[1] * moments.second + (1 - DECAY[1]) * slope**2
    steps = moments.steps + 1
    rate *= (1 - DECAY[1] ** steps) ** 0.5 / (1 - DECAY[0] ** steps)
    return weights - rate * first / (second**0.5 + 1e-8), Moments(first, second, steps)

"""Evolution strategies (Salimans et al., arXiv 1703.03864): weights follow the differences that random changes of them,
each tried with both signs on the same workloads, make to the completion times. No gradients, no critic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Literal

import numpy as np

from elastic_tfjob.learning.episodes import Episode, mean_jct_s, of_network, of_profile
from elastic_tfjob.learning.method import Draw, Memory, Stepped
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles.dl2.network import Floats, Network, of_flat, shapes

__all__ = ["SCALES", "Evolution", "Part", "cost", "scales", "step"]

Part = Literal["job", "all"]
SCALES: Final[dict[Part, tuple[float, ...]]] = {
    "job": (0.0, 0.0, 0.0, 0.2, 0.0, 0.2),
    "all": (0.1, 0.1, 0.1, 0.1, 0.1, 0.15),
}
"""How far a weight of each array is changed at a time: those that most depends on furthest. What is known of a size is
worth what the network begins with, and chance hides what little is left: so only what is known of the job and the
moment, and the bias, are learned ("job")."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """`pairs` of changes an iteration, on `episodes` workloads each; `rate` and `momentum` of the weights' steps; which
    `part` of the weights is changed."""

    name: ClassVar[str] = "evolution"
    pairs: int = 6
    episodes: int = 4
    rate: float = 0.5
    momentum: float = 0.8
    part: Part = "job"

    def begin(self, weights: Floats, units: int, seed: int) -> Memory:
        return {"drift": np.zeros_like(weights)}

    def learner(self, seed: int, done: int, memory: Memory, units: int, draw: Draw) -> "Learner":
        return Learner(self, seed, units, draw)


@dataclass(frozen=True, slots=True)
class Learner:
    how: Evolution
    seed: int
    units: int
    draw: Draw

    def step(self, k: int, weights: Floats, memory: Memory) -> Stepped:
        """Iteration number k."""
        rng = np.random.default_rng([self.seed, k])
        cost_of = partial(cost, episodes=self.draw(rng, self.how.episodes))
        weights, drift, tried = step(weights, memory["drift"], self.units, strategy=self.how, rng=rng, cost_of=cost_of)
        return Stepped(weights, {"drift": drift}, tried)


def scales(units: int, part: Part) -> Floats:
    """How far each weight is changed at a time."""
    return np.concatenate(
        [np.full(int(np.prod(shape)), s) for shape, s in zip(shapes(units), SCALES[part], strict=True)]
    )


def cost(network: Network | None, episodes: Sequence[Episode]) -> float:
    """The mean logarithm of the mean completion times: what training makes small. A job that is twice as long counts
    no more. None: of the profile `hull`, which decides where no network can be used."""

    def profile(episode: Episode) -> Profile:
        return of_profile("hull", episode) if network is None else of_network(network, episode)

    return float(np.mean([np.log(mean_jct_s(profile(episode), episode)) for episode in episodes]))


def step(
    weights: Floats,
    drift: Floats,
    units: int,
    *,
    strategy: Evolution,
    rng: np.random.Generator,
    cost_of: Callable[[Network], float],
) -> tuple[Floats, Floats, float]:
    """Weights and momentum after one iteration, and the mean cost of what was tried."""
    scale = scales(units, strategy.part)
    changes = rng.standard_normal((strategy.pairs, len(weights)))
    costs = np.array([[cost_of(of_flat(weights + s * scale * change, units)) for s in (1, -1)] for change in changes])
    worse = costs[:, 0] - costs[:, 1]
    # Only which way is better, and how clearly beside the other pairs, not in seconds.
    size = np.sqrt(np.mean(worse**2))
    slope = (worse / size) @ changes / strategy.pairs if size > 0 else np.zeros_like(weights)
    drift = strategy.momentum * drift - (1 - strategy.momentum) * slope
    return weights + strategy.rate * scale * drift, drift, float(costs.mean())

"""The actor-critic of DL2, with replay (Peng et al., arXiv 1909.06040, section 4.3).

Actions are drawn by their probability. The reward of a slot is the sum over jobs of the fraction of their steps done in
it, and each action of the slot gets this reward. A critic with the actor's architecture predicts the value of a state;
the reward beyond this value is an action's advantage. The decisions of the latest workloads are replayed, and weighted
by their probability under the current weights (importance weights), which the paper omits.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.learning.episodes import Draw, Episode, Learn, Memory, mean_jct_s, of_profile
from elastic_tfjob.scheduling.profiles.dl2 import NEVER, LearnedSizes, Scored, minima
from elastic_tfjob.scheduling.profiles.dl2.features import ends, job_features, slots_left
from elastic_tfjob.scheduling.profiles.dl2.network import ACTIONS, ENDS, Floats, Network, flat, greedy, of_flat
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.steps.open_jobs import OpenJobs, usable_total
from elastic_tfjob.scheduling.steps.sizes import apply_rows, candidates

__all__ = [
    "ActorCritic",
    "Batch",
    "Explorer",
    "Moments",
    "PolicyDecision",
    "PolicyInput",
    "Slot",
    "adam",
    "backward",
    "chances",
    "explore",
    "forward",
    "gradients",
]

# -- Shared parts of gradient-based learning: forward and backward pass of the network, and Adam -----------------------

DECAY = (0.9, 0.999)
"""The decay rates of Adam's two moments (Kingma and Ba, arXiv 1412.6980)."""


def forward(network: Network, sizes: Floats, jobs: Floats) -> tuple[Floats, Floats]:
    """The scores (n x actions) of n sizes of jobs, and the values of the hidden units (n x units)."""
    inner = np.tanh(sizes @ network.hidden + network.hidden_bias)
    scores = inner @ network.output + network.output_bias + sizes @ network.size_skip + jobs @ network.job_skip
    return scores, inner


def chances(scores: Floats, may: NDArray[np.bool_]) -> Floats:
    """The probabilities of the actions (n x actions; 0 for actions that `may` not be taken), with stopping, which has
    the score 0, in an additional last column."""
    scores = np.column_stack([np.where(may, scores, -np.inf), np.zeros(len(scores))])
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: Floats = odds / odds.sum(axis=1, keepdims=True)
    return found


def backward(network: Network, sizes: Floats, jobs: Floats, inner: Floats, slope: Floats) -> Floats:
    """The gradient of a loss with respect to the weights (in the order of `flat`), given its gradient `slope` (n x
    actions) with respect to the scores."""
    back = (slope @ network.output.T) * (1.0 - inner**2)
    parts = sizes.T @ back, back.sum(axis=0), inner.T @ slope, slope.sum(axis=0), sizes.T @ slope, jobs.T @ slope
    return np.concatenate([part.ravel() for part in parts])


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Adam's moments after `steps` steps."""

    first: Floats
    second: Floats
    steps: int = 0


def adam(weights: Floats, slope: Floats, moments: Moments, rate: float) -> tuple[Floats, Moments]:
    """The weights and moments after one Adam step against the gradient `slope`."""
    first = DECAY[0] * moments.first + (1 - DECAY[0]) * slope
    second = DECAY[1] * moments.second + (1 - DECAY[1]) * slope**2
    steps = moments.steps + 1
    rate *= (1 - DECAY[1] ** steps) ** 0.5 / (1 - DECAY[0] ** steps)
    return weights - rate * first / (second**0.5 + 1e-8), Moments(first, second, steps)


# -- A run of a policy that draws its actions at random, with the recorded decisions and rewards -----------------------
# The actor-critic learns from these records.

POOR_RATIO: Final = 10
"""A job with more than this many times as many replicas of one type as of the other is in a poor state (DL2, section
4.3)."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyInput:
    """A state of n jobs: for each job the features of the size that it has so far in this slot, and those of the
    job."""

    sizes: Floats
    jobs: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PolicyDecision:
    """A decision: the state, the possible actions (n x 3), the action taken (counted job by job; 3 n: stop), and its
    probability."""

    seen: PolicyInput
    may: NDArray[np.bool_]
    taken: int
    chance: float


@dataclass(slots=True, eq=False)
class Slot:
    """The decisions of one round, its initial state, and the `reward`: the sum over jobs of the fraction of their steps
    done before the next round (DL2, equation 1)."""

    opening: PolicyInput
    decisions: list[PolicyDecision]
    reward: float = 0.0


@dataclass(slots=True)
class Explorer:
    """A profile's step that draws actions at random. For a job in a poor state the scarce replica type is added with
    the probability `explore`, independent of the policy (DL2's job-aware exploration)."""

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
        known = [job.known for job in jobs.known]
        features = job_features(jobs.jobs, known, usable_total(round_), now)
        left = slots_left(jobs.jobs, known, round_.rules.slot_s, now)
        apply_rows(round_, jobs, self._give(jobs.known, features, left, free), Reason("learned"))

    def reward(self, done: dict[str, float]) -> None:
        """Set the reward of the last slot from the fraction of each job that is done now. Missing jobs are finished."""
        if self.slots:
            self.slots[-1].reward = sum(done.get(key, 1.0) - before for key, before in self._done.items())
        self._done = done

    def _give(self, jobs: Sequence[Scored], features: Floats, slots: Sequence[float], free: Resources) -> list[int]:
        """Like `give` of profile `dl2`, but actions are drawn at random."""
        rows, left = minima(jobs, free)
        open_ = [k for k, job in enumerate(jobs) if rows[k] and job.scores is not None]
        some = [jobs[k] for k in open_]
        choices = PolicyChoices(self.network, some, features[open_], [slots[k] for k in open_], left)
        slot = Slot(choices.seen(), [])
        while (may := choices.may()).any():
            chances = choices.chances(may)
            taken = int(self.rng.choice(len(chances), p=chances))
            chance = float(chances[taken])
            if (scarce := choices.scarce(may)) is not None:
                taken = scarce if self.rng.random() < self.explore else taken
                chance = (1 - self.explore) * float(chances[taken]) + self.explore * (taken == scarce)
            slot.decisions.append(PolicyDecision(choices.seen(), may, taken, chance))
            if taken == may.size:
                break
            choices.take(*divmod(taken, len(ACTIONS)))
        self.slots.append(slot)
        for k, job, at in zip(open_, choices.jobs, choices.at, strict=True):
            rows[k] = job.known.for_it[at] + 1
        return rows


class PolicyChoices:
    """The possible next actions while actions are taken. `at`: the current size of each job after its actions."""

    def __init__(
        self, network: Network, jobs: Sequence[Scored], features: Floats, slots: Sequence[float], left: Resources
    ) -> None:
        self.jobs, self.at = jobs, [0] * len(jobs)
        self._network, self._features, self._slots = network, features.copy(), slots
        self._left = np.array(left, dtype=np.float64)
        n = len(jobs)
        self._sizes = np.zeros((n, network.hidden.shape[0]))
        self._scores = np.full((n, len(ACTIONS)), NEVER)
        self._more = np.zeros((n, len(ACTIONS), len(self._left)))
        for k in range(n):
            self._look(k)

    def _look(self, k: int) -> None:
        """Update the possible actions of job `k` at its current size."""
        known, at = self.jobs[k].known, self.at[k]
        scores = self.jobs[k].scores
        assert known.features is not None
        assert scores is not None
        self._sizes[k] = known.features[at]
        self._features[k, ENDS] = ends(self._slots[k], known.speeds[at])
        self._scores[k] = np.array(scores[at]) + self._network.of_jobs(self._features[k])
        had = np.array(known.grid.demand[known.for_it[at]], dtype=np.float64)
        for action in range(len(ACTIONS)):
            if self._scores[k, action] > NEVER:
                then = known.for_it[self._then(k, action)]
                self._more[k, action] = np.array(known.grid.demand[then], dtype=np.float64) - had

    def _then(self, k: int, action: int) -> int:
        wide = len(self.jobs[k].known.grid.workers)
        return self.at[k] + (1, wide, wide + 1)[action]

    def seen(self) -> PolicyInput:
        return PolicyInput(self._sizes.astype(np.float32), self._features.astype(np.float32))

    def may(self) -> NDArray[np.bool_]:
        """The actions (n x 3) that are allowed and fit."""
        fits = np.asarray(np.all(self._more <= self._left, axis=2), dtype=np.bool_)
        return fits & (self._scores > NEVER)

    def chances(self, may: NDArray[np.bool_]) -> Floats:
        """The probability of each action, job by job, and of stopping, which has the score 0."""
        (found,) = chances(self._scores.reshape(1, -1), may.reshape(1, -1))
        return np.asarray(found)

    def scarce(self, may: NDArray[np.bool_]) -> int | None:
        """The action that adds the scarce replica type of a job in a poor state; None if there is no such job, or the
        action is not possible."""
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


SPREAD: Final = 0.3
CRITIC_RATE: Final = 10
"""The ratio of the critic's learning rate to the actor's."""
MOST_WEIGHT: Final = 2.0
"""The maximum weight of a decision that is more probable now than when it was taken."""


@dataclass(frozen=True, slots=True)
class ActorCritic:
    """The settings of the actor-critic. Each iteration runs `episodes` new workloads and learns from the decisions of
    the last `replay` iterations, in batches of `batch` decisions with the learning rate `rate`; the number of batches
    is that of the new decisions. `explore`: the probability of adding the scarce replica type in a poor state;
    `entropy`: the weight of the entropy bonus; `discount`: the discount of the rewards after a slot. Without `critic`
    the mean reward is the expected value. Batch and exploration are the paper's. The paper's discount is 0.9, with
    which training diverged here; 0, only the slot's own reward, is what its authors' code does."""

    name: ClassVar[str] = "actor-critic"
    episodes: int = 2
    replay: int = 4
    explore: float = 0.4
    critic: bool = True
    rate: float = 0.001
    entropy: float = 0.003
    discount: float = 0.0
    batch: int = 256

    def begin(self, weights: Floats, units: int, seed: int) -> Memory:
        network = greedy(units, SPREAD, seed + 1)
        critic = flat(replace(network, output_bias=0 * network.output_bias, size_skip=0 * network.size_skip))
        moments = dict.fromkeys(("first", "second", "critic_first", "critic_second"), np.zeros_like(weights))
        return {"critic": critic, **moments, "steps": np.zeros(1), "past": np.zeros((0, len(weights)))}

    def learner(self, seed: int, done: int, memory: Memory, units: int, draw: Draw) -> Learn:
        return ActorCriticLearner(self, seed, units, draw).after(done, memory["past"]).step


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch of B decisions of at most n jobs. The features of their states and of the states after their slots are B
    x n x features, padded with 0; `there` and `then_there` (B x n) mark the actual jobs. `may` (B x 3 n): the possible
    actions; `taken`: the action taken; `chance`: its probability. `expected`: the expected value without a critic."""

    sizes: Floats
    jobs: Floats
    there: NDArray[np.bool_]
    then_sizes: Floats
    then_jobs: Floats
    then_there: NDArray[np.bool_]
    may: NDArray[np.bool_]
    taken: NDArray[np.int64]
    chance: Floats
    reward: Floats
    expected: float


Replayed = tuple[PolicyDecision, float, PolicyInput | None]
"""A decision, its slot's reward, and the state at the beginning of the next slot (None: all jobs were done)."""


class ActorCriticLearner:
    """One training. For a resumed training, the decisions of the previous iterations are recomputed with the weights of
    that time."""

    def __init__(self, how: ActorCritic, seed: int, units: int, draw: Draw) -> None:
        self._how, self._seed, self._units, self._draw = how, seed, units, draw
        self._kept: deque[list[Replayed]] = deque(maxlen=how.replay)

    def after(self, done: int, past: Floats) -> "ActorCriticLearner":
        """The learner with the decisions that the weights `past` made in the last of the `done` iterations."""
        for k, weights in enumerate(past, start=done - len(past)):
            self._kept.append(self._gather(k, weights)[0])
        return self

    def _gather(self, k: int, weights: Floats) -> tuple[list[Replayed], float]:
        """New decisions, and the mean logarithm of the completion times."""
        rng = np.random.default_rng([self._seed, k])
        network, found, costs = of_flat(weights, self._units), list[Replayed](), []
        for episode in self._draw(rng, self._how.episodes):
            slots, mean_s = explore(network, episode, rng, self._how.explore)
            found += with_next(slots)
            costs.append(np.log(mean_s))
        return found, float(np.mean(costs))

    def step(self, k: int, weights: Floats, memory: Memory) -> tuple[Floats, Memory, float]:
        """Iteration number k."""
        how = self._how
        new, tried = self._gather(k, weights)
        self._kept.append(new)
        past = np.vstack([memory["past"], weights])
        known = [each for some in self._kept for each in some]
        expected = float(np.mean([reward for _, reward, _ in known])) if known else 0.0
        rng = np.random.default_rng([self._seed, k, 1])
        critic, steps = memory["critic"], int(memory["steps"][0])
        actors = Moments(memory["first"], memory["second"], steps)
        critics = Moments(memory["critic_first"], memory["critic_second"], steps)
        for _ in range(-(-len(new) // how.batch)):
            chosen = [known[int(i)] for i in rng.integers(len(known), size=how.batch)]
            slope, critic_slope = gradients(
                of_flat(weights, self._units), of_flat(critic, self._units), as_batch(chosen, expected), how
            )
            weights, actors = adam(weights, slope, actors, how.rate)
            critic, critics = adam(critic, critic_slope, critics, how.rate * CRITIC_RATE)
        kept: Mapping[str, Floats] = {
            "critic": critic,
            "first": actors.first,
            "second": actors.second,
            "critic_first": critics.first,
            "critic_second": critics.second,
            "steps": np.array([float(actors.steps)]),
            "past": past[max(0, len(past) - how.replay + 1) :],
        }
        return weights, kept, tried


def with_next(slots: Sequence[Slot]) -> list[Replayed]:
    """The decisions of these slots, each with its slot's reward and the next slot's state."""
    following = [*(slot.opening for slot in slots[1:]), None]
    return [
        (decision, slot.reward, then)
        for slot, then in zip(slots, following, strict=True)
        for decision in slot.decisions
    ]


def as_batch(chosen: Sequence[Replayed], expected: float) -> Batch:
    sizes, jobs, there = padded([decision.seen for decision, _, _ in chosen])
    then_sizes, then_jobs, then_there = padded([then for _, _, then in chosen])
    actions = len(ACTIONS)
    may = np.zeros((len(chosen), sizes.shape[1] * actions), dtype=np.bool_)
    taken = np.zeros(len(chosen), dtype=np.int64)
    for b, (decision, _, _) in enumerate(chosen):
        may[b, : decision.may.size] = decision.may.ravel()
        # The index of stopping comes after all jobs, including the padding.
        taken[b] = decision.taken if decision.taken < decision.may.size else may.shape[1]
    chance = np.array([decision.chance for decision, _, _ in chosen])
    reward = np.array([reward for _, reward, _ in chosen])
    return Batch(sizes, jobs, there, then_sizes, then_jobs, then_there, may, taken, chance, reward, expected)


def padded(states: Sequence[PolicyInput | None]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """The features of sizes and of jobs (B x n x features), padded with 0, and a mask of the actual jobs (B x n)."""
    most = max((len(seen.sizes) for seen in states if seen is not None), default=0)
    example = next((seen for seen in states if seen is not None), None)
    widths = (example.sizes.shape[1], example.jobs.shape[1]) if example is not None else (0, 0)
    sizes, jobs = (np.zeros((len(states), most, width)) for width in widths)
    there = np.zeros((len(states), most), dtype=np.bool_)
    for b, seen in enumerate(states):
        if seen is not None:
            n = len(seen.sizes)
            sizes[b, :n], jobs[b, :n], there[b, :n] = seen.sizes, seen.jobs, True
    return sizes, jobs, there


def gradients(actor: Network, critic: Network, given: Batch, how: ActorCritic) -> tuple[Floats, Floats]:
    """The gradients of the losses of actor and critic with respect to their weights (in the order of `flat`). The
    actor's loss is the mean of -advantage x log(probability) - entropy weight x entropy, the critic's is half the mean
    squared error."""
    worth, rows, inner = value(critic, given.sizes, given.jobs, given.there)
    then, _, _ = value(critic, given.then_sizes, given.then_jobs, given.then_there)
    target = given.reward + how.discount * then if how.critic else given.reward
    advantage = target - (worth if how.critic else given.expected)
    count = len(advantage)
    error = np.where(given.there, (worth - target)[:, None], 0.0) / count
    slope = np.repeat(error.reshape(-1, 1), len(ACTIONS), axis=1)
    critic_slope = backward(critic, *rows, inner, slope)

    rows = flattened(given.sizes), flattened(given.jobs)
    scores, inner = forward(actor, *rows)
    chance = chances(scores.reshape(count, -1), given.may)
    at = np.arange(count), given.taken
    size = float(np.sqrt(np.mean(advantage**2)))
    weight = np.minimum(chance[at] / given.chance, MOST_WEIGHT) * advantage / (size if size > 0 else 1.0)
    logs = np.log(np.maximum(chance, 1e-12))
    entropy = -(chance * logs).sum(axis=1, keepdims=True)
    slope = weight[:, None] * chance + how.entropy * chance * (logs + entropy)
    slope[at] -= weight
    slope = (slope[:, :-1] / count).reshape(-1, len(ACTIONS))
    return backward(actor, *rows, inner, slope), critic_slope


def value(
    critic: Network, sizes: Floats, jobs: Floats, there: NDArray[np.bool_]
) -> tuple[Floats, tuple[Floats, Floats], Floats]:
    """The value of each state: the sum of all the critic's outputs over the state's jobs. Also returns the critic's
    inputs, one row per job, and its hidden values."""
    if not there.size:
        return np.zeros(len(there)), (flattened(sizes), flattened(jobs)), np.zeros((0, 0))
    rows = flattened(sizes), flattened(jobs)
    scores, inner = forward(critic, *rows)
    worth: Floats = np.where(there, scores.sum(axis=1).reshape(there.shape), 0.0).sum(axis=1)
    return worth, rows, inner


def flattened(features: Floats) -> Floats:
    return features.reshape(-1, features.shape[2])

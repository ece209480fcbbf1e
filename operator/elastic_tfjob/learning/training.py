"""One training: optional imitation of a teacher, then reinforcement learning; the best weights on the select seeds are
kept. Also evolution strategies, files of training states, and a plot of the training.

The result depends only on the TrainingPlan: each iteration draws from its own seed, so a training that was interrupted
and resumed gives the same result.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from elastic_tfjob.learning.actor_critic import ActorCritic, Moments, adam, backward, chances, forward
from elastic_tfjob.learning.episodes import (
    Draw,
    Episode,
    Learn,
    Memory,
    Method,
    draw,
    mean_jct_s,
    of_network,
    of_profile,
)
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles.dl2.features import Known, ends, job_features, known_of, slots_left
from elastic_tfjob.scheduling.profiles.dl2.network import (
    ACTIONS,
    ENDS,
    JOB_FEATURES,
    SIZE_FEATURES,
    Floats,
    Network,
    flat,
    greedy,
    of_flat,
    shapes,
)
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Job, counts_of

__all__ = [
    "METHODS",
    "RIVALS",
    "SCALES",
    "STOP",
    "Drawn",
    "Evolution",
    "Examples",
    "Part",
    "TrainingPlan",
    "TrainingState",
    "Workloads",
    "begin",
    "compare",
    "cost",
    "draw_curve",
    "examples_of",
    "fit",
    "gradient",
    "load",
    "replace_file",
    "save",
    "scales",
    "step",
    "train",
    "way",
]

# -- Evolution strategies (Salimans et al., arXiv 1703.03864) ----------------------------------------------------------
# Random changes of the weights are tried, each with both signs on the same workloads; the weights move according to the
# resulting differences in completion time. There are no gradients and no critic.

Part = Literal["job", "all"]
SCALES: Final[dict[Part, tuple[float, ...]]] = {
    "job": (0.0, 0.0, 0.0, 0.0, 0.0, 0.1),
    "all": (0.1, 0.1, 0.1, 0.1, 0.1, 0.15),
}
"""The standard deviation of the random change of a weight, by array; the most influential weights change most. The
initial weights for the size features are close to the best, and the small possible gain is hidden by noise. So part
"job" trains only the weights of the features of the job and of the round, and those of the three actions alike: they
decide which job comes first, not what it gets."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """The settings of evolution strategies: `pairs` of changes per iteration, tried on `episodes` workloads each;
    `rate` and `momentum` of the weights' steps; the `part` of the weights that is trained."""

    name: ClassVar[str] = "evolution"
    pairs: int = 6
    episodes: int = 4
    rate: float = 0.5
    momentum: float = 0.8
    part: Part = "job"

    def begin(self, weights: Floats, units: int, seed: int) -> Memory:
        return {"drift": np.zeros_like(weights)}

    def learner(self, seed: int, done: int, memory: Memory, units: int, draw: Draw) -> Learn:
        def learn(k: int, weights: Floats, memory: Memory) -> tuple[Floats, Memory, float]:
            rng = np.random.default_rng([seed, k])
            cost_of = partial(cost, episodes=draw(rng, self.episodes))
            weights, drift, tried = step(weights, memory["drift"], units, strategy=self, rng=rng, cost_of=cost_of)
            return weights, {"drift": drift}, tried

        return learn


def scales(units: int, part: Part) -> Floats:
    """The standard deviation of the random change of each weight."""
    return np.concatenate(
        [np.full(int(np.prod(shape)), s) for shape, s in zip(shapes(units), SCALES[part], strict=True)]
    )


def cost(network: Network | None, episodes: Sequence[Episode]) -> float:
    """The cost that training minimises: the mean logarithm of the episodes' mean completion times, so that an episode
    with long jobs counts no more than one with short jobs. `network` None: the cost of the profile `hull`, which
    decides if no network can be used."""

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
    """Weights and momentum after one iteration, and the mean cost of the weights tried."""
    scale = scales(units, strategy.part)
    changes = rng.standard_normal((strategy.pairs, len(weights)))
    if strategy.part == "job":
        alike = len(JOB_FEATURES) * len(ACTIONS)
        changes[:, -alike:] = np.repeat(changes[:, -alike :: len(ACTIONS)], len(ACTIONS), axis=1)
    costs = np.array([[cost_of(of_flat(weights + s * scale * change, units)) for s in (1, -1)] for change in changes])
    worse = costs[:, 0] - costs[:, 1]
    # The differences are normalised: only their sign and their size relative to the other pairs count.
    size = np.sqrt(np.mean(worse**2))
    slope = (worse / size) @ changes / strategy.pairs if size > 0 else np.zeros_like(weights)
    drift = strategy.momentum * drift - (1 - strategy.momentum) * slope
    return weights + strategy.rate * scale * drift, drift, float(costs.mean())


# -- A scheduler's decisions as training examples ----------------------------------------------------------------------
# For each size on the path from a job's minimum to its size, an example has the action taken there, or stopping at the
# end. The network learns them by cross-entropy (DL2, section 4.2), with stopping as a fourth action of score 0.

STOP: Final = 3
RATE: Final = 0.01
BATCH: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Examples as arrays of n rows: features of the size, features of the job, allowed actions, action taken."""

    sizes: Floats
    jobs: Floats
    may: NDArray[np.bool_]
    taken: NDArray[np.int64]


@dataclass(slots=True)
class ExampleRecorder:
    """A last step of each round, which records the decisions of the previous steps."""

    most: int
    rng: np.random.Generator
    rows: list[tuple[Floats, Floats, NDArray[np.bool_], int]] = field(default_factory=list)
    seen: int = 0

    def __call__(self, round_: Round) -> None:
        total = round_.room.total
        jobs = list(round_.snapshot.jobs.values())
        known = [known_of(job, total) for job in jobs]
        moments = job_features(jobs, known, total, round_.now)
        left = slots_left(jobs, known, round_.rules.slot_s, round_.now)
        for job, each, features, slots in zip(jobs, known, moments, left, strict=True):
            if each.features is None or each.may is None:
                continue
            for at, action in way(each, self._size(round_, job)):
                if each.may[at].any() and (action == STOP or each.may[at, action]):
                    moment = features.copy()
                    moment[ENDS] = ends(slots, each.speeds[at])
                    self._keep((each.features[at], moment, each.may[at], action))

    def _size(self, round_: Round, job: Job) -> Counts:
        return counts_of(round_.placement(job))

    def _keep(self, row: tuple[Floats, Floats, NDArray[np.bool_], int]) -> None:
        """Keep a random sample in which all rows are equally likely (reservoir sampling)."""
        self.seen += 1
        if len(self.rows) < self.most:
            self.rows.append(row)
        elif (k := int(self.rng.integers(self.seen))) < self.most:
            self.rows[k] = row


def way(known: Known, size: Counts) -> list[tuple[int, int]]:
    """The path from the minimum to this size as (row, action). While both replica types are lacking, the action adds
    both. Empty for a size below the minimum."""
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
    """The decisions of the profile `teacher` on these episodes, at most `each` rows per episode. Raises ValueError if
    it decided nothing."""
    rows = []
    for k, episode in enumerate(episodes):
        recorder = ExampleRecorder(each, np.random.default_rng([seed, k]))
        mean_jct_s(of_profile(teacher, episode), episode, recorder)
        rows += recorder.rows
    if not rows:
        raise ValueError(f"{teacher} made no decision on these workloads")
    sizes, jobs, may, taken = zip(*rows, strict=True)
    return Examples(np.array(sizes), np.array(jobs), np.array(may), np.array(taken, dtype=np.int64))


def gradient(network: Network, given: Examples) -> tuple[float, Floats]:
    """The mean cross-entropy of these examples, and its gradient with respect to the weights (in the order of
    `flat`)."""
    scores, inner = forward(network, given.sizes, given.jobs)
    chance = chances(scores, given.may)
    at = np.arange(len(scores)), given.taken
    loss = -float(np.mean(np.log(np.maximum(chance[at], 1e-12))))
    chance[at] -= 1.0
    slope = chance[:, :STOP] / len(scores)
    return loss, backward(network, given.sizes, given.jobs, inner, slope)


def fit(network: Network, given: Examples, passes: int, seed: int) -> tuple[Network, list[float]]:
    """The network after `passes` passes over the examples with Adam, and the mean loss of each pass."""
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


UNITS: Final = 16
SPREAD: Final = 0.3
RIVALS: Final = ("drf", "optimus", "hull")
METHODS: Final[Mapping[str, type[Evolution] | type[ActorCritic]]] = {
    kind.name: kind for kind in (Evolution, ActorCritic)
}


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The settings of a training. `teacher` empty: start with the greedy network. `train`, `select`: the number of
    episodes for updating weights and for choosing among them. `models`: the models in these episodes (empty: all).
    `without`: the features that the network does not get."""

    seed: int = 0
    iterations: int = 60
    teacher: str = ""
    passes: int = 30
    lessons: int = 12
    """The number of episodes with the teacher's decisions."""
    train: int = 200
    select: int = 12
    every: int = 10
    """The number of iterations between two evaluations on the select seeds."""
    models: tuple[str, ...] = ()
    workloads: str = ""
    """An identifier of the given workloads; empty: workloads are drawn by seed."""
    without: tuple[str, ...] = ()
    method: Method = field(default_factory=Evolution)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """The state of a training. `history` has (iteration, mean cost of the weights tried, cost on the select seeds or
    None)."""

    plan: TrainingPlan
    weights: Floats
    memory: Memory
    best: Floats
    best_cost: float
    iteration: int = 0
    history: tuple[tuple[int, float, float | None], ...] = ()
    losses: tuple[float, ...] = ()

    @property
    def network(self) -> Network:
        """The best network on the select seeds so far."""
        return of_flat(self.best, UNITS)


class Workloads(Protocol):
    """The workloads for updating weights, by number (0 to `TrainingPlan.train`), and those for choosing among
    weights."""

    def train(self, number: int) -> Episode: ...

    @property
    def select(self) -> Sequence[Episode]: ...


class Drawn:
    """Workloads drawn by seed."""

    def __init__(self, plan: TrainingPlan) -> None:
        self._models = plan.models
        self.select = [draw("select", k, plan.models) for k in range(plan.select)]

    def train(self, number: int) -> Episode:
        return draw("train", number, self._models)


def begin(plan: TrainingPlan, network: Network | None = None, workloads: Workloads | None = None) -> TrainingState:
    """The initial state with this network; without one, with the greedy network or the imitation of the teacher. Raises
    ValueError for a network with a different number of hidden units."""
    losses = list[float]()
    if network is None:
        network = greedy(UNITS, SPREAD, plan.seed)
    elif (units := len(network.hidden_bias)) != UNITS:
        raise ValueError(f"weights of {units} hidden units; only those of {UNITS} can be trained")
    if plan.teacher:
        untaught = replace(network, size_skip=0 * network.size_skip, output_bias=0 * network.output_bias)
        episodes = [draw("train", plan.train + k, plan.models) for k in range(plan.lessons)]
        given = examples_of(plan.teacher, episodes, 400, plan.seed)
        network, losses = fit(untaught, given, plan.passes, plan.seed)
    weights = flat(network) * feature_mask(plan)
    found = cost(of_flat(weights, UNITS), (workloads or Drawn(plan)).select)
    memory = plan.method.begin(weights, UNITS, plan.seed)
    return TrainingState(plan, weights, memory, weights, found, 0, ((0, found, found),), tuple(losses))


def feature_mask(plan: TrainingPlan) -> Floats:
    """A mask of the weights: 0 for weights of features that the network does not get, else 1."""
    ones = of_flat(np.ones_like(flat(greedy(UNITS))), UNITS)
    for name in plan.without:
        if name in SIZE_FEATURES:
            ones.hidden[SIZE_FEATURES.index(name)] = ones.size_skip[SIZE_FEATURES.index(name)] = 0.0
        else:
            ones.job_skip[JOB_FEATURES.index(name)] = 0.0
    return flat(ones)


def train(state: TrainingState, workloads: Workloads | None = None) -> Iterator[TrainingState]:
    """Yields the state after each further iteration, up to the plan's number of iterations."""
    plan = state.plan
    given, mask = workloads or Drawn(plan), feature_mask(plan)

    def some(rng: np.random.Generator, number: int) -> list[Episode]:
        return [given.train(int(k)) for k in rng.choice(plan.train, size=min(number, plan.train), replace=False)]

    learn = plan.method.learner(plan.seed, state.iteration, state.memory, UNITS, some)
    while state.iteration < plan.iterations:
        weights, memory, tried = learn(state.iteration, state.weights, state.memory)
        weights = weights * mask
        k, found = state.iteration + 1, None
        best, best_cost = state.best, state.best_cost
        if k % plan.every == 0 or k == plan.iterations:
            found = cost(of_flat(weights, UNITS), given.select)
            if found < best_cost:
                best, best_cost = weights, found
        history = (*state.history, (k, tried, found))
        state = TrainingState(plan, weights, memory, best, best_cost, k, history, state.losses)
        yield state


def compare(network: Network, episodes: Sequence[Episode]) -> dict[str, float]:
    """The network's mean completion times compared with those of other profiles, by profile: the geometric mean of the
    ratios minus 1, negative if the network is faster."""
    ours = np.array([mean_jct_s(of_network(network, each), each) for each in episodes])
    found = {}
    for rival in RIVALS:
        theirs = np.array([mean_jct_s(of_profile(rival, each), each) for each in episodes])
        found[rival] = float(np.exp(np.mean(np.log(ours / theirs))) - 1)
    return found


def save(state: TrainingState, path: Path) -> None:
    """Save everything that is needed to resume. The file is replaced atomically."""
    file = io.BytesIO()
    content = {
        "plan": asdict(state.plan),
        "method": state.plan.method.name,
        "best_cost": state.best_cost,
        "iteration": state.iteration,
        "history": state.history,
        "losses": state.losses,
    }
    arrays: dict[str, Any] = {f"memory_{name}": values for name, values in state.memory.items()}
    np.savez(file, content=np.array(json.dumps(content)), weights=state.weights, best=state.best, **arrays)
    replace_file(path, file.getvalue())


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file atomically, since other processes may read it at any time."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    os.replace(beside, path)


def load(path: Path) -> TrainingState:
    """Load a state. Raises ValueError for a file that `save` did not write, or that has different features."""
    try:
        with np.load(path, allow_pickle=False) as file:
            content: dict[str, Any] = json.loads(str(file["content"]))
            weights, best = (np.array(file[name], dtype=np.float64) for name in ("weights", "best"))
            method = METHODS[content["method"]](**content["plan"]["method"])
            if missing := asdict(method).keys() - content["plan"]["method"].keys():
                raise ValueError(f"it lacks {', '.join(missing)}")
            memory = {
                name: np.array(file[f"memory_{name}"], dtype=np.float64) for name in method.begin(weights, UNITS, 0)
            }
        names = {name: tuple(content["plan"][name]) for name in ("models", "without")}
        plan = TrainingPlan(**{**content["plan"], **names, "method": method})
        history = tuple((k, tried, found) for k, tried, found in content["history"])
        for each in (weights, best):
            of_flat(each, UNITS)
        return TrainingState(
            plan, weights, memory, best, content["best_cost"], content["iteration"], history, tuple(content["losses"])
        )
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a training state of this version: {error}") from error


# -- A plot of a training as SVG: the cost of the weights tried and the cost on the select seeds, by iteration ---------

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 300, 70, 30, 20, 45
COLOURS: Final = {"tried": "#9aa5b1", "select seeds": "#0b6bcb"}

Points = Sequence[tuple[float, float]]


def draw_curve(state: TrainingState, path: Path) -> None:
    """Write the plot. Costs are shown as completion times relative to the start of the training, in percent."""
    first_tried = next((tried for k, tried, _ in state.history if k > 0), 0.0)
    first = state.history[0][2] or 0.0
    lines: dict[str, Points] = {
        "tried": [(k, 100 * (tried - first_tried)) for k, tried, _ in state.history if k > 0],
        "select seeds": [(k, 100 * (found - first)) for k, _, found in state.history if found is not None],
    }
    values = [y for line in lines.values() for _, y in line]
    low, high = min(values, default=0.0) - 0.1, max(values, default=0.0) + 0.1
    last = max(state.history[-1][0], 1)

    def at(point: tuple[float, float]) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * point[0] / last
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - point[1]) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for k in range(5):
        value = low + (high - low) * k / 4
        x, y = at((0, value)).split(",")
        parts.append(f'<line x1="{x}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{value:+.1f} %</text>')
    for (name, line), place in zip(lines.items(), (LEFT, LEFT + 120), strict=True):
        colour = COLOURS[name]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(map(at, line))}"/>'
            f'<text x="{place}" y="18" fill="{colour}">{name}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"iterations (0 to {last}), mean completion time compared with the start</text></svg>"
    )
    path.write_text("\n".join(parts) + "\n")

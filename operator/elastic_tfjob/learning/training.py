"""One training: a teacher's decisions first if asked for, then reinforcement; what is best on the select seeds is kept.

A run is a function of its Plan: each iteration draws from its own seed, so one that was stopped goes on as if not.
"""

import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from elastic_tfjob.learning.actor_critic import ActorCritic
from elastic_tfjob.learning.episodes import Episode, draw, mean_jct_s, of_network, of_profile
from elastic_tfjob.learning.evolution import Evolution, cost
from elastic_tfjob.learning.method import Memory, Method
from elastic_tfjob.learning.supervision import examples_of, fit
from elastic_tfjob.scheduling.profiles.dl2.network import (
    JOB_FEATURES,
    SIZE_FEATURES,
    Floats,
    Network,
    flat,
    greedy,
    of_flat,
)

__all__ = [
    "METHODS",
    "RIVALS",
    "Drawn",
    "Plan",
    "State",
    "Workloads",
    "begin",
    "compare",
    "load",
    "replace_file",
    "save",
    "train",
]

UNITS: Final = 16
SPREAD: Final = 0.3
RIVALS: Final = ("drf", "optimus", "hull")
METHODS: Final[Mapping[str, type[Evolution] | type[ActorCritic]]] = {
    kind.name: kind for kind in (Evolution, ActorCritic)
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained, and for how long. `teacher` empty: begin with the greedy network. `train`, `select`: numbers of
    episodes to choose from, and to choose on. `models`: only these in all of them (empty: all). `without`: features
    that the network is not told."""

    seed: int = 0
    iterations: int = 60
    teacher: str = ""
    passes: int = 30
    lessons: int = 12
    """Episodes of the teacher."""
    train: int = 200
    select: int = 12
    every: int = 10
    """Iterations between two looks at the select seeds."""
    models: tuple[str, ...] = ()
    workloads: str = ""
    """What tells given workloads from others; empty: they are drawn."""
    without: tuple[str, ...] = ()
    method: Method = field(default_factory=Evolution)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a training is. `history` has (iteration, mean cost of what was tried, cost on the select seeds or None)."""

    plan: Plan
    weights: Floats
    memory: Memory
    best: Floats
    best_cost: float
    iteration: int = 0
    history: tuple[tuple[int, float, float | None], ...] = ()
    losses: tuple[float, ...] = ()

    @property
    def network(self) -> Network:
        """The best one on the select seeds so far."""
        return of_flat(self.best, UNITS)


class Workloads(Protocol):
    """What weights follow, by number (0 to `Plan.train`), and what they are chosen on."""

    def train(self, number: int) -> Episode: ...

    @property
    def select(self) -> Sequence[Episode]: ...


class Drawn:
    """Those that are drawn by seed."""

    def __init__(self, plan: Plan) -> None:
        self._models = plan.models
        self.select = [draw("select", k, plan.models) for k in range(plan.select)]

    def train(self, number: int) -> Episode:
        return draw("train", number, self._models)


def begin(plan: Plan, network: Network | None = None, workloads: Workloads | None = None) -> State:
    """With this network; without, with the greedy one, or one that learned from the teacher. Raises ValueError for a
    network of another number of hidden units than are trained here."""
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
    weights = flat(network) * told(plan)
    found = cost(of_flat(weights, UNITS), (workloads or Drawn(plan)).select)
    memory = plan.method.begin(weights, UNITS, plan.seed)
    return State(plan, weights, memory, weights, found, 0, ((0, found, found),), tuple(losses))


def told(plan: Plan) -> Floats:
    """1 for each weight, and 0 for those of features that the network is not told."""
    ones = of_flat(np.ones_like(flat(greedy(UNITS))), UNITS)
    for name in plan.without:
        if name in SIZE_FEATURES:
            ones.hidden[SIZE_FEATURES.index(name)] = ones.size_skip[SIZE_FEATURES.index(name)] = 0.0
        else:
            ones.job_skip[JOB_FEATURES.index(name)] = 0.0
    return flat(ones)


def train(state: State, workloads: Workloads | None = None) -> Iterator[State]:
    """The states after each further iteration, up to the plan's number."""
    plan = state.plan
    given, mask = workloads or Drawn(plan), told(plan)

    def some(rng: np.random.Generator, number: int) -> list[Episode]:
        return [given.train(int(k)) for k in rng.choice(plan.train, size=min(number, plan.train), replace=False)]

    learner = plan.method.learner(plan.seed, state.iteration, state.memory, UNITS, some)
    while state.iteration < plan.iterations:
        weights, memory, tried = learner.step(state.iteration, state.weights, state.memory)
        weights = weights * mask
        k, found = state.iteration + 1, None
        best, best_cost = state.best, state.best_cost
        if k % plan.every == 0 or k == plan.iterations:
            found = cost(of_flat(weights, UNITS), given.select)
            if found < best_cost:
                best, best_cost = weights, found
        history = (*state.history, (k, tried, found))
        state = State(plan, weights, memory, best, best_cost, k, history, state.losses)
        yield state


def compare(network: Network, episodes: Sequence[Episode]) -> dict[str, float]:
    """How the network's mean completion times compare with those of other profiles: geometric means of ratios less 1,
    below 0 where it is faster."""
    ours = np.array([mean_jct_s(of_network(network, each), each) for each in episodes])
    found = {}
    for rival in RIVALS:
        theirs = np.array([mean_jct_s(of_profile(rival, each), each) for each in episodes])
        found[rival] = float(np.exp(np.mean(np.log(ours / theirs))) - 1)
    return found


def save(state: State, path: Path) -> None:
    """Everything that going on needs. The file is whole or the one from before."""
    file = io.BytesIO()
    said = {
        "plan": asdict(state.plan),
        "method": state.plan.method.name,
        "best_cost": state.best_cost,
        "iteration": state.iteration,
        "history": state.history,
        "losses": state.losses,
    }
    arrays: dict[str, Any] = {f"memory_{name}": values for name, values in state.memory.items()}
    np.savez(file, said=np.array(json.dumps(said)), weights=state.weights, best=state.best, **arrays)
    replace_file(path, file.getvalue())


def replace_file(path: Path, content: bytes) -> None:
    """The file is whole or the one from before: others may read it at any moment."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    os.replace(beside, path)


def load(path: Path) -> State:
    """Raises ValueError for a file that `save` did not write, or for other features."""
    try:
        with np.load(path, allow_pickle=False) as file:
            said: dict[str, Any] = json.loads(str(file["said"]))
            weights, best = (np.array(file[name], dtype=np.float64) for name in ("weights", "best"))
            method = METHODS[said["method"]](**said["plan"]["method"])
            if missing := asdict(method).keys() - said["plan"]["method"].keys():
                raise ValueError(f"it does not say {', '.join(missing)}")
            memory = {
                name: np.array(file[f"memory_{name}"], dtype=np.float64) for name in method.begin(weights, UNITS, 0)
            }
        names = {name: tuple(said["plan"][name]) for name in ("models", "without")}
        plan = Plan(**{**said["plan"], **names, "method": method})
        history = tuple((k, tried, found) for k, tried, found in said["history"])
        for each in (weights, best):
            of_flat(each, UNITS)
        return State(plan, weights, memory, best, said["best_cost"], said["iteration"], history, tuple(said["losses"]))
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no training of this version: {error}") from error

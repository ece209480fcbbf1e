"""One training: a teacher's decisions first if asked for, then evolution; what is best on the select seeds is kept.

A run is a function of its Plan: each iteration draws from its own seed, so one that was stopped goes on as if not.
"""

import io
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from elastic_tfjob.learning.episodes import Episode, draw, mean_jct_s, of_network, of_profile
from elastic_tfjob.learning.evolution import Strategy, cost, step
from elastic_tfjob.learning.supervision import examples_of, fit
from elastic_tfjob.scheduling.profiles.dl2.network import Floats, Network, flat, greedy, of_flat

__all__ = ["Drawn", "Plan", "State", "Workloads", "begin", "compare", "load", "replace_file", "save", "train"]

UNITS: Final = 16
SPREAD: Final = 0.3
RIVALS: Final = ("drf", "optimus", "hull")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained, and for how long. `teacher` empty: begin with the greedy network. `train`, `select`: numbers of
    episodes to choose from, and to choose on. `models`: only these in all of them (empty: all)."""

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
    strategy: Strategy = field(default_factory=Strategy)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a training is. `history` has (iteration, mean cost of what was tried, cost on the select seeds or None)."""

    plan: Plan
    weights: Floats
    drift: Floats
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
    weights = flat(network)
    found = cost(network, (workloads or Drawn(plan)).select)
    return State(plan, weights, np.zeros_like(weights), weights, found, 0, ((0, found, found),), tuple(losses))


def train(state: State, workloads: Workloads | None = None) -> Iterator[State]:
    """The states after each further iteration, up to the plan's number."""
    plan = state.plan
    given = workloads or Drawn(plan)
    while state.iteration < plan.iterations:
        rng = np.random.default_rng([plan.seed, state.iteration])
        seeds = rng.choice(plan.train, size=min(plan.strategy.episodes, plan.train), replace=False)
        episodes = [given.train(int(k)) for k in seeds]
        weights, drift, tried = step(
            state.weights,
            state.drift,
            UNITS,
            strategy=plan.strategy,
            rng=rng,
            cost_of=partial(cost, episodes=episodes),
        )
        k, found = state.iteration + 1, None
        best, best_cost = state.best, state.best_cost
        if k % plan.every == 0 or k == plan.iterations:
            found = cost(of_flat(weights, UNITS), given.select)
            if found < best_cost:
                best, best_cost = weights, found
        history = (*state.history, (k, tried, found))
        state = State(plan, weights, drift, best, best_cost, k, history, state.losses)
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
        "best_cost": state.best_cost,
        "iteration": state.iteration,
        "history": state.history,
        "losses": state.losses,
    }
    np.savez(file, said=np.array(json.dumps(said)), weights=state.weights, drift=state.drift, best=state.best)
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
            weights, drift, best = (np.array(file[name], dtype=np.float64) for name in ("weights", "drift", "best"))
        plan = said["plan"]
        plan = Plan(**{**plan, "models": tuple(plan["models"]), "strategy": Strategy(**plan["strategy"])})
        history = tuple((k, tried, found) for k, tried, found in said["history"])
        for each in (weights, drift, best):
            of_flat(each, UNITS)
        return State(plan, weights, drift, best, said["best_cost"], said["iteration"], history, tuple(said["losses"]))
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no training of this version: {error}") from error

"""Episodes for training: workloads on small clusters in DL2's setting, drawn by seed; the run of a policy on an
episode; and the interface of learning methods.

A policy trained on one kind of load is worse on other loads. Therefore the number of nodes, the load, the job lengths
and the mix of models are drawn for each episode. Some episodes have only short jobs. In some episodes policies know the
true speeds, in others only the fit of Optimus' formula.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np

from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile, Step
from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.profiles.dl2 import LearnedSizes
from elastic_tfjob.scheduling.profiles.dl2.network import Floats, Network
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.formats import DL2_SLOT_S, parse_csv
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import SpeedModel
from elastic_tfjob.simulation.speed_models.ps import MODELS, PsMeasuredSpeedModel, PsSpeedModel

__all__ = [
    "TEACHERS",
    "Draw",
    "Episode",
    "Learner",
    "Memory",
    "Method",
    "Split",
    "Stepped",
    "draw",
    "mean_jct_s",
    "of_network",
    "of_profile",
]

Split = Literal["train", "select", "judge", "test"]
"""The sets of seeds: `train` for updating weights, `select` for choosing among weights, `judge` for accepting the
chosen weights in a live cluster, `test` for results, which no choice is based on."""
CPUS, ACCELERATORS, MEMORY_GIB = 8, 2, 64
"""The resources of a node, as in DL2."""
FIRST_RESIDUALS: Final = {"train": 1_000_000, "select": 2_000_000, "test": 3_000_000, "judge": 4_000_000}
"""The first seeds for the speed residuals of `ps-measured`, by set. No benchmark uses these seeds."""
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "drf": {"on_full": "stop"},
    "optimus": {"on_full": "stop", "per_resource": False, "oracle": True, "repack": False},
    "hull": {"oracle": True},
    "dl2": {"oracle": True},
}
"""Parameters of these profiles, as in DL2's simulator. Other profiles have their defaults."""
TEACHERS: Final = ("drf", "optimus", "hull", "tetris")
"""The profiles that decide the number of replicas of each job in every slot."""


MOST_ROUNDS: Final = 20_000
"""The maximum number of rounds in one run. A usual run has a few hundred."""
"""Resizes cost nothing, as in DL2's simulator."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A workload on a cluster. `slot_s`: the length of a slot in seconds; sizes change once per slot."""

    inputs: SimulationInput
    slot_s: float


def draw(split: Split, seed: int, models: Collection[str] = ()) -> Episode:
    """The episode of this seed, with these models only (empty: all)."""
    rng = Random(f"{split} {seed}")
    names = [name for name in MODELS if not models or name in models]
    weights = [rng.choice((0.0, 1.0, 1.0, 2.0)) for _ in names]
    weights = weights if any(weights) else [1.0] * len(names)
    nodes, slot_s = rng.choice((4, 6, 8, 13, 16, 24)), rng.choice((300.0, 1200.0))
    jobs = max(4, round(nodes * rng.uniform(0.8, 2.5)))
    epochs = slot_s * math.exp(rng.uniform(math.log(0.3), math.log(24.0)))
    most = rng.randint(1, 6)
    rows: list[str] = []
    slot = 0
    while len(rows) < jobs:
        for _ in range(min(jobs - len(rows), rng.randint(0, most))):
            model = rng.choices(names, weights)[0]
            length = MODELS[model].length * epochs * rng.lognormvariate(0.0, 0.3)
            rows.append(f"job-{len(rows):03},{slot * slot_s / DL2_SLOT_S},{model},{length}")
        slot += 1
    workload, _ = parse_csv("job_id,arrival_slot,model,epochs\n" + "\n".join(rows), "dl2")
    residuals = FIRST_RESIDUALS[split] + rng.randrange(1_000_000)
    speed_model: SpeedModel = PsSpeedModel()
    if rng.random() < 0.7:
        speed_model = PsMeasuredSpeedModel(seed=residuals, oracle_speed=rng.choice(("truth", "truth", "fit")))
    cluster = tuple(uniform_cluster(nodes, ACCELERATORS, CPUS, MEMORY_GIB))
    return Episode(SimulationInput(workload.jobs, cluster, speed_model, seed=seed), slot_s)


def of_profile(name: str, episode: Episode) -> Profile:
    """The profile `name` with the slots of this episode."""
    settings = {"place": "count", "interval_s": episode.slot_s, "on_change": False, **SETTINGS.get(name, {})}
    return build(name, parse_profile(name, settings))


def of_network(network: Network, episode: Episode) -> Profile:
    """The profile `dl2` with this network."""
    return replace(of_profile("dl2", episode), steps=(LearnedSizes(network),))


def mean_jct_s(profile: Profile, episode: Episode, *more: Step) -> float:
    """The mean completion time of one run in seconds. `more` are steps that follow the profile's own steps in every
    round. Raises ValueError if a job never finishes, or not within MOST_ROUNDS rounds."""
    profile = replace(profile, steps=(*profile.steps, *more))
    rounds = count()

    def check(_: Plan) -> None:
        if next(rounds) > MOST_ROUNDS:
            raise ValueError(f"some jobs do not finish within {MOST_ROUNDS} rounds with profile {profile.name}")

    simulation = Simulation(episode.inputs, profile, check=check)
    outcome = simulation.run()
    times = [record.jct_s for record in outcome.records if record.jct_s is not None]
    if len(times) < len(episode.inputs.jobs):
        raise ValueError(f"{len(episode.inputs.jobs) - len(times)} jobs never finish with profile {profile.name}")
    return sum(times) / len(times)


# -- The interface of reinforcement learning methods -------------------------------------------------------------------

Memory = Mapping[str, Floats]
"""The state of a method between iterations, in addition to the weights."""
Draw = Callable[[np.random.Generator, int], Sequence[Episode]]
"""A function that draws the given number of episodes at random."""


class Stepped(NamedTuple):
    """The result of one iteration. `tried`: the mean cost of the weights tried in it."""

    weights: Floats
    memory: Memory
    tried: float


class Learner(Protocol):
    """One training. Step number k is a function of k and of the weights and memory after step k - 1."""

    def step(self, k: int, weights: Floats, memory: Memory) -> Stepped: ...


class Method(Protocol):
    """A learning method with its settings."""

    @property
    def name(self) -> str: ...

    def begin(self, weights: Floats, units: int, seed: int) -> Memory:
        """The memory before the first iteration."""

    def learner(self, seed: int, done: int, memory: Memory, units: int, draw: Draw) -> Learner:
        """A learner that continues after `done` iterations, which ended with this memory."""

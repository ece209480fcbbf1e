"""Workloads to learn on: small clusters and jobs of DL2's setting, drawn by seed, and one run of a policy on each.

A policy that learns on one kind of load loses on others, so number of nodes, load, lengths and mix of models are drawn
anew for each, with short jobs only among them, and both kinds of speeds that a policy may be told.
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
from elastic_tfjob.scheduling.snapshot import Node
from elastic_tfjob.simulation.engine import Simulation
from elastic_tfjob.simulation.formats import DL2_SLOT_S, parse_csv
from elastic_tfjob.simulation.live_job import Costs
from elastic_tfjob.simulation.runner import uniform_cluster
from elastic_tfjob.simulation.speed_models.base import SpeedModel
from elastic_tfjob.simulation.speed_models.ps import MODELS, PsMeasuredSpeedModel, PsSpeedModel
from elastic_tfjob.simulation.workload import WorkloadJob

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
"""Which seeds: those that weights follow, those that choose among weights, those by which a live cluster accepts what
was chosen, and those that nothing was chosen on."""
CPUS, ACCELERATORS, MEMORY_GIB = 8, 2, 64
"""Of a node, as in DL2."""
FIRST_RESIDUALS: Final = {"train": 1_000_000, "select": 2_000_000, "test": 3_000_000, "judge": 4_000_000}
"""Seeds of the speeds of `ps-measured`: none that a benchmark uses."""
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "drf": {"on_full": "stop"},
    "optimus": {"on_full": "stop", "per_resource": False, "oracle": True, "repack": False},
    "hull": {"oracle": True},
    "dl2": {"oracle": True},
}
"""Of these profiles, as in DL2's simulator; others are as they come."""
TEACHERS: Final = ("drf", "optimus", "hull", "tetris")
"""Profiles that decide how many replicas jobs have, for each slot anew."""


MOST_ROUNDS: Final = 20_000
"""Of one run, which has some hundred."""
NO_COSTS: Final = Costs()
"""As in DL2's simulator: changes of size cost nothing."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A workload on a cluster. `slot_s`: sizes change once a slot."""

    jobs: tuple[WorkloadJob, ...]
    nodes: tuple[Node, ...]
    slot_s: float
    speed_model: SpeedModel
    seed: int
    costs: Costs = NO_COSTS


def draw(split: Split, seed: int, models: Collection[str] = ()) -> Episode:
    """The workload of this seed, of these models only (empty: all)."""
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
        speed_model = PsMeasuredSpeedModel(seed=residuals, told=rng.choice(("truth", "truth", "fit")))
    cluster = tuple(uniform_cluster(nodes, ACCELERATORS, CPUS, MEMORY_GIB))
    return Episode(workload.jobs, cluster, slot_s, speed_model, seed)


def of_profile(name: str, episode: Episode) -> Profile:
    """This profile with DL2's slots."""
    said = {"place": "count", "interval_s": episode.slot_s, "on_change": False, **SETTINGS.get(name, {})}
    return build(name, parse_profile(name, said))


def of_network(network: Network, episode: Episode) -> Profile:
    """The profile `dl2` with this network."""
    return replace(of_profile("dl2", episode), steps=(LearnedSizes(network),))


def mean_jct_s(profile: Profile, episode: Episode, *more: Step) -> float:
    """The mean completion time of one run; `more` are steps that follow the profile's own in every round. Raises
    ValueError where a job never finishes, or not within MOST_ROUNDS."""
    profile = replace(profile, steps=(*profile.steps, *more))
    rounds = count()

    def check(_: Plan) -> None:
        if next(rounds) > MOST_ROUNDS:
            raise ValueError(f"not all jobs finish within {MOST_ROUNDS} rounds under {profile.name}")

    simulation = Simulation(
        episode.jobs, episode.nodes, episode.speed_model, profile, costs=episode.costs, seed=episode.seed, check=check
    )
    outcome = simulation.run()
    times = [record.jct_s for record in outcome.records if record.jct_s is not None]
    if len(times) < len(episode.jobs):
        raise ValueError(f"{len(episode.jobs) - len(times)} jobs never finish under {profile.name}")
    return sum(times) / len(times)


# -- What training asks of a method of reinforcement -------------------------------------------------------------------

Memory = Mapping[str, Floats]
"""What a method keeps from one iteration to the next, beside the weights."""
Draw = Callable[[np.random.Generator, int], Sequence[Episode]]
"""So many workloads to learn on, by chance."""


class Stepped(NamedTuple):
    """After one iteration; `tried`: the mean cost of what was tried in it."""

    weights: Floats
    memory: Memory
    tried: float


class Learner(Protocol):
    """One training; `step` number k is a function of k, the weights and the memory after step k - 1."""

    def step(self, k: int, weights: Floats, memory: Memory) -> Stepped: ...


class Method(Protocol):
    """A method and its settings."""

    @property
    def name(self) -> str: ...

    def begin(self, weights: Floats, units: int, seed: int) -> Memory:
        """The memory before the first iteration."""

    def learner(self, seed: int, done: int, memory: Memory, units: int, draw: Draw) -> Learner:
        """One that goes on after `done` iterations, which ended with this memory."""

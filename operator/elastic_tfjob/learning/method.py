"""What training asks of a method of reinforcement."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from elastic_tfjob.learning.episodes import Episode
from elastic_tfjob.scheduling.profiles.dl2.network import Floats

__all__ = ["Draw", "Learner", "Memory", "Method", "Stepped"]

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

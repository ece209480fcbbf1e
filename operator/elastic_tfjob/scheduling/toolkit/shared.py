"""Steps of one profile that share what they know of a round."""

from collections.abc import Callable, Hashable
from typing import TypeVar

from elastic_tfjob.scheduling.profile import Step
from elastic_tfjob.scheduling.round import Round

__all__ = ["sharing"]

T = TypeVar("T")


def sharing(step: Callable[[T], None], key: Hashable, make: Callable[[Round], T]) -> Step:
    """The step as one of a Round, on what the round's steps of this key share: the first of them has it made."""

    def act(round_: Round) -> None:
        step(round_.shared(key, lambda: make(round_)))

    return act

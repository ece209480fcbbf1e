"""The registry of profiles: a name, and the class of parameters that composes the profile."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from elastic_tfjob.api.scenario import wrong_places
from elastic_tfjob.api.words import did_you_mean
from elastic_tfjob.scheduling.core import ProfileParameters
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.profiles.aryl import ArylParameters
from elastic_tfjob.scheduling.profiles.baselines import (
    DrfParameters,
    EdfParameters,
    FifoBackfillParameters,
    FifoParameters,
    FixedParameters,
    HullParameters,
    LasParameters,
    OptimusParameters,
    RebalanceParameters,
    SjfBackfillParameters,
    SjfParameters,
    SrtfParameters,
)
from elastic_tfjob.scheduling.profiles.deadline import DeadlineParameters
from elastic_tfjob.scheduling.profiles.dl2 import Dl2Parameters
from elastic_tfjob.scheduling.profiles.elastic import ElasticProfileParameters
from elastic_tfjob.scheduling.profiles.kips import KipsParameters
from elastic_tfjob.scheduling.profiles.specon import SpeconParameters
from elastic_tfjob.scheduling.profiles.tetris import TetrisParameters

__all__ = ["PROFILES", "ProfileParameters", "build", "parse_profile"]

PROFILES: dict[str, type[ProfileParameters]] = {
    "fixed": FixedParameters,
    "fifo": FifoParameters,
    "fifo-backfill": FifoBackfillParameters,
    "sjf": SjfParameters,
    "sjf-backfill": SjfBackfillParameters,
    "srtf": SrtfParameters,
    "las": LasParameters,
    "edf": EdfParameters,
    "drf": DrfParameters,
    "tetris": TetrisParameters,
    "optimus": OptimusParameters,
    "hull": HullParameters,
    "dl2": Dl2Parameters,
    "kips": KipsParameters,
    "deadline": DeadlineParameters,
    "specon": SpeconParameters,
    "rebalance": RebalanceParameters,
    "aryl": ArylParameters,
    "elastic": ElasticProfileParameters,
}


def parse_profile(name: str, settings: Mapping[str, Any]) -> ProfileParameters:
    """The parameters of profile `name` with these settings. Raises ValueError that names an unknown profile, or each
    wrong setting, what was found and what there is.
    """
    model = PROFILES.get(name)
    if model is None:
        raise ValueError(
            f"no profile {name!r}; there are {', '.join(PROFILES)}.{did_you_mean(name, PROFILES)}".rstrip(".")
        )
    try:
        return model.model_validate(settings)
    except ValidationError as e:
        problems = "; ".join(f"{name}.{place}" for place in wrong_places(e))
        unknown = [str(error["loc"][-1]) for error in e.errors() if error["type"] == "extra_forbidden"]
        meant = did_you_mean(unknown[0], model.model_fields) if unknown else ""
        there = f"Parameters of {name}: {', '.join(model.model_fields)}"
        raise ValueError(f"{problems}. {there}{'.' + meant if meant else ''}") from e


def build(name: str, parameters: ProfileParameters) -> Profile:
    """The profile with these parameters. Raises ValueError where they are not those of profile `name`."""
    if PROFILES.get(name) is not type(parameters):
        raise ValueError(f"{type(parameters).__name__} are not the parameters of a profile {name!r}")
    return parameters.profile(name)

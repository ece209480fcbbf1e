"""The registry of profiles: for each name, the class of parameters that composes the profile.

PROFILES has the profiles of this repository; `all_profiles` also has those of installed packages."""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from pydantic import ValidationError

from elastic_tfjob.api.scenario import keys_at, wrong_places
from elastic_tfjob.api.words import did_you_mean, error_in_words
from elastic_tfjob.scheduling.core import ProfileParameters
from elastic_tfjob.scheduling.installed_profiles import InstalledProfiles, load_installed_profiles
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
from elastic_tfjob.scheduling.profiles.pollux import PolluxParameters
from elastic_tfjob.scheduling.profiles.sia import SiaParameters
from elastic_tfjob.scheduling.profiles.specon import SpeconParameters
from elastic_tfjob.scheduling.profiles.tetris import TetrisParameters
from elastic_tfjob.scheduling.rules import Need, Order

__all__ = [
    "PROFILES",
    "ProfileParameters",
    "all_profiles",
    "build",
    "installed_profiles",
    "parse_profile",
    "there_are",
]

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
    "pollux": PolluxParameters,
    "sia": SiaParameters,
    "dl2": Dl2Parameters,
    "kips": KipsParameters,
    "deadline": DeadlineParameters,
    "specon": SpeconParameters,
    "rebalance": RebalanceParameters,
    "aryl": ArylParameters,
    "elastic": ElasticProfileParameters,
}


@cache
def installed_profiles() -> InstalledProfiles:
    """The profiles of installed packages, imported once."""
    return load_installed_profiles(taken=PROFILES)


def all_profiles() -> dict[str, type[ProfileParameters]]:
    """Every profile that can be chosen here."""
    return PROFILES | {name: model for name, model in installed_profiles().profiles.items() if name not in PROFILES}


def there_are(name: str) -> str:
    """A text that lists the existing profiles, for a person who requested an unknown one."""
    for problem in installed_profiles().problems:
        if problem.profile == name:
            return str(problem)
    known = all_profiles()
    return f"allowed: {', '.join(known)}.{did_you_mean(name, known)}".rstrip(".")


def parse_profile(name: str, settings: Mapping[str, Any]) -> ProfileParameters:
    """The parameters of profile `name` with these settings. Raises ValueError that names an unknown profile, or each
    wrong setting, what was found and what there is.
    """
    model = all_profiles().get(name)
    if model is None:
        raise ValueError(f"unknown profile {name!r}; {there_are(name)}")
    try:
        return model.model_validate(settings)
    except ValidationError as e:
        problems = "; ".join(f"{name}.{_with_keys(problem, model)}" for problem in wrong_places(e))
        unknown = [
            str(error["loc"][0]) for error in e.errors() if error["type"] == "extra_forbidden" and not error["loc"][1:]
        ]
        if not unknown:
            raise ValueError(problems) from e
        there = f"Parameters of {name}: {', '.join(model.model_fields)}"
        raise ValueError(f"{problems}. {there}.{did_you_mean(unknown[0], model.model_fields)}".rstrip(".")) from e
    except Exception as e:
        raise _broken(name, e) from e


def _with_keys(problem: str, model: type[ProfileParameters]) -> str:
    """The problem, for an unknown key within a parameter with the keys that are allowed there."""
    place, unknown, _ = problem.partition(" is not known")
    within, _, key = place.rpartition(".")
    if not (unknown and within):
        return problem
    known = keys_at(model, within.split("."))
    return f"{place} is not known; allowed: {', '.join(known)}.{did_you_mean(key, known)}".rstrip(".")


def build(name: str, parameters: ProfileParameters) -> Profile:
    """The profile with these parameters. Raises ValueError if they are not parameters of the profile `name`, or if an
    installed profile cannot be built."""
    if all_profiles().get(name) is not type(parameters):
        raise ValueError(f"{type(parameters).__name__} is not the parameter class of profile {name!r}")
    if name in PROFILES:
        return parameters.profile(name)
    try:
        profile = parameters.profile(name)
        unknown = sorted(profile.needs - frozenset(get_args(Need)))
        if not unknown:
            _check_parts(profile)
    except ValueError:
        raise
    except Exception as e:
        raise _broken(name, e) from e
    if unknown:
        raise ValueError(f"profile {name}: unknown needs {', '.join(map(repr, unknown))}; allowed: those of rules.Need")
    return profile


def _check_parts(profile: Profile) -> None:
    """Raises TypeError for an order or steps that would fail in each round, or do nothing. The order is hashed, because
    queues are kept for equal orders."""
    if not isinstance(profile.order, Order):
        raise TypeError(f"the order is {profile.order!r:.60}, which is no instance of a subclass of Order")
    hash(profile.order)
    if not profile.steps:
        raise TypeError("stages() gives no steps, so that no job would ever start")
    for step in profile.steps:
        if isinstance(step, type) or not callable(step):
            raise TypeError(f"the step {step!r:.60} is no function of a Round; a class needs to be instantiated")


def _broken(name: str, error: Exception) -> ValueError:
    package = installed_profiles().packages.get(name)
    of = f" of package {package}" if package else ""
    return ValueError(f"profile {name}{of} fails: {error_in_words(error)}")

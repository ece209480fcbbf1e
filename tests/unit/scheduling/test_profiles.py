"""The registry of profiles, and what each needs of the world."""

from typing import Any, get_args

import pytest

from elastic_tfjob.scheduling.core import ProfileParameters
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.rules import Need


def needs(name: str, **settings: Any) -> set[str]:
    return set(build(name, parse_profile(name, settings)).needs)


@pytest.mark.parametrize("name", PROFILES)
def test_each_name_has_parameters_with_stages_and_words(name: str) -> None:
    profile = build(name, parse_profile(name, {}))
    assert profile.name == name
    assert profile.steps
    assert profile.needs <= set(get_args(Need))
    assert PROFILES[name].__doc__


def test_a_profile_cannot_be_without_stages() -> None:
    class Forgotten(ProfileParameters):
        """Parameters alone."""

    with pytest.raises(TypeError, match="stages"):
        Forgotten.model_validate({})


def test_a_name_without_a_profile_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown profile 'kipz'; allowed: fixed, fifo"):
        parse_profile("kipz", {})
    with pytest.raises(ValueError, match="not the parameter class of profile 'kipz'"):
        build("kipz", parse_profile("kips", {}))


def test_parameters_of_one_profile_do_not_build_another() -> None:
    with pytest.raises(ValueError, match="SrtfParameters is not the parameter class of profile 'las'"):
        build("las", parse_profile("srtf", {}))


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("fixed", {}, set()),
        ("fixed", {"lend": "offered"}, {"loans", "stop"}),
        ("fifo", {"place": "count"}, {"totals"}),
        ("sjf", {}, {"duration", "speed", "oracle"}),
        ("sjf", {"oracle": False}, {"duration", "speed"}),
        ("srtf", {"oracle": False}, {"duration", "speed", "stop"}),
        ("las", {}, {"service", "stop"}),
        ("edf", {}, {"oracle", "deadline", "speed", "stop", "resize"}),
        ("drf", {}, {"resize", "stop", "samples"}),
        ("drf", {"min_gain": 0.1}, {"resize", "stop", "samples", "speed"}),
        ("tetris", {}, {"resize", "duration", "speed", "samples"}),
        ("optimus", {}, {"resize", "stop", "speed", "move", "repack", "samples"}),
        ("optimus", {"repack": False, "sample_points": 0}, {"resize", "stop", "speed"}),
        ("kips", {}, {"resize", "cpu", "use", "speed", "duration", "service", "history"}),
        ("rebalance", {}, {"move", "use", "service"}),
        ("las", {"promote_knob": 2}, {"service", "stop"}),
    ],
)
def test_needs_follow_from_the_parameters(name: str, settings: dict[str, Any], expected: set[str]) -> None:
    assert needs(name, **settings) == expected

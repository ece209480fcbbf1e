"""The table of both worlds says what the code does."""

from dataclasses import MISSING, fields

import pytest

from elastic_tfjob.scheduling import contract, snapshot
from elastic_tfjob.scheduling.profiles import PROFILES, parse_profile


def test_every_field_is_in_the_table() -> None:
    for name, known in contract.FIELDS.items():
        kind = getattr(snapshot, name)
        there = (
            [each.name for each in fields(kind)]
            if name != "Snapshot"
            else ["now", "nodes", "jobs", "seed", "pools", "history"]
        )
        assert sorted(known) == sorted(there), name


def test_what_a_world_lacks_has_a_default() -> None:
    for name, known in contract.FIELDS.items():
        if name == "Snapshot":
            continue
        defaults = {
            each.name
            for each in fields(getattr(snapshot, name))
            if (each.default, each.default_factory) != (MISSING,) * 2
        }
        assert {field for field, both in known.items() if not (both.live and both.simulated)} <= defaults


@pytest.mark.parametrize("parameter", contract.LIVE_LACKS)
def test_what_is_refused_is_a_parameter(parameter: str) -> None:
    profiles = [name for name in PROFILES if parameter in type(parse_profile(name, {})).model_fields]
    assert profiles
    for name in profiles:
        parse_profile(name, {parameter: contract.LIVE_LACKS[parameter].off})

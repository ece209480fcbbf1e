"""The table of both worlds says what the code does."""

from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest

from elastic_tfjob.scheduling import contract, snapshot
from elastic_tfjob.scheduling.contract import passed_over, refusals
from elastic_tfjob.scheduling.profiles import PROFILES, build, parse_profile
from elastic_tfjob.scheduling.rules import Need


def test_every_field_is_in_the_table() -> None:
    for name, known in contract.FIELDS.items():
        kind = getattr(snapshot, name)
        there = (
            [each.name for each in fields(kind)]
            if name != "Snapshot"
            else [each for each in kind.__slots__ if each != "_indexes"]
        )
        assert sorted(known) == sorted(there), name


def test_a_field_that_a_world_lacks_has_a_default() -> None:
    for name, known in contract.FIELDS.items():
        if name == "Snapshot":
            continue
        defaults = {
            each.name
            for each in fields(getattr(snapshot, name))
            if (each.default, each.default_factory) != (MISSING,) * 2
        }
        assert {field for field, both in known.items() if not (both.live and both.simulated)} <= defaults


def test_each_need_is_in_the_table() -> None:
    assert set(get_args(Need)) == set(contract.NEEDS)
    for need, met in contract.NEEDS.items():
        assert met.simulated, need
        assert bool(met.why) or bool(met.live), need


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("edf", {"oracle": True}, "profiles.edf.oracle: only a simulation knows the true values"),
        ("optimus", {"sample_points": 3}, "profiles.optimus.sample_points: only a simulation measures"),
        ("drf", {"repack": True}, "profiles.drf.repack: only a simulation places a resized job again"),
        ("fifo", {"place": "count"}, "profiles.fifo.place: replicas need nodes"),
    ],
)
def test_a_need_that_no_live_cluster_has_is_refused_with_a_message(
    name: str, settings: dict[str, Any], words: str
) -> None:
    (problem,) = refusals(name, settings)
    assert problem.startswith(words)


@pytest.mark.parametrize(
    ("name", "settings", "parameters"),
    [
        ("las", {}, []),
        ("kips", {}, []),
        ("srtf", {}, ["oracle"]),
        ("srtf", {"oracle": False}, []),
        ("optimus", {}, ["repack", "sample_points"]),
        ("optimus", {"repack": False}, ["sample_points"]),
        ("aryl", {}, ["oracle", "sample_points"]),
    ],
)
def test_defaults_that_a_live_cluster_passes_over(name: str, settings: dict[str, Any], parameters: list[str]) -> None:
    found = passed_over(name, settings)
    assert sorted(found) == parameters
    assert all(why.startswith("only a simulation ") for why in found.values())


def test_every_default_that_a_live_cluster_lacks_is_reported() -> None:
    for name in PROFILES:
        lacks = {need for need in build(name, parse_profile(name, {})).needs if not contract.NEEDS[need].live}
        assert len(passed_over(name, {})) == len(lacks), name


def test_two_parameters_that_ask_for_the_same_are_refused_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another value of one of them alone would not do."""
    loans = contract.NEEDS["loans"]._replace(live="", why="no node is lent")
    monkeypatch.setattr(contract, "NEEDS", {**contract.NEEDS, "loans": loans})
    lend, reclaim = refusals("kips", {"lend": "offered", "reclaim": "cost"})
    assert lend.startswith("profiles.kips.lend: no node")
    assert reclaim.startswith("profiles.kips.reclaim: no node")


@pytest.mark.parametrize("name", PROFILES)
def test_defaults_are_passed_over(name: str) -> None:
    """Each profile can be chosen, with what its parameters are by default and with what changes nothing; but for one
    whose defaults are what it is for, and the live world lacks."""
    always = parse_profile(name, {}).stages().needs
    lacks = sorted(need for need in always if not contract.NEEDS[need].live)
    assert refusals(name, {}) == [f"profiles.{name}: {contract.NEEDS[need].why}" for need in lacks]
    assert refusals(name, {"oracle": False, "lend": "none", "place": "spread", "stop_cooldown_s": 5}) == []


def test_nothing_but_the_table_says_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusals("kips", {"lend": "offered"}) == []
    loans = contract.NEEDS["loans"]._replace(live="", why="no node is lent")
    monkeypatch.setattr(contract, "NEEDS", {**contract.NEEDS, "loans": loans})
    assert refusals("kips", {"lend": "offered"}) == ["profiles.kips.lend: no node is lent; allowed: none"]


def test_a_profile_that_cannot_do_without_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = contract.NEEDS["stop"]._replace(live="", why="nobody stops a job")
    monkeypatch.setattr(contract, "NEEDS", {**contract.NEEDS, "stop": stop})
    assert refusals("las", {}) == ["profiles.las: nobody stops a job"]
    assert refusals("fifo", {}) == []

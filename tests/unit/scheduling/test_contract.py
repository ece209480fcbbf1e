"""The table of both worlds says what the code does."""

from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest

from elastic_tfjob.scheduling import contract, snapshot, unmet
from elastic_tfjob.scheduling.profile import Need
from elastic_tfjob.scheduling.profiles import PROFILES
from elastic_tfjob.scheduling.unmet import refusals


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


def test_each_need_is_in_the_table() -> None:
    assert set(get_args(Need)) == set(contract.NEEDS)
    for need, met in contract.NEEDS.items():
        assert met.simulated, need
        assert bool(met.why) or bool(met.live), need


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        (
            "kips",
            {"lend": "offered"},
            "profiles.kips.lend: no node of another pool is lent to a live cluster",
        ),
        ("las", {"promote_knob": 2}, "profiles.las.promote_knob: promotions are not stored live; allowed is 0"),
        ("edf", {"oracle": True}, "profiles.edf.oracle: only a simulation knows the truth"),
        ("optimus", {"sample_points": 3}, "profiles.optimus.sample_points: only a simulation measures"),
        ("drf", {"repack": True}, "profiles.drf.repack: only a simulation places a resized job anew"),
        ("fifo", {"place": "count"}, "profiles.fifo.place: a replica needs a node"),
    ],
)
def test_what_a_live_cluster_lacks_is_refused_in_words(name: str, settings: dict[str, Any], words: str) -> None:
    (problem,) = refusals(name, settings)
    assert problem.startswith(words)


@pytest.mark.parametrize("name", PROFILES)
def test_defaults_are_passed_over(name: str) -> None:
    """Each profile can be chosen, with what its parameters are by default and with what changes nothing."""
    assert refusals(name, {}) == []
    assert refusals(name, {"oracle": False, "lend": "none", "place": "spread", "stop_cooldown_s": 5}) == []


def test_a_need_that_the_live_world_meets_by_now_is_refused_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the table says what is refused."""
    loans = contract.NEEDS["loans"]._replace(live="by annotation")
    monkeypatch.setattr(unmet, "NEEDS", {**contract.NEEDS, "loans": loans})
    assert refusals("kips", {"lend": "offered"}) == []


def test_a_profile_that_cannot_do_without_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = contract.NEEDS["stop"]._replace(live="", why="nobody stops a job")
    monkeypatch.setattr(unmet, "NEEDS", {**contract.NEEDS, "stop": stop})
    assert refusals("las", {}) == ["profiles.las: nobody stops a job"]
    assert refusals("fifo", {}) == []

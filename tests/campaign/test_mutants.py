"""The seeded defects are still ones: each replaces what is in its module once, and some of those that are caught soon
are caught here. That all are: `make campaign`."""

from pathlib import Path

import pytest

import elastic_tfjob
from campaign.mutants import MUTANTS
from campaign.run import caught_in_simulation
from campaign.scenarios import SCENARIOS
from campaign.user_actions import PROFILES, USER_ACTIONS

PACKAGE = Path(elastic_tfjob.__file__).parent


@pytest.mark.parametrize("name", MUTANTS)
def test_the_text_of_a_defect_is_in_its_module_once(name: str) -> None:
    mutant = MUTANTS[name]
    source = PACKAGE.joinpath(*mutant.module.split(".")).with_suffix(".py").read_text()
    assert source.count(mutant.old) == 1
    compile(source.replace(mutant.old, mutant.new), mutant.module, "exec")


def test_there_are_enough_defects() -> None:
    assert len(MUTANTS) >= 25
    simulated = [each for each in MUTANTS.values() if each.part == "simulation"]
    acted = {f"{profile}/{USER_ACTIONS}" for profile in PROFILES}
    assert {scenario for each in simulated for scenario in each.first} <= set(SCENARIOS) | acted


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("two-leaders", "only_the_leader_writes"),
        ("room-never-comes-back", "nobody_waits_in_vain"),
        pytest.param("lost-chief-is-waited-for", "nobody_waits_in_vain", marks=pytest.mark.thorough),
        pytest.param("copied-state-counts", "nobody_waits_in_vain", marks=pytest.mark.thorough),
        pytest.param("everybody-is-a-guest", "guests_are_loanable", marks=pytest.mark.thorough),
    ],
)
def test_a_seeded_defect_is_caught(name: str, oracle: str) -> None:
    """By the oracle that is meant for it, in a process of its own."""
    caught, violation = caught_in_simulation(name, 60)
    assert caught == name
    assert oracle in violation

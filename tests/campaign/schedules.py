"""Which schedules there are: each crash point and each watch point of each scenario, and any number of seeds.

A schedule is a text, so that it can be written down, given to another process and run again:

    grow/kill-before/17   the operator dies before its 17th write
    grow/kill-after/17    the operator dies after its 17th write, without the answer
    grow/lost/5           the connection breaks at the 5th watch event; also `delayed` and `replayed`
    grow/chief-lost-at/17 the chief's node loses its power right after the operator's 17th write
    grow/seed/81          many faults, as seed 81 draws them
    kips/user-actions/81  people do what seed 81 draws, under profile kips
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Final, cast

from campaign.faults import EVENT_FAULTS, ChiefLostAt, EventFault, Faults, Kill, KillAt, Seeded, WatchFaultAt
from campaign.scenarios import SCENARIOS
from campaign.user_actions import PROFILES, USER_ACTIONS, play_user_actions
from campaign.world import Outcome, Scenario, run

__all__ = ["chief_points", "crash_points", "of_seed", "play", "undisturbed", "user_actions_of_seed", "watch_points"]

CHIEF_LOST: Final = "chief-lost-at"
CHIEF_SCENARIOS: Final = ("grow", "shrink", "spare", "recreate", "move-worker", "stop")
"""Scenarios in which the chief's node is lost after each write: prepare, switch, recreate, move, stop."""
_KILLS: Final = ("kill-before", "kill-after")


@cache
def undisturbed(scenario: str) -> Outcome:
    """The run in which nothing goes wrong: it says which writes and events there are, and what must come of all.

    Where a person stands in the way the operator tries again for as long as it is looked at: what always comes counts.
    """
    first = run(SCENARIOS[scenario])
    if SCENARIOS[scenario].rests:
        return first
    again = run(SCENARIOS[scenario], expected=first.end)
    return replace(first, writes=first.writes[: len(again.writes)], events=first.events[: len(again.events)])


def crash_points(scenario: str) -> Iterator[str]:
    """The operator dies before and after each of its writes."""
    for write in range(1, len(undisturbed(scenario).writes) + 1):
        for kill in _KILLS:
            yield f"{scenario}/{kill}/{write}"


def watch_points(scenario: str) -> Iterator[str]:
    """Each watch event is lost, late, and told again."""
    for event in range(1, len(undisturbed(scenario).events) + 1):
        for fault in EVENT_FAULTS:
            yield f"{scenario}/{fault}/{event}"


def chief_points(scenario: str) -> Iterator[str]:
    """The chief's node is lost after each write of the operator."""
    if scenario in CHIEF_SCENARIOS:
        for write in range(1, len(undisturbed(scenario).writes) + 1):
            yield f"{scenario}/{CHIEF_LOST}/{write}"


def of_seed(seed: int) -> str:
    """The schedule of a seed: seeds go round the scenarios."""
    names = list(SCENARIOS)
    return f"{names[seed % len(names)]}/seed/{seed}"


def user_actions_of_seed(seed: int) -> str:
    """The schedule of random user actions of a seed: seeds go round the profiles."""
    profiles = list(PROFILES)
    return f"{profiles[seed % len(profiles)]}/{USER_ACTIONS}/{seed}"


def faults_of(kind: str, number: int, scenario: Scenario) -> Faults:
    """What goes wrong in a schedule."""
    if kind in _KILLS:
        return KillAt(write=number, how=cast("Kill", kind.removeprefix("kill-")))
    if kind == CHIEF_LOST:
        return ChiefLostAt(write=number)
    if kind == "seed":
        return Seeded(random=Random(number), harms_pods=not scenario.fragile)
    return WatchFaultAt(number=number, what=cast("EventFault", kind))


def play(schedule: str) -> Outcome:
    """Run a schedule and compare its end with the undisturbed run's."""
    scenario, kind, number = schedule.split("/")
    if kind == USER_ACTIONS:
        return play_user_actions(scenario, int(number))
    expected = undisturbed(scenario)
    if expected.violations:
        return expected
    faults = faults_of(kind, int(number), SCENARIOS[scenario])
    seed = int(number) if kind == "seed" else 0
    outcome = run(
        SCENARIOS[scenario], seed, faults, expected.loose_end if kind in ("seed", CHIEF_LOST) else expected.end
    )
    if kind != "seed" and not faults.struck:
        outcome.violations.append("the fault of this schedule never came: the run before it is not the undisturbed one")
    return outcome

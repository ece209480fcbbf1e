"""The share of the campaign that `make test` and `make test-all` run; all of it: `make campaign`."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from campaign.scenarios import SCENARIOS, TAKEN_OVER
from campaign.schedules import chief_points, crash_points, play, undisturbed, watch_points
from campaign.user_actions import PROFILES, USER_ACTIONS
from campaign.world import Scenario, World, campaign, run
from elastic_tfjob.api.annotations import PREFIX
from harness.effort import effort

_SHARE = effort(1, 6)
"""Points of each kind that are tried here of each scenario, spread over all."""
_SEEDS = effort(1, 4)
"""Of each scenario."""
_LONG = (
    "chief-lost",
    "dies-at-start",
    "dies-at-start-for-good",
    "dies-recreated",
    "edit-overtakes",
    "edit-refused",
    "edit-refused-kips",
    "leaves-slowly",
    "leaves-slowly-elastic",
    "own-port",
    "quota-closes",
)
"""Scenarios in which much is waited for, so that each run takes a second or more: two points of a kind at most, and one
seed or none."""
_USER_ACTIONS = effort(1, 5)
"""Seeds under each profile."""


@pytest.fixture(autouse=True)
def _virtual() -> Iterator[None]:
    """These tests run on virtual clocks."""
    with campaign():
        yield


def _share(name: str, points: list[str]) -> list[str]:
    """Of two scenarios the same share begins elsewhere, so that all of them together meet all kinds of writes."""
    step = max(1, -(-len(points) // (min(2, _SHARE) if name in _LONG else _SHARE)))
    return points[list(SCENARIOS).index(name) * 7 % step :: step]


def _try(schedules: list[str]) -> None:
    found = {schedule: play(schedule).violations for schedule in schedules}
    assert {schedule: violations for schedule, violations in found.items() if violations} == {}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario(name: str) -> None:
    """It comes to rest without a violation, the same seed gives the same run, and it ends as the undisturbed run does
    where the operator dies before or after a write, where an event of a watch is lost, late, or told again, and where
    many faults come at once and stop. One test, for an undisturbed run is half of what that takes. `make test` tries
    each scenario in one of the three ways, and each way on a third of the scenarios."""
    first = undisturbed(name)
    assert first.violations == []
    number = list(SCENARIOS).index(name)
    if number % effort(8, 1) == 0:
        second = run(SCENARIOS[name], expected=first.end)
        assert second.violations == []
        assert second.writes == first.writes
    assert first.writes
    assert first.events
    ways = [_share(name, list(crash_points(name))), _share(name, list(watch_points(name)))]
    if seeds := _SEEDS // 4 if name in _LONG else _SEEDS:
        ways.append([f"{name}/seed/{seed}" for seed in range(seeds)])
    for tried in effort([ways[number % len(ways)]], ways):
        _try(tried)


def test_chief_lost() -> None:
    """The chief's node is lost after a write: the job trains again, or has an event, and gets its size."""
    _try(_share("grow", list(chief_points("grow")))[: effort(1, 3)])


@pytest.mark.parametrize("profile", PROFILES)
def test_user_actions(profile: str) -> None:
    """People do what a seed draws; in the end each job trains with the size that was asked for."""
    _try([f"{profile}/{USER_ACTIONS}/{seed}" for seed in range(_USER_ACTIONS)])


@pytest.mark.thorough  # the scenario `delete` has some of these points above
def test_a_deleted_job_gets_nothing_while_its_watch_is_late() -> None:
    """Of all points, since a change of the operator moves them."""
    _try([point for point in watch_points("delete") if "/delayed/" in point])


@pytest.mark.parametrize("profile", ["kips", "elastic-placed"])
def test_a_pod_that_is_refused_its_node_gets_another_plan_within_30_s(profile: str) -> None:
    """Seconds of the virtual clock, so that no busy machine makes them more."""
    took_s: list[float] = []

    async def act(world: World) -> None:
        def node() -> str:
            target = json.loads(world.job()["metadata"]["annotations"].get(f"{PREFIX}target", "{}"))
            return str(target.get("nodes", {}).get("Chief", [""])[0])

        world.cluster.closed.add("node-a")
        annotations = {f"{PREFIX}placement": "auto"}
        world.submit({"Chief": 1}, cpu="1", annotations=annotations, cleanPodPolicy="Running")
        await world.until(lambda: node() == "node-a")
        begun = asyncio.get_running_loop().time()
        await world.until(lambda: node() == "node-b")
        took_s.append(asyncio.get_running_loop().time() - begun)
        await world.until(lambda: world.has("Running") and world.trains())
        await asyncio.sleep(5)

    configuration = SCENARIOS[profile].configuration
    assert run(Scenario("refused", act, configuration=configuration)).violations == []
    assert len(took_s) == 1
    assert took_s[0] <= 30


@pytest.mark.parametrize(
    "silent", [pytest.param(("tfjobs",), marks=pytest.mark.thorough), ("tfjobs", "pods")], ids=" and ".join
)
@pytest.mark.parametrize("name", TAKEN_OVER)
def test_a_new_leader_does_not_act_on_an_outdated_view(name: str, silent: tuple[str, ...]) -> None:
    """The watches of the standby say nothing from before something happens until long after it leads: what was done is
    not done again, and nothing of it is undone."""
    begin, happens, configuration = TAKEN_OVER[name]
    changed: list[str] = []

    async def act(world: World) -> None:
        await begin(world)
        await asyncio.sleep(70.0)  # by then the profile is content with the nodes
        world.silence_standby(55.0, *silent)
        await happens(world)
        begun = len(world.wire.writes)
        world.kill_leader()
        await asyncio.sleep(60.0)
        changed.extend(each for each in world.wire.writes[begun:] if each.startswith(("POST pods", "DELETE pods")))

    assert run(Scenario("taken-over", act, replicas=2, configuration=configuration)).violations == []
    assert changed == []

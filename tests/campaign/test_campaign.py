"""The share of the campaign that `make test` runs; all of it: `make campaign`."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from campaign.scenarios import SCENARIOS, TAKEN_OVER
from campaign.schedules import chief_points, crash_points, play, undisturbed, watch_points
from campaign.user_actions import PROFILES, USER_ACTIONS
from campaign.world import Scenario, World, campaign, run
from elastic_tfjob.api.annotations import PREFIX

_SHARE = 6
"""Points of each scenario that are tried here, spread over all."""
_SEEDS = 4
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
"""Scenarios in which much is waited for, so that each run takes a second or more: two points of a kind, one seed."""
_USER_ACTIONS = 5
"""Seeds under each profile."""


@pytest.fixture(autouse=True)
def _virtual() -> Iterator[None]:
    """These tests run on virtual clocks."""
    with campaign():
        yield


def _share(name: str, points: list[str]) -> list[str]:
    return points[:: max(1, -(-len(points) // (2 if name in _LONG else _SHARE)))]


def _try(schedules: list[str]) -> None:
    found = {schedule: play(schedule).violations for schedule in schedules}
    assert {schedule: violations for schedule, violations in found.items() if violations} == {}


@pytest.mark.parametrize("name", SCENARIOS)
def test_undisturbed(name: str) -> None:
    """Each scenario comes to rest without a violation, and the same seed gives the same run."""
    first = undisturbed(name)
    assert first.violations == []
    second = run(SCENARIOS[name], expected=first.end)
    assert second.violations == []
    assert second.writes == first.writes
    assert first.writes
    assert first.events


@pytest.mark.parametrize("name", SCENARIOS)
def test_operator_dies(name: str) -> None:
    """Before and after a write: it ends as the undisturbed run does."""
    _try(_share(name, list(crash_points(name))))


@pytest.mark.parametrize("name", SCENARIOS)
def test_watch_breaks(name: str) -> None:
    """An event is lost, late, or told again: it ends as the undisturbed run does."""
    _try(_share(name, list(watch_points(name))))


@pytest.mark.parametrize("name", SCENARIOS)
def test_seeds(name: str) -> None:
    """Many faults at once; when they stop it ends as the undisturbed run does."""
    _try([f"{name}/seed/{seed}" for seed in range(1 if name in _LONG else _SEEDS)])


def test_chief_lost() -> None:
    """The chief's node is lost after a write: the job trains again, or has an event, and gets its size."""
    _try(_share("grow", list(chief_points("grow")))[:3])


@pytest.mark.parametrize("profile", PROFILES)
def test_user_actions(profile: str) -> None:
    """People do what a seed draws; in the end each job trains with the size that was asked for."""
    _try([f"{profile}/{USER_ACTIONS}/{seed}" for seed in range(_USER_ACTIONS)])


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


@pytest.mark.parametrize("silent", [("tfjobs",), ("tfjobs", "pods")], ids=" and ".join)
@pytest.mark.parametrize("name", TAKEN_OVER)
def test_who_takes_over_acts_on_no_view_from_before(name: str, silent: tuple[str, ...]) -> None:
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

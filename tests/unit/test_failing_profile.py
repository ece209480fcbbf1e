"""A profile of an installed package that raises, in the scheduling loop: what the administrator and the jobs' owners
read, what is logged, and that all is well again once the profile works."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from elastic_tfjob.controller.model.settings import Configuration
from elastic_tfjob.controller.schedule import job_entry, loop
from harness.packages import install

from .test_scheduler import GOOD, World, crowd, tfjob

SOURCE = """
from elastic_tfjob.scheduling.core import ProfileParameters, Stages, needs
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.steps.declared_size import FixedSize

broken = True

def step(round_):
    if broken and {when}:
        raise KeyError("boom", round_.now)

class Parameters(ProfileParameters):
    def stages(self):
        return Stages(Fifo(), (step, FixedSize()), needs())
"""
NAMES = {*GOOD, "bad"}


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    monkeypatch.setattr(loop, "_SPACING_S", 0.05)
    monkeypatch.setattr(job_entry, "_FIRST_DELAY_S", 0.5)
    with capture_logs() as entries:
        yield entries


def world_with(site: Path, when: str) -> World:
    install(site, "acme", "mine", SOURCE.format(when=when), "underdog = mine:Parameters")
    return World(crowd(), configuration=Configuration(profile="underdog"))


def reasons(world: World) -> set[str]:
    return {str(target.reason) for target in world.server.targets.values() if not target.replicas}


@pytest.mark.parametrize("when", ["True", "len(round_.waiting_queue)"], ids=["always", "with-any-job"])
async def test_a_profile_that_fails_for_all_jobs_is_reported_until_it_works(
    site: Path, logs: list[Any], when: str
) -> None:
    world = world_with(site, when)
    async with world.running():
        await world.until(lambda: set(world.server.targets) == NAMES)
        assert reasons(world) == {"profile underdog fails, so no job is scheduled"}
        await world.until(lambda: len(world.failing) >= 2)
        for failing in world.failing:
            assert failing is not None
            assert failing.startswith("profile underdog of package acme 1.0 fails: KeyError: ('boom', 1")
            assert failing.endswith(" (mine.py:10)")
        sys.modules["mine"].broken = False  # type: ignore[attr-defined]
        world.scheduler.wake()
        await world.until(lambda: all(target.replicas for target in world.server.targets.values()))
    assert world.failing[-1] is None
    assert None not in world.failing[:-1]
    failed = [each for each in logs if each["event"] == "the profile fails"]
    assert [each["log_level"] for each in failed] == ["warning"], "once, though it failed in several rounds"
    assert any("mine.py:10 step" in line for line in failed[0]["trace"])
    assert [each for each in logs if each["log_level"] == "error"] == []


async def test_the_owner_of_a_job_reads_the_profile_and_the_type_of_its_error(site: Path) -> None:
    world = world_with(site, "'ns/bad' in round_.snapshot.jobs")
    async with world.running():
        await world.until(lambda: set(world.server.targets) >= GOOD and world.left_out == {"bad"})
    message = next(event.message for name, event in world.events if name == "bad")
    assert message.startswith("Skipped by the scheduler, retry in 0 s: profile underdog: KeyError: ('boom', 1")
    assert "mine.py" not in message
    assert world.failing == [], "it decides for the other jobs"
    assert "bad" not in world.server.targets


async def test_the_owner_of_a_job_reads_no_name_of_another_job(site: Path) -> None:
    """The profile fails for two jobs together, so the search blames one of them, with a message about both."""
    source = SOURCE.replace('"boom", round_.now', '" ".join(round_.snapshot.jobs)')
    install(site, "acme", "mine", source.format(when="len(round_.snapshot.jobs) == 2"), "underdog = mine:Parameters")
    world = World([tfjob("one"), tfjob("two")], configuration=Configuration(profile="underdog"))
    async with world.running():
        await world.until(lambda: bool(world.left_out))
    ((_, event),) = world.events[:1]
    assert event.message == "Skipped by the scheduler, retry in 0 s: profile underdog: KeyError"


async def test_a_long_error_is_cut(site: Path) -> None:
    source = SOURCE.replace('"boom"', '"x" * 5000 + chr(27)').replace("{when}", "len(round_.waiting_queue)")
    install(site, "acme", "mine", source, "underdog = mine:Parameters")
    world = World(crowd(), configuration=Configuration(profile="underdog"))
    async with world.running():
        await world.until(lambda: world.left_out == NAMES)
    assert all(len(event.message) < 500 and event.message.isprintable() for _, event in world.events)

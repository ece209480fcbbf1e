"""What a person does with a job whose values go through memory when its parameter servers change."""

import asyncio
from typing import Any, Final

from campaign.acts import (
    KIPS,
    asked_until,
    container_ends,
    move,
    rescaled,
    succeed,
    to_and_fro,
    train,
    train_placed,
    withdrawn,
)
from campaign.world import Scenario, World

__all__ = ["HANDED"]


async def _train(world: World, **options: Any) -> None:
    world.training().gives = True
    await train(world, **options)


async def _grow(world: World) -> None:
    """One parameter server more, then one less, and the job succeeds."""
    await _train(world)
    await rescaled(world, ps=2)
    await rescaled(world, ps=1)
    _is_in_memory(world, 2)
    await succeed(world)


def _is_in_memory(world: World, changes: int) -> None:
    """Where nothing disturbs, values went through memory, and nothing was lost."""
    said = sum("(overlap, in memory)" in line for line in world.log)
    lost = [each["lost_steps"] for each in world.state()["history"]]
    if world.undisturbed and (said, lost) != (changes, [0] * changes):
        world.oracles.fail("values_go_through_memory", f"{said} of {changes}, lost steps {lost}")


async def _mixed(world: World) -> None:
    """Parameter servers and workers change together, with workers alone in between."""
    world.training().live = True
    await _train(world)
    await rescaled(world, ps=2, workers=1)
    await rescaled(world, workers=3)
    await rescaled(world, ps=1, workers=2)


async def _slow(world: World) -> None:
    """The checkpoint of what was given takes half a minute; another size is wanted meanwhile."""
    await _train(world)
    world.training().save_s = 30.0
    await asked_until(world, "Switching", ps=2)
    await asyncio.sleep(5)
    await rescaled(world, ps=1)


async def _not_taken(world: World) -> None:
    """The next program cannot take the values: it waits for the checkpoint of them."""
    await _train(world)
    world.training().takes = False
    await rescaled(world, ps=2)


async def _withdrawn(world: World) -> None:
    """The size is not wanted any more while the values are given."""
    world.training().gives = True
    await withdrawn(world, "ps", 2, 1)


async def _ends(world: World, pod: str) -> None:
    """A pod's container ends before the values are saved: the job goes on from the checkpoint before."""
    await _train(world)
    world.training().save_s = 10.0
    await container_ends(world, pod, ps=2)
    world.training().save_s = 0.0
    await rescaled(world, ps=1)


async def _chief_ends(world: World) -> None:
    await _ends(world, "job-chief-0")


async def _server_ends(world: World) -> None:
    await _ends(world, "job-ps-0")


async def _no_chief(world: World) -> None:
    """The same of a job whose first worker leads."""
    world.training().gives = True
    await train(world, {"PS": 1, "Worker": 2})
    await rescaled(world, ps=2)
    _is_in_memory(world, 1)


async def _moved(world: World) -> None:
    """A parameter server goes to another node."""
    world.training().gives = True
    await train_placed(world)
    await move(world, kind="PS", task=0)


async def _to_and_fro(world: World) -> None:
    """Another size is wanted as soon as the last one is there."""
    world.training().gives = True
    await to_and_fro(world, "ps", 2)


HANDED: Final = (
    Scenario("handed-grow", _grow),
    Scenario("handed-no-chief", _no_chief),
    Scenario("handed-mixed", _mixed),
    Scenario("handed-slow", _slow),
    Scenario("handed-not-taken", _not_taken),
    Scenario("handed-withdrawn", _withdrawn, either=True),
    Scenario("handed-chief-ends", _chief_ends, fragile=True, either=True),
    Scenario("handed-server-ends", _server_ends, fragile=True, either=True),
    Scenario("handed-moved", _moved, configuration=KIPS),
    Scenario("handed-to-and-fro", _to_and_fro),
    Scenario("handed-take-over", _grow, replicas=2),
)

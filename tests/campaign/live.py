"""What a person does with a job whose workers join and leave the running program (mode `live`)."""

from typing import Any, Final

from campaign.acts import (
    KIPS,
    asked_until,
    container_ends,
    drain,
    move,
    rescaled,
    succeed,
    to_and_fro,
    train,
    train_placed,
    withdrawn,
)
from campaign.world import Scenario, World

__all__ = ["LIVE"]

_AGAIN_S: Final = 150.0


async def _grow(world: World) -> None:
    """Two workers more, then one less than at first, and the job succeeds."""
    await _train(world)
    await rescaled(world, workers=4)
    await rescaled(world, workers=1)
    _is_live(world, 2)
    await succeed(world)


async def _train(world: World, **options: Any) -> None:
    world.training().live = True
    await train(world, **options)


def _is_live(world: World, changes: int) -> None:
    """Where nothing disturbs, each change was one of the running program, and lost nothing."""
    done = [(each["mode"], each["lost_steps"]) for each in world.state()["history"]]
    if world.undisturbed and done != [("live", 0)] * changes:
        world.oracles.fail("changes_are_live", f"{done}")


async def _no_chief(world: World) -> None:
    """The same of a job whose first worker leads."""
    world.training().live = True
    await train(world, {"PS": 1, "Worker": 2})
    await rescaled(world, workers=3)
    _is_live(world, 1)
    await rescaled(world, workers=1)


async def _mixed(world: World) -> None:
    """Changes of workers around one of parameter servers, for which another program is started."""
    await _train(world)
    await rescaled(world, workers=3)
    await rescaled(world, ps=2)
    await rescaled(world, workers=2)
    await rescaled(world, ps=1, workers=3)


async def _does_not_join(world: World) -> None:
    """A new worker cannot be used by the running program: another one is started."""
    await _train(world)
    world.training().joins = False
    await rescaled(world, workers=3)
    world.training().joins = True
    await rescaled(world, workers=2)


async def _withdrawn(world: World) -> None:
    """The size is not wanted any more while the program changes to it, or just after that."""
    world.training().live = True
    await withdrawn(world, "workers", 4, 2)


async def _silent(world: World) -> None:
    """The program answers neither the request nor the one to keep its workers: another one is started."""
    await _train(world)
    world.training().answers = False
    world.annotate(target_workers="3")
    await world.until(lambda: world.state()["phase"] == "Stable" and world.state()["replicas"]["Worker"] == 3, _AGAIN_S)
    world.training().answers = True
    await rescaled(world, workers=2)


async def _chief_ends(world: World) -> None:
    """The chief's container ends right after a change: it continues with the workers that there are."""
    await _train(world)
    await container_ends(world, "job-chief-0", workers=4)
    await rescaled(world, workers=1)


async def _moved(world: World) -> None:
    """A worker goes to another node, then back."""
    world.training().live = True
    await train_placed(world)
    await move(world, kind="Worker", task=1)
    _is_live(world, 1)


async def _drained(world: World) -> None:
    """The node of workers is drained."""
    world.training().live = True
    await drain(world)


async def _to_and_fro(world: World) -> None:
    """Another size is wanted as soon as the last one is there."""
    world.training().live = True
    await to_and_fro(world)


async def _back_at_once(world: World) -> None:
    """A worker that leaves is wanted again while its pod still ends."""
    await _train(world)
    await asked_until(world, "Switching", workers=1)
    await world.until(lambda: world.state()["phase"] == "Stable")
    await rescaled(world, workers=2)
    _is_live(world, 2)
    if world.undisturbed and world.state()["refused"] is not None:
        world.oracles.fail("nothing_is_refused", f"{world.state()['refused']}")


LIVE: Final = (
    Scenario("live-grow", _grow),
    Scenario("live-no-chief", _no_chief),
    Scenario("live-mixed", _mixed),
    Scenario("live-does-not-join", _does_not_join, either=True),
    Scenario("live-withdrawn", _withdrawn, either=True),
    Scenario("live-silent", _silent, either=True),
    Scenario("live-chief-ends", _chief_ends, fragile=True),
    Scenario("live-moved", _moved, configuration=KIPS),
    Scenario("live-drained", _drained, configuration=KIPS),
    Scenario("live-to-and-fro", _to_and_fro),
    Scenario("live-back-at-once", _back_at_once),
    Scenario("live-take-over", _grow, replicas=2),
)

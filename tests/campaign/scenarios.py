"""What a person does with a job, from nothing to an end in which nothing happens any more."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from campaign.world import Scenario, World
from elastic_tfjob.controller.elastic import Target

__all__ = ["SCENARIOS"]

_SIZE: Final = {"Chief": 1, "PS": 1, "Worker": 2}


async def _train(world: World, types: Mapping[str, Any] = _SIZE, **options: Any) -> None:
    """An elastic job that trains."""
    options.setdefault("cleanPodPolicy", "Running")
    world.submit(types, elastic=True, **options)
    await world.until(lambda: world.has("Running") and world.trains())
    await asyncio.sleep(8)


async def _rescaled(world: World, **sizes: int) -> None:
    """Ask for another size and wait until the job has it."""
    world.annotate(**{f"target_{kind}": str(count) for kind, count in sizes.items()})
    names = {"workers": "Worker", "ps": "PS"}

    def there() -> bool:
        state = world.state()
        return state.get("phase") == "Stable" and all(
            state["replicas"][names[kind]] == count for kind, count in sizes.items()
        )

    await world.until(there)
    await asyncio.sleep(8)


async def _start(world: World) -> None:
    """A plain job starts, runs, and succeeds."""
    world.submit(_SIZE, cleanPodPolicy="Running")
    await world.until(lambda: world.has("Running") and world.trains())
    await asyncio.sleep(5)
    world.training().finish()
    await world.until(lambda: world.has("Succeeded"))


async def _start_elastic(world: World) -> None:
    """An elastic job starts, trains, and succeeds."""
    await _train(world)
    world.training().finish()
    await world.until(lambda: world.has("Succeeded"))


async def _fail(world: World) -> None:
    """A plain job whose program fails for good."""
    world.submit(_SIZE, restart="ExitCode")
    await world.until(lambda: world.has("Running") and world.trains())
    world.training().exit_code = 1
    world.training().finish()
    await world.until(lambda: world.has("Failed"))


async def _grow(world: World) -> None:
    """Two workers more."""
    await _train(world)
    await _rescaled(world, workers=4)


async def _shrink(world: World) -> None:
    """One worker less."""
    await _train(world)
    await _rescaled(world, workers=1)


async def _more_ps(world: World) -> None:
    """Another number of parameter servers, then the job ends."""
    await _train(world)
    await _rescaled(world, ps=2)
    world.training().finish()
    await world.until(lambda: world.has("Succeeded"))


async def _recreate(world: World) -> None:
    """Another size, for which all pods are made anew."""
    await _train(world, annotations={"elastic.kubeflow.org/rescale": "recreate"})
    await _rescaled(world, workers=3)


async def _roll_back(world: World) -> None:
    """The program of the next size does not come up."""
    await _train(world)
    world.training().builds = False
    world.annotate(target_workers="3")
    await world.until(lambda: (world.state().get("refused") or {}).get("generation") == 1)
    world.annotate(target_workers="2")
    world.training().builds = True
    await asyncio.sleep(5)


async def _no_room_to_save(world: World) -> None:
    """The checkpoint for the next size cannot be written."""
    await _train(world)
    world.training().saves = False
    world.annotate(target_workers="3")
    await world.until(lambda: (world.state().get("refused") or {}).get("generation") == 1)
    world.training().saves = True
    world.annotate(target_workers="2")
    await asyncio.sleep(5)


async def _stop(world: World) -> None:
    """An elastic job is suspended."""
    await _train(world)
    world.edit({"spec": {"runPolicy": {"suspend": True}}})
    await world.until(lambda: world.has("Suspended"))


async def _resume(world: World) -> None:
    """A job is suspended and resumed."""
    await _stop(world)
    await asyncio.sleep(5)
    world.edit({"spec": {"runPolicy": {"suspend": False}}})
    await world.until(lambda: world.has("Running") and world.trains(world.state().get("generation", 0)))
    await asyncio.sleep(5)


async def _delete(world: World) -> None:
    """A job is deleted while it grows."""
    await _train(world)
    world.annotate(target_workers="4")
    await world.until(lambda: world.state().get("phase") == "Preparing")
    world.server.delete("tfjobs", world.job())


async def _cpu(world: World) -> None:
    """The profile gives the workers more CPU, in place. A person stands in for it here, so that the end is certain."""
    await _train(world)
    target = Target(0, _SIZE, cpu={"Worker": (300, 400)}, reason="CPU is idle", declared=_SIZE)
    world.annotate(target=target.to_json())
    await world.until(lambda: bool(world.state().get("cpu")))
    await asyncio.sleep(5)


_KIPS: Final = "profile: kips"

SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario("start", _start),
        Scenario("start-elastic", _start_elastic),
        Scenario("fail", _fail),
        Scenario("grow", _grow),
        Scenario("shrink", _shrink),
        Scenario("more-ps", _more_ps),
        Scenario("recreate", _recreate),
        Scenario("roll-back", _roll_back),
        Scenario("no-room-to-save", _no_room_to_save),
        Scenario("stop", _stop),
        Scenario("resume", _resume),
        Scenario("delete", _delete),
        Scenario("cpu-in-place", _cpu),
        Scenario("take-over", _grow, replicas=2),
        Scenario("kips", _start_elastic, configuration=_KIPS),
    )
}

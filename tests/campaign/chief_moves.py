"""What happens to a job whose chief goes to another node, where its next program is prepared."""

import asyncio
from typing import Final

from campaign.acts import FIXED_SIZE, KIPS, aim, drain, move, succeed, train, train_placed
from campaign.world import Scenario, World
from elastic_tfjob.api.annotations import PREFIX

__all__ = ["CHIEF_MOVES"]

_AGAIN_S: Final = 200.0


async def _there_and_back(world: World) -> None:
    """The chief moves, moves again, and the job succeeds."""
    await train_placed(world)
    await move(world, kind="Chief", task=0)
    await move(world, kind="Chief", task=0, generation=2)
    _is_by_overlap(world, 2)
    await succeed(world)


def _is_by_overlap(world: World, changes: int) -> None:
    """Where nothing disturbs, no pod but the chief's was made anew, and nothing was lost."""
    said = [(each["mode"], each["lost_steps"]) for each in world.state()["history"]]
    if world.undisturbed and said != [("overlap", 0)] * changes:
        world.oracles.fail("the_chief_moves_by_overlap", f"{said}")


async def _unreachable(world: World) -> None:
    """Pods cannot ask each other: the next chief begins by the operator's word."""
    world.cluster.pods_reach_each_other = False
    await train_placed(world)
    await move(world, kind="Chief", task=0)
    _is_by_overlap(world, 1)


async def _no_chief(world: World) -> None:
    """The first worker leads."""
    await train(world, {"PS": 1, "Worker": 2}, annotations={**FIXED_SIZE, f"{PREFIX}max-ps": "1"})
    await move(world, kind="Worker", task=0)
    _is_by_overlap(world, 1)
    await succeed(world)


async def _alone(world: World) -> None:
    """A job of one replica."""
    await train(world, {"Worker": 1}, annotations={f"{PREFIX}max-workers": "1"})
    await move(world, kind="Worker", task=0)
    _is_by_overlap(world, 1)


async def _drained(world: World) -> None:
    """The node of the chief is drained."""
    await drain(world, pod="job-chief-0")
    _is_by_overlap(world, 1)


async def _no_room_to_save(world: World) -> None:
    """The checkpoint for the move cannot be written; later it can."""
    await train_placed(world)
    world.training().saves = False
    await move(world, kind="Chief", task=0, refused=True)
    world.training().saves = True
    await move(world, kind="Chief", task=0, generation=2)


async def _not_shared(world: World) -> None:
    """The next chief sees none of the checkpoints: the old one trains on."""
    await train_placed(world)
    await world.until(lambda: world.training().checkpoint > 0)
    world.training().shared = False
    await move(world, kind="Chief", task=0, refused=True)
    await asyncio.sleep(5)


async def _hidden(world: World) -> None:
    """The next chief does not see the last checkpoint: it ends, and the job returns to its nodes."""
    await train_placed(world)
    world.oracles.exact = False
    aim(world, kind="Chief", task=0)
    await world.until(lambda: world.state().get("phase") == "Checkpointing")
    world.training().shared = False
    await world.until(lambda: world.state().get("phase") == "Recreating", _AGAIN_S)
    world.training().shared = True

    await _trains_again(world)


async def _ends(world: World, pod: str) -> None:
    """A pod's container ends while the chief moves."""
    await train_placed(world)
    world.oracles.exact = False
    moving = asyncio.ensure_future(move(world, kind="Chief", task=0))
    await world.until(lambda: world.state().get("phase") == "Checkpointing")
    for _ in range(3):
        await asyncio.sleep(0.3)
        world.cluster.kill_container("default", pod)
    await moving


async def _container_ends(world: World) -> None:
    """The old chief's, when it has left, or just before."""
    await _ends(world, "job-chief-0")


async def _next_ends(world: World) -> None:
    """The next chief's, as soon as it is to train."""
    await _ends(world, "job-chief-1")


async def _trains_again(world: World) -> None:
    def again() -> bool:
        state = world.state()
        return state["phase"] == "Stable" and world.trains(state["generation"])

    await world.until(again, _AGAIN_S)


async def _evicted(world: World) -> None:
    """The old chief is evicted while it saves, or has left."""
    await train_placed(world)
    world.oracles.exact = False
    aim(world, kind="Chief", task=0, generation=1)
    await world.until(lambda: world.state().get("phase") == "Checkpointing")
    await asyncio.sleep(0.6)
    pod = world.server.get("pods", "default", "job-chief-0")
    if pod is not None:
        world.server.delete("pods", pod, by="drain")
    await _trains_again(world)


CHIEF_MOVES: Final = (
    Scenario("chief-moves", _there_and_back, configuration=KIPS),
    Scenario("chief-moves-unreachable", _unreachable, configuration=KIPS),
    Scenario("chief-moves-no-chief", _no_chief, configuration=KIPS),
    Scenario("chief-moves-alone", _alone, configuration=KIPS),
    Scenario("chief-moves-drained", _drained, either=True, configuration=KIPS),
    Scenario("chief-moves-no-room-to-save", _no_room_to_save, either=True, configuration=KIPS),
    Scenario("chief-moves-not-shared", _not_shared, configuration=KIPS),
    Scenario("chief-moves-hidden", _hidden, fragile=True, either=True, configuration=KIPS),
    Scenario("chief-moves-container-ends", _container_ends, fragile=True, either=True, configuration=KIPS),
    Scenario("chief-moves-next-ends", _next_ends, fragile=True, either=True, configuration=KIPS),
    Scenario("chief-moves-evicted", _evicted, fragile=True, either=True, configuration=KIPS),
    Scenario("chief-moves-take-over", _there_and_back, replicas=2, either=True, configuration=KIPS),
)

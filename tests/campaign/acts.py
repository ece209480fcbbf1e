"""Acts that many scenarios are made of: a job that trains, changes its size, or moves, and ends."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from campaign.world import World
from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.target import Target

SIZE: Final = {"Chief": 1, "PS": 1, "Worker": 2}
KIPS: Final = "profile: kips"
FIXED_SIZE: Final = {f"{PREFIX}{name}": value for name, value in (("max-workers", "2"), ("min-workers", "2"))}
"""Of a job that is placed and moved, and never grows or shrinks."""


async def train(world: World, types: Mapping[str, Any] = SIZE, **options: Any) -> None:
    """An elastic job that trains."""
    options.setdefault("cleanPodPolicy", "Running")
    world.submit(types, elastic=True, **options)
    await world.until(lambda: world.has("Running") and world.trains())
    await asyncio.sleep(4)


async def train_plain(world: World, types: Mapping[str, Any] = SIZE, **options: Any) -> None:
    """A job without bounds that trains."""
    options.setdefault("cleanPodPolicy", "Running")
    world.submit(types, **options)
    await world.until(lambda: world.has("Running") and world.trains())


async def succeed(world: World) -> None:
    """Training ends, and with it the job."""
    world.training().finish()
    await world.until(lambda: world.has("Succeeded"))


def ask(world: World, **sizes: int) -> None:
    """Ask for another size."""
    world.annotate(**{f"target_{kind}": str(count) for kind, count in sizes.items()})


async def asked_until(world: World, phase: str, **sizes: int) -> None:
    """Ask for another size and wait for a phase of the change."""
    ask(world, **sizes)
    await world.until(lambda: world.state().get("phase") == phase)


async def rescaled(world: World, **sizes: int) -> None:
    """Ask for another size and wait until the job has it."""
    ask(world, **sizes)
    names = {"workers": "Worker", "ps": "PS"}

    def there() -> bool:
        state = world.state()
        return state.get("phase") == "Stable" and all(
            state["replicas"][names[kind]] == count for kind, count in sizes.items()
        )

    await world.until(there)
    await asyncio.sleep(4)


async def train_placed(world: World) -> None:
    """A job of one size trains on nodes that the profile has chosen."""
    await train(world, annotations={**FIXED_SIZE, f"{PREFIX}max-ps": "1"})


def aim(world: World, *, kind: str, task: int, generation: int = 1) -> None:
    """A person stands in for the profile, and wants a replica on another node."""
    text = world.job()["metadata"]["annotations"][f"{PREFIX}target"]
    target = Target.parse(text)
    assert target is not None
    there = world.state()["nodes"][kind]
    node = next(name for name in sorted(world.scenario.nodes, reverse=True) if name != there[task])
    nodes = {**target.nodes, kind: (*there[:task], node, *there[task + 1 :])}
    world.annotate(target=replace(target, generation=generation, nodes=nodes, reason="nearer").to_json())


async def move(world: World, *, kind: str, task: int, generation: int = 1, refused: bool = False) -> None:
    """A replica goes to another node, or stays where it is: the move is `refused`."""
    aim(world, kind=kind, task=task, generation=generation)

    def over() -> bool:
        state = world.state()
        reached = (state["refused"] or {}).get("generation") if refused else state["generation"]
        return state["phase"] == "Stable" and reached == generation

    await world.until(over)
    await asyncio.sleep(4)


async def drain(world: World, pod: str = "job-worker-1") -> None:
    """An autoscaler drains a pod's node, by a taint and no cordon: the job's replicas leave it."""
    await train_placed(world)
    found = world.server.get("pods", "default", pod)
    assert found is not None
    node = found["spec"]["nodeName"]
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    world.server.handle("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}}, by="karpenter")

    def left() -> bool:
        there = [each for each in world.server.all("pods") if each["spec"].get("nodeName") == node]
        return not there and world.state()["phase"] == "Stable" and world.state()["generation"] > 0

    await world.until(left)
    await asyncio.sleep(4)


async def to_and_fro(world: World, kind: str = "workers", most: int = 4) -> None:
    """Another size is wanted as soon as the last one is there."""
    await train(world)
    await asked_until(world, "Switching", **{kind: most})
    await rescaled(world, **{kind: 1})


async def withdrawn(world: World, kind: str, more: int, before: int) -> None:
    """The size is not wanted any more while the chief changes to it, or just after that."""
    await train(world)
    await asked_until(world, "Checkpointing", **{kind: more})
    ask(world, **{kind: before})
    await asyncio.sleep(20)


async def container_ends(world: World, pod: str, **sizes: int) -> None:
    """A pod's container ends right after a change, and the job goes on."""
    world.oracles.exact = False
    await asked_until(world, "Switching", **sizes)
    world.cluster.kill_container("default", pod)
    await world.until(lambda: world.state()["phase"] == "Stable" and world.trains(world.state()["generation"]))

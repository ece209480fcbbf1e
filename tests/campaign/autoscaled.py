"""What happens on a cluster whose nodes an autoscaler adds and removes: a job orders a node, starts there, and jobs
leave a node that they do not need."""

import asyncio
from typing import Final

from campaign.world import Scenario, World
from elastic_tfjob.api.annotations import PREFIX

__all__ = ["AUTOSCALED"]

_SIZE: Final = {"Chief": 1, "PS": 1, "Worker": 2}
_FIXED: Final = {
    f"{PREFIX}{name}": value for name, value in (("min-workers", "2"), ("max-workers", "2"), ("max-ps", "1"))
}
_CPU: Final = "900m"
"""Four of them fill a node."""
_SMALL: Final = "400m"
"""Eight of them fit a node."""


def _placeholders(world: World) -> list[str]:
    """Where placeholders are; empty names: nowhere yet."""
    return [
        str(pod["spec"].get("nodeName") or "")
        for pod in world.server.all("pods")
        if f"{PREFIX}order-of" in pod["metadata"].get("labels", {})
    ]


async def _order(world: World) -> None:
    """A job fills the cluster; the next one orders a node, which comes."""
    world.submit(_SIZE, "own", elastic=True, annotations=_FIXED, cpu=_CPU, cleanPodPolicy="Running")
    await world.until(lambda: world.has("Running", "own") and world.trains(name="own"))
    world.submit(_SIZE, "next", elastic=True, annotations=_FIXED, cpu=_CPU, cleanPodPolicy="Running")
    await world.until(lambda: _placeholders(world) == [""] * 4)
    await asyncio.sleep(7)
    world.cluster.add_node("node-b")
    await world.until(lambda: world.has("Running", "next") and world.trains(name="next"))
    await world.until(lambda: not _placeholders(world))
    await asyncio.sleep(5)


async def _order_withdrawn(world: World) -> None:
    """The job that orders is deleted, and its placeholders go with it."""
    world.submit(_SIZE, "own", elastic=True, annotations=_FIXED, cpu=_CPU, cleanPodPolicy="Running")
    await world.until(lambda: world.has("Running", "own") and world.trains(name="own"))
    world.submit(_SIZE, "next", elastic=True, annotations=_FIXED, cpu=_CPU, cleanPodPolicy="Running")
    await world.until(lambda: len(_placeholders(world)) == 4)
    world.training("own").finish()
    await world.until(lambda: world.has("Running", "next") and world.trains(name="next"))
    await world.until(lambda: not _placeholders(world))
    await asyncio.sleep(5)


async def _compact(world: World) -> None:
    """Two jobs are on a node each, and fit one: one of them leaves its node."""
    for name, other in (("one", "node-b"), ("two", "node-a")):
        _cordon(world, other, unschedulable=True)
        world.submit(_SIZE, name, elastic=True, annotations=_FIXED, cpu=_SMALL, cleanPodPolicy="Running")
        await world.until(lambda name=name: world.has("Running", name) and world.trains(name=name))  # type: ignore[misc]
        _cordon(world, other, unschedulable=False)

    def together() -> bool:
        nodes = {pod["spec"].get("nodeName") for pod in world.server.all("pods")}
        states = {name: world.state(name) for name in ("one", "two")}
        return len(nodes) == 1 and all(
            state["phase"] == "Stable" and world.trains(state["generation"], name) for name, state in states.items()
        )

    await world.until(together)
    await asyncio.sleep(5)


def _cordon(world: World, node: str, *, unschedulable: bool) -> None:
    world.server.handle("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": unschedulable}}, by="user")


_ORDERS: Final = "profile: las\nautoscaling:\n  order: {when: always}\n"
_COMPACTS: Final = (
    "profile: las\nautoscaling:\n  compact: {nodes: kubernetes.io/hostname, after_s: 10, every_s: 5, forget_s: 3600}\n"
)

AUTOSCALED: Final = (
    Scenario("order", _order, configuration=_ORDERS, nodes={"node-a": "4"}),
    Scenario("order-withdrawn", _order_withdrawn, configuration=_ORDERS, nodes={"node-a": "4"}),
    Scenario("compact", _compact, configuration=_COMPACTS),
)

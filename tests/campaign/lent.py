"""What happens on nodes that another pool lends: a guest comes, the pool's pods want the node back, the guest leaves.

`node-a` is the jobs' own. Of the pool `lent` is idle and `busy` runs a small pod of the pool's, so it is never lent.
"""

import asyncio
from typing import Any, Final

from campaign.world import Scenario, World
from elastic_tfjob.api.annotations import PREFIX

__all__ = ["LOANS"]

_SIZE: Final = {"Chief": 1, "PS": 1, "Worker": 2}
_FIXED: Final = {
    f"{PREFIX}{name}": value for name, value in (("min-workers", "2"), ("max-workers", "2"), ("max-ps", "1"))
}
"""Of a job that is placed and stopped, and never grows or shrinks."""
_GUEST: Final = {**_FIXED, f"{PREFIX}loanable": "true"}
_CPU: Final = "900m"
"""Four of them fill a node."""


async def _apply(world: World) -> None:
    """A job fills the node of its own; one that is not loanable waits; a loanable one comes. Somebody has a taint of
    their own on the node that will be lent."""
    taint = {"key": "example.com/mine", "effect": "PreferNoSchedule"}
    world.server.handle("PATCH", "/api/v1/nodes/lent", {"spec": {"taints": [taint]}}, by="user")
    world.serve("small", "500m")
    await world.until(lambda: world.serves("small"))
    await asyncio.sleep(7)
    world.submit(_SIZE, "own", elastic=True, annotations=_FIXED, cpu=_CPU, cleanPodPolicy="Running")
    await world.until(lambda: world.has("Running", "own") and world.trains(name="own"))
    world.submit(_SIZE, "stays", elastic=True, annotations=_FIXED, cpu=_CPU, cleanPodPolicy="Running")
    await asyncio.sleep(5)
    world.submit(_SIZE, "guest", elastic=True, annotations=_GUEST, cpu=_CPU, cleanPodPolicy="Running")


async def _lend(world: World) -> None:
    """The loanable job gets a node of the pool."""
    await _apply(world)
    await world.until(lambda: world.has("Running", "guest") and world.trains(name="guest"))
    await asyncio.sleep(5)


def _goes_on(world: World, name: str) -> bool:
    state = world.state(name)
    return state.get("phase") == "Stable" and world.trains(state["generation"], name) and state.get("stop") is None


async def _loan(world: World) -> None:
    """The guest trains on the lent node to its end; the node stays lent, since nobody wants it back."""
    await _lend(world)
    world.training("own").finish()
    await world.until(lambda: _goes_on(world, "stays"))
    world.training("guest").finish()
    await world.until(lambda: world.has("Succeeded", "guest"))
    await asyncio.sleep(15)  # what the guest taught is written later


async def _ended(world: World, name: str) -> None:
    """A job trains to its end."""
    await world.until(lambda: _goes_on(world, name))
    world.training(name).finish()
    await world.until(lambda: world.has("Succeeded", name))


async def _after_the_recall(world: World) -> None:
    """The pool's pod gets the node; the guest waits, and goes on where there is room."""
    await world.until(lambda: world.serves("large"))
    await asyncio.sleep(5)
    await _ended(world, "own")
    await _ended(world, "stays")
    await world.until(lambda: _goes_on(world, "guest"))
    await asyncio.sleep(10)


async def _recall(world: World) -> None:
    """A pod of the pool finds no room: the guest saves and stops, and the node goes back."""
    await _lend(world)
    world.serve("large", "3800m")
    await _after_the_recall(world)


async def _recall_early(world: World) -> None:
    """A pod of the pool finds no room when the guest has just been promised the node, and may have no pods yet."""
    await _apply(world)
    await world.until(lambda: '"lent"' in world.job("guest")["metadata"]["annotations"].get(f"{PREFIX}target", ""))
    world.serve("large", "3800m")
    await _after_the_recall(world)


async def _shrink(world: World) -> None:
    """A guest that needs both nodes: when the pool wants its own back, it goes on with fewer workers on the other."""
    bounds = {f"{PREFIX}{name}": value for name, value in (("loanable", "true"), ("max-workers", "4"), ("max-ps", "1"))}
    world.serve("small", "500m")
    await world.until(lambda: world.serves("small"))
    await asyncio.sleep(7)
    world.submit({**_SIZE, "Worker": 4}, "guest", elastic=True, annotations=bounds, cpu=_CPU, cleanPodPolicy="Running")
    await world.until(lambda: world.has("Running", "guest") and world.trains(name="guest"))
    await asyncio.sleep(9)
    world.serve("large", "2400m")
    await world.until(lambda: world.serves("large"))
    await world.until(lambda: _goes_on(world, "guest"))
    await asyncio.sleep(20)


async def _recall_late(world: World) -> None:
    """The guest's node is cut off, so that its pods do not go in time: the taint goes all the same, and priorities
    would decide. When the node is back the pods end, and the pool's pod has room."""
    world.oracles.exact = False
    await _lend(world)
    world.cluster.cut_off.add("lent")
    world.serve("large", "3800m")
    await world.until(lambda: world.loan("lent") == ("recalled", False))
    await asyncio.sleep(5)
    world.cluster.reconnect("lent")
    await _after_the_recall(world)


async def _taint_gone(world: World) -> None:
    """Somebody removes the taint of a node that is lent: that is a recall."""
    await _lend(world)
    world.server.handle("PATCH", "/api/v1/nodes/lent", {"spec": {"taints": []}}, by="user")  # with their own
    await world.until(lambda: world.loan("lent") == ("returned", False))
    world.serve("large", "3800m")
    await _after_the_recall(world)


_LENDS: Final = """
profile: PROFILE
profiles:
  PROFILE: {lend: offered, reclaim: cost}
pools:
  inference: {namespaces: [serving], headroom: 0, hold_s: 600, grace_s: 20}
rescale: {stop_timeout_s: 60}
"""
_NODES: Final[dict[str, Any]] = {
    "nodes": {"node-a": "4"},
    "lenders": {"busy": "4200m", "lent": "4"},
    "configuration": _LENDS.replace("PROFILE", "kips"),
}
_ELASTIC: Final = {**_NODES, "configuration": _LENDS.replace("PROFILE", "elastic")}

LOANS: Final = (
    Scenario("loan", _loan, **_NODES),
    Scenario("recall", _recall, **_NODES),
    Scenario("recall-early", _recall_early, **_NODES, either=True),
    Scenario("recall-shrink", _shrink, **{**_NODES, "lenders": {"busy": "2600m", "lent": "2500m"}}),
    Scenario("recall-late", _recall_late, **_NODES),
    Scenario("taint-gone", _taint_gone, **_NODES),
    Scenario("elastic-loan", _loan, **_ELASTIC),
    Scenario("elastic-recall", _recall, **_ELASTIC),
)

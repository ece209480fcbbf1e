"""What a person does with a job whose parameter servers need more memory than their template says."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final

from campaign.acts import FIXED_SIZE, KIPS, SIZE, asked_until, rescaled, succeed, train
from campaign.oracles import raised_of
from campaign.world import Scenario, World
from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.memory import memory_of

__all__ = ["MEMORY"]

_MIB: Final = 1 << 20
_KINDS: Final = {"ps": "PS"}
_AT_FIRST: Final = 200.0
_JUMPS_S: Final = 12.0
"""So long after its start a container needs more at once: before its launcher tells of growth, and later than two kills
in succession count as one."""


class _Use:
    """What each parameter server uses: so many MiB, which may grow. One that starts anew is there some time later.
    `divided`: it is what all use together."""

    def __init__(self, world: World, *, divided: bool = False) -> None:
        self._world, self._loop = world, world.loop
        self._divided = divided
        self._mib = self._most = _AT_FIRST
        self._rate = self._since = 0.0
        world.training().uses["ps"] = self._bytes

    @property
    def mib(self) -> float:
        return min(self._mib + self._rate * (self._loop.time() - self._since), self._most)

    def grow(self, mib_per_s: float, most: float) -> None:
        """From now on, up to so many MiB."""
        self._mib, self._rate, self._most, self._since = self.mib, mib_per_s, most, self._loop.time()

    def _bytes(self, age_s: float) -> int:
        began_s = self._loop.time() - age_s
        restarted = began_s > self._since and age_s < _JUMPS_S
        among = self._world.state().get("replicas", {}).get("PS", 1) if self._divided else 1
        return int((_AT_FIRST if restarted else self.mib / among) * _MIB)


async def _train(world: World, most: str = "", types: Mapping[str, Any] = SIZE, **options: Any) -> None:
    """A job trains whose parameter servers have 512 MiB each, and may get so much."""
    annotations = {f"{PREFIX}max-memory": f"ps={most}"} if most else {}
    options["annotations"] = annotations | options.get("annotations", {})
    await train(world, types, memory={"PS": "512Mi"}, **options)


def _limits(world: World) -> list[int]:
    """Of the parameter servers, in MiB."""
    pods = (pod for pod in world.server.all("pods") if pod["metadata"]["name"].startswith("job-ps-"))
    return [memory_of(pod["spec"]).limit // _MIB for pod in pods]


def _have(world: World, mib: int, count: int = 1) -> Callable[[], bool]:
    """Whether there are so many parameter servers, and each has so much memory."""
    return lambda: _limits(world) == [mib] * count


def _check(world: World, what: bool, oracle: str) -> None:
    """Where nothing disturbs, that holds."""
    if world.undisturbed and not what:
        memory = {kind: world.state().get("memory", {}).get(kind) for kind in _KINDS.values()}
        world.oracles.fail(oracle, f"limits {_limits(world)}, stored {memory}")


def _told(world: World, reason: str) -> int:
    """How many events there are."""
    return sum(each["reason"] == reason for each in world.server.all("events"))


def _no_kill(world: World) -> None:
    """Where nothing disturbs, memory came in time."""
    statuses = (pod["status"].get("containerStatuses") or () for pod in world.server.all("pods"))
    restarts = [each["restartCount"] for found in statuses for each in found]
    _check(world, not any(restarts) and not _told(world, "OutOfMemory"), "memory_comes_in_time")


async def _grows(world: World, **options: Any) -> None:
    """A parameter server grows to nearly all that it may have. While it does not, nothing is raised."""
    use = _Use(world)
    options["annotations"] = {f"{PREFIX}max-ps": "1", **options.get("annotations", {})}
    await _train(world, "2Gi", **options)
    await asyncio.sleep(30)
    _check(world, _have(world, 512)() and not raised_of(world.state()), "memory_is_raised_for_a_reason")
    use.grow(12.0, most=1820)
    await world.until(_have(world, 2048))
    await asyncio.sleep(30)
    _no_kill(world)
    await succeed(world)


async def _jumps(world: World, **options: Any) -> None:
    """Parameter servers need more at once: they are killed, and then run with more, as those do that come later."""
    world.oracles.exact = False
    use = _Use(world)
    await _train(world, "832Mi", {**SIZE, "PS": 2}, **options)
    await asyncio.sleep(10)
    use.grow(inf, most=600)
    await world.until(_have(world, 832, 2))
    await asyncio.sleep(30)
    await rescaled(world, ps=3)
    _check(world, _have(world, 832, 3)(), "later_pods_have_the_lesson")


async def _killed(world: World) -> None:
    """The operator may not raise memory: a parameter server is killed twice, and is what it was."""
    world.oracles.exact = False
    kills: list[str] = []
    world.oracles.memory.heard = kills.append
    world.training().uses["ps"] = lambda age_s: (600 if age_s > _JUMPS_S and len(kills) < 2 else 200) * _MIB
    await _train(world)
    await world.until(lambda: len(kills) == 2)
    await asyncio.sleep(20)
    _check(world, _have(world, 512)() and not raised_of(world.state()), "memory_is_not_raised")
    _check(world, _told(world, "OutOfMemory") == 2, "kills_are_told")


async def _full(world: World) -> None:
    """A parameter server grows on a node that others fill: it goes to another one, and loses no step. What it gets
    there is not promised to the next job."""
    use = _Use(world)
    await _train(world, "2Gi", annotations={**FIXED_SIZE, f"{PREFIX}max-ps": "1"})
    node = world.state()["nodes"]["PS"][0]
    container = {"name": "other", "image": "other", "resources": {"requests": {"memory": "15600Mi"}}}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}}
    world.server.create("pods", "others", {"metadata": {"name": "other"}, "spec": spec})
    await asyncio.sleep(5)
    use.grow(3.0, most=260)  # what is asked for then just fits on the node without its holder
    await world.until(lambda: world.state()["phase"] == "Stable" and world.state()["nodes"]["PS"] != [node])
    use.grow(12.0, most=1820)
    await world.until(_have(world, 2048))
    await asyncio.sleep(38)
    _no_kill(world)
    container = {"name": "tensorflow", "image": "train", "command": ["python", "train.py"]}
    spec = {"containers": [{**container, "resources": {"requests": {"memory": "14500Mi"}}}]}
    chief = {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": spec}}
    world.submit({"Chief": chief}, "second", annotations={f"{PREFIX}placement": "auto"}, cleanPodPolicy="Running")
    await asyncio.sleep(5)
    waits = [each["message"] for each in world.server.all("events") if each["reason"] == "Waiting"]
    _check(world, len(waits) == 1 and "no room" in waits[0], "raised_memory_is_not_free")
    world.server.delete("tfjobs", world.job("second"))


async def _divided(world: World) -> None:
    """A parameter server grows beyond what it may have: the chief saves, and another one takes a part of it."""
    use = _Use(world, divided=True)
    await _train(world, "576Mi", annotations={f"{PREFIX}max-ps": "2"})
    await asyncio.sleep(20)
    use.grow(3.0, most=600)
    await world.until(lambda: world.state()["phase"] == "Stable" and world.state()["replicas"]["PS"] == 2)
    await asyncio.sleep(40)
    _check(world, _have(world, 576, 2)() and _told(world, "MemoryShort") > 0, "memory_is_divided")
    _no_kill(world)


async def _meanwhile(world: World) -> None:
    """Memory is raised while workers and parameter servers change, and a job that was suspended has it again."""
    use = _Use(world)
    await _train(world, "2Gi")
    await asyncio.sleep(20)
    use.grow(8.0, most=440)
    await world.until(lambda: bool(raised_of(world.state())))
    await rescaled(world, workers=3)
    await asked_until(world, "Preparing", workers=1)
    use.grow(inf, most=1000)
    await rescaled(world, workers=1)
    use.grow(12.0, most=1820)
    await rescaled(world, ps=2)
    await world.until(_have(world, 2048, 2))
    world.edit({"spec": {"runPolicy": {"suspend": True}}})
    await world.until(lambda: world.has("Suspended"))
    await asyncio.sleep(5)
    world.edit({"spec": {"runPolicy": {"suspend": False}}})
    await world.until(lambda: world.has("Running") and world.trains(world.state().get("generation", 0)))
    await asyncio.sleep(40)  # until its parameter servers use as much as before


MEMORY: Final = (
    Scenario("memory-grows", _grows),
    Scenario("memory-grows-fixed", partial(_grows, annotations={**FIXED_SIZE, f"{PREFIX}max-ps": "1"})),
    Scenario("memory-jumps", _jumps),
    Scenario("memory-jumps-made-anew", partial(_jumps, restart="ExitCode")),
    Scenario("memory-not-raised", _killed),
    Scenario("memory-node-full", _full, configuration=KIPS),
    Scenario("memory-divided", _divided),
    Scenario("memory-meanwhile", _meanwhile, either=True),
)

"""Random user actions: people edit, resize, suspend, cordon and delete while nodes, quotas and programs misbehave.

A schedule is a profile and a seed: `kips/user-actions/81`. Two elastic jobs train on two nodes. The seed draws a
sequence of actions with random waits between them, and sometimes an operator that dies. Then everything is set right
(quotas go, nodes return, programs start again), each job is asked for a size that fits, and the end is judged: every
job trains, with exactly the size that was asked for. While the actions last, a job that does not train for long must
have been told why by an event.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from campaign.apiserver import Change, Place
from campaign.faults import Faults
from campaign.oracles import state_of
from campaign.world import Outcome, Scenario, World, run
from elastic_tfjob.api.annotations import PREFIX

__all__ = ["PROFILES", "USER_ACTIONS", "play_user_actions"]

USER_ACTIONS: Final = "user-actions"
PROFILES: Final[Mapping[str, str]] = {
    "fixed": "",
    "las": "profile: las\nrescale:\n  stop_timeout_s: 30\n",
    "kips": "profile: kips\nrescale:\n  stop_timeout_s: 30\n",
    "elastic": "profile: elastic\nprofiles:\n  elastic: {lend: none}\nrescale:\n  stop_timeout_s: 30\n",
}
_SIZE: Final = {"Chief": 1, "PS": 1, "Worker": 2}
_CPU: Final = "800m"
"""Five replicas fill a node of four cores."""
_JOBS: Final = ("job", "second")
_ACTIONS: Final = (6, 12)
"""The fewest and the most actions of a schedule."""
_WAIT_S: Final = 25.0
"""Mean time between two actions."""
_TOLD_S: Final = 150.0
"""A job that does not train is told why within this time: longer than every limit of a rescale in these schedules."""
_TRAINS_S: Final = 600.0
"""Once everything is set right, each job trains with its final size within this time: refused sizes are tried again
ever later, up to some minutes."""
_NOT_A_REASON: Final = frozenset({"Rescaled", "Admitted", "Scaled", "SuccessfulCreatePod", "SuccessfulCreateService"})
"""Events that say nothing about why a job does not train."""


@dataclass
class _Watched:
    """When a job trained last, and what it was told since. Times are those of the loop's clock, in seconds."""

    trained_at: float = 0.0
    told_at: float = 0.0


@dataclass
class _People:
    """Those who act in one schedule."""

    world: World
    random: Random
    elastic: bool
    watched: dict[str, _Watched] = field(default_factory=dict)
    most_pods: int | None = None
    """A quota on pods of the namespace; None for none."""

    def __post_init__(self) -> None:
        self.world.server.refuses = self._quota
        self.world.server.observers.append(self._hear)

    def _quota(self, method: str, place: Place) -> str:
        if self.most_pods is None or method != "POST" or place.resource != "pods":
            return ""
        there = len(self.world.server.all("pods"))
        return f"exceeded quota: pods={self.most_pods}" if there >= self.most_pods else ""

    def _hear(self, change: Change) -> None:
        if change.resource != "events" or change.new is None or change.new["reason"] in _NOT_A_REASON:
            return
        name = change.new["involvedObject"]["name"]
        if name in self.watched:
            self.watched[name].told_at = self.world.loop.time()

    def jobs(self) -> list[str]:
        """Names of the jobs that there are."""
        return [job["metadata"]["name"] for job in self.world.server.all("tfjobs")]

    def submit(self, name: str) -> None:
        """Create an elastic job."""
        annotations = {f"{PREFIX}min-workers": "1", f"{PREFIX}max-workers": "4", f"{PREFIX}max-ps": "2"}
        self.world.submit(
            _SIZE, name, elastic=True, cpu=_CPU, annotations=annotations, cleanPodPolicy="Running", backoffLimit=1000
        )
        self.world.training(name).live = self.random.random() < 0.5
        self.watched[name] = _Watched(self.world.loop.time())

    # What they do

    async def act(self) -> None:
        """One action, as the seed has it."""
        actions: list[Callable[[str], None]] = [
            self._edit,
            self._edit,
            self._ask,
            self._ask,
            self._suspend,
            self._cordon,
            self._cordon,
            self._delete_pod,
            self._toggle_mode,
            self._bounds,
            self._break_next_program,
            self._refuse_workers,
            self._leave_slowly,
            self._set_quota,
            self._lose_node,
            self._return_nodes,
            self._recreate_job,
            self._kill_operator,
        ]
        names = self.jobs()
        if not names:
            self.submit(self.random.choice(_JOBS))
            return
        self.random.choice(actions)(self.random.choice(names))

    def _note(self, what: str) -> None:
        self.world.note(f"user: {what}")

    def _edit(self, name: str) -> None:
        kind, count = self.random.choice((("Worker", self.random.randint(1, 4)), ("PS", self.random.randint(1, 2))))
        self._note(f"{name}: spec.{kind}.replicas={count}")
        self.world.edit({"spec": {"tfReplicaSpecs": {kind: {"replicas": count}}}}, name)

    def _ask(self, name: str) -> None:
        key, most = self.random.choice((("target_workers", 4), ("target_ps", 2)))
        value = self.random.choice((None, *map(str, range(1, most + 1))))
        self._note(f"{name}: {key}={value}")
        self.world.annotate(name, **{key: value})

    def _suspend(self, name: str) -> None:
        suspended = not self.world.job(name)["spec"]["runPolicy"].get("suspend", False)
        self._note(f"{name}: suspend={suspended}")
        self.world.edit({"spec": {"runPolicy": {"suspend": suspended}}}, name)
        self.watched[name] = _Watched(self.world.loop.time())

    def _cordon(self, _: str) -> None:
        node = self.random.choice(self.world.server.all("nodes"))
        cordoned = not (node.get("spec") or {}).get("unschedulable", False)
        name = node["metadata"]["name"]
        self._note(f"{name}: unschedulable={cordoned}")
        self._patch_node(name, cordoned)

    def _patch_node(self, name: str, cordoned: bool) -> None:
        self.world.server.handle("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": cordoned}}, by="user")

    def _delete_pod(self, name: str) -> None:
        prefix = f"{name}-"
        pods = [pod for pod in self.world.server.all("pods") if pod["metadata"]["name"].startswith(prefix)]
        if pods:
            pod = self.random.choice(pods)
            self._note(f"deletes {pod['metadata']['name']}")
            self.world.server.delete("pods", pod)

    def _toggle_mode(self, name: str) -> None:
        mode = self.random.choice((None, "live", "overlap", "spare", "recreate"))
        self._note(f"{name}: rescale={mode}")
        self.world.annotate(name, rescale=mode)

    def _bounds(self, name: str) -> None:
        least, most = self.random.randint(1, 2), self.random.randint(2, 4)
        self._note(f"{name}: workers {least} to {most}")
        self.world.annotate(name, min_workers=str(least), max_workers=str(most))

    def _break_next_program(self, name: str) -> None:
        training = self.world.training(name)
        training.builds = not training.builds
        self._note(f"{name}: the next program {'starts' if training.builds else 'ends at its start'}")

    def _refuse_workers(self, name: str) -> None:
        training = self.world.training(name)
        training.joins = not training.joins
        self._note(f"{name}: new workers {'join' if training.joins else 'do not join'} a running program")

    def _leave_slowly(self, name: str) -> None:
        training = self.world.training(name)
        training.lingers_s = self.random.choice((0.0, 8.0, 25.0, 1000.0))
        self._note(f"{name}: replicas take {training.lingers_s:.0f} s to end")

    def _set_quota(self, _: str) -> None:
        self.most_pods = self.random.choice((None, 4, 6, 8, 10))
        self._note(f"quota: pods={self.most_pods}")

    def _lose_node(self, _: str) -> None:
        alive = [name for name in self.world.scenario.nodes if self.world.cluster.is_alive(name)]
        if len(alive) > 1:
            name = self.random.choice(alive)
            self._note(f"{name} loses power")
            self.world.cluster.lose_power(name)

    def _return_nodes(self, _: str) -> None:
        for name, cpu in self.world.scenario.nodes.items():
            if not self.world.cluster.is_alive(name):
                self._note(f"{name} is replaced")
                self.world.cluster.replace_node(name, cpu)

    def _recreate_job(self, name: str) -> None:
        self._note(f"deletes {name}")
        self.world.server.delete("tfjobs", self.world.job(name))
        del self.watched[name]

    def _kill_operator(self, _: str) -> None:
        self.world.kill_leader()

    # What is judged

    async def watch(self) -> None:
        """Each job that should train does, or was told why it does not."""
        while True:
            await asyncio.sleep(5.0)
            now = self.world.loop.time()
            for name in self.jobs():
                watched = self.watched.get(name)
                if watched is None:
                    continue
                training = any(
                    each.task.chief and each.state == "training" for each in self.world.training(name).trainers
                )
                if training or self.world.job(name)["spec"]["runPolicy"].get("suspend"):
                    watched.trained_at = now
                elif now - watched.trained_at > _TOLD_S and watched.told_at < watched.trained_at:
                    what = f"{name} has not trained for {now - watched.trained_at:.0f} s, and no event says why"
                    self.world.oracles.fail("trains_or_is_told", what)
                    watched.told_at = now

    async def set_right(self) -> None:
        """Nothing is wrong any more, and each job is asked for a size that fits beside the other."""
        world = self.world
        self.most_pods = None
        self._return_nodes("")
        for name in world.scenario.nodes:
            self._patch_node(name, False)
        asked = {name: self._ask_finally(name) for name in self.jobs()}
        end = world.loop.time() + _TRAINS_S
        for name, size in asked.items():
            there = partial(self._has_size, name, size)
            if not await world.until(there, max(end - world.loop.time(), 1.0)):
                found = state_of(world.job(name)) or {}
                said = {key: found.get(key) for key in ("phase", "replicas", "generation", "refused", "reason")}
                world.oracles.fail("final_size_is_asked_size", f"{name}: {size} is asked for, there is {said}")

    def _ask_finally(self, name: str) -> dict[str, int]:
        world, random = self.world, self.random
        training = world.training(name)
        training.builds, training.lingers_s = True, 0.0
        world.edit({"spec": {"runPolicy": {"suspend": False}}}, name)
        asked = {"Chief": 1, "PS": random.randint(1, 2), "Worker": random.randint(1, 2)}
        world.annotate(name, min_workers="1", max_workers="4", min_ps="1", max_ps="2")
        # Where nobody else decides a size, by an edit of the spec; what the spec says already is no edit.
        spec = {kind: each["replicas"] for kind, each in world.job(name)["spec"]["tfReplicaSpecs"].items()}
        differs = asked["PS"] != spec["PS"] and asked["Worker"] != spec["Worker"]
        if self.elastic or not differs:
            self._note(f"{name}: finally {asked}, by annotation")
            world.annotate(name, target_workers=str(asked["Worker"]), target_ps=str(asked["PS"]))
        else:
            self._note(f"{name}: finally {asked}, by an edit of the spec")
            world.annotate(name, target_workers=None, target_ps=None)
            replicas = {kind: {"replicas": asked[kind]} for kind in ("PS", "Worker")}
            world.edit({"spec": {"tfReplicaSpecs": replicas}}, name)
        return asked

    def _has_size(self, name: str, asked: Mapping[str, int]) -> bool:
        job, state = self.world.job(name), self.world.state(name)
        if not state:  # its size is the spec's
            spec = job["spec"]["tfReplicaSpecs"]
            return {kind: each["replicas"] for kind, each in spec.items()} == asked and self.world.trains(name=name)
        stable = state["phase"] == "Stable" and state["replicas"] == asked
        return stable and self.world.trains(state["generation"], name)


async def _act(world: World, profile: str, seed: int) -> None:
    world.oracles.exact = False  # deleted pods and lost nodes cost steps
    random = Random(f"user actions {profile} {seed}")
    people = _People(world, random, elastic=profile != "fixed")
    for name in _JOBS[: random.randint(1, 2)]:
        people.submit(name)
    await asyncio.sleep(random.uniform(5.0, 60.0))
    watching = asyncio.create_task(people.watch())
    try:
        for _ in range(random.randint(*_ACTIONS)):
            await people.act()
            await asyncio.sleep(random.expovariate(1 / _WAIT_S))
        await people.set_right()
    finally:
        watching.cancel()
    await asyncio.sleep(5)


def play_user_actions(profile: str, seed: int) -> Outcome:
    """One schedule of random user actions under a profile."""

    def act(world: World) -> Awaitable[None]:
        return _act(world, profile, seed)

    return run(Scenario(f"{profile}-{USER_ACTIONS}", act, configuration=PROFILES[profile]), seed, Faults())

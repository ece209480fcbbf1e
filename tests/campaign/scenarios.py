"""What a person does with a job, from nothing to an end in which nothing happens any more."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from campaign.acts import (
    KIPS,
    SIZE,
    drain,
    move,
    rescaled,
    succeed,
    to_and_fro,
    train,
    train_placed,
    train_plain,
)
from campaign.apiserver import Place
from campaign.autoscaled import AUTOSCALED
from campaign.chief_moves import CHIEF_MOVES
from campaign.handed import HANDED
from campaign.lent import LOANS
from campaign.live import LIVE
from campaign.memory import MEMORY
from campaign.world import Scenario, World
from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.tfjob import JOB_NAME_LABEL
from elastic_tfjob.controller.model.quantities import cpu_of
from elastic_tfjob.controller.model.target import Target

__all__ = ["SCENARIOS", "TAKEN_OVER"]

_NO_CHIEF: Final = {"PS": 1, "Worker": 2}


async def _start(world: World, types: Mapping[str, Any] = SIZE) -> None:
    """A plain job starts, runs, and succeeds. One without a chief does when its worker 0 has."""
    await train_plain(world, types)
    await asyncio.sleep(5)
    await succeed(world)


async def _start_elastic(world: World) -> None:
    """An elastic job starts, trains, and succeeds."""
    await train(world)
    await succeed(world)


async def _placed(world: World) -> None:
    """A job of one size gets its nodes from the profile, trains, and succeeds."""
    sizes = {"min-workers": "2", "max-workers": "2", "max-ps": "1"}
    await train(world, annotations={f"{PREFIX}{name}": value for name, value in sizes.items()})
    await succeed(world)


async def _fail(world: World) -> None:
    """A plain job whose program fails for good."""
    world.submit(SIZE, restart="ExitCode")
    await world.until(lambda: world.has("Running") and world.trains())
    world.training().exit_code = 1
    world.training().finish()
    await world.until(lambda: world.has("Failed"))


async def _forgotten(world: World) -> None:
    """A job that has succeeded is deleted when its time to live is over."""
    await train_plain(world, cleanPodPolicy="All", ttlSecondsAfterFinished=20)
    world.training().finish()
    await world.until(lambda: not world.server.all("tfjobs"))


async def _too_long(world: World) -> None:
    """A job runs for longer than it may."""
    world.submit(SIZE, cleanPodPolicy="All", activeDeadlineSeconds=40)
    await world.until(lambda: world.has("Failed"))


async def _too_often(world: World) -> None:
    """The containers of a job fail more often than they may."""
    await train_plain(world, cleanPodPolicy="All", backoffLimit=2)
    world.training().exit_code = 1
    world.training().finish()
    await world.until(lambda: world.has("Failed"))


async def _retried(world: World) -> None:
    """A program ends with a code after which its pod is made anew, and then succeeds."""
    await train_plain(world, restart="ExitCode")
    world.training().exit_code = 137
    world.training().finish()
    await world.until(lambda: world.has("Restarting"))
    world.training().exit_code = 0
    await world.until(lambda: world.has("Succeeded"))


async def _grow(world: World) -> None:
    """Two workers more."""
    await train(world)
    await rescaled(world, workers=4)


async def _shrink(world: World) -> None:
    """One worker less."""
    await train(world)
    await rescaled(world, workers=1)


async def _more_ps(world: World) -> None:
    """Another number of parameter servers, then the job ends."""
    await train(world)
    await rescaled(world, ps=2)
    await succeed(world)


async def _spare(world: World) -> None:
    """Two workers more, whose programs begin when the others have ended."""
    await train(world, annotations={"elastic.kubeflow.org/rescale": "spare"})
    await rescaled(world, workers=4)


async def _recreate(world: World, **options: Any) -> None:
    """Another size, for which all pods are made anew."""
    await train(world, annotations={"elastic.kubeflow.org/rescale": "recreate"}, **options)
    await rescaled(world, workers=3)


async def _recreate_never(world: World) -> None:
    """The same of pods that may not fail, of which the others do as soon as the chief has been ended. Without a limit
    of retries a failure goes unnoticed: a job that rescales counts as one that restarts."""
    world.training().clings = True
    await _recreate(world, restart="Never", backoffLimit=0)


async def _roll_back(world: World) -> None:
    """The program of the next size does not come up."""
    await train(world)
    world.training().builds = False
    world.annotate(target_workers="3")
    await world.until(lambda: (world.state().get("refused") or {}).get("generation") == 1)
    world.annotate(target_workers="2")
    world.training().builds = True
    await asyncio.sleep(5)


async def _no_room_to_save(world: World) -> None:
    """The checkpoint for the next size cannot be written."""
    await train(world)
    world.training().saves = False
    world.annotate(target_workers="3")
    await world.until(lambda: (world.state().get("refused") or {}).get("generation") == 1)
    world.training().saves = True
    world.annotate(target_workers="2")
    await asyncio.sleep(5)


async def _dies_at_start(world: World, *, rescale: str = "overlap", **options: Any) -> None:
    """The program of the next size ends with an error each time that it is started, after the switch to it."""
    await train(world, annotations={f"{PREFIX}rescale": rescale}, **options)
    world.training().dies_with = 3
    world.annotate(target_workers="3")
    await _returned(world)


async def _returned(world: World) -> None:
    """The job trains again at the size before, and nobody wants the other one any more."""

    def back() -> bool:
        state = world.state()
        there = state["phase"] == "Stable" and state["replicas"] == SIZE and state["refused"] is not None
        return there and world.trains(state["generation"])

    await world.until(back, _AGAIN_S)
    world.annotate(target_workers="2")
    await asyncio.sleep(5)


_AGAIN_S: Final = 90.0
"""A size that does not work has been left for the one before within so long."""


def _quota(world: World, pods: int) -> None:
    """A quota admits so many pods, and counts those that end."""

    def refuses(method: str, place: Place) -> str:
        over = method == "POST" and place.resource == "pods" and len(world.server.all("pods")) >= pods
        return f"pods {place.name} is forbidden: exceeded quota" if over else ""

    world.server.refuses = refuses


async def _quota_is_full(world: World) -> None:
    """A quota has no room for the next size, for which all pods are to be recreated: none of them ends."""
    await train(world, annotations={f"{PREFIX}rescale": "recreate"})
    before = {pod["metadata"]["uid"] for pod in world.server.all("pods")}
    _quota(world, 4)
    world.annotate(target_workers="4")
    await world.until(lambda: (world.state()["refused"] or {}).get("generation") == 1)
    if world.undisturbed and {pod["metadata"]["uid"] for pod in world.server.all("pods")} != before:
        world.oracles.fail("nothing_ends_in_vain", "pods ended for a size that a quota refuses")
    world.annotate(target_workers="2")
    await asyncio.sleep(5)


async def _quota_closes(world: World) -> None:
    """A quota has room for the next size until its pods are to be created."""
    await train(world, annotations={f"{PREFIX}rescale": "recreate"})
    world.annotate(target_workers="4")
    await world.until(lambda: world.state()["phase"] == "Recreating")
    _quota(world, 4)
    await _returned(world)


async def _own_port(world: World) -> None:
    """A program that has a port of its own dies whenever it is prepared beside itself: another mode is taken."""
    await train(world)
    world.training().own_port = True
    for generation in range(1, 5):
        world.annotate(target_workers=str(3 + generation % 2))
        await world.until(lambda least=generation: _tried(world.state()) >= least)  # type: ignore[misc]
    await rescaled(world, workers=3)


async def _told_late(world: World) -> None:
    """The chief hears that it is to save just before it is given up, and long after that that it has been."""
    await train(world)
    world.training().save_s = 3.0
    world.cluster.deaf_s |= {"switch": 64.0, "run": 30.0}
    world.annotate(target_workers="3")
    await world.until(lambda: world.state()["phase"] == "Stable" and _tried(world.state()) == 1, 200)
    world.training().save_s = 0.0
    await rescaled(world, workers=2)


def _tried(state: Mapping[str, Any]) -> int:
    """The newest generation that a job has had or given up."""
    return max(int(state["generation"]), int((state["refused"] or {}).get("generation", 0)))


async def _stop(world: World) -> None:
    """An elastic job is suspended."""
    await train(world)
    world.edit({"spec": {"runPolicy": {"suspend": True}}})
    await world.until(lambda: world.has("Suspended"))


async def _stop_at_once(world: World) -> None:
    """A plain job is suspended as soon as the operator has called it Running."""
    world.submit(SIZE, cleanPodPolicy="Running")
    await world.until(lambda: world.has("Running"))
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
    await train(world)
    world.annotate(target_workers="4")
    await world.until(lambda: world.state().get("phase") == "Preparing")
    world.server.delete("tfjobs", world.job())


async def _cpu(world: World) -> None:
    """The profile gives the workers more CPU, in place. A person stands in for it here, so that the end is certain."""
    await train(world)
    target = Target(0, SIZE, cpu={"Worker": (300, 400)}, reason="CPU is idle", declared=SIZE)
    world.annotate(target=target.to_json())
    await world.until(lambda: bool(world.state().get("cpu")))
    await asyncio.sleep(5)


async def _grow_and_end(world: World, types: Mapping[str, Any] = SIZE) -> None:
    """A job succeeds with more workers than its spec has."""
    await train(world, types)
    await rescaled(world, workers=3)
    await succeed(world)


async def _never_ready(world: World) -> None:
    """The program of the next size comes up, and is never ready."""
    await train(world)
    world.training().hangs = True
    world.annotate(target_workers="3")
    await world.until(lambda: (world.state().get("refused") or {}).get("generation") == 1)
    world.annotate(target_workers="2")
    world.training().hangs = False
    await asyncio.sleep(5)


async def _prepared_dies(world: World) -> None:
    """The program of the next size dies while the chief saves for it."""
    await train(world)
    world.training().breaks = True
    world.annotate(target_workers="3")
    await world.until(lambda: (world.state().get("refused") or {}).get("generation") == 1)
    world.annotate(target_workers="2")
    world.training().breaks = False
    await world.until(world.trains)
    await asyncio.sleep(5)


async def _chief_dies(world: World) -> None:
    """The chief's container dies when it is to save for the next size."""
    await train(world)
    world.oracles.exact = False
    world.annotate(target_workers="3")
    await world.until(lambda: world.state().get("phase") in ("Checkpointing", "Switching"))
    world.cluster.kill_container("default", "job-chief-0")
    await world.until(lambda: world.state()["phase"] == "Stable" and world.state()["replicas"]["Worker"] == 3)
    await asyncio.sleep(5)


async def _no_hook(world: World) -> None:
    """A program without ElasticCheckpoint gets another size, for which it is made anew."""
    world.training().hook = False
    world.submit(SIZE, elastic=True, cleanPodPolicy="Running")
    await world.until(lambda: world.has("Running") and world.trains())
    world.annotate(target_workers="3")
    await world.until(lambda: world.state()["phase"] == "Stable" and world.state()["replicas"]["Worker"] == 3, 150)
    await world.until(lambda: world.has("Running"), 30)
    await asyncio.sleep(35)  # only then it is known that its program never reports a step


async def _old_target(world: World) -> None:
    """Somebody writes a target that an earlier generation had."""
    await train(world)
    await rescaled(world, workers=3)
    world.annotate(target=Target(0, SIZE, reason="long ago", declared=SIZE).to_json())
    await asyncio.sleep(20)
    await world.until(lambda: world.state()["phase"] == "Stable" and world.state()["replicas"]["Worker"] == 3)


async def _copy(world: World) -> None:
    """A job is copied with all its annotations under another name, as `kubectl get -o yaml` and `apply` do."""
    await train(world)
    await rescaled(world, workers=3)
    annotations = dict(world.job()["metadata"]["annotations"])
    del annotations[f"{PREFIX}target-workers"]
    world.submit(SIZE, "twin", cleanPodPolicy="Running", annotations=annotations)

    def own() -> bool:
        state = world.state("twin")
        return state.get("generation") == 0 and state.get("replicas") == SIZE and world.trains(name="twin")

    await world.until(own)
    await asyncio.sleep(5)


async def _anew(world: World) -> None:
    """A job is deleted and created again at once."""
    for again in (True, False):
        await train_plain(world, restart="Never")
        await asyncio.sleep(4)
        if again:
            world.server.delete("tfjobs", world.job())


async def _blink(world: World) -> None:
    """A job whose pods must not fail is suspended, and resumed before they are gone."""
    await train_plain(world, restart="Never")
    await asyncio.sleep(5)
    world.edit({"spec": {"runPolicy": {"suspend": True}}})
    await asyncio.sleep(0.3)
    world.edit({"spec": {"runPolicy": {"suspend": False}}})
    await asyncio.sleep(3)
    await world.until(lambda: world.has("Running") and world.trains())
    await asyncio.sleep(5)


async def _relabelled(world: World) -> None:
    """A label gives a job's pod to nobody."""
    await train_plain(world)
    await asyncio.sleep(5)
    patch = {"metadata": {"labels": {JOB_NAME_LABEL: "nobody"}}}
    world.server.handle("PATCH", "/api/v1/namespaces/default/pods/job-worker-1", patch, by="user")
    await world.until(lambda: world.job()["status"]["replicaStatuses"]["Worker"].get("active") == 1)


async def _pods_refused(world: World) -> None:
    """A quota refuses all pods of a job, and then does not any more, which nobody tells the operator."""
    refused: list[str] = []

    def quota(method: str, place: Place) -> str:
        if method == "POST" and place.resource == "pods" and len(refused) < 16:
            refused.append(place.name)
            return "exceeded quota"
        return ""

    world.server.refuses = quota
    await train_plain(world)
    await asyncio.sleep(5)


async def _cpu_refused(world: World) -> None:
    """A quota refuses CPU to the workers, and then does not any more."""
    await train(world)
    refused: list[str] = []

    def quota(_: str, place: Place) -> str:
        if place.subresource == "resize" and len(refused) < 2:
            refused.append(place.name)
            return "exceeded quota"
        return ""

    world.server.refuses = quota
    target = Target(0, SIZE, cpu={"Worker": (300, 400)}, reason="CPU is idle", declared=SIZE)
    world.annotate(target=target.to_json())

    def given() -> bool:
        pods = [world.server.get("pods", "default", f"job-worker-{index}") for index in range(2)]
        return [cpu_of(pod["spec"])[0] for pod in pods if pod is not None] == [300, 400]

    await world.until(given)
    await asyncio.sleep(5)


async def _hand_over(world: World) -> None:
    """The replica that leads is told to end while a job grows: it gives its lease back, and another one takes it."""
    await train(world)
    world.annotate(target_workers="4")
    await world.until(lambda: world.state().get("phase") == "Preparing")
    world.stop_leader()
    await rescaled(world, workers=4)


async def _cut_off(world: World) -> None:
    """The replica that leads cannot renew its lease: another one takes over, and a job grows."""
    await train(world)
    world.cut_leader(40.0)
    await asyncio.sleep(25.0)
    await rescaled(world, workers=4)


_train_cleaned: Final = partial(train_plain, cleanPodPolicy="All")


async def _nothing(_: World) -> None: ...


async def _trained_and_cleaned(world: World) -> None:
    """A job comes, trains, succeeds, and its pods are gone."""
    await _train_cleaned(world)
    await _clean(world)


async def _clean(world: World) -> None:
    """It succeeds, and its pods are gone."""
    await succeed(world)
    await world.until(lambda: not world.server.all("pods"))


async def _late_state(world: World) -> None:
    """As before, and a state that the first one wrote comes when the job is further than that."""
    await train(world)
    world.hold_state(lambda: world.state().get("phase") == "Switching")
    world.cut_leader(40.0)
    await rescaled(world, workers=4)


_WAITS: Final = {f"{PREFIX}placement": "auto"}


async def _room(world: World) -> None:
    """A job waits for the room of another one, which ends."""
    world.submit(SIZE, cpu="1800m", annotations=_WAITS, cleanPodPolicy="Running")
    await world.until(lambda: world.has("Running") and world.trains())
    world.submit(SIZE, "second", cpu="1800m", annotations=_WAITS, cleanPodPolicy="Running")
    await asyncio.sleep(20)
    await succeed(world)
    await world.until(lambda: world.has("Running", "second") and world.trains(name="second"))
    await asyncio.sleep(15)  # what the first one taught is written later


_ANOTHER_PLAN_S: Final = 30.0
"""After kube-scheduler has refused a pod its node, another is planned within so long."""


async def _refused_node(world: World) -> None:
    """kube-scheduler refuses pods the node that was chosen for them, for a reason that nobody else knows."""
    world.cluster.closed.add("node-a")
    world.submit({"Chief": 1}, cpu="1", annotations=_WAITS, cleanPodPolicy="Running")

    def planned() -> Sequence[str]:
        target = Target.parse(world.job()["metadata"]["annotations"].get(f"{PREFIX}target"))
        return target.nodes.get("Chief", ()) if target is not None else ()

    await world.until(lambda: planned() == ("node-a",))
    await world.until(lambda: planned() == ("node-b",), _ANOTHER_PLAN_S)
    await world.until(lambda: world.has("Running") and world.trains(), 60)
    await asyncio.sleep(5)


async def _moved(world: World, kind: str, task: int) -> None:
    """A replica that trains goes to another node."""
    await train_placed(world)
    await move(world, kind=kind, task=task)


async def _move_worker(world: World) -> None:
    """A worker goes to another node."""
    await _moved(world, "Worker", 1)


async def _move_ps(world: World) -> None:
    """A parameter server goes to another node."""
    await _moved(world, "PS", 0)


def _types(priority: str = "") -> dict[str, Any]:
    """Four replicas that fill the cluster with their CPU, of a priority."""
    container = {
        "name": "tensorflow",
        "image": "train",
        "command": ["python", "train.py"],
        "resources": {"requests": {"cpu": "1800m", "memory": "100Mi"}, "limits": {"cpu": "1800m"}},
    }
    spec = {"containers": [container], **({"priorityClassName": priority} if priority else {})}
    return {
        name: {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": spec}}
        for name, count in SIZE.items()
    }


async def _preempt(world: World, **bounds: str) -> None:
    """A job trains, and one of a higher priority comes, which needs its room."""
    world.server.create("priorityclasses", "", {"metadata": {"name": "urgent"}, "value": 1000})
    annotations = {f"{PREFIX}checkpoint-dir": "/checkpoints", **bounds}
    world.submit(_types(), annotations=annotations, cleanPodPolicy="Running")
    await world.until(lambda: world.has("Running") and world.trains())
    await asyncio.sleep(9)
    world.submit(_types("urgent"), "urgent", annotations=annotations, cleanPodPolicy="Running")


async def _preempted(world: World, **bounds: str) -> None:
    """A job of one size is stopped for one of a higher priority, and goes on when that has ended."""
    await _preempt(world, **bounds)
    await _given_back(world)


async def _given_back(world: World) -> None:
    """The job that took the room ends, and the other one goes on."""
    await world.until(lambda: world.has("Running", "urgent") and world.trains(name="urgent"))
    await asyncio.sleep(5)
    world.training("urgent").finish()
    await world.until(lambda: world.has("Succeeded", "urgent"))

    def goes_on() -> bool:
        state = world.state()
        return state.get("phase") == "Stable" and world.trains(state["generation"]) and state.get("stop") is None

    await world.until(goes_on)
    await asyncio.sleep(10)


async def _preempted_elastic(world: World) -> None:
    """The same of a job whose size may change."""
    await _preempted(world, **{f"{PREFIX}max-workers": "3"})


async def _preempted_unsaved(world: World) -> None:
    """A job is stopped that cannot save: it ends when the limit is over, and trains some steps once more."""
    world.oracles.exact = False
    world.training().saves = False
    await _preempted(world)


async def _preempted_late(world: World) -> None:
    """The volume is full when a job is to save before it stops, and has room again soon after."""
    await _preempt(world)
    world.training().saves = False
    await world.until(lambda: world.state().get("phase") == "Recreating")
    await asyncio.sleep(15)
    world.training().saves = True
    await _given_back(world)


async def _chief_lost(world: World) -> None:
    """The node of the chief is lost while its job is stopped: the job that needs the room gets it."""
    world.oracles.exact = False
    world.training().saves = False
    await _preempt(world)
    await world.until(lambda: world.state().get("phase") == "Recreating")
    chief = world.server.get("pods", "default", "job-chief-0")
    node = chief["spec"]["nodeName"] if chief is not None else ""
    world.cluster.lose(node)
    # What Kubernetes takes to notice it, the stop, and the start of the other job.
    await world.until(lambda: world.has("Running", "urgent") and world.trains(name="urgent"), 150)
    world.cluster.forget(node)
    world.training().saves = True
    await _given_back(world)


async def _edit_refused(world: World) -> None:
    """The program of an edited size does not come up at first. No profile can have it grow any further."""
    await train(world, annotations={f"{PREFIX}max-workers": "3"})
    world.training().builds = False
    world.edit({"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}})
    await world.until(lambda: _tried(world.state()) >= 1)
    await world.until(lambda: world.state()["phase"] == "Stable")
    world.training().builds = True
    await world.until(lambda: world.state()["phase"] == "Stable" and world.state()["replicas"]["Worker"] == 3, 300)
    await asyncio.sleep(5)


async def _edit_overtakes(world: World) -> None:
    """An edited size makes no step, and is edited once more before that is known."""
    await train(world)
    world.training().dies_with = 3
    world.edit({"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}})
    await world.until(lambda: world.state()["phase"] == "Switching")
    world.edit({"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 4}}}})
    await world.until(lambda: world.state()["phase"] == "Stable" and world.state()["replicas"]["Worker"] == 4)
    await asyncio.sleep(5)


async def _leaves_slowly(world: World) -> None:
    """A job shrinks on a node that it fills, and the pod that goes takes its time."""
    await train(world)
    world.cluster.leaves_s = 25.0
    await rescaled(world, workers=1)
    await asyncio.sleep(40)


_PRIORITIES: Final = "profile: las\nrescale:\n  stop_timeout_s: 60\n"
_ELASTIC: Final = "profile: elastic\nprofiles:\n  elastic: {lend: none}\n"
_IMPATIENT: Final = "profile: fixed\nrescale:\n  checkpoint_timeout_s: 5\n"
_SOON: Final = "profile: fixed\nrescale:\n  prepare_timeout_s: 15\n"

SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario("start", _start),
        Scenario("start-elastic", _start_elastic),
        Scenario("fail", _fail),
        Scenario("no-chief", partial(_start, types=_NO_CHIEF)),
        Scenario("no-chief-elastic", partial(_grow_and_end, types=_NO_CHIEF)),
        Scenario("forgotten", _forgotten),
        Scenario("too-long", _too_long),
        Scenario("too-often", _too_often, either=True),
        Scenario("retried", _retried, either=True),
        Scenario("grow", _grow),
        Scenario("shrink", _shrink),
        Scenario("more-ps", _more_ps),
        Scenario("spare", _spare),
        Scenario("recreate", _recreate),
        Scenario("recreate-never", _recreate_never, fragile=True),
        Scenario("roll-back", _roll_back),
        Scenario("dies-at-start", _dies_at_start, either=True),
        Scenario(
            "dies-at-start-for-good",
            partial(_dies_at_start, restart="ExitCode", backoffLimit=0),
            either=True,
            fragile=True,
        ),
        Scenario("dies-recreated", partial(_dies_at_start, rescale="recreate"), either=True),
        Scenario("quota-is-full", _quota_is_full, either=True),
        Scenario("quota-closes", _quota_closes, either=True),
        Scenario("own-port", _own_port, either=True),
        Scenario("no-room-to-save", _no_room_to_save),
        Scenario("told-late", _told_late, configuration=_IMPATIENT, either=True),
        Scenario("stop", _stop),
        Scenario("stop-at-once", _stop_at_once),
        Scenario("resume", _resume),
        Scenario("delete", _delete),
        Scenario("cpu-in-place", _cpu),
        Scenario("take-over", _grow, replicas=2),
        Scenario("hand-over", _hand_over, replicas=2),
        Scenario("kips", _placed, configuration=KIPS),
        Scenario("to-and-fro", to_and_fro),
        Scenario("grow-and-end", _grow_and_end),
        Scenario("never-ready", _never_ready, configuration=_SOON),
        Scenario("prepared-dies-late", _prepared_dies),
        Scenario("chief-dies", _chief_dies),
        Scenario("no-hook", _no_hook),
        Scenario("old-target", _old_target),
        Scenario("copy", _copy),
        Scenario("anew", _anew, fragile=True),
        Scenario("blink", _blink, fragile=True),
        Scenario("relabelled", _relabelled, rests=False),
        Scenario("pods-refused", _pods_refused),
        Scenario("cpu-refused", _cpu_refused),
        Scenario("cut-off", _cut_off, replicas=2),
        Scenario("late-state", _late_state, replicas=2),
        Scenario("room", _room, configuration=KIPS),
        Scenario("move-worker", _move_worker, configuration=KIPS),
        Scenario("move-ps", _move_ps, configuration=KIPS),
        Scenario("drain", drain, configuration=KIPS),
        Scenario("preempted", _preempted, configuration=_PRIORITIES),
        Scenario("preempted-elastic", _preempted_elastic, configuration=_PRIORITIES),
        Scenario("preempted-late", _preempted_late, configuration=_PRIORITIES),
        Scenario("preempted-unsaved", _preempted_unsaved, configuration=_PRIORITIES),
        Scenario("refused-node", _refused_node, configuration=KIPS),
        Scenario("elastic-placed", _placed, configuration=_ELASTIC),
        Scenario("elastic-grow", _grow, configuration=_ELASTIC),
        Scenario("elastic-room", _room, configuration=_ELASTIC),
        Scenario("elastic-drain", drain, configuration=_ELASTIC),
        Scenario(
            "chief-lost",
            _chief_lost,
            configuration=_PRIORITIES,
            nodes={"node-a": "4", "node-b": "4", "node-c": "4"},
            either=True,
            fragile=True,
        ),
        Scenario("edit-refused", _edit_refused, either=True),
        Scenario("edit-refused-kips", _edit_refused, configuration=KIPS, either=True),
        Scenario("edit-overtakes", _edit_overtakes, either=True),
        Scenario("leaves-slowly", _leaves_slowly, configuration=KIPS, nodes={"node-a": "1500m"}, either=True),
        Scenario(
            "leaves-slowly-elastic", _leaves_slowly, configuration=_ELASTIC, nodes={"node-a": "1500m"}, either=True
        ),
        *LOANS,
        *AUTOSCALED,
        *LIVE,
        *HANDED,
        *CHIEF_MOVES,
        *MEMORY,
    )
}

_Act = Callable[[World], Awaitable[None]]

TAKEN_OVER: Final[Mapping[str, tuple[_Act, _Act, str]]] = {
    "ended": (_train_cleaned, _clean, ""),
    "come and gone": (_nothing, _trained_and_cleaned, ""),
    "worker-moved": (train_placed, partial(move, kind="Worker", task=1), KIPS),
    "ps-moved": (train_placed, partial(move, kind="PS", task=0), KIPS),
    "grown": (train, partial(rescaled, workers=4), ""),
    "shrunk": (train, partial(rescaled, workers=1), ""),
}
"""How a job begins, what happens to it before a standby takes over that has not heard of it, and the configuration."""

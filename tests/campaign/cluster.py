"""kube-scheduler and the kubelets: bind pods, run their containers, end them, show them their commands."""

import asyncio
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from campaign.apiserver import ApiServer, Change, Object
from campaign.clock import format_now
from campaign.container import OOM_KILLED, Container
from campaign.files import SIGKILL, SIGTERM, Files
from campaign.pod import Judge, Training
from elastic_tfjob.api.tfjob import CONTAINER, JOB_NAME_LABEL, REPLICA_TYPE_LABEL
from elastic_tfjob.controller.model.affinity import NAME_FIELD, constraints_of
from elastic_tfjob.controller.model.cluster import POOL_LABEL
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION
from elastic_tfjob.controller.model.memory import NO_MEMORY, MemoryAsked, memory_of
from elastic_tfjob.controller.model.pod import EXPORTER, STATUS_PORT
from elastic_tfjob.controller.model.quantities import allocatable, requests_of
from elastic_tfjob.scheduling.resources import Taint

__all__ = ["PENDING", "Cluster"]

_NOTICED_S: Final = 50.0
"""After so long Kubernetes finds that it does not hear from a node."""
_TOLERATED_S: Final = 300.0
"""After so long more it deletes the pods there: their default tolerations."""
PENDING: Final = "PodResizePending"


@dataclass
class _Running:
    """What a kubelet knows of a pod of its node."""

    uid: str
    namespace: str
    name: str
    container: Container | None = None
    files: Files | None = None
    restarts: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    over: bool = False
    pending: str | None = None
    deaf_until: float = 0.0
    heard: str | None = None
    ip: str = ""
    memory: MemoryAsked = NO_MEMORY
    """What the container that trains has been given."""
    no_room: bool = False
    """Whether more memory was asked for than the node has."""


@dataclass
class Cluster:
    """All nodes. `command_s`: the least and longest time in which a pod hears of a command; `start_s`: in which a bound
    pod runs."""

    loop: asyncio.AbstractEventLoop
    server: ApiServer
    random: Random
    judge: Judge
    command_s: tuple[float, float] = (0.05, 1.0)
    start_s: tuple[float, float] = (0.3, 2.0)
    trainings: dict[str, Training] = field(default_factory=dict)
    lost_commands: int = 0
    """So many of the next commands reach no pod before its kubelet looks again by itself, after a minute."""
    deaf_s: dict[str, float] = field(default_factory=dict)
    """By action, for how long the kubelet of the first pod that gets a command of it shows that pod nothing."""
    closed: set[str] = field(default_factory=set)
    """Nodes that no pod may be bound to, for a reason that the operator knows nothing of: a volume's zone."""
    cut_off: set[str] = field(default_factory=set)
    """Nodes whose kubelets hear nothing of the API server, and answer nobody; their containers go on."""
    pods_reach_each_other: bool = True
    """Whether a pod's launcher gets an answer of another pod's exporter."""
    leaves_s: float = 0.0
    """So long kubelets take until containers of pods that are deleted hear of it."""
    _lost: set[str] = field(default_factory=set)
    """Nodes without power."""
    _pods: dict[str, _Running] = field(default_factory=dict)
    _addresses: int = 0
    _unbound: dict[str, tuple[str, str]] = field(default_factory=dict)
    _look: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.server.observers.append(self._observe)

    def add_node(self, name: str, cpu: str = "4", memory: str = "16Gi", pool: str = "") -> None:
        """A node that is ready; of a pool, if one is named."""
        labels = {"kubernetes.io/hostname": name, **({POOL_LABEL: pool} if pool else {})}
        body = {
            "metadata": {"name": name, "labels": labels},
            "status": {
                "allocatable": {"cpu": cpu, "memory": memory, "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self.server.create("nodes", "", body, by="cluster")

    def is_alive(self, node: str) -> bool:
        """Whether a node is there and has not lost its power."""
        return node not in self._lost and self.server.get("nodes", "", node) is not None

    def lose_power(self, name: str) -> None:
        """A node is lost, and what runs there ends at once. Some minutes after Kubernetes has noticed it, it deletes
        the pods, which no kubelet confirms."""
        self._lost.add(name)
        for running, _ in self._on(name):
            running.over = True
            if running.container is not None:
                running.container.signal_all(SIGKILL)
        self.lose(name)
        self._after(_NOTICED_S + _TOLERATED_S, self._evict, name)

    def _evict(self, name: str) -> None:
        if name in self._lost:
            for _, pod in self._on(name):
                self.server.delete("pods", pod, by="node-controller")

    def replace_node(self, name: str, cpu: str) -> None:
        """A lost node is deleted, the pods on it with it, and a new one of its name joins."""
        self._lost.discard(name)
        self.cut_off.discard(name)
        self.forget(name)
        self.add_node(name, cpu)

    def _on(self, node: str) -> list[tuple[_Running, Object]]:
        """Pods of a node that its kubelet knows."""
        pods = [pod for pod in self.server.all("pods") if pod["spec"].get("nodeName") == node]
        return [(self._pods[uid], pod) for pod in pods if (uid := pod["metadata"]["uid"]) in self._pods]

    def training(self, namespace: str, job: str) -> Training:
        """A job's training."""
        key = f"{namespace}/{job}"
        if key not in self.trainings:
            self.trainings[key] = Training(self.judge, self.random, key)
        return self.trainings[key]

    def status_of(self, namespace: str, name: str) -> bytes | None:
        """What a pod's exporter answers; None where there is nobody to answer."""
        pod = self.server.get("pods", namespace, name)
        running = self._pods.get(pod["metadata"]["uid"]) if pod is not None else None
        if pod is None or running is None or running.over or running.container is None or self._is_cut_off(pod):
            return None
        sidecars = pod["spec"].get("initContainers") or ()
        return running.container.status() if any(each["name"] == EXPORTER for each in sidecars) else None

    def _ask(self, address: str) -> dict[str, Any] | None:
        """What one pod's launcher gets from another pod's exporter."""
        ip = address.rpartition(":")[0]
        found = next((each for each in self._pods.values() if each.ip == ip and not each.over), None)
        if found is None or not self.pods_reach_each_other:
            return None
        answer = self.status_of(found.namespace, found.name)
        return None if answer is None else json.loads(answer)

    def mischief(self) -> str:
        """Let something go wrong somewhere, and tell what."""
        pods = [each for each in self.server.all("pods") if each["metadata"]["uid"] in self._pods]
        what = self.random.choice(("container", "drain", "command"))
        if what == "command":
            self.lost_commands += 1
            return "the next command reaches its pod late"
        if not pods:
            return "nothing"
        pod = self.random.choice(pods)
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        if what == "container":
            self.kill_container(namespace, name)
            return f"the container of {name} dies"
        # A plain job fails by a drain, as upstream's: only an elastic one must come to the same end.
        elastic = any(each["name"] == EXPORTER for each in pod["spec"].get("initContainers") or ())
        if elastic and pod["status"]["phase"] in ("Pending", "Running"):
            self.server.delete("pods", pod, by="drain")
        return f"{name} is drained"

    def kill_container(self, namespace: str, name: str) -> None:
        """The container dies, as by lack of memory; the kubelet restarts it where the pod's policy says so."""
        pod = self.server.get("pods", namespace, name)
        running = self._pods.get(pod["metadata"]["uid"]) if pod is not None else None
        if running is not None and running.container is not None:
            running.container.signal_all(SIGKILL)

    # What happens at the API server

    def _observe(self, change: Change) -> None:
        if change.resource == "nodes":  # a taint that goes lets pods in
            self._schedule_soon()
        if change.resource != "pods":
            return
        old, new = change.old, change.new
        if new is None:
            assert old is not None
            uid = old["metadata"]["uid"]
            self._unbound.pop(uid, None)
            running = self._pods.pop(uid, None)
            if running is not None and running.container is not None:
                running.over = True
                running.container.signal_all(SIGKILL)
            self._schedule_soon()
            self._give_memory_left(old["spec"].get("nodeName"))
            return
        metadata = new["metadata"]
        uid = metadata["uid"]
        if old is None:
            self._unbound[uid] = metadata["namespace"], metadata["name"]
            self._schedule_soon()
            return
        running = self._pods.get(uid)
        if running is None:
            return
        if self._is_cut_off(new):
            return
        command = (metadata.get("annotations") or {}).get(COMMAND_ANNOTATION)
        if command is not None and command != running.pending:
            running.pending = command
            action = json.loads(command)["action"]
            if action in self.deaf_s:
                running.deaf_until = self.loop.time() + self.deaf_s.pop(action)
            if self.lost_commands:
                self.lost_commands -= 1
                self._after(70.0, self._show_command, running)
            else:
                after_s = self.random.uniform(*self.command_s)
                self._after(max(after_s, running.deaf_until - self.loop.time()), self._show_command, running)
        if metadata.get("deletionGracePeriodSeconds") != old["metadata"].get("deletionGracePeriodSeconds"):
            self._after(self.random.uniform(0.05, 0.5) + self.leaves_s, self._terminate, running)
        if change.old is not None and change.old["spec"] is not new["spec"]:
            self._schedule_soon()
            if memory_of(new["spec"]) != memory_of(old["spec"]):
                self._after(self.random.uniform(0.1, 1.0), self._give_memory, running)
        if new["status"]["phase"] in ("Succeeded", "Failed") and old["status"]["phase"] == "Running":
            self._give_memory_left(new["spec"].get("nodeName"))

    def _after(self, seconds: float, what: Any, *arguments: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, what, *arguments)

    # kube-scheduler

    def _schedule_soon(self) -> None:
        if self._unbound and self._look is None:
            self._look = self._after(0.05, self._schedule)

    def _schedule(self) -> None:
        self._look = None
        for uid, (namespace, name) in list(self._unbound.items()):
            pod = self.server.get("pods", namespace, name)
            if pod is None or pod["metadata"]["uid"] != uid or "deletionTimestamp" in pod["metadata"]:
                del self._unbound[uid]
                continue
            node = self._node_for(pod)
            if node is not None:
                del self._unbound[uid]
                bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
                running = self._pods[uid] = _Running(uid, namespace, name)
                running.pending = (pod["metadata"].get("annotations") or {}).get(COMMAND_ANNOTATION)
                self.server.update("pods", pod, _conditioned(bound, "True", "", ""), by="kube-scheduler")
                self._after(self.random.uniform(*self.start_s), self._start, running)
            elif not (pod["status"].get("conditions")):
                message = "0 nodes are available: Insufficient cpu."
                refused = _conditioned(pod, "False", "Unschedulable", message)
                self.server.update("pods", pod, refused, by="kube-scheduler")

    def _node_for(self, pod: Object) -> str | None:
        constraints, asked = constraints_of(pod["spec"]), requests_of(pod["spec"])
        best: tuple[int, str] | None = None
        for node in self.server.all("nodes"):
            name, spec = node["metadata"]["name"], node.get("spec") or {}
            ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
            if spec.get("unschedulable") or name in self.closed or not ready:
                continue
            taints = tuple(Taint(each["key"], effect=each["effect"]) for each in spec.get("taints") or ())
            if not constraints.admit({**node["metadata"]["labels"], NAME_FIELD: name}, taints):
                continue
            free = self.free(node)
            if all(want <= have for want, have in zip(asked, free, strict=True)):
                best = max(best or (-1, ""), (free[0], name))
        return None if best is None else best[1]

    def free(self, node: Object) -> tuple[int, ...]:
        """What pods on a node leave of it, in the order of Resources."""
        left = list(allocatable(node["status"]["allocatable"]))
        for pod in self.server.all("pods"):
            here = pod["spec"].get("nodeName") == node["metadata"]["name"]
            if here and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                for i, amount in enumerate(requests_of(pod["spec"])):
                    left[i] -= amount
        return tuple(left)

    # Kubelets

    def _is_cut_off(self, pod: Object) -> bool:
        return bool(self.cut_off) and pod["spec"].get("nodeName") in self.cut_off

    def lose(self, node: str) -> None:
        """A node is lost; Kubernetes notices it, and says so of the node and of its pods."""
        self.cut_off.add(node)
        self._after(_NOTICED_S, self._notice, node)

    def _notice(self, name: str) -> None:
        node = self.server.get("nodes", "", name)
        if node is None or name not in self.cut_off:
            return
        unknown = {**node["status"], "conditions": [{"type": "Ready", "status": "Unknown"}]}
        self.server.update("nodes", node, {**node, "status": unknown}, by="cluster")
        for pod in self.server.all("pods"):
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] == "Running":
                said = [each for each in pod["status"].get("conditions") or () if "Ready" not in each["type"]]
                said += [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
                self.server.update("pods", pod, {**pod, "status": {**pod["status"], "conditions": said}}, by="cluster")

    def forget(self, name: str) -> None:
        """A node that is lost is deleted, and so are its pods."""
        node = self.server.get("nodes", "", name)
        if node is not None:
            self.server.store("nodes", node, None, by="cluster")
        for pod in self.server.all("pods"):
            if pod["spec"].get("nodeName") == name:
                self.server.store("pods", pod, None, by="cluster")

    def reconnect(self, node: str) -> None:
        """The kubelet of a node that was cut off sees what was written meanwhile: pods that are to end."""
        self.cut_off.discard(node)
        for pod in self.server.all("pods"):
            running = self._pods.get(pod["metadata"]["uid"])
            if running is not None and pod["spec"].get("nodeName") == node and "deletionTimestamp" in pod["metadata"]:
                self._after(self.random.uniform(0.05, 0.5), self._terminate, running)

    def _pod(self, running: _Running) -> Object | None:
        pod = self.server.get("pods", running.namespace, running.name)
        return pod if pod is not None and pod["metadata"]["uid"] == running.uid else None

    def _start(self, running: _Running) -> None:
        pod = self._pod(running)
        if pod is None or running.over or "deletionTimestamp" in pod["metadata"]:
            return
        job = (pod["metadata"].get("labels") or {}).get(JOB_NAME_LABEL)
        if job is None:  # somebody else's, which does nothing
            self._set_status(running, phase="Running")
            return
        training = self.training(running.namespace, job)

        def over(code: int, reason: str) -> None:
            self._container_over(running, code, reason)

        if not running.no_room:
            running.memory = memory_of(pod["spec"])
        container = running.container = Container(
            self.loop,
            self.random,
            pod,
            training=training,
            files=running.files,
            over=over,
            limit_bytes=running.memory.limit,
            ask=self._ask,
        )
        running.files = container.files
        if not running.ip:
            self._addresses += 1
            running.ip = f"10.0.{self._addresses >> 8}.{self._addresses & 255}"
        if running.pending is not None:
            container.command(running.pending)
        self._set_status(running, phase="Running", podIP=running.ip, containerStatuses=[_running(running)])
        container.start()

    # Memory in place

    def _give_memory(self, running: _Running) -> None:
        """Give the container what its pod asks for, or say that the node has no room: the pod keeps what it has."""
        pod = self._pod(running)
        if pod is None or running.over or self._is_cut_off(pod):
            return
        asked, name, status = memory_of(pod["spec"]), pod["spec"]["nodeName"], pod["status"]
        node = self.server.get("nodes", "", name)
        assert node is not None
        has = allocatable(node["status"]["allocatable"]).memory_bytes
        held = sum(self._holds_bytes(each) for each in self.server.all("pods") if each["spec"].get("nodeName") == name)
        more = asked.request - running.memory.request
        running.no_room = more > 0 and held + more > has
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        pending = conditions.pop(PENDING, {})
        if not running.no_room:
            running.memory = asked
            if running.container is not None:
                running.container.limit_bytes = asked.limit
            given = [{**each, **_given(asked)} for each in status.get("containerStatuses") or ()]
            self._set_status(running, conditions=list(conditions.values()), containerStatuses=given)
            return
        reason = "Infeasible" if asked.request > has else "Deferred"
        if pending.get("reason") == reason:  # since when it is, stays
            return
        message = f"Node didn't have enough resource: memory, requested: {asked.request}, capacity: {has}"
        pending = {"status": "True", "reason": reason, "message": message, "lastTransitionTime": format_now()}
        self._set_status(running, conditions=[*conditions.values(), {"type": PENDING, **pending}])

    def _holds_bytes(self, pod: Object) -> int:
        """The memory that a kubelet has given to a pod."""
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            return 0
        running, asked = self._pods.get(pod["metadata"]["uid"]), requests_of(pod["spec"]).memory_bytes
        if running is None or running.memory == NO_MEMORY:
            return asked
        return asked - memory_of(pod["spec"]).request + running.memory.request

    def _give_memory_left(self, node: str | None) -> None:
        """A pod has left a node: another one may get what it asks for."""
        for running in [each for each in self._pods.values() if each.no_room]:
            pod = self._pod(running)
            if pod is not None and pod["spec"].get("nodeName") == node:
                self._after(self.random.uniform(0.1, 1.0), self._give_memory, running)

    def _show_command(self, running: _Running) -> None:
        deaf = self.loop.time() < running.deaf_until
        if running.container is not None and not running.over and running.pending is not None and not deaf:
            running.container.command(running.pending)

    def _container_over(self, running: _Running, code: int, reason: str) -> None:
        """Its first process has ended: restart it, or the pod is over."""
        running.container = None
        pod = self._pod(running)
        if pod is None or running.over:
            return
        ended: dict[str, Any] = {"exitCode": code}
        if reason == OOM_KILLED:
            ended |= {"reason": reason, "finishedAt": format_now()}
            labels = pod["metadata"]["labels"]
            self.judge.is_killed_for_memory(f"{running.namespace}/{labels[JOB_NAME_LABEL]}", labels[REPLICA_TYPE_LABEL])
        policy = pod["spec"].get("restartPolicy", "Always")
        terminating = "deletionTimestamp" in pod["metadata"]
        if not terminating and (policy == "Always" or (policy == "OnFailure" and code)):
            running.restarts += 1  # the kubelet counts it when it is done
            waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
            running.last = {"terminated": {**ended, "message": "Traceback\nValueError: as the log says\n"}}
            status = {**_status(running, waiting), "restartCount": running.restarts - 1, "lastState": running.last}
            self._set_status(running, containerStatuses=[status])
            self._after(self.random.uniform(0.5, 3.0) * min(running.restarts, 5), self._start, running)
            return
        running.over = True
        status = _status(running, {"terminated": ended})
        self._set_status(running, phase="Failed" if code else "Succeeded", containerStatuses=[status])
        if terminating:  # the kubelet ends the exporter first, so the pod is there for a while
            self._after(self.random.uniform(0.0, 2.0), self._remove, running)

    def _terminate(self, running: _Running) -> None:
        if running.container is None:
            running.over = True
            self._remove(running)
            return
        pod = self._pod(running)
        if pod is not None:
            self._after(pod["metadata"].get("deletionGracePeriodSeconds", 30), self._kill, running)
        running.container.signal_all(SIGTERM)

    def _kill(self, running: _Running) -> None:
        if running.container is not None and not running.over:
            running.container.signal_all(SIGKILL)

    def _remove(self, running: _Running) -> None:
        pod = self._pod(running)
        if pod is not None:
            self.server.store("pods", pod, None, by="kubelet")

    def _set_status(self, running: _Running, **values: Any) -> None:
        pod = self._pod(running)
        if pod is not None:
            self.server.update("pods", pod, {**pod, "status": {**pod["status"], **values}}, by="kubelet")


def _running(running: _Running) -> dict[str, Any]:
    return {**_status(running, {"running": {}}), "lastState": running.last}


def _status(running: _Running, state: dict[str, Any]) -> dict[str, Any]:
    """Of the container. CPU is given as soon as it is asked for, so that only the memory is told."""
    return {"name": CONTAINER, "restartCount": running.restarts, "state": state, **_given(running.memory)}


def _given(memory: MemoryAsked) -> dict[str, Any]:
    request, limit = ({"memory": str(amount)} for amount in memory)
    return {
        "allocatedResources": request,
        "resources": {"requests": request, "limits": limit if memory.limit else {}},
    }


def _conditioned(pod: Object, status: str, reason: str, message: str) -> Object:
    condition = {"type": "PodScheduled", "status": status, "lastTransitionTime": format_now()}
    if reason:
        condition |= {"reason": reason, "message": message}
    return {**pod, "status": {**pod["status"], "conditions": [condition]}}


STATUS_SUFFIX: Final = f":{STATUS_PORT}/proxy/status"

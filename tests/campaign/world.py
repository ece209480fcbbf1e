"""One schedule: a cluster, one or two replicas of the operator, a person who does what the scenario says, and the
oracles. Everything runs in one thread on a virtual clock, so a seed says all that happens."""

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest import mock

import structlog

from campaign.apiserver import ApiServer, Change, Object
from campaign.client import Api, Wire
from campaign.clock import Deadlock, VirtualLoop, virtual_time
from campaign.cluster import Cluster
from campaign.faults import ChiefLostAt, Faults, Seeded
from campaign.files import virtual_machine
from campaign.loans import loan_of
from campaign.oracles import Oracles, state_of, summary
from campaign.pod import Training
from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.tfjob import GROUP, KIND, VERSION
from elastic_tfjob.controller import operator as operator_module
from elastic_tfjob.controller.kube import reports
from elastic_tfjob.controller.model.cluster import POOL_LABEL
from elastic_tfjob.controller.operator import EXIT_LOST_LEADERSHIP, EXIT_OK, Operator, Options

__all__ = ["POOL", "SERVING", "Outcome", "Scenario", "World", "campaign", "run"]

NAMESPACE: Final = "default"
POOL: Final = "inference"
SERVING: Final = "serving"
_CONFIGURATION: Final = ("kubeflow", "elastic-tfjob-operator")
_QUIET_S: Final = 25.0
"""An undisturbed run is over when nothing was written for so long."""
_STEADY_S: Final = 20.0
"""For so long a disturbed run must stay as it has ended."""
_CHIEF_LOST_S: Final = 200.0
"""A node whose power is lost is replaced after so long. Until then the job trains elsewhere or has an event."""
_TOLD_S: Final = 150.0
"""A job that does not train since its chief's node was lost has an event within this time."""
_INTERVAL_STEPS: Final = 50
"""Steps between two checkpoints: a lost chief costs no more."""
_LONGEST_S: Final = 900.0
"""A run that has not come to its end by then never will."""


@dataclass(frozen=True)
class Scenario:
    """What a person does. `replicas`: of the operator, of which one leads; `configuration`: config.yaml; `nodes`: CPU
    by name; `lenders`: the same of nodes of the pool POOL, whose own pods are in the namespace SERVING."""

    name: str
    act: Callable[["World"], Any]
    replicas: int = 1
    configuration: str = ""
    rests: bool = True
    """Whether at the end all jobs have what they call for: not where a person stands in the way."""
    either: bool = False
    """Whether there is more than one good way to its end, so that ends are compared as after many faults."""
    fragile: bool = False
    """Whether its pods must not fail, so that a seed has no container die and no pod drained."""
    nodes: Mapping[str, str] = field(default_factory=lambda: {"node-a": "4", "node-b": "4"})
    lenders: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """What came of a schedule. `end`: the summary of what was there at the end; `loose_end`: the loose one."""

    violations: list[str]
    end: dict[str, Any]
    loose_end: dict[str, Any]
    writes: list[str]
    events: list[str]
    virtual_s: float
    log: list[str]


class _Replica:
    """One life of one replica of the operator."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self._world = world
        self.api = Api(world.wire, name, self.die)
        place = "/".join(_CONFIGURATION) if world.scenario.configuration else ""
        options = Options(
            metrics_address="0",
            health_address="0",
            leader_elect=world.scenario.replicas > 1,
            leader_election_namespace="kubeflow",
            image="operator:1",
            status_via="proxy",
            config_map=place,
            threads=4,
        )
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(Operator(self.api, options).run(self.stop), name=name)
        self.task.add_done_callback(self._over)

    def die(self) -> None:
        """The process is gone at once: nothing of it is written any more."""
        if self.api.dead:
            return
        self.api.dead = True
        self._world.note(f"{self.name} dies")
        self.task.cancel()
        self._world.restart(self)

    def _over(self, task: "asyncio.Task[int]") -> None:
        if self.api.dead or self._world.closing:
            if not task.cancelled():
                task.exception()
            return
        self.api.dead = True
        error = None if task.cancelled() else task.exception()
        right = EXIT_OK if self.stop.is_set() else EXIT_LOST_LEADERSHIP
        if error is not None or task.cancelled() or task.result() != right:
            self._world.oracles.ended(f"{self.name} ended with {error!r}")
        self._world.restart(self)


class World:
    """What a scenario's person sees and may do."""

    def __init__(self, loop: VirtualLoop, scenario: Scenario, seed: int, faults: Faults) -> None:
        self.loop = loop
        self.scenario = scenario
        self.random = Random(f"{scenario.name} {seed}")
        self.faults = faults
        self.closing = False
        self.undisturbed = False
        self.log: list[str] = []
        self.server = ApiServer(loop)
        self.server.observers.append(self._hear)
        self.oracles = Oracles(loop, self.server, exact=not isinstance(faults, Seeded | ChiefLostAt))
        self.cluster = Cluster(loop, self.server, self.random, self.oracles)
        self.wire = Wire(self.server, self.cluster, faults, self.random)
        self.wire.sending = self.oracles.sending
        self.wire.lose_chief = self._lose_chief
        self._told_at = 0.0
        self._lost_until = 0.0
        self.began = loop.time()
        loop.set_exception_handler(self._broken)
        self._replicas: dict[int, _Replica] = {}
        self._lives = 0
        # Else what their tasks wait for is garbage.
        self._gone: list[_Replica] = []

    def begin(self) -> None:
        """Nodes, the configuration, the operator."""
        for name, cpu in self.scenario.nodes.items():
            self.cluster.add_node(name, cpu)
        for name, cpu in self.scenario.lenders.items():
            self.cluster.add_node(name, cpu, pool=POOL)
        self.server.create(
            "priorityclasses", "", {"metadata": {"name": "system-cluster-critical"}, "value": 2000000000}
        )
        if self.scenario.configuration:
            namespace, name = _CONFIGURATION
            data = {"config.yaml": self.scenario.configuration}
            self.server.create("configmaps", namespace, {"metadata": {"name": name}, "data": data})
        for number in range(self.scenario.replicas):
            self._start(number)
        self._plan_mischief()

    def _plan_mischief(self) -> None:
        after_s = self.faults.mischief_s()
        if after_s < _LONGEST_S:
            self.loop.call_later(after_s, self._make_mischief)

    def _make_mischief(self) -> None:
        if not self.closing and self.wire.faulty():
            self.note(self.cluster.mischief())
            self._plan_mischief()

    def _broken(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback or a task that nobody waits for has failed: of the campaign itself, or of the operator."""
        if not self.closing:
            self.oracles.fail("nothing_breaks", f"{context.get('message')}: {context.get('exception')!r}")

    def _start(self, number: int) -> None:
        if self.closing:
            return
        self._lives += 1
        name = f"operator-{number}.{self._lives}"
        self.oracles.operators.add(name)
        self._replicas[number] = _Replica(self, name)

    def restart(self, replica: _Replica) -> None:
        """The Deployment makes a dead replica anew."""
        self._gone.append(replica)
        number = next(number for number, each in self._replicas.items() if each is replica)
        self.loop.call_later(self.faults.restart_s(), self._start, number)

    def kill_leader(self) -> None:
        """End the replica that leads, at once."""
        leader = next((lease["spec"].get("holderIdentity") for lease in self.server.all("leases")), None)
        for replica in self._replicas.values():
            if self.scenario.replicas == 1 or self.oracles.identities.get(replica.name) == leader:
                replica.die()
                return

    def _lose_chief(self) -> None:
        """The node of the job's chief loses its power; without a bound chief, the scenario's first node."""
        job = self.server.get("tfjobs", NAMESPACE, "job")
        state = (state_of(job) or {}) if job else {}
        index = (state.get("indexes") or {}).get("Chief", [0])[0]
        chief = self.server.get("pods", NAMESPACE, f"job-chief-{index}")
        name = (chief["spec"].get("nodeName") if chief else None) or next(iter(self.scenario.nodes))
        self.note(f"{name}, the node of the chief, loses power in phase {state.get('phase')}")
        self.oracles.most_lost_steps = _INTERVAL_STEPS
        self.cluster.lose_power(name)
        self._lost_until = self.loop.time() + _CHIEF_LOST_S
        said = ((chief or {}).get("status") or {}).get("conditions") or ()
        if any(each.get("type") == "Ready" and each.get("status") == "True" for each in said):
            # Of a pod that was not ready yet Kubernetes says nothing before it evicts it, which is after 300 s.
            self.loop.call_later(_TOLD_S, self._is_told, self.loop.time())
        self.loop.call_later(_CHIEF_LOST_S, self.cluster.replace_node, name, self.scenario.nodes[name])

    def _is_told(self, since: float) -> None:
        """The job trains, has ended, is suspended, or an event says why not."""
        job = self.server.get("tfjobs", NAMESPACE, "job")
        if job is None or self.closing or any(self.has(each) for each in ("Succeeded", "Failed", "Suspended")):
            return
        trains = any(each.task.chief and each.state == "training" for each in self.training().trainers)
        if not trains and self._told_at < since:
            self.oracles.fail("trains_or_is_told", f"no event in {_TOLD_S:.0f} s since the chief's node was lost")

    async def nodes_are_back(self) -> None:
        """Wait for a lost node's replacement, and until the job has noticed it."""
        if self._lost_until:
            await asyncio.sleep(max(0.0, self._lost_until + _QUIET_S - self.loop.time()))

    def _hear(self, change: Change) -> None:
        """What the operator tells people."""
        if change.resource == "events" and change.new is not None:
            self.note(f"event {change.new['reason']}: {change.new['message']}")
            if change.new.get("type") == "Warning":
                self._told_at = self.loop.time()

    def _leader(self) -> str:
        """Empty where the one that led has just died."""
        leader = next(lease["spec"].get("holderIdentity") for lease in self.server.all("leases"))
        names = [replica.name for replica in self._replicas.values()]
        return next((name for name in names if self.oracles.identities.get(name) == leader), "")

    def stop_leader(self) -> None:
        """SIGTERM to the replica that leads: it ends in good order."""
        name = self._leader()
        for replica in self._replicas.values():
            if replica.name == name:
                replica.stop.set()

    def cut_leader(self, seconds: float) -> None:
        """For so long the replica that leads cannot renew its lease; all else it can."""
        self.wire.cut[self._leader()] = self.loop.time() + seconds

    def silence_standby(self, seconds: float, *resources: str) -> None:
        """For so long the watches of the replicas that do not lead say nothing."""
        until = self.loop.time() + seconds
        for name in (each.name for each in self._replicas.values() if each.name != self._leader()):
            self.wire.silent |= {(name, resource): until for resource in resources}
        self.wire.silent_until = max(self.wire.silent_until, until)

    def hold_state(self, lands: Callable[[], bool]) -> None:
        """The next state that the replica that leads now writes comes to the API server then, and not before."""
        self.wire.held[self._leader()] = lands

    def note(self, text: str) -> None:
        """Keep a line for whoever looks at this schedule."""
        self.log.append(f"{self.loop.time() - self.began:8.2f}  {text}")

    async def close(self) -> None:
        """End all that runs."""
        self.closing = True
        for replica in self._replicas.values():
            replica.api.dead = True
            replica.task.cancel()
        for _ in range(10):
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=20.0)

    # What a person does

    def submit(self, types: Mapping[str, Any], name: str = "job", *, elastic: bool = False, **options: Any) -> None:
        """Create a TFJob: `types` by name a count or an entry of tfReplicaSpecs. Option `memory`: limits by type."""
        annotations = dict(options.pop("annotations", {}))
        if elastic:
            bounds = {"min-workers": "1", "max-workers": "4", "max-ps": "3", "checkpoint-dir": "/checkpoints"}
            annotations = {f"{PREFIX}{key}": value for key, value in bounds.items()} | annotations
        cpu, memory = options.pop("cpu", "200m"), options.pop("memory", {})
        container = {"name": "tensorflow", "image": "train", "command": ["python", "train.py"]}

        def resources(kind: str) -> dict[str, Any]:
            limit = {"memory": memory[kind]} if kind in memory else {}
            return {"requests": {"cpu": cpu, "memory": "100Mi"}, "limits": {"cpu": cpu, **limit}}

        specs = {
            kind: value
            if isinstance(value, dict)
            else {
                "replicas": value,
                "restartPolicy": options.get("restart", "OnFailure"),
                "template": {"spec": {"containers": [{**container, "resources": resources(kind)}]}},
            }
            for kind, value in types.items()
        }
        options.pop("restart", None)
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"tfReplicaSpecs": specs, "runPolicy": options},
        }
        self.server.create("tfjobs", NAMESPACE, body)

    def serve(self, name: str, cpu: str) -> None:
        """Create a pod of the pool POOL's own."""
        container = {"name": "server", "image": "serve", "resources": {"requests": {"cpu": cpu, "memory": "100Mi"}}}
        spec = {"containers": [container], "nodeSelector": {POOL_LABEL: POOL}}
        self.server.create("pods", SERVING, {"metadata": {"name": name}, "spec": spec})

    def serves(self, name: str) -> bool:
        """Whether a pod of the pool's own runs."""
        pod = self.server.get("pods", SERVING, name)
        return pod is not None and pod["status"]["phase"] == "Running"

    def loan(self, node: str) -> tuple[str, bool]:
        """The stage of a node's loan, and whether it has the taint of one."""
        found = self.server.get("nodes", "", node)
        assert found is not None
        return loan_of(found)

    def job(self, name: str = "job") -> Object:
        """The TFJob as it is now."""
        found = self.server.get("tfjobs", NAMESPACE, name)
        assert found is not None
        return found

    def training(self, name: str = "job") -> Training:
        """What the job's programs do."""
        return self.cluster.training(NAMESPACE, name)

    def edit(self, patch: Mapping[str, Any], name: str = "job") -> None:
        """kubectl patch."""
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/tfjobs/{name}"
        self.server.handle("PATCH", path, patch, by="user")

    def annotate(self, name: str = "job", **values: str | None) -> None:
        """kubectl annotate; `_` stands for `-`."""
        annotations = {f"{PREFIX}{key.replace('_', '-')}": value for key, value in values.items()}
        self.edit({"metadata": {"annotations": annotations}}, name)

    def has(self, condition: str, name: str = "job") -> bool:
        """Whether the job has a condition that is True."""
        conditions = (self.job(name).get("status") or {}).get("conditions") or ()
        return any(each["type"] == condition and each["status"] == "True" for each in conditions)

    def state(self, name: str = "job") -> dict[str, Any]:
        """The job's state, empty if there is none."""
        return state_of(self.job(name)) or {}

    def trains(self, generation: int = 0, name: str = "job") -> bool:
        """Whether a program of that generation makes steps."""
        return any(
            each.task.chief and each.state == "training" and each.runs_as == generation and each.first_step_at
            for each in self.training(name).trainers
        )

    async def until(self, what: Callable[[], bool], within_s: float = 300.0) -> bool:
        """Wait for something; False when it does not come: where nothing goes wrong that is a violation, else what
        follows shows what is wrong."""
        end = self.loop.time() + within_s
        while not what():
            if self.loop.time() >= end:
                self.note("waited in vain")
                if self.undisturbed:
                    place = sys._getframe(1)
                    what_for = f"line {place.f_lineno} of {place.f_code.co_name}"
                    self.oracles.fail("nobody_waits_in_vain", f"{within_s:.0f} s at {what_for}")
                return False
            await asyncio.sleep(0.5)
        return True


def _difference(expected: Any, found: Any, place: str = "") -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in sorted({*expected, *found}):
            yield from _difference(expected.get(name), found.get(name), f"{place}.{name}")
    elif expected != found:
        yield f"{place.lstrip('.')} is {found} and not {expected}"


async def _live(world: World, expected: Mapping[str, Any] | None) -> None:
    loop, server = world.loop, world.server
    world.undisturbed = expected is None
    world.begin()
    await world.scenario.act(world)
    world.note("the scenario is over")
    if isinstance(world.faults, Seeded):
        world.faults.until = loop.time()
    limit = loop.time() + _LONGEST_S
    if expected is None:
        seen, since = -1, loop.time()
        while loop.time() - since < _QUIET_S:
            await asyncio.sleep(1.0)
            written = sum(len(found) for name, found in server.history.items() if name not in ("leases", "events"))
            if written != seen:
                seen, since = written, loop.time()
            if loop.time() > limit:
                world.oracles.fail("it_comes_to_rest", f"still writes after {_LONGEST_S:.0f} s")
                return
        if world.scenario.rests:
            world.oracles.at_rest(world.cluster.trainings)
        return
    await world.nodes_are_back()
    loose = isinstance(world.faults, Seeded | ChiefLostAt) or world.scenario.either
    while loop.time() < limit:
        if summary(server, loose=loose) == expected:
            break
        await asyncio.sleep(0.5)
    else:
        told = "; ".join(list(_difference(expected, summary(server, loose=loose)))[:6])
        world.oracles.fail("ends_as_undisturbed", told)
        return
    if not loose:
        world.oracles.memory.kills_are_named()
    # A watch that has become silent is noticed later.
    await asyncio.sleep(max(0.0, world.wire.silent_until - loop.time()))
    since = loop.time()
    await asyncio.sleep(_STEADY_S)
    if (found := summary(server, loose=loose)) != expected:
        world.oracles.fail("ends_as_undisturbed", "not for long: " + "; ".join(list(_difference(expected, found))[:6]))
    world.oracles.calm(since)


def run(
    scenario: Scenario, seed: int = 0, faults: Faults | None = None, expected: Mapping[str, Any] | None = None
) -> Outcome:
    """One schedule. Without `expected` it is the undisturbed run, whose end is what others are compared with."""
    loop = VirtualLoop()
    state = random.getstate()
    random.seed(seed)
    try:
        world = World(loop, scenario, seed, faults if faults is not None else Faults())
        if faults is not None and faults.until == 0.0:
            faults.until = loop.time() + _LONGEST_S
        _worlds.append(world)
        try:
            loop.run_until_complete(_live(world, expected))
        except Deadlock as error:
            world.oracles.fail("it_comes_to_rest", str(error))
        end, loose = summary(world.server, loose=scenario.either), summary(world.server, loose=True)
        loop.run_until_complete(world.close())
        loop.run_until_complete(loop.shutdown_asyncgens())
        oracles = world.oracles
        return Outcome(
            oracles.violations, end, loose, world.wire.writes, world.wire.events, loop.time() - world.began, world.log
        )
    finally:
        _worlds.clear()
        random.setstate(state)
        loop.close()


_worlds: list[World] = []


def _listen(_: Any, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """The operator's log: what it calls a bug is one."""
    if _worlds:
        said = str(event.get("event"))
        error = sys.exc_info()[1] or event.get("error")
        # The second is a warning of the operator's: in a pod anything may be. Here all that answers is the campaign's.
        if said.startswith("bug") or "unexpected error in a pod's report" in said:
            _worlds[0].oracles.bug(f"{said}: {error!r}")
        details = {name: value for name, value in event.items() if name not in ("event", "exc_info")}
        _worlds[0].note(f"{method}: {said} {details}")
    raise structlog.DropEvent


@contextlib.contextmanager
def campaign(*, level: int = 30) -> Iterator[None]:
    """Virtual clocks, the virtual machine and the log of schedules, for as long as the block lasts. `level`: of the
    operator's log lines that are kept (30: warnings and errors; 20: all that tells what it does)."""
    before = structlog.get_config()
    structlog.configure(
        processors=[_listen],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    try:
        with virtual_time(), virtual_machine(), _small_operator():
            yield
    finally:
        structlog.configure(**before)


async def _wait_for_ever() -> None:
    await asyncio.Event().wait()


@contextlib.contextmanager
def _small_operator() -> Iterator[None]:
    """The operator without what makes no difference here: measuring how late a loop is whose clock stands still while
    it works, and tasks for more questions at a time than there are pods. Nor does it take what is there when it starts
    for what stays: a process plays thousands of schedules, and would keep each one's world."""
    with (
        mock.patch.object(operator_module, "watch_loop", _wait_for_ever),
        mock.patch.object(operator_module, "collect_less"),
        mock.patch.object(reports, "_IN_FLIGHT", 16),
    ):
        yield

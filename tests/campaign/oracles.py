"""What must hold at every moment of every schedule, each a small function that is shown what happens."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from campaign.apiserver import ApiServer, Change, Object
from campaign.loans import LoanOracles, is_of_a_job, loans_at_rest
from campaign.memory_oracles import MemoryOracles
from campaign.pod import Program, Training
from elastic_tfjob.api.tfjob import CONTAINER, JOB_NAME_LABEL, REPLICA_INDEX_LABEL, REPLICA_TYPE_LABEL
from elastic_tfjob.controller.model.annotations import STATE_ANNOTATION
from elastic_tfjob.controller.model.command import COMMAND_ANNOTATION
from elastic_tfjob.controller.model.memory import memory_of
from elastic_tfjob.controller.model.owned_objects import ORDER_LABEL
from elastic_tfjob.controller.model.quantities import allocatable, allocated_memory, cpu_of, requests_of
from elastic_tfjob.scheduling.resources import NOTHING, Resources

__all__ = ["Oracles", "raised_of", "state_of", "summary"]

_MOST_WRITES: Final = 20
"""Of the operator in a minute in which nothing happens: figures, the count of an event that repeats."""
_HOT_LOOP: Final = 600
"""Of the operator in any minute."""

LEGAL_PHASES: Final = {
    ("Waiting", "Stable"),
    ("Stable", "Preparing"),
    ("Stable", "Recreating"),
    ("Stable", "Waiting"),
    ("Preparing", "Checkpointing"),
    ("Preparing", "RollingBack"),
    ("Checkpointing", "Switching"),
    ("Checkpointing", "RollingBack"),
    ("Checkpointing", "Preparing"),
    ("RollingBack", "Stable"),
    ("RollingBack", "Switching"),
    ("Switching", "Stable"),
    ("Switching", "Recreating"),
    ("Checkpointing", "Recreating"),
    ("Recreating", "Switching"),
    ("Recreating", "Waiting"),
}
"""Steps of a job's state, but those to Stable and Waiting of a job that is finished or suspended."""


@dataclass
class Oracles:
    """Watches over a world; what it finds is in `violations`, each with the time and the name of the oracle."""

    loop: asyncio.AbstractEventLoop
    server: ApiServer
    violations: list[str] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)
    """Names of the replicas of the operator, as writers."""
    identities: dict[str, str] = field(default_factory=dict)
    """By replica, the name under which it holds the lease."""
    overcommit: bool = False
    """Whether this world's nodes may be asked for more than they have: pods without a scheduler's promise."""
    exact: bool = True
    """Whether nothing happens in this world that may cost steps of training: containers that die, drains."""
    most_lost_steps: int | None = None
    """Steps that a program may lose at most when it begins; None where only a switch is judged."""
    memory: MemoryOracles = field(init=False)
    _loans: LoanOracles = field(init=False)
    _stopped: set[str] = field(default_factory=set)
    _refused: set[tuple[str, int]] = field(default_factory=set)
    """Generations that were given up, each with its job's namespace and name."""
    _recent: list[float] = field(default_factory=list)
    _first_configs: dict[tuple[str, str], str] = field(default_factory=dict)
    _began: float = 0.0

    def __post_init__(self) -> None:
        self._began = self.loop.time()
        self._loans = LoanOracles(self.loop, self.server, self.operators, self.fail, timely=self.exact)
        self.memory = MemoryOracles(self.server, self.operators, self.fail)
        self.server.observers.append(self._observe)

    def fail(self, oracle: str, what: str) -> None:
        """Note a violation; of each oracle the first few."""
        if sum(each.split(": ")[0].endswith(oracle) for each in self.violations) < 3:
            self.violations.append(f"{self.loop.time() - self._began:.2f} s {oracle}: {what}")

    def _observe(self, change: Change) -> None:
        if change.by in self.operators and change.resource not in ("leases", "events"):
            self._no_hot_loop()
        self._loans.observe(change)
        if change.resource == "pods":
            pod = change.new or change.old or {}
            if is_of_a_job(pod) and ORDER_LABEL not in pod["metadata"].get("labels", {}):
                self._one_pod_per_replica(change)
                self._first_config_stays(change)
                self._what_is_over_gets_no_pods(change)
                self.memory.observe(change)
            self._nodes_are_not_overcommitted(change)
        elif change.resource == "tfjobs":
            self._note_stopped(change)
            self._note_refused(change)
            self._verdicts_stay(change)
            self._state_goes_its_way(change)
        elif change.resource == "events" and change.new is not None:
            self._own_objects_are_no_failure(change.new)
        elif change.resource == "leases" and change.new is not None and change.by in self.operators:
            self.identities[change.by] = change.new["spec"].get("holderIdentity") or self.identities.get(change.by, "")

    def _no_hot_loop(self) -> None:
        """The operator does not write without end."""
        now = self.loop.time()
        self._recent.append(now)
        if len(self._recent) > _HOT_LOOP:
            if now - self._recent[-_HOT_LOOP] < 60:
                self.fail("no_hot_loop", f"{_HOT_LOOP} writes within {now - self._recent[-_HOT_LOOP]:.1f} s")
            del self._recent[:-_HOT_LOOP]

    def writes_since(self, since: float) -> int:
        """Writes of the operator since then."""
        return sum(at >= since for at in self._recent)

    def calm(self, since: float) -> None:
        """Nothing has happened since then: nearly nothing was written."""
        count, minutes = self.writes_since(since), (self.loop.time() - since) / 60
        if count > _MOST_WRITES * minutes + 2:
            self.fail("calm_when_nothing_happens", f"{count} writes in {60 * minutes:.0f} s")

    def _one_pod_per_replica(self, change: Change) -> None:
        """Never two pods of one replica at once."""
        if change.old is not None or change.new is None:
            return
        role = _role(change.new)
        for other in self.server.all("pods"):
            if other is not change.new and _role(other) == role and "deletionTimestamp" not in other["metadata"]:
                self.fail("one_pod_per_replica", f"{other['metadata']['name']} and {change.new['metadata']['name']}")

    def _what_is_over_gets_no_pods(self, change: Change) -> None:
        """What the operator itself has called finished or suspended it gives no pods: it never goes back to an older
        view."""
        if change.old is not None or change.new is None or change.by not in self.operators:
            return
        metadata = change.new["metadata"]
        owner = metadata["ownerReferences"][0]
        job = self.server.get("tfjobs", metadata["namespace"], owner["name"])
        if job is None or job["metadata"]["uid"] != owner["uid"]:
            return
        ends = ["Succeeded", "Failed", *(["Suspended"] if job["spec"]["runPolicy"].get("suspend") else [])]
        if over := [name for name in ends if _conditions(job).get(name) == "True"]:
            self.fail("what_is_over_gets_no_pods", f"{metadata['name']}: the job is {over[0]}")

    def _own_objects_are_no_failure(self, event: Object) -> None:
        """Nobody is told that a pod or Service cannot be made when the job has it: its creation was not answered."""
        found = re.search('(pods|services) "([^"]+)" already exists', event["message"])
        if found is None:
            return
        job = event["involvedObject"]
        for there in self.server.all(found[1]):
            if there["metadata"]["name"] == found[2] and _role(there)[:2] == (job["uid"], job["name"]):
                self.fail("own_objects_are_no_failure", event["message"])

    def _first_config_stays(self, change: Change) -> None:
        """Generation 0's TF_CONFIG of a replica never changes."""
        new = change.new
        if change.old is not None or new is None or (new["metadata"].get("annotations") or {}).get(COMMAND_ANNOTATION):
            return
        config = next(
            (
                each["value"]
                for container in new["spec"]["containers"]
                for each in container.get("env") or ()
                if each["name"] == "TF_CONFIG"
            ),
            "",
        )
        owner = new["metadata"]["ownerReferences"][0]["uid"]
        first = self._first_configs.setdefault((owner, new["metadata"]["name"]), config)
        if first != config:
            self.fail("first_config_stays", f"{new['metadata']['name']}: {first} became {config}")

    def _nodes_are_not_overcommitted(self, change: Change) -> None:
        """Bound pods hold no more than their node has; more memory they may ask for."""
        if self.overcommit or change.new is None or change.old is None or change.old["spec"] is change.new["spec"]:
            return
        name = change.new["spec"].get("nodeName")
        node = self.server.get("nodes", "", name) if name else None
        if node is None:
            return
        asked = [0] * len(NOTHING)
        for pod in self.server.all("pods"):
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                for i, amount in enumerate(_holds(pod)):
                    asked[i] += amount
        if any(want > have for want, have in zip(asked, allocatable(node["status"]["allocatable"]), strict=True)):
            self.fail("nodes_are_not_overcommitted", f"{name}: {asked}")

    def _note_refused(self, change: Change) -> None:
        """What a job has given up, and did not have; one that is created anew has given up nothing."""
        name = _name(change)
        if change.old is None or change.new is None:
            self._refused = {each for each in self._refused if each[0] != name}
        elif (state := state_of(change.new)) is None or state["refused"] is None:
            return
        elif state["refused"]["generation"] > state["generation"] and state["phase"] == "Stable":
            self._refused.add((name, state["refused"]["generation"]))

    def _note_stopped(self, change: Change) -> None:
        """A job that a person suspends or deletes loses all its pods at once, and may lose what was not saved."""
        if change.new is None or change.new["spec"].get("runPolicy", {}).get("suspend"):
            self._stopped.add(_name(change))

    def _verdicts_stay(self, change: Change) -> None:
        """What has succeeded or failed does so for ever."""
        if change.old is None or change.new is None:
            return
        before, after = _conditions(change.old), _conditions(change.new)
        for verdict in ("Succeeded", "Failed"):
            if before.get(verdict) == "True" and (after.get(verdict) != "True" or after.get("Running") == "True"):
                self.fail("verdicts_stay", f"{before} became {after}")

    def _state_goes_its_way(self, change: Change) -> None:
        """A job's state takes only the steps that there are, and its generation never falls."""
        if change.old is None or change.new is None:
            return
        before, after = state_of(change.old), state_of(change.new)
        if before is None or after is None or before is after:
            return
        if before.get("uid") != change.old["metadata"]["uid"]:
            return  # a copy of another job's
        step = before["phase"], after["phase"]
        over = _conditions(change.new)
        settled = (
            over.get("Succeeded") == "True"
            or over.get("Failed") == "True"
            or change.new["spec"].get("runPolicy", {}).get("suspend")
        )
        if step[0] != step[1] and step not in LEGAL_PHASES and not settled:
            self.fail("state_goes_its_way", f"{step[0]} became {step[1]}")
        coming, refused = after["next"], after["refused"]
        if coming is not None and refused is not None and coming["generation"] <= refused["generation"]:
            self.fail("refused_is_refused", f"generation {coming['generation']} is tried again")
        if after["generation"] < before["generation"]:
            self.fail("state_goes_its_way", f"generation {before['generation']} became {after['generation']}")

    def sending(self, replica: str, method: str, path: str) -> None:
        """Only the leader writes."""
        if "/leases" in path or "/events" in path or not self.identities:
            return
        for lease in self.server.all("leases"):
            holder = lease["spec"].get("holderIdentity")
            if holder and holder != self.identities.get(replica):
                self.fail("only_the_leader_writes", f"{replica} while {holder} leads: {method} {path}")

    def training_begins(self, program: Program, step: int) -> None:
        """One program trains at a time, of a generation that was not given up, and loses no step in a switch."""
        training = program.training
        if (training.name, program.generation) in self._refused:
            self.fail("refused_never_trains", f"generation {program.generation} was given up, and trains")
        others = [each for each in training.trainers if each.task.chief and each is not program]
        if others:
            kinds = ", ".join(f"generation {each.generation} ({each.state})" for each in others)
            active = [each for each in others if each.state == "training"]
            if active:
                self.fail("one_program_trains", f"generation {program.generation} beside {kinds}")
        saved = training.at_commit.get(program.generation)
        if program.prepared and saved is not None and step < training.reached:
            self.fail("no_step_is_lost_in_a_switch", f"{training.reached} steps were done, {step} is where it goes on")
        elif self.exact and training.hook and step < training.reached and training.name not in self._stopped:
            self.fail("no_step_is_lost", f"{training.reached} steps were done, {step} is where it goes on")
        elif self.most_lost_steps is not None and training.hook and training.reached - step > self.most_lost_steps:
            self.fail("one_interval_is_lost_at_most", f"{training.reached} steps were done, {step} is where it goes on")

    def workers_change(self, program: Program) -> None:
        """A running program gets other workers for a size that was not given up."""
        if (program.training.name, program.runs_as) in self._refused:
            self.fail("refused_never_trains", f"generation {program.runs_as} was given up, and its workers train")

    def is_to_save(self, program: Program, waiting: bool) -> None:
        """Training stands still for a program that is ready to take over, and for no other."""
        if not waiting:
            self.fail("saves_for_one_that_waits", f"generation {program.generation} saves, and none is ready")

    def is_killed_for_memory(self, job: str, kind: str) -> None:
        """The kernel has killed a container of a type."""
        self.memory.killed(job, kind)

    def values_are_lost(self, program: Program, why: str) -> None:
        """What a program gave in memory becomes a durable checkpoint, whatever the operator does."""
        program.training.at_commit.pop(program.generation, None)
        if self.exact:
            self.fail("given_values_are_saved", f"generation {program.generation} took them, but: {why}")

    def at_rest(self, trainings: Mapping[str, Training]) -> None:
        """What is there when nothing happens any more is what the jobs call for, and nothing else."""
        self._loans.at_rest()
        self.memory.kills_are_named()
        jobs = {job["metadata"]["uid"]: job for job in self.server.all("tfjobs")}
        for resource in ("pods", "services", "poddisruptionbudgets"):
            for found in self._of_jobs(resource):
                owner = found["metadata"]["ownerReferences"][0]["uid"]
                if owner not in jobs:
                    self.fail("nothing_is_left_over", f"{resource} {found['metadata']['name']} of a job that is gone")
        for uid, job in jobs.items():
            name = job["metadata"]["name"]
            pods, services = (
                {
                    each["metadata"]["name"]: each
                    for each in self._of_jobs(resource)
                    if each["metadata"]["ownerReferences"][0]["uid"] == uid
                }
                for resource in ("pods", "services")
            )
            conditions, state = _conditions(job), state_of(job)
            spec = {kind: each.get("replicas", 1) for kind, each in job["spec"]["tfReplicaSpecs"].items()}
            if "True" in (conditions.get("Succeeded"), conditions.get("Failed")):
                self._has_ended(job, spec, pods)
                continue
            suspended = job["spec"]["runPolicy"].get("suspend")
            size = {} if suspended else (state["replicas"] if state is not None else spec)
            indexes = {} if suspended or state is None else state.get("indexes", {})
            wanted = {
                f"{name}-{kind.lower()}-{index}"
                for kind, count in size.items()
                for index in indexes.get(kind, range(count))
            }
            if set(pods) != wanted:
                self.fail("pods_are_of_the_size", f"{sorted(pods)} and not {sorted(wanted)}")
            elif set(services) != wanted:
                self.fail("services_are_of_the_size", f"{sorted(services)} and not {sorted(wanted)}")
            elif idle := [each for each, pod in pods.items() if pod["status"]["phase"] != "Running"]:
                self.fail("pods_run", f"{idle} do not")
            elif wanted:
                trainers = trainings[f"{job['metadata']['namespace']}/{name}"].trainers
                chiefs = [(each.generation, each.state) for each in trainers if each.task.chief]
                if not any(state == "training" for _, state in chiefs):
                    self.fail("training_goes_on", f"{name} does not train")
                elif len(chiefs) > 1:
                    self.fail("one_program_is_left", f"{name} has programs of generations {sorted(chiefs)}")
                else:
                    self._trains_with(wanted, next(each for each in trainers if each.task.chief))

    def _trains_with(self, wanted: Set[str], program: Program) -> None:
        """The program trains with the pods that there are: state, launcher and coordinator agree."""
        if program.pending:
            self.fail("given_values_are_saved", f"generation {program.generation} took values that nobody has saved")
        used = {address.partition(".")[0] for address in program.uses}
        own = program.container.name
        others = {name for name in wanted if "-evaluator-" not in name and name != own}
        if used and used != others:
            self.fail("trains_with_its_pods", f"{sorted(used)} and not {sorted(others)}")

    def _of_jobs(self, resource: str) -> Iterator[Object]:
        return (each for each in self.server.all(resource) if resource != "pods" or is_of_a_job(each))

    def _has_ended(self, job: Object, spec: Mapping[str, int], pods: Mapping[str, Object]) -> None:
        """A finished job's pods are gone as its policy says, and its figures are those of its spec."""
        running = [name for name, pod in pods.items() if pod["status"]["phase"] in ("Running", "Pending")]
        if running and job["spec"]["runPolicy"].get("cleanPodPolicy", "None") != "None":
            self.fail("finished_jobs_hold_nothing", f"{running} run")
        if _conditions(job).get("Succeeded") == "True":
            statuses = (job.get("status") or {}).get("replicaStatuses") or {}
            told = {kind: statuses.get(kind, {}).get("succeeded", 0) for kind in spec}
            if told != dict(spec):
                self.fail("succeeded_as_declared", f"{told} and not {dict(spec)}")

    def bug(self, text: str) -> None:
        """The operator said itself that it has a bug."""
        self.fail("no_bug_is_logged", text)

    def ended(self, what: str) -> None:
        """The operator's process ended by itself."""
        self.fail("the_operator_goes_on", what)


def _name(change: Change) -> str:
    """The namespace and name of what has changed, as a Training has its job's."""
    metadata = (change.new or change.old or {})["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def _holds(pod: Object) -> Resources:
    """What a pod asks for, with the memory that its kubelet has given it."""
    asked = requests_of(pod["spec"])
    if not (given := allocated_memory(pod["status"], CONTAINER)):
        return asked
    return asked._replace(memory_bytes=asked.memory_bytes - memory_of(pod["spec"]).request + given)


def _role(pod: Object) -> tuple[Any, ...]:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    owner = (metadata.get("ownerReferences") or [{}])[0].get("uid")
    return owner, *(labels.get(name) for name in (JOB_NAME_LABEL, REPLICA_TYPE_LABEL, REPLICA_INDEX_LABEL))


def _conditions(job: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in (job.get("status") or {}).get("conditions") or ()}


_LOOSE: Final = ("phase", "replicas")
_EXACT: Final = (*_LOOSE, "generation", "slot", "cpu", "nodes")
_STATES: dict[str, Any] = {}


def state_of(job: Object) -> dict[str, Any] | None:
    """A job's state annotation; the same object for the same text."""
    text = (job["metadata"].get("annotations") or {}).get(STATE_ANNOTATION)
    if text is None:
        return None
    if text not in _STATES:
        if len(_STATES) > 5000:
            _STATES.clear()
        _STATES[text] = orjson.loads(text)
    found: dict[str, Any] = _STATES[text]
    return found


def raised_of(state: Mapping[str, Any]) -> dict[str, int]:
    """By type, the bytes to which the memory of replicas is raised."""
    return {kind: each["raised"] for kind, each in (state.get("memory") or {}).items() if each.get("raised")}


def summary(server: ApiServer, *, loose: bool = False) -> dict[str, Any]:
    """All that an undisturbed run and a disturbed one must have in common at their ends. `loose`: after many faults,
    which may have made a rescale fail and be tried again, or in another way, or a finished job's pods end otherwise, or
    a job be suspended before it has begun, or a pod that ended be made anew where a replica was to move, so that
    indexes differ."""
    jobs = {}
    finished: set[str] = set()
    for job in server.all("tfjobs"):
        state = state_of(job)
        # One that is False tells what has been: a job that ends at once may never be seen to run.
        conditions = {name for name, status in _conditions(job).items() if status == "True"}
        if loose and conditions & {"Succeeded", "Failed"}:
            conditions.discard("Restarting")
            finished.add(job["metadata"]["uid"])
        if loose and conditions & {"Succeeded", "Failed", "Suspended"}:
            state = None  # of a job that ended while it was to change, either size
        jobs[job["metadata"]["name"]] = {
            "conditions": sorted(conditions),
            "replicas": None if loose else (job.get("status") or {}).get("replicaStatuses"),
            "state": state and {name: state[name] for name in (_LOOSE if loose else _EXACT)},
            "memory": None if loose or state is None else raised_of(state),
        }
    pods = {}
    services = [each["metadata"]["name"] for each in server.all("services")]
    of_jobs = [pod for pod in server.all("pods") if is_of_a_job(pod)]
    ranks = (
        _ranks(services)
        | _ranks([pod["metadata"]["name"] for pod in of_jobs if ORDER_LABEL not in pod["metadata"]["labels"]])
        if loose
        else {}
    )
    for pod in of_jobs:
        if pod["metadata"]["ownerReferences"][0]["uid"] in finished:
            continue
        command = (pod["metadata"].get("annotations") or {}).get(COMMAND_ANNOTATION)
        told = orjson.loads(command) if command else {}
        name = pod["metadata"]["name"]
        pods[ranks.get(name, name)] = [
            pod["status"]["phase"],
            "deletionTimestamp" in pod["metadata"],
            # A pod that was never told anything runs generation 0.
            None if loose else (told.get("action", "run"), told.get("generation", 0)),
            None if loose else (requests_of(pod["spec"]), cpu_of(pod["spec"])),
        ]
    names = sorted(ranks.get(name, name) for name in services)
    return {"jobs": jobs, "pods": pods, "services": names, **loans_at_rest(server, loose=loose)}


def _ranks(names: Iterable[str]) -> dict[str, str]:
    """Names of replicas as if their indexes had no gaps."""
    of_type: dict[str, list[int]] = {}
    for name in names:
        begin, _, index = name.rpartition("-")
        of_type.setdefault(begin, []).append(int(index))
    return {
        f"{begin}-{index}": f"{begin}-{rank}"
        for begin, indexes in of_type.items()
        for rank, index in enumerate(sorted(indexes))
    }

"""One elastic job as data, between operators of different versions.

A record holds what survives an operator: the job's annotations and status, its pods as the API server has them, and the
`/status` answers. `restore` gives a pretended cluster (unit.pretend) from it, on whichever version of the package is on
the path; `record` makes one anew. So one version begins, and another goes on:

    PYTHONPATH=OLD/operator:OLD/tests python tests/skew/world.py < orders.json > answers.json
"""

import copy
import json
import sys
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from elastic_tfjob.api.annotations import PREFIX

try:
    from elastic_tfjob.runtime.protocol import LauncherCommand
except ImportError:  # the older version
    pass  # type: ignore[attr-defined]

# Where the package keeps these is another place in each version; what goes with a version imports them itself.
from unit.build import NOW
from unit.pretend import ELASTIC, Cluster, Launcher, Pod, Report, Settings, State, Target

Json = dict[str, Any]

TYPES = {"Chief": 1, "PS": 1, "Worker": 2}


TOTAL_STEPS = 100_000


@dataclass
class Job(Cluster):
    """A pretended cluster that keeps the pods as they were sent. Its launchers report what live ones do: else a state
    would lack keys that live states have, and nobody would see that another version refuses those."""

    bodies: dict[str, Json] = field(default_factory=dict)

    def reports(self) -> dict[str, Report]:
        """Steps that grow till a program saves and stands still, the total by which the end can be told, and how the
        next program starts."""
        known = {each.name for each in fields(Report)}
        found = super().reports()
        for name in found:
            launcher: Any = self.launchers[name]
            if getattr(launcher, "saved", None) is None:
                launcher.step = 100 + int((self.now - NOW).total_seconds() * self.steps_per_s)
            told: Json = {"step": launcher.step, "total_steps": TOTAL_STEPS, "starts": "fork"}
            told = {key: value for key, value in told.items() if key in known}
            found[name] = replace(found[name], **told)
        return found

    def _create(self, body: Json) -> None:
        super()._create(body)
        self.bodies[body["metadata"]["name"]] = copy.deepcopy(body)


def _settings() -> Settings:
    return Settings(image="operator:1", wait_for_target=True)


def running() -> Job:
    """A job that trains at its declared size."""
    job = Job(settings=_settings(), types=dict(TYPES))
    job.target(0)
    job.run(6)
    return job


def situations() -> dict[str, Job]:
    """A job in each phase, and at some moments between."""
    found = {"stable": running()}

    waiting = Job(settings=_settings(), types=dict(TYPES))
    waiting.annotations[f"{PREFIX}target"] = Target(0, {}, reason="needs 400m, 100m are free").to_json()
    waiting.run(3)
    found["waiting"] = waiting

    for name, rounds in (("preparing", 0), ("preparing-told", 2)):
        job = found[name] = running()
        job.target(1, Worker=3)
        job.until("Preparing")
        job.run(rounds)

    job = found["checkpointing"] = running()
    job.launchers["j-chief-0"].saves = "never"
    job.target(1, Worker=3)
    job.until("Checkpointing")
    job.run(2)

    job = found["switching"] = running()
    job.target(1, Worker=3, PS=2)
    job.until("Switching")

    job = found["rolling-back"] = running()
    job.launchers["j-ps-0"].builds = False
    job.target(1, Worker=3)
    job.until("RollingBack")

    job = found["refused"] = running()
    job.launchers["j-ps-0"].builds = False
    job.target(1, Worker=3)
    job.run(30)

    job = found["recreating"] = Job({**ELASTIC, f"{PREFIX}rescale": "recreate"}, dict(TYPES), _settings())
    job.target(0)
    job.run(6)
    job.target(1, Worker=3)
    job.until("Recreating")
    job.reconcile()

    job = found["generation-2"] = running()
    job.target(1, Worker=3)
    job.run(20)
    job.target(2, Worker=1, PS=2)
    job.run(20)
    return found


def stops() -> dict[str, Job]:
    """A job that a plan stops, at moments at which its state remembers the stop: while its checkpoint is being written,
    once that is saved and its pods end, and when it waits. The older version knows no checkpoint before the end."""
    found = {}
    for name, saves in (("saving", "never"), ("ending", "well"), ("stopped", "well")):
        job = found[name] = running()
        job.launchers["j-chief-0"].saves = saves
        job.annotations[f"{PREFIX}target"] = Target(1, {}, reason="another one comes first").to_json()
        job.until("Waiting" if name == "stopped" else "Recreating")
        job.run({"saving": 2, "ending": 4, "stopped": 0}[name])
    return found


def record(job: Job) -> Json:
    """What is in the API server and in the pods."""
    pods = {}
    for name, pod in job.pods.items():
        body = copy.deepcopy(job.bodies[name])
        metadata = body["metadata"]
        metadata |= {"namespace": pod.namespace, "uid": pod.uid, "resourceVersion": str(pod.version)}
        if pod.command:
            metadata.setdefault("annotations", {})[f"{PREFIX}command"] = pod.command
        if pod.terminating:
            metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        if pod.node:
            body["spec"]["nodeName"] = pod.node
        body["status"] = {"phase": pod.phase}
        pods[name] = body
    reports = {}
    for name, report in job.reports().items():
        answer = asdict(report)
        del answer["received_at"]
        reports[name] = answer
    return {
        "annotations": dict(job.annotations),
        "status": job.status,
        "types": job.types,
        "now": job.now.isoformat(),
        "pods": pods,
        "reports": reports,
    }


def restore(known: Json) -> Job:
    """The job of a record, with an operator that has just started."""
    known = copy.deepcopy(known)
    job = Job(known["annotations"], known["types"], _settings())
    job.status, job.now = known["status"], datetime.fromisoformat(known["now"])
    job.listens_since = job.now
    job.bodies = known["pods"]
    for name, body in known["pods"].items():
        pod = Pod.parse(body)
        job.pods[name] = pod
        leads = pod.replica_type == "chief"
        launcher = job.launchers[name] = Launcher(leads)
        if name in known["reports"]:
            report = Report.parse(json.dumps(known["reports"][name]))
            launcher.generation, launcher.prepared = report.generation, report.prepared
            launcher.switch, launcher.first_step = report.switch, report.first_step_at is not None
        job._uids = max(job._uids, int(pod.uid.removeprefix("uid-")))
    return job


def go_on(known: Json, rounds: int) -> Json:
    """So many seconds with this version's operator."""
    job = restore(known)
    job.run(rounds)
    return record(job)


def to_the_end(known: Json) -> Json:
    """Let a job come to rest, rescale it once more, and let its chief end; what became of it."""
    job = restore(known)
    begun = State.parse(job.annotations.get(f"{PREFIX}state"))
    uids = {name: pod.uid for name, pod in job.pods.items() if not pod.terminating}
    commands = [pod.command for pod in job.pods.values() if pod.command]
    asked = Target.parse(job.annotations[f"{PREFIX}target"])
    assert asked is not None
    if not asked.replicas:
        job.target(asked.generation)
    job.run(60)
    first = _shown(job)
    kept = [name for name, uid in uids.items() if name in job.pods and job.pods[name].uid == uid]
    job.target(job.state.generation + 5, Worker=4)
    job.run(60)
    second = _shown(job)
    job.pods["j-chief-0"] = replace(job.pods["j-chief-0"], phase="Succeeded", exit_code=0)
    job.run(3)
    ended = [each["type"] for each in job.status["conditions"] if each["status"] == "True"]
    return {
        "begun": begun.phase if begun else "",
        "commands_understood": len([LauncherCommand.parse(text) for text in commands]),
        "kept": sorted(kept),
        "first": first,
        "second": second,
        "ended": ended[-1],
        "events": [f"{reason}: {message}" for reason, message in job.events],
    }


def understood(answer: Json) -> Json:
    """What this version's operator makes of a `/status` answer."""
    return asdict(Report.parse(json.dumps(answer)))


def _shown(job: Job) -> Json:
    state = job.state
    return {
        "phase": state.phase,
        "generation": state.generation,
        "replicas": dict(state.replicas),
        "running": job.running,
    }


def main() -> None:
    """Orders from standard input, as [name, arguments]; an answer for each, or {"error": …}."""
    orders = {"record": lambda: {name: record(job) for name, job in situations().items()}}
    answers = []
    for name, *arguments in json.load(sys.stdin):
        try:
            others = {"go_on": go_on, "to_the_end": to_the_end, "understood": understood}
            do: Any = orders.get(name) or others[name]
            answers.append(do(*arguments))
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()

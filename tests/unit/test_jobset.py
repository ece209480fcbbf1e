"""JobSets of Trainer v2 that are run as TFJobs: what becomes of each, what is refused, and what is said of them."""

import copy
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.api.tfjob import COMPLETION_INDEX_LABEL, REPLICATED_JOB_LABEL, TFJobSpec
from elastic_tfjob.controller import jobset as jobset_module
from elastic_tfjob.controller.job import from_jobset
from elastic_tfjob.controller.job.decision import Create, Event, ResizePod
from elastic_tfjob.controller.job.from_jobset import (
    DIGEST_ANNOTATION,
    Unsupported,
    refused_status,
    status_of,
    terminal,
    tfjob_of,
)
from elastic_tfjob.controller.job.inject import inject
from elastic_tfjob.controller.jobset import JobSets
from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.errors import Conflict, Invalid, NotFound
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.model.job import Key, TFJob
from elastic_tfjob.controller.model.jobset import MANAGER, JobSet
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.status import JobStatus
from elastic_tfjob.exporter.trainer import CA_CERT, TOKEN, URL, TrainerReporter, trainer_status

from .build import NOW, decide, job, template

ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
NODE: dict[str, Any] = {
    "name": "node",
    "image": "digits",
    "command": ["python", "-c", "train()"],
    "env": [{"name": "A", "value": "b"}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}


def replicated(name: str, count: int = 1, container: dict[str, Any] | None = None, **job: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "OnFailure", "containers": [container or {"name": "node"}]}
    if name == "node":
        pod["volumes"] = [{"name": "data", "emptyDir": {}}]
    spec = {"parallelism": count, "completions": count, "completionMode": "Indexed", "template": {"spec": pod}, **job}
    return {"name": name, "replicas": 1, "groupName": "default", "template": {"metadata": {"labels": {}}, "spec": spec}}


def raw_jobset(*jobs: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """As JobSet's webhook leaves it."""
    given = jobs or (replicated("chief"), replicated("ps", 2), replicated("node", 3, NODE))
    return {
        "metadata": {
            "namespace": "ns",
            "name": "mine",
            "uid": "js",
            "resourceVersion": "5",
            "labels": {"team": "a", "kueue.x-k8s.io/queue-name": "q"},
            "annotations": {f"{PREFIX}max-workers": "4", f"{PREFIX}target": "forged", "other": "x"},
        },
        "spec": {
            "managedBy": MANAGER,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "replicatedJobs": list(given),
            **spec,
        },
    }


def jobset(*jobs: dict[str, Any], **spec: Any) -> JobSet:
    return JobSet.parse(raw_jobset(*jobs, **spec))


def test_a_jobset_becomes_a_tfjob() -> None:
    """Other replicas run the program of the one that trains, with all it needs."""
    found = tfjob_of(jobset())
    types = found["spec"]["tfReplicaSpecs"]
    assert {name: spec["replicas"] for name, spec in types.items()} == {"Chief": 1, "PS": 2, "Worker": 3}
    for name, of_type in (("Chief", "chief"), ("PS", "ps"), ("Worker", "node")):
        pod = types[name]["template"]
        assert pod["metadata"]["labels"] == {
            "jobset.sigs.k8s.io/jobset-name": "mine",
            "jobset.sigs.k8s.io/replicatedjob-name": of_type,
        }
        assert pod["spec"]["containers"] == [{**NODE, "name": "tensorflow"}]
        assert pod["spec"]["volumes"] == [{"name": "data", "emptyDir": {}}]
        assert types[name]["restartPolicy"] == "OnFailure"
    assert found["spec"]["runPolicy"] == {"cleanPodPolicy": "Running", "backoffLimit": 6, "suspend": False}
    metadata = found["metadata"]
    assert metadata["labels"] == {"team": "a"}, "Kueue admits the TrainJob, so that its TFJob waits in no queue"
    assert metadata["annotations"].keys() == {f"{PREFIX}max-workers", DIGEST_ANNOTATION}
    assert metadata["ownerReferences"][0]["uid"] == "js"
    TFJobSpec.parse(found["spec"])


def test_a_replicated_job_keeps_its_own_settings() -> None:
    own = {"name": "node", "image": "server", "env": [], "volumeMounts": [{"name": "scratch", "mountPath": "/s"}]}
    ps = replicated("ps", 1, own)
    ps["template"]["spec"]["template"]["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    pod = tfjob_of(jobset(ps, replicated("node", 1, NODE)))["spec"]["tfReplicaSpecs"]["PS"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (container["image"], container["command"], container["env"]) == ("server", NODE["command"], [])
    assert container["volumeMounts"] == own["volumeMounts"]
    assert [volume["name"] for volume in pod["volumes"]] == ["scratch", "data"]


def test_suspension_and_the_number_of_restarts_are_passed_on() -> None:
    policy = tfjob_of(jobset(replicated("node", 1, NODE, backoffLimit=2), suspend=True))["spec"]["runPolicy"]
    assert (policy["suspend"], policy["backoffLimit"]) == (True, 2)


@pytest.mark.parametrize(
    ("jobs", "spec", "says"),
    [
        ((replicated("ps"),), {}, "the job named node, which trains, is missing"),
        (
            (replicated("node", 1, NODE), replicated("dataset-initializer")),
            {},
            "allowed names are chief, evaluator, node",
        ),
        ((), {"failurePolicy": {"maxRestarts": 3}}, "spec.failurePolicy is not supported"),
        ((), {"ttlSecondsAfterFinished": 0}, "spec.ttlSecondsAfterFinished is not supported"),
        ((), {"successPolicy": {"operator": "Any"}}, "spec.successPolicy is not supported"),
        ((), {"network": {"subdomain": "x"}}, "spec.network.subdomain is not supported"),
        (({**replicated("node", 1, NODE), "replicas": 2},), {}, "spec.replicatedJobs[node].replicas: 2 is not"),
        (({**replicated("node", 1, NODE), "dependsOn": [{"name": "ps"}]},), {}, "dependsOn is not supported"),
        ((replicated("node", 2, NODE, completions=4),), {}, "completions and parallelism differ"),
        ((replicated("node", 2, NODE, activeDeadlineSeconds=4),), {}, "activeDeadlineSeconds is not supported"),
        ((replicated("node", 1, {"name": "main"}),), {}, "exactly one container must have the name node"),
        ((replicated("node", 3000, NODE),), {}, "allowed: 2000"),
        (
            (replicated("ps"), replicated("node", 1, {**NODE, "args": ["x"] * 33_000})),
            {},
            "spec.replicatedJobs[node].template.spec.template: more than 4000 values",
        ),
        (
            ({"name": "node", "template": {"spec": {"template": {"spec": {"containers": 7}}}}},),
            {},
            "its spec is invalid",
        ),
        (({"name": "node"},), {}, "its spec is invalid: KeyError"),
    ],
)
def test_a_jobset_that_no_tfjob_can_run_is_refused(
    jobs: tuple[dict[str, Any], ...], spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(Unsupported) as refused:
        tfjob_of(jobset(*jobs, **spec))
    assert says in str(refused.value)


def test_a_jobset_that_others_run_is_left_to_them() -> None:
    raw = raw_jobset()
    for manager in (None, "jobset.sigs.k8s.io/jobset-controller", ["x"]):
        raw["spec"]["managedBy"] = manager
        assert not JobSet.parse(raw).managed


def said(*conditions: str, **replicas: dict[str, int]) -> JobStatus:
    made = [{"type": each, "status": "True", "reason": f"TFJob{each}", "message": each.lower()} for each in conditions]
    return JobStatus.parse({"conditions": made, "replicaStatuses": replicas})


def test_the_status_of_a_jobset_is_that_of_its_tfjob() -> None:
    spec = TFJobSpec.parse(tfjob_of(jobset())["spec"])
    begins = status_of({}, spec, said("Created", Chief={"active": 1}, Worker={"active": 2}), NOW)
    ready = {each["name"]: (each["ready"], each["active"]) for each in begins["replicatedJobsStatus"]}
    assert ready == {"chief": (1, 1), "ps": (0, 0), "node": (0, 1)}
    assert not terminal(begins)
    assert "conditions" not in begins
    ended = status_of(begins, spec, said("Running", "Succeeded", Chief={"succeeded": 1}), NOW)
    assert terminal(ended)
    assert ended["terminalState"] == "Completed"
    (condition,) = ended["conditions"]
    assert (condition["type"], condition["reason"], condition["status"]) == ("Completed", "TFJobSucceeded", "True")
    failed = status_of(begins, spec, said("Failed", Worker={"failed": 1}), NOW)
    assert (failed["terminalState"], failed["replicatedJobsStatus"][2]["failed"]) == ("Failed", 1)


def test_a_job_that_has_shrunk_is_ready_with_what_it_has() -> None:
    spec = job({"Chief": 1, "Worker": 2}).spec()
    status = said("Running", Chief={"active": 1}, Worker={"active": 1})
    for size, ready in (({"Chief": 1, "Worker": 1}, 1), (None, 0)):
        found = status_of({}, spec, status, NOW, size)["replicatedJobsStatus"]
        assert [each["ready"] for each in found] == [1, ready]


def test_suspension_is_told_and_its_end_too() -> None:
    spec = TFJobSpec.parse(tfjob_of(jobset(suspend=True))["spec"])
    suspended = status_of({}, spec, said("Suspended"), NOW)
    assert [each["suspended"] for each in suspended["replicatedJobsStatus"]] == [1, 1, 1]
    later = status_of(suspended, spec, said("Suspended"), NOW + timedelta(hours=1))
    assert later == suspended, "nothing is written where nothing is new"
    resumed = status_of(suspended, spec, said("Created"), NOW + timedelta(hours=1))
    (condition,) = resumed["conditions"]
    assert (condition["status"], condition["lastTransitionTime"]) == ("False", "2026-01-02T04:04:05Z")


class Server:
    """TFJobs and the status of one JobSet, as the API server has them."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.jobset = raw
        self.tfjobs: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.refuses = self.gone = False
        self.events: list[Event] = []
        self.late: list[dict[str, Any]] = []
        """What the watch has not brought yet."""
        api: Any = self
        recorder: Any = self
        self.jobs: Informer[TFJob] = Informer(api, "/tfjobs", TFJob.parse, lambda _: None)
        self.jobsets = JobSets(api, self.jobs, recorder, may_write=lambda: True)
        self.seen()

    def seen(self) -> None:
        """The watch has come as far as the server is."""
        self.jobset["metadata"]["resourceVersion"] = str(int(self.jobset["metadata"]["resourceVersion"]) + 1)
        self.jobsets.informer.seen(copy.deepcopy(self.jobset))

    def record(self, _: object, event: Event) -> None:
        self.events.append(event)

    async def get(self, path: str, fieldSelector: str = "") -> dict[str, Any]:
        if path.endswith("/jobsets"):
            assert fieldSelector == "metadata.name=mine"
            return {"items": [] if self.gone else [copy.deepcopy(self.jobset)]}
        if "mine" not in self.tfjobs:
            raise NotFound("GET", 404, "NotFound", "there is none")
        return copy.deepcopy(self.tfjobs[path.rpartition("/")[2]])

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.refuses:
            raise Invalid("POST", 403, "Forbidden", "exceeded quota")
        if "mine" in self.tfjobs:
            raise Conflict("POST", 409, "AlreadyExists", "there is one")
        self.writes.append("create")
        return self.stored(json.loads(json.dumps(body)))

    async def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        there = self.tfjobs["mine"]["metadata"]
        if any(body["metadata"][name] != there[name] for name in ("uid", "resourceVersion")):
            raise Conflict("PUT", 409, "Conflict", "it has changed")
        self.writes.append("replace")
        assert "managedFields" not in body["metadata"], "the server keeps them; what is deep it would not take again"
        return self.stored(json.loads(json.dumps(body)))

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path.endswith("/jobsets/mine/status")
        if any(body["metadata"][name] != self.jobset["metadata"][name] for name in ("uid", "resourceVersion")):
            raise Conflict("PATCH", 409, "Conflict", "it has changed")
        self.writes.append("status")
        self.jobset["status"] = body["status"]
        self.jobset["metadata"]["resourceVersion"] = str(int(self.jobset["metadata"]["resourceVersion"]) + 1)
        return copy.deepcopy(self.jobset)

    def stored(self, raw: dict[str, Any], **status: Any) -> dict[str, Any]:
        before = self.tfjobs.get(raw["metadata"]["name"])
        version = int(before["metadata"]["resourceVersion"]) + 1 if before else 1
        raw["metadata"] |= {
            "uid": raw["metadata"].get("uid", "tf"),
            "resourceVersion": str(version),
            "managedFields": [{"manager": "m"}],
        }
        raw["status"] = status or (before or {}).get("status", {})
        self.tfjobs[raw["metadata"]["name"]] = raw
        self.late.append(copy.deepcopy(raw))
        return copy.deepcopy(raw)

    async def step(self) -> list[str]:
        """What is written the next time that somebody looks."""
        self.writes = []
        while self.late:
            self.jobs.seen(self.late.pop(0))
        await self.jobsets._handle(("ns", "mine"))
        return self.writes

    def ended(self, condition: str) -> None:
        made = {"type": condition, "status": "True", "reason": "r", "message": "m"}
        self.stored(self.tfjobs["mine"], conditions=[made])


async def test_a_jobset_from_beginning_to_end() -> None:
    server = Server(raw_jobset())
    changed: list[Key] = []
    server.jobs._changed = changed.append
    assert await server.step() == ["create"]
    assert await server.step() == ["status"]
    assert changed == [("ns", "mine")], "the job is news to those who run it"
    assert await server.step() == []
    server.ended("Succeeded")
    assert await server.step() == ["status"]
    assert server.jobset["status"]["terminalState"] == "Completed"
    del server.tfjobs["mine"]
    assert await server.step() == [], "of one that has ended nothing changes"


async def test_a_jobset_is_suspended_changed_and_resumed() -> None:
    """As Kueue does it: it patches the TrainJob while that is suspended."""
    server = Server(raw_jobset(suspend=True))
    await server.step()
    assert server.tfjobs["mine"]["spec"]["runPolicy"]["suspend"] is True
    server.tfjobs["mine"]["metadata"]["annotations"]["theirs"] = "kept"
    server.jobset["spec"]["suspend"] = False
    pod = server.jobset["spec"]["replicatedJobs"][2]["template"]["spec"]["template"]["spec"]
    pod["nodeSelector"] = {"zone": "b"}
    server.seen()
    assert await server.step() == ["replace", "status"]
    made = server.tfjobs["mine"]
    assert made["spec"]["runPolicy"]["suspend"] is False
    assert made["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["nodeSelector"] == {"zone": "b"}
    assert made["metadata"]["annotations"]["theirs"] == "kept"
    assert await server.step() == []


async def test_a_jobset_that_cannot_run_fails_with_the_cause() -> None:
    server = Server(raw_jobset(coordinator={"replicatedJob": "node"}))
    assert await server.step() == ["status"]
    assert server.jobset["status"]["terminalState"] == "Failed"
    (condition,) = server.jobset["status"]["conditions"]
    assert condition["message"] == "spec.coordinator is not supported for TFJobs"
    assert [event.reason for event in server.events] == ["UnsupportedByTFJob"]
    assert await server.step() == []
    assert not server.tfjobs


async def test_a_template_that_is_too_large_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_jobset, "deepcopy", lambda _: pytest.fail("copied"))
    large = replicated("node", 1, {**NODE, "args": ["x"] * 33_000})
    for jobs in ((replicated("ps"), large), (large,)):
        with pytest.raises(Unsupported, match="more than 4000 values"):
            tfjob_of(jobset(*jobs))


@pytest.mark.parametrize("condition", ["Running", "Restarting"])
async def test_a_running_jobset_is_not_failed_by_a_stricter_version(condition: str) -> None:
    """It is told, and followed again when it is mended, as far as that goes while it runs."""
    server = Server(copy.deepcopy(raw_jobset()))
    await server.step()
    server.ended(condition)
    await server.step()
    before = copy.deepcopy(server.jobset["status"])
    container = server.jobset["spec"]["replicatedJobs"][2]["template"]["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["x"] * 33_000
    worker = server.tfjobs["mine"]["spec"]["tfReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["args"] = ["x"] * 33_000
    server.ended(condition)
    server.seen()
    assert await server.step() == []
    assert server.jobset.get("status") == before
    assert [event.reason for event in server.events] == ["UnsupportedByTFJob"]
    container["args"] = ["mended"]
    server.seen()
    assert "replace" in await server.step()
    worker = server.tfjobs["mine"]["spec"]["tfReplicaSpecs"]["Worker"]
    assert worker["template"]["spec"]["containers"][0]["args"] == ["mended"]


async def test_a_suspended_jobset_that_is_too_large_fails() -> None:
    server = Server(copy.deepcopy(raw_jobset(suspend=True)))
    await server.step()
    container = server.jobset["spec"]["replicatedJobs"][2]["template"]["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["x"] * 33_000
    server.seen()
    assert await server.step() == ["status"]
    assert server.jobset["status"]["terminalState"] == "Failed"


async def test_a_tfjob_of_somebody_else_is_left_alone() -> None:
    server = Server(raw_jobset())
    server.stored({"metadata": {"namespace": "ns", "name": "mine"}, "spec": {}})
    assert await server.step() == []
    assert [event.reason for event in server.events] == ["TFJobExists"]


def another(server: Server, uid: str) -> None:
    """The JobSet was deleted, and another one has its name: the watch has not said so."""
    server.jobset["metadata"] |= {"uid": uid, "resourceVersion": "90"}


async def test_a_new_leader_with_a_silent_watch_runs_nothing_again() -> None:
    """Its JobSet has ended, and its TFJob was deleted since."""
    server = Server(raw_jobset())
    server.jobset["status"] = {"terminalState": "Completed"}
    server.jobset["metadata"]["resourceVersion"] = "90"
    assert await server.step() == []
    assert server.tfjobs == {}
    assert await server.step() == []


@pytest.mark.parametrize("now", ["gone", "deleting", "others", "another"])
async def test_no_tfjob_is_made_for_a_jobset_that_was_replaced_or_is_going(now: str) -> None:
    server = Server(raw_jobset())
    if now == "gone":
        server.gone = True
    elif now == "deleting":
        server.jobset["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "90"}
    elif now == "others":
        server.jobset["spec"]["managedBy"] = "jobset.sigs.k8s.io/jobset-controller"
    else:
        another(server, "new")
    assert await server.step() == (["create"] if now == "another" else [])
    owners = [each["metadata"]["ownerReferences"][0]["uid"] for each in server.tfjobs.values()]
    assert owners == (["new"] if now == "another" else [])


@pytest.mark.parametrize("now", ["gone", "deleting", "somebody else's", "of the JobSet before"])
async def test_a_tfjob_that_is_another_one_by_now_is_not_overwritten(now: str) -> None:
    server = Server(raw_jobset())
    await server.step()
    await server.step()
    theirs = copy.deepcopy(server.tfjobs["mine"])
    if now == "gone":
        server.tfjobs.clear()
        server.late.clear()
    elif now == "deleting":
        theirs["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    elif now == "somebody else's":
        theirs["metadata"] |= {"uid": "other", "ownerReferences": []}
    else:
        theirs["metadata"]["uid"] = "other"
        theirs["metadata"]["ownerReferences"][0]["uid"] = "old"
    if now != "gone":
        server.stored(theirs)
        server.late.clear()  # the watch has not said so
    server.jobset["spec"]["suspend"] = True
    server.seen()
    assert await server.step() == (["create"] if now == "gone" else [])
    if now != "gone":
        assert server.tfjobs["mine"]["spec"]["runPolicy"]["suspend"] is False


async def test_a_status_is_not_written_over_a_newer_one() -> None:
    server = Server(raw_jobset())
    await server.step()
    server.jobset["metadata"]["resourceVersion"] = "90"
    server.jobset["status"] = {"terminalState": "Completed"}
    assert await server.step() == []
    assert server.jobset["status"] == {"terminalState": "Completed"}
    assert await server.step() == [], "it has been looked up"
    assert server.jobsets._doubted == set()


async def test_a_refused_tfjob_is_reported_and_tried_again() -> None:
    server = Server(raw_jobset())
    server.refuses = True
    assert await server.step() == []
    assert [event.reason for event in server.events] == ["TFJobNotWritten"]
    server.refuses = False
    assert await server.step() == ["create"]


@pytest.mark.parametrize("edit", ["too many", "no sense", "other types"])
async def test_a_tfjob_that_somebody_spoils_is_written_anew(edit: str) -> None:
    """Nobody runs it as it is, and no suspension would reach it."""
    server = Server(raw_jobset())
    await server.step()
    good = copy.deepcopy(server.tfjobs["mine"]["spec"])
    await server.step()
    bad = copy.deepcopy(server.tfjobs["mine"])
    types = bad["spec"]["tfReplicaSpecs"]
    if edit == "too many":
        types["Worker"]["replicas"] = 3000
    elif edit == "no sense":
        bad["spec"]["tfReplicaSpecs"] = [7]
    else:  # which is valid
        types["Master"] = types.pop("Chief")
    server.stored(bad)
    assert await server.step() == ["replace"]
    assert server.tfjobs["mine"]["spec"] == good
    server.stored(bad)
    server.jobset["spec"]["suspend"] = True
    server.seen()
    assert await server.step() == ["replace"]
    assert server.tfjobs["mine"]["spec"]["runPolicy"]["suspend"] is True
    assert await server.step() == []
    assert server.events == []


async def test_a_bug_is_told_counted_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(raw_jobset())
    await server.step()
    before = metrics.RECONCILE_FAILURES._value.get()

    def fails(*_: object) -> dict[str, Any]:
        raise RecursionError("x" * 10**6)

    with monkeypatch.context() as patch:
        patch.setattr(jobset_module, "status_of", fails)
        assert await server.step() == []
    (event,) = server.events
    assert (event.type, event.reason) == ("Warning", "ReconcileFailed")
    assert "RecursionError" in event.message
    assert len(event.message) < 450
    assert metrics.RECONCILE_FAILURES._value.get() == before + 1
    assert server.jobsets._queue._retry_at_s.keys() == {("ns", "mine")}
    assert await server.step() == ["status"]


def test_a_refusal_is_cut() -> None:
    (condition,) = refused_status({}, "x" * 5000, NOW)["conditions"]
    assert len(condition["message"]) <= 1100


def test_pods_are_what_clients_of_trainer_look_for() -> None:
    """An index among their labels, and a container `node`; of other TFJobs' pods nothing changes."""
    labels = {REPLICATED_JOB_LABEL: "node"}
    types = {"Worker": {"replicas": 2, "template": template(metadata={"labels": labels})}}
    decision = decide(job(types))
    pods = [action.render() for action in decision.actions if isinstance(action, Create) and action.kind == "Pod"]
    assert [each["metadata"]["labels"][COMPLETION_INDEX_LABEL] for each in pods] == ["0", "1"]
    for each in pods:
        (container,) = each["spec"]["containers"]
        assert container["name"] == "node"
        assert "TF_CONFIG" in [variable["name"] for variable in container["env"]]


def test_the_exporter_is_told_what_trainer_tells_the_program() -> None:
    told = {"name": URL, "value": "https://t"}
    token = {"name": "kubeflow-trainer-token", "mountPath": "/t"}
    mine = {"name": "A", "value": "b"}
    trains: dict[str, Any] = {"name": "tensorflow", "command": ["python"], "env": [mine, told], "volumeMounts": [token]}
    pod: dict[str, Any] = {"metadata": {}, "spec": {"containers": [trains]}}
    inject(pod, "both", "operator", None)
    (exporter,) = pod["spec"]["initContainers"]
    assert exporter["env"] == [told]
    assert token in exporter["volumeMounts"]
    plain: dict[str, Any] = {"metadata": {}, "spec": {"containers": [{"name": "tensorflow", "env": [mine]}]}}
    inject(plain, "sidecar", "operator", None)
    assert "env" not in plain["spec"]["initContainers"][0]


def test_how_the_container_node_ended_is_how_the_pod_did() -> None:
    raw: dict[str, Any] = {
        "metadata": {
            "namespace": "ns",
            "name": "p",
            "uid": "p",
            "resourceVersion": "1",
            "labels": {REPLICATED_JOB_LABEL: "node"},
        },
        "spec": {"containers": [{"name": "node", "resources": {"requests": {"cpu": "300m"}}}]},
        "status": {
            "phase": "Failed",
            "containerStatuses": [
                {"name": "tensorflow", "state": {"terminated": {"exitCode": 9}}},
                {"name": "node", "state": {"terminated": {"exitCode": 3}}},
            ],
        },
    }
    pod = Pod.parse(raw)
    assert (pod.exit_code, pod.trains, pod.cpu, pod.failure and pod.failure.exit_code) == (3, "node", (300, 0), "3")
    assert ResizePod("p", "p", 1, 0, container=pod.trains).container == "node"


STATUS: dict[str, Any] = {"step": 250, "total_steps": 1000, "steps_per_s": 5.0, "loss": 0.12345678}


@pytest.mark.parametrize(
    ("changed", "percent", "left"),
    [
        ({}, 25, 150),
        ({"step": 1000, "steps_per_s": None}, 100, 0),
        ({"step": 1200}, 100, 0),
        ({"total_steps": None}, None, None),
        ({"steps_per_s": 0.0}, 25, None),
        ({"steps_per_s": 1e-30}, 25, 2**31 - 1),
    ],
)
def test_progress_for_trainer(changed: dict[str, Any], percent: int | None, left: int | None) -> None:
    found = trainer_status({**STATUS, **changed}, 0.0)
    assert found is not None
    assert (found.get("progressPercentage"), found.get("estimatedRemainingSeconds")) == (percent, left)
    assert found["lastUpdatedTime"] == "1970-01-01T00:00:00Z"
    assert {"name": "loss", "value": "0.123457"} in found["metrics"]


def test_a_pod_without_steps_has_nothing_to_tell() -> None:
    assert trainer_status({**STATUS, "step": None}, 0.0) is None


def test_a_server_that_is_not_there_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "progress.json").write_text('{"step": 3, "total_steps": 9}')
    (tmp_path / "token").write_text("t")
    given = {URL: "https://127.0.0.1:1/x", CA_CERT: str(tmp_path / "none"), TOKEN: str(tmp_path / "token")}
    reporter = TrainerReporter(tmp_path, given)
    assert reporter.enabled
    for _ in range(3):
        reporter.report()
    assert capsys.readouterr().err.count("progress is not reported to https://127.0.0.1:1/x: FileNotFoundError") == 1
    assert not TrainerReporter(tmp_path, {**given, URL: "http://plain"}).enabled
    assert not TrainerReporter(tmp_path, {}).enabled


def test_a_jobset_that_is_too_large_is_not_even_kept() -> None:
    """To unpack it takes 50 ms at each look."""
    found = jobset(replicated("node", 1, {**NODE, "args": [{}] * 400_000}))
    assert len(found.raw) < 2048
    assert found.parts()["status"] == {}
    assert len(jobset(*[replicated("node")] * 33).too_large) == 1
    for odd in (7, [7], [{"name": 7, "template": 7}], {"a": 1}):
        assert JobSet.parse(raw_jobset(replicatedJobs=odd)).too_large == ()

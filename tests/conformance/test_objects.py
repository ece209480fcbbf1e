"""C. Pods and services: how many, their names, labels, owners, and what of the template they carry."""

import asyncio
from collections.abc import Mapping
from typing import Any

from conformance.lab import Lab, case
from conformance.manifest import Object, container, labels, names, owner, replica, tfjob
from harness.api import pods, services

ROLE = "training.kubeflow.org/job-role"


@case("C1")
async def test_local_job(lab: Lab) -> None:
    """One worker: one pod and one service."""
    await lab.submit(tfjob(Worker=1))
    await lab.stays(pods="worker-0", services="worker-0")


@case("C2")
async def test_distributed_job(lab: Lab) -> None:
    """A pod and a service for each replica, owned by the job."""
    job = await lab.submit(tfjob(Worker=4, PS=2))
    await lab.stays(pods=names(ps=2, worker=4), services=names(ps=2, worker=4))
    for made in (*await lab.pod_list(), *await lab.service_list()):
        assert made["metadata"]["ownerReferences"] == [owner(job)]


@case("C3")
async def test_nothing_to_make(offline: Lab) -> None:
    """All pods and services are there when the operator starts: it makes none."""
    await offline.given(tfjob(Worker=4, PS=2), everyone := names(ps=2, worker=4))
    before = {item["metadata"]["uid"] for item in (*await offline.pod_list(), *await offline.service_list())}
    with offline.operated():
        await offline.stays(pods=everyone, services=everyone, replicas={"PS": {}, "Worker": {}}, started=True)
    assert {i["metadata"]["uid"] for i in (*await offline.pod_list(), *await offline.service_list())} == before
    assert not [event for event in await offline.event_list() if event[1].startswith("SuccessfulCreate")]


@case("C5")
async def test_the_rest_is_made(offline: Lab) -> None:
    """Some pods are there, one of them running: the others are made."""
    await offline.given(tfjob(Worker=4, PS=2), "worker-0 worker-1 worker-2 ps-0")
    await offline.run("worker-2")
    with offline.operated():
        await offline.expect(
            pods=names(ps=2, worker=4),
            services=names(ps=2, worker=4),
            last=("Running", "TFJobRunning", f"TFJob {offline.namespace}/job is running."),
            replicas={"PS": {}, "Worker": {"active": 1}},
        )
        for made in ("ps-1", "worker-3"):
            await offline.expect_event("Normal", "SuccessfulCreatePod", f"Created pod: job-{made}")
    created = sorted(message for _, reason, message in await offline.event_list() if reason == "SuccessfulCreatePod")
    assert created == ["Created pod: job-ps-1", "Created pod: job-worker-3"]


@case("C7")
async def test_template_metadata(lab: Lab) -> None:
    """Labels and annotations of the template are on the pods, and on no service."""
    metadata = {"labels": {"label1": "1"}, "annotations": {"annotation1": "1"}}
    await lab.submit(tfjob(Worker=replica(1, metadata=metadata)))
    await lab.expect(pods="worker-0", services="worker-0")
    made = (await lab.pod("worker-0"))["metadata"]
    assert made["labels"] == labels("job", "worker", 0, "master") | {"label1": "1"}
    assert made["annotations"] == {"annotation1": "1"}
    assert (await lab.service("worker-0"))["metadata"]["labels"] == labels("job", "worker", 0)


@case("C8")
async def test_labels(lab: Lab) -> None:
    """The four labels; with a chief, it alone has the role of master."""
    await lab.submit(tfjob(Chief=1, Evaluator=1, PS=1, Worker=2))
    await lab.expect(pods=(everyone := names(chief=1, evaluator=1, ps=1, worker=2)), services=everyone)
    for short in everyone.split():
        kind, index = short.split("-")
        role = "master" if kind == "chief" else None
        assert (await lab.pod(short))["metadata"]["labels"] == labels("job", kind, int(index), role)
        assert (await lab.service(short))["metadata"]["labels"] == labels("job", kind, int(index))


@case("C9")
async def test_services(lab: Lab) -> None:
    """Headless; selects its pod by the four labels; resolves once the pod is ready."""
    await lab.submit(tfjob(Worker=1, PS=1))
    await lab.expect(services="ps-0 worker-0")
    for kind in ("ps", "worker"):
        spec = (await lab.service(f"{kind}-0"))["spec"]
        assert spec["clusterIP"] == "None"
        assert spec["selector"] == labels("job", kind, 0)
        assert spec["type"] == "ClusterIP"
        assert not spec.get("publishNotReadyAddresses")
        assert [(p["name"], p["port"], p["targetPort"]) for p in spec["ports"]] == [("tfjob-port", 2222, 2222)]


@case("C10")
async def test_master_without_chief(lab: Lab) -> None:
    """Without chief and master, worker 0 has the role."""
    await lab.submit(tfjob(Worker=2, PS=1))
    await lab.expect(pods="ps-0 worker-0 worker-1")
    roles = [
        p["metadata"]["name"]
        for p in await lab.pod_list()
        if "training.kubeflow.org/job-role" in p["metadata"]["labels"]
    ]
    assert roles == ["job-worker-0"]


@case("C11")
async def test_reserved_labels(lab: Lab) -> None:
    """A template cannot take the operator's labels for its own."""
    metadata = {"labels": {"training.kubeflow.org/job-name": "x", "training.kubeflow.org/replica-index": "9"}}
    await lab.submit(tfjob(Worker=replica(1, metadata=metadata)))
    await lab.expect(pods="worker-0")
    assert (await lab.pod("worker-0"))["metadata"]["labels"] == labels("job", "worker", 0, "master")


@case("C12")
async def test_job_metadata_is_the_jobs(lab: Lab) -> None:
    """Labels and annotations of the job itself are not on its pods and services."""
    await lab.submit(tfjob(Worker=1, metadata={"labels": {"team": "a"}, "annotations": {"note": "b"}}))
    await lab.expect(pods="worker-0", services="worker-0")
    for made in (await lab.pod("worker-0"), await lab.service("worker-0")):
        assert "team" not in made["metadata"]["labels"]
        assert "note" not in made["metadata"].get("annotations", {})


@case("C13")
async def test_side_by_side(lab: Lab) -> None:
    """Two jobs, one's name the beginning of the other's: each counts its own pods."""
    await lab.submit(tfjob(Worker=1, PS=1))
    decoy = lab.named("job-worker")
    await decoy.submit(tfjob("job-worker", Worker=2, PS=3))
    await lab.expect(pods="ps-0 worker-0")
    await decoy.expect(pods=names(ps=3, worker=2))
    await decoy.run(names(ps=3, worker=2))
    await decoy.expect(conditions="Created Running", replicas={"PS": {"active": 3}, "Worker": {"active": 2}})
    await lab.stays(conditions="Created", replicas={"PS": {}, "Worker": {}}, pods="ps-0 worker-0")


@case("C14")
async def test_names(lab: Lab) -> None:
    """Pods and services are named <job>-<type>-<index>."""
    await lab.submit(tfjob("mnist", Master=1, Worker=2))
    mnist = lab.named("mnist")
    await mnist.expect(pods=(everyone := names(master=1, worker=2)), services=everyone)
    full = ["mnist-master-0", "mnist-worker-0", "mnist-worker-1"]
    for collection in (pods(lab.namespace), services(lab.namespace)):
        assert sorted(item["metadata"]["name"] for item in (await lab.api.items(collection))[0]) == full


@case("C15")
async def test_restart_policy_of_the_template(lab: Lab) -> None:
    """The replica's restart policy replaces the template's, with a warning."""
    await lab.submit(tfjob(Worker=replica(1, "Never", restartPolicy="Always")))
    await lab.expect(pods="worker-0")
    assert (await lab.pod("worker-0"))["spec"]["restartPolicy"] == "Never"
    message = "Restart policy in pod template will be overwritten by restart policy in replica spec"
    await lab.expect_event("Warning", "SetPodTemplateRestartPolicy", message)


@case("C16")
async def test_deleted_service_returns(lab: Lab) -> None:
    """A service deleted by hand is made again."""
    await lab.submit(tfjob(Worker=2))
    await lab.expect(pods="worker-0 worker-1", services="worker-0 worker-1")
    await lab.run("worker-0 worker-1")
    await lab.api.delete(f"{services(lab.namespace)}/job-worker-1")
    await lab.expect(services="worker-0 worker-1", pods="worker-0 worker-1", conditions="Created Running")


@case("C17")
async def test_service_is_adopted(lab: Lab) -> None:
    """A service with the job's labels and no owner becomes the job's."""
    orphan = {
        "metadata": {"name": "job-worker-0", "labels": labels("job", "worker", 0)},
        "spec": {"clusterIP": "None", "selector": labels("job", "worker", 0), "ports": [{"port": 2222}]},
    }
    uid = (await lab.api.create(services(lab.namespace), orphan))["metadata"]["uid"]
    job = await lab.submit(tfjob(Worker=2))
    await lab.expect(pods="worker-0 worker-1", services="worker-0 worker-1")
    await lab.run("worker-0 worker-1")
    await lab.expect(conditions="Created Running")

    async def look(_: Mapping[str, Any]) -> dict[str, Any]:
        adopted = (await lab.service("worker-0"))["metadata"]
        return {"uid": adopted["uid"], "owners": adopted.get("ownerReferences")}

    await lab.until(look, {"uid": uid, "owners": [owner(job)]})


@case("C18")
async def test_finalizers(lab: Lab) -> None:
    """Finalizers of the template are on the pods."""
    await lab.submit(tfjob(Worker=replica(1, metadata={"finalizers": ["example.org/wait"]})))
    await lab.expect(pods="worker-0")
    assert (await lab.pod("worker-0"))["metadata"]["finalizers"] == ["example.org/wait"]
    await lab.let_go("worker-0")


@case("C19")
async def test_template_is_the_users(lab: Lab) -> None:
    """What the template says of the pod arrives in the pod; sidecars and init containers are left as they are."""
    spec = {
        "containers": [
            container("sidecar", args=["-v"]),
            container(env=[{"name": "A", "value": "1"}], resources={"limits": {"cpu": "2"}}, workingDir="/w"),
        ],
        "initContainers": [container("fetch")],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "hostNetwork": True,
        "priority": None,
    }
    await lab.submit(tfjob(Worker={"replicas": 2, "template": {"spec": spec}}))
    await lab.expect(pods="worker-0 worker-1", services="worker-0 worker-1")
    made = (await lab.pod("worker-1"))["spec"]
    sidecar, main = made["containers"]
    assert (sidecar["name"], sidecar["args"], sidecar.get("env")) == ("sidecar", ["-v"], None)
    assert main["workingDir"] == "/w"
    assert main["resources"]["limits"] == {"cpu": "2"}
    assert [e["name"] for e in main["env"]] == ["A", "TF_CONFIG"]
    assert made["initContainers"][0].get("env") is None
    assert made["nodeSelector"] == {"disk": "ssd"}
    assert {"key": "gpu", "operator": "Exists"} in made["tolerations"]
    assert made["hostNetwork"] is True


@case("C20")
async def test_deleted_pod_returns(lab: Lab) -> None:
    """A pod deleted before it ran is made again, whatever its restart policy (one that runs: E23)."""
    await lab.submit(tfjob(Worker=2))
    await lab.expect(pods="worker-0 worker-1")
    uid = await lab.uid("worker-1")
    await lab.delete_pod("worker-1")
    await lab.expect_replaced("worker-1", uid)
    await lab.stays(conditions="Created")


@case("C21")
async def test_nothing_for_a_job_without_types(lab: Lab) -> None:
    """`tfReplicaSpecs: {}` is accepted, and nothing comes of it."""
    job: Object = tfjob()
    job["spec"]["tfReplicaSpecs"] = {}
    await lab.submit(job)
    await lab.stays(pods="", services="", started=False)


@case("C22")
async def test_unknown_type(lab: Lab) -> None:
    """A replica type of another name gets its pods and services, and does not make the job a distributed one."""
    await lab.submit(tfjob(Worker=1, Trainer=1))
    await lab.expect(pods="trainer-0 worker-0", services="trainer-0 worker-0")
    assert (await lab.pod("trainer-0"))["metadata"]["labels"] == labels("job", "trainer", 0)
    assert await lab.tf_config("worker-0") is None
    await lab.run("trainer-0 worker-0")
    await lab.expect(conditions="Created Running", replicas={"Trainer": {"active": 1}, "Worker": {"active": 1}})


@case("C23")
async def test_name_is_taken(lab: Lab) -> None:
    """A pod of that name that is not the job's is left alone and reported; once it is gone the job gets its own."""
    stranger = {"metadata": {"name": "job-worker-0"}, "spec": {"containers": [container()]}}
    uid = (await lab.api.create(pods(lab.namespace), stranger))["metadata"]["uid"]
    await lab.submit(tfjob(Worker=1))
    await lab.expect_event("Warning", "FailedCreatePod", 'Error creating: pods "job-worker-0" already exists')
    assert await lab.uid("worker-0") == uid
    await lab.delete_pod("worker-0")
    await lab.expect(pods="worker-0", services="worker-0", conditions="Created")


@case("C24")
async def test_successor(lab: Lab) -> None:
    """A new job of the same name does not take the old one's pods for its own, and gets its own when those are gone."""
    await lab.submit(tfjob(Worker=1))
    await lab.expect(pods="worker-0", services="worker-0")
    await lab.succeed("worker-0")
    await lab.expect(conditions="Created Succeeded")
    await lab.api.delete(lab.path)
    job = await lab.submit(tfjob(Worker=1))
    await lab.stays(pods="worker-0", completed=False)
    await lab.delete_pod("worker-0")
    await lab.api.delete(f"{services(lab.namespace)}/job-worker-0")
    await lab.expect(pods="worker-0", services="worker-0", conditions="Created")
    assert (await lab.pod("worker-0"))["metadata"]["ownerReferences"] == [owner(job)]


@case("C25")
async def test_refused_pod(lab: Lab) -> None:
    """A pod that the API server refuses is reported, in its words."""
    await lab.submit(tfjob(Worker=replica(1, "Sometimes")))
    for _ in range(int(lab.patience_s / 0.2)):
        if found := [event for event in await lab.event_list() if event[1] == "FailedCreatePod"]:
            break
        await asyncio.sleep(0.2)
    assert found
    assert found[0][0] == "Warning"
    assert 'Unsupported value: "Sometimes"' in found[0][2]
    await lab.stays(pods="")

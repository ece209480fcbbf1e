"""H. Gang scheduling: the PodGroup of Volcano and of scheduler-plugins."""

from typing import Any

from kubernetes.utils.quantity import parse_quantity

from conformance.lab import Lab, case
from conformance.manifest import Object, container, owner, replica, tfjob
from harness.api import ApiError

VOLCANO = "/apis/scheduling.volcano.sh/v1beta1"
COSCHEDULING = "/apis/scheduling.x-k8s.io/v1alpha1"
RESOURCES = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}


@case("H9")
async def test_volcano_decides(volcano: Lab) -> None:
    """Pods are made only once Volcano lets the group in; a changed minAvailable reaches the group."""
    await volcano.submit(tfjob(volcano.name, Worker=2, policy={"schedulingPolicy": {"minAvailable": 10}}))
    await _expect(volcano, VOLCANO, minMember=10)
    await volcano.stays(pods="", services="", conditions="Created")
    await _phase(volcano, "Pending")
    await volcano.stays(pods="", conditions="Created")
    await volcano.change({"runPolicy": {"schedulingPolicy": {"minAvailable": 1}}})
    await _expect(volcano, VOLCANO, minMember=1)
    await _phase(volcano, "Inqueue")
    await volcano.expect(pods="worker-0 worker-1", services="worker-0 worker-1")
    await volcano.run("worker-0 worker-1")
    await volcano.expect(conditions="Created Running")
    await volcano.succeed("worker-0")
    await volcano.expect(conditions="Created Running=False Succeeded")


@case("H10")
async def test_volcano_group(volcano: Lab) -> None:
    """The group has the job's name, owner and annotations, all its replicas and the sum of what they request."""
    template = replica(2, containers=[container(resources=RESOURCES), container("sidecar", resources=RESOURCES)])
    annotations = {"volcano.sh/task-topology-affinity": "ps,worker"}
    only_limits = replica(1, containers=[container(resources={"limits": {"cpu": "3"}})])
    policy = {"schedulingPolicy": {"priorityClass": "high"}}
    job = tfjob(volcano.name, Worker=template, PS=only_limits, policy=policy, metadata={"annotations": annotations})
    made = await volcano.submit(job)
    await _expect(volcano, VOLCANO, minMember=3, queue="default", priorityClassName="high")
    group = await _group(volcano, VOLCANO)
    assert group["metadata"]["ownerReferences"] == [owner(made)]
    assert annotations.items() <= group["metadata"]["annotations"].items()
    resources = {key: parse_quantity(value) for key, value in group["spec"]["minResources"].items()}
    assert resources == {"cpu": 5, "memory": 4 * 2**30}
    await _phase(volcano, "Running")
    await volcano.expect(pods="ps-0 worker-0 worker-1")
    pod = await volcano.pod("worker-1")
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": volcano.name,
        "volcano.sh/task-spec": "worker",
    }


@case("H10b")
async def test_volcano_policy(volcano: Lab) -> None:
    """The user's policy comes before what the operator works out."""
    policy = {"minAvailable": 2, "queue": "research", "minResources": {"cpu": "7"}}
    await volcano.submit(tfjob(volcano.name, Worker=3, policy={"schedulingPolicy": policy}))
    await _expect(volcano, VOLCANO, minMember=2, queue="research", minResources={"cpu": "7"})


@case("H11")
async def test_coscheduling(coscheduling: Lab) -> None:
    """scheduler-plugins: pods are made at once and carry the group's label and the scheduler's name."""
    policy = {"schedulingPolicy": {"minAvailable": 2, "scheduleTimeoutSeconds": 60, "minResources": {"cpu": "2"}}}
    made = await coscheduling.submit(tfjob(coscheduling.name, Worker=3, policy=policy))
    await coscheduling.expect(pods="worker-0 worker-1 worker-2")
    group = await _group(coscheduling, COSCHEDULING)
    assert group["spec"] == {"minMember": 2, "scheduleTimeoutSeconds": 60, "minResources": {"cpu": "2"}}
    assert group["metadata"]["ownerReferences"] == [owner(made)]
    pod = await coscheduling.pod("worker-0")
    assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
    assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == coscheduling.name


@case("H12")
async def test_scheduler_of_ones_own(coscheduling: Lab) -> None:
    """A scheduler that the user names is kept, with a warning."""
    await coscheduling.submit(tfjob(coscheduling.name, Worker=replica(1, schedulerName="mine")))
    await coscheduling.expect(pods="worker-0")
    assert (await coscheduling.pod("worker-0"))["spec"]["schedulerName"] == "mine"
    message = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
    await coscheduling.expect_event("Warning", "SetPodTemplateSchedulerName", message)


@case("H13a")
async def test_group_of_a_finished_job(coscheduling: Lab) -> None:
    """The group goes when the job is done."""
    await coscheduling.submit(tfjob(coscheduling.name, Worker=1))
    await coscheduling.expect(pods="worker-0")
    await _group(coscheduling, COSCHEDULING)
    await coscheduling.succeed("worker-0")
    await coscheduling.expect(completed=True)
    await _expect_none(coscheduling, COSCHEDULING)
    message = "Job has been terminated. Deleting PodGroup"
    await coscheduling.expect_event("Normal", "JobTerminated", message)
    message = f"Deleted PodGroup: {coscheduling.name}"
    await coscheduling.expect_event("Normal", "SuccessfulDeletePodGroup", message)


@case("H13b")
async def test_group_of_a_suspended_job(volcano: Lab) -> None:
    """The group goes when the job is suspended, and comes again."""
    await volcano.submit(tfjob(volcano.name, Worker=1))
    await _expect(volcano, VOLCANO, minMember=1)
    await _phase(volcano, "Running")
    await volcano.expect(pods="worker-0")
    await volcano.change({"runPolicy": {"suspend": True}})
    await volcano.expect(pods="", services="", conditions="Created Suspended")
    await _expect_none(volcano, VOLCANO)
    await volcano.change({"runPolicy": {"suspend": False}})
    await _expect(volcano, VOLCANO, minMember=1)


async def _group(lab: Lab, api: str) -> Object:
    return await lab.api.get(f"{api}/namespaces/{lab.namespace}/podgroups/{lab.name}")


async def _phase(lab: Lab, phase: str) -> None:
    path = f"{VOLCANO}/namespaces/{lab.namespace}/podgroups/{lab.name}/status"
    await lab.api.merge(path, {"status": {"phase": phase}})


async def _expect(lab: Lab, api: str, **spec: Any) -> None:
    """The group comes to exist, with these fields in its spec."""

    async def look(wanted: Any) -> Any:
        try:
            found = (await _group(lab, api))["spec"]
        except ApiError as error:
            return error.reason
        return {key: found.get(key) for key in wanted}

    await lab.until(look, spec)


async def _expect_none(lab: Lab, api: str) -> None:
    async def look(_: Any) -> Any:
        try:
            return await _group(lab, api)
        except ApiError as error:
            return {"reason": error.reason}

    await lab.until(look, {"reason": "NotFound"})

"""H. What an operator tells: events on the job, counters for Prometheus."""

from collections import Counter

from conformance.lab import Lab, case, cases
from conformance.manifest import Object, names, replica, tfjob

RUNNING = "Created Running"
SUCCEEDED = "Created Running=False Succeeded"
FAILED = "Created Running=False Failed"


@case("H14")
async def test_events_of_a_life(lab: Lab) -> None:
    """One event for each pod and service made or deleted, one for the end; none for Created and Running."""
    await lab.submit(tfjob(Worker=2, PS=1, policy={"cleanPodPolicy": "Running"}))
    await lab.expect(pods=(everyone := names(ps=1, worker=2)), services=everyone)
    await lab.run(everyone)
    await lab.expect(conditions=RUNNING)
    await lab.succeed("worker-1 worker-0")
    await lab.expect(conditions=SUCCEEDED, pods="worker-0 worker-1")
    expected = {
        *(("Normal", "SuccessfulCreatePod", f"Created pod: job-{short}") for short in everyone.split()),
        *(("Normal", "SuccessfulCreateService", f"Created service: job-{short}") for short in everyone.split()),
        ("Normal", "TFJobSucceeded", f"TFJob {lab.namespace}/job successfully completed."),
        ("Normal", "SuccessfulDeletePod", "Deleted pod: job-ps-0"),
        ("Normal", "SuccessfulDeleteService", "Deleted service: job-ps-0"),
        *(("Normal", "ExitedWithCode", f"Pod: {lab.namespace}.job-worker-{i} exited with code 0") for i in range(2)),
    }
    for event in expected:  # each is stored by a request of its own, in no order
        await lab.expect_event(*event)
    assert set(await lab.event_list()) == expected


@case("H15")
async def test_events_name_their_source(lab: Lab) -> None:
    """Events are about the TFJob and come from the component tfjob-controller."""
    job = await lab.submit(tfjob(Worker=1))
    await lab.expect_event("Normal", "SuccessfulCreatePod", "Created pod: job-worker-0")
    for event in (await lab.api.items(f"/api/v1/namespaces/{lab.namespace}/events"))[0]:
        about = event["involvedObject"]
        assert (about["kind"], about["apiVersion"]) == ("TFJob", "kubeflow.org/v1")
        assert about["uid"] == job["metadata"]["uid"]
        assert (event.get("source") or {}).get("component") or event["reportingComponent"] == "tfjob-controller"


@case("H23")
async def test_event_of_failure(lab: Lab) -> None:
    """A failed job is a Normal event."""
    await lab.submit(tfjob(Worker=1))
    await lab.expect(pods="worker-0")
    await lab.fail("worker-0", code=3)
    message = f"TFJob {lab.namespace}/job has failed because 1 Worker replica(s) failed."
    await lab.expect_event("Normal", "TFJobFailed", message)
    await lab.expect_event("Normal", "ExitedWithCode", f"Pod: {lab.namespace}.job-worker-0 exited with code 3")


@cases(
    "phase, status, state, event",
    {
        "H16": (
            "Pending",
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ]
            },
            None,
            ("Unschedulable", "Error pod job-worker-0 condition message: 0/1 nodes are available"),
        ),
        "H24a": (
            "Pending",
            {},
            {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}},
            (
                "ImagePullBackOff",
                "Error pod job-worker-0 container tensorflow waiting message: Back-off pulling image",
            ),
        ),
        "H24b": (
            "Running",
            {},
            {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "out of memory"}},
            (
                "OOMKilled",
                "Error pod job-worker-0 container tensorflow exitCode: 137 terminated message: out of memory",
            ),
        ),
    },
)
async def test_abnormal_pods(
    lab: Lab, phase: str, status: Object, state: Object | None, event: tuple[str, str]
) -> None:
    """What keeps a pod from running is a Warning on the job."""
    await lab.submit(tfjob(Worker=replica(1, "OnFailure")))
    await lab.expect(pods="worker-0", conditions="Created")
    await lab.set_status("worker-0", phase, status, **({"tensorflow": (state, 0)} if state else {}))
    await lab.expect_event("Warning", *event)


@case("H17a")
async def test_counters(lab: Lab) -> None:
    """Jobs created, succeeded and failed are counted by namespace, each once."""
    await lab.submit(tfjob(Worker=1))
    other = lab.named("other")
    await other.submit(tfjob("other", Worker=1))
    await lab.expect(pods="worker-0")
    await other.expect(pods="worker-0")
    await lab.succeed("worker-0")
    await other.fail("worker-0")
    await lab.expect(completed=True)
    await other.stays(completed=True)
    await lab.expect_counts(created=2, successful=1, failed=1, restarted=0, deleted=0)


@case("H17b")
async def test_restarts_are_counted_once(lab: Lab) -> None:
    """A restart counts once."""
    await lab.submit(tfjob(Worker=replica(1, "ExitCode")))
    await lab.expect(pods="worker-0")
    uid = await lab.uid("worker-0")
    await lab.fail("worker-0", code=137)
    await lab.expect_replaced("worker-0", uid)
    await lab.run("worker-0")
    await lab.stays(conditions=RUNNING)
    await lab.expect_counts(restarted=1)


@case("H17c")
async def test_a_failure_is_counted_once(offline: Lab) -> None:
    """A job that fails for more than one type of replica counts once."""
    await offline.submit(tfjob(PS=1, Worker=1))
    with offline.operated():
        await offline.expect(pods="ps-0 worker-0")
    await offline.fail("ps-0 worker-0")
    with offline.operated():
        await offline.stays(conditions="Created Failed", completed=True)
        await offline.expect_counts(failed=1)


@case("H17d")
async def test_deletions_are_counted(lab: Lab) -> None:
    """A job deleted by its TTL is counted."""
    await lab.submit(tfjob(Worker=1, policy={"ttlSecondsAfterFinished": 0}))
    await lab.expect(pods="worker-0")
    await lab.succeed("worker-0")
    await lab.expect(gone=True)
    await lab.expect_event("Normal", "SuccessfulDeleteJob", "Deleted job: job")
    await lab.expect_counts(deleted=1)


@case("H17e")
async def test_known_jobs_are_not_created_again(offline: Lab) -> None:
    """An operator that starts does not count the jobs it finds as created."""
    await offline.submit(tfjob(Worker=1))
    with offline.operated():
        await offline.expect(pods="worker-0", conditions="Created")
        await offline.expect_counts(created=1)
    with offline.operated():
        await offline.run("worker-0")
        await offline.expect(conditions=RUNNING)
        await offline.expect_counts(created=0)


@case("H25")
async def test_events_are_few(lab: Lab) -> None:
    """What is said once is not said again at every look: suspended, and each exit of a pod."""
    await lab.submit(tfjob(Worker=2, PS=1, policy={"suspend": True}))
    await lab.expect(conditions="Created Suspended")
    await lab.expect_event("Normal", "TFJobSuspended", "TFJob job is suspended.")
    for i in range(3):
        await lab.api.merge(lab.path, {"metadata": {"annotations": {"look": str(i)}}})
        await lab.stays(0.5, conditions="Created Suspended")
    found = (await lab.api.items(f"/api/v1/namespaces/{lab.namespace}/events"))[0]
    times = Counter({e["reason"]: e.get("count") or (e.get("series") or {}).get("count") or 1 for e in found})
    assert times == {"TFJobSuspended": 1}

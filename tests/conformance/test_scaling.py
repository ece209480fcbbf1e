"""H. Scaling, managedBy, faults of the operator, many jobs."""

import asyncio

import pytest

from conformance.lab import Lab, case, cases
from conformance.manifest import counts, names, replica, tfjob

RUNNING = "Created Running"
SUCCEEDED = "Created Running=False Succeeded"
FAILED = "Created Running=False Failed"


@cases("dynamic", {"H1": True, "H5": False})
async def test_scale_down(lab: Lab, dynamic: bool) -> None:
    """Pods and services out of range go; those in range stay as they are."""
    await lab.submit(tfjob(PS=1, Worker=4, enableDynamicWorker=dynamic))
    await lab.expect(pods=names(ps=1, worker=4), services=names(ps=1, worker=4))
    if dynamic:  # pods that run and are not: H3
        await lab.run(names(ps=1, worker=4))
        await lab.expect(conditions=RUNNING)
    uids = [await lab.uid("worker-0"), await lab.uid("worker-1")]
    await lab.scale("Worker", 2)
    await lab.stays(
        pods=names(ps=1, worker=2),
        services=names(ps=1, worker=2),
        replicas={"PS": {"active": 1}, "Worker": {"active": 2}} if dynamic else {"PS": {}, "Worker": {}},
        conditions=RUNNING if dynamic else "Created",
    )
    assert [await lab.uid("worker-0"), await lab.uid("worker-1")] == uids


@case("H2")
async def test_scale_up(lab: Lab) -> None:
    """More workers: the missing ones are made."""
    await lab.submit(tfjob(PS=1, Worker=1, enableDynamicWorker=True))
    await lab.expect(pods="ps-0 worker-0")
    await lab.run("ps-0 worker-0")
    await lab.expect(conditions=RUNNING)
    uid = await lab.uid("worker-0")
    await lab.scale("Worker", 3)
    await lab.stays(pods=names(ps=1, worker=3), services=names(ps=1, worker=3), conditions=RUNNING)
    assert await lab.uid("worker-0") == uid


@cases("dynamic, phase", {"H3a": (True, "Running"), "H3b": (False, "Running"), "H3c": (False, "Failed")})
async def test_scaled_down_pods_end(lab: Lab, dynamic: bool, phase: str) -> None:
    """A pod that ends because there are now fewer replicas is no failure: not while it terminates, nor as it ends."""
    template = replica(2, metadata={"finalizers": ["example.org/wait"]})
    await lab.submit(tfjob(PS=1, Worker=template, enableDynamicWorker=dynamic))
    await lab.expect(pods="ps-0 worker-0 worker-1")
    await lab.run("ps-0 worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    await lab.scale("Worker", 1)
    await lab.expect(services="ps-0 worker-0")
    await lab.expect_terminating("worker-1")
    if phase == "Failed":  # as the kubelet reports a container that ended by the signal
        await lab.fail("worker-1", code=143)
    await lab.stays(conditions=RUNNING, completed=False)
    await lab.let_go("worker-0 worker-1")
    await lab.stays(pods="ps-0 worker-0", conditions=RUNNING, replicas={"PS": {"active": 1}, "Worker": {"active": 1}})


@case("H4a")
async def test_dynamic_worker_fails(lab: Lab) -> None:
    """With dynamic workers a failed worker does not fail the job."""
    await lab.submit(tfjob(PS=1, Worker=2, enableDynamicWorker=True))
    await lab.expect(pods="ps-0 worker-0 worker-1")
    await lab.run("ps-0 worker-0 worker-1")
    await lab.fail("worker-1")
    active = {"PS": {"active": 1}, "Worker": {"active": 1, "failed": 1}}
    await lab.stays(conditions=RUNNING, replicas=active, pods="ps-0 worker-0 worker-1")
    await lab.succeed("worker-0")
    await lab.expect(conditions=SUCCEEDED)


@case("H4b")
async def test_dynamic_ps_fails(lab: Lab) -> None:
    """... but a failed PS does."""
    await lab.submit(tfjob(PS=1, Worker=2, enableDynamicWorker=True))
    await lab.expect(pods="ps-0 worker-0 worker-1")
    await lab.run("ps-0 worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    await lab.fail("ps-0")
    await lab.expect(conditions=FAILED)


@case("H6a")
async def test_gap_below_the_surplus(offline: Lab) -> None:
    """Pods 0, 1, 2 and 4 of three wanted: 4 goes, in the end."""
    await offline.given(tfjob(Worker=3), "worker-0 worker-1 worker-2 worker-4")
    with offline.operated():
        await offline.stays(pods=names(worker=3), services=names(worker=3), replicas={"Worker": {}})


@case("H6b")
async def test_gap_is_not_filled(offline: Lab) -> None:
    """... and 3 is not made in passing."""
    await offline.given(tfjob(Worker=3), "worker-0 worker-1 worker-2 worker-4")
    with offline.operated():
        await offline.stays(pods=names(worker=3), services=names(worker=3))
        await offline.expect_event("Normal", "SuccessfulDeletePod", "Deleted pod: job-worker-4")
    assert ("Normal", "SuccessfulCreatePod", "Created pod: job-worker-3") not in await offline.event_list()


@case("H26")
async def test_type_is_removed(lab: Lab) -> None:
    """The pods of a replica type that is taken out of the spec are left as they are."""
    await lab.submit(tfjob(Evaluator=1, Worker=1))
    await lab.expect(pods="evaluator-0 worker-0")
    await lab.run("evaluator-0 worker-0")
    await lab.expect(conditions=RUNNING, replicas={"Evaluator": {"active": 1}, "Worker": {"active": 1}})
    await lab.change({"tfReplicaSpecs": {"Evaluator": None}})
    await lab.noticed()
    await lab.stays(pods="evaluator-0 worker-0", services="evaluator-0 worker-0", conditions=RUNNING)
    await lab.fail("evaluator-0")
    await lab.stays(conditions=RUNNING, replicas={"Evaluator": {"active": 1}, "Worker": {"active": 1}})


@case("H7")
async def test_managed_by_another(lab: Lab) -> None:
    """A job managed by MultiKueue is not touched, suspended or not: no pods, no status."""
    await lab.submit(tfjob(Worker=1, policy={"managedBy": "kueue.x-k8s.io/multikueue", "suspend": True}))
    await lab.stays(2, pods="", services="", conditions="", started=False)
    await lab.change({"runPolicy": {"suspend": False}})
    await lab.stays(2, pods="", services="", conditions="", started=False)


@case("H8")
async def test_managed_by_name(lab: Lab) -> None:
    """The training operator's own name in managedBy is as no name."""
    await lab.submit(tfjob(Worker=1, policy={"managedBy": "kubeflow.org/training-operator"}))
    await lab.expect(pods="worker-0", services="worker-0", conditions="Created")


@case("H18a")
async def test_deleted_job(lab: Lab) -> None:
    """Nothing more is made for a job that was deleted."""
    await lab.submit(tfjob(Worker=2))
    await lab.expect(pods="worker-0 worker-1")
    await lab.run("worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    await lab.api.delete(lab.path)
    await lab.noticed()
    await lab.delete_pod("worker-1")
    await lab.stays(gone=True, pods="worker-0")


@case("H18b")
async def test_deleting_job(lab: Lab) -> None:
    """... nor for one that is being deleted and waits for a finalizer of someone's."""
    await lab.submit(tfjob(Worker=2, metadata={"finalizers": ["example.org/wait"]}))
    await lab.expect(pods="worker-0 worker-1")
    await lab.run("worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    await lab.api.delete(lab.path)
    await lab.noticed()
    await lab.delete_pod("worker-1")
    await lab.stays(pods="worker-0", conditions=RUNNING)
    await lab.api.merge(lab.path, {"metadata": {"finalizers": None}})


@case("H19")
async def test_operator_restarts(offline: Lab) -> None:
    """An operator killed and started again changes nothing of a running job, and finishes it."""
    await offline.submit(tfjob(Worker=2, PS=1))
    everyone = names(ps=1, worker=2)
    with offline.operated() as operator:
        await offline.expect(pods=everyone, services=everyone)
        await offline.run(everyone)
        await offline.expect(conditions=RUNNING, replicas={"PS": {"active": 1}, "Worker": {"active": 2}})
        before = await _state(offline)
        operator.kill()
    with offline.operated():
        await asyncio.sleep(2)
        assert await _state(offline) == before
        await offline.succeed("worker-1 worker-0")
        await offline.expect(conditions=SUCCEEDED)


@case("H20a")
async def test_take_over(offline: Lab) -> None:
    """Jobs that the Go operator runs go on under this one: no pod is made anew, and each ends as it should."""
    training, waiting, restarted = offline, offline.named("waiting"), offline.named("restarted")
    with offline.operated(by="upstream"):
        await training.submit(tfjob(Chief=1, PS=1, Worker=2))
        await waiting.submit(tfjob("waiting", Worker=1, PS=1))
        await restarted.submit(tfjob("restarted", Worker=replica(1, "ExitCode")))
        everyone = names(chief=1, ps=1, worker=2)
        await training.expect(pods=everyone, services=everyone)
        await waiting.expect(
            pods="ps-0 worker-0",
            services="ps-0 worker-0",
            conditions="Created",
            replicas={"PS": {}, "Worker": {}},
            started=True,
        )
        await restarted.expect(pods="worker-0")
        await training.run(everyone)
        await training.expect(
            conditions=RUNNING, replicas={"Chief": {"active": 1}, "PS": {"active": 1}, "Worker": {"active": 2}}
        )
        await restarted.run("worker-0")
        await restarted.expect(conditions=RUNNING)
    before = [await _state(job) for job in (training, waiting)]
    uid = await restarted.uid("worker-0")
    await restarted.fail("worker-0", code=137)  # while nobody looks
    with offline.operated():
        await restarted.expect_replaced("worker-0", uid)
        assert [await _state(job) for job in (training, waiting)] == before
        await training.succeed("worker-0 worker-1 chief-0")
        await training.expect(conditions=SUCCEEDED)
        await waiting.run("worker-0 ps-0")
        await waiting.expect(conditions=RUNNING)
        await waiting.fail("ps-0")
        await waiting.expect(conditions=FAILED)
        await restarted.run("worker-0")
        await restarted.expect(conditions=RUNNING)


@case("H20b")
async def test_hand_back(offline: Lab) -> None:
    """... and the other way round: a job of this operator goes on under the Go operator."""
    with offline.operated():
        await offline.submit(tfjob(PS=1, Worker=2))
        await offline.expect(pods=(everyone := names(ps=1, worker=2)), services=everyone)
        await offline.run(everyone)
        await offline.expect(conditions=RUNNING, replicas={"PS": {"active": 1}, "Worker": {"active": 2}})
    before = await _state(offline)
    with offline.operated(by="upstream"):
        await asyncio.sleep(2)
        assert await _state(offline) == before
        await offline.succeed("worker-1 worker-0")
        await offline.expect(conditions=SUCCEEDED)


@case("H21")
async def test_long_name(lab: Lab) -> None:
    """A name too long for a service is reported, and holds nobody else up."""
    long = lab.named("a" * 60)
    await long.submit(tfjob(long.name, Worker=11))
    await lab.submit(tfjob(Worker=1))
    await lab.expect(pods="worker-0", services="worker-0")
    for _ in range(int(lab.patience_s / 0.2)):
        events = [event for event in await long.event_list() if event[1] == "FailedCreateService"]
        if events:
            break
        await asyncio.sleep(0.2)
    assert events
    kind, _, message = events[0]
    assert kind == "Warning"
    assert "no more than 63 characters" in message or "must be no more than 63" in message
    await long.stays(services="")


@pytest.mark.thorough  # integration/test_faults.py has as many jobs, with faults
@case("H22")
async def test_many_jobs(offline: Lab) -> None:
    """50 jobs of 10 pods at once: none starves."""
    wanted = [f"job-{i}" for i in range(50)]
    with offline.operated():
        await asyncio.gather(*(offline.submit(tfjob(name, Worker=8, PS=2)) for name in wanted))
        for name in wanted:
            await offline.named(name).expect(pods=names(ps=2, worker=8), services=names(ps=2, worker=8))


async def _state(lab: Lab) -> tuple[object, ...]:
    """The identities of a job's pods and services, and its status with all its times."""
    made = sorted(item["metadata"]["uid"] for item in (*await lab.pod_list(), *await lab.service_list()))
    status = (await lab.job())["status"]
    return made, {**status, "replicaStatuses": counts(status)}

"""G. What is cleaned up after a job: cleanPodPolicy, ttlSecondsAfterFinished; suspend and resume."""

import asyncio
from datetime import datetime

from conformance.lab import Lab, case, cases
from conformance.manifest import Object, names, replica, tfjob

EVERYONE = names(ps=2, worker=4)
RUNNING = "Created Running"
SUCCEEDED = "Created Running=False Succeeded"
FAILED = "Created Running=False Failed"
SUSPENDED = "Created Running=False Suspended"


async def started(lab: Lab, **policy: object) -> None:
    """A running job of four workers and two PS."""
    await lab.submit(tfjob(Worker=4, PS=2, policy=policy))
    await lab.expect(pods=EVERYONE, services=EVERYONE)
    await lab.run(EVERYONE)
    await lab.expect(conditions=RUNNING, replicas={"PS": {"active": 2}, "Worker": {"active": 4}})


@cases(
    "clean, succeeded, left",
    {
        "G1": ("All", "worker-0", ""),
        "G2": ("Running", "worker-0", "worker-0"),
        "G3": ("Running", "ps-0 ps-1 worker-1 worker-2 worker-3 worker-0", EVERYONE),
        "G4": ("None", "worker-0", EVERYONE),
    },
)
async def test_clean_pod_policy(lab: Lab, clean: str, succeeded: str, left: str) -> None:
    """All: every pod goes, with its service; Running: those that run or wait; None: nothing."""
    await started(lab, cleanPodPolicy=clean)
    await lab.succeed(succeeded)
    await lab.stays(
        conditions=SUCCEEDED,
        pods=left,
        services=left,
        replicas={"PS": {"succeeded": 2}, "Worker": {"succeeded": 4}},
    )


@case("G5")
async def test_pending_pods_go(lab: Lab) -> None:
    """Running cleans pods that never ran, too; a failed pod stays to be looked at."""
    await lab.submit(tfjob(Worker=3, PS=1, policy={"cleanPodPolicy": "Running"}))
    await lab.expect(pods=names(ps=1, worker=3))
    await lab.run("worker-0")
    await lab.expect(conditions=RUNNING)
    await lab.fail("worker-1")
    await lab.stays(conditions=FAILED, pods="worker-1", services="worker-1")


@case("G15")
async def test_clean_after_chief(lab: Lab) -> None:
    """Chief and workers have succeeded and are kept; the PS still runs and goes."""
    await lab.submit(tfjob(Chief=1, Worker=2, PS=1, policy={"cleanPodPolicy": "Running"}))
    await lab.expect(pods=(everyone := names(chief=1, ps=1, worker=2)))
    await lab.run(everyone)
    await lab.expect(conditions=RUNNING)
    await lab.succeed("worker-0 worker-1 chief-0")
    await lab.stays(conditions=SUCCEEDED, pods=names(chief=1, worker=2), services=names(chief=1, worker=2))


@cases("outcome", {"G7": "succeed", "G8": "fail"})
async def test_ttl(lab: Lab, outcome: str) -> None:
    """The job is deleted that many seconds after it finished, and not sooner."""
    wait = {"finalizers": ["example.org/wait"]}  # until its times are read
    await lab.submit(tfjob(Worker=1, metadata=wait, policy={"ttlSecondsAfterFinished": 3}))
    await lab.expect(pods="worker-0")
    await (lab.succeed if outcome == "succeed" else lab.fail)("worker-0")
    await lab.expect(completed=True, deleting=True)
    job = await lab.job()
    finished, deleted = job["status"]["completionTime"], job["metadata"]["deletionTimestamp"]
    assert (datetime.fromisoformat(deleted) - datetime.fromisoformat(finished)).total_seconds() >= 3
    await lab.api.merge(lab.path, {"metadata": {"finalizers": None}})
    await lab.expect(gone=True)
    await lab.expect_event("Normal", "SuccessfulDeleteJob", "Deleted job: job")


@case("G9")
async def test_no_ttl(lab: Lab) -> None:
    """Without a TTL a finished job stays."""
    await lab.submit(tfjob(Worker=1))
    await lab.expect(pods="worker-0")
    await lab.succeed("worker-0")
    await lab.stays(3, completed=True, gone=False)


@case("G10")
async def test_ttl_of_nothing(lab: Lab) -> None:
    """A TTL of 0: gone without any more ado."""
    await lab.submit(tfjob(Worker=1, policy={"ttlSecondsAfterFinished": 0}))
    await lab.expect(pods="worker-0")
    await lab.succeed("worker-0")
    await lab.expect(gone=True)


@case("G11")
async def test_ttl_waits_while_suspended(lab: Lab) -> None:
    """A finished job that is then suspended outlives its TTL."""
    await lab.submit(tfjob(Worker=1, policy={"ttlSecondsAfterFinished": 3600}))
    await lab.expect(pods="worker-0")
    await lab.succeed("worker-0")
    await lab.expect(completed=True)
    # In one: a TTL of 3 s from the beginning could be over before this request.
    await lab.change({"runPolicy": {"suspend": True, "ttlSecondsAfterFinished": 3}})
    await lab.stays(5, gone=False, conditions="Created Succeeded")


@case("G12")
async def test_created_suspended(lab: Lab) -> None:
    """Created suspended: nothing is made and the clock does not start."""
    await lab.submit(tfjob(Worker=4, PS=2, policy={"suspend": True}))
    last = ("Suspended", "TFJobSuspended", "TFJob job is suspended.")
    await lab.stays(2, conditions="Created Suspended", last=last, pods="", services="", started=False)


@cases("clean", {"G6": "None", "G13": None})
async def test_suspended(lab: Lab, clean: str | None) -> None:
    """Suspended while it runs: pods and services go, whatever cleanPodPolicy; startTime stays."""
    await started(lab, **({"cleanPodPolicy": clean} if clean else {}))
    start = (await lab.job())["status"]["startTime"]
    await lab.change({"runPolicy": {"suspend": True}})
    last = ("Suspended", "TFJobSuspended", "TFJob job is suspended.")
    none: Object = {"PS": {}, "Worker": {}}
    await lab.stays(conditions=SUSPENDED, last=last, pods="", services="", replicas=none, completed=False)
    status = (await lab.job())["status"]
    assert status["startTime"] == start
    assert status["conditions"][1]["reason"] == "TFJobSuspended"
    await lab.expect_event("Normal", "TFJobSuspended", "TFJob job is suspended.")


@case("G14")
async def test_resumed(lab: Lab) -> None:
    """Resumed: everything is made again, and the clock starts anew."""
    await lab.submit(tfjob(Worker=1, PS=1))
    await lab.expect(pods="ps-0 worker-0")
    await lab.run("ps-0 worker-0")
    await lab.expect(conditions=RUNNING)
    start = (await lab.job())["status"]["startTime"]
    await lab.change({"runPolicy": {"suspend": True}})
    await lab.expect(conditions=SUSPENDED, pods="", services="")
    await asyncio.sleep(1)
    await lab.change({"runPolicy": {"suspend": False}})
    last = ("Suspended", "TFJobResumed", "TFJob job is resumed.")
    await lab.expect(
        conditions="Created Running=False Suspended=False",
        last=last,
        pods="ps-0 worker-0",
        services="ps-0 worker-0",
        started=True,
    )
    assert (await lab.job())["status"]["startTime"] > start
    await lab.run("ps-0 worker-0")
    await lab.expect(conditions="Created Suspended=False Running")
    await lab.expect_event("Normal", "TFJobResumed", "TFJob job is resumed.")


@case("G16")
async def test_success_does_not_outlive_suspension(lab: Lab) -> None:
    """A succeeded pod of a suspended job goes like the others, and is run again after."""
    await started(lab)
    await lab.succeed("worker-3")
    await lab.expect(replicas={"PS": {"active": 2}, "Worker": {"active": 3, "succeeded": 1}})
    await lab.change({"runPolicy": {"suspend": True}})
    await lab.expect(conditions=SUSPENDED, pods="", services="")
    await lab.change({"runPolicy": {"suspend": False}})
    await lab.expect(pods=EVERYONE, services=EVERYONE, replicas={"PS": {}, "Worker": {}})


@case("G17")
async def test_failed_clean_all(lab: Lab) -> None:
    """cleanPodPolicy holds for failed jobs as for succeeded ones; counts are those of the moment of failure."""
    await started(lab, cleanPodPolicy="All")
    await lab.fail("worker-2")
    await lab.stays(
        conditions=FAILED, pods="", services="", replicas={"PS": {"active": 2}, "Worker": {"active": 3, "failed": 1}}
    )


@case("G18")
async def test_quick_resume(lab: Lab) -> None:
    """Resumed while the pods of before still terminate: their end is no failure."""
    wait = {"finalizers": ["example.org/wait"]}
    await lab.submit(tfjob(Worker=replica(1, metadata=wait)))
    await lab.expect(pods="worker-0")
    await lab.run("worker-0")
    await lab.expect(conditions=RUNNING)
    uid = await lab.uid("worker-0")
    await lab.change({"runPolicy": {"suspend": True}})
    await lab.expect(conditions=SUSPENDED)
    await lab.change({"runPolicy": {"suspend": False}})
    await lab.stays(conditions="Created Running=False Suspended=False", completed=False)
    await lab.let_go("worker-0")
    await lab.expect_replaced("worker-0", uid)
    await lab.let_go("worker-0")


@case("G19")
async def test_changed_while_suspended(lab: Lab) -> None:
    """What was changed in the templates while suspended (as Kueue does to place a job) holds after."""
    await lab.submit(tfjob(Worker=1, policy={"suspend": True}))
    await lab.expect(conditions="Created Suspended")
    template = {"metadata": {"labels": {"flavor": "spot"}}, "spec": {"nodeSelector": {"pool": "spot"}}}
    await lab.change({"runPolicy": {"suspend": False}, "tfReplicaSpecs": {"Worker": {"template": template}}})
    await lab.expect(pods="worker-0", conditions="Created Suspended=False")
    pod = await lab.pod("worker-0")
    assert pod["spec"]["nodeSelector"] == {"pool": "spot"}
    assert pod["metadata"]["labels"]["flavor"] == "spot"

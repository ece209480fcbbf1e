"""E. Conditions, their order, reasons and messages; replica counts; when a job has started, succeeded, failed."""

from conformance.lab import Lab, case, cases
from conformance.manifest import Object, container, names, replica, tfjob

RUNNING = "Created Running"
SUCCEEDED = "Created Running=False Succeeded"
FAILED = "Created Running=False Failed"
WAIT = {"finalizers": ["example.org/wait"]}  # a deleted pod goes on terminating


@case("E1")
async def test_running(lab: Lab) -> None:
    """All pods run."""
    await lab.submit(tfjob(Worker=4, PS=2))
    await lab.expect(pods=(everyone := names(ps=2, worker=4)), conditions="Created", replicas={"PS": {}, "Worker": {}})
    await lab.run(everyone)
    await lab.expect(
        conditions=RUNNING,
        last=("Running", "TFJobRunning", f"TFJob {lab.namespace}/job is running."),
        replicas={"PS": {"active": 2}, "Worker": {"active": 4}},
        started=True,
        completed=False,
    )


@case("E2")
async def test_succeeded(lab: Lab) -> None:
    """All pods have succeeded, worker 0 last."""
    await lab.submit(tfjob(Worker=4, PS=2))
    await lab.expect(pods=(everyone := names(ps=2, worker=4)))
    await lab.run(everyone)
    await lab.expect(conditions=RUNNING)
    await lab.succeed("ps-0 ps-1 worker-1 worker-2 worker-3 worker-0")
    await lab.expect(
        conditions=SUCCEEDED,
        last=("Succeeded", "TFJobSucceeded", f"TFJob {lab.namespace}/job successfully completed."),
        replicas={"PS": {"succeeded": 2}, "Worker": {"succeeded": 4}},
        started=True,
        completed=True,
    )


# The pods run; then these succeed, these fail (in this order); and so the conditions are.
@cases(
    "job, succeed, fail, conditions",
    {
        "E3": (tfjob(Chief=1), "chief-0", "", SUCCEEDED),
        "E4": (tfjob(Chief=1, Worker=1), "", "", RUNNING),
        "E5": (tfjob(Chief=1), "", "chief-0", FAILED),
        "E6": (tfjob(Worker=1), "", "worker-0", FAILED),
        "E7": (tfjob(Worker=1), "worker-0", "", SUCCEEDED),
        "E8": (tfjob(Worker=1), "", "", RUNNING),
        "E9": (tfjob(Worker=4), "worker-1 worker-2 worker-3", "", RUNNING),
        "E10": (tfjob(Worker=4), "", "worker-2 worker-3", FAILED),
        "E11": (tfjob(Worker=4), "worker-2 worker-3", "worker-0 worker-1", FAILED),
        "E12": (tfjob(Worker=4), "worker-0", "", SUCCEEDED),
        "E13": (tfjob(Worker=4, successPolicy="AllWorkers"), "worker-0", "", RUNNING),
        "E14": (tfjob(Worker=4, successPolicy="AllWorkers"), names(worker=4), "", SUCCEEDED),
        "E15": (tfjob(Master=1, Worker=2), "master-0", "", SUCCEEDED),
        "E16": (tfjob(Chief=1, Worker=4), names(worker=4), "", RUNNING),
        "E17": (tfjob(Chief=1, Worker=4, successPolicy="AllWorkers"), "chief-0", "", SUCCEEDED),
        "E18": (tfjob(Chief=1, Worker=4), names(worker=4), "chief-0", FAILED),
        "E19": (tfjob(Chief=1, Worker=4), "", names(worker=4), FAILED),
        "E21": (tfjob(Chief=2, Worker=1), "chief-0", "", RUNNING),
        "E27": (tfjob(Chief=1, Evaluator=1), "", "evaluator-0", FAILED),
        "E37": (tfjob(Chief=1, Evaluator=1), "evaluator-0", "", RUNNING),
        "E38": (tfjob(PS=1, Worker=1), "ps-0", "", RUNNING),
        "E39": (tfjob(Worker=replica(1, "Always")), "worker-0", "", SUCCEEDED),
        "E29": (tfjob(PS=2, Worker=2), "", "ps-1", FAILED),
    },
)
async def test_outcome(lab: Lab, job: Object, succeed: str, fail: str, conditions: str) -> None:
    """Chief or master decide alone on success, else worker 0, or all workers; one failed pod of any type fails."""
    everyone = names(**{kind.lower(): spec["replicas"] for kind, spec in job["spec"]["tfReplicaSpecs"].items()})
    await lab.submit(job)
    await lab.expect(pods=everyone)
    await lab.run(everyone)
    await lab.expect(conditions=RUNNING)
    await lab.succeed(succeed)
    await lab.fail(fail)
    await lab.stays(conditions=conditions, completed=conditions != RUNNING)


@case("E20")
async def test_success_and_failure_at_once(offline: Lab) -> None:
    """The chief has succeeded and a worker failed before the operator looks: both are True, Failed is last."""
    await offline.submit(tfjob(Chief=1, Worker=1))
    with offline.operated():
        await offline.expect(pods="chief-0 worker-0")
        await offline.run("chief-0 worker-0")
        await offline.expect(conditions=RUNNING, replicas={"Chief": {"active": 1}, "Worker": {"active": 1}})
    await offline.succeed("chief-0")
    await offline.fail("worker-0")
    with offline.operated():
        await offline.stays(conditions="Created Running=False Succeeded Failed", completed=True)


@cases(
    "phase, codes",
    {
        "E22a": ("Succeeded", {"tensorflow": 1}),
        "E22b": ("Succeeded", {}),
        "E22c": ("Succeeded", {"sidecar": 0}),
        "E22d": ("Running", {"tensorflow": 0}),
    },
)
async def test_worker_0_is_not_done(lab: Lab, phase: str, codes: dict[str, int]) -> None:
    """Worker 0 has completed the job only if its pod has Succeeded and its container `tensorflow` exited with 0."""
    await lab.submit(tfjob(Worker=2))
    await lab.expect(pods="worker-0 worker-1")
    await lab.run("worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    await lab.exit("worker-0", phase, **codes)
    await lab.stays(conditions=RUNNING, completed=False)


@cases("restart", {"E23a": None, "E23b": "OnFailure", "E23c": "ExitCode"})
async def test_terminating_is_failed(lab: Lab, restart: str | None) -> None:
    """A running pod that someone else deletes gracefully counts as failed, whatever its restart policy."""
    await lab.submit(tfjob(Worker=replica(2, restart, metadata=WAIT)))
    await lab.expect(pods="worker-0 worker-1")
    await lab.run("worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    await lab.delete_pod("worker-1")
    message = f"TFJob {lab.namespace}/job has failed because 1 Worker replica(s) failed."
    await lab.expect(
        conditions=FAILED,
        last=("Failed", "TFJobFailed", message),
        replicas={"Worker": {"active": 1, "failed": 1}},
        completed=True,
    )
    await lab.let_go("worker-0 worker-1")


@cases("dynamic, phase", {"E23d": (True, "Running"), "E23e": (False, "Pending")})
async def test_terminating_is_not_failed(lab: Lab, dynamic: bool, phase: str) -> None:
    """... unless workers are dynamic, or it never ran."""
    await lab.submit(tfjob(Worker=replica(2, metadata=WAIT), PS=1, enableDynamicWorker=dynamic))
    await lab.expect(pods="ps-0 worker-0 worker-1")
    await lab.run("ps-0 worker-0", "worker-1" if phase == "Running" else "")
    await lab.expect(conditions=RUNNING)
    uid = await lab.uid("worker-1")
    await lab.delete_pod("worker-1")
    await lab.stays(conditions=RUNNING, completed=False)
    await lab.let_go("worker-1")
    await lab.expect_replaced("worker-1", uid)
    await lab.let_go("worker-0 worker-1")


@case("E24")
async def test_order(lab: Lab) -> None:
    """Running and Restarting replace each other, Failed makes Running False; the newest condition is the last."""
    await lab.submit(tfjob(Worker=replica(1, "ExitCode")))
    await lab.expect(pods="worker-0", conditions="Created", last=("Created", "TFJobCreated", "TFJob job is created."))
    await lab.run("worker-0")
    await lab.expect(conditions=RUNNING)
    uid = await lab.uid("worker-0")
    await lab.fail("worker-0", code=130)
    message = "job job is restarting because Worker replica(s) failed."
    await lab.expect(conditions="Created Restarting", last=("Restarting", "TFJobRestarting", message))
    await lab.expect_replaced("worker-0", uid)
    await lab.run("worker-0")
    await lab.expect(conditions=RUNNING)
    await lab.fail("worker-0", code=1)
    message = 'job "job" is failing because "Worker" replica(s) failed.'
    await lab.stays(conditions=FAILED, last=("Failed", "TFJobFailed", message))


@case("E25")
async def test_times(lab: Lab) -> None:
    """A condition made False in place keeps its times; all conditions have both times, in RFC 3339."""
    await lab.submit(tfjob(Worker=1))
    await lab.expect(pods="worker-0")
    await lab.run("worker-0")
    await lab.expect(conditions=RUNNING)
    running = (await lab.job())["status"]["conditions"][-1]
    await lab.succeed("worker-0")
    await lab.expect(conditions=SUCCEEDED, started=True, completed=True)
    status = (await lab.job())["status"]
    assert status["conditions"][1] == running | {"status": "False"}
    times = [c[key] for c in status["conditions"] for key in ("lastUpdateTime", "lastTransitionTime")]
    for time in (*times, status["startTime"], status["completionTime"]):
        assert len(time) == len("2026-01-01T00:00:00Z")
        assert time.endswith("Z")


@case("E26")
async def test_failed_is_final(lab: Lab) -> None:
    """After Failed no condition changes, whatever becomes of the pods."""
    await lab.submit(tfjob(Chief=1, Worker=2))
    await lab.expect(pods="chief-0 worker-0 worker-1")
    await lab.run("chief-0 worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    await lab.fail("worker-0")
    await lab.expect(conditions=FAILED, completed=True)
    before = (await lab.job())["status"]["conditions"]
    await lab.succeed("chief-0 worker-1")
    await lab.stays(conditions=FAILED)
    assert (await lab.job())["status"]["conditions"] == before


@cases("job, everyone", {"E28a": (tfjob(PS=2), "ps-0 ps-1"), "E28b": (tfjob(Evaluator=2), "evaluator-0 evaluator-1")})
async def test_nobody_decides(lab: Lab, job: Object, everyone: str) -> None:
    """A job of PS, or of evaluators, alone never runs or succeeds."""
    await lab.submit(job)
    await lab.expect(pods=everyone)
    await lab.run(everyone)
    kind = everyone.split("-", maxsplit=1)[0]
    await lab.expect(replicas={{"ps": "PS", "evaluator": "Evaluator"}[kind]: {"active": 2}})
    await lab.succeed(everyone)
    await lab.stays(conditions="Created", started=True, completed=False)


@case("E30")
async def test_never_seen_running(lab: Lab) -> None:
    """A job may be done before anyone saw it run."""
    await lab.submit(tfjob(Worker=1))
    await lab.expect(pods="worker-0")
    await lab.succeed("worker-0")
    await lab.stays(conditions="Created Succeeded", completed=True, replicas={"Worker": {"succeeded": 1}})


@case("E31")
async def test_finished_is_finished(lab: Lab) -> None:
    """Pods of a finished job that vanish are not made again."""
    await lab.submit(tfjob(Worker=2, PS=1))
    await lab.expect(pods="ps-0 worker-0 worker-1")
    await lab.run("ps-0 worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    await lab.succeed("worker-1 worker-0")
    await lab.expect(conditions=SUCCEEDED)
    await lab.delete_pod("worker-1")
    await lab.delete_pod("ps-0")
    await lab.stays(pods="worker-0", conditions=SUCCEEDED)


@case("E32")
async def test_replicas_of_type(lab: Lab) -> None:
    """The message of a failure counts the pods of the type that failed."""
    await lab.submit(tfjob(PS=2, Worker=2))
    await lab.expect(pods=(everyone := names(ps=2, worker=2)))
    await lab.run(everyone)
    await lab.expect(conditions=RUNNING)
    await lab.fail("ps-1")
    message = f"TFJob {lab.namespace}/job has failed because 1 PS replica(s) failed."
    await lab.expect(conditions=FAILED, last=("Failed", "TFJobFailed", message))


@case("E33")
async def test_golden(lab: Lab) -> None:
    """A whole life: chief, PS and two workers; the chief ends it, and those still running count as succeeded."""
    mnist = lab.named("mnist")
    await mnist.submit(tfjob("mnist", Chief=1, PS=1, Worker=2))
    await mnist.expect(pods=(everyone := names(chief=1, ps=1, worker=2)), services=everyone, conditions="Created")
    at = f"{lab.namespace}.svc:2222"
    assert await mnist.tf_config("worker-1") == (
        f'{{"cluster":{{"chief":["mnist-chief-0.{at}"],"ps":["mnist-ps-0.{at}"],'
        f'"worker":["mnist-worker-0.{at}","mnist-worker-1.{at}"]}},'
        '"task":{"type":"worker","index":1},"environment":"cloud"}'
    )
    await mnist.run(everyone)
    active = {"Chief": {"active": 1}, "PS": {"active": 1}, "Worker": {"active": 2}}
    await mnist.expect(conditions=RUNNING, replicas=active)
    await mnist.succeed("chief-0")
    succeeded = {"Chief": {"succeeded": 1}, "PS": {"succeeded": 1}, "Worker": {"succeeded": 2}}
    await mnist.stays(conditions=SUCCEEDED, replicas=succeeded, pods=everyone, services=everyone, completed=True)


@case("E34")
async def test_partly_running(lab: Lab) -> None:
    """One running worker is enough for Running; the others wait."""
    await lab.submit(tfjob(Worker=3, PS=1))
    await lab.expect(pods=names(ps=1, worker=3))
    await lab.run("ps-0")
    await lab.expect(replicas={"PS": {"active": 1}, "Worker": {}}, conditions="Created")
    await lab.run("worker-2")
    await lab.stays(replicas={"PS": {"active": 1}, "Worker": {"active": 1}}, conditions=RUNNING)


@case("E35")
async def test_no_workers_wanted(lab: Lab) -> None:
    """No workers to wait for: succeeded at once."""
    await lab.submit(tfjob(Worker=0, PS=1))
    await lab.expect(conditions="Created Succeeded", completed=True)


@case("E36")
async def test_vanished_success_is_rerun(lab: Lab) -> None:
    """A succeeded pod of an unfinished job that vanishes is made, and run, again."""
    await lab.submit(tfjob(Worker=2, successPolicy="AllWorkers"))
    await lab.expect(pods="worker-0 worker-1")
    await lab.run("worker-0 worker-1")
    await lab.succeed("worker-1")
    await lab.expect(replicas={"Worker": {"active": 1, "succeeded": 1}})
    uid = await lab.uid("worker-1")
    await lab.delete_pod("worker-1")
    await lab.expect_replaced("worker-1", uid)
    await lab.expect(replicas={"Worker": {"active": 1}}, conditions=RUNNING)


@case("E40")
async def test_a_sidecar_that_goes_on(lab: Lab) -> None:
    """With `done-when: tensorflow-exits` the end of the program is that of its pod, whatever a sidecar does."""
    annotations = {"elastic.kubeflow.org/done-when": "tensorflow-exits"}
    containers = [container(), container("log-shipper")]
    await lab.submit(tfjob(Worker=replica(2, containers=containers), metadata={"annotations": annotations}))
    await lab.expect(pods="worker-0 worker-1")
    await lab.run("worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    await lab.exit("worker-0", "Running", tensorflow=0)
    await lab.expect(conditions=SUCCEEDED)

"""F. Restart policies, exit codes, backoffLimit, activeDeadlineSeconds."""

import asyncio
import math
import time
from datetime import datetime

from conformance.lab import Lab, case, cases
from conformance.manifest import container, names, replica, tfjob

RUNNING = "Created Running"
FAILED = "Created Running=False Failed"
BACKOFF = ("Failed", "TFJobFailed", "Job job has failed because it has reached the specified backoff limit")
DEADLINE = ("Failed", "TFJobFailed", "Job job has failed because it was active longer than specified deadline")


async def started(lab: Lab, restart: str, **policy: object) -> None:
    """A running job of one worker."""
    await lab.submit(tfjob(Worker=replica(1, restart, containers=[container(), container("sidecar")]), policy=policy))
    await lab.expect(pods="worker-0", services="worker-0")
    await lab.run("worker-0")
    await lab.expect(conditions=RUNNING)


# The codes of the containers of a pod that ends Failed, after which it is run again.
@cases(
    "restart, codes",
    {
        "F1": ("ExitCode", {"tensorflow": 130}),
        "F3": ("ExitCode", {"tensorflow": 128}),
        "F6a": ("OnFailure", {}),
        "F6b": ("Always", {}),
        "F6c": ("OnFailure", {"tensorflow": 1}),
        "F7": ("ExitCode", {}),
        "F16a": ("ExitCode", {"tensorflow": 137, "sidecar": 1}),
        "F16b": ("ExitCode", {"sidecar": 1}),
    },
)
async def test_run_again(lab: Lab, restart: str, codes: dict[str, int]) -> None:
    """OnFailure and Always run a Failed pod again; ExitCode if `tensorflow` exited with 128 or more or left no code."""
    await started(lab, restart)
    uid = await lab.uid("worker-0")
    await lab.exit("worker-0", "Failed", **codes)
    await lab.expect_replaced("worker-0", uid)
    message = "job job is restarting because Worker replica(s) failed."
    await lab.stays(
        conditions="Created Restarting", last=("Restarting", "TFJobRestarting", message), services="worker-0"
    )
    await lab.expect_event("Warning", "TFJobRestarting", message)


@cases(
    "codes",
    {
        "F2": {"tensorflow": 1},
        "F3b": {"tensorflow": 127},
        "F16c": {"tensorflow": 1, "sidecar": 137},
        "F16d": {"tensorflow": 0, "sidecar": 137},
    },
)
async def test_permanent(lab: Lab, codes: dict[str, int]) -> None:
    """With ExitCode a code below 128 of `tensorflow` fails the job; the pod is kept."""
    await started(lab, "ExitCode")
    uid = await lab.uid("worker-0")
    await lab.exit("worker-0", "Failed", **codes)
    message = 'job "job" is failing because "Worker" replica(s) failed.'
    await lab.stays(conditions=FAILED, last=("Failed", "TFJobFailed", message), pods="worker-0", completed=True)
    assert await lab.uid("worker-0") == uid
    await lab.expect_event("Warning", "TFJobFailed", message)


@cases(
    "restart, of_the_pod",
    {
        "F4a": ("ExitCode", "Never"),
        "F4b": ("Never", "Never"),
        "F4c": ("OnFailure", "OnFailure"),
        "F4d": ("Always", "Always"),
    },
)
async def test_policy_of_the_pod(lab: Lab, restart: str, of_the_pod: str) -> None:
    """ExitCode is Never to the kubelet; the others are as they are."""
    await lab.submit(tfjob(Worker=replica(1, restart)))
    await lab.expect(pods="worker-0")
    assert (await lab.pod("worker-0"))["spec"]["restartPolicy"] == of_the_pod


@case("F5")
async def test_never(lab: Lab) -> None:
    """Never: the job fails and the pod is not run again."""
    await started(lab, "Never")
    uid = await lab.uid("worker-0")
    await lab.fail("worker-0")
    message = f"TFJob {lab.namespace}/job has failed because 1 Worker replica(s) failed."
    await lab.stays(conditions=FAILED, last=("Failed", "TFJobFailed", message), pods="worker-0")
    assert await lab.uid("worker-0") == uid


@case("F8")
async def test_backoff_limit(lab: Lab) -> None:
    """The restarts of all running pods count together; pods and services go as cleanPodPolicy says."""
    policy = {"backoffLimit": 4, "cleanPodPolicy": "All"}
    await lab.submit(tfjob(Worker=replica(4, "OnFailure"), PS=2, policy=policy))
    await lab.expect(pods=names(ps=2, worker=4), services=names(ps=2, worker=4))
    await lab.run("worker-0 worker-1 worker-2", restarts=1)
    await lab.stays(conditions=RUNNING, pods=names(ps=2, worker=4))
    await lab.run("worker-3", restarts=1)
    await lab.expect(conditions=FAILED, last=BACKOFF, pods="", services="", completed=True)


@cases("limit, restarts", {"F9a": (0, 0), "F9c": (3, 2), "F15": (1, 5)})
async def test_within_backoff_limit(lab: Lab, limit: int, restarts: int) -> None:
    """Fewer restarts than the limit (none for 0) are borne; with restartPolicy Never they do not count."""
    await started(lab, "Never" if restarts > limit else "OnFailure", backoffLimit=limit)
    await lab.run("worker-0", restarts=restarts)
    await lab.stays(conditions=RUNNING, pods="worker-0")


@cases("limit, restarts", {"F9b": (3, 3), "F9d": (0, 1)})
async def test_past_backoff_limit(lab: Lab, limit: int, restarts: int) -> None:
    """As many restarts as the limit, or any for 0, are too many."""
    await started(lab, "OnFailure", backoffLimit=limit, cleanPodPolicy="All")
    await lab.run("worker-0", restarts=restarts)
    await lab.expect(conditions=FAILED, last=BACKOFF, pods="", completed=True)


@case("F21")
async def test_init_containers_count(lab: Lab) -> None:
    """Restarts of init containers count too."""
    await started(lab, "OnFailure", backoffLimit=2, cleanPodPolicy="All")
    init = {"name": "fetch", "image": "", "imageID": "", "ready": True, "restartCount": 1, "state": {}}
    state = ({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, 1)
    await lab.set_status("worker-0", "Running", {"initContainerStatuses": [init]}, tensorflow=state)
    await lab.expect(conditions=FAILED, last=BACKOFF, pods="", completed=True)


@case("F19")
async def test_no_backoff(lab: Lab) -> None:
    """With limit 0 the first failed pod is one too many."""
    await started(lab, "ExitCode", backoffLimit=0, cleanPodPolicy="All")
    await lab.fail("worker-0", code=137)
    await lab.stays(conditions=FAILED, last=BACKOFF, pods="")


@case("F10")
async def test_backoff_keeps_pods(lab: Lab) -> None:
    """Past the limit too, cleanPodPolicy None keeps the pods."""
    await started(lab, "OnFailure", backoffLimit=1, cleanPodPolicy="None")
    uid = await lab.uid("worker-0")
    await lab.run("worker-0", restarts=1)
    await lab.stays(conditions=FAILED, last=BACKOFF, pods="worker-0", services="worker-0")
    assert await lab.uid("worker-0") == uid


@case("F18")
async def test_exit_code_has_no_limit(lab: Lab) -> None:
    """Pods run again by the operator do not count towards backoffLimit."""
    await started(lab, "ExitCode", backoffLimit=1)
    for _ in range(3):
        uid = await lab.uid("worker-0")
        await lab.fail("worker-0", code=137)
        await lab.expect_replaced("worker-0", uid)
        await lab.run("worker-0")
        await lab.expect(conditions=RUNNING)


@case("F11a")
async def test_deadline(lab: Lab) -> None:
    """Active longer than activeDeadlineSeconds: failed, cleaned as cleanPodPolicy says."""
    policy = {"activeDeadlineSeconds": 2, "cleanPodPolicy": "All"}
    await lab.submit(tfjob(Worker=4, PS=2, policy=policy))
    await lab.expect(started=True)
    for made in names(ps=2, worker=4).split():  # by their events, as the pods themselves may be gone by now
        await lab.expect_event("Normal", "SuccessfulCreatePod", f"Created pod: job-{made}")
    await _outlast_deadline(lab)
    await lab.expect(last=DEADLINE, pods="", services="", completed=True)


@case("F11b")
async def test_no_deadline(lab: Lab) -> None:
    """Without a deadline the pods stay."""
    await lab.submit(tfjob(Worker=4, PS=2, policy={"cleanPodPolicy": "All"}))
    await lab.expect(pods=names(ps=2, worker=4), started=True)
    await _outlast_deadline(lab)
    await lab.stays(conditions="Created", pods=names(ps=2, worker=4), services=names(ps=2, worker=4))


@case("F12")
async def test_deadline_is_a_timer(lab: Lab) -> None:
    """The deadline ends a job to which nothing else happens, and not before its time."""
    await started(lab, "Never", cleanPodPolicy="All")
    deadline_s = await _set_deadline(lab, 5)
    await lab.expect(conditions=FAILED, last=DEADLINE, pods="", completed=True)
    status = (await lab.job())["status"]
    lived = datetime.fromisoformat(status["completionTime"]) - datetime.fromisoformat(status["startTime"])
    assert lived.total_seconds() >= deadline_s


@case("F13")
async def test_deadline_of_nothing(lab: Lab) -> None:
    """A deadline of 0 is past at once."""
    await lab.submit(tfjob(Worker=2, policy={"activeDeadlineSeconds": 0, "cleanPodPolicy": "All"}))
    await lab.stays(conditions="Created Failed", last=DEADLINE, pods="")


@case("F14")
async def test_restarting_ends(lab: Lab) -> None:
    """Once the replacement runs the job is Running again, and no longer Restarting."""
    await started(lab, "OnFailure")
    uid = await lab.uid("worker-0")
    await lab.exit("worker-0", "Failed")
    await lab.expect_replaced("worker-0", uid)
    await lab.expect(conditions="Created Restarting")
    await lab.run("worker-0")
    await lab.stays(conditions=RUNNING, replicas={"Worker": {"active": 1}})


@case("F17")
async def test_deadline_keeps_pods(lab: Lab) -> None:
    """Past the deadline too, cleanPodPolicy None keeps the pods."""
    await started(lab, "Never")
    uid = await lab.uid("worker-0")
    await _set_deadline(lab, 2)
    await _outlast_deadline(lab)
    await lab.stays(conditions=FAILED, last=DEADLINE, pods="worker-0", services="worker-0")
    assert await lab.uid("worker-0") == uid


@case("F20")
async def test_others_go_on(lab: Lab) -> None:
    """A pod that is run again leaves the others alone."""
    await lab.submit(tfjob(Worker=replica(2, "ExitCode"), PS=replica(1, "Never")))
    await lab.expect(pods="ps-0 worker-0 worker-1")
    await lab.run("ps-0 worker-0 worker-1")
    await lab.expect(conditions=RUNNING)
    before = {pod: await lab.uid(pod) for pod in ("ps-0", "worker-0", "worker-1")}
    await lab.fail("worker-1", code=143)
    await lab.expect_replaced("worker-1", before["worker-1"])
    await lab.run("worker-1")
    await lab.stays(conditions=RUNNING, replicas={"PS": {"active": 1}, "Worker": {"active": 2}})
    assert await lab.uid("ps-0") == before["ps-0"]
    assert await lab.uid("worker-0") == before["worker-0"]


async def _set_deadline(lab: Lab, seconds: int) -> int:
    """Give a job that runs a deadline, at least so many seconds from now: one that it had from the beginning could be
    over before it was seen to run. Returns activeDeadlineSeconds."""
    start = datetime.fromisoformat((await lab.job())["status"]["startTime"])
    deadline_s = math.ceil(time.time() - start.timestamp()) + seconds
    await lab.change({"runPolicy": {"activeDeadlineSeconds": deadline_s}})
    return deadline_s


async def _outlast_deadline(lab: Lab) -> None:
    """Be sure that 2 s have passed since startTime or since the deadline was set (whole seconds), then give an operator
    cause to look."""
    await asyncio.sleep(4)
    await lab.nudge()

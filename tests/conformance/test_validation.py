"""B. What is refused at admission, with the path of the field and upstream's words; what is not."""

from collections.abc import Awaitable

from conformance.lab import Lab, case, cases
from conformance.manifest import Object, container, replica, tfjob
from harness.api import ApiError

TEMPLATE = "spec.tfReplicaSpecs[Worker].template.spec.containers"


def no_replica_specs() -> Object:
    job = tfjob()
    job["spec"] = {"notTheActualField": {"Worker": replica()}}
    return job


@cases(
    "job, words",
    {
        "B2": (tfjob("00test", Worker=1), ["metadata.name", "[a-z]([-a-z0-9]*[a-z0-9])?"]),
        "B3": (
            tfjob(Worker={"template": {"spec": {"containers": []}}}),
            [f"{TEMPLATE}: ", "must have at least one container with name tensorflow"],
        ),
        "B4": (tfjob(Worker=replica(containers=[container(image="")])), [f"{TEMPLATE}[0].image: ", "must be required"]),
        "B5": (
            tfjob(Worker=replica(containers=[container("main")])),
            [f"{TEMPLATE}: ", "must have at least one container with name tensorflow"],
        ),
        "B6": (tfjob(Chief=1, Master=1), ["spec.tfReplicaSpecs: ", "must not have more than 1 Chief or Master role"]),
        "B7": (
            tfjob(Worker=1, policy={"managedBy": "other-job-controller"}),
            ["spec.runPolicy.managedBy: ", '"kubeflow.org/training-operator"', '"kueue.x-k8s.io/multikueue"'],
        ),
        "B9": (tfjob(successPolicy=""), ["spec.tfReplicaSpecs: Required value"]),
        "B11": (
            tfjob(Worker=replica(containers=[container(), container("sidecar", image="")])),
            [f"{TEMPLATE}[1].image: ", "must be required"],
        ),
        "B14": (no_replica_specs(), ["spec.tfReplicaSpecs: Required value"]),
        "B15b": (
            tfjob(Worker=replica(-1)),
            [".spec.tfReplicaSpecs.Worker.replicas: ", "should be a non-negative integer"],
        ),
    },
)
async def test_refused(lab: Lab, job: Object, words: list[str]) -> None:
    """The job is refused; the message names the field and says what is wrong in upstream's words."""
    await _refused(_tried(lab, job), words)  # upstream's operator could panic at a job that it admits


@cases(
    "job",
    {
        "B1": tfjob(Worker=1, policy={"managedBy": "kubeflow.org/training-operator"}),
        "B13": tfjob(Chief=2, Worker=1),
        "B15": tfjob(Worker=1, PS=replica(-1)),
        "B16": tfjob(Worker=1, Trainer=1),
        "B17": {**tfjob(Worker=1), "metadata": {"generateName": "train-"}},
    },
)
async def test_accepted(lab: Lab, job: Object) -> None:
    """Nobody looks at the number of chiefs, the sign of replicas or the names of other replica types."""
    await _tried(lab, job)


@case("B8")
async def test_manager_is_immutable(lab: Lab) -> None:
    """managedBy cannot be changed, or set later."""
    await lab.submit(tfjob(Worker=1))
    await _refused(
        lab.change({"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}),
        ["spec.runPolicy.managedBy: ", "field is immutable"],
    )


@case("B10")
async def test_queue_is_immutable(lab: Lab) -> None:
    """The queue of a gang cannot be changed."""
    await lab.submit(tfjob(Worker=1, policy={"schedulingPolicy": {"queue": "a"}}))
    await _refused(
        lab.change({"runPolicy": {"schedulingPolicy": {"queue": "b"}}}),
        ["spec.runPolicy.schedulingPolicy.queue is immutable"],
    )


@case("B12")
async def test_replicas_may_change(lab: Lab) -> None:
    """The number of replicas of a live job may change."""
    await lab.submit(tfjob(Worker=2, PS=1))
    await lab.expect(pods="ps-0 worker-0 worker-1")
    await lab.scale("Worker", 4)
    await lab.expect(pods="ps-0 worker-0 worker-1 worker-2 worker-3")


async def _tried(lab: Lab, job: Object) -> Object:
    """Whether the API server would take this job: it is not stored."""
    return await lab.api.request("POST", lab.path.rsplit("/", 1)[0], job, params={"dryRun": "All"})


async def _refused(request: Awaitable[object], words: list[str]) -> None:
    refusal = await _refusal(request)
    assert refusal, "accepted"
    assert refusal.status in {403, 422}  # a webhook's, a schema's
    assert [word for word in words if word not in str(refusal)] == [], str(refusal)


async def _refusal(request: Awaitable[object]) -> ApiError | None:
    try:
        await request
    except ApiError as refusal:
        return refusal
    return None

"""I. The resource itself: names, subresources, columns, what is pruned."""

import pytest

from conformance.lab import Lab, case
from conformance.manifest import replica, tfjob
from harness import operators
from harness.api import ApiError


@case("I1")
async def test_names(lab: Lab) -> None:
    """tfjobs, tfjob, TFJob; no short name and no category; one version, of which status is a subresource."""
    found = {r["name"]: r for r in (await lab.api.get("/apis/kubeflow.org/v1"))["resources"]}
    resource = found["tfjobs"]
    assert (resource["singularName"], resource["kind"], resource["namespaced"]) == ("tfjob", "TFJob", True)
    assert "shortNames" not in resource
    assert "categories" not in resource
    assert "tfjobs/status" in found


@case("I1b")
async def test_scale(lab: Lab) -> None:
    """The workers have a subresource scale."""
    assert "tfjobs/scale" in {r["name"] for r in (await lab.api.get("/apis/kubeflow.org/v1"))["resources"]}


@case("I2")
async def test_columns(lab: Lab) -> None:
    """kubectl shows the last condition as State, then Age."""
    await lab.submit(tfjob(Worker=1))
    await lab.expect(pods="worker-0", conditions="Created")
    await lab.run("worker-0")
    await lab.expect(conditions="Created Running")
    table = operators.kubectl(lab.kubeconfig, "get", "tfjobs", f"--namespace={lab.namespace}").splitlines()
    assert table[0].split()[:3] == ["NAME", "STATE", "AGE"]
    assert table[1].split()[:2] == ["job", "Running"]


@case("I3")
async def test_pruned(lab: Lab) -> None:
    """Unknown fields are dropped, also in the template's metadata, where five are known."""
    metadata = {
        "name": "ignored",
        "namespace": "ignored",
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "finalizers": ["example.org/wait"],
        "generateName": "dropped",
    }
    job = tfjob(Worker=replica(1, metadata=metadata), policy={"suspend": True}, elastic=True)
    made = await lab.submit(job)
    assert "elastic" not in made["spec"]
    template = made["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    del metadata["generateName"]
    assert template["metadata"] == metadata


@case("I4")
async def test_default_of_the_schema(lab: Lab) -> None:
    """The only default that the API server writes: a run policy is not suspended."""
    made = await lab.submit(tfjob(Worker=1, policy={"backoffLimit": 2}))
    assert made["spec"]["runPolicy"] == {"backoffLimit": 2, "suspend": False}
    other = await lab.submit(tfjob("other", Worker=1))
    assert "runPolicy" not in other["spec"]


@case("I5")
async def test_wrong_types(lab: Lab) -> None:
    """A value of the wrong type is refused with its path."""
    with pytest.raises(ApiError) as refusal:
        await lab.submit(tfjob(Worker={**replica(), "replicas": "two"}))
    assert refusal.value.status == 422
    assert "spec.tfReplicaSpecs.Worker.replicas: Invalid value" in str(refusal.value)


@case("I6")
async def test_status_apart(lab: Lab) -> None:
    """Users write the spec, the operator the status: neither write changes the other."""
    job = tfjob(Worker=1, policy={"suspend": True})
    made = await lab.submit({**job, "status": {"startTime": "2026-01-01T00:00:00Z"}})
    assert "startTime" not in (made.get("status") or {})

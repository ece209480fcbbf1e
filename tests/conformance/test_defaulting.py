"""A. Defaults, seen in the pods and services made; the job itself is not changed."""

import json

from conformance.lab import Lab, case
from conformance.manifest import container, names, replica, tfjob


@case("A1")
async def test_one_replica(lab: Lab) -> None:
    """No `replicas` is one."""
    await lab.submit(tfjob(Worker=replica(None)))
    await lab.stays(pods="worker-0", services="worker-0")


@case("A2")
async def test_never_restarted(lab: Lab) -> None:
    """No `restartPolicy` is Never."""
    await lab.submit(tfjob(Worker=1))
    await lab.expect(pods="worker-0")
    assert (await lab.pod("worker-0"))["spec"]["restartPolicy"] == "Never"


@case("A3")
async def test_port_is_added(lab: Lab) -> None:
    """A container `tensorflow` without the port tfjob-port gets it, after its own ports; the service has them all."""
    await lab.submit(tfjob(Worker=replica(containers=[container(ports=[{"name": "grpc", "containerPort": 9000}])])))
    await lab.expect(pods="worker-0", services="worker-0")
    [made] = (await lab.pod("worker-0"))["spec"]["containers"]
    assert [(p["name"], p["containerPort"]) for p in made["ports"]] == [("grpc", 9000), ("tfjob-port", 2222)]
    ports = (await lab.service("worker-0"))["spec"]["ports"]
    assert sorted((p["name"], p["port"]) for p in ports) == [("grpc", 9000), ("tfjob-port", 2222)]


@case("A6")
async def test_pods_are_kept(lab: Lab) -> None:
    """No `cleanPodPolicy` is None: what runs when the job succeeds goes on."""
    await lab.submit(tfjob(Worker=1, PS=1))
    await lab.expect(pods="ps-0 worker-0")
    await lab.run("ps-0 worker-0")
    await lab.expect(conditions="Created Running")
    await lab.succeed("worker-0")
    await lab.stays(conditions="Created Running=False Succeeded", pods="ps-0 worker-0", services="ps-0 worker-0")


@case("A7")
async def test_port_of_ones_own(lab: Lab) -> None:
    """A port of that name is kept, and is the one in TF_CONFIG, for its replica type alone."""
    own = container(ports=[{"name": "tfjob-port", "containerPort": 5000}])
    await lab.submit(tfjob(Worker=replica(1, containers=[own]), PS=1))
    await lab.expect(pods="ps-0 worker-0")
    [made] = (await lab.pod("worker-0"))["spec"]["containers"]
    assert [(p["name"], p["containerPort"]) for p in made["ports"]] == [("tfjob-port", 5000)]
    assert json.loads(await lab.tf_config("worker-0") or "")["cluster"] == {
        "ps": [f"job-ps-0.{lab.namespace}.svc:2222"],
        "worker": [f"job-worker-0.{lab.namespace}.svc:5000"],
    }


@case("A8")
async def test_spec_is_not_written(lab: Lab) -> None:
    """Defaults are not written into the job."""
    made = await lab.submit(tfjob(Worker=replica(None), PS=replica(None)))
    await lab.expect(pods="ps-0 worker-0")
    await lab.run("ps-0 worker-0")
    await lab.expect(conditions="Created Running")
    assert (await lab.job())["spec"] == made["spec"]


@case("A9")
async def test_types_in_any_case(lab: Lab) -> None:
    """Replica types are known in any case; status and names are as if written Worker, PS."""
    job = tfjob()
    job["spec"]["tfReplicaSpecs"] = {"worker": replica(2), "ps": replica(1)}
    await lab.submit(job)
    await lab.expect(pods=names(ps=1, worker=2))
    await lab.run("ps-0 worker-0 worker-1")
    await lab.expect(conditions="Created Running", replicas={"PS": {"active": 1}, "Worker": {"active": 2}})

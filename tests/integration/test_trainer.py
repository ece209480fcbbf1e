"""TrainJobs of a real Kubeflow Trainer v2 and JobSet that run as TFJobs: its SDK, suspension, refusals, progress.

`make test-trainer`: the first build of both takes longer than `make test` should.
"""

import asyncio
import contextlib
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_tfjob.exporter.trainer import CA_CERT, TOKEN, URL, TrainerReporter
from harness import audit, kwok, trainer
from harness.api import NODES, Api, Object, events, pods, tfjobs
from harness.controlplane import ControlPlane
from harness.operators import install, kubectl, service_account
from harness.progress import run

from .ledger import conditions
from .running import OPERATOR, running
from .test_loans import component

ROOT = Path(__file__).parents[2]
RUNTIMES = f"{trainer.API}/clustertrainingruntimes"
TRAINJOBS = f"{trainer.API}/namespaces/default/trainjobs"
CLIENT = Path(__file__).with_name("trainer_client.py")
WITHIN_S = 120.0

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class World:
    api: Api
    plane: ControlPlane

    async def until(self, path: str, what: Callable[[Object], bool]) -> Object:
        """The object once `what` holds for it."""
        found: Object = {}
        try:
            async with asyncio.timeout(WITHIN_S):
                while True:
                    with contextlib.suppress(Exception):
                        found = await self.api.get(path)
                        if what(found):
                            return found
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"{path}: {json.dumps(found.get('status'))}") from None

    async def gone(self, collection: str) -> None:
        """Wait until there is nothing in a collection."""
        async with asyncio.timeout(WITHIN_S):
            while (await self.api.items(collection))[0]:
                await asyncio.sleep(0.2)

    async def offer(self, made: Object) -> None:
        """Have this runtime, and no older one of its name."""
        with contextlib.suppress(Exception):
            await self.api.delete(f"{RUNTIMES}/{made['metadata']['name']}")
        await self.api.create(RUNTIMES, made)

    async def end(self, name: str, phase: str = "Succeeded") -> None:
        """Play the kubelet of the chief's pod: its program ends."""
        code = 0 if phase == "Succeeded" else 1
        ended = {"name": "node", "state": {"terminated": {"exitCode": code}}, "restartCount": 0, "ready": False}
        status = {"phase": phase, "containerStatuses": [{**ended, "image": "i", "imageID": "i"}]}
        await self.api.merge(f"{pods('default')}/{name}-chief-0/status", {"status": status})


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with Trainer and JobSet for all of these tests: they take long to start."""
    folder = tmp_path_factory.mktemp("trainer")
    with ControlPlane(
        folder / "plane", scheduler=True, controller_manager=True, reachable_issuer=True, audit=True
    ) as started:
        install("ours", started.kubeconfig)
        service_account("ours", started.kubeconfig)
        with trainer.running(started, folder / "trainer"):
            yield started


@pytest.fixture
async def world(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[World]:
    """Our operator with the component `trainer`, the runtime, and nodes that run its pods."""
    role = component("role.yaml", of="trainer")
    await asyncio.to_thread(kubectl, plane.kubeconfig, "apply", "-f", "-", stdin=role)
    identity = await asyncio.to_thread(service_account, "ours", plane.kubeconfig)
    async with Api(plane.kubeconfig) as api, kwok.nodes(api, plane.kubeconfig, tmp_path, 1, cpu=16):
        await api.allowed(OPERATOR, "", verb="create", group="kubeflow.org", resource="tfjobs")
        found = World(api, plane)
        await found.offer(runtime())
        try:
            async with running("ours", plane.kubeconfig, tmp_path, arguments=["--jobsets"], identity=identity):
                yield found
                await api.delete(TRAINJOBS)
                await found.gone(pods("default"))
        finally:
            await api.delete(NODES)


def runtime(name: str = "tensorflow-ps") -> Object:
    """The one of the overlay under this name, with pods that fake nodes run."""
    (made,) = yaml.safe_load_all((ROOT / "manifests/overlays/trainer-runtime/runtime.yaml").read_text())
    made["metadata"]["name"] = name
    for each in made["spec"]["template"]["spec"]["replicatedJobs"]:
        spec = kwok.pod_template()["spec"]
        each["template"]["spec"]["template"]["spec"] |= {name: spec[name] for name in ("nodeSelector", "tolerations")}
    found: Object = made
    return found


def trainjob(name: str, of: str = "tensorflow-ps", **spec: Any) -> Object:
    reference = {"name": of, "kind": "ClusterTrainingRuntime", "apiGroup": "trainer.kubeflow.org"}
    given = {"image": "digits", "command": ["python", "train.py"], "numNodes": 2}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": reference, "trainer": given, **spec},
    }


def path_of(name: str) -> str:
    return f"{TRAINJOBS}/{name}"


def runs(counts: dict[str, int]) -> Callable[[Object], bool]:
    def so_many(job: Object) -> bool:
        found = job["status"].get("replicaStatuses") or {}
        return {name: each.get("active", 0) for name, each in found.items()} == counts

    return so_many


async def test_the_sdk_of_kubeflow_trains_with_parameter_servers(world: World) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    assert uv, "uv runs the script in its own environment: `make test-trainer`, or put uv in PATH"

    async def client(*words: str) -> str:
        command: list[str | Path] = [uv, "run", "--quiet", "--locked", "--script", CLIENT, *words]
        return (await asyncio.to_thread(run, command, env={"KUBECONFIG": str(world.plane.kubeconfig)})).strip()

    name = await client("create", "default")
    job = await world.api.get(f"{tfjobs('default')}/{name}")
    assert runs({"Chief": 1, "PS": 1, "Worker": 2})(job)
    for kind in ("chief-0", "ps-0", "worker-1"):
        pod = await world.api.get(f"{pods('default')}/{name}-{kind}")
        (container,) = pod["spec"]["containers"]
        assert (container["name"], container["image"]) == ("node", "digits")
        environment = {each["name"]: each.get("value") for each in container["env"]}
        assert environment["EPOCHS"] == "3"
        assert json.loads(environment["TF_CONFIG"])["task"]["type"] == kind.partition("-")[0]
    assert await client("status", "default", name) == "Running node-0=Running node-1=Running"
    await world.end(name)
    ended = await world.until(path_of(name), lambda found: conditions(found).get("Complete") == "True")
    assert {each["name"]: each["succeeded"] for each in ended["status"]["jobsStatus"]} == {
        "chief": 1,
        "ps": 1,
        "node": 1,
    }
    assert (await client("status", "default", name)).startswith("Complete")
    await client("delete", "default", name)
    await world.gone(tfjobs("default"))  # all that was made for it goes with it


async def test_a_trainjob_is_suspended_patched_and_resumed(world: World) -> None:
    """As Kueue does it: the TrainJob is patched while it is suspended."""
    await world.api.create(TRAINJOBS, trainjob("held", suspend=True))
    job = await world.until(f"{tfjobs('default')}/held", lambda found: conditions(found).get("Suspended") == "True")
    assert job["spec"]["runPolicy"]["suspend"] is True
    jobset = f"{trainer.JOBSETS}/namespaces/default/jobsets/held"
    await world.until(jobset, lambda found: conditions(found).get("Suspended") == "True")
    patch = {
        "manager": "example.com/queue",
        "trainingRuntimeSpec": {
            "template": {
                "metadata": {"annotations": {"elastic.kubeflow.org/placement": "none"}},
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {"spec": {"template": {"spec": {"nodeSelector": {"type": "kwok"}}}}},
                        }
                    ]
                },
            }
        },
    }
    await world.api.merge(path_of("held"), {"spec": {"suspend": False, "runtimePatches": [patch]}})
    job = await world.until(f"{tfjobs('default')}/held", runs({"Chief": 1, "PS": 1, "Worker": 2}))
    assert job["metadata"]["annotations"]["elastic.kubeflow.org/placement"] == "none"
    await world.until(jobset, lambda found: conditions(found).get("Suspended") == "False")
    await world.api.merge(path_of("held"), {"spec": {"suspend": True}})
    await world.until(f"{tfjobs('default')}/held", lambda found: conditions(found).get("Suspended") == "True")
    await world.gone(pods("default"))
    assert audit.differs_from("trainer", world.plane.audit_log.read_text().splitlines()) == []


@pytest.mark.parametrize("what", [["-k", "overlays/trainer-runtime"], ["-f", "samples/trainjob.yaml"]])
async def test_the_shipped_manifests_are_admitted(world: World, what: list[str]) -> None:
    option, file = what
    dry = ["apply", "--server-side", "--dry-run=server", "--force-conflicts", "--warnings-as-errors"]
    await asyncio.to_thread(kubectl, world.plane.kubeconfig, *dry, option, str(ROOT / "manifests" / file))


async def test_a_trainjob_that_no_tfjob_can_run_fails_with_a_message(world: World) -> None:
    odd = runtime("odd")
    odd["spec"]["template"]["spec"]["failurePolicy"] = {"maxRestarts": 3}
    await world.offer(odd)
    await world.api.create(TRAINJOBS, trainjob("odd", of="odd"))
    found = await world.until(path_of("odd"), lambda found: conditions(found).get("Failed") == "True")
    (failed,) = (each for each in found["status"]["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "UnsupportedByTFJob"
    assert "spec.failurePolicy is not supported" in failed["message"]
    told = [each["reason"] for each in (await world.api.items(events("default")))[0]]
    assert "UnsupportedByTFJob" in told


async def test_a_program_that_fails_fails_the_trainjob(world: World) -> None:
    made = runtime("strict")
    for each in made["spec"]["template"]["spec"]["replicatedJobs"]:
        each["template"]["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    await world.offer(made)
    await world.api.create(TRAINJOBS, trainjob("fails", of="strict"))
    await world.until(f"{tfjobs('default')}/fails", runs({"Chief": 1, "PS": 1, "Worker": 2}))
    await world.end("fails", "Failed")
    found = await world.until(path_of("fails"), lambda found: conditions(found).get("Failed") == "True")
    assert {each["name"]: each["failed"] for each in found["status"]["jobsStatus"]} == {"chief": 1, "ps": 0, "node": 0}


async def test_progress_stands_in_the_trainjobs_status(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by the exporter to Trainer's server, with the token of the pod."""
    await world.api.create(TRAINJOBS, trainjob("told"))
    await world.until(f"{tfjobs('default')}/told", runs({"Chief": 1, "PS": 1, "Worker": 2}))
    pod = await world.api.get(f"{pods('default')}/told-chief-0")
    environment = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "kubeflow-trainer-token")
    (audience,) = (
        each["serviceAccountToken"]["audience"]
        for each in volume["projected"]["sources"]
        if "serviceAccountToken" in each
    )
    token = await asyncio.to_thread(
        trainer.pod_token, world.plane, "default", "told-chief-0", pod["metadata"]["uid"], audience
    )
    certificate = await world.api.get("/api/v1/namespaces/default/configmaps/told-tls-config")
    (tmp_path / "token").write_text(token)
    (tmp_path / "ca.crt").write_text(certificate["data"]["ca.crt"])
    (tmp_path / "progress.json").write_text('{"step": 250, "total_steps": 1000, "loss": 0.5, "generation": 0}')
    lookup = socket.getaddrinfo

    def here(host: Any, *rest: Any, **more: Any) -> Any:
        """Names of Services lead nowhere on this machine."""
        return lookup("127.0.0.1" if str(host).startswith(trainer.SERVICE) else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", here)
    named = {URL: environment[URL], CA_CERT: str(tmp_path / "ca.crt"), TOKEN: str(tmp_path / "token")}
    await asyncio.to_thread(TrainerReporter(tmp_path, named).report)
    found = await world.until(path_of("told"), lambda found: "trainerStatus" in found["status"])
    assert found["status"]["trainerStatus"]["progressPercentage"] == 25
    assert {"name": "loss", "value": "0.5"} in found["status"]["trainerStatus"]["metrics"]

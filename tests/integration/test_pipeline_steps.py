"""Steps of Kubeflow Pipelines against a real API server and the operator: how they end, and what they tell."""

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from conformance.manifest import replica
from harness import operators
from harness.api import NODES, Api, Object, pods, tfjobs
from harness.controlplane import ControlPlane, free_port
from harness.kubelet import kubelet

from .running import running

pytestmark = pytest.mark.timeout(600)

COMMAND = Path(sys.executable).parent / "elastic-tfjob"
RUN = "6f1c0c3e-run"
RUN_LABEL = "elastic-tfjob.kubeflow.org/pipeline-run"
WAIT_S = 120


@dataclass
class Step:
    """One try of a step."""

    process: asyncio.subprocess.Process
    folder: Path

    async def end(self) -> tuple[int, str]:
        async with asyncio.timeout(WAIT_S):
            out, _ = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode()

    def parameter(self, name: str) -> str:
        return (self.folder / name).read_text()

    def artifact(self, name: str) -> Any:
        return json.loads((self.folder / "out.json").read_text())["artifacts"][name]["artifacts"][0]


class Steps:
    """Starts steps with the rights of a pipeline's ServiceAccount."""

    def __init__(self, kubeconfig: Path, namespace: str, folder: Path) -> None:
        self._variables = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._namespace, self._folder, self._count = namespace, folder, 0

    async def start(self, command: str = "run", **values: Any) -> Step:
        self._count += 1
        folder = self._folder / f"step-{self._count}"
        names = ("job_name", "final_condition", "model_dir", "deleted")
        executor = {
            "inputs": {"parameterValues": {"run_id": RUN, **values}},
            "outputs": {
                "parameters": {name: {"outputFile": str(folder / name)} for name in names},
                "artifacts": {
                    name: {"artifacts": [{"name": name, "uri": f"minio://b/{name}"}]}
                    for name in ("metrics", "model", "timeline")
                },
                "outputFile": str(folder / "out.json"),
            },
        }
        words: list[str | Path] = [
            COMMAND,
            "pipeline",
            command,
            "-n",
            self._namespace,
            "--executor-input",
            json.dumps(executor),
        ]
        page = ("--timeline", folder / "timeline.html") if command == "run" else ()
        pipe = asyncio.subprocess.PIPE
        return Step(
            await asyncio.create_subprocess_exec(
                *words, *page, stdout=pipe, stderr=asyncio.subprocess.STDOUT, env=self._variables
            ),
            folder,
        )


def replicas() -> Object:
    mounted: Object = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "models"}}]}
    chief = replica(1, "Never", **mounted)
    chief["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/m", "subPath": "a"}]
    return {"Chief": chief, "Worker": replica(1, "Never")}


@asynccontextmanager
async def logs_of(api: Api, plane: ControlPlane) -> AsyncIterator[None]:
    """A node whose kubelet only answers for logs: two lines for each pod."""

    async def answer(request: web.Request) -> web.Response:
        pod = request.match_info["pod"]
        return web.Response(text=f"2026-01-01T00:00:01.0Z begin {pod}\n2026-01-01T00:00:02.0Z last words of {pod}\n")

    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", answer)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(plane.certificate, plane.certificate.with_suffix(".key"))
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        await api.create(NODES, {"metadata": {"name": "node"}})
        endpoints = {"kubeletEndpoint": {"Port": port}}
        status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": endpoints}
        await api.merge(f"{NODES}/node/status", {"status": status})
        yield
    finally:
        await runner.cleanup()


async def rights(plane: ControlPlane, namespace: str) -> Path:
    """A kubeconfig with what docs/pipelines.md says that a step needs, and no more."""
    in_it = ("-n", namespace)

    def make() -> Path:
        plane.kubectl("create", "serviceaccount", "runner", *in_it)
        verbs = "--verb=get,list,watch,create,patch,delete"
        plane.kubectl("create", "role", "jobs", *in_it, verbs, "--resource=tfjobs.kubeflow.org")
        plane.kubectl("create", "role", "logs", *in_it, "--verb=get", "--resource=pods,pods/log")
        for role in ("jobs", "logs"):
            plane.kubectl(
                "create", "rolebinding", role, *in_it, f"--role={role}", f"--serviceaccount={namespace}:runner"
            )
        return plane.service_account_kubeconfig(namespace, "runner")

    return await asyncio.to_thread(make)


async def test_steps_end_as_their_jobs_do(own_plane: ControlPlane, tmp_path: Path) -> None:
    plane, released = own_plane, asyncio.Event()
    await asyncio.to_thread(operators.install, "ours", plane.kubeconfig)
    async with Api(plane.kubeconfig) as api, logs_of(api, plane):
        namespace = await api.new_namespace()

        async def program(pod: Object) -> int | None:
            name = pod["metadata"]["name"]
            target = {"target": {"kind": "Node", "name": "node"}}
            await api.create(f"{pods(namespace)}/{name}/binding", {"metadata": {"name": name}, **target})
            if "-chief-" not in name or name.startswith(("gone", "late", "drop")):
                return None
            if name.startswith("again"):
                await released.wait()
            return 3 if name.startswith("bad") else 0

        async def running_job(base: str) -> Object:
            """The job whose name begins so, once it runs."""
            async with asyncio.timeout(WAIT_S):
                while True:
                    for found in (await api.items(tfjobs(namespace)))[0]:
                        conditions = found.get("status", {}).get("conditions") or ()
                        is_running = any(each["type"] == "Running" for each in conditions)
                        if is_running and found["metadata"]["name"].startswith(base):
                            return found
                    await asyncio.sleep(0.3)

        async def one(name: str) -> Object:
            return await api.get(f"{tfjobs(namespace)}/{name}")

        steps = Steps(await rights(plane, namespace), namespace, tmp_path)

        async def succeeds() -> None:
            step = await steps.start(name="ok", replicas=replicas(), model_path="/m/out")
            code, said = await step.end()
            name = step.parameter("job_name")
            assert (code, step.parameter("final_condition"), name[:3]) == (0, "Succeeded", "ok-"), said
            assert f"last words of {name}-chief-0" in said
            assert step.parameter("model_dir") == "/m/out"
            assert step.artifact("model")["uri"] == "pvc://models/a/out"
            assert step.artifact("metrics") == {"name": "metrics", "uri": "minio://b/metrics", "metadata": {}}
            assert "The job was created" in (step.folder / "timeline.html").read_text()
            assert (await one(name))["metadata"]["labels"][RUN_LABEL] == RUN

        async def fails() -> None:
            step = await steps.start(name="bad", replicas=replicas(), when_done="delete")
            code, said = await step.end()
            assert (code, step.parameter("final_condition")) == (1, "Failed"), said
            name = step.parameter("job_name")
            assert f"last words of {name}-chief-0" in said.partition("last lines of the chief's log:")[2]
            assert name not in {each["metadata"]["name"] for each in (await api.items(tfjobs(namespace)))[0]}

        async def deleted() -> None:
            step = await steps.start(name="gone", replicas=replicas())
            job = await running_job("gone")
            await api.delete(f"{tfjobs(namespace)}/{job['metadata']['name']}")
            code, said = await step.end()
            assert (code, step.parameter("final_condition")) == (3, "Deleted"), said
            assert "was deleted before it ended" in said

        async def times_out() -> None:
            step = await steps.start(name="late", replicas=replicas(), timeout="3s")
            code, said = await step.end()
            assert (code, step.parameter("final_condition")) == (4, "TimedOut"), said
            assert (await one(step.parameter("job_name")))["spec"]["runPolicy"]["suspend"] is True

        async def killed_and_retried() -> None:
            first = await steps.start(name="again", replicas=replicas())
            job = await running_job("again")
            first.process.kill()
            await first.end()
            second = await steps.start(name="again", replicas=replicas())
            assert second.process.stdout is not None
            async with asyncio.timeout(WAIT_S):
                assert b"attached to the job" in await second.process.stdout.readline()
            released.set()
            code, said = await second.end()
            assert (code, second.parameter("job_name")) == (0, job["metadata"]["name"]), said
            assert (await one(second.parameter("job_name")))["metadata"]["uid"] == job["metadata"]["uid"]

        async def told_to_end() -> None:
            step = await steps.start(name="drop", replicas=replicas())
            job = await running_job("drop")
            step.process.terminate()
            code, said = await step.end()
            assert (code, step.parameter("final_condition")) == (143, "Terminated"), said
            assert "suspend" not in (await one(job["metadata"]["name"]))["spec"].get("runPolicy", {})

        async with (
            running("ours", plane.kubeconfig, tmp_path),
            kubelet(api, namespace, program),
            asyncio.TaskGroup() as group,
        ):
            for case in (succeeds, fails, deleted, times_out, killed_and_retried, told_to_end):
                group.create_task(case())
        step = await steps.start("cleanup")
        code, said = await step.end()
        assert code == 0, said
        kinds = {name.partition("-")[0] for name in json.loads(step.parameter("deleted"))}
        assert kinds == {"ok", "late", "again", "drop"}
        assert (await api.items(tfjobs(namespace)))[0] == []

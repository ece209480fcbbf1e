"""The components for Kubeflow Pipelines, run by kfp.local's DockerRunner: each step is a container of this machine, and
talks to the kind cluster. `make e2e-people` runs it.
"""

import json
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import images
from harness.cluster import shared_folder
from harness.engine import engine
from harness.jobs import UNTIL_TOLD, Jobs, Object, end, sleepers, until
from harness.training import CHECKPOINTS

pytestmark = [pytest.mark.people, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("pipeline_client.py")


@pytest.fixture(scope="session")
def docker_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where Docker's API answers: Docker's own, or podman's service for the time of the tests."""
    if engine().name == "docker":
        yield os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        return
    address = f"unix://{tmp_path_factory.mktemp('podman')}/api.sock"
    environment = {**os.environ, **engine().environment}
    with subprocess.Popen(["podman", "system", "service", "--time=0", address], env=environment) as service:
        socket = Path(address.removeprefix("unix://"))
        until(socket.exists, 30, lambda: "podman's service does not answer")
        yield address
        service.terminate()


@dataclass
class Try:
    """One run of a component or a pipeline."""

    process: "subprocess.Popen[str]"
    root: Path
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        with self.process.stdout or nullcontext(()) as lines:
            self.said.extend(lines)

    def outputs(self) -> dict[str, Any]:
        """At the end."""
        code = self.process.wait(timeout=900)
        self._thread.join()
        assert code == 0, "".join(self.said)
        found: dict[str, Any] = json.loads(self.said[-1])["outputs"]
        return found

    def condition(self) -> str:
        """At the end: `final_condition`, as the step has written it. kfp takes a step whose container is gone for one
        that succeeded, and podman's are gone when their logs have ended."""
        self.outputs()
        (found,) = (path.read_text() for path in self.root.rglob("final_condition"))
        return str(found)

    @property
    def text(self) -> str:
        return "".join(self.said)


@pytest.fixture
def kfp(jobs: Jobs, docker_host: str, tmp_path: Path) -> Iterator["Runner"]:
    runner = Runner(jobs, docker_host, tmp_path)
    yield runner
    for each in runner.tries:
        each.process.kill()


class Runner:
    """Starts components in the namespace of a test."""

    def __init__(self, jobs: Jobs, docker_host: str, folder: Path) -> None:
        self.jobs, self.tries = jobs, list[Try]()
        self.run_id = uuid.uuid4().hex
        self._folder = folder
        self._uv = os.environ.get("UV") or shutil.which("uv")
        assert self._uv, "uv runs the script in its own environment: `make e2e-people`, or put uv in PATH"
        self._environment = {**os.environ, **engine().environment, "DOCKER_HOST": docker_host}
        self.checkpoints = shared_folder(jobs.namespace)
        config = yaml.safe_load(jobs.cluster.kubeconfig.read_text())
        for each in config["contexts"]:
            each["context"]["namespace"] = jobs.namespace
        self._kubeconfig = folder / "kubeconfig"
        self._kubeconfig.write_text(yaml.safe_dump(config))

    def start(self, run: str, **arguments: Any) -> Try:
        root = self._folder / f"try-{len(self.tries)}"
        root.mkdir()
        asked = {
            "run": run,
            "images": [images.operator(), images.trainer()],
            "arguments": arguments,
            "root": str(root),
            "mounts": {"/kube": str(self._folder), CHECKPOINTS: str(self.checkpoints.parent)},
            "environment": {"KUBECONFIG": "/kube/kubeconfig", "PYTHONUNBUFFERED": "1"},
            "volume": {"hostPath": {"path": CHECKPOINTS, "type": "Directory"}},
            "steps": 1500,
        }
        process = subprocess.Popen(
            [str(self._uv), "run", "--quiet", "--locked", "--script", SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        self.tries.append(found := Try(process, root))
        return found

    def tfjob(self, command: str = UNTIL_TOLD, **more: Any) -> Try:
        """The component `tfjob` on a job of one worker that runs this command."""
        roles = sleepers("x", command=command, Worker=1)["spec"]["tfReplicaSpecs"]
        roles["Worker"]["restartPolicy"] = "Never"
        return self.start("tfjob", run_id=self.run_id, name="step", replicas=roles, **more)

    def job(self) -> Object:
        """The only job there is, once it is there."""
        found: list[Object] = []

        def there() -> bool:
            found[:] = self.jobs.get("tfjobs")["items"]
            return bool(found)

        until(there, 240, lambda: f"no job: {self.tries[-1].text}")
        (job,) = found
        return job

    def running(self) -> str:
        """Its name, once it runs."""
        name = str(self.job()["metadata"]["name"])
        self.jobs.wait_for(name, "Running")
        return name


def test_a_step_ends_as_its_job_does_and_tells_its_outputs(kfp: Runner) -> None:
    step = kfp.tfjob()
    name = kfp.running()
    end(kfp.jobs, f"{name}-worker-0")
    outputs = step.outputs()
    assert (outputs["job_name"], outputs["final_condition"]) == (name, "Succeeded")
    assert "<" in Path(outputs["timeline"]["path"]).read_text()
    assert set(outputs["metrics"]["metadata"]) <= {"steps", "steps_per_s", "rescales", "downtime_s", "deadline_met"}
    assert kfp.jobs.conditions(name)[-1] == "Succeeded"


def test_a_step_fails_where_its_job_fails_is_deleted_or_too_late(kfp: Runner) -> None:
    failing = kfp.tfjob(command="echo these are its last words; exit 1; true", when_done="delete")
    assert failing.condition() == "Failed"
    assert "these are its last words" in failing.text
    until(lambda: not kfp.jobs.get("tfjobs")["items"], 60, lambda: "when_done: delete left it there")

    gone = kfp.tfjob()
    kfp.jobs.kubectl("delete", "tfjob", kfp.running())
    assert gone.condition() == "Deleted"

    late = kfp.tfjob(command=f"{UNTIL_TOLD} # late", timeout="20s")
    name = kfp.job()["metadata"]["name"]
    assert late.condition() == "TimedOut"
    assert kfp.jobs.get("tfjob", name)["spec"]["runPolicy"]["suspend"] is True


def test_a_step_whose_container_is_killed_attaches_to_the_same_job(kfp: Runner) -> None:
    first = kfp.tfjob()
    name = kfp.running()
    uid = kfp.job()["metadata"]["uid"]
    image = images.operator()
    own = [line for line in engine().run("ps", "--quiet", f"--filter=ancestor={image}").split() if line]
    assert len(own) == 1
    engine().run("kill", own[0])
    first.outputs()
    assert not list(first.root.rglob("final_condition"))
    second = kfp.tfjob()
    until(lambda: name in second.text, 120, lambda: second.text)
    end(kfp.jobs, f"{name}-worker-0")
    assert second.outputs()["job_name"] == name
    assert kfp.job()["metadata"]["uid"] == uid


def test_the_example_prepares_trains_evaluates_and_leaves_nothing(kfp: Runner) -> None:
    run = kfp.start("digits", folder=f"{CHECKPOINTS}/{kfp.jobs.namespace}")
    run.outputs()
    files = {path.name: path for path in run.root.rglob("*") if path.is_file()}
    assert "accuracy" in files, run.text
    assert float(files["accuracy"].read_text()) >= 0.95
    assert "read (columns)" in files["errors"].read_text()
    assert "<" in files["timeline"].read_text()
    assert kfp.jobs.get("tfjobs")["items"] == []

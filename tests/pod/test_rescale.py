"""Real training jobs as processes of this machine: every replica has a launcher, commands are written as the operator
writes them. What is measured is printed (pytest -rP), not judged: machines differ."""

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.runtime.forking import MOST_OWN
from harness.controlplane import free_port

from .pods import Pod, until

PROGRAMS = Path(__file__).parents[2] / "trainer_images" / "digits"
SLOW = 600.0
"""Seconds in which several TensorFlows start on a very busy machine: only a test that hangs waits that long."""
Replica = tuple[str, int]


class Job:
    """A job's pods by (type, index), and the generations it goes through."""

    def __init__(self, directory: Path, *program: object) -> None:
        self.directory = directory
        self.checkpoints = directory / "checkpoints"
        self.program = [sys.executable, *map(str, program)]
        self.pods: dict[Replica, Pod] = {}
        self.configs: dict[Replica, str] = {}

    def _configure(self, replicas: Mapping[str, int]) -> None:
        """TF_CONFIG of each replica; every generation has ports of its own."""
        cluster = {kind: [f"127.0.0.1:{free_port()}" for _ in range(count)] for kind, count in replicas.items()}
        self.configs = {
            (kind, index): json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
            for kind, count in replicas.items()
            for index in range(count)
        }

    def _pod(self, replica: Replica) -> Pod:
        environment = {"TF_CONFIG": self.configs[replica], "ELASTIC_TFJOB_CHECKPOINT_DIR": str(self.checkpoints)}
        self.pods[replica] = Pod(self.directory / f"{replica[0]}-{replica[1]}", self.program, environment)
        return self.pods[replica]

    @property
    def chief(self) -> Pod:
        return self.pods.get(("chief", 0)) or self.pods["worker", 0]

    def start(self, **replicas: int) -> None:
        self._configure(replicas)
        for replica in self.configs:
            self._pod(replica).start()
        until("it trains", lambda: (self.chief.status["step"] or 0) > 50, SLOW)

    def rescale(
        self, generation: int, mode: str = "overlap", *, operator: bool = True, **replicas: int
    ) -> dict[str, Any]:
        """To another size, as the operator does it; the chief's status when it trains again. Without `operator` it
        is away from when the chief has been told to switch."""
        self._configure(replicas)
        before = dict(self.pods)
        begin = time.monotonic()
        self._command("prepare", generation, mode)
        for replica in self.configs:
            if replica not in before:
                pod = self._pod(replica)
                self._command("prepare", generation, mode)
                pod.start()
        until("all are ready", self._ready, SLOW)
        prepared = time.monotonic()
        meanwhile = self.chief.status["steps_per_s"]
        self._command("switch", generation, mode)
        switch = until("it is decided", lambda: self._decided(generation), SLOW)
        assert switch["state"] == "committed", self.chief.status
        if operator:
            self._command("run", generation, mode)
        for replica in [replica for replica in self.pods if replica not in self.configs]:
            self.pods.pop(replica).stop()
        status = until("it trains again", lambda: self._trains(generation), SLOW)
        save, switch = status["checkpoint"], status["switch"]
        print(
            f"{mode} to {replicas}: ready in {prepared - begin:.1f} s (training went on at {meanwhile:.0f} steps/s), "
            f"downtime {status['downtime_s']:.3f} s = last step to commit "
            f"{switch['at'] - status['first_step_at'] + status['downtime_s']:.3f} s (saving {save['seconds']:.3f} s, "
            f"{save['bytes'] / 1e6:.1f} MB) + restore and first step {status['first_step_at'] - switch['at']:.3f} s"
        )
        return status

    def _ready(self) -> bool:
        """Whether all that the new size needs is prepared; fails with the output of a program that has died."""
        prepared = {replica: self.pods[replica].status["prepared"] or {} for replica in self.configs}
        for replica, each in prepared.items():
            assert each.get("state") != "failed", f"{replica}: {each}\n{self.pods[replica].output}"
        return all(each.get("state") == "ready" for each in prepared.values())

    def _decided(self, generation: int) -> dict[str, Any] | None:
        """What the chief decided about the switch to this generation; one before it has been decided, too."""
        switch = self.chief.status["switch"]
        return switch if switch and switch["generation"] == generation and switch["state"] != "saving" else None

    def _trains(self, generation: int) -> dict[str, Any] | None:
        status = self.chief.status
        return status if status["generation"] == generation and status["first_step_at"] else None

    def _command(self, action: str, generation: int, mode: str) -> None:
        for replica, pod in self.pods.items():
            if replica in self.configs:
                pod.command(action, generation, mode=mode, tf_config=self.configs[replica])

    def stop(self) -> None:
        for pod in self.pods.values():
            pod.stop()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return tmp_path


def _private_bytes(pid: int) -> int:
    """Memory that only this process has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB", text, re.MULTILINE)) << 10


@pytest.mark.xdist_group("tensorflow-2")
@pytest.mark.timeout(1800)
def test_parameter_servers_and_workers_change(directory: Path) -> None:
    job = Job(directory, PROGRAMS / "digits.py", "--steps=1000000", "--embedding-mb=8", "--checkpoint-every=1000")

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in job.chief.output.splitlines() if line.startswith("{")]

    try:
        job.start(chief=1, ps=1, worker=1)
        status = job.chief.status
        assert all(status[name] for name in ("loss", "steps_per_s", "examples_per_s", "total_steps")), status
        grown = job.rescale(1, chief=1, ps=2, worker=2)
        assert grown["lost_steps"] == 0
        until("it trains on", lambda: job.chief.status["step"] > grown["step"] + 50, SLOW)
        shrunk = job.rescale(2, chief=1, ps=1, worker=1)
        assert shrunk["lost_steps"] == 0
        for kind in ("chief", "ps", "worker"):
            log = (job.pods[kind, 0].shared / "launcher.log").read_text()
            assert log.count("was forked") == 2, "TensorFlow was imported once in each pod that was kept"
            assert _private_bytes(int(re.findall(r"interpreter with .* started as (\d+)", log)[-1])) <= MOST_OWN
        assert shrunk["checkpoint"]["bytes"] < 1.1 * grown["checkpoint"]["bytes"], "however many PS hold it"
        resumed_at = shrunk["checkpoint"]["step"]
        until(
            "the last size has a good model",
            lambda: any(line["resumed_at"] == resumed_at and line["accuracy"] >= 0.95 for line in lines()),
            SLOW,
        )
        steps = [line["step"] for line in lines()]
        assert steps == sorted(set(steps)), "no step was done twice"
    finally:
        job.stop()


@pytest.mark.xdist_group("tensorflow-2")
@pytest.mark.timeout(1800)
def test_keras_on_parameter_servers_changes(directory: Path) -> None:
    """Model.fit reports and saves at the end of an epoch there."""
    job = Job(directory, PROGRAMS / "keras_digits.py", "--steps=1000000")
    try:
        job.start(chief=1, ps=1, worker=1)
        assert job.chief.status["step"] % 100 == 0
        assert job.chief.status["loss"]
        assert job.chief.status["hook"] is True
        grown = job.rescale(1, chief=1, ps=1, worker=2)
        assert grown["lost_steps"] == 0
        until("it trains on", lambda: job.chief.status["step"] > grown["step"] + 100, SLOW)
    finally:
        job.stop()


@pytest.mark.xdist_group("tensorflow-1")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param([PROGRAMS / "keras_digits.py", "--steps=100000"], id="keras"),
        pytest.param([Path(__file__).with_name("mirrored.py")], id="own-loop"),
    ],
)
def test_workers_without_parameter_servers_change(directory: Path, program: list[object]) -> None:
    job = Job(directory, *program)
    try:
        job.start(worker=1)
        grown = job.rescale(1, worker=2)
        assert grown["lost_steps"] == 0
        until("it trains on", lambda: job.chief.status["step"] > grown["step"] + 20, SLOW)
        alone = job.rescale(2, operator=False, worker=2)
        assert alone["lost_steps"] == 0
        until("the other worker runs it, too", lambda: job.pods["worker", 1].status["generation"] == 2)
        until("it trains on", lambda: job.chief.status["step"] > alone["step"] + 20, SLOW)
        assert job.rescale(3, worker=1)["lost_steps"] == 0
    finally:
        job.stop()

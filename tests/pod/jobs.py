"""Real training jobs as processes of this machine: every replica has a launcher, commands are written as the operator
writes them."""

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from elastic_tfjob.exporter.server import Server
from harness.controlplane import free_port

from .pods import PYTHON, Pod, until

PROGRAMS = Path(__file__).parents[2] / "trainer_images" / "digits"
SLOW = 600.0
"""Seconds in which several TensorFlows start on a very busy machine: only a test that hangs waits that long."""
Replica = tuple[str, int]


def _address() -> str:
    return f"127.0.0.1:{free_port()}"


class Job:
    """A job's pods by (type, index), and the generations it goes through."""

    def __init__(self, directory: Path, *program: object) -> None:
        self.directory = directory
        self.checkpoints = directory / "checkpoints"
        self.program = [PYTHON, *map(str, program)]
        self.pods: dict[Replica, Pod] = {}
        self.configs: dict[Replica, str] = {}
        self.while_prepared: Callable[[], None] = lambda: None
        """What happens once all replicas of the coming size stand ready."""
        self.more: dict[str, Any] = {}
        """What the commands say beside the usual."""
        self.while_handed_over: Callable[[], None] = lambda: None
        """What happens once the chief has decided the switch."""

    def configure(self, replicas: Mapping[str, int]) -> None:
        """TF_CONFIG of each replica; every generation has ports of its own."""
        self._use({kind: [_address() for _ in range(count)] for kind, count in replicas.items()})

    def _use(self, cluster: dict[str, list[str]]) -> None:
        self.cluster = cluster
        self.configs = {
            (kind, index): json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
            for kind, addresses in cluster.items()
            for index in range(len(addresses))
        }

    def _pod(self, replica: Replica) -> Pod:
        environment = {"ELASTIC_TFJOB_CHECKPOINT_DIR": str(self.checkpoints)}
        if len(self.configs) > 1:  # as the operator has it, and upstream
            environment["TF_CONFIG"] = self.configs[replica]
        name = f"{replica[0]}-{replica[1]}"
        while (self.directory / name).exists():  # a pod that is made anew has another volume
            name += "'"
        self.pods[replica] = Pod(self.directory / name, self.program, environment)
        return self.pods[replica]

    @property
    def chief(self) -> Pod:
        return self.pods.get(("chief", 0)) or self.pods["worker", 0]

    def launch(self, **replicas: int) -> None:
        self.configure(replicas)
        for replica in self.configs:
            self._pod(replica).start()

    def recreate(self, **replicas: int) -> None:
        """To another size, as the operator does it where a program cannot wait: all pods end and are made anew, with
        directories of their own."""
        for pod in self.pods.values():
            pod.signal(signal.SIGTERM)
        for pod in self.pods.values():
            pod.wait(SLOW)
        self.pods = {}
        self.launch(**replicas)

    def start(self, **replicas: int) -> None:
        self.launch(**replicas)
        until("it trains", lambda: (self.chief.status["step"] or 0) > 50, SLOW)

    def rescale(
        self, generation: int, mode: str = "overlap", *, operator: bool = True, **replicas: int
    ) -> dict[str, Any]:
        """To another size, as the operator does it; the chief's status when it trains again. Without `operator` it
        is away from when the chief has been told to switch."""
        self.configure(replicas)
        before = dict(self.pods)
        begin = time.monotonic()
        self._command("prepare", generation, mode)
        for replica in self.configs:
            if replica not in before:
                pod = self._pod(replica)
                self._command("prepare", generation, mode)
                pod.start()
        until("all are ready", lambda: self._ready(generation), SLOW)
        self.while_prepared()
        until("all are ready still", lambda: self._ready(generation), SLOW)
        prepared = time.monotonic()
        meanwhile = self.chief.status["steps_per_s"] or 0.0  # not known at the first step
        self._command("switch", generation, mode)
        switch = until("it is decided", lambda: self._decided(generation), SLOW)
        assert switch["state"] == "committed", self.chief.status
        self.while_handed_over()
        until("the values are saved", lambda: not self.chief.status["handing_over"], SLOW)
        if operator:
            self._command("run", generation, mode)
        for replica in [replica for replica in self.pods if replica not in self.configs]:
            self.pods.pop(replica).stop()
        status = until("it trains again", lambda: self._trains(generation), SLOW)
        if operator:  # the others' launchers may be later than the chief
            until("all run it", lambda: self._all_run(generation), SLOW)
        save, switch = status["checkpoint"], status["switch"]
        print(
            f"{mode} to {replicas}: ready in {prepared - begin:.1f} s (training went on at {meanwhile:.0f} steps/s), "
            f"downtime {status['downtime_s']:.3f} s = last step to commit "
            f"{switch['at'] - status['first_step_at'] + status['downtime_s']:.3f} s (saving {save['seconds']:.3f} s, "
            f"{save['bytes'] / 1e6:.1f} MB) + restore and first step {status['first_step_at'] - switch['at']:.3f} s"
        )
        return status

    def change_workers(self, generation: int, count: int) -> dict[str, Any]:
        """In mode `live`, as the operator does it; the chief's status when it has made a step with these workers."""
        workers = [*self.cluster["worker"], *(_address() for _ in range(count))][:count]
        self._use({**self.cluster, "worker": workers})
        added = [replica for replica in self.configs if replica not in self.pods]
        for replica in added:
            pod = self._pod(replica)
            pod.command("prepare", generation, mode="live", tf_config=self.configs[replica])
            pod.start()
        until("the added ones serve", lambda: all(self._serves(replica, generation) for replica in added), SLOW)
        self.chief.command("switch", generation, mode="live", tf_config=self.configs["chief", 0], timeout_s=SLOW)
        switch = until("it is decided", lambda: self._decided(generation), SLOW)
        assert switch["state"] == "committed", f"{switch}\n{self.chief.output[-3000:]}"
        self._command("run", generation, "overlap")
        for replica in [replica for replica in self.pods if replica not in self.configs]:
            self.pods.pop(replica).stop()
        status = until("it trains on", lambda: self._trains(generation), SLOW)
        until("all know it", lambda: self._all_run(generation), SLOW)
        print(f"live to {count} workers: downtime {status['downtime_s']:.3f} s")
        return status

    def move_chief(self, generation: int, *, reachable: bool = True) -> dict[str, Any]:
        """To a pod of another directory, as the operator does it; the chief's status when it trains there. If the old
        one is not `reachable`, the operator says that it has left."""
        role = ("chief", 0) if ("chief", 0) in self.pods else ("worker", 0)
        old, port = self.pods[role], free_port()
        self.configure({kind: len(addresses) for kind, addresses in self.cluster.items()})
        new = self._pod(role)
        self._command("prepare", generation, "overlap")
        old.command("prepare", generation, mode="leave")
        new.start()
        until("all are ready", lambda: self._ready(generation), SLOW)
        until("the old one takes part", lambda: (old.status["prepared"] or {}).get("mode") == "leave", SLOW)
        self.while_prepared()
        with _exporter(old, port):
            address = f"127.0.0.1:{port if reachable else free_port()}"
            new.command("switch", generation, tf_config=self.configs[role], old_chief=address)
            old.command("switch", generation, mode="leave", timeout_s=SLOW)
            switch = until("it is decided", lambda: _decided(old, generation), SLOW)
            assert switch["state"] == "committed", old.status
            if not reachable:
                saved = old.status["checkpoint"]["step"]
                new.command("run", generation, tf_config=self.configs[role], saved=saved)
            status = until("it trains again", lambda: self._trains(generation), SLOW)
        self._command("run", generation, "overlap")
        until("all run it", lambda: self._all_run(generation), SLOW)
        assert old.status["generation"] is None
        old.signal(signal.SIGTERM)
        assert old.wait(SLOW) == 128 + signal.SIGTERM
        save = status["checkpoint"]
        print(
            f"the chief moves: downtime {status['downtime_s'] or 0:.3f} s (saving {save['seconds']:.3f} s, "
            f"{save['bytes'] / 1e6:.1f} MB; commit to first step {status['first_step_at'] - switch['at']:.3f} s)"
        )
        return status

    def _serves(self, replica: Replica, generation: int) -> bool:
        prepared = self.pods[replica].status["prepared"] or {}
        return (prepared.get("generation"), prepared.get("state")) == (generation, "ready")

    def lines(self) -> list[dict[str, Any]]:
        """What the chief has printed as JSON; of a line that it is writing not yet."""
        lines = self.chief.output.splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def _ready(self, generation: int) -> bool:
        """Whether all that the new size needs is prepared; fails with the output of a program that has died."""
        prepared = {replica: self.pods[replica].status["prepared"] or {} for replica in self.configs}
        states = {
            replica: each["state"] if each.get("generation") == generation else "" for replica, each in prepared.items()
        }
        for replica, state in states.items():
            assert state != "failed", f"{replica}: {prepared[replica]}\n{self.pods[replica].output}"
        return all(state == "ready" for state in states.values())

    def _all_run(self, generation: int) -> bool:
        return all(self.pods[replica].status["generation"] == generation for replica in self.configs)

    def _decided(self, generation: int) -> dict[str, Any] | None:
        return _decided(self.chief, generation)

    def _trains(self, generation: int) -> dict[str, Any] | None:
        status = self.chief.status
        return status if status["generation"] == generation and status["first_step_at"] else None

    def _command(self, action: str, generation: int, mode: str) -> None:
        for replica, pod in self.pods.items():
            if replica in self.configs:
                config = self.configs[replica]
                pod.command(action, generation, mode=mode, tf_config=config, timeout_s=SLOW, **self.more)

    def stop(self) -> None:
        for pod in self.pods.values():
            pod.stop()


def _decided(chief: Pod, generation: int) -> dict[str, Any] | None:
    """What the chief decided about the switch to this generation; one before it has been decided, too."""
    switch = chief.status["switch"]
    decided = switch and switch["generation"] == generation and switch["state"] not in ("changing", "saving")
    return switch if decided else None


@contextlib.contextmanager
def _exporter(pod: Pod, port: int) -> Iterator[None]:
    """A pod's exporter, in a thread."""
    ended = threading.Event()
    with Server(port, pod.shared) as server:
        thread = threading.Thread(target=server.serve, args=(lambda: not ended.is_set(),))
        thread.start()
        yield
        ended.set()
        socket.create_connection(("127.0.0.1", port)).close()  # it looks after each event
        thread.join()

"""What runs in a pod's container that trains: the product's own launcher and exporter, and programs.

A launcher here is not polled: it looks when something that it watches has changed (a file, a process, its command), and
before the exporter answers. Between, its looks would find nothing.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from campaign.apiserver import Object
from campaign.files import SIGKILL, Files, VirtualPath, machine
from campaign.pod import DIRECTORY, Program, Training
from elastic_tfjob.api.tfjob import CONTAINER, REPLICA_TYPE_LABEL
from elastic_tfjob.controller.model.quantities import cpu_of
from elastic_tfjob.exporter import status as exporter_status
from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.launcher import Launcher

__all__ = ["OOM_KILLED", "Container"]

_COMMAND: Final = "/elastic-tfjob-command/command"
_LOOK_S: Final = 0.02
_USES_S: Final = 1.0
"""So often the kernel compares what a container uses with its limit, where that changes."""
_USED_BYTES: Final = 80_000_000
_CACHED_BYTES: Final = 20_000_000
_OF_NODE_BYTES: Final = 1_000_000_000
OOM_KILLED: Final = "OOMKilled"


class _Launcher(Launcher):
    """The product's; its log is a list."""

    def __init__(self, program: list[str], directory: Any, command_file: Any, tf_config: str | None) -> None:
        super().__init__(program, directory, command_file, tf_config)
        self.lines: list[str] = []

    def _log(self, line: str) -> None:
        self.lines.append(line)


class Container:
    """The container that trains, in one pod, from start to end; `over` is called with its exit code and the reason of
    its end, `ask` gets the status of another pod. `limit_bytes` of memory; 0: none."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        random: Random,
        pod: Object,
        *,
        training: Training,
        files: Files | None,
        over: Callable[[int, str], None],
        limit_bytes: int,
        ask: Callable[[str], dict[str, Any] | None],
    ) -> None:
        self.loop = loop
        self.random = random
        self.training = training
        self.over = over
        self.limit_bytes = limit_bytes
        self.ask = ask
        self.progress: dict[str, Any] | None = None
        self.launcher: _Launcher | None = None
        self.programs: dict[int, Program] = {}
        self._dead: list[tuple[int, int]] = []
        self._look: asyncio.TimerHandle | None = None
        self._pids = 100
        self._began = loop.time()
        self._ended = False
        spec = pod["spec"]
        trainer = next(each for each in spec["containers"] if each["name"] == CONTAINER)
        self.name: str = pod["metadata"]["name"]
        self._uses = training.uses.get(pod["metadata"]["labels"][REPLICA_TYPE_LABEL])
        self.limit_cores = cpu_of(spec)[1] / 1000
        environment = {each["name"]: each.get("value") for each in trainer.get("env") or ()}
        self._tf_config = environment.get("TF_CONFIG")
        self._with_launcher = any("launcher.pyz" in word for word in trainer.get("command") or ())
        # What an earlier container of the pod wrote stays: it is in a volume.
        self.files = files if files is not None else Files(lambda _: None)
        self.files._changed = self._file_changed
        self.progress = self.files.contents.get(f"{DIRECTORY}/{protocol.PROGRESS}")

    def start(self) -> None:
        """Run."""
        if self._uses is not None:
            self.loop.call_later(_USES_S, self._use)
        if not self._with_launcher:
            self._pids += 1
            self.programs[self._pids] = Program(self, self._pids, 0, self._tf_config, prepared=False)
            return
        directory = VirtualPath(self.files, DIRECTORY)
        launcher = _Launcher(["python", "train.py"], directory, VirtualPath(self.files, _COMMAND), self._tf_config)
        launcher.programs.signal_mask = set()
        self.launcher = launcher
        with machine.of(self):
            launcher._start_first()
        self._turn()

    def command(self, text: str) -> None:
        """The kubelet shows the pod's command."""
        if self.files.contents.get(_COMMAND) != text:
            self.files.write(_COMMAND, text)

    def poke(self) -> None:
        """Something has changed that the launcher watches."""
        if self.launcher is None or self._ended:
            return
        due = self.loop.time() + _LOOK_S
        if self._look is not None:
            if self._look.when() <= due:
                return
            self._look.cancel()
        self._look = self.loop.call_at(due, self._turn)

    def _turn(self) -> None:
        """One turn of the launcher's loop."""
        launcher = self.launcher
        if launcher is None or self._ended:
            return
        if self._look is not None:
            self._look.cancel()
            self._look = None
        with machine.of(self):
            code = launcher._reap()
            if code is not None:
                launcher.programs.kill(launcher.programs.prepared)
                self._end(code)
                return
            launcher._tick()
        if launcher._poll_s() < 1.0:  # something goes on, and time alone may change it
            self._look = self.loop.call_later(0.5, self._turn)

    @property
    def used_bytes(self) -> int:
        """The memory that the kernel cannot take back."""
        return _USED_BYTES if self._uses is None else self._uses(self.loop.time() - self._began)

    def _use(self) -> None:
        """The kernel kills a container that uses more than its limit; else its launcher looks what it uses."""
        if self._ended:
            return
        if 0 < self.limit_bytes < self.used_bytes:
            self._end(128 + SIGKILL, OOM_KILLED)
            return
        self._turn()
        self.loop.call_later(_USES_S, self._use)

    def signal_all(self, number: int) -> None:
        """The kubelet's signal to the container's first process."""
        if self._ended:
            return
        if number == SIGKILL:
            self._end(128 + SIGKILL)
        elif self.launcher is None:
            for program in list(self.programs.values()):
                program.signal(number)
        else:
            with machine.of(self):
                try:
                    self.launcher.programs.forward(number)
                except SystemExit as end:
                    self._end(int(end.code or 0))
            self.poke()

    def status(self) -> bytes:
        """The exporter's answer to /status."""
        for program in self.programs.values():
            if program.state == "training":
                program.report()
        self._turn()
        return json.dumps(exporter_status.status(VirtualPath(self.files, DIRECTORY))).encode()  # type: ignore[arg-type]

    def _end(self, code: int, reason: str = "") -> None:
        self._ended = True
        if self._look is not None:
            self._look.cancel()
        for program in list(self.programs.values()):
            program.exit(128 + SIGKILL)
        self.over(code, reason)

    def ended(self, program: Program, code: int) -> None:
        """A program is over."""
        del self.programs[program.pid]
        if self._ended:
            return
        if self.launcher is None:
            self._end(code)
            return
        self._dead.append((program.pid, code << 8 if code < 128 else code - 128))
        self.poke()

    def _file_changed(self, name: str) -> None:
        if name.startswith(f"{DIRECTORY}/generation-"):
            folder, _, file = name.rpartition("/")
            generation = int(folder.rpartition("-")[2])
            for program in list(self.programs.values()):
                if program.generation == generation:
                    program.file_changed(file.removesuffix(".json"))
                program.other_changed(folder.rpartition("/")[2], file.removesuffix(".json"))
        elif name != _COMMAND:
            return
        self.poke()

    def seconds(self, least: float, most: float) -> float:
        """A duration of this schedule."""
        return self.random.uniform(least, most)

    # The operating system

    def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        self._pids += 1
        generation = int(environment[protocol.GENERATION])
        opened = self.files.contents.get(f"{DIRECTORY}/generation-{generation}/go.json") is not None
        spare = any("run_spare" in word for word in command)
        program = Program(self, self._pids, generation, environment.get("TF_CONFIG"), prepared=not opened, spare=spare)
        program.before = environment.get(protocol.BEFORE, "").rpartition("/")[2]
        self.programs[self._pids] = program
        return self._pids

    def reap(self) -> tuple[int, int]:
        if self._dead:
            return self._dead.pop(0)
        if not self.programs:
            raise ChildProcessError
        return 0, 0

    def signal(self, pid: int, number: int) -> None:
        program = self.programs.get(pid)
        if program is None:
            raise ProcessLookupError(pid)
        program.signal(number)

    def listens(self, port: int) -> bool:
        return any(
            program.state == "serving" and program._address.endswith(f":{port}") for program in self.programs.values()
        )

    def usage(self) -> dict[str, Any]:
        use = self.limit_cores or 1.0
        return {
            "usage_s": (self.loop.time() - self._began) * use * 0.9,
            "throttled_s": 0.0,
            "limit_cores": self.limit_cores or None,
            "used_bytes": self.used_bytes + _CACHED_BYTES,
            "anonymous_bytes": self.used_bytes,
            "held_bytes": self.used_bytes,
            "kills": 0,
            "limit_bytes": self.limit_bytes or _OF_NODE_BYTES,
        }

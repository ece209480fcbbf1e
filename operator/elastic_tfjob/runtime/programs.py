"""The programs of a pod: starting and stopping them, and what their ends mean.

One program runs, one may be prepared beside it, and those that were replaced are stopping. Each is a process group of
its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import priority, protocol
from elastic_tfjob.runtime.forking import Forks
from elastic_tfjob.runtime.hook import Hook
from elastic_tfjob.runtime.stderr_pipe import StderrPipe

ARCHIVE = str(Path(__file__).absolute().parents[2])
"""What holds the package `elastic_tfjob`: launcher.pyz, or a directory."""
DEVICES = Path("/dev")
EARLY_S = 60.0
"""A program that fails so soon may have failed because packages had been imported for it."""
TERM_S = 5.0
"""How long a program that is replaced has between SIGTERM and SIGKILL."""
CRASHES = frozenset(
    128 + number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
)
"""Exit codes of a program that native code has ended. TensorFlow does that by chance, too: with 2.21 a chief that was
prepared ended with SIGSEGV (seen once)."""
_LOG_LIMIT = 1 << 20


@dataclass
class Child:
    """A program of one generation, with all that it starts (its process group)."""

    generation: int
    tf_config: str | None
    mode: str = "overlap"
    pid: int = 0
    started: bool = True  # False: a spare that has not been given the user's program
    state: str = "starting"
    why: str = ""
    kill_at: float | None = None
    stderr: StderrPipe | None = None
    hook: Hook | None = None
    forked: bool = False
    began: float = 0.0  # when it was started, by the monotonic clock
    lowered: str = ""  # how its priority was lowered while it is prepared
    in_doubt: bool = False  # started because the same, forked, had ended early

    @property
    def task(self) -> protocol.Task:
        return protocol.Task.of(self.tf_config)


@dataclass
class Programs:
    """`program`: the user's command. `tf_config`: generation 0's, from the environment. `command_file`: where the
    operator's commands are. `switch`: the last decision on another generation, which is kept with what runs."""

    program: list[str]
    directory: Path
    command_file: Path | None
    tf_config: str | None
    running: Child | None = None
    prepared: Child | None = None
    stopping: list[Child] = field(default_factory=list)
    switch: dict[str, Any] | None = None
    ended_by: int | None = None  # the signal that ended this before anything ran
    _forwarded: bool = False  # the program that runs may have been told to end
    _crashed: int | None = None  # the generation that crashed while it was prepared, and was prepared once more

    def __post_init__(self) -> None:
        self._mask: set[Any] = set()
        self._forks = Forks(self.program, ARCHIVE, gpu=has_gpu(), never=self._plain())

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start_running(self, generation: int, tf_config: str | None) -> None:
        child = Child(generation, tf_config, state="running")
        self.running = child
        with contextlib.suppress(OSError):
            self._keep()
        self._spawn(child, self.program, opened=True)

    def _spawn(self, child: Child, command: Sequence[str], *, opened: bool = False) -> None:
        environment = dict(os.environ)
        try:
            folder = self._folder(child)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
            if opened:
                protocol.write(folder / protocol.GO, {"generation": child.generation, "at": time.time()})
        except OSError as error:
            self._log(f"{error}")
        environment[protocol.GENERATION] = str(child.generation)
        if opened:
            environment[protocol.OPEN] = "1"
        if os.path.isfile(ARCHIVE):
            path = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = f"{ARCHIVE}:{path}" if path else ARCHIVE
        if child.tf_config is not None:
            environment["TF_CONFIG"] = child.tf_config
        with contextlib.suppress(OSError):  # no pipe: then straight to the container's log
            child.stderr = None if opened else StderrPipe(child.generation)
        environment.update(child.stderr.environment if child.stderr else {})
        try:
            self._forks.learnt = protocol.read(self.directory / protocol.IMPORTS) or {}
            child.in_doubt = self._forks.in_doubt
            child.pid, child.forked = self._forks.start(command, environment, child.stderr, self._mask)
        finally:
            if child.stderr is not None:
                child.stderr.begin()
        beside = self.running is not None and self.running is not child
        child.lowered = priority.lower(child.pid) if beside else ""  # a new pod's first program has nobody to yield to
        child.began = time.monotonic()
        child.hook = Hook(child.pid, child.began)
        way = "was forked and " if child.forked else ""
        way += f"with low priority ({child.lowered}) " if child.lowered else ""
        self._log(f"generation {child.generation} {way}started as {child.pid}: {' '.join(command[:4])[:200]}")

    # -- ending --------------------------------------------------------------------------------------------------------

    def _stop(self, child: Child, now: float) -> None:
        if child.pid:
            signal_group(child.pid, signal.SIGTERM)
            child.kill_at = now + TERM_S
            self.stopping.append(child)

    def _drop_prepared(self) -> None:
        child, self.prepared = self.prepared, None
        if child is not None and child.pid and child.state != "failed":
            self._kill(child)
            self.stopping.append(child)

    @staticmethod
    def _kill(child: Child | None) -> None:
        if child is not None and child.pid:
            signal_group(child.pid, signal.SIGKILL)

    def _reap(self) -> int | None:
        """Collect what has ended; the exit code to end with once the running program is among it."""
        result: int | None = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if pid == 0:
                return result
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            if self.running is not None and pid == self.running.pid:
                self._log(f"generation {self.running.generation} ended with {code}")
                self._note_early_end(self.running, code)
                result = code
            elif self.prepared is not None and pid == self.prepared.pid:
                signal_group(pid, signal.SIGKILL)
                said = self.prepared.stderr.last() if self.prepared.stderr else ""
                why = f"the program ended with exit code {code}" + (f": {said}" if said else "")
                self._log(f"prepared generation {self.prepared.generation} ended with {code}: {said}")
                if self._is_worth_another(self.prepared, code):
                    if self.prepared.forked:
                        self._forks.doubt(f"forked, {why}")
                    self.prepared = None  # and is prepared again, as without forks
                    continue
                if self.prepared.in_doubt:
                    self._forks.decide(good=False)
                self.prepared.state, self.prepared.why = "failed", why
            else:
                for child in [child for child in self.stopping if child.pid == pid]:
                    signal_group(pid, signal.SIGKILL)  # what it started and left
                    self.stopping.remove(child)

    def _is_worth_another(self, child: Child, code: int) -> bool:
        """Whether a prepared program that has ended is started again: each that was forked and has not got as far as
        its hook, and once for a generation one that crashed. Where replicas of the coming generation may rely on it (a
        server that is ready), or the running program saves for it, the whole change is to be tried again instead."""
        if child.state == "starting" and child.forked and not self._says_hello(child):
            return True
        if child.state == "ready" and not child.task.chief:
            return False
        saving = self.switch is not None and self.switch["state"] == "saving"
        if code not in CRASHES or self._crashed == child.generation or saving:
            return False
        self._crashed = child.generation
        return True

    def _note_early_end(self, child: Child, code: int) -> None:
        """A program that had packages imported for it, and soon failed: its container's next begins as without that,
        since it may be the reason."""
        if not code or not self._forks.ready or self._forwarded or self._says_hello(child):
            return
        if child.hook is not None and time.monotonic() - child.hook.began < EARLY_S:
            why = f"the program ended with exit code {code} after packages had been imported for it"
            with contextlib.suppress(OSError):
                protocol.write(self.directory / protocol.PLAIN, {"why": why})

    def _forward(self, number: int) -> None:
        if self.running is None or not self.running.pid:
            if number in (signal.SIGTERM, signal.SIGINT):
                # Nothing runs yet: end as a program without handlers does, but not before a replaced one has saved,
                # for which it has as long as the pod has.
                self.ended_by = number
                self._kill(self.prepared)
                for child in self.stopping:
                    child.kill_at = None
            return
        self._forwarded = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.running.pid, number)

    def _drain(self) -> None:
        """What has been said is in the log before this ends."""
        for child in (self.running, self.prepared):
            if child is not None and child.stderr is not None:
                child.stderr.drain()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _folder(self, child: Child) -> Path:
        return protocol.generation_directory(self.directory, child.generation)

    def _plain(self) -> str:
        """Why this container's program is to be started as without preparations: once."""
        path = self.directory / protocol.PLAIN
        why = (protocol.read(path) or {}).get("why")
        with contextlib.suppress(OSError):
            path.unlink()
        return why if isinstance(why, str) else ""

    def _says_hello(self, child: Child) -> bool:
        return (self._folder(child) / protocol.HELLO).exists()

    def _keep(self) -> None:
        assert self.running is not None
        protocol.write(self.directory / protocol.COMMITTED, kept(self.running, self.switch))

    def _log(self, line: str) -> None:
        with contextlib.suppress(OSError):
            log = self.directory / "launcher.log"
            mode = "w" if log.exists() and log.stat().st_size > _LOG_LIMIT else "a"
            with open(log, mode) as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')}.{time.time_ns() // 1_000_000 % 1000:03} {line}\n")


def kept(child: Child, switch: dict[str, Any] | None) -> dict[str, Any]:
    """What a restarted container goes on with."""
    return {"generation": child.generation, "tf_config": child.tf_config, "switch": switch}


def signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def has_gpu() -> bool:
    """Of a container with one GPU of many, the device has the number that it has on the node."""
    return any(DEVICES.glob("nvidia[0-9]*")) or (DEVICES / "kfd").exists()

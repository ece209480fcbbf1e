"""The first process of the training container: runs the user's program, and the next generation's beside it.

    python3 launcher.pyz -- python train.py --steps 1000

Level-based: several times a second what the operator commands (a file that follows an annotation of the pod) is
compared with what runs, and one step is taken towards it. Which generation runs is kept in committed.json, so a
restarted container goes on where it was. The chief's launcher alone decides a switch: its program has saved and waits
-> the barrier of the prepared one opens and the old one is stopped; nobody outside the pod is asked in between.

A job's result is as without the launcher: the running program's exit code is the launcher's, output goes straight to
the container's, signals are forwarded, and whatever goes wrong in here is noted in launcher.log and changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import cgroup, protocol, spare
from elastic_tfjob.runtime.forking import IGNORED, Forks
from elastic_tfjob.runtime.hook import Hook
from elastic_tfjob.runtime.last_save import LastSave
from elastic_tfjob.runtime.words import Words

ARCHIVE = str(Path(__file__).absolute().parents[2])
"""What holds the package `elastic_tfjob`: launcher.pyz, or a directory."""

IDLE_POLL_S, POLL_S, SAVING_POLL_S = 1.0, 0.05, 0.005
"""Between two looks: while nothing goes on (each costs CPU time, which a small container has little of), while programs
come or go, and while all wait for a checkpoint."""
STATUS_S = 3.0
"""How often it says what the container uses; what changes, it says at once."""
EARLY_S = 60.0
"""A program that fails so soon may have failed because packages had been imported for it."""
TERM_S = 5.0
"""How long a program that is replaced has between SIGTERM and SIGKILL."""
_FORWARDED = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
]
_WATCHED = {*_FORWARDED, signal.SIGCHLD}
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_LOG_LIMIT = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


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
    words: Words | None = None
    hook: Hook | None = None
    forked: bool = False
    in_doubt: bool = False  # started because the same, forked, had ended early

    @property
    def task(self) -> protocol.Task:
        return protocol.Task.of(self.tf_config)


@dataclass
class Command:
    """What the operator wants; see protocol and docs/elastic.md."""

    action: str
    generation: int = 0
    mode: str = "overlap"
    tf_config: str | None = None
    timeout_s: float = 120.0
    request: int = 0  # which stop of the job a `save` is for

    @classmethod
    def parse(cls, text: str) -> Command:
        """Raises ValueError."""
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.get("action") not in ("prepare", "switch", "run", "save", "stop"):
            raise ValueError(f"no such command: {text[:200]}")
        if raw["action"] == "stop":
            return cls("stop")
        tf_config = raw.get("tf_config")
        if (
            isinstance(raw.get("generation"), bool)
            or not isinstance(raw.get("generation"), int)
            or raw["generation"] < 0
        ):
            raise ValueError(f"generation: {raw.get('generation')!r}")
        if tf_config is not None and not isinstance(tf_config, str):
            raise ValueError("tf_config is no text")
        if raw.get("mode", "overlap") not in ("overlap", "spare"):
            raise ValueError(f"mode: {raw['mode']!r}")
        return cls(
            raw["action"],
            raw["generation"],
            raw.get("mode", "overlap"),
            tf_config,
            float(raw.get("timeout_s") or 120.0),
            int(raw.get("request") or 0),
        )


@dataclass
class Launcher:
    """`program`: the user's command. `tf_config`: generation 0's, from the environment."""

    program: list[str]
    directory: Path
    command_file: Path | None
    tf_config: str | None
    command: Command | None = None
    running: Child | None = None
    prepared: Child | None = None
    stopping: list[Child] = field(default_factory=list)
    switch: dict[str, Any] | None = None
    asked: str | None = None  # the id of the save that was asked for
    save_until: float = 0.0
    _forwarded: bool = False  # it may have been told to end
    ended_by: int | None = None  # the signal that ended this before anything ran
    last_save: LastSave = field(default_factory=LastSave)
    _seen: Any = None
    _stamp: Any = None
    _said: dict[str, Any] = field(default_factory=dict)
    _status_at: float = 0.0
    _cpu: list[tuple[float, float]] = field(default_factory=list)
    _cgroup: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._forks = Forks(self.program, ARCHIVE, gpu=_has_gpu(), never=self._plain())

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, mask: set[Any]) -> int:
        """Until the running program ends; gives the launcher's exit code. `mask`: signals that children block."""
        self._mask = mask
        self._begin()
        while True:
            code = self._reap()
            if code is None and self.ended_by is not None and not self.stopping:
                code = 128 + self.ended_by
            if code is not None:
                self._kill(self.prepared)
                self._forks.look()
                self._publish(time.monotonic())
                self._drain()
                return code
            try:
                self._tick()
            except Exception as error:
                self._log(f"{type(error).__name__}: {error}")
                if self.running is not None and not self.running.pid:  # the user's program cannot be started
                    raise
            received = signal.sigtimedwait(_WATCHED, self._pause())
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._forward(received.si_signo)

    def _begin(self) -> None:
        """Start what a restarted container ran, or what the operator commands, or generation 0."""
        self._read_command()
        committed = protocol.read(self.directory / protocol.COMMITTED)
        command = self.command
        if committed is not None and isinstance(committed.get("generation"), int):
            self.switch = committed.get("switch")
            if not (command and command.action == "run" and command.generation != committed["generation"]):
                self._start_running(committed["generation"], committed.get("tf_config"))
                return
        if command is None or command.action == "stop":
            self._start_running(0, self.tf_config)
        elif command.action in ("run", "save"):
            self._start_running(command.generation, self._config(command))
        # else: a new pod, whose program is prepared and waits

    def _pause(self) -> float:
        if self.asked is not None or self.last_save.waits:
            return SAVING_POLL_S
        return POLL_S if self.prepared or self.stopping or not self.running else IDLE_POLL_S

    def _tick(self) -> None:
        now = time.monotonic()
        if self.ended_by is not None:  # all that is left is to wait for what still saves
            return
        if news := self._forks.look():
            self._log(news)
        self._read_command()
        for child in self.stopping:
            if child.kill_at is not None and now >= child.kill_at:
                _signal_group(child.pid, signal.SIGKILL)
                child.kill_at = None
        self._watch_prepared(now)
        self._follow_chief(now)
        if self.command is not None:
            self._towards(self.command, now)
        self._watch_save(now)
        self._publish(now)

    def _read_command(self) -> None:
        if self.command_file is None:
            return
        try:
            status = self.command_file.stat()  # through the symlink that the kubelet swaps
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp == self._stamp:
                return
            text = self.command_file.read_text().strip()
        except OSError:
            return
        self._stamp = stamp
        if not text or text == self._seen:
            return
        self._seen = text
        try:
            command = Command.parse(text)
        except (ValueError, TypeError, RecursionError) as error:
            self._log(f"command not understood, the last one stays: {error}")
            return
        self._log(f"command: {command.action} {command.generation} {command.mode}")
        # A generation that was refused may be tried again: only a repeated `switch` is the same attempt.
        if command.action == "prepare" and self.switch and self.switch["generation"] == command.generation:
            self.switch = None
            self._withdraw()  # else what is saved for the attempt before would commit it
        self.command = command

    # -- towards the command -------------------------------------------------------------------------------------------

    def _towards(self, command: Command, now: float) -> None:
        if command.action == "stop":
            return
        running = self.running
        if command.action == "save":
            self._cancel("the job is stopped")
            self._drop_prepared()
            if running is not None and running.task.chief and self._says_hello(running):
                self.last_save.ask(self._folder(running), command.request, now)
            return
        if running is not None and self.last_save.said is not None:
            self.last_save.withdraw(self._folder(running))
        if command.action == "run":
            if self.switch is not None and self.switch["generation"] != command.generation:
                self._cancel("the operator took it back")
            if running is not None and running.generation == command.generation:
                self._drop_prepared()
            elif self._is_prepared(command.generation):
                if running is not None and running.task.chief:
                    self._switch(command, now)  # nobody but this launcher has it take over, and never without a save
                else:
                    self._commit(now)
            elif running is not None:
                self._drop_prepared()
                self.running = None
                self._stop(running, now)
            elif not self.stopping:  # its port may be the one that was in use
                self._drop_prepared()
                if not self.stopping:
                    self._start_running(command.generation, self._config(command))
            return
        if running is not None and running.generation == command.generation:
            return
        if self.prepared is not None and (
            self.prepared.generation != command.generation or self.prepared.mode != command.mode
        ):
            self._cancel("another generation is prepared")
            self._drop_prepared()
        if self.prepared is None or (self.prepared.state == "starting" and not self.prepared.pid):
            if not self.stopping:  # one of them may have the port
                self._prepare(command)
            if self.prepared is None:
                return
        if command.action == "prepare":
            self._cancel("the operator took it back")
        else:
            self._switch(command, now)

    def _is_prepared(self, generation: int) -> bool:
        child = self.prepared
        if child is None or child.generation != generation or child.state == "failed":
            return False
        return bool(child.pid) or child.state == "ready"

    def _prepare(self, command: Command) -> None:
        """Start a generation beside what runs. A program that trains must have said that it uses ElasticCheckpoint: its
        next generation would not wait, but train too. A restarted one needs a while to say so."""
        if self.prepared is None:
            self.prepared = Child(command.generation, self._config(command), command.mode)
        child = self.prepared
        task = child.task
        if task.trains and self.running is not None and not self._says_hello(self.running):
            child.why = "the running program does not use ElasticCheckpoint (yet)"
            return
        child.why = ""
        if not task.trains and not task.serves:
            # An evaluator is beside the cluster: it starts when it is to run.
            child.state, child.started = "ready", False
            return
        waiting = spare.command(self.program, ARCHIVE) if command.mode == "spare" else self.program
        if waiting is None:
            child.state, child.why = "failed", "only `python SCRIPT` and `python -m MODULE` can wait as a spare"
            return
        child.started = command.mode != "spare"
        try:
            self._spawn(child, waiting)
        except OSError as error:
            child.state, child.why = "failed", f"cannot be started: {error}"

    def _switch(self, command: Command, now: float) -> None:
        prepared, running = self.prepared, self.running
        assert prepared is not None
        if (
            prepared.mode == "spare"
            and prepared.pid
            and not prepared.started
            and prepared.task.serves
            and not _has_gpu()
        ):
            if prepared.state == "ready":
                self._begin_spare(prepared)
                prepared.state = "starting"
            return
        if running is None or not running.task.chief:
            return
        if self.switch and self.switch["generation"] == command.generation and self.switch["state"] != "saving":
            return  # decided
        if self.switch is None or self.switch["generation"] != command.generation:
            self.save_until = now + command.timeout_s
            self._decide(command.generation, "saving")
        if prepared.state == "failed":
            self._refuse(prepared.why)
        elif now >= self.save_until:
            why = "not saved" if self.asked else "not ready"
            self._refuse(f"{why} within {command.timeout_s:g} s")
        elif self.asked is None and prepared.state == "ready":
            self.asked = f"{command.generation}-{time.time_ns()}"
            request = {"id": self.asked, "generation": command.generation}
            protocol.write(self._folder(running) / protocol.SAVE, request)

    def _watch_save(self, now: float) -> None:
        """The running program's answer to a request to save."""
        if self.asked is None or self.running is None or self.prepared is None:
            return
        answer = protocol.read(self._folder(self.running) / protocol.SAVED)
        if answer is None or answer.get("id") != self.asked:
            return
        if not answer.get("ok"):
            self._refuse(f"checkpoint: {answer.get('why') or 'failed'}")
        elif self.prepared.state == "failed":
            self._refuse(self.prepared.why)
        else:
            self._commit(now)

    def _commit(self, now: float) -> None:
        """The prepared program is the running one from here on. Once its barrier is open there is no way back; if that
        cannot be done (OSError), nothing has changed. What a restarted container goes on with is written before, and
        only renamed after: a volume that is full by then cannot bring the old generation back."""
        prepared, old = self.prepared, self.running
        assert prepared is not None
        decided = _decision(prepared.generation, "committed") if self.asked is not None else self.switch
        committed = protocol.stage(self.directory / protocol.COMMITTED, _kept(prepared, decided))
        try:
            self._open(prepared)
        except BaseException:
            os.unlink(committed)
            raise
        with contextlib.suppress(OSError):
            os.replace(committed, self.directory / protocol.COMMITTED)
        self.running, self.prepared = prepared, None
        if prepared.words is not None:
            prepared.words.unmark()
        if self.asked is not None:
            self.asked, self.switch = None, decided
            self._log(f"switch to {prepared.generation}: committed")
        if old is not None:
            self._stop(old, now)
        self._log(f"generation {prepared.generation} runs")

    def _open(self, child: Child) -> None:
        protocol.write(self._folder(child) / protocol.GO, {"generation": child.generation, "at": time.time()})
        if child.started:
            return
        if child.pid:
            self._begin_spare(child)
        else:
            child.started = True
            self._spawn(child, self.program, opened=True)

    def _begin_spare(self, child: Child) -> None:
        protocol.write(self._folder(child) / protocol.START, {"tf_config": child.tf_config})
        child.started = True

    def _watch_prepared(self, now: float) -> None:
        child = self.prepared
        if child is None or child.state != "starting" or not child.pid:
            return
        waits = protocol.read(self._folder(child) / protocol.READY)
        if not child.started:
            ready = waits is not None and bool(waits.get("spare"))
        elif child.task.trains:
            ready = waits is not None and not waits.get("spare")
        else:
            ready = _listens(child.task.port)
        if ready:
            child.state = "ready"
            if child.in_doubt:
                self._forks.decide(good=True)
            self._log(f"generation {child.generation} is ready")

    def _follow_chief(self, now: float) -> None:
        """A prepared program that has begun with its chief is the one that runs, also while no operator is there to say
        so: what it replaces has lost its chief, and would end with an error."""
        child = self.prepared
        if child is None or child.state != "ready" or child.task.chief or not child.task.trains:
            return
        if (self._folder(child) / protocol.BEGUN).exists():
            self._commit(now)

    # -- the switch ----------------------------------------------------------------------------------------------------

    def _decide(self, generation: int, state: str, why: str = "") -> None:
        self.switch = _decision(generation, state, why)
        self._log(f"switch to {generation}: {state} {why}")

    def _refuse(self, why: str) -> None:
        """Let the running program go on."""
        assert self.switch is not None
        self._decide(self.switch["generation"], "refused", why)
        self._withdraw()

    def _withdraw(self) -> None:
        self.asked = None
        if self.running is not None:
            with contextlib.suppress(OSError):
                (self._folder(self.running) / protocol.SAVE).unlink()

    def _cancel(self, why: str) -> None:
        if self.switch is not None and self.switch["state"] == "saving":
            self._refuse(why)

    # -- processes -----------------------------------------------------------------------------------------------------

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
            child.words = None if opened else Words(child.generation)
        environment.update(child.words.environment if child.words else {})
        try:
            self._forks.learnt = protocol.read(self.directory / protocol.IMPORTS) or {}
            child.in_doubt = self._forks.in_doubt
            child.pid, child.forked = self._forks.start(command, environment, child.words, self._mask)
        finally:
            if child.words is not None:
                child.words.begin()
        child.hook = Hook(child.pid, time.monotonic())
        way = "was forked and " if child.forked else ""
        self._log(f"generation {child.generation} {way}started as {child.pid}: {' '.join(command[:4])[:200]}")

    def _stop(self, child: Child, now: float) -> None:
        if child.pid:
            _signal_group(child.pid, signal.SIGTERM)
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
            _signal_group(child.pid, signal.SIGKILL)

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
                _signal_group(pid, signal.SIGKILL)
                said = self.prepared.words.last() if self.prepared.words else ""
                why = f"the program ended with exit code {code}" + (f": {said}" if said else "")
                self._log(f"prepared generation {self.prepared.generation} ended with {code}: {said}")
                if self.prepared.forked and self.prepared.state == "starting" and not self._says_hello(self.prepared):
                    self._forks.doubt(f"forked, {why}")
                    self.prepared = None  # and is prepared again, as without forks
                    continue
                if self.prepared.in_doubt:
                    self._forks.decide(good=False)
                self.prepared.state, self.prepared.why = "failed", why
            else:
                for child in [child for child in self.stopping if child.pid == pid]:
                    _signal_group(pid, signal.SIGKILL)  # what it started and left
                    self.stopping.remove(child)

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

    # -- files ---------------------------------------------------------------------------------------------------------

    def _folder(self, child: Child) -> Path:
        return protocol.generation_directory(self.directory, child.generation)

    def _config(self, command: Command) -> str | None:
        return self.tf_config if command.tf_config is None else command.tf_config

    def _plain(self) -> str:
        """Why this container's program is to be started as without preparations: once."""
        path = self.directory / protocol.PLAIN
        why = (protocol.read(path) or {}).get("why")
        with contextlib.suppress(OSError):
            path.unlink()
        return why if isinstance(why, str) else ""

    def _note_early_end(self, child: Child, code: int) -> None:
        """A program that had packages imported for it, and soon failed: its container's next begins as without that,
        since it may be the reason."""
        if not code or not self._forks.ready or self._forwarded or self._says_hello(child):
            return
        if child.hook is not None and time.monotonic() - child.hook.began < EARLY_S:
            why = f"the program ended with exit code {code} after packages had been imported for it"
            with contextlib.suppress(OSError):
                protocol.write(self.directory / protocol.PLAIN, {"why": why})

    def _says_hello(self, child: Child) -> bool:
        return (self._folder(child) / protocol.HELLO).exists()

    def _keep(self) -> None:
        assert self.running is not None
        protocol.write(self.directory / protocol.COMMITTED, _kept(self.running, self.switch))

    def _drain(self) -> None:
        """What has been said is in the log before this ends."""
        for child in (self.running, self.prepared):
            if child is not None and child.words is not None:
                child.words.drain()

    def _hook(self) -> bool | None:
        """Whether the program that runs, and trains, has constructed ElasticCheckpoint: see docs/elastic.md."""
        child = self.running
        if child is None or child.hook is None or not child.task.trains:
            return None
        return child.hook.says(self._says_hello(child), (self._folder(child) / protocol.IMPORTED).exists())

    def _modes(self) -> list[str]:
        """How this pod can be rescaled now. A program that trains must use ElasticCheckpoint: else its next generation
        would not wait, but train beside it."""
        if self.running is not None and self.running.task.trains and not self._says_hello(self.running):
            return []
        modes = []
        used, limit = self._cgroup.get("anonymous_bytes"), self._cgroup.get("limit_bytes")
        two_fit = not used or not limit or (self.prepared is not None) or 2 * used <= limit
        if two_fit and not _has_gpu():
            modes.append("overlap")
        if spare.command(self.program, ARCHIVE):
            modes.append("spare")
        return modes

    def _publish(self, now: float) -> None:
        """Say what runs: now and then with what the container can do and uses, and at once where it changes."""
        prepared, due = self.prepared, now - self._status_at >= STATUS_S
        if due and self.running and self.running.hook and self.running.task.trains and self._hook() is None:
            self.running.hook.look(now)
        state = {
            "generation": self.running.generation if self.running else None,
            "prepared": prepared
            and {
                "generation": prepared.generation,
                "mode": prepared.mode,
                "state": prepared.state,
                "why": prepared.why,
            },
            "switch": self.switch,
            "modes": self._modes(),
            "hook": self._hook(),
            "saved": self.last_save.said,
            "start": self._forks.report(),
        }
        if not due and state == self._said:
            return
        if due:
            self._status_at, self._cgroup = now, {"at": time.time(), **cgroup.usage()}
            if prepared is None and not self.stopping:
                self._forks.make_room(self._cgroup.get("anonymous_bytes"), self._cgroup.get("limit_bytes"))
            if (used := self._cgroup.get("usage_s")) is not None:
                self._cpu = [*self._cpu[-5:], (now, used)]
        self._said = state
        (first, before), (last, after) = (self._cpu[0], self._cpu[-1]) if self._cpu else ((0.0, 0.0), (0.0, 0.0))
        use = {"cgroup": self._cgroup, "use_cores": (after - before) / (last - first) if last > first else None}
        with contextlib.suppress(OSError):
            protocol.write(self.directory / protocol.LAUNCHER, {"at": time.time(), **state, **use})

    def _log(self, line: str) -> None:
        with contextlib.suppress(OSError):
            log = self.directory / "launcher.log"
            mode = "w" if log.exists() and log.stat().st_size > _LOG_LIMIT else "a"
            with open(log, mode) as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')}.{time.time_ns() // 1_000_000 % 1000:03} {line}\n")


def _decision(generation: int, state: str, why: str = "") -> dict[str, Any]:
    return {"generation": generation, "state": state, "why": why, "at": time.time()}


def _kept(child: Child, switch: dict[str, Any] | None) -> dict[str, Any]:
    """What a restarted container goes on with."""
    return {"generation": child.generation, "tf_config": child.tf_config, "switch": switch}


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _listens(port: int) -> bool:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.settimeout(0.2)
            probe.connect((address, port))
            return True
    return False


def _has_gpu() -> bool:
    return os.path.exists("/dev/nvidia0") or os.path.exists("/dev/kfd")


def main() -> None:
    """Run the command after `--`. Does not return."""
    arguments = sys.argv[1:]
    program = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not program:
        sys.exit("usage: launcher.pyz -- COMMAND [ARGUMENT...]")
    directory = Path(os.environ.get(protocol.DIRECTORY) or "/elastic-tfjob")
    try:
        protocol.write(directory / protocol.LAUNCHER, {"at": time.time()})
    except OSError as error:
        # No place to speak through: then the program alone. Where one is only full, what was committed still counts.
        if error.errno not in _FULL and protocol.read(directory / protocol.COMMITTED) is None:
            _become(program)
    with contextlib.suppress(OSError, AttributeError):  # PID 1 gets orphans anyway
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    command = os.environ.get(protocol.COMMAND)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    launcher = Launcher(program, directory, Path(command) if command else None, os.environ.get("TF_CONFIG"))
    try:
        code = launcher.run(mask)
    except OSError as error:  # of the first start: what a shell would say
        print(f"{program[0]}: {error.strerror or error}", file=sys.stderr)
        code = 127 if isinstance(error, FileNotFoundError) else 126
    sys.stdout.flush()
    os._exit(code)


def _become(program: list[str]) -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"{program[0]}: {error.strerror or error}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)

"""The first process of the training container: runs the user's program, and the next generation's beside it.

    python3 launcher.pyz -- python train.py --steps 1000

Level-based: several times a second what the operator commands (a file that follows an annotation of the pod) is
compared with what runs, and one step is taken towards it. Which generation runs is kept in committed.json, so a
restarted container goes on where it was. The chief's launcher alone decides a switch: its program has saved and waits
-> the barrier of the prepared one opens and the old one is stopped; nobody outside the pod is asked in between.

A job's result is as without the launcher: the running program's exit code is the launcher's, output goes straight to
the container's, signals are forwarded, and whatever goes wrong in here is noted in launcher.log and changes nothing.
One thing is more: where the command is a shell that does not pass a signal on, the program behind it gets the signal,
and the container ends when that program has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_tfjob.runtime import cgroup, protocol, spare
from elastic_tfjob.runtime.forkserver import IGNORED
from elastic_tfjob.runtime.programs import ARCHIVE, has_gpu
from elastic_tfjob.runtime.protocol import LauncherCommand
from elastic_tfjob.runtime.switching import Switching

# -- The checkpoint that the operator asks for before it ends a pod ----------------------------------------------------
# The program saves, and stands still from then on.
#
# The request is the one of a switch (save.json), so programs need know nothing of it. Where a save fails the program
# trains on, and is asked again after a while: whether the pod ends without a checkpoint is the operator's decision.

AGAIN_S = 10.0
"""After a save that failed."""
STANDS_S = 600.0
"""So long a program that has saved stands still for the end of its pod. Where no operator is there to end it, it trains
on for as long, and is asked again."""


class SaveBeforeStop:
    """`said` is what the exporter tells of it: `request`, `state` (`saving`, `saved`, `refused`), `why`, `step`."""

    def __init__(self) -> None:
        self.said: dict[str, Any] | None = None
        self._id = ""
        self._again_at = 0.0
        self._saved_at = 0.0

    @property
    def waits(self) -> bool:
        """Whether the program has been asked and has not answered yet."""
        return self.said is not None and self.said["state"] == "saving"

    def ask(self, folder: Path, request: int, now: float) -> None:
        """Ask the program whose folder this is, once for each request, and take in its answer. Raises OSError."""
        said = self.said
        again = said is not None and said["state"] == "refused" and now >= self._again_at
        if said is None or said["request"] != request or again:
            self._id = f"stop-{request}-{time.time_ns()}"
            protocol.write(folder / protocol.SAVE, {"id": self._id, "generation": request})
            self.said = _said(request, "saving")
        elif said["state"] == "saving":
            answer = protocol.read(folder / protocol.SAVED)
            if answer is None or answer.get("id") != self._id:
                return
            if answer.get("ok"):
                self.said = _said(request, "saved", step=answer.get("step"))
                self._saved_at = now
            else:
                self.withdraw(folder)
                self.said = _said(request, "refused", why=str(answer.get("why") or "failed"))
                self._again_at = now + AGAIN_S
        elif said["state"] == "saved" and now - self._saved_at >= STANDS_S:
            self.withdraw(folder)
            self.said = _said(request, "refused", why=f"its pod was not ended for {STANDS_S:.0f} s, so it trains on")
            self._again_at = now + STANDS_S

    def withdraw(self, folder: Path) -> None:
        """Let the program go on."""
        self.said = None
        with contextlib.suppress(OSError):
            (folder / protocol.SAVE).unlink()


def _said(request: int, state: str, *, why: str = "", step: object = None) -> dict[str, Any]:
    return {"request": request, "state": state, "why": why, "step": step}


IDLE_POLL_S, POLL_S, SAVING_POLL_S = 1.0, 0.05, 0.005
"""Between two looks: while nothing goes on (each costs CPU time, which a small container has little of; a command is
heard at once where the kernel tells of it), while programs come or go, and while all wait for a checkpoint."""
STATUS_S = 3.0
"""How often it says what the container uses; what changes, it says at once."""
_FORWARDED = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
]
_TOLD = {signal.SIGCHLD, signal.SIGIO}
"""The kernel's, for the launcher itself: a child has ended, the folder of commands has changed."""
_WATCHED = {*_FORWARDED, *_TOLD}
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Launcher(Switching):
    """What one container runs, from its start to its end."""

    command: LauncherCommand | None = None
    last_save: SaveBeforeStop = field(default_factory=SaveBeforeStop)
    _seen: Any = None
    _stamp: Any = None
    _said: dict[str, Any] = field(default_factory=dict)
    _status_at: float = 0.0
    _cpu: list[tuple[float, float]] = field(default_factory=list)
    _cgroup: dict[str, Any] = field(default_factory=dict)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, mask: set[Any]) -> int:
        """Until the running program ends; gives the launcher's exit code. `mask`: signals that children block."""
        self._mask = mask
        if early := signal.sigpending() & {signal.SIGTERM, signal.SIGINT}:
            return 128 + int(min(early))
        self._listen()
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
            if received is not None and received.si_signo not in _TOLD:
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
        busy = self.prepared or self.stopping or not self.running or self.result is not None
        return POLL_S if busy else IDLE_POLL_S

    def _tick(self) -> None:
        now = time.monotonic()
        if self.ended_by is not None or self.result is not None:  # all that is left is to wait for what still saves
            return
        if news := self._forks.look():
            self._log(news)
        self._read_command()
        for child in self.stopping:
            if child.kill_at is not None and now >= child.kill_at:
                self._kill(child)
        self._watch_prepared(now)
        self._follow_chief(now)
        if self.command is not None:
            self._towards(self.command, now)
        self._watch_save(now)
        self._publish(now)

    def _listen(self) -> None:
        """Have the kernel send SIGIO when a file in the folder of commands is replaced, as the kubelet does, or
        written. Not every kernel does (dnotify); what it does not tell is seen a poll later."""
        if self.command_file is None:
            return
        with contextlib.suppress(OSError):
            folder = os.open(self.command_file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # open to the end
            fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_RENAME | fcntl.DN_MODIFY | fcntl.DN_MULTISHOT)

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
            command = LauncherCommand.parse(text)
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

    def _towards(self, command: LauncherCommand, now: float) -> None:
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

    # -- what it says --------------------------------------------------------------------------------------------------

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
        if two_fit and not has_gpu():
            modes.append("overlap")
        if spare.command(self.program, ARCHIVE):
            modes.append("spare")
        return modes

    def _publish(self, now: float) -> None:
        """Say what runs: now and then with what the container can do and uses, and at once where it changes."""
        prepared, due = self.prepared, now - self._status_at >= STATUS_S
        if due and self.running and self.running.hook and self.running.task.trains and self._hook() is None:
            self.running.hook.look(now, self._forks.has_imported("tensorflow"))
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
            "preparation": self.preparation,
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


def main(mask: set[Any] | None = None) -> None:
    """Run the command after `--`. Does not return. `mask`: signals that were blocked when this process began, where
    more are by now."""
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
            _become(program, mask)
    with contextlib.suppress(OSError, AttributeError):  # PID 1 gets orphans anyway
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    command = os.environ.get(protocol.COMMAND)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    launcher = Launcher(program, directory, Path(command) if command else None, os.environ.get("TF_CONFIG"))
    try:
        code = launcher.run(before if mask is None else mask)
    except OSError as error:  # of the first start: what a shell would say
        print(f"{program[0]}: {error.strerror or error}", file=sys.stderr)
        code = 127 if isinstance(error, FileNotFoundError) else 126
    sys.stdout.flush()
    os._exit(code)


def _become(program: list[str], mask: set[Any] | None) -> None:
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"{program[0]}: {error.strerror or error}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)

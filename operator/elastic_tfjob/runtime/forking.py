"""How a generation's program is started: forked from an interpreter that has imported what it imports, or as a process
of its own. The launcher's side; forkserver.py is the other one.

A program that is started as a process of its own is asked to leave such an interpreter behind, so that only the first
start of a pod imports. Where there is none, each program is started as it would be without all this, and `why` says
what the reason is.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elastic_tfjob.runtime import cgroup, preload
from elastic_tfjob.runtime.forkserver import DESCRIPTOR, IGNORED, VARIABLE

if TYPE_CHECKING:
    from elastic_tfjob.runtime.stderr_pipe import StderrPipe

LEAST_LIMIT = 1 << 30
"""A container with a smaller limit of memory keeps no second interpreter: about 100 MB are its own."""
MOST_OWN = 120 << 20
"""Bytes of memory that only the second interpreter has, at most (measured with TensorFlow 2.21: 24 to 64 MB)."""
ANSWER_S = 10.0
"""How long a fork may take before the program is started as a process of its own. On a busy machine both take long, and
a process of its own imports everything again."""
MAX_WHY, _MAX_MESSAGE = 200, 1 << 16


class Forks:
    """The interpreter that later generations of one command are forked from, if there is one."""

    def __init__(self, command: Sequence[str], archive: str, *, gpu: bool, never: str = "") -> None:
        self._command, self._archive = list(command), archive
        self._never = (never or self._impossible(gpu))[:MAX_WHY]
        self._channel: socket.socket | None = None
        self._data = b""
        self._doubt = self._gone = ""
        self._exact = False
        self.pid = 0
        self.packages: list[str] = []
        self.variables: dict[str, str] = {}
        self.learnt: dict[str, Any] = {}
        """What the last generation said of what it had imported (protocol.IMPORTS), as it wrote it."""

    def _impossible(self, gpu: bool) -> str:
        program, why = preload.program_of(self._command)
        if program is None:
            return why
        if not os.path.isfile(self._archive):
            return "the launcher is no archive, which the program's interpreter could import from"
        if gpu:
            return "the container has a GPU, whose state cannot be shared"
        limit = cgroup.usage().get("limit_bytes")
        if limit is not None and limit < LEAST_LIMIT:
            return f"the container's memory is limited to {limit >> 20} MiB: at least {LEAST_LIMIT >> 20} are needed"
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= DESCRIPTOR:
            return "too few files can be open"
        return ""

    @property
    def ready(self) -> bool:
        return bool(self.pid)

    def has_imported(self, package: str) -> bool:
        """Whether the program that left the interpreter behind, and so each that is forked from it, has imported it."""
        return self.ready and package in self.packages

    @property
    def why(self) -> str:
        """Why the next program will not be forked; empty if it will."""
        if self.ready:
            return ""
        coming = "the interpreter is not ready" if self._channel is not None else "there is no interpreter yet"
        return (self._never or self._doubt or self._gone or coming)[:MAX_WHY]

    def report(self) -> dict[str, Any]:
        """How the next program is started, for the launcher's file."""
        way = "fork" if self.ready else "exec"
        return {"way": way, "why": self.why, "packages": self.packages[:8] if self.ready else []}

    # -- starting ------------------------------------------------------------------------------------------------------

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], stderr: StderrPipe | None, mask: set[Any]
    ) -> tuple[int, bool]:
        """Start a program: its process id, and whether it was forked. Raises OSError if it cannot be started."""
        ours = list(command) == self._command and not self._never and not self._doubt
        if ours and self.ready and not self._old():
            try:
                return self._fork(environment, stderr), True
            except (OSError, ValueError) as error:
                self.close(f"the interpreter has not forked: {error}")
        if ours:
            with contextlib.suppress(OSError):  # the environment may be too large with what is added
                return self._spawn_first(command, environment, stderr, mask), False
            self.close("the command does not start with what is added for forks")
        return _spawn(command, environment, stderr.actions if stderr else [], mask), False

    def _old(self) -> bool:
        """Whether the program set variables for its libraries that were not set when these were imported, where these
        were a guess."""
        if self._exact:
            return False
        told = preload.variables(self.learnt.get("environment"))
        changed = sorted(name for name in told if told[name] != self.variables.get(name)) if told else []
        if changed:
            self.close(f"{changed[0]} was another when the packages were imported")
        return bool(changed)

    def _spawn_first(
        self, command: Sequence[str], environment: Mapping[str, str], stderr: StderrPipe | None, mask: set[Any]
    ) -> int:
        """As a process of its own, which is to leave an interpreter behind."""
        self.close(self._gone)
        path = environment.get("PYTHONPATH")
        told = {
            "fd": DESCRIPTOR,
            "path": path,
            "command": self._command,
            "packages": preload.packages(self.learnt.get("packages")),
            "variables": preload.variables(self.learnt.get("environment")),
        }
        start = os.path.join(self._archive, "elastic_tfjob", "runtime", "start")
        added = {VARIABLE: json.dumps(told), "PYTHONPATH": f"{start}:{path}" if path else start}
        here, there = socket.socketpair()
        try:
            actions = [*(stderr.actions if stderr else []), (os.POSIX_SPAWN_DUP2, there.fileno(), DESCRIPTOR)]
            pid = _spawn(command, {**environment, **added}, actions, mask)
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        here.setblocking(False)
        self._channel, self._gone = here, ""
        return pid

    def _fork(self, environment: Mapping[str, str], stderr: StderrPipe | None) -> int:
        """Raises OSError or ValueError if there is no such program then."""
        assert self._channel is not None
        until = time.monotonic() + ANSWER_S
        here, there = socket.socketpair()
        with here:
            with there:
                text = json.dumps({"environment": dict(environment)}).encode()
                files = [there.fileno(), *([stderr.writes] if stderr else [])]
                self._channel.settimeout(ANSWER_S)
                try:
                    socket.send_fds(self._channel, [len(text).to_bytes(4, "big")], files)
                    self._channel.sendall(text)
                finally:
                    self._channel.setblocking(False)
            answer, data = None, b""
            while answer is None:
                here.settimeout(max(until - time.monotonic(), 0.001))
                part = here.recv(1 << 16)
                if not part:
                    raise OSError("it ended")
                data += part
                answer, data = _message(data)
            if "refused" in answer:
                raise OSError(str(answer["refused"])[:MAX_WHY])
            if answer.get("parent") != os.getpid() or not isinstance(answer.get("pid"), int):
                raise OSError("what it forks is not the launcher's")
            here.send(b"1")
            return int(answer["pid"])

    # -- the interpreter that stays ------------------------------------------------------------------------------------

    def look(self) -> str:
        """Take note of what it said; gives a line for the log if there is news."""
        if self._channel is None:
            return ""
        try:
            part = self._channel.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return ""
        except OSError:
            part = b""
        self._data += part
        try:
            message, self._data = _message(self._data)
        except ValueError as error:
            message, part = {"refused": str(error)}, b""
        if message is not None and message.get("ready") is True and isinstance(message.get("pid"), int):
            self.pid, self._exact = message["pid"], message.get("exact") is True
            self.packages = preload.packages(message.get("packages"))
            self.variables = preload.variables(message.get("variables"))
            return f"interpreter with {', '.join(self.packages)} started as {self.pid}: later generations are forked"
        if message is not None or not part:
            self.close(str((message or {}).get("refused") or "the interpreter to fork from has ended")[:MAX_WHY])
            return f"no forks: {self.why}"
        return ""

    def close(self, why: str) -> None:
        """Let it end. The next program is started as a process of its own, and may leave another one."""
        if self._channel is not None:
            self._channel.close()
        self._channel, self._data, self.pid, self._gone = None, b"", 0, why

    def never(self, why: str) -> None:
        """Let it end, and have no other."""
        self.close(why)
        self._never = why[:MAX_WHY]

    def make_room(self, used: int | None, limit: int | None) -> None:
        """Let it end where the container, whose memory this is, could hold two programs but for it."""
        if self.ready and used and limit and 2 * used > limit >= 2 * (used - MOST_OWN):
            self.never("with it the container's memory would not hold two programs")

    # -- a program that a fork may not agree with ----------------------------------------------------------------------

    def doubt(self, why: str) -> None:
        """A forked program has ended before it was of use: start it again, as without all this."""
        self.close(why)
        self._doubt = why[:MAX_WHY]

    def decide(self, *, good: bool) -> None:
        """How a program did that was started in doubt: if well, forks are not for it, else the fault is not theirs."""
        if self._doubt and good:
            self._never = self._doubt
        self._doubt = ""

    @property
    def in_doubt(self) -> bool:
        return bool(self._doubt)


def _message(data: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """The first message, if it is whole, and what follows it. Raises ValueError if it is none."""
    if len(data) < 4:
        return None, data
    size = int.from_bytes(data[:4], "big")
    if size > _MAX_MESSAGE:
        raise ValueError("it does not speak as it should")
    if len(data) < 4 + size:
        return None, data
    content = json.loads(data[4 : 4 + size])
    if not isinstance(content, dict):
        raise ValueError("it does not speak as it should")
    return content, data[4 + size :]


def _spawn(command: Sequence[str], environment: Mapping[str, str], actions: Sequence[Any], mask: set[Any]) -> int:
    """Raises OSError."""
    return os.posix_spawnp(
        command[0],
        list(command),
        environment,
        file_actions=actions,
        setpgroup=0,
        setsigmask=mask,
        setsigdef=IGNORED,
    )

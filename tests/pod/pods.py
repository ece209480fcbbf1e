"""Pods as processes of this machine: a directory each, a launcher in it, and commands as the operator writes them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from elastic_tfjob.exporter.status import status
from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.install import install

T = TypeVar("T")
PYTHON = os.environ.get("TRAINER_PYTHON") or sys.executable
"""What runs training programs and their launcher: `make test-versions` chooses others."""


def until(what: str, true: Callable[[], T | None], seconds: float = 60.0) -> T:
    """What `true` gives once that is not falsy. A busy machine takes long, and is no failure."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return found


HIDDEN = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
NO_BODY = b"Content-Length: 0\r\n"
TWICE = [
    NO_BODY,
    b"Content-Length: %d\r\n" % len(HIDDEN),
    b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(HIDDEN),
    b"Content-Length: -1\r\n",
    b"Content-Length: +%d\r\n" % len(HIDDEN),
    b"Content-Length: 1_0\r\n",
    b"Content-Length: \r\n",
    b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(HIDDEN),
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding: identity\r\nContent-Length: %d\r\n" % len(HIDDEN),
    b"Content-Length : %d\r\n" % len(HIDDEN),
    b"X: y\r\n Content-Length: %d\r\n" % len(HIDDEN),
    b"X: y\rContent-Length: %d\r\n" % len(HIDDEN),
    b"X: y\r\r\nContent-Length: %d\r\n" % len(HIDDEN),
    b"Content-Length: \x0b%d\r\n" % len(HIDDEN),
]
"""Header fields of a request that is followed by bytes that look like another request. Of a body, or where it is not
sure what is a body, nothing may be answered."""

_EARLY = """
import os, runpy, signal, sys

class Early:
    def find_spec(name, path=None, target=None):
        if name == importing:
            os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the first process of a container, where nothing handles it
importing, sys.argv = sys.argv[1], sys.argv[2:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
sys.meta_path.insert(0, Early)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ended_early(importing: str, program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that is told to end when it begins to import this module, once it has ended."""
    return subprocess.run(
        [PYTHON, "-c", _EARLY, importing, program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


class Pod:
    """One pod's launcher and directory."""

    def __init__(
        self,
        directory: Path,
        program: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        python: str | Path = PYTHON,
    ) -> None:
        self.directory = directory
        self.shared = directory / "elastic-tfjob"
        self.shared.mkdir(parents=True, exist_ok=True)
        self.command_file = directory / "command"
        self.command_file.touch()
        self.launcher = install(self.shared)
        self.program, self.python = [str(each) for each in program], python
        self.environment = dict(environment or {})
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Pod":
        environment = {
            **os.environ,
            "ELASTIC_TFJOB_DIR": str(self.shared),
            "ELASTIC_TFJOB_COMMAND": str(self.command_file),
            **self.environment,
        }
        with open(self.directory / "output", "ab") as output:
            self.process = subprocess.Popen(
                [self.python, self.launcher, "--", *self.program], env=environment, stdout=output, stderr=output
            )
        return self

    def command(self, action: str, generation: int = 0, **more: Any) -> None:
        """Replace the command as the kubelet does: the whole file at once."""
        new = self.directory / "command.new"
        new.write_text(json.dumps({"action": action, "generation": generation, **more}))
        os.replace(new, self.command_file)

    @property
    def status(self) -> dict[str, Any]:
        return status(self.shared)

    @property
    def output(self) -> str:
        return (self.directory / "output").read_text()

    @property
    def log(self) -> str:
        """What the launcher has noted so far."""
        path = self.shared / "launcher.log"
        return path.read_text() if path.exists() else ""

    def heard(self, command: str) -> None:
        """Wait until the launcher has read a command ("run 1"), and has looked again since: what it would have begun is
        begun. It says something every few seconds, also where nothing changes."""
        until(f"it has read {command!r}", lambda: f" command: {command} " in self.log)
        since = time.time()
        until("it looks again", lambda: (protocol.read(self.shared / protocol.LAUNCHER) or {}).get("at", 0.0) > since)

    @property
    def started(self) -> subprocess.Popen[bytes]:
        """The launcher's process."""
        assert self.process is not None
        return self.process

    def wait(self, seconds: float = 60.0) -> int:
        return self.started.wait(seconds)

    def signal(self, number: int) -> None:
        self.started.send_signal(number)

    def stop(self) -> None:
        """Kill what is left: launcher, and the programs that its log names. When this ends they have ended, and with
        them the ports that they had."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        killed = []
        for line in self.log.splitlines():
            if " started as " in line:
                pid = int(line.split(" started as ")[1].split(":")[0])
                try:
                    environment = Path(f"/proc/{pid}/environ").read_bytes()
                except OSError:
                    continue
                if str(self.shared).encode() in environment:
                    with contextlib.suppress(ProcessLookupError):  # it may end meanwhile
                        os.killpg(pid, signal.SIGKILL)
                        killed.append(pid)
        until("all that was killed has ended", lambda: not any(map(lives, killed)))


def lives(pid: int) -> bool:
    """Whether a thread of this process is left; a zombie has none, and no files."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if stat.read_text().rpartition(") ")[2][0] not in "ZX":
                return True
    return False

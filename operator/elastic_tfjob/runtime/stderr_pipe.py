"""Standard error of a program that is prepared: a pipe on its way to the container's log, which keeps the last lines.

A program that runs writes straight to the container's log. One that is prepared beside it writes through a pipe, whose
other end marks each line with its generation and keeps the last of them. When it takes over, `restore` gives it the
container's own standard error; a program that never calls that goes on through the pipe.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import threading
import time
from collections import deque

from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.forkserver import OWN_STDERR

_LINES, _LINE_BYTES, _TOLD = 200, 2000, 600
_DRAIN_S = 1.0


def restore() -> None:
    """In the program: write to the container's own standard error from here on."""
    own = os.environ.pop(protocol.STDERR, None)
    with contextlib.suppress(OSError, ValueError):
        if own:
            os.dup2(int(own), 2)
            os.close(int(own))


class StderrPipe:
    """In the launcher: the standard error of one generation's program. Raises OSError where there can be no pipe."""

    def __init__(self, generation: int) -> None:
        os.fstat(2)
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= OWN_STDERR:
            raise OSError("too few files can be open")
        self.environment = {protocol.STDERR: str(OWN_STDERR)}
        self._mark = f"[generation {generation}] ".encode()
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._busy = threading.Lock()
        self._reads, self.writes = os.pipe()
        self.actions = [(os.POSIX_SPAWN_DUP2, 2, OWN_STDERR), (os.POSIX_SPAWN_DUP2, self.writes, 2)]
        """What posix_spawn is to do with the program's descriptors."""
        self._thread = threading.Thread(target=self._forward, name="stderr", daemon=True)

    def begin(self) -> None:
        """The program has the other end now, or there is none: from here on only the pipe's end counts."""
        os.close(self.writes)
        self._thread.start()

    def unmark(self) -> None:
        """It takes over: what it writes is that of the program that runs."""
        self._mark = b""

    def last(self) -> str:
        """What the program said last, in one line of at most 600 characters: the exception of the last traceback, else
        the last lines. To be called when it has ended."""
        self.drain()
        lines = [line for line in list(self._lines) if line.strip()]
        begins = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        if begins and (told := [line for line in lines[begins[-1] + 1 :] if not line.startswith((" ", "\t"))]):
            return " ".join(told)[:_TOLD]
        return " | ".join(line.strip() for line in lines[-10:])[-_TOLD:]

    def drain(self) -> None:
        """Wait until all that was written has been passed on, a second at most: the log may be stuck."""
        until, empty = time.monotonic() + _DRAIN_S, False
        while self._thread.is_alive() and time.monotonic() < until:
            # What the program has started may hold the pipe open: an empty one is enough.
            if self._busy.acquire(timeout=_DRAIN_S):
                with contextlib.suppress(OSError, ValueError):  # closed: it has all been read
                    empty = not select.select([self._reads], [], [], 0)[0]
                self._busy.release()
                if empty:
                    return
            time.sleep(0.005)

    def _forward(self) -> None:
        begun = b""  # a line without its end
        data = b"\n"
        while data:
            select.select([self._reads], [], [])
            with self._busy:
                data = os.read(self._reads, 1 << 16)
                self._pass_on(data, begins=not begun)
                *lines, begun = (begun + data).split(b"\n")
                begun = begun[-_LINE_BYTES:]
                for line in lines if data else [begun]:
                    self._lines.append(line[-_LINE_BYTES:].decode(errors="replace"))
        os.close(self._reads)

    def _pass_on(self, data: bytes, *, begins: bool) -> None:
        mark = self._mark
        if mark and data:
            whole = data.endswith(b"\n")
            data = (mark if begins else b"") + (data[:-1] if whole else data).replace(b"\n", b"\n" + mark)
            data += b"\n" if whole else b""
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(2, data) :]

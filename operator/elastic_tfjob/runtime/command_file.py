"""The file of the operator's commands to a launcher: the kubelet shows an annotation of the pod there."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Callable

from elastic_tfjob.runtime.protocol import LauncherCommand


class CommandFile:
    """`path`: the file, None if there is none. `log`: writes a line to the launcher's log."""

    def __init__(self, path: Path | None, log: Callable[[str], None]) -> None:
        self._path, self._log = path, log
        self._text: str | None = None
        self._stamp: tuple[int, int, int] | None = None

    def watch(self) -> None:
        """Have the kernel send SIGIO when a file in the file's folder is replaced (as the kubelet does) or written. Not
        every kernel can (dnotify); the poll sees a change without a signal."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # open to the end
            fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_RENAME | fcntl.DN_MODIFY | fcntl.DN_MULTISHOT)

    def read(self) -> LauncherCommand | None:
        """The command, if the file has another one than before; None if not, or if it is invalid."""
        if self._path is None:
            return None
        try:
            status = self._path.stat()  # through the symlink that the kubelet swaps
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp == self._stamp:
                return None
            text = self._path.read_text().strip()
        except OSError:
            return None
        self._stamp = stamp
        if not text or text == self._text:
            return None
        self._text = text
        try:
            command = LauncherCommand.parse(text)
        except (ValueError, TypeError, RecursionError) as error:
            self._log(f"invalid command, the previous one still applies: {error}")
            return None
        self._log(f"command: {command.action} {command.generation} {command.mode}")
        return command

"""What it takes that files outlive a power loss, and the thread that does it beside training.

`fsync` of a file flushes it whoever wrote it, as long as that was on the same machine: so the chief does it for its
parameter servers, too. On a network file system whoever writes a file flushes it to the server when it closes it (NFS:
"close-to-open"), and the chief's fsync adds nothing to that.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Callable

_UNSUPPORTED = frozenset((errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP))
"""A file system that has no fsync (for folders, say): it does not know more about durability than it has done."""


def local(directory: str) -> str | None:
    """The path by which this machine's kernel knows the directory; None for a URL, whose service has its own rules."""
    scheme, found, path = directory.partition("://")
    if not found:
        return directory
    return path if scheme == "file" else None


def sync(path: str) -> None:
    """Have a file or folder on disk when this returns. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(handle)


def sync_files(folder: str, names: Iterable[str]) -> None:
    """Have these files of a folder, and their names, on disk. Raises OSError."""
    for name in names:
        sync(f"{folder}/{name}")
    sync(folder)


def sync_parents(folder: str) -> None:
    """Have the names of the folders on disk that lead to this one, within its volume, as far as that is allowed.
    Raises OSError."""
    folder = os.path.abspath(folder)
    try:
        while not os.path.ismount(folder):
            folder = os.path.dirname(folder)
            sync(folder)
    except PermissionError:
        return  # a folder above that is not this user's was there before


def write(path: str, text: str, *, flush: bool = True) -> None:
    """Write a file that, with `flush`, is on disk when this returns. Raises OSError."""
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        if not flush:
            return
        try:
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise


class BackgroundSync:
    """A thread that does `work` with the newest step that it was given, and `tick` when it starts and every `every_s`
    seconds. Steps that a newer one overtakes are left out."""

    def __init__(self, work: Callable[[int], None], tick: Callable[[], None], every_s: float) -> None:
        self._work, self._tick, self._every_s = work, tick, every_s
        self._changed = threading.Condition()
        self._todo: int | None = None
        self._not_before = 0.0
        self._busy = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to tick. Once is enough."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="elastic-tfjob-checkpoints", daemon=True)
                self._thread.start()

    def give(self, step: int, after_s: float = 0.0) -> None:
        """Do it with this step, `after_s` seconds from now at the earliest."""
        self.start()
        with self._changed:
            self._todo, self._not_before = step, time.monotonic() + after_s
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all is done; whether it is, within that time."""
        with self._changed:
            self._not_before = 0.0
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._todo is None and not self._busy, seconds)

    def _loop(self) -> None:
        next_tick = time.monotonic()
        while True:
            with self._changed:
                now = time.monotonic()
                due = next_tick if self._todo is None else min(next_tick, self._not_before)
                if due > now:
                    self._changed.wait(due - now)
                    continue
                step = None
                if self._todo is not None and self._not_before <= now:
                    step, self._todo, self._busy = self._todo, None, True
            try:
                if step is not None:
                    self._work(step)
                else:
                    next_tick = now + self._every_s
                    self._tick()
            except Exception as error:  # without this thread nothing would become durable any more
                print(f"elastic-tfjob, checkpoints: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

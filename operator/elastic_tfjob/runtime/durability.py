"""Flushing files so that they survive a power loss, and the thread that does it beside training.

`fsync` flushes a file whichever process of the machine wrote it, so the chief does it for its parameter servers, too.
On a network file system the writer flushes a file to the server when it closes it (NFS: "close-to-open"), and the
chief's fsync adds nothing to that.
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
"""Errors of a file system without fsync (for folders, say): there is nothing more to do for durability."""


def local(directory: str) -> str | None:
    """The directory's path on this machine; None for a URL, whose service has its own rules of durability."""
    scheme, found, path = directory.partition("://")
    if not found:
        return directory
    return path if scheme == "file" else None


def sync(path: str) -> None:
    """Flush a file or folder to disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(handle)


def sync_files(folder: str, names: Iterable[str]) -> None:
    """Flush these files of a folder to disk, and then their names. Raises OSError."""
    for name in names:
        sync(f"{folder}/{name}")
    sync(folder)


def sync_parents(folder: str) -> None:
    """Flush the names of the folders above this one to disk, within its volume and as far as that is allowed. Raises
    OSError."""
    folder = os.path.abspath(folder)
    try:
        while not os.path.ismount(folder):
            folder = os.path.dirname(folder)
            sync(folder)
    except PermissionError:
        return  # a folder of another user existed before


def write(path: str, text: str, *, flush: bool = True) -> None:
    """Write a file; with `flush` it is on disk when this returns. Raises OSError."""
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
    """A thread that calls `work` with the newest given step, and `tick` at its start and every `every_s` seconds. A
    step is skipped if a newer one is given before its turn."""

    def __init__(self, work: Callable[[int], None], tick: Callable[[], None], every_s: float) -> None:
        self._work, self._tick, self._every_s = work, tick, every_s
        self._changed = threading.Condition()
        self._next: int | None = None
        self._not_before_s = 0.0
        self._busy = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="elastic-tfjob-checkpoints", daemon=True)
                self._thread.start()

    def give(self, step: int, after_s: float = 0.0) -> None:
        """Have `work` called with this step, `after_s` seconds from now at the earliest."""
        self.start()
        with self._changed:
            self._next, self._not_before_s = step, time.monotonic() + after_s
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until the given steps are done. Returns whether that was within the time."""
        with self._changed:
            self._not_before_s = 0.0
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._next is None and not self._busy, seconds)

    def _loop(self) -> None:
        next_tick_s = time.monotonic()
        while True:
            with self._changed:
                now_s = time.monotonic()
                due_s = next_tick_s if self._next is None else min(next_tick_s, self._not_before_s)
                if due_s > now_s:
                    self._changed.wait(due_s - now_s)
                    continue
                step = None
                if self._next is not None and self._not_before_s <= now_s:
                    step, self._next, self._busy = self._next, None, True
            try:
                if step is not None:
                    self._work(step)
                else:
                    next_tick_s = now_s + self._every_s
                    self._tick()
            except Exception as error:  # the thread must survive: without it no checkpoint becomes durable
                print(f"elastic-tfjob, checkpoints: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

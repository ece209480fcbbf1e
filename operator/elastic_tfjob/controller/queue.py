"""The work queue: keys, each at most once, never handled by two workers at a time."""

import asyncio
from collections import deque
from typing import Final

from elastic_tfjob.controller import metrics
from elastic_tfjob.controller.observed import Key

__all__ = ["KeyQueue"]

_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 60.0


class KeyQueue:
    """Keys that wait, keys that are due later, and keys that are being handled.

    Keys that had a time to wait for come before the others: they are jobs that have begun, whose next step is small.
    A thousand new jobs must not stand between a running pod and the status that says so.
    """

    def __init__(self) -> None:
        self._begun: deque[Key] = deque()
        self._new: deque[Key] = deque()
        self._waiting: set[Key] = set()
        self._handled: set[Key] = set()
        self._again: set[Key] = set()
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Semaphore(0)
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Have a key handled, now or after a while. Of several times the earliest holds."""
        if after_s <= 0:
            if timer := self._later.pop(key, None):
                timer.cancel()
            self._add_now(key, self._new)
            return
        if key in self._waiting:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + after_s
        if timer := self._later.get(key):
            if timer.when() <= due:
                return
            timer.cancel()
        self._later[key] = loop.call_at(due, self._due, key)

    def _due(self, key: Key) -> None:
        self._later.pop(key, None)
        self._add_now(key, self._begun)

    def _add_now(self, key: Key, line: deque[Key]) -> None:
        if key in self._handled:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            line.append(key)
            self._wake.release()
            metrics.QUEUE_DEPTH.set(len(self._waiting))

    async def take(self) -> Key:
        """The next key; `done` must follow."""
        await self._wake.acquire()
        key = (self._begun or self._new).popleft()
        self._waiting.remove(key)
        self._handled.add(key)
        self._idle.clear()
        metrics.QUEUE_DEPTH.set(len(self._waiting))
        return key

    def done(self, key: Key) -> None:
        """The key was handled; it is queued again if it was added meanwhile."""
        self._handled.remove(key)
        if key in self._again:
            self._again.remove(key)
            self._add_now(key, self._begun)
        if not self._handled:
            self._idle.set()

    async def idle(self) -> None:
        """Return when no key is being handled."""
        if self._handled:
            await self._idle.wait()

    def retry(self, key: Key) -> float:
        """Have a key that failed handled again, later each time; returns after how many seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        after_s = min(_BACKOFF_S * 2.0 ** min(failures - 1, 16), _MAX_BACKOFF_S)
        self.add(key, after_s)
        return after_s

    def succeeded(self, key: Key) -> None:
        """Forget a key's failures."""
        self._failures.pop(key, None)

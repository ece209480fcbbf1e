"""The work queue: keys, each at most once, never handled by two workers at a time, namespaces in turn."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import Gauge

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.fair import FairQueue
from elastic_tfjob.controller.objects.parsing import Key

__all__ = ["NOT_SURE_S", "KeyQueue"]

NOT_SURE_S: Final = 1.0
"""How long a key waits whose turn came while this replica was not sure to lead."""
_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 60.0


class KeyQueue:
    """Keys that wait, keys that are due later, and keys that are being handled by `workers` workers.

    Namespaces take turns, and none occupies all workers (see fair.py). Of a namespace's keys, those that had a time to
    wait for come before the others: they are jobs that have begun, whose next step is small. A thousand new jobs must
    not stand between a running pod and the status that says so. `depth` shows how many keys wait.
    """

    def __init__(self, workers: int = 64, depth: Gauge | None = metrics.QUEUE_DEPTH) -> None:
        self._depth = depth
        self._line: FairQueue[Key] = FairQueue(workers)
        self._waiting: set[Key] = set()
        self._handled: set[Key] = set()
        # By key, whether it must come back at once, and not only after what it failed for has had its time.
        self._again: dict[Key, bool] = {}
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        # By key that failed, the time of its next attempt on the loop's clock.
        self._retry_at: dict[Key, float] = {}

    def __len__(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Have a key handled, now or after a while. Of several times the earliest holds, but what is added for later
        never comes before the retry of a key that failed: what a failing job does to its pods must not call it back."""
        if after_s <= 0:
            if timer := self._later.pop(key, None):
                timer.cancel()
            self._retry_at.pop(key, None)
            self._add_now(key, at_once=True)
            return
        if key in self._waiting:
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time() + after_s, self._retry_at.get(key, 0.0))
        if (timer := self._later.get(key)) is None or due < timer.when():
            self._add_at(key, due)

    def _add_at(self, key: Key, due: float) -> None:
        if timer := self._later.pop(key, None):
            timer.cancel()
        self._later[key] = asyncio.get_running_loop().call_at(due, self._due, key)

    def _due(self, key: Key) -> None:
        self._later.pop(key, None)
        self._retry_at.pop(key, None)
        self._add_now(key, begun=True)

    def _add_now(self, key: Key, *, begun: bool = False, at_once: bool = False) -> None:
        if key in self._handled:
            self._again[key] = at_once or self._again.get(key, False)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._line.add(key[0], key, urgent=begun)
            self._show()

    async def turn(self, handle: Callable[[Key], Awaitable[None]], holds: Callable[[], bool]) -> None:
        """Handle the next key, if this replica may act. Else the key comes again in a moment: of a process that was
        paused either the lease is renewed by then, or this one ends."""
        key = await self.take()
        try:
            if holds():
                await handle(key)
            else:
                self.add(key, NOT_SURE_S)
        finally:
            self.done(key)
        # A key without anything to write has let nobody else run so far.
        await asyncio.sleep(0)

    async def take(self) -> Key:
        """The next key; `done` must follow."""
        _, key = await self._line.take()
        self._waiting.remove(key)
        self._handled.add(key)
        self._show()
        return key

    def _show(self) -> None:
        if self._depth is not None:
            self._depth.set(len(self._waiting))

    def done(self, key: Key) -> None:
        """The key was handled; it is queued again if it was added meanwhile."""
        self._handled.remove(key)
        at_once = self._again.pop(key, None)
        # Of a key that has failed meanwhile the retry is set already.
        if at_once or (at_once is False and key not in self._retry_at):
            self._add_now(key, begun=True)
        self._line.done(key[0])

    async def idle(self) -> None:
        """Return when no key is being handled."""
        await self._line.idle()

    def retry(self, key: Key) -> float:
        """Have a key that failed handled again, later each time; returns after how many seconds. Only `add` without a
        time brings it back before."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        after_s = min(_BACKOFF_S * 2.0 ** min(failures - 1, 16), _MAX_BACKOFF_S)
        if key not in self._waiting:
            self._retry_at[key] = asyncio.get_running_loop().time() + after_s
            self._add_at(key, self._retry_at[key])
        return after_s

    def succeeded(self, key: Key) -> None:
        """Forget a key's failures."""
        self._failures.pop(key, None)
        self._retry_at.pop(key, None)

    def forget(self, key: Key) -> None:
        """Forget all of a key that does not exist any more, also when it is due, which may be years away."""
        self.succeeded(key)
        if timer := self._later.pop(key, None):
            timer.cancel()

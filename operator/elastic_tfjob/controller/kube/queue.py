"""The work queue: each key waits at most once, one worker at a time handles it, and namespaces take turns."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from math import inf
from typing import Final, Generic, TypeVar

from prometheus_client import Gauge

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.model.job import Key

__all__ = ["NOT_SURE_S", "FairQueue", "FairSlots", "KeyQueue", "Shares", "fair_share"]


# -- Fairness between tenants (namespaces) -----------------------------------------------------------------------------
# A tenant with many requests gets what the other tenants leave, but never the whole total.
#
#     Shares      how much of a fixed total each tenant holds, and whether it may take more
#     FairQueue   items waiting for workers: tenants take turns, and no tenant occupies all workers
#     FairSlots   a semaphore with the same rules
#     fair_share  each tenant's share of a rate if all demands are known
#
# Rule of the first three: a tenant may take more while it holds less than is free. A single tenant then gets half of
# the total, two get a third each, and any number of greedy tenants leaves something for the next one. The rule comes
# from network switches, where it is called dynamic thresholds (Choudhury and Hahne, 1998).

T = TypeVar("T")


def fair_share(wanted: Iterable[float], total: float) -> float:
    """The maximum per tenant so that the sum does not exceed `total`; what a smaller demand leaves is divided among the
    larger ones (max-min fairness). Infinite if all demands fit."""
    rest = sorted(wanted)
    for had, each in enumerate(rest):
        share = total / (len(rest) - had)
        if each > share:
            return share
        total -= each
    return inf


class Shares:
    """How much of `total` each tenant holds, in any unit."""

    def __init__(self, total: int) -> None:
        self.free = total
        self._held: dict[str, int] = {}

    def admits(self, tenant: str) -> bool:
        """Whether the tenant may take more."""
        return self._held.get(tenant, 0) < self.free

    def take(self, tenant: str, amount: int = 1) -> None:
        self.free -= amount
        self._held[tenant] = self._held.get(tenant, 0) + amount

    def give(self, tenant: str, amount: int = 1) -> None:
        self.free += amount
        left = self._held[tenant] - amount
        if left:
            self._held[tenant] = left
        else:
            del self._held[tenant]

    @property
    def idle(self) -> bool:
        """Whether no tenant holds anything."""
        return not self._held


class _Lines(Generic[T]):
    """A line of waiting items per tenant, and the order of the tenants. Urgent items precede the tenant's other items.

    The cost of taking an item grows with the number of tenants at their limit, not with the number of waiting items.
    """

    def __init__(self) -> None:
        self._turns: OrderedDict[str, tuple[deque[T], deque[T]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, tenant: str, item: T, *, urgent: bool = False) -> None:
        lines = self._turns.get(tenant)
        if lines is None:
            lines = self._turns[tenant] = deque(), deque()
        lines[0 if urgent else 1].append(item)
        self._count += 1

    def pop(self, shares: Shares) -> tuple[str, T] | None:
        """Take the next item of the next tenant that may take one. Returns tenant and item; None if no tenant may."""
        tenant = next((tenant for tenant in self._turns if shares.admits(tenant)), None)
        if tenant is None:
            return None
        urgent, others = self._turns[tenant]
        item = (urgent or others).popleft()
        self._count -= 1
        if urgent or others:
            self._turns.move_to_end(tenant)
        else:
            del self._turns[tenant]
        shares.take(tenant)
        return tenant, item


class FairQueue(Generic[T]):
    """Items of tenants for `workers` workers. A worker takes an item and calls `done` with its tenant afterwards."""

    def __init__(self, workers: int) -> None:
        self._lines: _Lines[T] = _Lines()
        self._shares = Shares(workers)
        self._takers: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """Number of items that wait for a worker."""
        return len(self._lines)

    def add(self, tenant: str, item: T, *, urgent: bool = False) -> None:
        self._lines.add(tenant, item, urgent=urgent)
        self._wake_one()

    async def take(self) -> tuple[str, T]:
        """The next item and its tenant."""
        while (found := self._lines.pop(self._shares)) is None:
            taker = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except BaseException:
                # A taker that is cancelled at the moment it is woken wakes the next one instead.
                if taker.done() and not taker.cancelled():
                    self._wake_one()
                raise
        self._idle.clear()
        # One finished item may admit two others of different tenants, so this call wakes the taker of the second.
        self._wake_one()
        return found

    def done(self, tenant: str) -> None:
        """Report that an item of the tenant is finished."""
        self._shares.give(tenant)
        if self._shares.idle:
            self._idle.set()
        self._wake_one()

    async def idle(self) -> None:
        """Return when no worker handles an item."""
        await self._idle.wait()

    def _wake_one(self) -> None:
        while self._takers and self._lines:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return


class FairSlots:
    """Slots for `async with slots.of(tenant)`: at most `total` are in use at a time."""

    def __init__(self, total: int) -> None:
        self._lines: _Lines[asyncio.Future[None]] = _Lines()
        self._shares = Shares(total)

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        waiter = asyncio.get_running_loop().create_future()
        self._lines.add(tenant, waiter)
        self._grant()
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self._give(tenant)
            raise
        try:
            yield
        finally:
            self._give(tenant)

    def _give(self, tenant: str) -> None:
        self._shares.give(tenant)
        self._grant()

    def _grant(self) -> None:
        while (found := self._lines.pop(self._shares)) is not None:
            tenant, waiter = found
            if not waiter.cancelled():
                waiter.set_result(None)
            else:
                self._shares.give(tenant)


NOT_SURE_S: Final = 1.0
"""Seconds that a key waits if its turn came while this replica was not sure to lead."""
_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 60.0


class KeyQueue:
    """Keys that wait, keys that are due later, and keys that one of `workers` workers handles now.

    Namespaces take turns, and none occupies all workers (see Shares). Within a namespace, keys that were added with a
    delay precede the other keys: they belong to jobs that have started, and their next step is small. A thousand new
    jobs must not delay the status of a running pod. The gauge `depth` shows the number of waiting keys.
    """

    def __init__(self, workers: int = 64, depth: Gauge | None = metrics.QUEUE_DEPTH) -> None:
        self._depth = depth
        self._line: FairQueue[Key] = FairQueue(workers)
        self._waiting: set[Key] = set()
        self._handled: set[Key] = set()
        # Keys added while they are handled. True: queue the key again at once, even if a retry is due later.
        self._again: dict[Key, bool] = {}
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        # By failed key, the time of its retry on the event loop's clock.
        self._retry_at_s: dict[Key, float] = {}

    def __len__(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._waiting)

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Queue a key now or in `after_s` seconds. If a key is added several times, the earliest time counts. A key
        that failed and is added with a delay is not handled before its retry: pod changes caused by a failing job must
        not shorten its backoff."""
        if after_s <= 0:
            if timer := self._later.pop(key, None):
                timer.cancel()
            self._retry_at_s.pop(key, None)
            self._add_now(key, at_once=True)
            return
        if key in self._waiting:
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time() + after_s, self._retry_at_s.get(key, 0.0))
        if (timer := self._later.get(key)) is None or due < timer.when():
            self._add_at(key, due)

    def _add_at(self, key: Key, due_s: float) -> None:
        if timer := self._later.pop(key, None):
            timer.cancel()
        self._later[key] = asyncio.get_running_loop().call_at(due_s, self._due, key)

    def _due(self, key: Key) -> None:
        self._later.pop(key, None)
        self._retry_at_s.pop(key, None)
        self._add_now(key, begun=True)

    def _add_now(self, key: Key, *, begun: bool = False, at_once: bool = False) -> None:
        if key in self._handled:
            self._again[key] = at_once or self._again.get(key, False)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._line.add(key[0], key, urgent=begun)
            self._show()

    async def turn(self, handle: Callable[[Key], Awaitable[None]], holds: Callable[[], bool]) -> None:
        """Handle the next key if `holds()`, that is if this replica may act. Otherwise the key is queued again in
        NOT_SURE_S: after a pause of the process, the lease is either renewed by then or this replica stops."""
        key = await self.take()
        try:
            if holds():
                await handle(key)
            else:
                self.add(key, NOT_SURE_S)
        finally:
            self.done(key)
        # Handling a key that needs no write has not yielded to the event loop yet.
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
        """Report that the key was handled. It is queued again if it was added meanwhile."""
        self._handled.remove(key)
        at_once = self._again.pop(key, None)
        # If the key has failed meanwhile, its retry is already scheduled.
        if at_once or (at_once is False and key not in self._retry_at_s):
            self._add_now(key, begun=True)
        self._line.done(key[0])

    async def idle(self) -> None:
        """Return when no worker handles a key."""
        await self._line.idle()

    def retry(self, key: Key) -> float:
        """Schedule the retry of a failed key with exponential backoff. Returns the delay in seconds. Only `add` without
        a delay queues it earlier."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        after_s = min(_BACKOFF_S * 2.0 ** min(failures - 1, 16), _MAX_BACKOFF_S)
        if key not in self._waiting:
            self._retry_at_s[key] = asyncio.get_running_loop().time() + after_s
            self._add_at(key, self._retry_at_s[key])
        return after_s

    def succeeded(self, key: Key) -> None:
        """Reset a key's backoff."""
        self._failures.pop(key, None)
        self._retry_at_s.pop(key, None)

    def forget(self, key: Key) -> None:
        """Drop everything about a key whose object is gone, including its timer, which may be due in years."""
        self.succeeded(key)
        if timer := self._later.pop(key, None):
            timer.cancel()

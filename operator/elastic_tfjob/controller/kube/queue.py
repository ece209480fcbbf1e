"""The work queue: keys, each at most once, never handled by two workers at a time, namespaces in turn."""

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
# Whoever asks for much gets what the others leave, and never all there is.
#
#     Shares      how much of a fixed total each tenant holds, and whether it may hold more
#     FairQueue   items that wait for workers: tenants take turns, and none occupies all workers
#     FairSlots   a semaphore with the same rules
#     fair_share  what each may have of a rate, where what is wanted is known
#
# The rule of the first three: a tenant may take while it holds less than is free. One tenant then gets half of the
# total, two get a third each, and however many are greedy, something is left for the next one to come. In switches,
# where it comes from, it is called dynamic thresholds (Choudhury and Hahne, 1998).

T = TypeVar("T")


def fair_share(wanted: Iterable[float], total: float) -> float:
    """The most that one may have so that all together have no more than `total`: who wants less leaves the rest to the
    others (max-min fairness). Infinite where all have what they want."""
    rest = sorted(wanted)
    for had, each in enumerate(rest):
        share = total / (len(rest) - had)
        if each > share:
            return share
        total -= each
    return inf


class Shares:
    """What each tenant holds of `total`, in whatever unit."""

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
        """Whether nobody holds anything."""
        return not self._held


class _Lines(Generic[T]):
    """A line of waiting items for each tenant, and the tenants' turns. Urgent items come before their tenant's others.

    Taking one costs no more than there are tenants that hold something and may not hold more, however many items wait.
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
        """The next item of the next tenant that may take one, which it then has. None where none may."""
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
    """Items of tenants, for `workers` workers: each takes one, and calls `done` with its tenant when it is through."""

    def __init__(self, workers: int) -> None:
        self._lines: _Lines[T] = _Lines()
        self._shares = Shares(workers)
        self._takers: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """Items that wait for a worker."""
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
                # Whoever is cancelled in the moment of being called hands the call on.
                if taker.done() and not taker.cancelled():
                    self._wake_one()
                raise
        self._idle.clear()
        # One item that is done may admit two others, of different tenants: the second is this call's to hand on.
        self._wake_one()
        return found

    def done(self, tenant: str) -> None:
        """An item of that tenant was dealt with."""
        self._shares.give(tenant)
        if self._shares.idle:
            self._idle.set()
        self._wake_one()

    async def idle(self) -> None:
        """Return when no item is being worked at."""
        await self._idle.wait()

    def _wake_one(self) -> None:
        while self._takers and self._lines:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return


class FairSlots:
    """`async with slots.of(tenant)`: at most `total` at a time."""

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

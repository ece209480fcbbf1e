"""Fairness between tenants (namespaces): whoever asks for much gets what the others leave, and never all there is.

    Shares      how much of a fixed total each tenant holds, and whether it may hold more
    FairQueue   items that wait for workers: tenants take turns, and none occupies all workers
    FairSlots   a semaphore with the same rules
    fair_share  what each may have of a rate, where what is wanted is known

The rule of the first three: a tenant may take while it holds less than is free. One tenant then gets half of the total,
two get a third each, and however many are greedy, something is left for the next one to come. In switches, where it
comes from, it is called dynamic thresholds (Choudhury and Hahne, 1998).
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf
from typing import Generic, TypeVar

__all__ = ["FairQueue", "FairSlots", "Shares", "fair_share"]

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

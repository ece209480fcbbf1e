"""Room and turns that nobody takes from others. Who asks much is refused, or waits, behind their own questions."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from elastic_tfjob.controller.query.gate import Refused

__all__ = ["Room", "Turns"]

_AGAIN_S: Final = 1


class Room:
    """Places, `most` in all. Nobody holds more of them than are free: one holder has half at the most, two have a third
    each, and there is room for who comes next. `what` says what the places are, in messages."""

    def __init__(self, most: Callable[[], int], what: str) -> None:
        self._most = most
        self._what = what
        self._held: Counter[Hashable] = Counter()
        self._all = 0

    @contextmanager
    def hold(self, holder: Hashable, *, alone: bool = False) -> Iterator[None]:
        """Hold a place while the context is open. `alone`: there is one holder only, who may have all. Raises Refused:
        503 where there is no place, 429 where this holder has too many."""
        most = self._most()
        if self._all >= most:
            raise Refused(503, f"{most} {self._what} are open, and no more are taken at once", again_s=_AGAIN_S)
        if not alone and self._held[holder] >= most - self._all:
            mine = self._held[holder]
            raise Refused(429, f"you have {mine} {self._what} open, and others need the rest", again_s=_AGAIN_S)
        self._held[holder] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]


class Turns:
    """`per_s` turns in a second, and twice as many at once after a pause; `at_once` at the same time. Sources that wait
    have them one after the other, so each waits for one turn of every other source and for its own questions. `most`:
    how many may wait."""

    def __init__(
        self,
        per_s: Callable[[], float],
        at_once: int,
        most: int,
        what: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_s = per_s
        self._at_once = at_once
        self._room = Room(lambda: most, what)
        self._clock = clock
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._under_way = 0
        # A bucket that runs out at `per_s`: when it was looked at last, and how full it was then.
        self._at, self._level = clock(), 0.0
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, source: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the context is open. Raises Refused where too many wait already."""
        with self._room.hold(source):
            await self._wait(source)
        try:
            yield
        finally:
            self._end()

    async def _wait(self, source: Hashable) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(source, deque()).append(turn)
        self._go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come at the same moment
                self._end()
            raise

    def _end(self) -> None:
        self._under_way -= 1
        self._go_on()

    def _go_on(self) -> None:
        """Give turns to who waits, as many as there are now."""
        while self._waiting and self._under_way < self._at_once:
            now, per_s = self._clock(), self._per_s()
            self._at, self._level = now, max(0.0, self._level - per_s * (now - self._at))
            if (late := (self._level + 1.0 - max(1.0, 2 * per_s)) / per_s) > 0:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(late, self._wake)
                return
            source, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(source)
            else:
                del self._waiting[source]
            if not turn.cancelled():
                turn.set_result(None)
                self._level += 1.0
                self._under_way += 1

    def _wake(self) -> None:
        self._timer = None
        self._go_on()

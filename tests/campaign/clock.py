"""Virtual time: an event loop whose clock jumps to the next timer when nothing is ready, and the clocks of the product.

The product reads `time.monotonic()`, `time.time()` and `datetime.now()` in its own modules; `virtual_time` replaces the
names `time` and `datetime` there, for as long as the block lasts, by ones that follow the loop that runs.
"""

import asyncio
import contextlib
import datetime as real_datetime
import heapq
import sys
import time as real_time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import Any, Final, TypeVar

__all__ = ["EPOCH_S", "Deadlock", "VirtualLoop", "format_now", "now", "virtual_time", "wall"]

T = TypeVar("T")

EPOCH_S: Final = 1_767_323_045.0
"""Unix time when a world begins."""
_BEGIN_S: Final = 1000.0
_LEAST_S: Final = 1e-9
_MODULES: Final = ("elastic_tfjob.controller.", "elastic_tfjob.runtime.", "elastic_tfjob.exporter.")


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: this world stands still for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """One thread, no files, no sockets; what others would run in a thread runs at once. When nothing is ready the clock
    is that of the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = _BEGIN_S
        self._ready: deque[asyncio.Handle] = deque()
        self._stopping: bool
        # Timers by time, then in the order in which they were set.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._set = 0

    def time(self) -> float:
        return self._virtual_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def _run_once(self) -> None:
        """As asyncio's, which looks for files and measures real time in between."""
        ready, timers = self._ready, self._timers
        if not ready and not self._stopping:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Deadlock("nothing is ready and no timer is set")
            # Who waits for less than a float can tell waits for something: else it would wait here for ever.
            self._virtual_s = max(self._virtual_s + _LEAST_S, timers[0][0])
        while timers and timers[0][0] <= self._virtual_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _write_to_self(self) -> None:
        """Nobody else is there to wake this loop."""


def now() -> float:
    """The loop's clock; the real one in a thread that has none, such as one that a test before has left."""
    loop = asyncio._get_running_loop()
    return real_time.monotonic() if loop is None else loop.time()


def wall() -> float:
    """Unix time of the world; the real one in a thread that has no loop."""
    loop = asyncio._get_running_loop()
    return real_time.time() if loop is None else EPOCH_S + loop.time() - _BEGIN_S


def format_now(after_s: float = 0.0) -> str:
    """So many seconds from now, in RFC 3339 in whole seconds."""
    return real_time.strftime("%Y-%m-%dT%H:%M:%SZ", real_time.gmtime(wall() + after_s))


class _Time:
    """The module `time` with the clocks of the loop that runs."""

    monotonic = staticmethod(now)
    time = staticmethod(wall)

    @staticmethod
    def time_ns() -> int:
        return int(wall() * 1e9)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)


class _Meta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, real_datetime.datetime)


class _Datetime(real_datetime.datetime, metaclass=_Meta):
    @classmethod
    def now(cls, tz: real_datetime.tzinfo | None = None) -> real_datetime.datetime:  # type: ignore[override]
        return real_datetime.datetime.fromtimestamp(wall(), tz)


@contextlib.contextmanager
def virtual_time() -> Iterator[None]:
    """The product's modules that are loaded by now read virtual clocks."""
    shim = _Time()
    changed: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if not name.startswith(_MODULES):
            continue
        for attribute, original, virtual in (
            ("time", real_time, shim),
            ("datetime", real_datetime.datetime, _Datetime),
        ):
            if getattr(module, attribute, None) is original:
                changed.append((module, attribute, original))
                setattr(module, attribute, virtual)
    try:
        yield
    finally:
        for module, attribute, original in changed:
            setattr(module, attribute, original)

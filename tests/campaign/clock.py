"""Virtual time: an event loop whose clock jumps to the next timer when nothing is ready, and the clocks of the product.

The product reads `time.monotonic()`, `time.time()` and `datetime.now()` in its own modules; `virtual_time` replaces the
names `time` and `datetime` there, for as long as the block lasts, by ones that follow the loop that runs.
"""

import asyncio
import contextlib
import datetime as real_datetime
import sys
import time as real_time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

__all__ = ["EPOCH_S", "Deadlock", "VirtualLoop", "format_now", "now", "virtual_time", "wall"]

T = TypeVar("T")

EPOCH_S: Final = 1_767_323_045.0
"""Unix time when a world begins."""
_BEGIN_S: Final = 1000.0
_MODULES: Final = ("elastic_tfjob.controller.", "elastic_tfjob.runtime.", "elastic_tfjob.exporter.")


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: this world stands still for ever."""


class _Jump:
    """In place of a selector: waiting is a jump of the clock."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set")
        self._loop.jump(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """One thread, no files, no sockets; what others would run in a thread runs at once."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = _BEGIN_S
        self._scheduled: list[asyncio.TimerHandle]
        self._selector = _Jump(self)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        """Let so much time pass at once. asyncio calls what is due within the clock's resolution: it is that time by
        then, or whoever finds that it was called too early would wait again, and that for ever."""
        self._virtual_s += seconds
        first = self._scheduled[0].when() if self._scheduled else 0.0
        if self._virtual_s < first < self._virtual_s + self._clock_resolution:
            self._virtual_s = first

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no files to hear of."""

    def _write_to_self(self) -> None:
        """Nobody else is there to wake this loop."""


def now() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()


def wall() -> float:
    """Unix time of the world."""
    return EPOCH_S + asyncio.get_running_loop().time() - _BEGIN_S


def format_now() -> str:
    """RFC 3339 in whole seconds."""
    return real_time.strftime("%Y-%m-%dT%H:%M:%SZ", real_time.gmtime(wall()))


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

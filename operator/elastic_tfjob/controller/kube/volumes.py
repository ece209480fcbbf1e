"""Work on files of a volume, which may be slow or hang for ever: in threads that nobody has to wait for."""

import asyncio
import contextlib
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

__all__ = ["on_volume"]

T = TypeVar("T")


def on_volume(work: Callable[[], T]) -> asyncio.Future[T]:
    """What `work` gives or raises. Its thread is a daemon, since the process ends without it where it hangs: those of
    asyncio's own pool are waited for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failed)

    Thread(target=run, name="volume", daemon=True).start()
    return future

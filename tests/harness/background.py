"""Work beside a block of code, and waiting for what it does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do `work` meanwhile. It is cancelled at the end of the block; raises what it has raised by then."""
    task = asyncio.create_task(work)
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(what: Callable[[], object], within_s: float = 60.0) -> None:
    """Wait until this holds. A busy machine takes long, and is no failure."""
    async with asyncio.timeout(within_s):
        while not what():
            await asyncio.sleep(0.01)

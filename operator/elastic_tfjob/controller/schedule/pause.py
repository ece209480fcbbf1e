"""When the next scheduling round begins."""

import asyncio
import contextlib
import time

__all__ = ["pause"]


async def pause(wake: asyncio.Event, begun: float, interval_s: float, spacing_s: float, *, on_change: bool) -> None:
    """Until something changes, at least `spacing_s` and at most an interval after the last round began (monotonic
    seconds)."""
    interval_s = max(interval_s, spacing_s)
    if on_change:
        # Not wait_for, which in Python 3.11 swallows a cancellation that comes together with what it waits for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await wake.wait()
        await asyncio.sleep(max(0.0, begun + spacing_s - time.monotonic()))
    else:
        await asyncio.sleep(interval_s - time.time() % interval_s)
    wake.clear()

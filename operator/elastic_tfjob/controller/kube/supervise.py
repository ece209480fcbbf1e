"""What runs in the background for as long as the process lives: a bug in it is logged and counted, and it begins anew.

An error that ended one task used to end the operator, and so one tenant's odd object could stop everybody's jobs.
"""

import asyncio
import gc
import random
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from elastic_tfjob.controller.kube import metrics

__all__ = ["Supervisor", "cancels", "collect_less", "excerpt", "trace", "unending", "watch_loop"]

log = structlog.get_logger(__name__)

_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 60.0
# Who ran for so long without failing is well again.
_WELL_S: Final = 60.0
# Liveness says "restart me" when a task has not been well for so long. A restart helps where this process's memory is
# what is wrong, or where another replica can lead; against an object that makes every process fail it does not, so it
# must be rare: a process that starts has this long again, in which whatever still works goes on working. It is no
# matter of errors of the API server either: they are no bugs, are handled where they happen, and never count here.
# A loop that is blocked needs no rule: it cannot answer the probe at all.
_STUCK_S: Final = 600.0
_EXCERPT: Final = 300
_FRAMES: Final = 20
_LAG_EVERY_S: Final = 0.1


class Supervisor:
    """Runs tasks that never end, each begun anew when it does."""

    def __init__(self) -> None:
        # Since when each task that is not well has been failing.
        self._failing: dict[str, float] = {}

    @property
    def stuck(self) -> tuple[str, ...]:
        """The tasks that have been failing for so long that the process had better begin anew."""
        now = time.monotonic()
        return tuple(sorted(name for name, since in self._failing.items() if now - since >= _STUCK_S))

    async def keep(self, name: str, run: Callable[[], Awaitable[object]]) -> None:
        """Run for ever: when it fails or returns, which it never should, it is run again, later each time. Ends when it
        is cancelled from outside, and only then."""
        backoff_s = 0.0
        while True:
            well = asyncio.get_running_loop().call_later(_WELL_S, self._failing.pop, name, None)
            begun = time.monotonic()
            problem, frames = "it returned", tuple[str, ...]()
            try:
                ended = await _outcome(run)
            finally:
                well.cancel()
            if isinstance(ended, asyncio.CancelledError):
                problem, frames = "something it waited for was cancelled", trace(ended)
            elif ended is not None:
                problem, frames = excerpt(ended), trace(ended)
            if time.monotonic() - begun >= _WELL_S:
                backoff_s = 0.0
            self._failing.setdefault(name, time.monotonic())
            metrics.TASK_FAILURES.labels(name).inc()
            backoff_s = min(max(2 * backoff_s, _BACKOFF_S), _MAX_BACKOFF_S)
            # With jitter: tasks that fail together must not return together.
            again_s = backoff_s * random.uniform(0.5, 1.0)
            log.error("bug: a task failed", task=name, error=problem, trace=frames, again_in_s=round(again_s, 2))
            await asyncio.sleep(again_s)


def cancels(error: BaseException) -> bool:
    """Whether an error is the cancellation of the task that runs, and not of something that it waited for."""
    me = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling() > 0


async def unending(run: Callable[[], Awaitable[object]]) -> None:
    """For a task of a TaskGroup that never ends: a group takes no notice of one that returns, or is cancelled by
    something that it waited for, and goes on without it. Raises RuntimeError then, which ends the whole group, so that
    its Supervisor tells it and begins it anew."""
    ended = await _outcome(run)
    if isinstance(ended, asyncio.CancelledError):
        raise RuntimeError("something it waited for was cancelled") from ended
    raise ended or RuntimeError("it returned")


async def _outcome(run: Callable[[], Awaitable[object]]) -> Exception | asyncio.CancelledError | None:
    """The error that `run` ended with, if any; raises CancelledError where who waits here is cancelled, and only then.

    It runs in a task of its own, since who counts the cancellations of a task that has run a TaskGroup is misled: a
    group that is failing when it is cancelled raises its failure alone, and one whose member fails while it waits for
    the others leaves its own cancellation counted (Python 3.11 and 3.12).
    """

    async def alone() -> None:
        await run()

    task = asyncio.create_task(alone())
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    try:
        task.result()
    except (Exception, asyncio.CancelledError) as error:
        return error
    return None


def excerpt(error: BaseException) -> str:
    """What went wrong in one short line, whatever the error is: of a group, its first; never a whole value of a
    tenant's, and no error of its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    try:
        text = str(error)
    except Exception:
        text = "(without words)"
    line = " ".join(text[:_EXCERPT].split())
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def trace(error: BaseException) -> tuple[str, ...]:
    """The innermost calls of a traceback, outermost first: where, and not with which values, which may be anybody's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error.__cause__, asyncio.CancelledError):
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__, limit=-_FRAMES)
    return tuple(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)


async def watch_loop() -> None:
    """Measure for ever how late the event loop is: what one step of it takes, all others wait for."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        metrics.LOOP_LAG.observe(max(0.0, loop.time() - due))


def collect_less() -> None:
    """Spare the garbage collector what is there by now, which stays (modules, and caches that refer to nothing but what
    is in them): with 10,000 jobs a look at everything holds the loop for a second."""
    gc.collect()
    gc.freeze()

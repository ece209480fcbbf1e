"""What runs in the background for as long as the process lives: a bug in it is logged and counted, and it begins anew.

An error that ended one task used to end the operator, and so one tenant's odd object could stop everybody's jobs.
"""

import asyncio
import gc
import json
import random
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.metrics import name_failed_pods
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.model.pod import Pod

__all__ = [
    "Supervisor",
    "cancels",
    "collect_less",
    "excerpt",
    "listening",
    "serve_probes",
    "trace",
    "unending",
    "watch_loop",
]

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


# -- A server of HTTP whose connections are bounded --------------------------------------------------------------------
# In number, and each in the time that it may do nothing.
#
# Whoever reaches a port can open connections and say nothing, begin a request and not end it, or not read the answer.
# Each of those takes a file descriptor and memory of the process that also talks to the API server.

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MOST: Final = 256
"""Connections that do nothing, and requests at once, of one server."""
_IDLE_S: Final = 75.0
"""Longer than proxies and Prometheus keep a connection between two questions."""
_SHUTDOWN_S: Final = 3.0
"""How long answers under way are waited for at the end: one that nobody reads must not keep the process."""


class _Connections:
    """The connections of a server: those that do nothing, from when on each, and those with a request."""

    def __init__(self, most: int, idle_s: float) -> None:
        self._most = most
        self._idle_s = idle_s
        self._idle: OrderedDict[web.RequestHandler, float] = OrderedDict()
        self._busy = 0

    def admit(self, connection: web.RequestHandler) -> None:
        """A new one, or one whose request has been handled; its answer may not be read yet. Where there are too many,
        the one that has done nothing for longest goes: whoever asks at once is answered, however many others do not."""
        self._idle[connection] = asyncio.get_running_loop().time()
        while len(self._idle) > self._most:
            self._drop(next(iter(self._idle)))

    @web.middleware
    async def handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Whoever has a request in work is not idle."""
        connection = request.protocol
        if self._busy >= self._most:
            return web.Response(status=503, text="too many requests at once", headers={"Retry-After": "1"})
        self._idle.pop(connection, None)
        self._busy += 1
        try:
            return await handler(request)
        finally:
            self._busy -= 1
            if connection.transport is not None:
                self.admit(connection)

    async def sweep(self) -> None:
        """Drop those that have done nothing for too long, for ever."""
        while True:
            await asyncio.sleep(self._idle_s / 10)
            since = asyncio.get_running_loop().time() - self._idle_s
            for connection, at in list(self._idle.items()):
                if at > since:
                    break  # they are in order of time
                self._drop(connection)

    def _drop(self, connection: web.RequestHandler) -> None:
        del self._idle[connection]
        if isinstance(connection.transport, asyncio.Transport):  # else the other end has gone
            connection.transport.abort()


@asynccontextmanager
async def listening(
    address: str, app: web.Application, *, most: int = _MOST, idle_s: float = _IDLE_S, **options: Any
) -> AsyncIterator[None]:
    """Serve an application at an address of Options while the context is open, with at most `most` connections that do
    nothing, each for `idle_s` at most, and as many requests at once; `options` are those of AppRunner. Raises OSError
    where the address is taken."""
    host, _, port = address.rpartition(":")
    if not int(port):
        yield
        return
    connections = _Connections(most, idle_s)
    app.middlewares.insert(0, connections.handled)
    runner = web.AppRunner(app, access_log=None, **{"shutdown_timeout": _SHUTDOWN_S, **options})
    await runner.setup()
    server = runner.server
    assert server is not None

    def accepted() -> asyncio.Protocol:
        connection = server()
        connections.admit(connection)
        return connection

    sweeping = asyncio.create_task(connections.sweep(), name="idle-connections")
    try:
        # Without a host asyncio listens on all addresses of both families, or of the one that there is.
        sockets = await asyncio.get_running_loop().create_server(
            accepted, host.strip("[]") or None, int(port), backlog=most
        )
        try:
            yield
        finally:
            sockets.close()
    finally:
        sweeping.cancel()
        await runner.cleanup()


# What the operator reports to Prometheus (`/metrics`), the kubelet (`/healthz`, `/readyz`) and people (`/status`).


@asynccontextmanager
async def serve_probes(
    metrics_address: str,
    health_address: str,
    *,
    alive: Callable[[], str],
    ready: Callable[[], str],
    failed: Callable[[], Sequence[tuple[TFJob, Pod]]],
    status: Callable[[], dict[str, Any]],
) -> AsyncIterator[None]:
    """Serve while the context is open. Addresses are those of Options. `alive` and `ready` say what is wrong, or
    nothing: the answer is then 503 with these words. `failed` gives the failed pods, of which some are named at
    `/metrics`; it is called in a thread. `status` is what `/status`
    answers, beside the probes. Raises OSError where an address is taken."""

    one = asyncio.Lock()

    async def show_metrics(_: web.Request) -> web.Response:
        # In a thread: with many namespaces it takes longer than others should wait for. One at a time: the scheduling
        # loop computes in threads of the same pool.
        async with one:
            text = await asyncio.to_thread(_metrics, failed)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def show_alive(_: web.Request) -> web.Response:
        return _answer(alive())

    async def show_ready(_: web.Request) -> web.Response:
        return _answer(ready())

    async def show_status(_: web.Request) -> web.Response:
        return web.json_response(status(), dumps=partial(json.dumps, indent=2))

    probes = _routes(web.get("/healthz", show_alive), web.get("/readyz", show_ready), web.get("/status", show_status))
    async with (
        listening(metrics_address, _routes(web.get("/metrics", show_metrics))),
        listening(health_address, probes),
    ):
        yield


def _metrics(failed: Callable[[], Sequence[tuple[TFJob, Pod]]]) -> bytes:
    name_failed_pods(failed())
    return generate_latest()


def _answer(problem: str) -> web.Response:
    return web.Response(status=503, text=problem) if problem else web.Response(text="ok")


def _routes(*routes: web.RouteDef) -> web.Application:
    app = web.Application()
    app.add_routes(routes)
    return app

"""Supervises background tasks that run as long as the process: a task that fails is logged, counted and restarted.

Otherwise an error in one task would end the operator, and one tenant's unusual object could stop the jobs of all.
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

from elastic_tfjob.api.words import error_in_words
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
# A task that has run for this time without failing is healthy again.
_WELL_S: Final = 60.0
# The liveness probe fails when a task has not been healthy for this time, and the kubelet restarts the operator. A
# restart helps if this process's memory is corrupt or another replica can lead. It does not help against an object that
# makes every process fail, so it must be rare: after a start all other tasks work for this time again. Errors of the
# API server never count here: they are not bugs, and callers handle them. A blocked event loop needs no rule, because
# it cannot answer the probe.
_STUCK_S: Final = 600.0
_FRAMES: Final = 20
_LAG_EVERY_S: Final = 0.1


class Supervisor:
    """Runs tasks that should never end, and restarts a task that does."""

    def __init__(self) -> None:
        # By task that is not healthy, the time of its first failure on the monotonic clock.
        self._failing: dict[str, float] = {}

    @property
    def stuck(self) -> tuple[str, ...]:
        """The names of tasks that have been failing for _STUCK_S: the process should restart."""
        now = time.monotonic()
        return tuple(sorted(name for name, since in self._failing.items() if now - since >= _STUCK_S))

    async def keep(self, name: str, run: Callable[[], Awaitable[object]]) -> None:
        """Call `run` without end: it restarts with a growing delay each time it fails or returns, which it never
        should. This ends only when it is cancelled from outside."""
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
            # With jitter, so that tasks that failed together do not restart together.
            again_s = backoff_s * random.uniform(0.5, 1.0)
            log.error("bug: a task failed", task=name, error=problem, trace=frames, again_in_s=round(again_s, 2))
            await asyncio.sleep(again_s)


def cancels(error: BaseException) -> bool:
    """Whether an error is the cancellation of the current task, and not of something that it waited for."""
    me = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling() > 0


async def unending(run: Callable[[], Awaitable[object]]) -> None:
    """Wraps a task of a TaskGroup that should never end. A TaskGroup continues without a task that returns or that is
    cancelled by something it waited for. This raises RuntimeError in both cases, which ends the group; its Supervisor
    then logs and restarts it. Other errors of `run` are raised unchanged."""
    ended = await _outcome(run)
    if isinstance(ended, asyncio.CancelledError):
        raise RuntimeError("something it waited for was cancelled") from ended
    raise ended or RuntimeError("it returned")


async def _outcome(run: Callable[[], Awaitable[object]]) -> Exception | asyncio.CancelledError | None:
    """The error that `run` ended with, None if it returned. Raises CancelledError only if the caller is cancelled.

    `run` gets its own task, because a TaskGroup makes `cancelling()` of its task unreliable in Python 3.11 and 3.12: a
    group that is failing when it is cancelled raises only its failure, and a group whose member fails while it waits
    for its other members leaves its own cancellation counted.
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
    """The error in words (`error_in_words`); for an ExceptionGroup, its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error_in_words(error)


def trace(error: BaseException) -> tuple[str, ...]:
    """The innermost calls of a traceback, outermost first. It has places but no values, which may be a tenant's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error.__cause__, asyncio.CancelledError):
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__, limit=-_FRAMES)
    return tuple(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)


async def watch_loop() -> None:
    """Measure the delay of the event loop without end: all tasks wait while one step of the loop runs."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        metrics.LOOP_LAG.observe(max(0.0, loop.time() - due))


def collect_less() -> None:
    """Exclude all current objects from garbage collection, because they stay (modules, and caches that refer only to
    their own content). With 10,000 jobs a full collection blocks the event loop for a second."""
    gc.collect()
    gc.freeze()


# -- An HTTP server with a limited number of connections and a limited idle time per connection ------------------------
# Any client that reaches a port can open connections and send nothing, leave a request incomplete, or not read the
# answer. Each such connection takes a file descriptor and memory of the process that also talks to the API server.

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MOST: Final = 256
"""Maximum idle connections of one server, and maximum concurrent requests."""
_IDLE_S: Final = 75.0
"""Maximum idle time of a connection. Proxies and Prometheus keep connections for less time between two requests."""
_SHUTDOWN_S: Final = 3.0
"""How long a shutdown waits for unfinished answers: a client that does not read must not keep the process alive."""


class _Connections:
    """The connections of a server: idle ones, each with the time since when it is idle, and the count of busy ones."""

    def __init__(self, most: int, idle_s: float) -> None:
        self._most = most
        self._idle_s = idle_s
        self._idle: OrderedDict[web.RequestHandler, float] = OrderedDict()
        self._busy = 0

    def admit(self, connection: web.RequestHandler) -> None:
        """Add a new connection, or one whose request has been handled (the client may not have read the answer yet).
        Above the limit the longest idle connection is closed, so a client that sends its request at once is always
        answered."""
        self._idle[connection] = asyncio.get_running_loop().time()
        while len(self._idle) > self._most:
            self._drop(next(iter(self._idle)))

    @web.middleware
    async def handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count a connection as busy while its request is handled. Above the limit the answer is 503."""
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
        """Close connections that have been idle for too long, without end."""
        while True:
            await asyncio.sleep(self._idle_s / 10)
            since = asyncio.get_running_loop().time() - self._idle_s
            for connection, at in list(self._idle.items()):
                if at > since:
                    break  # the entries are ordered by time
                self._drop(connection)

    def _drop(self, connection: web.RequestHandler) -> None:
        del self._idle[connection]
        if isinstance(connection.transport, asyncio.Transport):  # otherwise the client has closed it
            connection.transport.abort()


@asynccontextmanager
async def listening(
    address: str, app: web.Application, *, most: int = _MOST, idle_s: float = _IDLE_S, **options: Any
) -> AsyncIterator[None]:
    """Serve an application while the context is open; `address` has the format described in Options. At most `most`
    connections may be idle, each for at most `idle_s` seconds, and at most `most` requests are handled at a time.
    `options` are passed to AppRunner. Raises OSError if the address is in use."""
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
        # Without a host asyncio listens on all IPv4 and IPv6 addresses, as far as the machine has both.
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


# The operator's endpoints for Prometheus (`/metrics`), the kubelet (`/healthz`, `/readyz`) and people (`/status`).


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
    """Serve metrics and probes while the context is open. Addresses have the format described in Options. `alive` and
    `ready` return a problem, answered as 503 with this text, or an empty text. `failed` returns the failed pods, some
    of which are listed at `/metrics`; it is called in a thread. `status` returns the JSON object of `/status`, served
    at the health address. Raises OSError if an address is in use."""

    one = asyncio.Lock()

    async def show_metrics(_: web.Request) -> web.Response:
        # Runs in a thread, because with many namespaces it would block the event loop for too long. One at a time,
        # because the scheduling loop uses threads of the same pool.
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

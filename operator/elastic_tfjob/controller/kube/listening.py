"""A server of HTTP whose connections are bounded: in number, and each in the time that it may do nothing.

Whoever reaches a port can open connections and say nothing, begin a request and not end it, or not read the answer.
Each of those takes a file descriptor and memory of the process that also talks to the API server.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

__all__ = ["listening"]

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
